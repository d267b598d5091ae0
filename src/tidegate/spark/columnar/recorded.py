"""What MCAP files and bags have in common at gate 1: columns from the path of a file, and columns
that an index knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from tidegate.core.arrow import conform
from tidegate.recordings.listing import PathColumns
from tidegate.spark.columnar.format import ColumnarFormat, with_codes
from tidegate.spark.sources.recording import RecordingSettings

__all__ = ["RecordingColumns"]

INDEXED = frozenset({"file", "offset", "position", "topic", "log_time_ns", "schema", "encoding"})
"""The columns that the index of a file knows, beside those from its path."""


@dataclass(frozen=True)
class RecordingColumns(ColumnarFormat):
    """Recordings below a path.

    Args:
        settings: The options of the source, with types of decoded fields.
        told: The columns of the rows, in the types Spark has for them.
        roots: The folders that files must be in, links followed; empty: anywhere.
        settle_ns: How long a file that was not closed must be unchanged before a stream takes it as
            cut off.
    """

    settings: RecordingSettings
    told: pa.Schema
    roots: tuple[str, ...] = ()
    settle_ns: int = 30 * 10**9

    @property
    def schema(self) -> pa.Schema:
        return self.told

    def narrowed(self, columns: Sequence[str]) -> Self:
        return replace(self, told=pa.schema([self.told.field(name) for name in columns]))

    def in_columns(
        self, batch: pa.RecordBatch, path: str, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return rows of a file with these columns, those from its path among them."""
        of_path = PathColumns(self.settings.path_pattern)
        for name, value in zip(of_path.names, of_path.of(path), strict=True):
            if name in columns:
                told = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
                batch = batch.append_column(name, told)
        schema = pa.schema([self.told.field(name) for name in columns])
        return conform(batch, with_codes(schema, batch.schema))

    def are_indexed(self, columns: Sequence[str]) -> bool:
        """Whether an index knows these columns of the messages that are selected: by log time, and
        without a look into payloads."""
        selection = self.settings.selection
        plain = selection.clock == "log" and not selection.decode
        return plain and set(columns) <= INDEXED | set(
            PathColumns(self.settings.path_pattern).names
        )
