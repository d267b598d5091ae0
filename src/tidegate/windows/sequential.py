"""Which pane a row joins where windows follow one another: everything, count, state, adaptive.

Starts at row `first` and returns the row it got to: short of the end when the arrays it writes into
are full. The caller stores what was decided and calls again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.windows.firing import admit, fire, try_fire
from tidegate.windows.kernel import add_row, enter, lookup, open_entry, rate_changed
from tidegate.windows.numbers import (
    ASIDE,
    C_CHANGE,
    C_EARLIEST,
    C_KIND,
    C_LATEST,
    C_MAX,
    C_MIN,
    C_OVERHEAD,
    C_PERIOD,
    C_POLICY,
    C_TARGET,
    C_WALL,
    DISCARDED,
    E_COUNT,
    E_DEAD,
    E_END,
    E_LAST,
    E_LATE,
    E_PART,
    E_START,
    FIRED_COUNT,
    FIRED_DURATION,
    FIRED_STATE,
    KIND_ADAPTIVE,
    KIND_COUNT,
    KIND_STATE,
    N_ENTRIES,
    N_STEPS,
    OUT_OF_RANGE,
    OUTSIDE,
    PLACED,
    PLACED_LATE,
    POLICY_DISCARD,
    POLICY_NEXT,
    STACK,
    Int,
    Matrix,
)
from tidegate.windows.rate import adapted, fitting_duration, recent_rate


@kernel
def assign_sequential(
    first: Int,
    lanes: Int32s,
    times: Int64s,
    sizes: Int64s,
    predicates: Matrix,
    parts: Int64s,
    opens: NDArray[np.bool_],
    emits: NDArray[np.bool_],
    program: Int64s,
    cfg: Int64s,
    watermark: Int64s,
    serial: Int64s,
    rates: Matrix,
    recent: Matrix,
    duration: NDArray[np.float64],
    entries: Matrix,
    counts: Int64s,
    head: Int64s,
    table: Int64s,
    steps: Matrix,
    fires: Int64s,
    status: NDArray[np.int8],
    behind: Int64s,
) -> Int:
    """Windows that follow one another: everything, count, state, adaptive."""
    n = len(times)
    stack = np.zeros(STACK, np.int64)
    kind = cfg[C_KIND]
    sized = len(sizes) > 0
    parted = len(parts) > 0
    nothing = program[:0]
    for i in range(first, n):
        if counts[N_ENTRIES] + 2 > len(entries) or counts[N_STEPS] + 3 > len(steps):
            return i
        lane = lanes[i]
        t = times[i]
        if t < cfg[C_EARLIEST] or t > cfg[C_LATEST]:
            status[i] = OUT_OF_RANGE
            continue
        part = parts[i] if parted else np.int64(0)
        if kind == KIND_ADAPTIVE and t <= watermark[lane]:
            if cfg[C_POLICY] != POLICY_NEXT:
                status[i] = DISCARDED if cfg[C_POLICY] == POLICY_DISCARD else ASIDE
                behind[i] = watermark[lane] - t
                continue
            status[i] = PLACED_LATE
        e = lookup(table, entries, E_PART, lane, part)
        if e >= 0 and entries[e, E_DEAD] != 0:
            e = -1
        if kind == KIND_STATE and e < 0 and not opens[i]:
            status[i] = OUTSIDE
            continue
        bytes_ = sizes[i] if sized else np.int64(0)
        verdict = admit(entries, counts, fires, cfg, bytes_, 1)
        if verdict != PLACED:
            status[i] = verdict
            continue
        if e >= 0 and entries[e, E_DEAD] != 0:  # flushed to make room
            e = -1
        if kind == KIND_ADAPTIVE and e >= 0 and t >= entries[e, E_END]:
            fire(entries, counts, fires, cfg, e, FIRED_DURATION)
            e = -1
        changed = False
        if cfg[C_PERIOD] != 0:
            changed = rate_changed(rates[lane], t, cfg[C_PERIOD], cfg[C_CHANGE])
        opened = e < 0
        if opened:
            e = open_entry(entries, counts, serial, head, lane, t, t, t, cfg[C_WALL], part)
            enter(table, entries, E_PART, e)
        if status[i] == PLACED_LATE:
            entries[e, E_LATE] += 1
        add_row(entries, counts, steps, e, i, t, bytes_, cfg[C_OVERHEAD])
        entries[e, E_START] = min(entries[e, E_START], t)
        if kind == KIND_ADAPTIVE:
            rate = recent_rate(recent[lane], t, opened, cfg[C_TARGET])
            wanted = fitting_duration(rate, cfg[C_TARGET], cfg[C_MIN], cfg[C_MAX])
            if duration[lane] <= 0.0:
                duration[lane] = wanted
            else:
                duration[lane] = adapted(duration[lane], wanted)
            entries[e, E_END] = entries[e, E_START] + np.int64(duration[lane])
            if entries[e, E_END] <= t:
                # The rate has jumped: the window is already longer than it should be.
                entries[e, E_END] = t + 1
                fire(entries, counts, fires, cfg, e, FIRED_DURATION)
                continue
        else:
            entries[e, E_END] = entries[e, E_LAST]
        if kind == KIND_COUNT and entries[e, E_COUNT] >= cfg[C_TARGET]:
            fire(entries, counts, fires, cfg, e, FIRED_COUNT)
            continue
        if kind == KIND_STATE and emits[i] and not opened:
            fire(entries, counts, fires, cfg, e, FIRED_STATE)
            continue
        if len(program) > 0:
            try_fire(
                stack,
                entries,
                counts,
                fires,
                cfg,
                program,
                nothing,
                predicates,
                e,
                i,
                False,
                changed,
            )
    return n
