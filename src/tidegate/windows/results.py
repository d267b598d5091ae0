"""What comes out of a window stage: its columns, the rows of an emission, and windows as objects.

How to read this file: `OutputPlan` is worked out once per input schema and says which columns come
out and what has to be kept for them. `Emits` are the emissions of one call. `emit_slots` and
`emit_rows` make output rows of them, from accumulators or from buffered rows; `retract` puts the
rows that are taken back before them. `outputs` turns delivered tables into `WindowOutput` objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import concat, factorize, ranges, take
from tidegate.core.columns import BYTES, IS_LATE, LANE, SERIAL, TIME, output_names
from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Collection, Int64s, Outcome
from tidegate.core.state import State
from tidegate.errors import ConfigError, StateError
from tidegate.windows.aggregates import Accumulators, Aggregate, SlotPlan, column_type, plan_slots
from tidegate.windows.held import LANE_STRIDE, table_keys
from tidegate.windows.kernels.aggregate_runs import split_groups
from tidegate.windows.kernels.any_order import Slots
from tidegate.windows.kernels.ids import join_numbers
from tidegate.windows.kernels.layout import FiringReason, Step, Steps, Timing

__all__ = ["WindowOutput", "WindowStats", "outputs"]

WINDOW_COLUMNS = {
    "window_id": pa.string(),
    "window_start_ns": pa.int64(),
    "window_end_ns": pa.int64(),
    "pane": pa.int64(),
    "revision": pa.int64(),
    "trigger": pa.string(),
    "timing": pa.string(),
    "final": pa.bool_(),
    "retraction": pa.bool_(),
}
"""Which window, which emission of it, why and when it was emitted, and whether another can come."""

COMPLETE_COLUMNS = {
    "window_id": pa.string(),
    "window_start_ns": pa.int64(),
    "window_end_ns": pa.int64(),
    "panes": pa.int64(),
    "reason": pa.string(),
    "final": pa.bool_(),
    "open_until_ns": pa.int64(),
}
"""The side table `complete`: the window, how many panes of it have left, why it is complete
(`watermark`, `expired` after its lateness, `end` of the stream or the key), whether it is final,
and if not the watermark at which it will be: until then late rows can change it."""

TIMINGS = pa.array([timing.name.lower() for timing in Timing])
"""`early`, `on_time`, `late`, by the numbers of `Timing`."""

_TIMINGS = [timing.name.lower() for timing in Timing]

FEW_EMISSIONS = 32
"""Up to this many emissions Python writes the text columns; Arrow's kernels cost more than that to
call."""

STATS = ("delta_count", "vectors_affected", "total_bytes", "avg_delta_size", "duration_ns")
"""The columns that `stats=True` adds."""


# -- the plan for a schema ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OutputPlan:
    """Columns in, columns out, and what has to be kept for it."""

    rows: pa.Schema
    """The schema of the rows that come, without metadata."""
    written: bytes
    """The same as bytes: it travels with the state."""
    widened: pa.Schema
    """The rows with the column of their sizes, where statistics ask for it."""
    keys: tuple[str, ...]
    """Columns that are constant per key; part of `window_id`."""
    group_by: tuple[str, ...]
    """Columns that divide a window in the output; empty without aggregates."""
    carried: tuple[str, ...]
    """Keys and groups, which are constant within a slot."""
    aggregates: tuple[tuple[str, Aggregate], ...]
    """Output columns and how they are worked out, those of statistics included."""
    stat_aggregates: tuple[tuple[str, Aggregate], ...]
    """Those of statistics alone."""
    stats: tuple[str, ...]
    """The names of the statistics, `duration_ns` included; empty without `stats`."""
    aggregated: bool
    """One row per window and group leaves; otherwise the rows themselves."""
    buffered: bool
    """Rows are kept until they are emitted."""
    sized: bool
    """The bytes of rows matter."""
    slots: SlotPlan
    """What the accumulators have to hold."""
    output: pa.Schema
    """The schema of the rows that leave."""
    own: dict[str, str]
    """Our columns by the names they have in the output: another if the user has that one."""
    deduplicate_by: str | None
    """Of the rows of a pane with equal values here only the first counts; None: all do."""
    numbered: bool
    """Identifiers contain the serial number of the window."""
    names: tuple[str, ...]
    """Of the stage's triggers, by bit."""
    timestamp: str
    """The time of an aggregated row: `end`, `earliest` or `latest`."""
    inclusive_end: bool
    """The end of a window is a time at which a row may still belong to it."""

    _trigger_names: dict[int, str] = field(default_factory=dict, init=False, repr=False)
    """Masks seen so far and their names."""

    def trigger_name(self, mask: int) -> str:
        """The names of the triggers in a fired mask, joined by ` & `: the stage's own, then our
        reasons.

        Args:
            mask: bits of the stage's triggers and `FiringReason`.
        """
        found = self._trigger_names.get(mask)
        if found is None:
            own = [name for bit, name in enumerate(self.names) if mask >> bit & 1]
            ours = [reason.name.lower() for reason in FiringReason if mask & reason]
            found = self._trigger_names[mask] = " & ".join(own + ours)
        return found


