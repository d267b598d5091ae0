"""The window of a row: [t - back, t + ahead], both ends included.

Rows are kept in order of (time, arrival); the windows of many rows are ranges over them, so their
aggregates are the same steps over the same kernels. Without `ahead` a row's window is emitted at
once and sees what arrived before the row; with `ahead` it is emitted when the watermark reaches its
end. A row is kept until no window to come can reach it.

In the state's table `rows` the serial number counts the rows of a lane, and a flag (`WAITS`) says
whose window is still to be emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import concat, ranges
from tidegate.core.columns import IS_LATE, LANE, SERIAL, TIME, WAITS
from tidegate.core.outcomes import Collection, Int32s, Int64s
from tidegate.core.state import State
from tidegate.core.time import MAX_NS, UNSET
from tidegate.windows.kernels.layout import FiringReason, Timing
from tidegate.windows.results import Emits, Emitted, OutputPlan, emit_rows


@dataclass(frozen=True)
class RowWindows:
    """The transitions of `LookBack` windows over the state of a window stage."""

    back: Any
    """ns before the row."""
    ahead: Any
    """ns after it."""
    aggregated: bool
    """One row leaves per window, with the time of the row whose window it is."""

    def add(
        self,
        state: State,
        plan: OutputPlan,
        collection: Collection,
        rows: pa.RecordBatch,
        late: NDArray[np.bool_],
        metadata: dict[bytes, bytes],
    ) -> tuple[Emits, Emitted] | None:
        """Rows came, each with a window of its own. Returns the windows that emit at once.

        Args:
            state: of the stage.
            plan: of the rows.
            collection: times and lanes.
            rows: the rows, with the column of their sizes where that is wanted.
            late: which of them are flagged late.
            metadata: to store with the rows.
        """
        order = np.argsort(collection.lane, kind="stable")
        lane = collection.lane[order]
        first = np.searchsorted(lane, lane)
        serial = np.empty(len(lane), np.int64)
        serial[order] = np.arange(len(lane)) - first + state.arrays["serial"][lane]
        np.add.at(state.arrays["serial"], collection.lane, 1)
        columns = {
            LANE: pa.array(collection.lane),
            SERIAL: pa.array(serial),
            TIME: pa.array(collection.time_ns),
            IS_LATE: pa.array(late),
            WAITS: pa.array(np.ones(len(lane), np.bool_)),
        }
        new = pa.RecordBatch.from_arrays(
            [*rows.columns, *columns.values()], names=[*rows.schema.names, *columns]
        ).replace_schema_metadata(metadata)
        held = concat([state.tables["rows"], new])
        state.tables["rows"] = held
        if self.ahead:
            return None
        return self._emit(state, plan, np.flatnonzero(_waits(held)))

    def advance(self, state: State, plan: OutputPlan) -> tuple[Emits, Emitted] | None:
        """The watermark has moved: emit what is complete, let go of what no window can reach.

        Args:
            state: of the stage; its table `rows` is not empty.
            plan: of the rows.
        """
        held = state.tables["rows"]
        assert held is not None
        watermark = state.arrays["watermark"][held.column(LANE).to_numpy()]
        done = held.column(TIME).to_numpy() + self.ahead <= watermark
        due = np.flatnonzero(_waits(held) & done)
        emitted = self._emit(state, plan, due) if len(due) else None
        self._release(state)
        return emitted

    def flush(
        self, state: State, plan: OutputPlan, lanes: Int32s | None
    ) -> tuple[Emits, Emitted] | None:
        """The end of these lanes (or all): emit every window that waits.

        Args:
            state: of the stage; its table `rows` is not empty.
            plan: of the rows.
            lanes: which lanes end; None: all.
        """
        held = state.tables["rows"]
        assert held is not None
        lane = held.column(LANE).to_numpy()
        mine = np.ones(len(lane), np.bool_) if lanes is None else np.isin(lane, lanes)
        due = np.flatnonzero(_waits(held) & mine)
        emitted = self._emit(state, plan, due) if len(due) else None
        held = state.tables["rows"]
        assert held is not None
        state.tables["rows"] = None if mine.all() else held.filter(pa.array(~mine))
        return emitted

    def hold_back(self, state: State, limit: Int64s) -> None:
        """Lower `limit` below the earliest row that is still to leave with a window.

        Args:
            state: of the stage.
            limit: changed: per lane, the watermark that may be handed on.
        """
        held = state.tables["rows"]
        if held is None:
            return
        lane, time = held.column(LANE).to_numpy(), held.column(TIME).to_numpy()
        if self.aggregated:  # the row that leaves has the time of its trigger
            waits = _waits(held)
            lane, time = lane[waits], time[waits]
        np.minimum.at(limit, lane, time - 1)

    def waiting(self, state: State) -> int:
        """Rows whose window has not been emitted."""
        held = state.tables["rows"]
        return 0 if held is None else int(_waits(held).sum())

    def _emit(self, state: State, plan: OutputPlan, due: Int64s) -> tuple[Emits, Emitted]:
        """Emit the windows of these rows per lane: by arrival without `ahead`, else by time.

        Args:
            state: of the stage; the rows are marked as no longer waiting.
            plan: of the rows.
            due: indices into the state's table `rows`.
        """
        held = state.tables["rows"]
        assert held is not None
        lane = held.column(LANE).to_numpy().astype(np.int64)
        time = held.column(TIME).to_numpy()
        serial = held.column(SERIAL).to_numpy()
        if self.ahead:
            due = due[np.lexsort((serial[due], time[due], lane[due]))]
        else:
            due = due[np.lexsort((serial[due], lane[due]))]
        by = np.lexsort((serial, time, lane))
        # Ranks are by lane first, so a range of one lane never reaches into the next.
        low, high = time[due] - self.back, time[due] + self.ahead
        first = _rank(lane[by], time[by], lane[due], low, right=False)
        last = _rank(lane[by], time[by], lane[due], high, right=True)
        index, emit = ranges(first, last)
        row = by[index]
        if not self.ahead:
            arrived = serial[row] <= serial[due][emit]
            row, emit = row[arrived], emit[arrived]
        start = np.where((low < 0) & (time[due] >= 0), 0, low)  # no window reaches before 1970
        zero = np.zeros(len(due), np.int64)
        mask = np.full(len(due), FiringReason.ROW, np.int64)
        on_time, final = np.full(len(due), Timing.ON_TIME, np.int64), np.ones(len(due), np.bool_)
        emits = Emits(
            lane[due], start, high, serial[due], zero, zero, mask, on_time, final, time[due]
        )
        made = emit_rows(plan, emits, held, row, emit)
        if plan.aggregated:
            made = made._replace(time=time[due][made.emit])
        waits = _waits(held).copy()
        waits[due] = False
        at = held.schema.get_field_index(WAITS)
        state.tables["rows"] = held.set_column(at, WAITS, pa.array(waits))
        return emits, made

    def _release(self, state: State) -> None:
        """Let go of rows that no window to come can reach."""
        held = state.tables["rows"]
        if held is None:
            return
        lane, time = held.column(LANE).to_numpy(), held.column(TIME).to_numpy()
        waits, watermark = _waits(held), state.arrays["watermark"]
        oldest = np.full(state.lanes, MAX_NS, np.int64)
        passed = watermark != UNSET
        oldest[passed] = watermark[passed] + 1
        oldest[~passed] = UNSET
        np.minimum.at(oldest, lane[waits], time[waits])
        mine = oldest[lane]
        reached = np.where(mine < UNSET + self.back + 1, UNSET, mine - self.back)
        keep = waits | (time >= reached)
        if not keep.all():
            state.tables["rows"] = held.filter(pa.array(keep)) if keep.any() else None


def _waits(held: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which rows' windows are still to be emitted."""
    return held.column(WAITS).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _rank(lanes: Int64s, times: Int64s, lane: Int64s, time: Int64s, *, right: bool) -> Int64s:
    """Where (lane, time) would be inserted among pairs sorted by lane, then time.

    Args:
        lanes: of the sorted pairs.
        times: of the sorted pairs.
        lane: of the pairs to find.
        time: of the pairs to find.
        right: behind equal pairs instead of before them.
    """
    n = len(lanes)
    both_lane = np.concatenate([lanes, lane])
    both_time = np.concatenate([times, time])
    kind = np.concatenate([np.ones(n, np.int64), np.full(len(lane), 2 if right else 0)])
    order = np.lexsort((kind, both_time, both_lane))
    before = np.cumsum(order < n)
    out = np.empty(len(both_lane), np.int64)
    out[order] = before
    return out[n:]
