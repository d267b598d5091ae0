"""Incremental aggregates, moved row by row: every row names its slot.

The counterpart of `aggregate_runs.py` for rows whose panes or groups are mixed. A row with slot -1
joins none.
"""

from __future__ import annotations

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.kernels.aggregate_runs import SlotRows, Sums, Values
from tidegate.windows.kernels.any_order import u
from tidegate.windows.kernels.layout import Int


@kernel
def scatter_rows(slot: Int32s, times: Int64s, counted: bool, number: Int, slots: SlotRows) -> None:
    """Count rows per slot and find its first and last one.

    Args:
        slot: of each row.
        times: of the rows.
        counted: only counts matter; times are not compared.
        number: the number of the first row.
        slots: what to update.
    """
    count, first_time, last_time = slots.n, slots.first_time, slots.last_time
    first_row, last_row = slots.first_row, slots.last_row
    for i in range(len(slot)):
        if slot[i] < 0:
            continue
        s = u(slot[i])
        if count[s] == 0:
            first_time[s] = times[i]
            last_time[s] = times[i]
            first_row[s] = number + i
            last_row[s] = number + i
        count[s] += 1
        if counted:
            continue
        if times[i] < first_time[s]:
            first_time[s] = times[i]
            first_row[s] = number + i
        if times[i] >= last_time[s]:
            last_time[s] = times[i]
            last_row[s] = number + i


@kernel
def scatter_floats(slot: Int32s, column: Values, extremes: bool, sums: Sums) -> None:
    """Count, sum and, with `extremes`, min and max of a float column.

    Args:
        slot: of each row, or -1.
        column: the values; nulls are skipped.
        extremes: whether min and max are wanted; without it they are not touched.
        sums: what to update.
    """
    values, valid = column.values, column.valid
    count, total, low, high = sums.n, sums.total, sums.low, sums.high
    nulls = len(valid) > 0
    for i in range(len(slot)):
        if slot[i] < 0 or (nulls and not valid[i]):
            continue
        s, v = u(slot[i]), values[i]
        count[s] += 1
        total[s] += v
        if extremes:
            low[s] = v if v < low[s] else low[s]  # never true for NaN
            high[s] = v if v > high[s] else high[s]


@kernel
def scatter_ints(slot: Int32s, column: Values, extremes: bool, sums: Sums) -> None:
    """The same for whole numbers, exact; a sum beyond 64 bits is marked, never wrapped.

    Args:
        slot: of each row, or -1.
        column: the values; nulls are skipped.
        extremes: whether min and max are wanted; without it they are not touched.
        sums: what to update; `overflow` marks the slots whose total is no longer valid.
    """
    values, valid = column.values, column.valid
    count, total, low, high = sums.n, sums.total, sums.low, sums.high
    overflow = sums.overflow
    nulls = len(valid) > 0
    for i in range(len(slot)):
        if slot[i] < 0 or (nulls and not valid[i]):
            continue
        s, v = u(slot[i]), values[i]
        next_ = total[s] + v
        # Two's complement: the sum overflowed if its sign differs from that of both terms.
        if (total[s] ^ next_) & (v ^ next_) < 0:
            overflow[s] = True
        total[s] = next_
        count[s] += 1
        if extremes:
            low[s] = min(low[s], v)
            high[s] = max(high[s], v)