class Wanted(NamedTuple):
    """The settings of a stage that decide what comes out; fields as in `Window` and
    `OutputPlan`."""

    keys: tuple[str, ...]
    group_by: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    stats: bool
    affected: str | None
    deduplicate_by: str | None
    size_column: str | None
    numbered: bool
    look_back: bool
    sized: bool
    budgeted: bool
    names: tuple[str, ...]
    timestamp: str
    inclusive_end: bool


def make_plan(rows: pa.Schema, wanted: Wanted) -> OutputPlan:
    """What a stage with these settings does with rows of this schema.

    Args:
        rows: the schema of the rows, without metadata.
        wanted: the settings.

    Raises:
        ConfigError: a column is missing or of the wrong type, or two would have one name.
    """
    for setting in ("keys", "group_by"):
        for name in getattr(wanted, setting):
            column_type(rows, name, setting)
    for setting in ("deduplicate_by", "affected"):
        if getattr(wanted, setting) is not None:
            column_type(rows, getattr(wanted, setting), setting)
    size = wanted.size_column
    if size is not None and not pa.types.is_integer(column_type(rows, size, "size_column")):
        text = f"must be a column of whole numbers, not {rows.field(size).type}"
        raise ConfigError("size_column", size, text)
    widened = rows.append(pa.field(BYTES, pa.int64())) if wanted.stats else rows
    own = dict(WINDOW_COLUMNS)
    if wanted.look_back:
        own["trigger_time_ns"] = pa.int64()
    stats, stat_aggregates = _stat_columns(wanted)
    aggregated = bool(wanted.aggregates)
    carried = tuple(dict.fromkeys((*wanted.keys, *wanted.group_by)))
    if aggregated:
        present = [*carried]
        for name, _ in wanted.aggregates:
            if name in (*own, *stats, *carried):
                raise ConfigError("aggregates", name, "is the name of another output column")
        present += [name for name, _ in wanted.aggregates]
        fields = [rows.field(name) for name in carried]
    else:
        own["late"] = pa.bool_()
        present = rows.names
        fields = list(rows)
    named = output_names(present, [*own, *stats])
    ours = [pa.field(named[name], kind) for name, kind in own.items()]
    if aggregated:
        fields += ours
        fields += [pa.field(name, each.result_type(widened)) for name, each in wanted.aggregates]
    else:
        fields += ours
    kinds = {name: aggregate.result_type(widened) for name, aggregate in stat_aggregates}
    fields += [pa.field(named[name], kinds.get(name, pa.int64())) for name in stats]
    every = (*wanted.aggregates, *stat_aggregates) if aggregated else ()
    buffered = (
        not aggregated
        or wanted.look_back
        or wanted.deduplicate_by is not None
        or not all(aggregate.is_incremental(widened) for _, aggregate in every)
    )
    accumulated = every if aggregated else stat_aggregates
    return OutputPlan(
        rows=rows,
        written=bytes(rows.serialize()),
        widened=widened,
        keys=wanted.keys,
        group_by=wanted.group_by if aggregated else (),
        carried=carried if aggregated else wanted.keys,
        aggregates=every,
        stat_aggregates=stat_aggregates,
        stats=stats,
        aggregated=aggregated,
        buffered=buffered,
        sized=wanted.sized or wanted.stats or (wanted.budgeted and buffered),
        slots=plan_slots(
            widened, carried if aggregated else (), accumulated, wanted.timestamp != "end"
        ),
        timestamp=wanted.timestamp,
        inclusive_end=wanted.inclusive_end,
        output=pa.schema(fields),
        own=named,
        deduplicate_by=wanted.deduplicate_by,
        numbered=wanted.numbered,
        names=wanted.names,
    )


