# mypy: disable-error-code="no-untyped-call"
"""Rows that wait, kept where they are, and calls of the kernel on them.

`HeldRows` is the working memory of a batcher: one record per row that came and has not left, the
lists that link them, and (for the stage) the columns of the rows in the chunks they arrived in. A
row keeps its number until twice as many rows have left as wait; then `compact` renumbers. So a call
costs what it brings and what leaves, not what waits, and memory stays within three times what
waits.

The one way into the kernel, for the in-process class and for the stage alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batching import kernel
from tidegate.batching.kernel import earliest_times, group_by_lane, schedule_length
from tidegate.batching.layout import (
    BATCH,
    COUNTS,
    FIRST_ROWS,
    LISTS,
    NEVER,
    PART,
    ROW,
    TALLY,
    UNTIMED,
    KernelArrays,
    KernelCall,
    Place,
    Records,
    lane_records,
    state_columns,
    stream_memory,
)
from tidegate.batching.names import encode_names
from tidegate.batching.report import MAX_CLOCKS, BatchDecision, data_columns, summaries
from tidegate.core.arrow import concat, empty, take
from tidegate.core.columns import DECIDED, GATED, LANE, SLOT, STREAM, TIME, WHERE
from tidegate.core.numba import as_readonly, compile_at_once, interpret_first
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.state import Layout, State
from tidegate.errors import StateError

__all__ = [
    "HeldRows",
    "HeldTable",
    "change_length",
    "compile_batching",
    "held_table",
    "kernel_call",
    "live_tables",
]

SLACK_ROWS = 1 << 13
"""Rows that have left and whose memory is kept, beyond twice what waits. Far below the rows of a
usual call (10,000), every call renumbers; above, a batcher holds on to megabytes for nothing and
copies rows that have left (32,768 took a tenth longer)."""

_NO_LANES = as_readonly(np.empty(0, np.int32))
_NO_TIMES = as_readonly(np.empty(0, np.int64))
_NO_GATES = as_readonly(np.empty(0, np.bool_))


# Most of what batching compiles. Small calls on a new machine run without.
run_rows = interpret_first(kernel.run_rows, lambda a, call, *_: len(call.time_ns), FIRST_ROWS)
run_call = interpret_first(kernel.run_call, lambda a, call, *_: len(call.time_ns), FIRST_ROWS)
settle_lanes = interpret_first(kernel.settle_lanes, lambda a, *_: len(a.rows), FIRST_ROWS)
change_windows = interpret_first(kernel.change_windows, lambda a, *_: len(a.rows), FIRST_ROWS)
load_rows = interpret_first(kernel.load_rows, lambda rows, used, *_: int(used), FIRST_ROWS)
waiting_rows = interpret_first(kernel.waiting_rows, lambda rows, *_: len(rows), FIRST_ROWS)


def kernel_call(
    *,
    length_ns: int,
    timeout: float,
    max_rows: int,
    wall_ns: int,
    lane: Int32s = _NO_LANES,
    time_ns: Int64s = _NO_TIMES,
    code: Int32s = _NO_LANES,
    digests: Int64s = _NO_TIMES,
    gated: NDArray[np.bool_] = _NO_GATES,
    wanted: Int64s = _NO_TIMES,
    idle_ns: int | None = None,
    any_rate: bool = False,
    correct_skew: bool = False,
    patient: bool = True,
) -> KernelCall:
    """Return a `KernelCall` with exactly the types the kernel is compiled for.

    Numba compiles anew for every combination of types, also for writable instead of read-only
    arrays, which is slow. So every call is made here. Settings are those of
    `RateAwareBatcher` and `Batch`; the columns are empty for a call without rows.

    Args:
        length_ns: Batch length of lanes that have none yet.
        timeout: In batch lengths; infinite for gates only.
        max_rows: Rows that may wait per lane.
        wall_ns: Wall time of the call.
        lane: Per row: its lane.
        time_ns: Per row: its event time.
        code: Per row: an index into `digests` and `gated`.
        digests: Per name: its digest.
        gated: Per name: whether batches wait for it.
        wanted: Digests of the gated names, where they were listed.
        idle_ns: Wall time without a row after which everything leaves; None for never.
        any_rate: Whether rates need not be whole numbers of Hz.
        correct_skew: Whether clock offsets are subtracted.
        patient: True: one row at a time. False: all rows as one call.
    """
    order, ends = _lane_order(lane)
    return KernelCall(
        lane=as_readonly(lane),
        time_ns=as_readonly(time_ns),
        order=as_readonly(order.view(np.uint32)),
        ends=as_readonly(ends),
        code=as_readonly(code.view(np.uint32)),
        digests=as_readonly(digests),
        gated=as_readonly(gated),
        wanted=as_readonly(wanted),
        length=int(length_ns),
        timeout=float(timeout),
        limit=int(max_rows),
        wall=int(wall_ns),
        idle=NEVER if idle_ns is None else int(idle_ns),
        any_rate=bool(any_rate),
        correct_skew=bool(correct_skew),
        patient=bool(patient),
    )


def _lane_order(lane: Int32s) -> tuple[Int32s, Int32s]:
    """Return the indices of rows lane by lane, as they came within a lane, and per lane where its
    rows end there. Both are empty if rows are in such an order already; with few rows of many
    lanes, the ends are."""
    if len(lane) < 2 or bool((lane[1:] >= lane[:-1]).all()):
        return _NO_LANES, _NO_LANES
    lanes = int(lane.max()) + 1
    if lanes > 4 * len(lane):  # few rows of many lanes: counting would walk over all lanes
        return np.argsort(lane, kind="stable").astype(np.int32), _NO_LANES
    order = empty(len(lane), np.int32)
    starts = np.zeros(lanes + 1, np.int32)
    group_by_lane(as_readonly(lane), lanes, starts, order)  # each start moves on to the end
    return order, starts[:-1]


def change_length(state: State, lanes: Int64s, length_ns: int, time_ns: int | None) -> int:
    """Schedule a new batch length for some lanes.

    Args:
        state: The state of the batcher.
        lanes: Lane numbers.
        length_ns: The new length; checked by the caller.
        time_ns: It applies to the first window that starts here or later; None: to the next one.
            Times beyond the range of the kernel are clipped to it.

    Returns:
        How many of the lanes took it: fewer than all if the schedule of one is full.
    """
    at = UNTIMED if time_ns is None else min(max(int(time_ns), UNTIMED + 1), NEVER)
    records = lane_records(state)
    return int(schedule_length(records, np.asarray(lanes, np.int64), at, int(length_ns)))


def compile_batching() -> None:
    """Compile every kernel of batching, or load it from numba's cache.

    Runs each entry point on a state of one lane. There is one signature each, whatever the
    settings, so nothing is compiled later while data flows.
    """
    with compile_at_once():
        _run_every_kernel()


def _run_every_kernel() -> None:
    """Run each entry point of batching once, on a state of one lane."""
    state = State(Layout(state_columns(1)))
    held = HeldRows(state)
    settings: dict[str, Any] = {"length_ns": 10**9, "timeout": 1.2, "max_rows": 10, "wall_ns": 0}
    rows: dict[str, Any] = {"lane": np.zeros(1, np.int32), "time_ns": np.zeros(1, np.int64)}
    names: dict[str, Any] = {
        "code": rows["lane"],
        "digests": rows["time_ns"],
        "gated": np.ones(1, np.bool_),
    }
    decision = held.add_and_run(state, kernel_call(**settings, **rows, **names))
    data_columns(decision)
    summaries(decision, pa.array(["a"]).take(pa.array(np.zeros(len(decision.parts), np.int32))))
    encode_names(pa.array(["a"]))
    _lane_order(np.array([1, 0], np.int32))
    held.compact()
    held.settle(state, kernel_call(**settings), rows["time_ns"], everything=True)
    held.hold_back(rows["time_ns"])
    change_length(state, rows["time_ns"], 10**9, None)
    held.change_windows(state, kernel_call(**settings), rows["time_ns"])


class HeldRows:
    """The rows of a batcher that wait, by number: within a lane in order of arrival.

    Numbers of rows that have left are not reused before `compact`. The state is handed to every
    call instead of being kept: the stage's state may be replaced or grown in between.

    Args:
        state: The state of the batcher, for the number of its lanes.
        rows: Records of rows that waited when the state was written; None: nothing waits.
    """

    def __init__(self, state: State, rows: Records | None = None) -> None:
        self._rows = _record_memory(256) if rows is None else rows
        self.used = 0 if rows is None else len(rows)
        self._lists = _lists(state.lanes)
        load_rows(self._rows, self.used, self._lists)

    @property
    def rows(self) -> Records:
        """The records of all rows that have a number, whether they still wait or not."""
        return self._rows[: self.used]

    def add_and_run(self, state: State, call: KernelCall) -> BatchDecision:
        """Add the rows of the call, one at a time, and return every batch that they imply.

        The kernel returns early when its buffers are full; they are doubled and it goes on where
        it stopped, so the result does not depend on their size.
        """
        base = self._grow(state, len(call.time_ns))
        buffers = OutputBuffers(state, self.rows, self._lists, call)
        done, again = 0, False
        while True:
            done, again = run_rows(buffers.arrays, call, base, done, again)
            if done == len(call.time_ns):
                return buffers.decision()
            buffers.grow()

    def add_as_one_call(self, state: State, call: KernelCall) -> BatchDecision:
        """Add the rows of the call and look at them together: at most one batch, lane 0 only."""
        base = self._grow(state, len(call.time_ns))
        buffers = OutputBuffers(state, self.rows, self._lists, call)
        run_call(buffers.arrays, call, base)
        return buffers.decision()

    def settle(
        self, state: State, call: KernelCall, lanes: Int64s, *, everything: bool
    ) -> BatchDecision:
        """Return what is due in some lanes now, or everything they hold.

        Args:
            state: The state of the batcher.
            call: A call without rows; its wall time decides stalls and idleness.
            lanes: Lane numbers.
            everything: True: the lanes are drained.
        """
        self._grow(state, 0)
        buffers = OutputBuffers(state, self.rows, self._lists, call)
        done = 0
        while True:
            done = settle_lanes(buffers.arrays, call, lanes, done, everything)
            if done == len(lanes):
                return buffers.decision()
            buffers.grow()

    def change_windows(self, state: State, call: KernelCall, lanes: Int64s) -> BatchDecision:
        """Apply scheduled lengths to open windows, and return what is due then.

        Args:
            state: The state of the batcher.
            call: A call without rows.
            lanes: Lane numbers, those given to `change_length` before.
        """
        self._grow(state, 0)
        buffers = OutputBuffers(state, self.rows, self._lists, call)
        done = 0
        while True:
            done = change_windows(buffers.arrays, call, lanes, done)
            if done == len(lanes):
                return buffers.decision()
            buffers.grow()

    def kept(self) -> Int64s:
        """The numbers of the rows that still wait, ascending: within a lane in order of arrival."""
        out = empty(self.used, np.int64)
        out = out[: waiting_rows(self.rows, self._lists, out)]
        if (out[1:] < out[:-1]).any():
            waits = np.zeros(self.used, np.bool_)
            waits[out] = True
            return np.flatnonzero(waits)
        return out

    def hold_back(self, reach: Int64s) -> None:
        """Lower `reach` (a time per lane) to just before the earliest row that waits there."""
        earliest_times(self.rows, self.kept(), reach)

    def lanes_with_rows_in_window(self, state: State) -> NDArray[np.bool_]:
        """Per lane: whether the window that stands has rows."""
        self._grow(state, 0)
        return np.asarray(self._lists["head"][:, Place.ACTIVE] >= 0)

    def is_sparse(self, waiting: int) -> bool:
        """Return whether at least twice as many rows have left as wait, so that renumbering pays.

        Args:
            waiting: Rows that wait, over all lanes.
        """
        return self.used > 3 * waiting + SLACK_ROWS

    def compact(self) -> Int64s:
        """Forget rows that have left and renumber the others from 0.

        Returns:
            Their old numbers, in the new order: whoever keeps something by row number takes from
                it with these.
        """
        kept = self.kept()
        words = _record_words(self._rows)
        words[: len(kept)] = words[kept]  # in place: memory stays for the next calls
        self.used = len(kept)
        self._lists = _lists(len(self._lists))
        load_rows(self._rows, self.used, self._lists)
        return kept

    def _grow(self, state: State, count: int) -> int:
        """Make room for `count` more rows and for lanes that are new.

        Memory at least doubles when it grows, so adding rows costs O(1) each on average.

        Returns:
            The number of the first of these rows.
        """
        if len(self._lists) < state.lanes:
            self._lists = np.concatenate([self._lists, _lists(state.lanes - len(self._lists))])
        first, self.used = self.used, self.used + count
        if self.used > len(self._rows):
            rows = _record_memory(max(self.used, 2 * first))
            _record_words(rows)[:first] = _record_words(self._rows)[:first]
            self._rows = rows
        return first


class OutputBuffers:
    """Memory for what one call decides; grows when the kernel asks for more.

    Rows can leave only once, so buffers for rows never run out. The number of batches is not known
    beforehand: one batch per four rows is a guess; where it is too low, the buffers grow.

    Args:
        state: The state of the batcher; the kernel works on its memory.
        rows: Records of all rows, those of the call included.
        lists: Lists of all lanes.
        call: The call, for the number of its rows and of gated names.
    """

    def __init__(self, state: State, rows: Records, lists: Records, call: KernelCall) -> None:
        streams = state["stream"].shape[1]
        count = len(call.time_ns)
        batches = count // 4 + 8
        used = len(rows)
        self.arrays = KernelArrays(
            rows=rows,
            lists=lists,
            lanes=lane_records(state),
            streams=stream_memory(state),
            find=state["find"],
            numbers=empty(used, np.int64),
            spare=empty(used, np.int64),
            out_slot=empty(used, np.int32),
            out_late=empty(used, np.bool_),
            out_stamp=empty(used, np.int64),
            batches=empty(batches, BATCH),
            parts=empty(batches * min(streams, 4) + streams + len(call.wanted), PART),
            named=empty(count, np.int64),
            tally=np.empty(streams, TALLY),
            counts=np.zeros(1, COUNTS),
            known=np.zeros(len(call.digests), np.uint16),
            scratch=np.empty(MAX_CLOCKS, np.float64),
        )

    def grow(self) -> None:
        """Double the buffers for batches and parts, keeping what is written."""
        a = self.arrays
        self.arrays = a._replace(batches=_twice_as_long(a.batches), parts=_twice_as_long(a.parts))

    def decision(self) -> BatchDecision:
        """Return the filled part of the buffers, without copying."""
        a = self.arrays
        counts = a.counts[0]
        rows = slice(0, counts.rows)
        return BatchDecision(
            order=a.numbers[rows],
            slot=a.out_slot[rows],
            late=a.out_late[rows],
            stamp=a.out_stamp[rows],
            batches=a.batches[: counts.batches],
            parts=a.parts[: counts.parts],
            named=a.named[: counts.named],
        )


def _record_memory(count: int) -> Records:
    """Return memory for this many rows, not initialised."""
    return empty(count, ROW)


def _record_words(rows: Records) -> Int64s:
    """Return records of rows as the words they consist of: numpy copies those all at once, and
    records field by field, which takes ten times as long."""
    return rows.view(np.int64).reshape(len(rows), ROW.itemsize // 8)


def _lists(lanes: int) -> Records:
    """Return empty lists for this many lanes."""
    lists = np.empty(lanes, LISTS)
    lists["head"] = -1
    lists["tail"] = -1
    lists["heap"] = -1
    return lists


def _twice_as_long(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of twice the length; the second half is not initialised."""
    out = empty(2 * len(array), array.dtype)
    out[: len(array)] = array
    return out


