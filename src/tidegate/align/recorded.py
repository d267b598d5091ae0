"""Read a recording for `align.rows` (tables, DataFrames, lists of dicts, and files), and warn of
what it lacks.

The only file of this room that touches the outside world.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import ConfigError

__all__ = ["read_recording", "warn_about"]


def read_recording(recording: Any) -> pa.RecordBatch:
    """A recording as a single record batch, so that row numbers are valid for all of it.

    Args:
        recording: A table or batch of Arrow, a DataFrame of pandas or polars, a list of dicts, or
            the path of a Parquet, CSV, JSON-lines or MCAP file.

    Raises:
        ConfigError: There is no such path, its ending is unknown, or Arrow cannot make a table of
            it.
    """
    return _one_batch(_open_recording(recording))


def _open_recording(recording: Any) -> Any:
    """Read a recording that is given by its path; anything else is returned unchanged.

    A directory is read as a Parquet dataset. MCAP is imported only when such a file is read, so
    that `align` works without it.

    Raises:
        ConfigError: There is no such path, or its ending is unknown.
    """
    if not isinstance(recording, str | Path):
        return recording
    path = Path(recording)
    if not path.exists():
        raise ConfigError("recording", str(path), "does not exist")
    if path.suffix == ".mcap":
        from tidegate import mcap

        return mcap.read(str(path))
    from pyarrow import dataset

    endings = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
    if path.is_file() and path.suffix not in endings:
        raise ConfigError("recording", str(path), f"must end in {', '.join([*endings, '.mcap'])}")
    return dataset.dataset(path, format=endings.get(path.suffix, "parquet")).to_table()


def _one_batch(recording: Any) -> pa.RecordBatch:
    """The recording as a single record batch, so that row numbers are valid for all of it.

    Raises:
        ConfigError: Arrow cannot make a table of it.
    """
    if isinstance(recording, pa.RecordBatch):
        return recording
    if isinstance(recording, list):
        recording = pa.Table.from_pylist(recording)
    elif not isinstance(recording, pa.Table):
        try:
            recording = pa.table(recording)
        except (TypeError, ValueError, pa.ArrowException) as error:
            expected = "must be a table, a DataFrame, a list of dicts or a path"
            raise ConfigError("recording", type(recording).__name__, expected) from error
    batches = recording.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in recording.schema], schema=recording.schema
        )
    return pa.concat_batches(batches)


def warn_about(errors: pa.Table, sentences: Sequence[str]) -> None:
    """Warn the caller of `align.rows` of rows that could not be used, and of missing topics.

    Args:
        errors: Those rows, with `error_column`, `error_value` and `error_reason`.
        sentences: One per topic that never occurred.
    """
    if errors.num_rows:
        first = errors.slice(0, 1).to_pylist()[0]
        warnings.warn(
            f"{errors.num_rows} of the recording's rows could not be used; the first: "
            f"{first['error_column']} is {first['error_value']!r}, {first['error_reason']}",
            stacklevel=3,
        )
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=3)