def _stat_columns(
    wanted: Wanted,
) -> tuple[tuple[str, ...], tuple[tuple[str, Aggregate], ...]]:
    """The names of the statistics, and the aggregates they are worked out by."""
    if not wanted.stats:
        return (), ()
    made = {
        "delta_count": Aggregate("count"),
        "total_bytes": Aggregate("sum", BYTES),
        "avg_delta_size": Aggregate("mean", BYTES),
    }
    if wanted.affected is not None:
        made["vectors_affected"] = Aggregate("count_distinct", wanted.affected)
    names = tuple(name for name in STATS if name in made or name == "duration_ns")
    return names, tuple((name, made[name]) for name in names if name in made)


def row_bytes(rows: pa.RecordBatch, column: str | None) -> Int64s:
    """The size of every row in bytes: a column that says so, or the bytes of its own values.

    Fixed-width values count their width, texts and lists what they contain; null texts and lists
    count nothing. A row's size depends on that row alone, never on the batch it came with.

    Args:
        rows: the rows.
        column: a column of sizes, or None.
    """
    if column is not None:
        given = pc.fill_null(rows.column(column).cast(pa.int64()), 0)
        stated: Int64s = np.maximum(given.to_numpy(zero_copy_only=False), 0)
        return stated
    sizes = np.zeros(rows.num_rows, np.int64)
    for values in rows.columns:
        sizes += value_bytes(values)
    return sizes


def value_bytes(values: pa.Array) -> Int64s | int:
    """The bytes of every value; one number where all have the same.

    Fixed-width types count their width, at least 1; what they contain counts for texts, lists, maps
    and structs; dictionary values count as the value they stand for.

    Args:
        values: a column.
    """
    kind, types = values.type, pa.types
    if types.is_dictionary(kind):
        sizes = value_bytes(values.dictionary)
        if isinstance(sizes, int):
            return sizes
        where = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
        taken = sizes[where] if len(sizes) else np.zeros(len(values), np.int64)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, taken, 0)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        pass
    if types.is_struct(kind):
        total: Int64s = np.zeros(len(values), np.int64)
        for number in range(kind.num_fields):
            total = total + value_bytes(values.field(number))
        return total
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        ends = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        inner = value_bytes(values.values)
        if isinstance(inner, int):
            made: Int64s = np.diff(ends) * inner
        else:
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(inner)])
            made = before[ends[1:]] - before[ends[:-1]]
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), made, 0)
    if types.is_fixed_size_list(kind):
        return value_bytes(values.cast(pa.list_(kind.value_type)))
    try:
        lengths = pc.fill_null(pc.binary_length(values), 0)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # views, unions: as text
        lengths = pa.array([len(str(value)) for value in values.to_pylist()], pa.int64())
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


# -- the rows of an emission ----------------------------------------------------------------------


