"""Emitting panes: by a trigger, by the watermark, by a deadline, for want of memory, at the end.

Rules that every function here keeps:

- A pane is emitted at most once: `fired` holds the mask of reasons from then on. Rows that come
  later open the next pane of the window (`assign.next_pane`).
- A pane without rows is never emitted.
- `dead` closes a window for good. A window that was complete stays open for `lateness` ns more.
- The watermark closes the panes of a lane by end, then by start.

Clock policy: the watermark (event time) closes windows; `settings.wall` decides only in `fire_due`
and in the trigger `AfterTime`.

`2 * panes.on_time[e]` is the timing of an emission by a trigger: `EARLY` (0) before the watermark
has passed the end of the window, `LATE` (2) afterwards.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.windows.kernels.layout import (
    Call,
    Family,
    FiringReason,
    Flags,
    Int,
    KernelRows,
    LaneState,
    Op,
    Panes,
    PostfixProgram,
    Programs,
    RowVerdict,
    Settings,
    Timing,
)


@lean_kernel
def fire(call: Call, settings: Settings, e: Int, mask: Int, timing: Int) -> None:
    """Emit the pane. Where the next pane starts empty, its rows are no longer held.

    Windows that follow one another (`EVERYTHING` and above) are closed by that for good.

    Args:
        call: the panes and lists; the pane is appended to `fires`.
        settings: of the stage.
        e: the pane, not emitted yet.
        mask: why: bits of triggers, or a `FiringReason`.
        timing: a `Timing`.
    """
    panes, totals = call.panes, call.totals
    panes.fired[e] = mask
    panes.spent[e] |= mask & settings.once
    panes.timing[e] = timing
    call.fires[totals.fires[0]] = e
    totals.fires[0] += 1
    if settings.buffered and not settings.accumulate:
        totals.used[0] -= panes.bytes[e] + panes.rows[e] * settings.overhead
    if settings.family >= Family.EVERYTHING:
        panes.dead[e] = 1
        panes.timing[e] = Timing.ON_TIME
        if settings.family == Family.ADAPTIVE:
            if mask != FiringReason.DURATION:
                panes.end[e] = panes.last[e] + 1
        else:
            panes.end[e] = panes.last[e]


@lean_kernel
def complete_at(panes: Panes, e: Int, family: Int) -> Int:
    """The watermark at which no further row can belong to the window: end - 1, as spans are
    half-open; for sessions the end itself, as a row exactly one gap later still belongs."""
    if family == Family.SESSION:
        return panes.end[e]
    return panes.end[e] - 1


@lean_kernel
def complete_pane(call: Call, settings: Settings, e: Int) -> None:
    """The watermark has reached the end of this window: emit what it holds. It is kept for late
    rows until it expires; where there is no lateness, it is closed for good."""
    panes = call.panes
    panes.on_time[e] = 1
    if settings.complete:
        note_mark(call, e)
    if panes.fired[e] == 0 and panes.rows[e] > 0:
        mask = np.int64(FiringReason.WATERMARK)
        if settings.family == Family.ADAPTIVE:
            mask = np.int64(FiringReason.DURATION)
        fire(call, settings, e, mask, Timing.ON_TIME)
    if settings.lateness == 0:
        panes.dead[e] = 1


@lean_kernel
def expire_pane(call: Call, settings: Settings, e: Int) -> None:
    """The watermark has passed the lateness of this window: emit what late rows have left in it,
    and close it for good."""
    panes = call.panes
    if panes.fired[e] == 0 and panes.rows[e] > 0:
        fire(call, settings, e, FiringReason.LATE, Timing.LATE)
    panes.dead[e] = 1
    if settings.complete:
        note_mark(call, -1 - e)


@lean_kernel
def close_in_order(
    call: Call, settings: Settings, order: Int64s, first: Int, last: Int, watermark: Int
) -> None:
    """Complete and expire panes of one lane, each when the watermark comes to it.

    One step of the watermark may complete a window and pass the lateness of an earlier one. Which
    comes first follows from the times at which they are due, not from how far the step went.

    Args:
        call: the panes and lists.
        settings: of the stage.
        order: panes, by end then start.
        first: where those of the lane begin in it.
        last: where they end.
        watermark: of the lane; every pane is complete by then, or was before.
    """
    panes = call.panes
    completing, expiring = first, first
    if settings.lateness == 0:
        expiring = last
    while completing < last or expiring < last:
        if completing < last and panes.on_time[order[completing]] != 0:
            completing += 1
            continue
        if expiring < last:
            expires = complete_at(panes, order[expiring], settings.family) + settings.lateness + 1
            if expires > watermark:  # as do all behind it
                expiring = last
                continue
            if completing == last or expires <= complete_at(
                panes, order[completing], settings.family
            ):
                expire_pane(call, settings, order[expiring])
                expiring += 1
                continue
        complete_pane(call, settings, order[completing])
        completing += 1


@lean_kernel
def note_mark(call: Call, mark: Int) -> None:
    """Append to `call.marks`: a pane, or -1 - pane."""
    call.marks[call.totals.marks[0]] = mark
    call.totals.marks[0] += 1


@lean_kernel
def close_panes(call: Call, settings: Settings, order: Int64s, watermark: Int64s) -> None:
    """`close_in_order` for panes by lane, end and start, each lane with its watermark."""
    lane, first = call.panes.lane, 0
    for j in range(1, len(order) + 1):
        if j == len(order) or lane[order[j]] != lane[order[first]]:
            close_in_order(call, settings, order, first, j, watermark[lane[order[first]]])
            first = j


@lean_kernel
def find_expired(
    lane: Int64s, end: Int64s, on_time: Int64s, watermark: Int64s, open_end: bool, lateness: Int,
    out: Int64s,
) -> Int:  # fmt: skip
    """Find the panes at which the watermark of their lane has something to do.

    Args:
        lane: of every pane.
        end: of every pane.
        on_time: 1 where the watermark has passed the end before.
        watermark: of every lane.
        open_end: a row at the end itself belongs to the next window.
        lateness: how long after its completion a pane is kept.
        out: filled with the panes; as long as there are panes.

    Returns:
        How many there are.
    """
    n = 0
    for e in range(len(lane)):
        done = end[e]
        if open_end:
            done -= 1
        if on_time[e] != 0:
            done += lateness + 1
        if done <= watermark[lane[e]]:
            out[n] = e
            n += 1
    return n


@lean_kernel
def close_lane(call: Call, settings: Settings, lane: Int, watermark: Int) -> None:
    """Close what is complete in one lane, by end then start; drop what is dead from its chain.

    Panes are sorted by insertion: few close at once, and `call.order` needs no allocation. `due_at`
    is set to the next watermark at which anything closes, so that most rows need not call this.

    Args:
        call: the panes and lists.
        settings: of the stage.
        lane: the lane.
        watermark: its new watermark.
    """
    panes, order = call.panes, call.order
    n = 0
    before: Int = np.int64(-1)
    e = call.head[lane]
    soonest = np.int64(2**63 - 1)
    while e >= 0:
        after = panes.next[e]
        gone = panes.dead[e] != 0
        if not gone:
            done = complete_at(panes, e, settings.family)
            expires = done
            if panes.on_time[e] != 0:
                expires = done + settings.lateness + 1
            if expires <= watermark:
                at = n
                while at > 0 and (
                    panes.end[order[at - 1]] > panes.end[e]
                    or (
                        panes.end[order[at - 1]] == panes.end[e]
                        and panes.start[order[at - 1]] > panes.start[e]
                    )
                ):
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = e
                n += 1
                gone = settings.lateness == 0 or watermark - settings.lateness > done
                if not gone:
                    soonest = min(soonest, done + settings.lateness + 1)
            else:
                soonest = min(soonest, expires)
        if gone:
            if before < 0:
                call.head[lane] = after
            else:
                panes.next[before] = after
        else:
            before = e
        e = after
    call.due_at[lane] = soonest
    close_in_order(call, settings, order, 0, n, watermark)


@lean_kernel
def pass_time(
    call: Call, settings: Settings, lanes: LaneState, rows: KernelRows, i: Int, lane: Int, t: Int
) -> Int:
    """Move the lane's watermark as far as row i itself says, closing what that completes.

    A late row brings the watermark it was late for; rows that come in order say that nothing
    before them is missing. Returns the watermark the row is judged by.
    """
    watermark = lanes.watermark[lane]
    mark = watermark
    if len(rows.mark) > 0:
        mark = rows.mark[i]
    elif settings.in_order:
        mark = t - 1
    if mark > watermark:
        lanes.watermark[lane] = mark
        if mark >= call.due_at[lane]:
            close_lane(call, settings, lane, mark)
        return mark
    return watermark


@lean_kernel
def fire_due(
    call: Call, settings: Settings, programs: Programs, order: Int64s, none: Flags, longest: Int
) -> None:
    """Evaluate the triggers of these panes at wall time `settings.wall`, without a row.

    Args:
        call: the panes and lists.
        settings: of the stage.
        programs: its triggers.
        order: the panes, in the order in which they may fire.
        none: conditions of no rows.
        longest: wall time (ns) after which an adaptive window is emitted in any case; 0: never.
    """
    panes = call.panes
    for j in range(len(order)):
        e = order[j]
        if panes.fired[e] != 0 or panes.rows[e] == 0 or panes.dead[e] != 0:
            continue
        program = programs.late if panes.on_time[e] != 0 else programs.early
        mask = np.int64(0)
        if len(program.op) > 0:
            mask = evaluate(call, settings, program, none, e, -1, False)
        if mask == 0 and longest > 0 and settings.wall - panes.wall[e] >= longest:
            mask = np.int64(FiringReason.DURATION)
            panes.end[e] = panes.last[e] + 1
        if mask != 0:
            fire(call, settings, e, mask, 2 * panes.on_time[e])


@lean_kernel
def fire_open(call: Call, settings: Settings, mask: Int) -> None:
    """Emit every open pane that has rows; their windows go on with the next pane."""
    for e in range(call.totals.panes[0]):
        fire_early(call, settings, e, mask)


@lean_kernel
def fire_early(call: Call, settings: Settings, e: Int, mask: Int) -> None:
    """Emit the pane, if it is open and has rows; its window goes on with the next one."""
    panes = call.panes
    if panes.dead[e] == 0 and panes.fired[e] == 0 and panes.rows[e] > 0:
        fire(call, settings, e, mask, 2 * panes.on_time[e])


@lean_kernel
def fire_panes(call: Call, settings: Settings, order: Int64s, mask: Int) -> None:
    """`fire_early` for these panes, in this order.

    Args:
        call: the panes and lists.
        settings: of the stage.
        order: the panes.
        mask: why, a `FiringReason`.
    """
    for j in range(len(order)):
        fire_early(call, settings, order[j], mask)


@lean_kernel
def admit_to_budget(call: Call, settings: Settings, size: Int, copies: Int) -> Int:
    """May a row of this size be held? Flushes every open pane before it refuses.

    Args:
        call: the panes and lists; `totals.used` says how much is held.
        settings: of the stage; without a limit, or where rows are not buffered, every row may.
        size: bytes of the row.
        copies: in how many windows it may be held.

    Returns:
        `PLACED`, or `TOO_LARGE` for a row that no flushing could make room for, or `REFUSED`.
    """
    if settings.limit == 0 or not settings.buffered:
        return RowVerdict.PLACED
    wanted = (size + settings.overhead) * copies
    if wanted > settings.budget:
        return RowVerdict.TOO_LARGE
    used = call.totals.used
    if used[0] + wanted > settings.limit:
        if settings.reject:
            return RowVerdict.REFUSED
        fire_open(call, settings, FiringReason.MEMORY_PRESSURE)
        # With nothing held, a row between the limit and the budget is taken: else it never could
        # be.
        if used[0] > 0 and used[0] + wanted > settings.limit:
            return RowVerdict.REFUSED
    return RowVerdict.PLACED


@lean_kernel
def fire_all(call: Call, settings: Settings, order: Int64s, mask: Int) -> None:
    """The end: emit these panes as they are, and close them for good.

    Args:
        call: the panes and lists.
        settings: of the stage.
        order: the panes, in the order of emission.
        mask: why, a `FiringReason`.
    """
    panes = call.panes
    for j in range(len(order)):
        e = order[j]
        if panes.fired[e] == 0 and panes.rows[e] > 0:
            # ON_TIME, or LATE for what came after the window was complete.
            fire(call, settings, e, mask, 1 + panes.on_time[e])
        panes.dead[e] = 1
        if settings.complete:
            note_mark(call, e)


@lean_kernel
def try_fire(
    call: Call, settings: Settings, programs: Programs, rows: KernelRows, e: Int, i: Int,
    late: bool, changed: bool,
) -> None:  # fmt: skip
    """Evaluate the triggers of the pane that row i has just joined.

    A late row without a late trigger emits its window again at once.

    Args:
        call: the panes and lists.
        settings: of the stage.
        programs: its triggers.
        rows: the collection.
        e: the pane.
        i: the row.
        late: the row came after its window was complete.
        changed: the rate has changed with it.
    """
    panes = call.panes
    program = programs.early
    if late and panes.on_time[e] != 0:
        program = programs.late
        if len(program.op) == 0:
            fire(call, settings, e, FiringReason.LATE, Timing.LATE)
            return
    if len(program.op) == 0:
        return
    mask = evaluate(call, settings, program, rows.holds, e, i, changed)
    if mask != 0:
        fire(call, settings, e, mask, 2 * panes.on_time[e])


@lean_kernel
def evaluate(
    call: Call,
    settings: Settings,
    program: PostfixProgram,
    holds: Flags,
    e: Int,
    i: Int,
    changed: bool,
) -> Int:
    """The mask of the triggers that fire for pane `e`, or 0: a postfix program on a stack of masks.

    The leftmost trigger of an OR that holds gives the mask; an AND has the bits of both.

    Args:
        call: the panes; its `stack` is scratch.
        settings: of the stage.
        program: the trigger.
        holds: one line per predicate.
        e: the pane.
        i: the row that has just joined, or -1 for none.
        changed: whether the rate has changed with it.
    """
    panes, stack = call.panes, call.stack
    top = 0
    for j in range(len(program.op)):
        op, argument = program.op[j], program.argument[j]
        if op == Op.OR:
            top -= 1
            if stack[top - 1] == 0:
                stack[top - 1] = stack[top]
        elif op == Op.AND:
            top -= 1
            if stack[top - 1] != 0 and stack[top] != 0:
                stack[top - 1] |= stack[top]
            else:
                stack[top - 1] = 0
        else:
            bit = np.int64(1) << program.bit[j]
            met = False
            if op == Op.COUNT:
                met = panes.rows[e] >= argument
            elif op == Op.TIME:
                met = settings.wall - panes.wall[e] >= argument
            elif op == Op.SIZE:
                met = panes.bytes[e] - panes.emitted[e] >= argument
            elif op == Op.RATE:
                met = changed
            elif op == Op.MEMORY:
                met = call.totals.used[0] >= argument
            elif op == Op.PREDICATE:
                met = i >= 0 and holds[argument, i]
            if op == Op.NEVER or (bit & settings.once & panes.spent[e]) != 0:
                met = False
            stack[top] = bit if met else 0
            top += 1
    return stack[0]
