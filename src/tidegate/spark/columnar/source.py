"""Spark's side of gate 1: a data source that yields packed blobs instead of rows, batch and stream.

    driver   latestOffset   look for files, cut them into pieces, log them; how far to go
             partitions     pieces between two offsets, dealt to tasks
    worker   read           columns by Arrow, event time, shard, blobs

One source serves all inputs of a pipeline, so that a recorded run takes their files side by side.
The offset is {"piece": pieces read, "bound": see `pieces`, "end": whether a backfill is over}.

A class with its plan travels to Spark by value, under a name of its own: Spark makes data sources
from a class and options that are text, and a plan is neither.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from tidegate.core.columns import (
    ADDRESS,
    ERROR_COLUMN,
    ERROR_REASON,
    ERROR_VALUE,
    add_output_columns,
)
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import StateError
from tidegate.eventtime.slices import Bound, arrival_values
from tidegate.spark.arrival import BOUND, END, Origin
from tidegate.spark.columnar.format import FILES_AHEAD, ColumnarFormat, Limits, Low
from tidegate.spark.columnar.pieces import FoundFile, LoggedPiece, PieceLog, in_recorded_order
from tidegate.spark.pack import PACKED, PACKED_DDL, Packer, to_blobs
from tidegate.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

__all__ = ["GateInput", "GatePlan", "address_of", "open_gate"]

ROWS_PER_TRIGGER = 4_000_000
BYTES_PER_TRIGGER = 256 * 2**20
"""Rows, and bytes of the columns that are read, that a micro-batch takes unless the source's
options say otherwise. More, and memory grows (a worker holds up to six times these bytes: as they
came, joined, sorted and packed); much less, and the fixed cost of a micro-batch (a quarter of a
second) counts."""

SETTLE_S = 30.0
"""Seconds for which a stream waits for a file that cannot be read and has just been changed: most
likely it is being written. Then it counts as damaged."""

TASKS_PER_CORE = 1
"""Tasks a micro-batch is dealt to, per core: one each, for their shares are known beforehand."""

POSITION_BITS = 40
"""Bits of an address that say where in its file a row is; those above say which file. A file may
have 2^40 rows or bytes, and a run 2^23 files."""


class GateInput(NamedTuple):
    """One input of a pipeline at gate 1.

    - `format`: reads its files.
    - `columns`: those that are read.
    - `addressed`: whether rows carry the address of their payload.
    - `packer`: reads event time, finds shards.
    - `ordering`: the columns that order a recorded run; empty: files are taken one by one.
    - `limits`: how much a micro-batch takes.
    """

    format: ColumnarFormat
    columns: tuple[str, ...]
    addressed: bool
    packer: Packer
    ordering: tuple[str, ...]
    limits: Limits = Limits()


@dataclass(frozen=True)
class GatePlan:
    """What the source is told. Travels to the workers.

    Args:
        inputs: The inputs, in the order of the pipeline.
        labels: What each shard is called in Spark.
        recorded: Whether the run is over something recorded: files side by side, with a bound.
        arrival: Whether an arrival column orders the run; else event time.
        log: Where the log of pieces is kept; None for a batch.
        cores: How many tasks run at once.
        ends: Whether the run is a backfill, which ends with a flush.
        found: The files and pieces of a batch, which were looked for when it was planned.
    """

    inputs: tuple[GateInput, ...]
    labels: tuple[int, ...]
    recorded: bool
    arrival: bool
    log: str | None = None
    cores: int = 1
    ends: bool = False
    found: tuple[tuple[FoundFile, ...], tuple[LoggedPiece, ...]] | None = None

    def low(self, number: int) -> Low:
        """Return the function that finds the smallest ordering value of rows of an input."""
        of = self.inputs[number]

        def smallest(rows: pa.RecordBatch) -> tuple[int, bool]:
            if rows.num_rows == 0:
                return MAX_NS, True
            if self.arrival:
                return int(arrival_values(rows, of.ordering[0]).min()), True
            collection, errors = of.packer.decoder.decode(rows)
            return int(collection.time_ns.min()) if len(collection) else MAX_NS, errors is None

        return smallest

    def look(self, log: PieceLog) -> None:
        """Append to the log whatever is new."""
        first = len(log.files)
        files: list[FoundFile] = []
        for number, one in enumerate(self.inputs):
            for path in one.format.files():
                if (number, path) in log.known:
                    continue
                try:
                    changed = os.stat(path).st_mtime_ns // 1000
                except FileNotFoundError:
                    continue  # it was never begun: there is nothing to go on with
                files.append(FoundFile(number, path, changed))
        if not self.recorded:
            files.sort(key=lambda file: (file.changed_us, file.path.rsplit("/", 1)[-1], file.path))
        pieces = [
            piece
            for number, after in sorted(log.growing.items())
            for piece in self._pieces(log.files[number], number, after) or ()
        ]
        taken: list[FoundFile] = []
        for place, file in enumerate(files):
            if place % FILES_AHEAD == 0:
                self._look_ahead(files[place : place + FILES_AHEAD])
            found = self._pieces(file, first + len(taken))
            if found is not None:
                taken.append(file)
                pieces += found
        if self.recorded:
            pieces = in_recorded_order(pieces, [*log.files, *taken])
        log.append(taken, pieces)

    def _look_ahead(self, files: Sequence[FoundFile]) -> None:
        """Let the formats prepare for files that are about to be cut into pieces."""
        for number, one in enumerate(self.inputs):
            paths = [file.path for file in files if file.input == number]
            if paths:
                one.format.look_ahead(paths)

    def _pieces(self, file: FoundFile, number: int, after: int = 0) -> list[LoggedPiece] | None:
        """Return the pieces of a file, behind `after`; one with a fault if it cannot be read. None:
        a stream waits for it, as it cannot be read and has just been changed, or is empty so far.
        """
        one = self.inputs[file.input]
        ordering = one.ordering if self.recorded else ()
        asked = (one.columns, ordering, self.low(file.input))
        try:
            if self.log is None or self.ends:
                return [LoggedPiece(number, *part) for part in one.format.parts(file.path, *asked)]
            parts, more = one.format.new_parts(file.path, after, *asked)
        except (OSError, ValueError, ArithmeticError, pa.ArrowException) as error:
            streams = self.log is not None and not self.ends
            if streams and (after or time.time() - file.changed_us / 1e6 <= SETTLE_S):
                return None
            words = " ".join(str(error).split())[:300]
            return [LoggedPiece(number, 0, 0, 1, 0, MIN_NS, f"the file cannot be read: {words}")]
        if more and not parts:
            return None
        return [LoggedPiece(number, *part, more=more) for part in parts]


@dataclass
class GateTask(InputPartition):
    """One task: pieces with their files, and for the first task of a micro-batch the bound."""

    pieces: tuple[tuple[LoggedPiece, FoundFile], ...]
    bound: Bound | None = None
    end: bool = False


def address_of(file: int, positions: Any) -> Any:
    """Return the addresses of rows of a file."""
    return np.int64(file << POSITION_BITS) | positions


def source_name(file: FoundFile) -> str:
    """Return the name under which a file is put in order: its own name, then its path."""
    return f"{os.path.basename(file.path)} {file.path}"


def read_task(plan: GatePlan, task: GateTask) -> Iterator[pa.RecordBatch]:
    """Yield the packed blobs of a task."""
    for piece, file in task.pieces:
        one = plan.inputs[file.input]
        one.format.check_inside(file.path)
        origin = Origin(file.changed_us, source_name(file), piece.start)
        if piece.fault:
            yield _fault_blob(one, file, origin, piece.fault)
            continue
        seq = 0
        try:
            for rows, positions in one.format.read(file.path, piece.start, piece.stop, one.columns):
                if rows.num_rows == 0:
                    continue
                if one.addressed:
                    address = pa.array(address_of(piece.file, positions))
                    rows = rows.append_column(ADDRESS, address)
                made = one.packer.blobs(rows, origin, 0, seq)
                seq += made.num_rows
                yield made
        except (OSError, IndexError, ValueError, pa.ArrowException) as error:
            raise StateError(
                f"{file.path} cannot be read any more: {' '.join(str(error).split())[:200]}; it "
                "is damaged, or was changed or removed after it was found: put it back"
            ) from error
    if task.bound is not None:
        yield _signals(plan, BOUND, task.bound)
    if task.end:
        yield _signals(plan, END, Bound(MAX_NS, frozenset()))


def _fault_blob(one: GateInput, file: FoundFile, origin: Origin, reason: str) -> pa.RecordBatch:
    """Return one packed error row that says why a file cannot be read."""
    schema = pa.schema([one.format.schema.field(name) for name in one.columns])
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schema], schema=schema)
    told = {
        ERROR_COLUMN: pa.nulls(1, pa.string()), ERROR_VALUE: pa.array([file.path]),
        ERROR_REASON: pa.array([reason]),
    }  # fmt: skip
    return one.packer.error_blob(add_output_columns(nothing, told, one.packer.taken), origin)


def _signals(plan: GatePlan, kind: str, bound: Bound) -> pa.RecordBatch:
    """Return one packed row per shard that carries a bound and no rows."""
    count = len(plan.labels)
    empty = pa.RecordBatch.from_arrays([], names=[])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(plan.labels, pa.int32()),
            pa.array([kind] * count),
            pa.array(np.zeros(count, np.int32)),
            pa.array(np.zeros(count, np.int32)),
            pa.array(np.full(count, bound.value, np.int64)),
            pa.array([json.dumps(sorted(bound.begun))] * count),
            pa.array(np.zeros(count, np.int64)),
            pa.array(np.zeros(count, np.int64)),
            to_blobs([empty] * count),
        ],
        schema=PACKED,
    )


class GateSource(DataSource):
    """The data source; a subclass per query has its `plan` and its name."""

    plan: ClassVar[GatePlan]
    called: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the name under which the session knows it."""
        return cls.called

    def schema(self) -> str:
        """Return the columns of packed blobs."""
        return PACKED_DDL

    def reader(self, schema: Any) -> GateReader:
        """Return the reader of a batch."""
        return GateReader(self.plan)

    def streamReader(self, schema: Any) -> GateStreamReader:  # noqa: N802  (Spark's name)
        """Return the reader of a stream."""
        _leave_pandas_out()
        return GateStreamReader(self.plan)


