"""Emitting panes: by a trigger, by the watermark, by a deadline, for want of memory, at the end."""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernel import evaluate
from tidegate.windows.numbers import (
    C_ACCUMULATE,
    C_BUDGET,
    C_BUFFERED,
    C_KIND,
    C_LATENESS,
    C_LIMIT,
    C_OVERHEAD,
    C_REJECT,
    C_WALL,
    E_BYTES,
    E_COUNT,
    E_DEAD,
    E_END,
    E_FIRED,
    E_LANE,
    E_LAST,
    E_NEXT,
    E_ONTIME,
    E_START,
    E_WALL,
    FIRED_DURATION,
    FIRED_LATE,
    FIRED_MEMORY,
    FIRED_WATERMARK,
    KIND_ADAPTIVE,
    KIND_EVERYTHING,
    KIND_SESSION,
    N_ENTRIES,
    N_FIRES,
    N_USED,
    PLACED,
    REFUSED,
    STACK,
    TOO_LARGE,
    Int,
    Matrix,
)


@kernel
def fire(entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, e: Int, mask: Int) -> None:
    """Emit the pane. Where the next pane starts empty, its rows are no longer held."""
    entries[e, E_FIRED] = mask
    fires[counts[N_FIRES]] = e
    counts[N_FIRES] += 1
    if cfg[C_BUFFERED] != 0 and cfg[C_ACCUMULATE] == 0:
        counts[N_USED] -= entries[e, E_BYTES] + entries[e, E_COUNT] * cfg[C_OVERHEAD]
    if cfg[C_KIND] >= KIND_EVERYTHING:
        entries[e, E_DEAD] = 1
        if cfg[C_KIND] == KIND_ADAPTIVE:
            if mask != FIRED_DURATION:
                entries[e, E_END] = entries[e, E_LAST] + 1
        else:
            entries[e, E_END] = entries[e, E_LAST]


@kernel
def complete_at(entries: Matrix, e: Int, kind: Int) -> Int:
    """The watermark at which no further row can belong to the window: end - 1, as spans are
    half-open; for sessions the end itself, as a row exactly one gap later still belongs."""
    if kind == KIND_SESSION:
        return entries[e, E_END]
    return entries[e, E_END] - 1


@kernel
def settle(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, e: Int, watermark: Int
) -> None:
    """The watermark has passed the end of this window: emit what it still holds, then keep it for
    late rows, or close it for good."""
    done = complete_at(entries, e, cfg[C_KIND])
    if entries[e, E_ONTIME] == 0:
        entries[e, E_ONTIME] = 1
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            mask = FIRED_DURATION if cfg[C_KIND] == KIND_ADAPTIVE else FIRED_WATERMARK
            fire(entries, counts, fires, cfg, e, mask)
    if cfg[C_LATENESS] == 0 or watermark - cfg[C_LATENESS] > done:
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            fire(entries, counts, fires, cfg, e, FIRED_LATE)
        entries[e, E_DEAD] = 1


@kernel
def settle_all(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    order: Int64s,
    watermark: Int64s,
) -> None:
    """`settle` for entries in the order given."""
    for j in range(len(order)):
        e = order[j]
        settle(entries, counts, fires, cfg, e, watermark[entries[e, E_LANE]])


@kernel
def settle_lane(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    head: Int64s,
    due_at: Int64s,
    lane: Int,
    watermark: Int,
) -> None:
    """Close what is complete in one lane, by end then start; drop what is dead from its chain."""
    order = np.empty(16, np.int64)
    n = 0
    before: Int = -1
    e = head[lane]
    soonest = np.int64(2**63 - 1)
    while e >= 0:
        after = entries[e, E_NEXT]
        gone = entries[e, E_DEAD] != 0
        if not gone:
            done = complete_at(entries, e, cfg[C_KIND])
            expires = done
            if entries[e, E_ONTIME] != 0:
                expires = done + cfg[C_LATENESS] + 1
            if expires <= watermark:
                if n == len(order):
                    larger = np.empty(2 * n, np.int64)
                    larger[:n] = order
                    order = larger
                at = n
                while at > 0 and (
                    entries[order[at - 1], E_END] > entries[e, E_END]
                    or (
                        entries[order[at - 1], E_END] == entries[e, E_END]
                        and entries[order[at - 1], E_START] > entries[e, E_START]
                    )
                ):
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = e
                n += 1
                gone = cfg[C_LATENESS] == 0 or watermark - cfg[C_LATENESS] > done
                if not gone:
                    soonest = min(soonest, done + cfg[C_LATENESS] + 1)
            else:
                soonest = min(soonest, expires)
        if gone:
            if before < 0:
                head[lane] = after
            else:
                entries[before, E_NEXT] = after
        else:
            before = e
        e = after
    due_at[lane] = soonest
    for j in range(n):
        settle(entries, counts, fires, cfg, order[j], watermark)


@kernel
def fire_due(
    entries: Matrix,
    counts: Int64s,
    fires: Int64s,
    cfg: Int64s,
    order: Int64s,
    program: Int64s,
    late_program: Int64s,
    longest: Int,
) -> None:
    """Evaluate the triggers of these entries at wall time `cfg[C_WALL]`, without a row.

    `longest`: wall time after which an adaptive window is emitted in any case (0: never)."""
    nothing = np.zeros((1, 1), np.bool_)
    stack = np.zeros(STACK, np.int64)
    for j in range(len(order)):
        e = order[j]
        if entries[e, E_FIRED] != 0 or entries[e, E_COUNT] == 0 or entries[e, E_DEAD] != 0:
            continue
        age = cfg[C_WALL] - entries[e, E_WALL]
        chosen = late_program if entries[e, E_ONTIME] != 0 else program
        mask = np.int64(0)
        if len(chosen) > 0:
            mask = evaluate(
                stack,
                chosen,
                entries[e, E_COUNT],
                entries[e, E_BYTES],
                age,
                False,
                counts[N_USED],
                nothing,
                -1,
            )
        if mask == 0 and longest > 0 and age >= longest:
            mask = FIRED_DURATION
            entries[e, E_END] = entries[e, E_LAST] + 1
        if mask != 0:
            fire(entries, counts, fires, cfg, e, mask)


@kernel
def admit(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, size: Int, copies: Int
) -> Int:
    """May a row of this size be held? Flushes every open pane before it refuses."""
    if cfg[C_LIMIT] == 0 or cfg[C_BUFFERED] == 0:
        return PLACED
    wanted = (size + cfg[C_OVERHEAD]) * copies
    if wanted > cfg[C_BUDGET]:
        return TOO_LARGE
    if counts[N_USED] + wanted > cfg[C_LIMIT]:
        if cfg[C_REJECT] != 0:
            return REFUSED
        for e in range(counts[N_ENTRIES]):
            if entries[e, E_DEAD] == 0 and entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
                fire(entries, counts, fires, cfg, e, FIRED_MEMORY)
        if counts[N_USED] > 0 and counts[N_USED] + wanted > cfg[C_LIMIT]:
            return REFUSED
    return PLACED


@kernel
def fire_all(
    entries: Matrix, counts: Int64s, fires: Int64s, cfg: Int64s, order: Int64s, mask: Int
) -> None:
    """The end: emit these entries as they are, and close them for good."""
    for j in range(len(order)):
        e = order[j]
        if entries[e, E_FIRED] == 0 and entries[e, E_COUNT] > 0:
            fire(entries, counts, fires, cfg, e, mask)
        entries[e, E_DEAD] = 1


@kernel
def try_fire(
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
