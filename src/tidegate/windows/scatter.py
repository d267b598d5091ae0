"""Rows in any order into windows that do not overlap: an entry and a slot for every row.

Steps (`kernel.py`) say "rows 3 to 90 join entry 7", which is all there is to say where rows come
sorted by lane and time. Where lanes or groups are mixed that would be a step per row. Then each row
is given the number of its slot instead, and accumulators are moved row by row: the same folds in
the same order, so the same floats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.aligned import closes
from tidegate.windows.kernel import enter, floor_to, lookup, open_entry
from tidegate.windows.numbers import (
    ASIDE,
    C_EARLIEST,
    C_LATEST,
    C_OFFSET,
    C_POLICY,
    C_SIZE,
    C_WALL,
    DISCARDED,
    E_COUNT,
    E_END,
    E_START,
    N_ENTRIES,
    OUT_OF_RANGE,
    POLICY_DISCARD,
    STEP_ROWS,
    Int,
    Matrix,
)

u = np.uint64
"""An index that is never negative need not be looked at for that: a third of the time."""

DENSE = 1 << 22
"""Pairs of entry and group up to which their slots are found in an array; beyond, by hashing."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@kernel
def place_rows(
    first: Int,
    lanes: Int32s,
    times: Int64s,
    cfg: Int64s,
    watermark: Int64s,
    serial: Int64s,
    entries: Matrix,
    counts: Int64s,
    head: Int64s,
    table: Int64s,
    joined: Int32s,
    status: NDArray[np.int8],
    behind: Int64s,
) -> Int:
    """The entry every row from `first` on joins, or -1; ends early where entries have no room.

    Only the watermark closes these windows, so an open one takes whatever falls into it. Most rows
    fall into the window that the row before them in their lane fell into.
    """
    size, offset = cfg[C_SIZE], cfg[C_OFFSET]
    near = np.full(len(head), -1, np.int64)
    low, high = np.zeros(len(head), np.int64), np.zeros(len(head), np.int64)
    for i in range(first, len(times)):
        lane, t = lanes[i], times[i]
        at = u(lane)
        if t < low[at] or t >= high[at]:
            if t < cfg[C_EARLIEST] or t > cfg[C_LATEST]:
                status[i] = OUT_OF_RANGE
                joined[i - first] = -1
                continue
            start = floor_to(t, size, offset)
            if closes(start, cfg) <= watermark[lane]:
                status[i] = DISCARDED if cfg[C_POLICY] == POLICY_DISCARD else ASIDE
                behind[i] = watermark[lane] - t
                joined[i - first] = -1
                continue
            e = lookup(table, entries, E_START, lane, start)
            if e < 0:
                if counts[N_ENTRIES] == len(entries):
                    return i
                e = open_entry(
                    entries, counts, serial, head, lane, start, start + size, t, cfg[C_WALL], 0
                )
                enter(table, entries, E_START, e)
            near[at], low[at], high[at] = e, entries[e, E_START], entries[e, E_END]
        e = near[at]
        entries[u(e), E_COUNT] += 1
        joined[i - first] = e
    return np.int64(len(times))


@kernel
def split_rows(
    joined: Int32s, codes: Int64s, n_codes: Int, held: Matrix, n_entries: Int
) -> tuple[Matrix, Int32s]:
    """Entries and group codes of rows become slots: all slots as (entry, code), those of the state
    (`held`) first, and the slot of each row."""
    place = np.full(n_entries * n_codes, -1, np.int32)
    for s in range(len(held)):
        place[held[s, 0] * n_codes + held[s, 1]] = s
    size = len(held)
    slot = np.empty(len(joined), np.int32)
    for i in range(len(joined)):
        if joined[i] < 0:
            slot[i] = -1
            continue
        at = u(np.int64(joined[i]) * n_codes + codes[i])
        if place[at] < 0:
            place[at] = size
            size += 1
        slot[i] = place[at]
    pairs = np.empty((size, 2), np.int64)
    for x in range(len(place)):
        if place[x] >= 0:
            pairs[place[x], 0] = x // n_codes
            pairs[place[x], 1] = x % n_codes
    return pairs, slot


@kernel
def as_steps(joined: Int32s, first: Int) -> Matrix:
    """The same as steps: a stretch of rows of one entry each."""
    steps = np.empty((len(joined), 4), np.int64)
    n = 0
    for i in range(len(joined)):
        e = joined[i]
        if e < 0:
            continue
        if n > 0 and steps[n - 1, 1] == e and steps[n - 1, 3] == first + i:
            steps[n - 1, 3] = first + i + 1
            continue
        steps[n, 0] = STEP_ROWS
        steps[n, 1] = e
        steps[n, 2] = first + i
        steps[n, 3] = first + i + 1
        n += 1
    return steps[:n]


@kernel
def scatter_rows(
    slot: Int32s,
    times: Int64s,
    ordered: bool,
    number: Int,
    count: Int64s,
    first_time: Int64s,
    last_time: Int64s,
    first_row: Int64s,
    last_row: Int64s,
) -> None:
    """Rows per slot, and its first and last by (time, arrival). `number` is that of the first row.
    `ordered` skips what nobody asked for."""
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
        if ordered:
            continue
        if times[i] < first_time[s]:
            first_time[s] = times[i]
            first_row[s] = number + i
        if times[i] >= last_time[s]:
            last_time[s] = times[i]
            last_row[s] = number + i


@kernel
def scatter_floats(
    slot: Int32s,
    values: Floats,
    valid: Flags,
    extremes: bool,
    count: Int64s,
    total: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """Count, sum, min and max of a float column. `valid` is empty when there are no nulls."""
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
def scatter_ints(
    slot: Int32s,
    values: Int64s,
    valid: Flags,
    extremes: bool,
    count: Int64s,
    total: Int64s,
    low: Int64s,
    high: Int64s,
    overflow: Flags,
) -> None:
    """The same for whole numbers, exact; a sum beyond 64 bits is marked, never wrapped."""
    nulls = len(valid) > 0
    for i in range(len(slot)):
        if slot[i] < 0 or (nulls and not valid[i]):
            continue
        s, v = u(slot[i]), values[i]
        next_ = total[s] + v
        if (total[s] ^ next_) & (v ^ next_) < 0:
            overflow[s] = True
        total[s] = next_
        count[s] += 1
        if extremes:
            low[s] = min(low[s], v)
            high[s] = max(high[s], v)