_SOURCE_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""What the Python runs that Spark starts on the driver for one stream source."""


class _NoPandas:
    """An importer that finds no pandas."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave all else to other importers."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


def _leave_pandas_out() -> None:
    """In the Python of a stream source, have Arrow believe that there is no pandas: it would load
    it with the first Python value it sees, which is half of what that Python costs, and nothing
    here is of pandas. Elsewhere this does nothing: other code runs there too.
    """
    runs = getattr(sys.modules["__main__"], "__spec__", None)
    if runs is not None and runs.name == _SOURCE_RUNNER:
        sys.meta_path.insert(0, _NoPandas())


def open_gate(spark: SparkSession, plan: GatePlan, *, streaming: bool) -> DataFrame:
    """Return the packed blobs of all inputs as a DataFrame, batch or streaming."""
    name = f"tidegate_{uuid.uuid4().hex}"
    made = type("Gate", (GateSource,), {"plan": plan, "called": name})
    spark.dataSource.register(made)
    return (spark.readStream if streaming else spark.read).format(name).load()


def _tasks(pieces: Sequence[tuple[LoggedPiece, FoundFile]], cores: int) -> list[GateTask]:
    """Deal pieces to tasks: consecutive ones, of about the same work."""
    total = sum(_work(piece) for piece, _ in pieces)
    share = max(1.0, total / max(1, cores * TASKS_PER_CORE))
    tasks: list[list[tuple[LoggedPiece, FoundFile]]] = []
    filled = share
    for piece, file in pieces:
        if filled >= share - _work(piece) / 2 and (not tasks or filled > 0):
            tasks.append([])
            filled = 0.0
        tasks[-1].append((piece, file))
        filled += _work(piece)
    return [GateTask(tuple(task)) for task in tasks]


