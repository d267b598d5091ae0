"""What a call decided becomes state and output: slots or rows move, fired panes are emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import joint_codes
from tidegate.core.outcomes import Collection, Dropped, Int32s, Int64s, Late, Outcome
from tidegate.core.state import LANE, State, concat
from tidegate.windows import numbers as k
from tidegate.windows.accumulate import split_groups
from tidegate.windows.call import Call, entry_of, save_call
from tidegate.windows.combine import Combined, combine
from tidegate.windows.emission import (
    LATE,
    TIME,
    Emits,
    emit_rows,
    emit_slots,
    expand,
    outcome,
    retract,
)
from tidegate.windows.late import Accumulation, Discard
from tidegate.windows.plan import Plan
from tidegate.windows.scatter import DENSE, as_steps, split_rows
from tidegate.windows.slots import SERIAL, Slots, readonly

if TYPE_CHECKING:
    from tidegate.windows.stage import Window

COUNTERS = (
    "rows_in",
    "windows_emitted",
    "rows_emitted",
    "late_count",
    "late_dropped_count",
    "rejected_count",
    "too_large_count",
    "outside_count",
    "discarded_count",
)

_SCHEMA = b"tidegate.rows"
_NO_TIMES = np.zeros(0, np.int64)


def plan_of(op: Window, held: pa.RecordBatch) -> Plan:
    """The plan of the rows that opened these windows: their schema travels with the state."""
    written = held.schema.metadata[_SCHEMA]
    found = op._plans.get(written)
    if found is None:
        found = op.plan(pa.ipc.read_schema(pa.py_buffer(written)))
        op._plans[written] = found
    return found


def count(state: State, name: str, lanes: NDArray[Any]) -> None:
    """Raise a counter of these lanes."""
    column = state["counters"][:, COUNTERS.index(name)]
    if state.lanes == 1:
        column[0] += len(lanes)
    elif len(lanes):
        seen = np.bincount(lanes)
        column[: len(seen)] += seen


def dropped_late(op: Window, state: State, late: Collection | Late) -> list[Outcome]:
    """Late rows of a policy that discards them; nothing where they go to the side."""
    if not isinstance(op.late, Discard):
        return []
    count(state, "late_dropped_count", late.lane)
    why = pa.array(["late"] * len(late), pa.string())
    return [Dropped(late.rows, late.time_ns, late.lane, why)]


def settle(
    op: Window,
    state: State,
    plan: Plan,
    call: Call,
    rows: pa.RecordBatch | None,
    times: Int64s | None,
    late: NDArray[np.int8] | None,
    extra: dict[str, pa.Array],
    before: Int64s | None = None,
    after: Int64s | None = None,
    reason: int = int(k.FIRED_WATERMARK),
) -> list[Outcome]:
    """Move accumulators or rows as the call decided, emit what it fired, write the state back.

    With `before` and `after`, overlapping windows whose ends the watermark has passed between them
    are put together from their sub-windows and emitted.
    """
    windows = None
    if before is not None and after is not None:
        windows = combine(call, before, after, reason)
    wall = int(call.cfg[k.C_WALL])
    if op.mode is Accumulation.RETRACTING:
        _relabel(state, call)
    if plan.buffered:
        made = _move_rows(state, plan, call, rows, times, late, windows)
    else:
        made = _move_slots(state, plan, call, rows, times, windows)
    _save(op, state, plan, call, extra)
    retracting = op.mode is Accumulation.RETRACTING
    if made is None:
        if retracting:
            _forget(state, call)
        return []
    emits, out, emit, when = made
    count(state, "windows_emitted", emits.lane)
    if retracting:
        out, emit, when = retract(plan, state, emits, out, emit, when)
        _forget(state, call)
    lanes = emits.lane[emit].astype(np.int32)
    count(state, "rows_emitted", lanes)
    return outcome(out, when, lanes, wall)


def _save(op: Window, state: State, plan: Plan, call: Call, extra: dict[str, pa.Array]) -> None:
    save_call(state, call, extra)
    held = state.tables["open"]
    if held is not None:
        written = bytes(plan.rows.remove_metadata().serialize())
        op._plans.setdefault(written, plan)
        state.tables["open"] = held.replace_schema_metadata({_SCHEMA: written})


def _emits(call: Call) -> Emits:
    fired = call.entries[call.fired]
    return Emits(
        fired[:, k.E_LANE],
        fired[:, k.E_START],
        fired[:, k.E_END],
        fired[:, k.E_SERIAL],
        fired[:, k.E_PANE],
        fired[:, k.E_REVISION],
        fired[:, k.E_FIRED],
    )


def _when(call: Call, emits: Emits) -> Int64s:
    """The time of an aggregated row: the last moment of its window, which is never at or before a
    watermark that was handed on earlier."""
    kind = call.cfg[k.C_KIND]
    inclusive = kind in (k.KIND_SESSION, k.KIND_EVERYTHING, k.KIND_COUNT, k.KIND_STATE)
    return emits.end if inclusive else emits.end - 1


Made = tuple[Emits, pa.RecordBatch, Int64s, Int64s]


def _move_slots(
    state: State,
    plan: Plan,
    call: Call,
    rows: pa.RecordBatch | None,
    times: Int64s | None,
    windows: Combined | None,
) -> Made | None:
    held = state.tables["slots"]
    n_held = 0 if held is None else held.num_rows
    at = entry_of(call, held)
    n = call.n_entries
    steps, n_steps, joined = call.steps, call.n_steps, call.joined
    codes: Int64s = np.zeros(0, np.int64)
    total = 1
    if plan.group_by:
        columns = []
        for name in plan.group_by:
            parts = [] if held is None else [held.column(f"first:{name}")]
            parts += [] if rows is None else [rows.column(name)]
            columns.append(pa.concat_arrays(parts) if len(parts) != 1 else parts[0])
        codes, total = joint_codes(columns)
        pairs = np.stack([at, codes[:n_held]], axis=1)
        if joined is not None and n * total <= DENSE:
            codes = codes[n_held + call.first :]
            made, joined = split_rows(joined, readonly(codes), total, pairs, n)
            size = len(made)
        else:
            if joined is not None:
                steps, joined = as_steps(joined, call.first), None
                n_steps = len(steps)
            codes = readonly(codes[n_held:])
            made, size, steps, n_steps = split_groups(steps, n_steps, codes, total, pairs, n)
        entry, slot_code = made[:size, 0], made[:size, 1]
        slots_held_at = np.arange(n_held)
    else:
        size, entry, slot_code = n, np.arange(n), np.zeros(n, np.int64)
        slots_held_at = np.full(call.n_open, -1, np.int64)
        slots_held_at[at] = np.arange(n_held)
    extra_slots = 0
    if windows is not None:
        owner, merges = windows.slots(entry, slot_code, size, total)
        extra_slots = len(owner)
        steps = np.concatenate([steps[:n_steps], merges])
        n_steps = len(steps)
    slots = Slots(plan.slots, size + extra_slots, held, slots_held_at)
    if joined is not None and rows is not None and times is not None:
        slots.scatter(joined, call.first, rows, times)
    else:
        slots.fold(steps, n_steps, rows, _NO_TIMES if times is None else times)
    made_out: Made | None = None
    if windows is not None:
        if len(windows.emits):
            which = size + np.flatnonzero(slots.count[size:] > 0)
            out, emit = emit_slots(plan, slots, windows.emits, which, owner[which - size])
            made_out = windows.emits, out, emit, windows.emits.end[emit] - 1
    elif len(call.fired):
        emits = _emits(call)
        order = np.full(n, -1, np.int64)
        order[call.fired] = np.arange(len(emits))
        of = order[entry]
        which = np.flatnonzero((of >= 0) & (slots.count[:size] > 0))
        out, emit = emit_slots(plan, slots, emits, which, of[which])
        made_out = emits, out, emit, _when(call, emits)[emit]
    kept = call.alive & ((call.entries[:n, k.E_FIRED] == 0) | (call.cfg[k.C_ACCUMULATE] != 0))
    stay = np.flatnonzero(kept[entry] & (slots.count[:size] > 0))
    state.tables["slots"] = None
    if len(stay):
        lane = call.entries[entry[stay], k.E_LANE].astype(np.int32)
        serial = np.ascontiguousarray(call.entries[entry[stay], k.E_SERIAL])
        state.tables["slots"] = slots.store(stay, lane, serial)
    return made_out


def _move_rows(
    state: State,
    plan: Plan,
    call: Call,
    rows: pa.RecordBatch | None,
    times: Int64s | None,
    late: NDArray[np.int8] | None,
    windows: Combined | None,
) -> Made | None:
    """Buffered rows: new ones join, those of fired panes leave."""
    old = state.tables["rows"]
    owner = entry_of(call, old)
    steps = call.steps[: call.n_steps]
    joined = steps[steps[:, 0] == k.STEP_ROWS]
    if len(joined) and rows is not None and times is not None:
        number = expand(joined[:, 2], joined[:, 3])
        entry = np.repeat(joined[:, 1], joined[:, 3] - joined[:, 2])
        whole = len(number) == rows.num_rows and np.array_equal(number, np.arange(len(number)))
        taken = rows if whole else rows.take(pa.array(number))
        flags = np.zeros(len(number), np.bool_) if late is None else late[number] == k.PLACED_LATE
        new = _with_state(taken, call, entry, times[number], flags)
        old = concat([old, new])
        owner = np.concatenate([owner, entry])
    for step in steps[steps[:, 0] == k.STEP_MERGE]:
        owner[owner == step[2]] = step[1]
    if old is None:
        return None
    n = call.n_entries
    serials = call.entries[:n, k.E_SERIAL]
    made_out: Made | None = None
    if windows is not None and len(windows.emits):
        row, emit = windows.rows(owner)
        out, of, when = emit_rows(plan, windows.emits, old, row, emit)
        made_out = windows.emits, out, of, when
    elif windows is None and len(call.fired):
        emits = _emits(call)
        row, emit = _gather(call, owner, bool(call.cfg[k.C_ACCUMULATE] != 0))
        out, of, when = emit_rows(plan, emits, old, row, emit)
        if plan.aggregated:
            when = _when(call, emits)[of]
        made_out = emits, out, of, when
    kept = call.alive & ((call.entries[:n, k.E_FIRED] == 0) | (call.cfg[k.C_ACCUMULATE] != 0))
    if call.cfg[k.C_ACCUMULATE] != 0:
        living = np.isin(call.keys(), call.keys()[kept])  # an earlier pane of a living window
        stay = living[owner]
    else:
        stay = kept[owner]
    if stay.all():
        state.tables["rows"] = _numbered(old, serials[owner])
    elif stay.any():
        index = np.flatnonzero(stay)
        state.tables["rows"] = _numbered(old.take(pa.array(index)), serials[owner[index]])
    else:
        state.tables["rows"] = None
    return made_out


def _gather(call: Call, owner: Int64s, accumulate: bool) -> tuple[Int64s, Int64s]:
    """The rows of every fired pane: its own, or where panes accumulate all up to it."""
    fired = call.fired
    if not accumulate:
        by = np.argsort(owner, kind="stable")
        ranked = owner[by]
        first = np.searchsorted(ranked, fired)
        last = np.searchsorted(ranked, fired, "right")
    else:
        _, window = np.unique(call.keys(), return_inverse=True)
        place = window * np.int64(call.n_entries) + np.arange(call.n_entries)
        at = place[owner]
        by = np.argsort(at, kind="stable")
        ranked = at[by]
        first = np.searchsorted(ranked, window[fired] * np.int64(call.n_entries))
        last = np.searchsorted(ranked, place[fired], "right")
    return by[expand(first, last)], np.repeat(np.arange(len(fired)), last - first)


def _with_state(
    rows: pa.RecordBatch, call: Call, entry: Int64s, times: Int64s, late: NDArray[np.bool_]
) -> pa.RecordBatch:
    lane: Int32s = call.entries[entry, k.E_LANE].astype(np.int32)
    serial = np.ascontiguousarray(call.entries[entry, k.E_SERIAL])
    arrays = [*rows.columns, pa.array(lane), pa.array(serial), pa.array(times), pa.array(late)]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, LANE, SERIAL, TIME, LATE])


def _numbered(rows: pa.RecordBatch, serial: Int64s) -> pa.RecordBatch:
    """The rows under the window they now belong to: sessions merge."""
    at = rows.schema.get_field_index(SERIAL)
    return rows.set_column(at, SERIAL, pa.array(np.ascontiguousarray(serial)))


def _relabel(state: State, call: Call) -> None:
    """What was emitted of a session that became part of another is that one's to take back."""
    sent = state.tables["sent"]
    merges = call.steps[: call.n_steps]
    merges = merges[merges[:, 0] == k.STEP_MERGE]
    if sent is None or len(merges) == 0:
        return
    lane, serial = sent.column(LANE).to_numpy(), sent.column(SERIAL).to_numpy().copy()
    for step in merges:
        into, gone = call.entries[step[1]], call.entries[step[2]]
        same = (lane == gone[k.E_LANE]) & (serial == gone[k.E_SERIAL])
        serial[same] = into[k.E_SERIAL]
    state.tables["sent"] = _numbered(sent, serial)


def _forget(state: State, call: Call) -> None:
    """Emissions of windows closed for good can no longer be taken back."""
    sent = state.tables["sent"]
    if sent is None:
        return
    living = call.keys()[call.alive]
    mine = sent.column(LANE).to_numpy().astype(np.int64) * (np.int64(1) << 32)
    keep = np.isin(mine + sent.column(SERIAL).to_numpy(), living)
    state.tables["sent"] = sent.filter(pa.array(keep)) if keep.any() else None
