"""What a window stage does with rows of a given schema: worked out once, exact, before any row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.columns import BYTES
from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError
from tidegate.windows.aggregates import Aggregate, column_type
from tidegate.windows.numbers import REASONS
from tidegate.windows.slots import SlotPlan, plan_slots

WINDOW_COLUMNS = (
    ("window_id", pa.string()),
    ("window_start_ns", pa.int64()),
    ("window_end_ns", pa.int64()),
    ("pane", pa.int64()),
    ("revision", pa.int64()),
    ("trigger", pa.string()),
    ("retraction", pa.bool_()),
)
"""Which window, which emission of it, and why."""

STATS = ("delta_count", "vectors_affected", "total_bytes", "avg_delta_size", "duration_ns")


@dataclass(frozen=True, eq=False)
class Plan:
    """Columns in, columns out, and what has to be kept for it."""

    rows: pa.Schema
    widened: pa.Schema
    keys: tuple[str, ...]
    group_by: tuple[str, ...]
    carried: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    stat_aggregates: tuple[tuple[str, Aggregate], ...]
    stats: tuple[str, ...]
    aggregated: bool
    buffered: bool
    sized: bool
    slots: SlotPlan
    output: pa.Schema
    deduplicate_by: str | None
    numbered: bool
    names: tuple[str, ...]

    def reason(self, mask: int) -> str:
        """The names of the triggers in a fired mask."""
        own = [name for bit, name in enumerate(self.names) if mask >> bit & 1]
        ours = [name for bit, name in REASONS.items() if mask >> bit & 1]
        return " & ".join(own + ours)


def make_plan(
    rows: pa.Schema,
    *,
    keys: tuple[str, ...],
    group_by: tuple[str, ...],
    aggregates: tuple[tuple[str, Aggregate], ...],
    stats: bool,
    affected: str | None,
    deduplicate_by: str | None,
    numbered: bool,
    look_back: bool,
    sized: bool,
    names: tuple[str, ...],
) -> Plan:
    for field, columns in (("keys", keys), ("group_by", group_by)):
        for name in columns:
            column_type(rows, name, field)
    for field, column in (("deduplicate_by", deduplicate_by), ("affected", affected)):
        if column is not None:
            column_type(rows, column, field)
    widened = rows.append(pa.field(BYTES, pa.int64())) if stats else rows
    own = list(WINDOW_COLUMNS)
    if look_back:
        own.append(("trigger_time_ns", pa.int64()))
    stat_aggregates: list[tuple[str, Aggregate]] = []
    stat_names: tuple[str, ...] = ()
    if stats:
        stat_names = tuple(name for name in STATS if affected or name != "vectors_affected")
        stat_aggregates = [
            ("delta_count", Aggregate("count")),
            ("total_bytes", Aggregate("sum", BYTES)),
            ("avg_delta_size", Aggregate("mean", BYTES)),
        ]
        if affected:
            stat_aggregates.insert(1, ("vectors_affected", Aggregate("count_distinct", affected)))
    aggregated = bool(aggregates)
    every = (*aggregates, *stat_aggregates) if aggregated else ()
    carried = tuple(dict.fromkeys((*keys, *group_by)))
    taken = {name for name, _ in own} | set(stat_names)
    if aggregated:
        for name, _ in aggregates:
            if name in taken or name in carried:
                raise ConfigError("aggregates", name, "is the name of another output column")
        for name in carried:
            if name in taken:
                raise ConfigError("keys", name, "is the name of a window column")
    fields = [rows.field(name) for name in carried] if aggregated else []
    if not aggregated:
        taken |= {"late"}
        fields = [field for field in rows if field.name not in taken]
    fields += [pa.field(name, kind) for name, kind in own]
    if aggregated:
        fields += [pa.field(name, aggregate.result(widened)) for name, aggregate in aggregates]
    else:
        fields.append(pa.field("late", pa.bool_()))
    kinds = {name: aggregate.result(widened) for name, aggregate in stat_aggregates}
    fields += [pa.field(name, kinds.get(name, pa.int64())) for name in stat_names]
    buffered = (
        not aggregated
        or look_back
        or deduplicate_by is not None
        or not all(aggregate.incremental(widened) for _, aggregate in every)
    )
    source = every if aggregated else tuple(stat_aggregates)
    return Plan(
        rows,
        widened,
        keys,
        group_by if aggregated else (),
        carried if aggregated else keys,
        every,
        tuple(stat_aggregates),
        stat_names,
        aggregated,
        buffered,
        sized or stats,
        plan_slots(widened, carried if aggregated else (), source, False),
        pa.schema(fields),
        deduplicate_by,
        numbered,
        names,
    )


def row_bytes(rows: pa.RecordBatch, column: str | None) -> Int64s:
    """The size of every row: a column that says so, or the bytes of its values."""
    if column is not None:
        given = pc.fill_null(rows.column(column).cast(pa.int64()), 0)
        stated: Int64s = np.maximum(given.to_numpy(zero_copy_only=False), 0)
        return stated
    sizes = np.zeros(rows.num_rows, np.int64)
    for values in rows.columns:
        kind = values.type
        if pa.types.is_dictionary(kind):
            kind = kind.index_type
        try:
            width = kind.bit_width
        except ValueError:
            width = -1
        if width >= 0:
            sizes += max(1, width // 8)
        elif _has_length(kind):
            lengths = pc.fill_null(pc.binary_length(values), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
        elif len(values):
            sizes += values.nbytes // len(values)  # lists, structs: an equal share
    return sizes


def _has_length(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )
