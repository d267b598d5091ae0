"""The exit of gate 1: rows that carry an address get their payload where they leave.

An address is the number of a file in the log and a position in it. Addresses travel as one more
column, wherever a stage puts the columns of a row: at the top, or inside a struct per topic, as in
sets. Here each of those places is given the columns it lacks. Rows of one file are fetched
together, each file is opened once per task, and what is held in memory is bounded by bytes.

Whatever came with a row is compared with what is read again: if they differ, the file is another
than the one the decision was made on. Nothing is ever delivered with another row's payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.arrow import concat, conform
from tidegate.core.broken_text import rows_with_broken_text
from tidegate.core.columns import (
    ADDRESS,
    ERROR_COLUMN,
    ERROR_REASON,
    ERROR_VALUE,
    add_output_columns,
)
from tidegate.core.text import plural
from tidegate.errors import StateError
from tidegate.spark.columnar.format import ColumnarFormat, Int64s
from tidegate.spark.columnar.pieces import FoundFile, PieceLog
from tidegate.spark.columnar.source import POSITION_BITS
from tidegate.spark.pack import from_blob, to_blob
from tidegate.spark.stateful_step import STEP_SCHEMA

__all__ = ["MissingPayload", "PayloadAttacher", "has_address", "without_address"]

MissingPayload = Literal["stop", "error"]
"""What to do where a file is changed or gone: end the run, or deliver error rows."""

BYTES_PER_CHUNK = 64 * 2**20
"""Bytes of payload attached at a time, about: what a task holds in memory, twice."""


def has_address(schema: pa.Schema) -> bool:
    """Whether rows of this schema carry addresses, at the top or in a struct."""
    return any(
        field.name == ADDRESS
        or (pa.types.is_struct(field.type) and field.type.get_field_index(ADDRESS) >= 0)
        for field in schema
    )


def without_address(schema: pa.Schema) -> pa.Schema:
    """Return a schema without addresses, at the top and in structs."""
    fields = []
    for field in schema:
        if pa.types.is_struct(field.type):
            kept = [inner for inner in field.type if inner.name != ADDRESS]
            field = field.with_type(pa.struct(kept))
        if field.name != ADDRESS:
            fields.append(field)
    return pa.schema(fields)


class _MissingError(Exception):
    """Payload that cannot be had: of which file, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why


class _Level(NamedTuple):
    """One place where rows are: the top of a batch, or a struct column of it."""

    rows: pa.RecordBatch
    valid: np.ndarray
    """Which of the rows are there: a struct may be null."""