class Emits(NamedTuple):
    """Emissions of windows, in order: one entry of each array per emission."""

    lane: Int64s
    """The key."""
    start: Int64s
    """Start of the window, in ns."""
    end: Int64s
    """Its end, in ns."""
    serial: Int64s
    """Its number within the lane."""
    pane: Int64s
    """The number of this emission of the window, from 0."""
    revision: Int64s
    """How often the window was emitted again after it had been complete."""
    mask: Int64s
    """Why: bits of triggers and `FiringReason`."""
    timing: Int64s
    """`Timing`: before the window was complete, by its completion, or after."""
    final: NDArray[np.bool_]
    """No further pane of the window can come."""
    trigger_time: Int64s | None = None
    """`LookBack`: the time of the row whose window it is."""


class Emitted(NamedTuple):
    """Output rows, the emission each belongs to (ascending), and their times."""

    rows: pa.RecordBatch
    """Rows of the schema `OutputPlan.output`."""
    emit: Int64s
    """Index into the arrays of `Emits`."""
    time: Int64s
    """The event time of each row for the stages behind."""


def emit_slots(
    plan: OutputPlan, slots: Accumulators, emits: Emits, which: Int64s, emit: Int64s
) -> Emitted:
    """Make aggregated rows: slot `which[i]` belongs to emission `emit[i]`.

    Args:
        plan: of the stage.
        slots: the accumulators.
        emits: the emissions.
        which: the slots to emit.
        emit: the emission of each.

    Returns:
        The rows in the order of emission, then of group values.
    """
    order = _order_of_slots(plan, slots, which, emit)
    which, emit = which[order], emit[order]
    carried = {name: slots.payload(name, which) for name in plan.carried}
    columns = dict(carried)
    columns |= window_columns(plan, emits, emit, carried)
    for name, aggregate in plan.aggregates:
        out = plan.own.get(name, name)
        columns[out] = slots.result(aggregate, plan.output.field(out).type, which)
    _add_duration(plan, columns, emits, emit)
    times = slot_times(plan, slots, emits, which, emit)
    return Emitted(_output_batch(plan, columns), emit, times)


def slot_times(
    plan: OutputPlan, slots: Accumulators, emits: Emits, which: Int64s, emit: Int64s
) -> Int64s:
    """The event times of aggregated rows: the time of the first or last row of a slot, or the last
    moment of its window, which is never at or before a watermark that was handed on earlier.

    Args:
        plan: of the stage.
        slots: the accumulators.
        emits: the emissions.
        which: the slots.
        emit: the emission of each.
    """
    if plan.timestamp == "earliest":
        return slots.rows.first_time[which]
    if plan.timestamp == "latest":
        return slots.rows.last_time[which]
    return emits.end[emit] - (not plan.inclusive_end)


def emit_rows(
    plan: OutputPlan, emits: Emits, held: pa.RecordBatch, row: Int64s, emit: Int64s
) -> Emitted:
    """Make output from buffered rows: row `row[i]` of `held` belongs to emission `emit[i]`.

    Rows leave by emission, then time, then arrival. Duplicates are removed per emission, after
    sorting, so that the earliest one stays.

    Args:
        plan: of the stage.
        emits: the emissions.
        held: the state's table of rows.
        row: indices into it; a row may be in several emissions.
        emit: the emission of each; must not descend.
    """
    times = held.column(TIME).to_numpy()
    order = np.lexsort((times[row], emit))
    row, emit = row[order], emit[order]
    if plan.deduplicate_by is not None and len(row):
        ids = factorize([held.column(plan.deduplicate_by).take(pa.array(row))]).codes
        _, first = np.unique(np.stack([emit, ids]), axis=1, return_index=True)
        first = np.sort(first)
        row, emit = row[first], emit[first]
    taken = take(held, row)
    times = times[row]
    if plan.aggregated:
        return _aggregate_rows(plan, emits, taken, times, emit, grouped=True)
    carried = {name: taken.column(name) for name in plan.keys}
    columns = {name: taken.column(name) for name in plan.rows.names}
    columns |= window_columns(plan, emits, emit, carried)
    columns[plan.own["late"]] = taken.column(IS_LATE)
    if plan.stats:
        stats, of, _ = _aggregate_rows(plan, emits, taken, times, emit, grouped=False)
        back = pa.array(np.searchsorted(of, emit))
        for name in stats.schema.names:
            columns[name] = stats.column(name).take(back)
    return Emitted(_output_batch(plan, columns), emit, times)


