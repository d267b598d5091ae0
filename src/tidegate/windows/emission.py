"""From fired entries to output rows: aggregated, or the rows themselves with their window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core import columns
from tidegate.core.arrow import joint_codes
from tidegate.core.outcomes import Collection, Int32s, Int64s, Outcome
from tidegate.core.state import LANE, State, concat
from tidegate.windows.accumulate import quantiles, split_groups
from tidegate.windows.aggregates import Aggregate
from tidegate.windows.numbers import STEP_ROWS
from tidegate.windows.plan import Plan
from tidegate.windows.slots import SERIAL, Slots, readonly

TIME = columns.TIME
LATE = columns.IS_LATE

_KEY = np.int64(1) << 32


@dataclass
class Emits:
    """Emissions of windows, in order: one entry of each array per emission."""

    lane: Int64s
    start: Int64s
    end: Int64s
    serial: Int64s
    pane: Int64s
    revision: Int64s
    mask: Int64s
    trigger_time: Int64s | None = None

    def __len__(self) -> int:
        return len(self.lane)


def emit_slots(
    plan: Plan, slots: Slots, emits: Emits, which: Int64s, emit: Int64s
) -> tuple[pa.RecordBatch, Int64s]:
    """Aggregated rows: slot `which[i]` belongs to emission `emit[i]`. Returns them with the
    emission each belongs to, in the order of emission, then of group values."""
    order = _order(plan, slots, which, emit)
    which, emit = which[order], emit[order]
    carried = {name: slots.payload(name, which) for name in plan.carried}
    columns = dict(carried)
    columns |= window_columns(plan, emits, emit, carried)
    for name, aggregate in plan.aggregates:
        kind = plan.output.field(name).type
        columns[name] = slots.result(aggregate, kind, which)
    _duration(plan, columns, emits, emit)
    return _batch(plan, columns), emit


def emit_rows(
    plan: Plan, emits: Emits, held: pa.RecordBatch, row: Int64s, emit: Int64s
) -> tuple[pa.RecordBatch, Int64s, Int64s]:
    """Output from buffered rows: row `row[i]` of `held` belongs to emission `emit[i]`; `emit` does
    not descend. Returns output rows, their emissions and their times."""
    times = held.column(TIME).to_numpy()
    order = np.lexsort((times[row], emit))
    row, emit = row[order], emit[order]
    if plan.deduplicate_by is not None and len(row):
        ids, _ = joint_codes([held.column(plan.deduplicate_by).take(pa.array(row))])
        _, first = np.unique(np.stack([emit, ids]), axis=1, return_index=True)
        first = np.sort(first)
        row, emit = row[first], emit[first]
    taken = held.take(pa.array(row))
    times = times[row]
    if not plan.aggregated:
        carried = {name: taken.column(name) for name in plan.keys}
        columns = {name: taken.column(name) for name in plan.rows.names}
        columns |= window_columns(plan, emits, emit, carried)
        columns["late"] = taken.column(LATE)
        if plan.stats:
            stats, of = _aggregate(plan, emits, taken, times, emit, grouped=False)
            back = np.searchsorted(of, emit)
            for name in plan.stats:
                columns[name] = stats.column(name).take(pa.array(back))
        return _batch(plan, columns), emit, times
    out, of = _aggregate(plan, emits, taken, times, emit, grouped=True)
    return out, of, emits.end[of] - 1


def _aggregate(
    plan: Plan,
    emits: Emits,
    rows: pa.RecordBatch,
    times: Int64s,
    emit: Int64s,
    *,
    grouped: bool,
) -> tuple[pa.RecordBatch, Int64s]:
    """Aggregates of rows sorted by (emission, time): the same kernels as the incremental ones."""
    n = len(emits)
    edges = np.searchsorted(emit, np.arange(n + 1))
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    steps = np.empty((len(filled), 4), np.int64)
    steps[:, 0] = STEP_ROWS
    steps[:, 1] = filled
    steps[:, 2] = edges[filled]
    steps[:, 3] = edges[filled + 1]
    n_slots, slot_emit = n, np.arange(n)
    if grouped and plan.group_by:
        codes, total = joint_codes([rows.column(name) for name in plan.group_by])
        made, n_slots, steps, n_steps = split_groups(
            steps, len(steps), readonly(codes), total, np.zeros((0, 2), np.int64), n
        )
        steps = steps[:n_steps]
        slot_emit = made[:n_slots, 0]
    slots = Slots(plan.slots, n_slots)
    slots.fold(steps, len(steps), rows, times)
    which = np.flatnonzero(slots.count > 0)
    order = _order(plan, slots, which, slot_emit[which]) if grouped else np.arange(len(which))
    which = which[order]
    of = slot_emit[which]
    wanted = plan.aggregates if grouped else plan.stat_aggregates
    columns: dict[str, Any] = {}
    if grouped:
        carried = {name: slots.payload(name, which) for name in plan.carried}
        columns |= carried
        columns |= window_columns(plan, emits, of, carried)
    by_slot: tuple[Int64s, Int64s] | None = None
    for name, aggregate in wanted:
        kind = plan.output.field(name).type
        if aggregate.incremental(plan.widened):
            columns[name] = slots.result(aggregate, kind, which)
            continue
        if by_slot is None:
            owner = np.repeat(steps[:, 1], steps[:, 3] - steps[:, 2])
            row = expand(steps[:, 2], steps[:, 3])
            stable = np.argsort(owner, kind="stable")
            by_slot = row[stable], np.searchsorted(owner[stable], np.arange(n_slots + 1))
        columns[name] = _by_rows(aggregate, kind, rows, by_slot[0], by_slot[1], which)
    _duration(plan, columns, emits, of)
    if not grouped:
        names = [name for name in plan.stats if name in columns]
        return pa.RecordBatch.from_arrays([columns[n] for n in names], names=names), of
    return _batch(plan, columns), of


def _by_rows(
    aggregate: Aggregate,
    kind: pa.DataType,
    rows: pa.RecordBatch,
    row: Int64s,
    edges: Int64s,
    which: Int64s,
) -> pa.Array:
    """An aggregate that needs the rows of a slot: those at row[edges[s] : edges[s + 1]]."""
    assert aggregate.column is not None
    column = rows.column(aggregate.column).take(pa.array(row))
    starts, ends = edges[which], edges[which + 1]
    if aggregate.function == "quantile":
        floats = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        out, present = np.empty(len(which)), np.empty(len(which), np.bool_)
        assert aggregate.q is not None
        quantiles(readonly(floats), starts, ends, float(aggregate.q), out, present)
        return pa.array(out, mask=~present)
    if isinstance(aggregate.function, str):
        slot = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        table = pa.table({"slot": slot, "v": column})
        made = table.group_by("slot", use_threads=False).aggregate([("v", aggregate.function)])
        at = np.empty(len(edges) - 1, np.int64)
        at[made.column("slot").to_numpy()] = np.arange(made.num_rows)
        result = made.column(f"v_{aggregate.function}").combine_chunks()
        if isinstance(result, pa.ChunkedArray):
            result = pa.concat_arrays(result.chunks)
        return result.take(pa.array(at[which])).cast(kind)
    # One call per window and group, never per row: the function is the user's own.
    values = [
        aggregate.function(column.slice(a, b - a))
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    plain = [v.as_py() if isinstance(v, pa.Scalar) else v for v in values]
    return pa.array(plain, kind)


def window_columns(
    plan: Plan, emits: Emits, emit: Int64s, carried: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """The columns that say which window a row is of."""
    n = len(emits)
    first = np.searchsorted(emit, np.arange(n))  # the first row of each emission has its keys
    first = pa.array(np.minimum(first, max(0, len(emit) - 1)))
    texts = [carried[name].take(first).cast(pa.string()).fill_null("null") for name in plan.keys]
    numbers = [emits.start, emits.end, emits.revision]
    if plan.numbered:
        numbers.insert(2, emits.serial)
    texts += [pa.array(number).cast(pa.string()) for number in numbers]
    masks, back = np.unique(emits.mask, return_inverse=True)
    names = pa.array([plan.reason(int(mask)) for mask in masks], pa.string())
    out = {
        "window_id": pc.binary_join_element_wise(*texts, "/"),
        "window_start_ns": pa.array(emits.start),
        "window_end_ns": pa.array(emits.end),
        "pane": pa.array(emits.pane),
        "revision": pa.array(emits.revision),
        "trigger": names.take(pa.array(back)),
        "retraction": pa.array(np.zeros(n, np.bool_)),
    }
    if emits.trigger_time is not None:
        out["trigger_time_ns"] = pa.array(emits.trigger_time)
    if len(emit) == n and (n == 0 or (emit[0] == 0 and np.all(np.diff(emit) == 1))):
        return out
    which = pa.array(emit)
    return {name: values.take(which) for name, values in out.items()}


def _order(plan: Plan, slots: Slots, which: Int64s, emit: Int64s) -> Int64s:
    """Slots by emission, then by the values of their groups (null last)."""
    if not plan.group_by or len(which) < 2:
        return np.argsort(emit, kind="stable")
    columns = [pa.array(emit)] + [slots.payload(name, which) for name in plan.group_by]
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
    names = [f"c{number}" for number in range(len(columns))]
    table = pa.RecordBatch.from_arrays(columns, names=names)
    try:
        made = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
        order: Int64s = made.to_numpy().astype(np.int64)
        return order
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # lists, structs: as they appeared
        return np.argsort(emit, kind="stable")


def _duration(plan: Plan, columns: dict[str, Any], emits: Emits, emit: Int64s) -> None:
    if "duration_ns" in plan.stats:
        columns["duration_ns"] = pa.array(emits.end[emit] - emits.start[emit])


def _batch(plan: Plan, columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in plan.output.names], schema=plan.output
    )


def expand(starts: Int64s, ends: Int64s) -> Int64s:
    """All numbers of the ranges [start, end), one range after the other."""
    lengths = ends - starts
    total = int(lengths.sum())
    offsets = np.repeat(np.cumsum(lengths) - lengths, lengths)
    made: Int64s = np.arange(total) - offsets + np.repeat(starts, lengths)
    return made


def retract(
    plan: Plan, state: State, emits: Emits, out: pa.RecordBatch, emit: Int64s, time: Int64s
) -> tuple[pa.RecordBatch, Int64s, Int64s]:
    """Put before every emission of a window the rows of its previous one, marked as taken back."""
    keys = emits.lane * _KEY + emits.serial
    table = with_state_columns(out, emits.lane[emit], emits.serial[emit], time)
    old = state.tables["sent"]
    both = concat([old, table])
    assert both is not None
    n_old = 0 if old is None else old.num_rows
    key_of = both.column(LANE).to_numpy().astype(np.int64) * _KEY + both.column(SERIAL).to_numpy()
    # The emission each row was part of: -1 for those of earlier calls.
    of = np.concatenate([np.full(n_old, -1, np.int64), emit])
    last: dict[int, int] = {}
    chosen, flags, owner = [], [], []
    by_key = np.lexsort((of, key_of))
    ranked = key_of[by_key]
    for number, key in enumerate(keys.tolist()):
        rows = by_key[np.searchsorted(ranked, key) : np.searchsorted(ranked, key, "right")]
        before = rows[of[rows] == last.get(key, -1)]
        now = rows[of[rows] == number]
        chosen += [before, now]
        flags += [np.ones(len(before), np.bool_), np.zeros(len(now), np.bool_)]
        owner += [np.full(len(before) + len(now), number)]
        last[key] = number
    picked = np.concatenate(chosen)
    result = both.take(pa.array(picked))
    keep = np.ones(both.num_rows, np.bool_)
    latest = np.array([last.get(int(k), -1) for k in key_of.tolist()], np.int64)
    keep = of == latest
    state.tables["sent"] = both.filter(pa.array(keep))
    times = result.column(TIME).to_numpy()
    result = result.select(out.schema.names)
    at = result.schema.get_field_index("retraction")
    result = result.set_column(at, plan.output.field("retraction"), pa.array(np.concatenate(flags)))
    return result, np.concatenate(owner), times


def with_state_columns(
    rows: pa.RecordBatch, lane: Int64s, serial: Int64s, time: Int64s
) -> pa.RecordBatch:
    arrays = [*rows.columns, pa.array(lane.astype(np.int32)), pa.array(serial), pa.array(time)]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, LANE, SERIAL, TIME])


def outcome(out: pa.RecordBatch, time: Int64s, lane: Int32s, wall_ns: int) -> list[Outcome]:
    """The output as data, unless it is empty: an empty window is never emitted."""
    if out.num_rows == 0:
        return []
    return [Collection(out, np.ascontiguousarray(time), lane, wall_ns)]
