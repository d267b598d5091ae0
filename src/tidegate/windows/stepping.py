"""The transitions of the window stage: rows come, time passes, deadlines, the end.

Each one opens a call on the state, lets a kernel decide, and settles what it decided
(`settling.py`). Nothing here looks at a single row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Collection, Dropped, Int32s, Int64s, Late, Outcome, Watermark
from tidegate.core.state import LANE, State
from tidegate.core.time import MAX_NS, MIN_NS, UNSET
from tidegate.windows import numbers as k
from tidegate.windows.aligned import ascending, assign_aligned
from tidegate.windows.call import Call, open_call
from tidegate.windows.firing import fire_all, fire_due, settle_all
from tidegate.windows.kinds import Adaptive, Fixed, LookBack, StateWindow, holds, ns
from tidegate.windows.late import Accumulation, Reemit
from tidegate.windows.lookback import LookingBack
from tidegate.windows.partitions import kept_parts, part_columns, parts_of
from tidegate.windows.plan import Plan, row_bytes
from tidegate.windows.scatter import place_rows
from tidegate.windows.sequential import assign_sequential
from tidegate.windows.sessions import assign_sessions
from tidegate.windows.settling import count, plan_of, settle
from tidegate.windows.slots import readonly

if TYPE_CHECKING:
    from tidegate.windows.stage import Window

GROUPED_ROWS = 1 << 19
"""Rows decided at once where groups split them: a step per row must still fit into the cache."""

_NONE = readonly(np.zeros(0, np.int64))
_NO_MASKS = readonly(np.zeros((1, 0), np.bool_))


class Stepping:
    """The transitions of one window stage; holds no state of its own."""

    def __init__(self, operator: Window) -> None:
        self.op = operator
        self.looking = LookingBack(operator) if isinstance(operator.window, LookBack) else None

    # -- rows come --------------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        op = self.op
        state.grow(int(collection.lane.max()) + 1)
        wall = self._wall(state, collection.wall_ns)
        out: list[Outcome] = []
        if op.program.intervals or isinstance(op.window, (Fixed, Adaptive)):
            out += self.wake(state, wall)
        count(state, "rows_in", collection.lane)
        plan = op.plan(collection.rows.schema)
        if self.looking is not None:
            status = self._out_of_range(collection)
            if status.any():
                out += self._turned_away(state, collection, status, status)
                collection = collection.take(np.flatnonzero(status == k.PLACED))
            return out + self.looking.process(state, plan, collection)
        if plan.group_by and len(collection) > GROUPED_ROWS and not op.accepts_any_order:
            for start in range(0, len(collection), GROUPED_ROWS):
                part = slice(start, start + GROUPED_ROWS)
                piece = Collection(
                    collection.rows.slice(start, GROUPED_ROWS),
                    collection.time_ns[part],
                    collection.lane[part],
                    collection.wall_ns,
                )
                out += self._rows(state, plan, piece, wall)
            return out
        return out + self._rows(state, plan, collection, wall)

    def _rows(self, state: State, plan: Plan, collection: Collection, wall: int) -> list[Outcome]:
        """Decide rows one after the other, in as few kernel calls as there is room for."""
        op = self.op
        out: list[Outcome] = []
        rows = collection.rows
        times = collection.time_ns
        if isinstance(op.window, Fixed):
            times = np.full(len(collection), wall, np.int64)
        sizes = readonly(row_bytes(rows, op.size_column)) if plan.sized else _NONE
        if plan.stats:
            rows = rows.append_column(plan.widened.field(len(plan.widened) - 1), pa.array(sizes))
        masks = self._masks(rows)
        cfg = op.config(plan, wall)
        status = np.zeros(len(collection), np.int8)
        behind = np.empty(len(collection), np.int64)
        first = 0
        while first < len(collection):
            call, extra, first = self._assign(
                state, plan, cfg, first, collection, times, sizes, masks, status, behind
            )
            late = status if plan.buffered and (status == k.PLACED_LATE).any() else None
            out += settle(op, state, plan, call, rows, collection.time_ns, late, extra)
        return out + self._turned_away(state, collection, status, behind)

    def _assign(
        self,
        state: State,
        plan: Plan,
        cfg: Int64s,
        first: int,
        collection: Collection,
        times: Int64s,
        sizes: NDArray[Any],
        masks: NDArray[Any],
        status: NDArray[np.int8],
        behind: Int64s,
    ) -> tuple[Call, dict[str, pa.Array], int]:
        """Let the kernel of this kind of window decide rows from `first` on."""
        op = self.op
        n = len(times) - first
        lanes, times = readonly(collection.lane), readonly(times)
        rates = state.arrays.get("rates", np.zeros((1, 3), np.int64))
        early, late = readonly(op.program.early), readonly(op.program.late)
        if self._scatters(state, plan, cfg, times):
            call = open_call(state, cfg, n, 1, None, k.E_START, True)
            call.first, joined = first, np.empty(n, np.int32)
            done = place_rows(
                first, lanes, times, cfg, state["watermark"], state["serial"],
                call.entries, call.counts, call.head, call.table, joined, status, behind,
            )  # fmt: skip
            call.joined = joined[: done - first]
            return call, {}, int(done)
        if op.kind == k.KIND_ALIGNED:
            copies = int(-(-cfg[k.C_SIZE] // cfg[k.C_STEP]))
            call = open_call(state, cfg, n, copies, None, k.E_START, True)
            done = assign_aligned(
                first, lanes, times, sizes, masks, early, late, cfg,
                state["watermark"], state["serial"], rates,
                call.entries, call.counts, call.head, call.due_at, call.table,
                call.steps, call.fires, status, behind,
            )  # fmt: skip
            return call, {}, int(done)
        if op.kind == k.KIND_SESSION:
            call = open_call(state, cfg, n, 1, None, -1, True)
            done = assign_sessions(
                first, lanes, times, sizes, masks, early, late, cfg,
                state["watermark"], state["serial"], rates,
                call.entries, call.counts, call.head, call.due_at,
                call.steps, call.fires, status, behind,
            )  # fmt: skip
            return call, {}, int(done)
        parts, held = parts_of(op, state, collection.rows)
        call = open_call(state, cfg, n, 1, held, k.E_PART, True)
        opens = emits = np.zeros(0, np.bool_)
        if isinstance(op.window, StateWindow):
            opens = holds(op.window.open, collection.rows, "open")
            emits = holds(op.window.emit, collection.rows, "emit")
        nothing = np.zeros((1, 4), np.int64)
        done = assign_sequential(
            first, lanes, times, sizes, masks, readonly(parts), readonly(opens), readonly(emits),
            early, cfg, state["watermark"], state["serial"], rates,
            state.arrays.get("recent", nothing), state.arrays.get("duration", np.zeros(1)),
            call.entries, call.counts, call.head, call.table,
            call.steps, call.fires, status, behind,
        )  # fmt: skip
        return call, part_columns(op, state, collection.rows, call), int(done)

    def _scatters(self, state: State, plan: Plan, cfg: Int64s, times: Int64s) -> bool:
        """Whether rows are given slots one by one: windows that do not overlap and only the
        watermark closes, with lanes or groups mixed, or times."""
        if not self.op.accepts_any_order or plan.buffered or plan.sized:
            return False
        if plan.group_by or state.lanes > 1:
            return True
        cfg[k.C_SORTED] = cfg[k.C_SORTED] or ascending(times, 0)
        return not cfg[k.C_SORTED]

    def _out_of_range(self, collection: Collection) -> NDArray[np.int8]:
        reach, times = min(self.op.reach, MAX_NS), collection.time_ns
        outside = (times < MIN_NS + reach) | (times > MAX_NS - reach)
        return np.where(outside, k.OUT_OF_RANGE, k.PLACED).astype(np.int8)

    def _masks(self, rows: pa.RecordBatch) -> NDArray[Any]:
        found = [holds(p.function, rows, p.label) for p in self.op.program.predicates]
        return readonly(np.stack(found)) if found else _NO_MASKS

    def _turned_away(
        self,
        state: State,
        collection: Collection,
        status: NDArray[np.int8],
        behind: NDArray[Any],
    ) -> list[Outcome]:
        """Rows that joined no window: late ones, and dropped ones with their reason."""
        if not status.any():
            return []
        out: list[Outcome] = []
        late = np.isin(status, (k.PLACED_LATE, k.DISCARDED, k.ASIDE))
        count(state, "late_count", collection.lane[late])
        aside = collection.take(np.flatnonzero(status == k.ASIDE))
        if len(aside):
            lateness = behind[status == k.ASIDE]
            out.append(Late(aside.rows, aside.time_ns, aside.lane, lateness))
            if isinstance(self.op.late, Reemit):
                count(state, "late_dropped_count", aside.lane)
        reasons = (
            (k.DISCARDED, "late", "late_dropped_count"),
            (k.TOO_LARGE, "too_large", "too_large_count"),
            (k.REFUSED, "memory_pressure", "rejected_count"),
            (k.OUTSIDE, "no_open_window", "outside_count"),
            (k.OUT_OF_RANGE, "time_out_of_range", "outside_count"),
        )
        for code, reason, counter in reasons:
            gone = collection.take(np.flatnonzero(status == code))
            if len(gone):
                count(state, counter, gone.lane)
                why = pa.array([reason] * len(gone), pa.string())
                out.append(Dropped(gone.rows, gone.time_ns, gone.lane, why))
        return out

    # -- time passes ------------------------------------------------------------------------------

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        state.grow(int(watermark.lane.max()) + 1)
        if isinstance(self.op.window, Fixed):  # event time means nothing to windows of wall time
            np.maximum.at(state["handed"], watermark.lane, watermark.time_ns)
            return [Watermark(state["handed"][watermark.lane], watermark.lane)]
        before = state["watermark"].copy() if self.op.combining else None
        np.maximum.at(state["watermark"], watermark.lane, watermark.time_ns)
        out: list[Outcome] = []
        if self.looking is not None:
            out = self.looking.advance(state)
        elif self.op.kind in (k.KIND_ALIGNED, k.KIND_SESSION, k.KIND_ADAPTIVE):
            out = self._close(state, state["watermark"], before)
        return out + self._hand_on(state, watermark)

    def _close(
        self, state: State, watermark: Int64s, before: Int64s | None, wall: int = 0
    ) -> list[Outcome]:
        """Close what the watermark completes, per lane by end then start."""
        op = self.op
        held = state.tables["open"]
        if held is None:
            return []
        lane = held.column(LANE).to_numpy()
        start, end = held.column("start").to_numpy(), held.column("end").to_numpy()
        now = watermark[lane]
        if op.combining:
            # A sub-window matters as long as the watermark moves through windows above it.
            assert before is not None
            order = np.flatnonzero(now > before[lane])
        else:
            done = end - (op.kind != k.KIND_SESSION)
            lateness = ns(op.late.max_lateness) if isinstance(op.late, Reemit) else 0
            expires = np.where(held.column("ontime").to_numpy() != 0, done + lateness + 1, done)
            order = np.flatnonzero(expires <= now)
        if len(order) == 0:
            return []
        order = order[np.lexsort((start[order], end[order], lane[order]))]
        plan = plan_of(op, held)
        call = open_call(state, op.config(plan, wall), 0, 1, None, -1, False)
        state.touch(lane[order])
        if op.combining:
            return settle(op, state, plan, call, None, None, None, {}, before, watermark)
        settle_all(call.entries, call.counts, call.fires, call.cfg, order, watermark)
        return settle(op, state, plan, call, None, None, None, kept_parts(state))

    def _hand_on(self, state: State, watermark: Watermark) -> list[Outcome]:
        """The watermark, held back while rows at or before it are still to leave."""
        lanes = np.unique(watermark.lane)
        limit = state["watermark"].copy()
        held = state.tables["open"]
        own_times = self.looking is not None or not self.op.aggregates
        if held is not None and (own_times or self.op.kind >= k.KIND_EVERYTHING):
            waiting = (held.column("fired").to_numpy() == 0) & (held.column("count").to_numpy() > 0)
            if self.op.mode is not Accumulation.DISCARDING:  # its next pane has the old rows again
                waiting |= held.column("ontime").to_numpy() == 0
            lane = held.column(LANE).to_numpy()[waiting]
            np.minimum.at(limit, lane, held.column("first").to_numpy()[waiting] - 1)
        if self.looking is not None:
            self.looking.hold_back(state, limit)
        limit = np.maximum(limit, state["handed"])
        state["handed"][lanes] = limit[lanes]
        lanes = lanes[limit[lanes] != UNSET]
        return [Watermark(limit[lanes], lanes.astype(np.int32))] if len(lanes) else []

    # -- deadlines --------------------------------------------------------------------------------

    def wake_at(self, state: State) -> int | None:
        op = self.op
        held = state.tables["open"]
        intervals = list(op.program.intervals)
        if isinstance(op.window, Adaptive):
            intervals.append(ns(op.window.max))
        fixed = isinstance(op.window, Fixed)
        if held is None or not (intervals or fixed):
            return None
        waiting = (held.column("fired").to_numpy() == 0) & (held.column("count").to_numpy() > 0)
        clock = state["clock"][held.column(LANE).to_numpy()]
        first = held.column("wall").to_numpy()
        due = [first + interval for interval in intervals]
        if fixed:
            due.append(held.column("end").to_numpy())
        times = [at[waiting & (at > clock)] for at in due]
        return min((int(at.min()) for at in times if len(at)), default=None)

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        op = self.op
        wall = self._wall(state, wall_ns)
        out: list[Outcome] = []
        if isinstance(op.window, Fixed):
            np.maximum(state["watermark"], wall - 1, out=state["watermark"])
            out += self._close(state, state["watermark"], None, wall)
        held = state.tables["open"]
        if held is None:
            return out
        intervals = list(op.program.intervals)
        longest = ns(op.window.max) if isinstance(op.window, Adaptive) else 0
        if longest:
            intervals.append(longest)
        if not intervals:
            return out
        age = wall - held.column("wall").to_numpy()
        due = (held.column("fired").to_numpy() == 0) & (age >= min(intervals))
        order = np.flatnonzero(due & (held.column("count").to_numpy() > 0))
        if len(order) == 0:
            return out
        lane = held.column(LANE).to_numpy()[order]
        since = held.column("wall").to_numpy()[order]
        order = order[np.lexsort((held.column("serial").to_numpy()[order], since, lane))]
        plan = plan_of(op, held)
        call = open_call(state, op.config(plan, wall), 0, 1, None, -1, False)
        fire_due(
            call.entries, call.counts, call.fires, call.cfg, order,
            readonly(op.program.early), readonly(op.program.late), longest,
        )  # fmt: skip
        state.touch(lane)
        return out + settle(op, state, plan, call, None, None, None, kept_parts(state))

    def _wall(self, state: State, wall_ns: int) -> int:
        """Wall time as this stage sees it: it never goes back, even if the machine's clock does."""
        wall = max(wall_ns, int(state["clock"].max(initial=UNSET)))
        state["clock"][:] = wall
        return wall

    # -- the end ----------------------------------------------------------------------------------

    def flush(self, state: State, lanes: Int32s | None) -> list[Outcome]:
        if self.looking is not None:
            return self.looking.flush(state, lanes)
        op = self.op
        held = state.tables["open"]
        if held is None:
            return []
        lane = held.column(LANE).to_numpy()
        order = np.arange(held.num_rows)
        if lanes is not None:
            order = np.flatnonzero(np.isin(lane, lanes))
        serial = held.column("serial").to_numpy()[order]
        start, end = held.column("start").to_numpy()[order], held.column("end").to_numpy()[order]
        if op.kind >= k.KIND_EVERYTHING:
            order = order[np.lexsort((serial, lane[order]))]
        else:
            order = order[np.lexsort((serial, start, end, lane[order]))]
        plan = plan_of(op, held)
        call = open_call(state, op.config(plan, 0), 0, 1, None, -1, False)
        state.touch(lane[order])
        if op.combining:
            before = state["watermark"].copy()
            after = before.copy()
            after[lane[order]] = MAX_NS
            reason = int(k.FIRED_SHUTDOWN)
            return settle(op, state, plan, call, None, None, None, {}, before, after, reason)
        fire_all(call.entries, call.counts, call.fires, call.cfg, order, k.FIRED_SHUTDOWN)
        return settle(op, state, plan, call, None, None, None, kept_parts(state))

    def discard(self, state: State) -> dict[str, int]:
        held = state.tables["open"]
        gone = 0
        if held is not None:
            waiting = held.column("fired").to_numpy() == 0
            counts = held.column("count").to_numpy()[waiting]
            gone = int(counts.sum())
            counters = state["counters"]
            column = 8  # discarded_count, the last of the counters
            np.add.at(counters[:, column], held.column(LANE).to_numpy()[waiting], counts)
        elif self.looking is not None:
            gone = self.looking.waiting(state)
        for name in state.tables:
            state.tables[name] = None
        return {"discarded_rows": gone}

    def buffered_bytes(self, state: State) -> int:
        """Bytes of the rows that wait to be emitted."""
        rows = state.tables["rows"]
        return 0 if rows is None else int(rows.nbytes)