@dataclass(frozen=True)
class PayloadAttacher:
    """Gives rows with addresses their payload. Travels to the workers.

    Args:
        formats: Per input, what reads its files.
        schemas: The Arrow schema of every kind, with the payload.
        log: Where the log of files is; None: `files` are all.
        files: The files of a batch, by their numbers.
        missing: What to do where a file is changed or gone.
        row_bytes: About how many bytes of payload a row has.
        run: Tells the log of this run from an earlier one in the same place.
    """

    formats: tuple[ColumnarFormat, ...]
    schemas: dict[str, pa.Schema]
    log: str | None = None
    files: tuple[FoundFile, ...] = ()
    missing: MissingPayload = "stop"
    row_bytes: float = 100.0
    run: str = ""

    def attach(self, kind: str, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield rows of a kind in its full schema, and `error` rows for payload that is missing.

        Raises:
            StateError: If payload is missing and `missing` is `stop`.
        """
        if not has_address(rows.schema):
            yield kind, conform(rows, self.schemas[kind])
            return
        places = 1 + sum(pa.types.is_struct(field.type) for field in rows.schema)
        step = max(1, int(BYTES_PER_CHUNK / max(1.0, self.row_bytes * places)))
        for first in range(0, rows.num_rows, step):
            yield from self._chunk(kind, rows.slice(first, step))

    def blobs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """mapInArrow over outcomes: blobs with addresses in, blobs with payload out. For sinks that
        do not attach payload themselves.
        """
        for batch in batches:
            for row in batch.to_pylist():
                if row["blob"] is None:
                    yield pa.RecordBatch.from_pylist([row], schema=STEP_SCHEMA)
                    continue
                for kind, rows in self.attach(row["kind"], from_blob(row["blob"])):
                    made = {**row, "kind": kind, "rows": rows.num_rows, "blob": to_blob(rows)}
                    yield pa.RecordBatch.from_pylist([made], schema=STEP_SCHEMA)

    # -- inside ---------------------------------------------------------------------------------

    def _chunk(self, kind: str, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Attach the payload of rows that fit in memory with it.

        A row of several messages (a set) leaves whole or not at all: if the payload of one is
        missing, all of its messages are error rows.
        """
        schema = self.schemas[kind]
        columns: dict[str, pa.Array] = {}
        places: list[tuple[_Level, _Lost]] = []
        if ADDRESS in rows.schema.names:
            level = _Level(rows, np.ones(rows.num_rows, np.bool_))
            whole, lost = self._attach_level(level, schema)
            places.append((level, lost))
            columns = {name: whole.column(name) for name in whole.schema.names}
        for field in rows.schema:
            if field.name == ADDRESS:
                continue
            if not pa.types.is_struct(field.type) or field.type.get_field_index(ADDRESS) < 0:
                columns.setdefault(field.name, rows.column(field.name))
                continue
            struct = rows.column(field.name)
            valid = struct.is_valid().to_numpy(zero_copy_only=False)
            inner = pa.RecordBatch.from_arrays(struct.flatten(), names=[f.name for f in field.type])
            target = pa.schema(list(schema.field(field.name).type))
            level = _Level(inner, valid)
            whole, lost = self._attach_level(level, target)
            places.append((level, lost))
            columns[field.name] = pa.StructArray.from_arrays(
                conform(whole, target).columns, fields=list(target), mask=pa.array(~valid)
            )
        made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        gone = np.logical_or.reduce([lost.which for _, lost in places])
        if gone.any():
            for level, lost in places:
                others = np.flatnonzero(gone & level.valid & ~lost.which)
                if len(others):
                    lost.told.append((others, "", "it belongs to a set with a message that is"))
                yield from lost.as_errors(self.schemas["error"])
            made = made.filter(pa.array(~gone))
        if made.num_rows:
            yield kind, conform(made, schema)

    def _attach_level(self, level: _Level, target: pa.Schema) -> tuple[pa.RecordBatch, _Lost]:
        """Return the rows of one place with all columns of `target`, and those that were lost."""
        rows = level.rows
        address = rows.column(ADDRESS)
        there = address.is_valid().to_numpy(zero_copy_only=False) & level.valid
        addresses = address.fill_null(0).to_numpy()
        rows = rows.drop_columns([ADDRESS])
        lost = _Lost(rows, np.zeros(rows.num_rows, np.bool_), [])
        number = np.where(there, addresses >> POSITION_BITS, -1)
        position = addresses & ((1 << POSITION_BITS) - 1)
        fetched: list[pa.RecordBatch] = []
        of_row: list[Int64s] = []
        for file in np.unique(number[there]).tolist():
            mine = np.flatnonzero(number == file)
            try:
                for batch, which in self._fetch(file, position[mine], rows, mine, target):
                    fetched.append(batch)
                    of_row.append(mine[which])
                    broken = rows_with_broken_text(batch)
                    if broken is not None:
                        bad = mine[which][broken]
                        lost.which[bad] = True
                        lost.told.append((bad, self._file(file).path, "text that is not UTF-8"))
            except _MissingError as gone:
                if self.missing == "stop":
                    raise StateError(
                        f"{gone.path} was changed or removed after its rows were decided on "
                        f"({gone.why}); put it back, or set missing_payload: error to go on "
                        "without it"
                    ) from gone
                lost.which[mine] = True
                lost.told.append((mine, gone.path, gone.why))
        joined = concat(fetched)
        if joined is None:
            return conform(rows, _all_columns(target, rows)), lost
        at = np.concatenate(of_row)
        if len(at) == rows.num_rows and bool((at == np.arange(len(at))).all()):
            taken = joined
        else:
            back = np.full(rows.num_rows, -1, np.int64)
            back[at] = np.arange(len(at))
            taken = joined.take(pa.array(back, mask=back < 0))
        columns, has_address = [], pa.array(there)
        wider = _all_columns(target, rows)
        for field in wider:
            carried, read = (
                part.column(field.name) if field.name in part.schema.names else None
                for part in (rows, taken)
            )
            if carried is None or (read is not None and there.all()):
                columns.append(pa.nulls(rows.num_rows, field.type) if read is None else read)
            elif read is None:
                columns.append(carried)
            else:  # some rows carry their payload, others have an address
                if not carried.type.equals(field.type):
                    carried = carried.cast(field.type)
                columns.append(pc.if_else(has_address, read, carried))
        made = pa.RecordBatch.from_arrays(columns, names=wider.names)
        return made, lost

    def _fetch(
        self, number: int, position: Int64s, rows: pa.RecordBatch, mine: Int64s, target: pa.Schema
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Yield the payload of rows of one file, checked. Raises _MissingError."""
        file = self._file(number)
        of = self.formats[file.input]
        of.check_inside(file.path)
        known = [name for name in rows.schema.names if name in of.schema.names]
        wanted = [name for name in of.schema.names if name in target.names or name in known]
        there = 0
        try:
            of.check_whole(file.path, position, file.changed_us)
            for batch, which in of.fetch(file.path, position, wanted):
                there += len(which)
                same = rows.select(known).take(pa.array(mine[which]))
                for name in known:
                    if not _same_values(same.column(name), batch.column(name)):
                        raise _MissingError(file.path, f"column {name!r} has other values now")
                yield batch, which
        except (OSError, IndexError, ValueError, pa.ArrowException) as error:
            raise _MissingError(file.path, " ".join(str(error).split())[:200]) from error
        if there != len(position):
            gone = len(position) - there
            raise _MissingError(file.path, f"{plural(gone, 'row')} cannot be read there any more")

    def _file(self, number: int) -> FoundFile:
        """Return a file by its number. Raises StateError if there is none, as in a state that
        somebody changed."""
        if self.log is None:
            files: Sequence[FoundFile] = self.files
        else:
            log = _LOGS.get((self.log, self.run))
            if log is None or number >= len(log.files):
                while len(_LOGS) >= _LOGS_KEPT:
                    del _LOGS[next(iter(_LOGS))]
                log = _LOGS[self.log, self.run] = PieceLog(self.log)
            files = log.files
        if not 0 <= number < len(files) or files[number].input >= len(self.formats):
            raise StateError(
                f"a row of the state names file {number:,}, and the run has {len(files):,}"
            )
        return files[number]


_LOGS: dict[tuple[str, str], PieceLog] = {}
"""The logs this worker has read, by their folder and run: a checkpoint that was deleted and begun
again has another log in the same place, and a worker outlives both."""

_LOGS_KEPT = 8
"""Logs a worker keeps: those of the runs that are active at once. More would be a leak."""


class _Lost(NamedTuple):
    """Rows of one place whose payload is missing."""

    rows: pa.RecordBatch
    which: np.ndarray
    told: list[tuple[Int64s, str, str]]

    def as_errors(self, schema: pa.Schema) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield them as error rows, in the schema of those."""
        for rows, path, why in self.told:
            left = self.rows.take(pa.array(rows))
            kept = left.select([name for name in left.schema.names if name in schema.names])
            told = {
                ERROR_COLUMN: pa.nulls(len(rows), pa.string()),
                ERROR_VALUE: pa.repeat(path, len(rows)),
                ERROR_REASON: pa.repeat(f"the payload cannot be had: {why}", len(rows)),
            }
            taken = [name for name in schema.names if name not in told]
            yield "error", conform(add_output_columns(kept, told, taken), schema)


def _all_columns(target: pa.Schema, rows: pa.RecordBatch) -> pa.Schema:
    """Return the columns of `target`, then those that only the rows have."""
    own = [field for field in rows.schema if field.name not in target.names]
    return pa.schema([*target, *own])


def _same_values(carried: pa.Array, read: pa.Array) -> bool:
    """Whether a column that came with its rows holds the values that are read again; null says
    nothing: a row that was addressed has null where others carry their payload.
    """
    if not carried.type.equals(read.type):
        carried = carried.cast(read.type)
    if carried.equals(read):
        return True
    there = carried.is_valid()
    carried, read = carried.filter(there), read.filter(there)
    if carried.equals(read):
        return True
    if not pa.types.is_floating(carried.type):
        return False
    same = pc.or_kleene(pc.equal(carried, read), pc.and_(pc.is_nan(carried), pc.is_nan(read)))
    return bool(pc.all(same.fill_null(False)).as_py())