def _aggregate_rows(
    plan: OutputPlan,
    emits: Emits,
    rows: pa.RecordBatch,
    times: Int64s,
    emit: Int64s,
    *,
    grouped: bool,
) -> Emitted:
    """Aggregates of rows sorted by (emission, time): the same kernels as the incremental ones.

    Args:
        plan: of the stage.
        emits: the emissions.
        rows: the rows.
        times: their times.
        emit: the emission of each row.
        grouped: make whole output rows, one per emission and group; otherwise the statistics alone,
            one row per emission.

    Returns:
        The rows, the emission of each, and its time by `plan.timestamp`.
    """
    n = len(emits.lane)
    edges = np.searchsorted(emit, np.arange(n + 1))
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    what = np.full(len(filled), Step.ROWS, np.int64)
    steps = Steps(what, filled, edges[filled], edges[filled + 1])
    n_slots, slot_emit = n, np.arange(n)
    if grouped and plan.group_by:
        codes, total = factorize([rows.column(name) for name in plan.group_by])
        slots_of, steps = split_groups(steps, as_readonly(codes), total, no_slots(), n)
        n_slots, slot_emit = len(slots_of.pane), slots_of.pane
    slots = Accumulators(plan.slots, n_slots)
    slots.add(steps, rows, times)
    which = np.flatnonzero(slots.rows.n > 0)
    if grouped:
        which = which[_order_of_slots(plan, slots, which, slot_emit[which])]
    of = slot_emit[which]
    columns: dict[str, Any] = {}
    if grouped:
        carried = {name: slots.payload(name, which) for name in plan.carried}
        columns |= carried
        columns |= window_columns(plan, emits, of, carried)
    by_slot: tuple[pa.Array, Int64s] | None = None
    for name, aggregate in plan.aggregates if grouped else plan.stat_aggregates:
        out = plan.own.get(name, name)
        kind = plan.output.field(out).type
        if aggregate.is_incremental(plan.widened):
            columns[out] = slots.result(aggregate, kind, which)
            continue
        if by_slot is None:
            row, step = ranges(steps.first, steps.last)
            owner = steps.pane[step]
            stable = np.argsort(owner, kind="stable")
            by_slot = pa.array(row[stable]), np.searchsorted(owner[stable], np.arange(n_slots + 1))
        values = rows.column(str(aggregate.column)).take(by_slot[0])
        if aggregate.by is not None:
            by = rows.column(aggregate.by).take(by_slot[0])
            values = pa.StructArray.from_arrays([values, by], ["value", "by"])
        does = aggregate.implementation
        columns[out] = does.over_rows(values, by_slot[1], which, aggregate, kind)
    _add_duration(plan, columns, emits, of)
    if not grouped:
        names = [plan.own[name] for name in plan.stats]
        table = pa.RecordBatch.from_arrays([columns[n] for n in names], names=names)
        return Emitted(table, of, emits.end[of] - 1)
    return Emitted(_output_batch(plan, columns), of, slot_times(plan, slots, emits, which, of))


