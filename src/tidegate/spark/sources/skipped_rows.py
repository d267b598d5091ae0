"""Rows at the beginning of CSV files that are no data: the options `skipRows` and
`skipRowsAfterHeader`.

    Logger 7, firmware 2.1        skipRows: 1
    time,temperature              header: true
    s,degC                        skipRowsAfterHeader: 1
    0.0,21.5

Blank lines and comments are not counted: Spark drops them before anybody can count. Gate 1 skips
such rows itself. Spark's reader knows no such option: it is told that there is no header, and the
first rows of each file are taken out behind it, by counting. The first block of a file says where
counting begins; a file that is cut within the rows to skip ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from tidegate.core.text import plural
from tidegate.errors import ConfigError
from tidegate.pipeline.text_files import MOST_SKIPPED, rows_above, rows_below
from tidegate.spark.options import text

__all__ = ["check_skipped", "skips_rows", "without_first_rows"]


def skips_rows(options: Mapping[str, str]) -> bool:
    """Return whether rows are skipped at the beginning of each file."""
    lower = {name.lower(): value for name, value in options.items()}
    return rows_above(lower) + rows_below(lower) > 0


def check_skipped(options: Mapping[str, str], format: str, has_schema: bool, field: str) -> None:
    """Check the two options.

    Args:
        options: Of a source of text.
        format: Of the source.
        has_schema: Whether the definition names the columns.
        field: Where in the definition the options are.

    Raises:
        ConfigError: Their values are wrong, or do not go with the other options.
    """
    given = {name.lower(): (name, value) for name, value in options.items()}
    for known in ("skiprows", "skiprowsafterheader"):
        name, value = given.get(known, ("", "0"))
        if not value.strip().isdecimal() or int(value) > MOST_SKIPPED:
            raise ConfigError(
                f"{field}.{name}", value, f"must be a whole number from 0 to {MOST_SKIPPED:,}"
            )
        if name and format != "csv":
            raise ConfigError(f"{field}.{name}", value, "is an option of the format csv")
    if not skips_rows(options):
        return
    name, value = given.get("skiprows", given.get("skiprowsafterheader", ("", "")))
    header = (text(options, "header") or "false").lower() == "true"
    if not header and "skiprowsafterheader" in given:
        raise ConfigError(
            f"{field}.{given['skiprowsafterheader'][0]}", given["skiprowsafterheader"][1],
            "needs header: true",
        )  # fmt: skip
    if not header and not has_schema:
        raise ConfigError(f"{field}.{name}", value, "needs a schema, or header: true")
    if (text(options, "inferSchema") or "false").lower() == "true" and not has_schema:
        raise ConfigError(
            f"{field}.{name}", value,
            "needs a schema (`tidegate init` writes one): inferSchema would look at those rows too",
        )  # fmt: skip
    for other in ("mode", "columnNameOfCorruptRecord"):
        if text(options, other) is not None:
            raise ConfigError(f"{field}.{name}", value, f"does not go with the option {other}")


def without_first_rows(rows: DataFrame, count: int) -> DataFrame:
    """Return rows of Spark's CSV reader without the first ones of each file.

    Args:
        rows: As the reader delivers them, blank lines and comments left out.
        count: Rows to take out, the header included.
    """
    place = F.col("_metadata")
    first = place["file_block_start"] == 0
    file = F.when(first, place["file_path"])
    cut = place["file_block_length"] < place["file_size"]

    def keep(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        counter = _FirstRows(count)
        for files, cuts in batches:
            yield counter.kept(files, cuts)
        counter.finish()

    kept: Any = arrow_udf(keep, T.BooleanType())  # type: ignore[call-overload]
    return rows.where(kept.asNondeterministic()(file, cut))


class _FirstRows:
    """Counts the rows of the first blocks of files, as one task gets them: file after file.

    Args:
        count: Rows to take out of each.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.file: str | None = None
        self.cut = False
        self.seen = 0

    def kept(self, files: pa.Array, cuts: pa.Array) -> pa.BooleanArray:
        """Return which rows are kept.

        Args:
            files: The file of each row in a first block; null for rows of later blocks.
            cuts: Whether that file has later blocks.

        Raises:
            ConfigError: A first block is over before all rows were taken out.
        """
        encoded = files.dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(-1))
        kept = np.ones(len(codes), np.bool_)
        starts = np.flatnonzero(np.diff(codes, prepend=-2))
        for start, stop in pairwise([*starts.tolist(), len(codes)]):
            file = None if codes[start] < 0 else encoded.dictionary[int(codes[start])].as_py()
            if file != self.file:
                self.finish()
                self.file, self.cut, self.seen = file, cuts[start].as_py(), 0
            if file is not None:
                taken = min(stop - start, self.count - self.seen)
                kept[start : start + taken] = False
                self.seen += taken
        return pa.array(kept)

    def finish(self) -> None:
        """Raise ConfigError if the current block is over too early."""
        if self.file is not None and self.cut and self.seen < self.count:
            raise ConfigError(
                "spark.sql.files.maxPartitionBytes", self.file,
                f"is cut within the {plural(self.count, 'row')} to skip: use larger partitions",
            )  # fmt: skip
