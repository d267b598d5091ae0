"""Align a whole recording in one call, in process and without Spark.

A recording is complete, so nothing in it is late: all rows are put in order first, per key, and
aligned in one pass. Rows whose time cannot be read are told by a warning and kept in the result's
`errors`; everything else that did not become a value is in `dropped`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.align.methods import Method
from tidegate.align.stage import Align
from tidegate.core.arrow import as_text, factorize
from tidegate.core.checks import names
from tidegate.core.flow import never_seen
from tidegate.core.lazy_rows import LazyRows
from tidegate.core.outcomes import Outcome
from tidegate.core.sort import order_rows
from tidegate.core.time import Duration
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, TimeColumn

__all__ = ["Aligned", "align_recording", "rows"]


class Aligned(NamedTuple):
    """What became of a recording. One whose `never_seen` is not empty is probably misspelt."""

    data: pa.Table
    """One row per point: key, `time_ns`, the reference, and a struct per topic."""
    dropped: pa.Table
    """Messages and points that did not become part of a row, with their `reason`."""
    errors: pa.Table
    """Rows that could not be used, with `error_column`, `error_value` and `error_reason`."""
    offsets: pa.Table
    """Per key and topic: how many values, how many missing, and how far from their rows."""
    never_seen: list[str]
    """A sentence for every topic that the settings name and the recording does not have."""


def rows(
    recording: Any,
    *,
    topic: str,
    time: str,
    topics: Mapping[str, Method | Mapping[str, Any] | str],
    key: str | Sequence[str] = (),
    type: str | None = None,
    reference: str | None = None,
    grid: str | Duration | None = None,
    origin: Duration = 0,
    max_gap: Duration | None = None,
    missing: str = "null",
) -> pa.Table:
    """Every topic's value at the times of a reference topic, or on a grid.

    Args:
        recording: A `pyarrow.Table` or batch, a DataFrame of pandas or polars, a list of dicts, or
            the path of a Parquet, CSV, JSON-lines or MCAP file.
        topic: The column that holds the topic.
        time: The column that holds the time.
        topics: A method per topic: `{"joint": latest("50 ms")}`.
        key: The column or columns that tell robots, vehicles or runs apart.
        type: The event-time type of the column. Default: timestamps as they are, integers as
            nanoseconds since 1970.
        reference: The topic whose messages give the times. Either this or `grid`.
        grid: A rate or a period instead.
        origin: Where the grid has a point.
        max_gap: How long a grid goes on without messages.
        missing: `null` or `drop`: what becomes of a row where a topic has no value.

    Returns:
        One row per point: the key, `time_ns`, the reference message, and per topic a struct of its
        columns with `time_ns`, `offset_ns` and `missing`.

    Raises:
        ConfigError: A setting or a column is wrong.

    Example:
        >>> recording = [
        ...     {"topic": "camera", "stamp": 100, "v": 1.0},
        ...     {"topic": "joint", "stamp": 90, "v": 2.0},
        ...     {"topic": "joint", "stamp": 110, "v": 4.0},
        ... ]
        >>> table = rows(recording, topic="topic", time="stamp", reference="camera",
        ...              topics={"joint": "linear"})
        >>> table.column("joint").to_pylist()[0]["v"]
        3.0
    """
    stage = Align(
        topics, reference=reference, grid=grid, origin=origin, max_gap=max_gap, missing=missing,
        unused=False, topic=topic, keys=names("key", key),
    )  # fmt: skip
    made = align_recording(stage, recording, time=time, type=type)
    if made.errors.num_rows:
        first = made.errors.slice(0, 1).to_pylist()[0]
        warnings.warn(
            f"{made.errors.num_rows} of the recording's rows could not be used; the first: "
            f"{first['error_column']} is {first['error_value']!r}, {first['error_reason']}",
            stacklevel=2,
        )
    for sentence in made.never_seen:
        warnings.warn(sentence, stacklevel=2)
    return made.data


def align_recording(stage: Align, recording: Any, *, time: str, type: str | None = None) -> Aligned:
    """Align a recording and keep everything that left.

    Args:
        stage: What to align, and how.
        recording: As for `rows`.
        time: The column that holds the time.
        type: Its event-time type; default as for `rows`.

    Returns:
        The aligned rows, and what did not become part of them.

    Raises:
        ConfigError: The recording cannot be read, lacks a column that `time`, `topic` or `keys`
            names, or needs a `type` for its time column.
    """
    batch = _one_batch(_open_recording(recording))
    wanted = [("time", time), ("topic", stage.topic), *(("key", key) for key in stage.keys)]
    for setting, column in wanted:
        if batch.schema.get_field_index(column) < 0:
            have = ", ".join(batch.schema.names)
            raise ConfigError(setting, column, f"must be a column of the recording: {have}")
    kind = _time_type(batch.schema.field(time).type, time, type)
    collection, errors = Decoder((TimeColumn(time, kind),)).decode(batch)
    out: list[Outcome] = [] if errors is None else [errors]
    lane, lanes = np.zeros(len(collection), np.int32), 1
    if stage.keys:
        codes = factorize([collection.rows.column(key) for key in stage.keys])
        lane, lanes = codes.codes.astype(np.int32), codes.size
    if len(collection):
        order = order_rows(lane, collection.time_ns, lanes)
        state = stage.open(lanes)
        ordered = LazyRows(collection.rows, order, collection.time_ns[order], lane[order])
        out += stage.process(state, ordered)
        out += stage.flush(state)
    return Aligned(
        _outcome_table(out, "data", stage.schema(batch.schema)),
        _outcome_table(out, "dropped", batch.schema),
        _outcome_table(out, "error", batch.schema),
        _outcome_table(out, "offsets", stage.side_schemas(batch.schema)["offsets"]),
        never_seen(
            stage.expected_names(),
            {stage.topic: set(as_text(batch.column(stage.topic)).unique().to_pylist()) - {None}},
        ),
    )


def _outcome_table(outcomes: list[Outcome], kind: str, schema: pa.Schema) -> pa.Table:
    """All outcomes of one kind as one table; an empty one of `schema` where there are none."""
    made = [pa.Table.from_batches([o.table()]) for o in outcomes if o.kind == kind]  # type: ignore[union-attr]
    if not made:
        return schema.empty_table()
    return pa.concat_tables(made, promote_options="permissive")


def _time_type(kind: pa.DataType, column: str, given: str | None) -> str:
    """The event-time type of the time column: the one given, else the one its Arrow type implies.

    Args:
        kind: The Arrow type of the column.
        column: Its name, for the error.
        given: What the user wrote, if anything.

    Raises:
        ConfigError: The column is neither a timestamp nor an integer, and no type was given: text
            and floats have several readings, and a guess would be silent.
    """
    if given is not None:
        return given
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_integer(kind):
        return "unixtimestamp_ns"
    raise ConfigError(
        "type", None, f'is needed: {column} is {kind}; give for example type="iso8601"'
    )


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