def window_columns(
    plan: OutputPlan, emits: Emits, emit: Int64s, carried: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """The columns that say which window a row is of.

    Args:
        plan: of the stage.
        emits: the emissions.
        emit: the emission of each output row, ascending.
        carried: the key columns of the output rows.
    """
    n = len(emits.lane)
    numbers = [emits.start, emits.end, emits.revision]
    if plan.numbered:
        numbers.insert(2, emits.serial)
    keys = []
    if plan.keys:
        if n and not len(emit):  # only in a state that somebody changed
            raise StateError("an open window has rows, and none of them is in the state")
        first = np.searchsorted(emit, np.arange(n))  # the first row of each emission has its keys
        first = pa.array(np.minimum(first, max(0, len(emit) - 1)))
        keys = [carried[k].take(first).cast(pa.string()).fill_null("null") for k in plan.keys]
    if n <= FEW_EMISSIONS:
        lines = zip(*(k.to_pylist() for k in keys), *(m.tolist() for m in numbers), strict=True)
        window_id = pa.array(["/".join(map(str, line)) for line in lines], pa.string())
        trigger = pa.array([plan.trigger_name(mask) for mask in emits.mask.tolist()], pa.string())
        timing = pa.array([_TIMINGS[number] for number in emits.timing.tolist()], pa.string())
    else:
        window_id = join_numbers(numbers)
        if keys:
            window_id = pc.binary_join_element_wise(*keys, window_id, "/")
        masks, back = np.unique(emits.mask, return_inverse=True)
        names = pa.array([plan.trigger_name(int(mask)) for mask in masks], pa.string())
        trigger = names.take(pa.array(back))
        timing = TIMINGS.take(pa.array(emits.timing))
    made = {
        "window_id": window_id,
        "window_start_ns": pa.array(emits.start),
        "window_end_ns": pa.array(emits.end),
        "pane": pa.array(emits.pane),
        "revision": pa.array(emits.revision),
        "trigger": trigger,
        "timing": timing,
        "final": pa.array(emits.final),
        "retraction": pa.array(np.zeros(n, np.bool_)),
    }
    if emits.trigger_time is not None:
        made["trigger_time_ns"] = pa.array(emits.trigger_time)
    out = {plan.own[name]: values for name, values in made.items()}
    if len(emit) == n and (n == 0 or (emit[0] == 0 and np.all(np.diff(emit) == 1))):
        return out
    which = pa.array(emit)
    return {name: values.take(which) for name, values in out.items()}


def _order_of_slots(plan: OutputPlan, slots: Accumulators, which: Int64s, emit: Int64s) -> Int64s:
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


def _add_duration(plan: OutputPlan, columns: dict[str, Any], emits: Emits, emit: Int64s) -> None:
    """With `stats`, add the length of the window as a column."""
    if plan.stats:
        columns[plan.own["duration_ns"]] = pa.array(emits.end[emit] - emits.start[emit])


def _output_batch(plan: OutputPlan, columns: dict[str, Any]) -> pa.RecordBatch:
    """The columns in the order of the output schema."""
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in plan.output.names], schema=plan.output
    )


def no_slots() -> Slots:
    """No slots of the state."""
    return Slots(*np.zeros((3, 0), np.int64))


def retract(plan: OutputPlan, state: State, emits: Emits, made: Emitted) -> Emitted:
    """Put before every emission of a window the rows of its previous one, marked as taken back.

    The rows of the last emission of every window are kept in the state's table `sent`. A window may
    be emitted several times in one call; then the second takes back the first.

    Args:
        plan: of the stage.
        state: of the stage; `sent` is replaced.
        emits: the emissions of this call, in order.
        made: their rows.
    """
    keys = emits.lane * LANE_STRIDE + emits.serial
    lane, serial = emits.lane[made.emit].astype(np.int32), emits.serial[made.emit]
    arrays = [*made.rows.columns, pa.array(lane), pa.array(serial), pa.array(made.time)]
    table = pa.RecordBatch.from_arrays(arrays, names=[*made.rows.schema.names, LANE, SERIAL, TIME])
    old = state.tables["sent"]
    both = concat([old, table])
    assert both is not None
    n_old = 0 if old is None else old.num_rows
    key_of = table_keys(both)
    # The emission each row was part of: -1 for those of earlier calls.
    of = np.concatenate([np.full(n_old, -1, np.int64), made.emit])
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
    result = both.take(pa.array(np.concatenate(chosen)))
    # Keep the rows of the newest emission only: those of windows not emitted now have -1 on both
    # sides.
    latest = np.array([last.get(int(key), -1) for key in key_of.tolist()], np.int64)
    state.tables["sent"] = both.filter(pa.array(of == latest))
    times = result.column(TIME).to_numpy()
    result = result.select(made.rows.schema.names)
    name = plan.own["retraction"]
    at = result.schema.get_field_index(name)
    result = result.set_column(at, plan.output.field(name), pa.array(np.concatenate(flags)))
    return Emitted(result, np.concatenate(owner), times)


