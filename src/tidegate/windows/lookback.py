"""The window of a row: [t - back, t + ahead], both ends included.

Rows are kept in order of (time, arrival); the windows of many rows are ranges over them, so their
aggregates are the same steps over the same kernels. Without `ahead` a row's window is emitted at
once and sees what arrived before the row; with `ahead` it is emitted when the watermark reaches its
end. A row is kept until no window to come can reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.core.columns import WAITS
from tidegate.core.outcomes import Collection, Int32s, Int64s, Late, Outcome
from tidegate.core.state import LANE, State, concat
from tidegate.core.time import MAX_NS, UNSET
from tidegate.windows.emission import LATE, TIME, Emits, emit_rows, expand, outcome
from tidegate.windows.kinds import LookBack, ns
from tidegate.windows.late import NextWindow
from tidegate.windows.plan import Plan, row_bytes
from tidegate.windows.slots import SERIAL

if TYPE_CHECKING:
    from tidegate.windows.stage import Window

ROW_BIT = 47
_SCHEMA = b"tidegate.rows"


class LookingBack:
    """The transitions of `LookBack` windows. `__serial` numbers the rows of a lane; the lane's
    windows up to `serial` have been emitted, in order of (time, arrival)."""

    def __init__(self, operator: Window) -> None:
        self.op = operator
        window = operator.window
        assert isinstance(window, LookBack)
        self.back, self.ahead = ns(window.back), ns(window.ahead)

    def process(self, state: State, plan: Plan, collection: Collection) -> list[Outcome]:
        out: list[Outcome] = []
        watermark = state["watermark"][collection.lane]
        late = collection.time_ns <= watermark
        flagged = np.zeros(len(collection), np.bool_)
        if late.any() and not isinstance(self.op.late, NextWindow):
            out += self._late(state, collection.take(np.flatnonzero(late)))
            collection = collection.take(np.flatnonzero(~late))
            flagged = flagged[: len(collection)]
        else:
            flagged = late
        if len(collection) == 0:
            return out
        rows = collection.rows
        if plan.stats:
            sizes = pa.array(row_bytes(rows, self.op.size_column))
            rows = rows.append_column(plan.widened.field(len(plan.widened) - 1), sizes)
        order = np.argsort(collection.lane, kind="stable")
        lane = collection.lane[order]
        first = np.searchsorted(lane, lane)
        serial = np.empty(len(lane), np.int64)
        serial[order] = np.arange(len(lane)) - first + state["serial"][lane]
        np.add.at(state["serial"], collection.lane, 1)
        arrays = [
            *rows.columns,
            pa.array(collection.lane),
            pa.array(serial),
            pa.array(collection.time_ns),
            pa.array(flagged),
            pa.array(np.ones(len(lane), np.bool_)),
        ]
        new = pa.RecordBatch.from_arrays(
            arrays, names=[*rows.schema.names, LANE, SERIAL, TIME, LATE, WAITS]
        )
        written = bytes(plan.rows.remove_metadata().serialize())
        held = concat([state.tables["rows"], new.replace_schema_metadata({_SCHEMA: written})])
        assert held is not None
        if self.ahead:
            state.tables["rows"] = held
            return out
        waits = held.column(WAITS).to_numpy(zero_copy_only=False)
        return out + self._emit(state, plan, held, np.flatnonzero(waits), collection.wall_ns)

    def advance(self, state: State) -> list[Outcome]:
        held = state.tables["rows"]
        if held is None:
            return []
        out: list[Outcome] = []
        lane = held.column(LANE).to_numpy()
        time = held.column(TIME).to_numpy()
        waits = held.column(WAITS).to_numpy(zero_copy_only=False)
        watermark = state["watermark"][lane]
        due = np.flatnonzero(waits & (time + self.ahead <= watermark))
        if len(due):
            out += self._emit(state, self._plan(held), held, due, 0)
            held = state.tables["rows"]
        self._release(state, held)
        return out

    def flush(self, state: State, lanes: Int32s | None) -> list[Outcome]:
        held = state.tables["rows"]
        if held is None:
            return []
        lane = held.column(LANE).to_numpy()
        mine = np.ones(len(lane), np.bool_) if lanes is None else np.isin(lane, lanes)
        waits = held.column(WAITS).to_numpy(zero_copy_only=False)
        due = np.flatnonzero(waits & mine)
        out = self._emit(state, self._plan(held), held, due, 0) if len(due) else []
        held = state.tables["rows"]
        assert held is not None
        state.tables["rows"] = held.filter(pa.array(~mine)) if not mine.all() else None
        return out

    def hold_back(self, state: State, limit: Int64s) -> None:
        """The earliest row that is still to leave with a window."""
        held = state.tables["rows"]
        if held is None:
            return
        time = held.column(TIME).to_numpy()
        if self.op.aggregates:  # the row that leaves has the time of its trigger
            waits = held.column(WAITS).to_numpy(zero_copy_only=False)
            np.minimum.at(limit, held.column(LANE).to_numpy()[waits], time[waits] - 1)
        else:
            np.minimum.at(limit, held.column(LANE).to_numpy(), time - 1)

    def waiting(self, state: State) -> int:
        """Rows whose window has not been emitted."""
        held = state.tables["rows"]
        if held is None:
            return 0
        return int(held.column(WAITS).to_numpy(zero_copy_only=False).sum())

    def _plan(self, held: pa.RecordBatch) -> Plan:
        return self.op.plan(pa.ipc.read_schema(pa.py_buffer(held.schema.metadata[_SCHEMA])))

    def _emit(
        self, state: State, plan: Plan, held: pa.RecordBatch, due: Int64s, wall_ns: int
    ) -> list[Outcome]:
        """Emit the windows of these rows per lane: by arrival without `ahead`, else by time."""
        lane = held.column(LANE).to_numpy().astype(np.int64)
        time = held.column(TIME).to_numpy()
        serial = held.column(SERIAL).to_numpy()
        if self.ahead:
            due = due[np.lexsort((serial[due], time[due], lane[due]))]
        else:
            due = due[np.lexsort((serial[due], lane[due]))]
        by = np.lexsort((serial, time, lane))
        # Lanes apart by rank: a range of one lane never reaches into the next.
        first = _rank(lane[by], time[by], lane[due], time[due] - self.back, right=False)
        last = _rank(lane[by], time[by], lane[due], time[due] + self.ahead, right=True)
        row, emit = by[expand(first, last)], np.repeat(np.arange(len(due)), last - first)
        if not self.ahead:
            arrived = serial[row] <= serial[due][emit]
            row, emit = row[arrived], emit[arrived]
        start = time[due] - self.back
        start = np.where((start < 0) & (time[due] >= 0), 0, start)  # no window reaches before 1970
        zero = np.zeros(len(due), np.int64)
        mask = np.full(len(due), np.int64(1) << ROW_BIT)
        emits = Emits(
            lane[due], start, time[due] + self.ahead, serial[due], zero, zero, mask, time[due]
        )
        out, of, when = emit_rows(plan, emits, held, row, emit)
        if plan.aggregated:
            when = time[due][of]
        waits = held.column(WAITS).to_numpy(zero_copy_only=False).copy()
        waits[due] = False
        at = held.schema.get_field_index(WAITS)
        state.tables["rows"] = held.set_column(at, WAITS, pa.array(waits))
        from tidegate.windows.settling import count

        count(state, "windows_emitted", emits.lane)
        count(state, "rows_emitted", emits.lane[of])
        return outcome(out, when, emits.lane[of].astype(np.int32), wall_ns)

    def _release(self, state: State, held: pa.RecordBatch | None) -> None:
        """Let go of rows that no window to come can reach."""
        if held is None:
            return
        lane = held.column(LANE).to_numpy()
        time = held.column(TIME).to_numpy()
        waits = held.column(WAITS).to_numpy(zero_copy_only=False)
        oldest = np.full(state.lanes, MAX_NS, np.int64)
        passed = state["watermark"] != UNSET
        oldest[passed] = state["watermark"][passed] + 1
        oldest[~passed] = UNSET
        np.minimum.at(oldest, lane[waits], time[waits])
        keep = waits | (time >= _reach(oldest, lane, self.back))
        if not keep.all():
            state.tables["rows"] = held.filter(pa.array(keep)) if keep.any() else None

    def _late(self, state: State, late: Collection) -> list[Outcome]:
        from tidegate.windows.settling import count, dropped_late

        count(state, "late_count", late.lane)
        lateness = state["watermark"][late.lane] - late.time_ns
        return dropped_late(self.op, state, late) or [
            Late(late.rows, late.time_ns, late.lane, lateness)
        ]


def _reach(oldest: Int64s, lane: Int32s, back: int) -> Int64s:
    mine = oldest[lane]
    return np.where(mine < UNSET + back + 1, UNSET, mine - back)


def _rank(lanes: Int64s, times: Int64s, lane: Int64s, time: Int64s, *, right: bool) -> Int64s:
    """Where (lane, time) stands among pairs sorted by lane then time."""
    n = len(lanes)
    both_lane = np.concatenate([lanes, lane])
    both_time = np.concatenate([times, time])
    kind = np.concatenate([np.ones(n, np.int64), np.full(len(lane), 2 if right else 0)])
    order = np.lexsort((kind, both_time, both_lane))
    before = np.cumsum(order < n)
    out = np.empty(len(both_lane), np.int64)
    out[order] = before
    return out[n:]