class HeldTable(HeldRows):
    """`HeldRows` with the columns of the rows, in the chunks they arrived in.

    The rows of a call are numbered lane by lane (`KernelCall.order`), their columns stay as they
    came; `_positions` leads from one to the other, None while both are the same. Chunks are merged
    so that each is at least twice as long as the one behind it: there are few of them, and a row is
    copied by merging no more than log2(rows) times. A change of schema makes one chunk of all.

    Args:
        state: The state of the batcher.
        table: The state table `held`: user columns, then our own; None: nothing waits.
    """

    def __init__(self, state: State, table: pa.RecordBatch | None) -> None:
        rows = None
        self._chunks: list[pa.RecordBatch] = []
        if table is not None and table.num_rows:
            rows = held_records(table)
            self._chunks = [table.drop_columns(list(_HELD_COLUMNS))]
        self._positions: Int64s | None = None
        super().__init__(state, rows)

    def append(self, rows: pa.RecordBatch, order: NDArray[np.uint32]) -> pa.RecordBatch:
        """Add the columns of rows whose records are added by the next call.

        Args:
            rows: The columns, in order of arrival.
            order: `KernelCall.order` of that call; empty if rows are handled as they came.

        Returns:
            A batch with the schema that everything held has from now on. A new column makes it
            differ from that of `rows`.
        """
        if self._chunks and not self._chunks[-1].schema.equals(rows.schema):
            self.compact()
            whole = concat([*self._chunks, rows])
            assert whole is not None
            self._chunks = [whole]
            self._note_positions(rows.num_rows, order)
            return whole
        self._chunks.append(rows)
        self._note_positions(rows.num_rows, order)
        while len(self._chunks) > 1 and 2 * self._chunks[-1].num_rows > self._chunks[-2].num_rows:
            self._chunks[-2:] = [pa.concat_batches(self._chunks[-2:])]
        return rows

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of all rows that are held; None before the first."""
        return self._chunks[0].schema if self._chunks else None

    def take(self, numbers: Int64s) -> pa.RecordBatch:
        """Return the rows with these numbers, in this order.

        Nothing is copied if they are one run within a chunk. Otherwise each chunk is taken from
        once, and the parts are put into order at the end.
        """
        n = len(numbers)
        if self._positions is not None:
            # Without a mode, numpy writes to memory of its own first.
            numbers = self._positions.take(numbers, out=empty(n, np.int64), mode="clip")
        if len(self._chunks) == 1 or n == 0:
            return take(self._chunks[0], numbers)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == n - 1 and bool((numbers[1:] > numbers[:-1]).all()):
            return self._slice(first, n)
        edges = np.cumsum([0, *(chunk.num_rows for chunk in self._chunks)])
        which = np.searchsorted(edges, numbers, side="right") - 1
        parts, order, at = [], np.empty(n, np.int64), 0
        for number, chunk in enumerate(self._chunks):
            of = np.flatnonzero(which == number)
            if len(of):
                parts.append(take(chunk, numbers[of] - edges[number]))
                order[of] = np.arange(at, at + len(of))
                at += len(of)
        return parts[0] if len(parts) == 1 else take(pa.concat_batches(parts), order)

    def compact(self) -> Int64s:
        """Renumber as `HeldRows.compact`, and make one chunk of the rows that wait."""
        kept = super().compact()
        if self._chunks:
            self._chunks = [self.take(kept)] if len(kept) else []
        self._positions = None
        return kept

    def table(self) -> pa.RecordBatch | None:
        """Return the rows that wait as one table, as a snapshot keeps it; None if there is none.

        The user's columns come first, then those of _HELD_COLUMNS, which suffice to restore the
        records: links between rows follow from their order and place.
        """
        if self.used == 0 or not self._chunks:
            return None
        kept = self.kept()
        rows, records = self.take(kept), self.rows[kept]
        columns = [pa.array(np.ascontiguousarray(records[f])) for f in _HELD_COLUMNS.values()]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *columns], names=[*rows.schema.names, *_HELD_COLUMNS]
        )

    def _note_positions(self, count: int, order: NDArray[np.uint32]) -> None:
        """Note where the columns of the next `count` rows are. Memory at least doubles when it
        grows."""
        first, last = self.used, self.used + count
        if self._positions is None and not len(order):
            return
        if self._positions is None or len(self._positions) < last:
            positions = empty(max(last, 2 * first), np.int64)
            positions[:first] = (
                np.arange(first) if self._positions is None else self._positions[:first]
            )
            self._positions = positions
        positions = self._positions[first:last]
        if len(order):
            np.add(order, first, out=positions)
        else:
            positions[:] = np.arange(first, last)

    def _slice(self, first: int, n: int) -> pa.RecordBatch:
        """Return `n` neighbouring rows from number `first` on, without copying within a chunk."""
        parts = []
        for chunk in self._chunks:
            if first < chunk.num_rows and n > 0:
                parts.append(chunk.slice(first, n))
                n -= parts[-1].num_rows
                first = 0
            else:
                first -= min(first, chunk.num_rows)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


_HELD_COLUMNS = {
    LANE: "lane",
    TIME: "stamp",
    DECIDED: "time",
    STREAM: "stream",
    GATED: "gated",
    SLOT: "slot",
    WHERE: "place",
}
"""What the state keeps beside the columns of a row that waits, and the field of ROW it is."""


def held_records(table: pa.RecordBatch | None) -> Records:
    """Return the records of the rows in a state table `held`; none for None.

    The table must have passed `check_held_table`.
    """
    rows = np.zeros(0 if table is None else table.num_rows, ROW)
    if table is not None:
        for name, field in _HELD_COLUMNS.items():
            rows[field] = table.column(name).to_numpy(zero_copy_only=False)
    return rows


def check_held_table(table: pa.RecordBatch | None) -> None:
    """Check the columns that we added to a state table `held`: their types, and that nothing is
    null.

    Raises:
        StateError: with the name of the column.
    """
    if table is None:
        return
    for name, field in _HELD_COLUMNS.items():
        index = table.schema.get_field_index(name)
        wanted = pa.from_numpy_dtype(ROW[field])
        if index < 0 or table.column(index).type != wanted or table.column(index).null_count:
            raise StateError(f"state of batching is corrupt: column {name} of its rows")


class LiveTables(dict[str, pa.RecordBatch | None]):
    """The tables of a state whose table `held` lives in a `HeldTable` while the stage runs.

    Whoever reads `held` (a snapshot, a page, a test) gets a table made at that moment; whoever
    writes it ends the live one, and the next call starts from what was written. So the state is
    always whole, and a call does not pay for building a table that is not read.

    Args:
        tables: The tables of the state, by name: `held`, `names` and `keys`.
    """

    def __init__(self, tables: dict[str, pa.RecordBatch | None]) -> None:
        super().__init__(tables)
        self.live: HeldTable | None = None
        self.names = StreamNames(tables["names"])
        self.schemas: tuple[pa.Schema, pa.Schema, pa.Schema] | None = None

    def __getitem__(self, name: str) -> pa.RecordBatch | None:
        if name == "held" and self.live is not None:
            return self.live.table()
        return super().__getitem__(name)

    def __setitem__(self, name: str, table: pa.RecordBatch | None) -> None:
        if name == "held":
            self.live = None
        super().__setitem__(name, table)

    def items(self) -> Any:
        """Return (name, table) pairs; `held` is made now. A dict's own view would bypass
        `__getitem__`."""
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        """Return the tables; `held` is made now."""
        return [self[name] for name in self]


def live_tables(state: State) -> LiveTables:
    """Return the tables of a state as `LiveTables`, replacing the plain dict at the first call."""
    if not isinstance(state.tables, LiveTables):
        state.tables = LiveTables(state.tables)
    return state.tables


def held_table(state: State) -> HeldTable:
    """Return the rows of a state that wait, in working memory.

    Made from the state table `held` at the first call, and after someone has written that table.
    """
    tables = live_tables(state)
    if tables.live is None:
        tables.live = HeldTable(state, tables["held"])
    return tables.live


class StreamNames:
    """The text of every stream digest that the state knows, sorted by digest.

    Args:
        table: The state table `names` with the columns `digest` and `name`; None: none yet.
    """

    def __init__(self, table: pa.RecordBatch | None) -> None:
        self._digests = np.empty(0, np.int64)
        self._labels = pa.array([], pa.string())
        if table is not None:
            self.add(table.column("digest").to_numpy(), table.column("name"))

    def add(self, digests: Int64s, labels: pa.Array) -> None:
        """Learn names. Ones that are known already do no harm: the first text of a digest stays."""
        every = np.concatenate([self._digests, digests])
        self._digests, first = np.unique(every, return_index=True)
        self._labels = pa.concat_arrays([self._labels, labels]).take(pa.array(first))

    def of(self, digests: Int64s) -> pa.Array:
        """Return the names of these digests, all of which must be known."""
        return self._labels.take(pa.array(np.searchsorted(self._digests, digests)))
