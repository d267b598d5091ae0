"""The whole decision for many rows of many lanes in one call.

`run` takes messages one at a time and lets out every batch they imply, so cuts do not matter.
`run_call` takes all rows of one lane as a single call and lets out at most one batch, which is how
the recorded batcher worked. Both are the same routing and closing; only the moment at which the
window is looked at differs. See docs/adr/0003-batching-per-message.md.

Clock policy: wall time comes in as `wall` and serves the stall check alone.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.batching.closing import begin, close, collect, place
from tidegate.core.batching.columns import (
    ACTIVE,
    CLOSED_AT,
    GATING,
    HEAP,
    HELD,
    HELD_ROWS,
    HWM,
    LANE,
    LENGTH,
    MARK,
    MOVE,
    N_BATCHES,
    N_NAMED,
    N_OUT,
    N_PARTS,
    NAME,
    NEVER,
    NEXT,
    NO_SLOT,
    OPEN,
    OVER,
    OVER_MIN,
    PULSES,
    R_FLUSH,
    R_GATE,
    R_LIMIT,
    R_TIMEOUT,
    ROWS,
    SEEN,
    SLOT,
    START,
    STREAK,
    FAR,
    STREAM,
    STREAMS,
    TIME,
    TIMEOUT,
    TRACKED,
    WAITING,
    WHERE,
)
from tidegate.core.batching.routing import lift, route
from tidegate.core.batching.rows import anchor_of, append, pop_heap, sort_rows
from tidegate.core.jit import kernel

STALL_LENGTHS = 10
"""Batch lengths of wall time without a close, while rows wait, after which the window is taken to be
in the wrong place: a stamp a little in the future must not hold up real traffic for longer."""

@kernel
def find_stream(name, lane, streams, find):  # type: ignore[no-untyped-def]
    """The place of a stream by its digest, made if there is room; -1 if not."""
    mask = len(find) - 1
    at = name & mask
    while find[at] >= 0:
        if streams[find[at], NAME] == name:
            return find[at]
        at = (at + 1) & mask
    if lane[STREAMS] < len(streams):
        s = lane[STREAMS]
        lane[STREAMS] += 1
        find[at] = s
    else:
        s = np.int64(-1)
        for other in range(lane[STREAMS]):
            if streams[other, TRACKED] == 0 and streams[other, HELD_ROWS] == 0:
                s = np.int64(other)
                break
        if s < 0:
            return s
        streams[s, NAME] = name
        find[:] = -1
        for other in range(lane[STREAMS]):
            at = streams[other, NAME] & mask
            while find[at] >= 0:
                at = (at + 1) & mask
            find[at] = other
    streams[s, :] = 0
    streams[s, NAME] = name
    return s


@kernel
def gap(rows, lists, lane, streams, rings, timeout):  # type: ignore[no-untyped-def]
    """Silence: move by whole lengths to where traffic resumes, instead of empty batches."""
    if lane[OVER_MIN] == NEVER or lane[PULSES] > 0:
        return
    steps = (lane[OVER_MIN] - lane[START]) // lane[LENGTH]
    if steps > 0:
        place(
            rows, lists, lane, streams, rings, lane[START] + steps * lane[LENGTH], False, timeout
        )


@kernel
def due(lane):  # type: ignore[no-untyped-def]
    """Why the window is complete, or -1."""
    timed_out = lane[TIMEOUT] != NEVER and lane[HWM] >= lane[START] + lane[TIMEOUT]
    gated = lane[GATING] > 0 and lane[WAITING] == 0
    if not (timed_out or gated):
        return -1
    if lane[MOVE] != 0:
        return lane[MOVE]
    return R_GATE if gated else R_TIMEOUT


@kernel
def replace_window(rows, lists, lane, streams, rings, out, timeout):  # type: ignore[no-untyped-def]
    """Put the window at the anchor of what waits, unless it stands there already."""
    numbers, spare, _, _, _, counters, _, _, _ = out
    while lists[HEAP] >= 0:
        append(rows, lists, OVER, pop_heap(rows, lists))
    first = counters[N_OUT]
    last = collect(rows, lists[2 * ACTIVE], numbers, first)
    last = collect(rows, lists[2 * OVER], numbers, last)
    last = collect(rows, lists[2 * HELD], numbers, last)
    sort_rows(rows, numbers, first, last, spare)
    anchor = anchor_of(rows, numbers, first, last, lane[LENGTH])
    if lane[START] <= anchor < lane[START] + lane[LENGTH]:
        return False
    lane[HWM] = anchor
    lane[MARK] = anchor
    lane[STREAK] = 0
    lane[FAR] = 0
    place(rows, lists, lane, streams, rings, anchor, True, timeout)
    return True


@kernel
def stalled(rows, lists, lane, streams, rings, out, wall, timeout):  # type: ignore[no-untyped-def]
    if wall - lane[CLOSED_AT] < STALL_LENGTHS * lane[LENGTH] or lane[ROWS] == 0:
        return False
    lane[CLOSED_AT] = wall
    return replace_window(rows, lists, lane, streams, rings, out, timeout)


@kernel
def room(streams, out):  # type: ignore[no-untyped-def]
    """Is there room to write one more batch down?"""
    _, _, batches, parts, _, counters, _, _, _ = out
    return counters[N_BATCHES] < len(batches) and counters[N_PARTS] + len(streams) <= len(parts)


@kernel
def settle(rows, number, lists, lane, streams, rings, out, wall, timeout, limit):  # type: ignore[no-untyped-def]
    """Let out every batch that is due. False: the room ran out before the end."""
    while True:
        if not room(streams, out):
            return False
        gap(rows, lists, lane, streams, rings, timeout)
        reason = due(lane)
        if reason >= 0:
            close(rows, number, lists, lane, streams, rings, out, reason, wall, timeout, True)
        elif stalled(rows, lists, lane, streams, rings, out, wall, timeout):
            continue
        elif lane[ROWS] > limit:
            if not replace_window(rows, lists, lane, streams, rings, out, timeout):
                close(rows, number, lists, lane, streams, rings, out, R_LIMIT, wall, timeout, True)
        else:
            return True


@kernel
def drain(rows, number, lists, lane, streams, rings, out, wall, timeout):  # type: ignore[no-untyped-def]
    """Let everything out, window by window. False: the room ran out before the end."""
    while lane[ROWS] > 0:
        if not room(streams, out):
            return False
        gap(rows, lists, lane, streams, rings, timeout)
        if lists[2 * ACTIVE] < 0:
            earliest = lane[OVER_MIN]
            row = lists[2 * HELD]
            while row >= 0:
                earliest = min(earliest, rows[row, TIME])
                row = rows[row, NEXT]
            steps = (earliest - lane[START]) // lane[LENGTH]
            if steps > 0:
                start = lane[START] + steps * lane[LENGTH]
                place(rows, lists, lane, streams, rings, start, False, timeout)
        close(rows, number, lists, lane, streams, rings, out, R_FLUSH, wall, timeout, True)
    return True


@kernel
def admit(rows, row, name, lane, streams, find, named, counters):  # type: ignore[no-untyped-def]
    """A new row gets the number of its stream."""
    known = lane[STREAMS]
    s = find_stream(name, lane, streams, find)
    if s >= 0:
        if s >= known or streams[s, SEEN] == 0:
            named[counters[N_NAMED]] = row
            counters[N_NAMED] += 1
            streams[s, SEEN] = 1
        streams[s, HELD_ROWS] += 1
    rows[row, STREAM] = s
    rows[row, SLOT] = NO_SLOT
    lane[ROWS] += 1


@kernel
def load(rows, n_held, lists):  # type: ignore[no-untyped-def]
    """Rows that waited since the last call find their places again."""
    for row in range(n_held):
        append(rows, lists[rows[row, LANE]], rows[row, WHERE], row)


@kernel
def run(rows, first, again, codes, names, lists, lanes, streams, rings, find, named, out, length, timeout, limit, wall):  # type: ignore[no-untyped-def]
    """Rows from `first` on, one at a time. Gives back the row at which the room for batches ran
    out: the caller makes room and goes on from there with `again`. Else the number of rows."""
    counters = out[5]
    n_held = len(rows) - len(codes)
    for row in range(first, len(rows)):
        number = rows[row, LANE]
        lane = lanes[number]
        its_lists, its_streams, its_rings = lists[number], streams[number], rings[number]
        if not (again and row == first):
            if not room(its_streams, out):
                return row, False
            name = names[codes[row - n_held]]
            admit(rows, row, name, lane, its_streams, find[number], named, counters)
            if lane[OPEN] == 0:
                if lane[LENGTH] == 0:
                    lane[LENGTH] = length
                append(rows, its_lists, ACTIVE, row)
                begin(rows, number, its_lists, lane, its_streams, its_rings, out, wall, timeout)
                continue
            lift(rows, row, lane, its_streams, True)
            route(rows, row, its_lists, lane, its_streams, its_rings, False)
        if not settle(
            rows, number, its_lists, lane, its_streams, its_rings, out, wall, timeout, limit
        ):
            return row, True
    return len(rows), False


@kernel
def run_call(rows, codes, names, lists, lanes, streams, rings, find, named, out, length, timeout, wall):  # type: ignore[no-untyped-def]
    """All rows of lane 0 as one call, from which at most one batch comes."""
    counters = out[5]
    n_held = len(rows) - len(codes)
    lane = lanes[0]
    if lane[LENGTH] == 0:
        lane[LENGTH] = length
    for row in range(n_held, len(rows)):
        name = names[codes[row - n_held]]
        admit(rows, row, name, lane, streams[0], find[0], named, counters)
        if lane[OPEN] == 0:
            append(rows, lists[0], ACTIVE, row)
        else:
            lift(rows, row, lane, streams[0], False)
            route(rows, row, lists[0], lane, streams[0], rings[0], False)
    if lane[OPEN] == 0:
        if lane[ROWS] > 0:
            begin(rows, 0, lists[0], lane, streams[0], rings[0], out, wall, timeout)
        return
    gap(rows, lists[0], lane, streams[0], rings[0], timeout)
    reason = due(lane)
    if reason >= 0:
        close(rows, 0, lists[0], lane, streams[0], rings[0], out, reason, wall, timeout, False)
    else:
        stalled(rows, lists[0], lane, streams[0], rings[0], out, wall, timeout)


@kernel
def settle_lanes(numbers, first, drained, rows, lists, lanes, streams, rings, out, timeout, limit, wall):  # type: ignore[no-untyped-def]
    """Let out what is due in these lanes, or (`drained`) everything. Gives back how many of them
    are done; fewer than all if the room ran out."""
    for i in range(first, len(numbers)):
        n = numbers[i]
        if lanes[n, OPEN] == 0:
            continue
        if drained:
            done = drain(rows, n, lists[n], lanes[n], streams[n], rings[n], out, wall, timeout)
        else:
            done = settle(
                rows, n, lists[n], lanes[n], streams[n], rings[n], out, wall, timeout, limit
            )
        if not done:
            return i
    return len(numbers)
