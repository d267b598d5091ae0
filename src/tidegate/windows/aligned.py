"""Which panes a row joins where windows start at multiples of a step: tumbling, sliding, fixed.

Starts at row `first` and returns the row it got to: short of the end when the arrays it writes into
are full. The caller stores what was decided and calls again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.firing import admit, settle_lane, try_fire
from tidegate.windows.kernel import (
    add_row,
    add_step,
    enter,
    floor_to,
    lookup,
    next_pane,
    open_entry,
    rate_changed,
)
from tidegate.windows.numbers import (
    ASIDE,
    C_BUFFERED,
    C_CHANGE,
    C_EARLIEST,
    C_IN_ORDER,
    C_LATENESS,
    C_LATEST,
    C_LIMIT,
    C_OFFSET,
    C_OVERHEAD,
    C_PERIOD,
    C_POLICY,
    C_SIZE,
    C_SORTED,
    C_SPAN,
    C_STEP,
    C_STRIDE,
    C_WALL,
    DISCARDED,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_FIRED,
    E_FIRST,
    E_LAST,
    E_LATE,
    E_NEXT,
    E_ONTIME,
    E_START,
    N_ENTRIES,
    N_STEPS,
    N_USED,
    OUT_OF_RANGE,
    PLACED,
    PLACED_LATE,
    POLICY_DISCARD,
    POLICY_NEXT,
    STACK,
    Int,
    Matrix,
)


@kernel
def ascending(times: Int64s, first: Int) -> bool:
    """Are the times from `first` on in order? Without a branch, so that it runs at memory speed: a
    sign bit remembers any step back, and any time so large that a difference could overflow."""
    rest = times[first:]  # counted from 0: no index can be negative, so the loop is vectorised
    signs = rest[-1] ^ (rest[-1] << 1)
    for i in range(len(rest) - 1):
        signs |= (rest[i + 1] - rest[i]) | (rest[i] ^ (rest[i] << 1))
    return bool(signs >= 0)


@kernel
def first_at(times: Int64s, low: Int, high: Int, end: Int) -> Int:
    """The first row of [low, high) at or after `end`, in times that ascend."""
    while low < high:
        middle = (low + high) // 2
        if times[middle] < end:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def closes(start: Int, cfg: Int64s) -> Int:
    """The watermark at which the last window over this (sub-)window is complete."""
    if cfg[C_SPAN] != 0:
        return floor_to(start, cfg[C_STRIDE], cfg[C_OFFSET]) + cfg[C_SPAN] - 1
    return start + cfg[C_SIZE] - 1


@kernel
def assign_aligned(
    first: Int,
    lanes: Int32s,
    times: Int64s,
    sizes: Int64s,
    predicates: Matrix,
    program: Int64s,
    late_program: Int64s,
    cfg: Int64s,
    watermark: Int64s,
    serial: Int64s,
    rates: Matrix,
    entries: Matrix,
    counts: Int64s,
    head: Int64s,
    due_at: Int64s,
    table: Int64s,
    steps: Matrix,
    fires: Int64s,
    status: NDArray[np.int8],
    behind: Int64s,
) -> Int:
    """Tumbling, sliding and fixed windows: the starts are multiples of a step."""
    n = len(times)
    stack = np.zeros(STACK, np.int64)
    size, step, offset = cfg[C_SIZE], cfg[C_STEP], cfg[C_OFFSET]
    copies = (size + step - 1) // step
    alone = len(head) == 1
    sized = len(sizes) > 0
    in_order = cfg[C_IN_ORDER] != 0
    simple = (
        copies == 1
        and len(program) == 0
        and (cfg[C_LIMIT] == 0 or cfg[C_BUFFERED] == 0)
        and cfg[C_PERIOD] == 0
    )
    sorted_rows = alone and simple and (cfg[C_SORTED] != 0 or ascending(times, first))
    i = first
    while i < n:
        if counts[N_ENTRIES] + copies + 1 > len(entries) or counts[N_STEPS] + 2 * copies + 2 > len(
            steps
        ):
            return i
        lane = lanes[i]
        t = times[i]
        if t < cfg[C_EARLIEST] or t > cfg[C_LATEST]:
            status[i] = OUT_OF_RANGE
            i += 1
            continue
        if in_order and t - 1 > watermark[lane]:
            watermark[lane] = t - 1
            if t - 1 >= due_at[lane]:
                settle_lane(entries, counts, fires, cfg, head, due_at, lane, t - 1)
        wm = watermark[lane]
        newest = floor_to(t, step, offset)
        if simple and closes(newest, cfg) > wm:
            # The common case: a stretch of rows that all fall into one open window.
            e = lookup(table, entries, E_START, lane, newest)
            if e < 0:
                e = open_entry(
                    entries, counts, serial, head, lane, newest, newest + size, t, cfg[C_WALL], 0
                )
                enter(table, entries, E_START, e)
            j = i
            total = np.int64(0)
            end = newest + size
            if sorted_rows:  # by bisection: most times need not be looked at again
                j = first_at(times, i, n, end)
            elif alone:  # one lane: its number need not be looked at
                while j < n and times[j] >= newest and times[j] < end:
                    j += 1
            else:
                while j < n and times[j] >= newest and times[j] < end and lanes[j] == lane:
                    j += 1
            if cfg[C_BUFFERED] != 0:  # first and last hold the watermark back while rows wait
                low, high = entries[e, E_FIRST], entries[e, E_LAST]
                for q in range(i, j):
                    low = min(low, times[q])
                    high = max(high, times[q])
                entries[e, E_FIRST] = low
                entries[e, E_LAST] = high
            if sized:
                for q in range(i, j):
                    total += sizes[q]
            entries[e, E_COUNT] += j - i
            entries[e, E_BYTES] += total
            if cfg[C_BUFFERED] != 0:
                counts[N_USED] += total + (j - i) * cfg[C_OVERHEAD]
            add_step(steps, counts, 0, e, i, j)
            i = j
            continue
        bytes_ = sizes[i] if sized else np.int64(0)
        verdict = admit(entries, counts, fires, cfg, bytes_, copies)
        if verdict != PLACED:
            status[i] = verdict
            i += 1
            continue
        changed = False
        if cfg[C_PERIOD] != 0:
            changed = rate_changed(rates[lane], t, cfg[C_PERIOD], cfg[C_CHANGE])
        placed = False
        flagged = False
        s = newest - (copies - 1) * step
        if s + size <= t:
            s += step
        while True:
            if s > newest:
                # Every window of this row is closed. Should it go into the next one to close?
                if placed or cfg[C_POLICY] != POLICY_NEXT:
                    break
                s = floor_to(wm + 1 - size, step, offset) + step
                flagged = True
            e = lookup(table, entries, E_START, lane, s)
            late = False
            if e < 0 or entries[e, E_DEAD] != 0:
                late = closes(s, cfg) <= wm
                if late and (cfg[C_LATENESS] == 0 or wm - cfg[C_LATENESS] > s + size - 1):
                    s += step
                    continue
                e = open_entry(entries, counts, serial, head, lane, s, s + size, t, cfg[C_WALL], 0)
                entries[e, E_ONTIME] = 1 if late else 0
                enter(table, entries, E_START, e)
                due_at[lane] = min(
                    due_at[lane], s + size + (cfg[C_LATENESS] if late else np.int64(-1))
                )
            else:
                late = entries[e, E_ONTIME] != 0
                if entries[e, E_FIRED] != 0:
                    p = next_pane(entries, counts, steps, cfg, e, t)
                    entries[p, E_NEXT] = head[lane]
                    head[lane] = p
                    enter(table, entries, E_START, p)
                    e = p
            placed = True
            if late or flagged:
                entries[e, E_LATE] += 1
                status[i] = PLACED_LATE
            add_row(entries, counts, steps, e, i, t, bytes_, cfg[C_OVERHEAD])
            try_fire(
                stack,
                entries,
                counts,
                fires,
                cfg,
                program,
                late_program,
                predicates,
                e,
                i,
                late,
                changed,
            )
            if flagged:
                break
            s += step
        if not placed:
            status[i] = DISCARDED if cfg[C_POLICY] == POLICY_DISCARD else ASIDE
            behind[i] = wm - t
        i += 1
    return i