def _work(piece: LoggedPiece) -> float:
    """Return what a piece costs, in rows of some 50 bytes."""
    return piece.rows + piece.nbytes / 50 + 1


class GateReader(DataSourceReader):
    """Batch: all files there are now, in one go."""

    def __init__(self, plan: GatePlan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Called on the driver."""
        assert self.plan.found is not None
        files, pieces = self.plan.found
        tasks = _tasks([(piece, files[piece.file]) for piece in pieces], self.plan.cores * 2)
        return tasks or [GateTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the blobs of one task. Called on a worker."""
        assert isinstance(partition, GateTask)
        return read_task(self.plan, partition)


def _checked_offset(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset, if it is one that this source wrote. Raises StateError."""
    piece, bound, end = (offset.get(name) for name in ("piece", "bound", "end"))
    if (
        type(piece) is not int or piece < 0
        or type(bound) is not int or not MIN_NS <= bound <= MAX_NS
        or type(end) is not bool
    ):  # fmt: skip
        raise StateError(f"the checkpoint has an offset that is none: {str(offset)[:80]}")
    return offset


class GateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming: files as they appear, or a recording in slices."""

    def __init__(self, plan: GatePlan) -> None:
        self.plan = plan
        self.log: PieceLog | None = None
        self.target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's names, here and below)
        """Return the offset of a new stream: nothing has been read."""
        return {"piece": 0, "bound": MIN_NS, "end": False}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: `latestOffset` applies those of the plan."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what an available-now run reads: what there is at its start."""
        log = self._log()
        self.plan.look(log)
        self.target = len(log.pieces)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return how far the next micro-batch reads; `start` itself if there is nothing new. For a
        call without both see `tidegate.spark.read_limits`: all there is, in one micro-batch.
        """
        log = self._log()
        if start is None:
            self.plan.look(log)
            return {"piece": len(log.pieces), "bound": MAX_NS, "end": self.plan.ends}
        _checked_offset(start)
        if self.target is None:
            self.plan.look(log)
        upto = len(log.pieces) if self.target is None else self.target
        taken = self._take(log, start["piece"], upto)
        over = taken == upto
        end = self.plan.ends and over
        if taken == start["piece"] and end == start["end"]:
            return start
        bound = MAX_NS if over else log.bound(taken)
        return {"piece": taken, "bound": bound, "end": end}

    def _take(self, log: PieceLog, start: int, upto: int) -> int:
        """Return how many pieces have been taken after the next micro-batch. A limit by files does
        not lift those of memory: one file may be all of a recording.
        """

        def is_large(rows: int, size: int) -> bool:
            return rows > ROWS_PER_TRIGGER or size > BYTES_PER_TRIGGER

        files: dict[int, set[int]] = {}
        used: dict[int, int] = {}
        counted: dict[int, int] = {}
        rows, size = 0, 0
        for number in range(start, upto):
            piece = log.pieces[number]
            of = log.files[piece.file].input
            limits = self.plan.inputs[of].limits
            seen = files.setdefault(of, set()) | {piece.file}
            rows, size = rows + piece.rows, size + piece.nbytes
            used[of] = used.get(of, 0) + piece.nbytes
            counted[of] = counted.get(of, 0) + piece.rows
            full = (
                (limits.files is not None and len(seen) > limits.files)
                or (limits.nbytes is not None and used[of] > limits.nbytes)
                or (limits.rows is not None and counted[of] > limits.rows)
                or (limits[1:] == (None, None) and is_large(rows, size))
            )
            if full and number > start:
                return number
            files[of] = seen
        return upto

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks between two offsets.

        Raises StateError if the log of pieces does not reach as far as the offsets.
        """
        log = self._log()
        if len(log.pieces) < _checked_offset(end)["piece"]:
            log.refresh()
        if len(log.pieces) < end["piece"] or _checked_offset(start)["piece"] > end["piece"]:
            raise StateError(
                f"the checkpoint has read {end['piece']:,} pieces, and its log {self.plan.log} has "
                f"{len(log.pieces):,}: it is damaged"
            )
        pieces = log.pieces[start["piece"] : end["piece"]]
        tasks = _tasks([(piece, log.files[piece.file]) for piece in pieces], self.plan.cores)
        if self.plan.recorded:
            begun = frozenset(
                f"{log.files[number].input} {source_name(log.files[number])}"
                for number in log.begun(end["piece"])
            )
            tasks = tasks or [GateTask(())]
            tasks[0].bound = Bound(end["bound"], begun)
            tasks[0].end = end["end"] and not start["end"]
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the blobs of one task. Called on a worker."""
        assert isinstance(partition, GateTask)
        return read_task(self.plan, partition)

    def _log(self) -> PieceLog:
        """Return the log, read when it is first needed: on the driver only.

        Raises StateError if it is damaged, or names an input that the pipeline does not have.
        """
        if self.log is None:
            found = PieceLog(self.plan.log)
            if any(file.input >= len(self.plan.inputs) for file in found.files):
                raise StateError(
                    f"{self.plan.log} names {max(file.input for file in found.files) + 1} inputs; "
                    f"the pipeline has {len(self.plan.inputs)}"
                )
            self.log = found
        return self.log
