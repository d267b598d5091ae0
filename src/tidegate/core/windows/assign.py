"""Which pane each row joins: one kernel per family of windows. All lanes in one call.

Each kernel starts at row `first` and returns the row it got to: short of the end when the arrays it
writes into are full. The caller stores what was decided and calls again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.jit import kernel
from tidegate.core.model import Int32s, Int64s
from tidegate.core.windows.kernel import (
    ASIDE,
    C_ACCUMULATE,
    C_BUFFERED,
    C_CHANGE,
    C_EARLIEST,
    C_IN_ORDER,
    C_KIND,
    C_LATENESS,
    C_LATEST,
    C_LIMIT,
    C_MAX,
    C_MIN,
    C_OFFSET,
    C_OVERHEAD,
    C_PERIOD,
    C_POLICY,
    C_SIZE,
    C_SPAN,
    C_STEP,
    C_STRIDE,
    C_TARGET,
    C_WALL,
    DISCARDED,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_END,
    E_FIRED,
    E_FIRST,
    E_LAST,
    E_LATE,
    E_NEXT,
    E_ONTIME,
    E_PANE,
    E_PART,
    E_REVISION,
    E_START,
    E_WALL,
    FIRED_COUNT,
    FIRED_DURATION,
    FIRED_LATE,
    FIRED_STATE,
    KIND_ADAPTIVE,
    KIND_COUNT,
    KIND_STATE,
    N_ENTRIES,
    N_FIRES,
    N_STEPS,
    N_USED,
    OUT_OF_RANGE,
    OUTSIDE,
    PLACED,
    PLACED_LATE,
    POLICY_DISCARD,
    POLICY_NEXT,
    STACK,
    STEP_MERGE,
    add_row,
    add_step,
    admit,
    enter,
    evaluate,
    fire,
    floor_to,
    lookup,
    next_pane,
    open_entry,
    rate_changed,
    settle_lane,
)
from tidegate.core.windows.rate import adapted, fitting_duration, recent_rate

Matrix = NDArray[Any]
Int = Any


@kernel
def _closes(start: Int, cfg: Int64s) -> Int:
    """The watermark at which the last window over this (sub-)window is complete."""
    if cfg[C_SPAN] != 0:
        return floor_to(start, cfg[C_STRIDE], cfg[C_OFFSET]) + cfg[C_SPAN] - 1
    return start + cfg[C_SIZE] - 1


@kernel
def _try_fire(
    stack: Int64s,
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    program: Int64s,
    late_program: Int64s,
    predicates: Matrix,
    e: Int,
    i: Int,
    late: bool,
    changed: bool,
) -> None:
    """Evaluate the triggers of the pane that row i has just joined."""
    if late and entries[e, E_ONTIME] != 0:
        if len(late_program) == 0:
            fire(entries, counts, fires, cfg, e, FIRED_LATE)
            return
        chosen = late_program
    else:
        chosen = program
    if len(chosen) == 0:
        return
    mask = evaluate(
        stack,
        chosen,
        entries[e, E_COUNT],
        entries[e, E_BYTES],
        cfg[C_WALL] - entries[e, E_WALL],
        changed,
        counts[N_USED],
        predicates,
        i,
    )
    if mask != 0:
        fire(entries, counts, fires, cfg, e, mask)


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
        if simple and _closes(newest, cfg) > wm:
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
            if alone:  # one lane: its number need not be looked at
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
                late = _closes(s, cfg) <= wm
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
            _try_fire(
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


@kernel
def assign_sessions(
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
    steps: Matrix,
    fires: Int64s,
    status: NDArray[np.int8],
    behind: Int64s,
) -> Int:
    """Sessions. Those of a lane never touch; their chain is in descending order of start."""
    n = len(times)
    stack = np.zeros(STACK, np.int64)
    gap = cfg[C_SIZE]
    sized = len(sizes) > 0
    in_order = cfg[C_IN_ORDER] != 0
    simple = len(program) == 0 and (cfg[C_LIMIT] == 0 or cfg[C_BUFFERED] == 0)
    simple = simple and cfg[C_PERIOD] == 0
    i = first
    while i < n:
        if counts[N_ENTRIES] + 2 > len(entries) or counts[N_STEPS] + 3 > len(steps):
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
        # The first session that does not begin after this row could reach it.
        before = -1
        e = head[lane]
        while e >= 0 and (entries[e, E_DEAD] != 0 or entries[e, E_START] > t + gap):
            after = entries[e, E_NEXT]
            if entries[e, E_DEAD] != 0:
                if before < 0:
                    head[lane] = after
                else:
                    entries[before, E_NEXT] = after
            else:
                before = e
            e = after
        joins = e >= 0 and entries[e, E_END] >= t
        bridges = False
        if joins:
            f = entries[e, E_NEXT]
            while f >= 0 and entries[f, E_DEAD] != 0:
                f = entries[f, E_NEXT]
            bridges = f >= 0 and entries[f, E_END] >= min(t, entries[e, E_START])
            # What was emitted before two sessions become one is settled first, so that a call has
            # either emissions or a merge before them.
            if bridges and counts[N_FIRES] > 0:
                return i
        if not joins and t + gap <= wm:
            expired = cfg[C_LATENESS] == 0 or wm - cfg[C_LATENESS] > t + gap
            if expired and cfg[C_POLICY] != POLICY_NEXT:
                status[i] = DISCARDED if cfg[C_POLICY] == POLICY_DISCARD else ASIDE
                behind[i] = wm - t
                i += 1
                continue
        bytes_ = sizes[i] if sized else np.int64(0)
        verdict = admit(entries, counts, fires, cfg, bytes_, 1)
        if verdict != PLACED:
            status[i] = verdict
            i += 1
            continue
        changed = False
        if cfg[C_PERIOD] != 0:
            changed = rate_changed(rates[lane], t, cfg[C_PERIOD], cfg[C_CHANGE])
        late = False
        if not joins:
            start, end = t, t + gap
            late = end <= wm
            flagged = late and cfg[C_LATENESS] == 0
            if flagged:  # NextWindow: a session of its own, that closes as soon as time moves on
                end = wm + 1
            f = open_entry(entries, counts, serial, head, lane, start, end, t, cfg[C_WALL], 0)
            if before >= 0:
                head[lane] = entries[f, E_NEXT]
                entries[f, E_NEXT] = entries[before, E_NEXT]
                entries[before, E_NEXT] = f
            e = f
            if flagged:
                status[i] = PLACED_LATE
                entries[e, E_LATE] += 1
                late = False
            else:
                entries[e, E_ONTIME] = 1 if late else 0
        else:
            late = entries[e, E_ONTIME] != 0
            if entries[e, E_FIRED] != 0:
                p = next_pane(entries, counts, steps, cfg, e, t)
                if before >= 0:
                    entries[before, E_NEXT] = p
                else:
                    head[lane] = p
                e = p
            if simple and not late:
                j = i
                end = entries[e, E_END]
                start = entries[e, E_START]
                total = np.int64(0)
                high = entries[e, E_LAST]
                while j < n and lanes[j] == lane and times[j] >= start and times[j] <= end:
                    high = max(high, times[j])
                    end = max(end, times[j] + gap)
                    if sized:
                        total += sizes[j]
                    j += 1
                if j > i:
                    below = entries[e, E_NEXT]
                    above_free = before < 0 or entries[before, E_START] > end
                    if above_free and (below < 0 or entries[below, E_END] < start):
                        entries[e, E_END] = end
                        entries[e, E_COUNT] += j - i
                        entries[e, E_BYTES] += total
                        entries[e, E_LAST] = high
                        if cfg[C_BUFFERED] != 0:
                            counts[N_USED] += total + (j - i) * cfg[C_OVERHEAD]
                        add_step(steps, counts, 0, e, i, j)
                        i = j
                        continue
            entries[e, E_START] = min(entries[e, E_START], t)
            entries[e, E_END] = max(entries[e, E_END], t + gap)
        # The row may close the gap to the session below.
        f = entries[e, E_NEXT]
        while f >= 0 and (entries[f, E_DEAD] != 0 or entries[f, E_END] >= entries[e, E_START]):
            if entries[f, E_DEAD] == 0:
                _merge(entries, counts, steps, cfg, e, f)
                late = late or entries[e, E_ONTIME] != 0
            f = entries[f, E_NEXT]
            entries[e, E_NEXT] = f
        if entries[e, E_END] > wm:
            entries[e, E_ONTIME] = 0
            late = False
        if late:
            status[i] = PLACED_LATE
            entries[e, E_LATE] += 1
        due_at[lane] = min(due_at[lane], entries[e, E_END])
        add_row(entries, counts, steps, e, i, t, bytes_, cfg[C_OVERHEAD])
        _try_fire(
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
        i += 1
        if bridges:
            return i
    return i


@kernel
def _merge(entries: Matrix, counts: Int64s, steps: Matrix, cfg: Int64s, e: Int, f: Int) -> None:
    """Session f becomes part of e. What was emitted of f counts only where panes accumulate."""
    entries[e, E_START] = min(entries[e, E_START], entries[f, E_START])
    entries[e, E_END] = max(entries[e, E_END], entries[f, E_END])
    entries[e, E_FIRST] = min(entries[e, E_FIRST], entries[f, E_FIRST])
    entries[e, E_LAST] = max(entries[e, E_LAST], entries[f, E_LAST])
    pane, revision = entries[f, E_PANE], entries[f, E_REVISION]
    if entries[f, E_FIRED] != 0:
        pane += 1
        if entries[f, E_ONTIME] != 0:
            revision += 1
    entries[e, E_PANE] = max(entries[e, E_PANE], pane)
    entries[e, E_REVISION] = max(entries[e, E_REVISION], revision)
    entries[e, E_ONTIME] = max(entries[e, E_ONTIME], entries[f, E_ONTIME])
    if entries[f, E_FIRED] == 0 or cfg[C_ACCUMULATE] != 0:
        if entries[f, E_FIRED] == 0:
            entries[e, E_COUNT] += entries[f, E_COUNT]
            entries[e, E_LATE] += entries[f, E_LATE]
        entries[e, E_BYTES] += entries[f, E_BYTES]
        entries[e, E_WALL] = min(entries[e, E_WALL], entries[f, E_WALL])
        add_step(steps, counts, STEP_MERGE, e, f, 0)
    entries[f, E_DEAD] = 1


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
            _try_fire(
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