# -- windows as objects ---------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowStats:
    """What an emitted window consists of."""

    delta_count: int
    """Rows."""
    vectors_affected: int | None
    """Distinct values of the column `affected`; None without one."""
    total_bytes: int
    """Bytes of all rows."""
    avg_delta_size: float
    """Bytes per row."""
    duration_ns: int
    """End minus start."""


@dataclass(frozen=True, eq=False)
class WindowOutput:
    """One emission of one window."""

    window_id: str
    """The same in every run: key values, start, end, revision, joined by `/`."""
    start_ns: int
    """Start, in ns since the epoch."""
    end_ns: int
    """End: exclusive, but inclusive for sessions, count and state windows."""
    rows: pa.RecordBatch
    """The output rows of this emission."""
    trigger: str
    """Which trigger fired, or why else it was emitted."""
    pane: int
    """The number of this emission of the window, from 0."""
    revision: int
    """How often the window was emitted anew after it had been complete."""
    timing: str
    """`early` (before the window was complete), `on_time` (by its completion) or `late`."""
    final: bool
    """No further emission of this window can come. Where it is False a late row can still change
    the window, up to `max_lateness` behind its end, or its on-time pane is still to come."""
    retraction: bool
    """The rows are those of the previous emission, taken back."""
    stats: WindowStats | None
    """With `stats=True`."""


def outputs(outcomes: Iterable[Outcome]) -> list[WindowOutput]:
    """Emitted windows one by one, from the tables in which they come.

    Args:
        outcomes: what a window stage returned; everything but data is left out.
    """
    made = []
    for outcome in outcomes:
        if not isinstance(outcome, Collection):
            continue
        rows, names = outcome.rows, _our_columns(outcome.rows.schema.names)
        edges = [0]
        if rows.num_rows > 1:
            columns = (rows.column(names[name]).to_pylist() for name in WINDOW_MARKS)
            marks = list(zip(*columns, strict=True))
            edges = [i for i in range(len(marks)) if i == 0 or marks[i] != marks[i - 1]]
        for first, last in zip(edges, [*edges[1:], rows.num_rows], strict=True):
            part = rows.slice(first, last - first)
            whole: dict[str, Any] = part.slice(0, 1).to_pylist()[0]
            head: dict[str, Any] = {name: whole.get(found) for name, found in names.items()}
            stats = None
            if names["delta_count"] in whole:
                stats = WindowStats(**{name: head[name] for name in STATS})
            made.append(
                WindowOutput(
                    window_id=head["window_id"],
                    start_ns=head["window_start_ns"],
                    end_ns=head["window_end_ns"],
                    rows=part,
                    trigger=head["trigger"],
                    pane=head["pane"],
                    revision=head["revision"],
                    timing=head["timing"],
                    final=head["final"],
                    retraction=head["retraction"],
                    stats=stats,
                )
            )
    return made


WINDOW_MARKS = ("window_id", "pane", "retraction")
"""Columns that differ between any two emissions."""


def _our_columns(present: list[str]) -> dict[str, str]:
    """Our columns by the names they have among these (`core.columns.output_names`)."""
    out = {}
    for name in (*WINDOW_COLUMNS, *STATS):
        found = name
        while f"tidegate_{found}" in present:
            found = f"tidegate_{found}"
        out[name] = found
    return out
