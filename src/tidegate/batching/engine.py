# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The whole decision for many rows of many lanes in one call.

`run` takes messages one at a time and lets out every batch they imply, so cuts do not matter.
`run_call` takes all rows of one lane as a single call and lets out at most one batch, which is how
the recorded batcher worked. Both are the same routing and closing; only the moment at which the
window is looked at differs. See docs/adr/0003-batching-per-message.md.

`patient` says which of the two it is. It is always passed in, never written as a literal: numba
would compile everything once per literal.

Clock policy: wall time comes in as `wall` and serves the stall check alone.
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.closing import begin, close, collect
from tidegate.batching.grid import FAR_LENGTHS
from tidegate.batching.layout import (
    ACTIVE,
    CLOSED_AT,
    DIFFS,
    FAR,
    GATING,
    HELD,
    HELD_ROWS,
    HWM,
    LANE,
    LAST,
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
    PERIOD,
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
    STREAM,
    STREAMS,
    TIME,
    TIMEOUT,
    TRACKED,
    WAITING,
    WHERE,
)
from tidegate.batching.routing import lift, route
from tidegate.batching.rows import anchor_of, append, empty_heap, sort_rows
from tidegate.batching.window import place
from tidegate.core.numba import lean_kernel

STALL_LENGTHS = 10
"""Batch lengths of wall time without a close, while rows wait, after which the window is taken to
be in the wrong place: a stamp a little in the future must not hold up real traffic for longer."""


@lean_kernel
def find_stream(name, lanes, streams, find, n):
    """The place of a stream by its digest, made if there is room; -1 if not."""
    mask = find.shape[1] - 1
    at = name & mask
    while find[n, at] >= 0:
        if streams[n, find[n, at], NAME] == name:
            return np.int64(find[n, at])
        at = (at + 1) & mask
    s = np.int64(-1)
    if lanes[n, STREAMS] < streams.shape[1]:
        s = lanes[n, STREAMS]
        lanes[n, STREAMS] += 1
        find[n, at] = s
    else:  # full: take the place of a stream that is neither measured nor waiting
        for other in range(lanes[n, STREAMS]):
            if streams[n, other, TRACKED] == 0 and streams[n, other, HELD_ROWS] == 0:
                s = np.int64(other)
                break
        if s < 0:
            return s
    for column in range(streams.shape[2]):
        streams[n, s, column] = 0
    streams[n, s, NAME] = name
    if lanes[n, STREAMS] == streams.shape[1]:
        for place_of in range(mask + 1):
            find[n, place_of] = -1
        for other in range(lanes[n, STREAMS]):
            at = streams[n, other, NAME] & mask
            while find[n, at] >= 0:
                at = (at + 1) & mask
            find[n, at] = other
    return s


@lean_kernel
def gap(w, n, timeout):
    """Silence: move by whole lengths to where traffic resumes, instead of empty batches."""
    lanes, work = w.lanes, w.work
    if lanes[n, OVER_MIN] == NEVER or lanes[n, PULSES] > 0:
        return
    steps = (lanes[n, OVER_MIN] - lanes[n, START]) // lanes[n, LENGTH]
    if steps > 0:
        start = lanes[n, START] + steps * lanes[n, LENGTH]
        place(w, n, start, False, timeout, work[0, N_OUT])


@lean_kernel
def due(lanes, n):
    """Why the window is complete, or -1."""
    timed_out = lanes[n, TIMEOUT] != NEVER and lanes[n, HWM] >= lanes[n, START] + lanes[n, TIMEOUT]
    gated = lanes[n, GATING] > 0 and lanes[n, WAITING] == 0
    if not (timed_out or gated):
        return -1
    if lanes[n, MOVE] != 0:
        return lanes[n, MOVE]
    return R_GATE if gated else R_TIMEOUT


@lean_kernel
def replace_window(w, n, timeout):
    """Put the window at the anchor of what waits, unless it stands there already."""
    rows, lists, lanes, streams, numbers, spare, work = (
        w.rows,
        w.lists,
        w.lanes,
        w.streams,
        w.numbers,
        w.spare,
        w.work,
    )
    first = work[0, N_OUT]
    empty_heap(rows, lists, n, numbers, spare, first)
    last = collect(rows, lists[n, 2 * ACTIVE], numbers, first)
    last = collect(rows, lists[n, 2 * OVER], numbers, last)
    last = collect(rows, lists[n, 2 * HELD], numbers, last)
    sort_rows(rows, numbers, first, last, spare, True)
    anchor = anchor_of(rows, numbers, first, last, lanes[n, LENGTH])
    if lanes[n, START] <= anchor < lanes[n, START] + lanes[n, LENGTH]:
        return False
    lanes[n, HWM] = anchor
    lanes[n, MARK] = anchor
    lanes[n, STREAK] = 0
    lanes[n, FAR] = 0
    for s in range(lanes[n, STREAMS]):
        # Measured in another epoch: nothing that comes now would ever be newer.
        if streams[n, s, LAST] > anchor + FAR_LENGTHS * lanes[n, LENGTH]:
            streams[n, s, TRACKED] = 0
            streams[n, s, PERIOD] = 0
            streams[n, s, DIFFS] = 0
    place(w, n, anchor, True, timeout, work[0, N_OUT])
    return True


@lean_kernel
def stall_due(lanes, n, wall):
    waited = wall - lanes[n, CLOSED_AT]
    return waited >= STALL_LENGTHS * lanes[n, LENGTH] and lanes[n, ROWS] > 0


@lean_kernel
def room(w):
    """Is there room to write one more batch down?"""
    streams, batches, parts, work = w.streams, w.batches, w.parts, w.work
    return work[0, N_BATCHES] < len(batches) and work[0, N_PARTS] + streams.shape[1] <= len(parts)


@lean_kernel
def settle(w, n, wall, timeout, limit, patient):
    """Let out every batch that is due. False: the room ran out before the end."""
    lanes = w.lanes
    moved = False
    while True:
        if not room(w):
            return False
        gap(w, n, timeout)
        reason = due(lanes, n)
        if reason < 0 and stall_due(lanes, n, wall):
            lanes[n, CLOSED_AT] = wall
            if replace_window(w, n, timeout):
                continue
        if reason < 0 and lanes[n, ROWS] > limit:
            # Once: `gap` may have moved it on from there, and the two would never agree.
            if not moved and replace_window(w, n, timeout):
                moved = True
                continue
            reason = R_LIMIT if lanes[n, MOVE] == 0 else lanes[n, MOVE]
        if reason < 0:
            return True
        close(w, n, reason, wall, timeout, patient)
        moved = False


@lean_kernel
def drain(w, n, wall, timeout, patient):
    """Let everything out, window by window. False: the room ran out before the end."""
    rows, lists, lanes, work = w.rows, w.lists, w.lanes, w.work
    while lanes[n, ROWS] > 0:
        if not room(w):
            return False
        gap(w, n, timeout)
        if lists[n, 2 * ACTIVE] < 0:
            earliest = lanes[n, OVER_MIN]
            row = lists[n, 2 * HELD]
            while row >= 0:
                earliest = min(earliest, rows[row, TIME])
                row = rows[row, NEXT]
            steps = (earliest - lanes[n, START]) // lanes[n, LENGTH]
            if steps > 0:
                start = lanes[n, START] + steps * lanes[n, LENGTH]
                place(w, n, start, False, timeout, work[0, N_OUT])
        close(w, n, np.int64(R_FLUSH), wall, timeout, patient)
    return True


@lean_kernel
def admit(rows, row, name, lanes, streams, find, n, named, work):
    """A new row gets the number of its stream."""
    s = find_stream(name, lanes, streams, find, n)
    if s >= 0:
        if streams[n, s, SEEN] == 0:
            named[work[0, N_NAMED]] = row
            work[0, N_NAMED] += 1
            streams[n, s, SEEN] = 1
        streams[n, s, HELD_ROWS] += 1
    rows[row, STREAM] = s
    rows[row, SLOT] = NO_SLOT
    lanes[n, ROWS] += 1


@lean_kernel
def load(rows, n_held, lists):
    """Rows that waited since the last call find their places again."""
    for row in range(n_held):
        append(rows, lists, rows[row, LANE], rows[row, WHERE], row)


@lean_kernel
def run(w, first, again, codes, names, find, named, length, timeout, limit, wall, patient):
    """Rows from `first` on, one at a time. Gives back the row at which the room for batches ran
    out: the caller makes room and goes on from there with `again`. Else the number of rows."""
    rows, lists, lanes, streams, rings, work = w.rows, w.lists, w.lanes, w.streams, w.rings, w.work
    n_held = len(rows) - len(codes)
    for row in range(first, len(rows)):
        n = rows[row, LANE]
        if not (again and row == first):
            if not room(w):
                return row, False
            admit(rows, row, names[codes[row - n_held]], lanes, streams, find, n, named, work)
            if lanes[n, OPEN] == 0:
                if lanes[n, LENGTH] == 0:
                    lanes[n, LENGTH] = length
                append(rows, lists, n, ACTIVE, row)
                begin(w, n, wall, timeout)
                continue
            lift(rows, row, lanes, streams, n, patient)
            route(rows, row, lists, lanes, streams, rings, n, False)
        # Nothing is due after most rows: say so here, without a call.
        if (
            (lanes[n, WAITING] > 0 or lanes[n, GATING] == 0)
            and lanes[n, HWM] < lanes[n, START] + lanes[n, TIMEOUT]
            and (lanes[n, OVER_MIN] == NEVER or lanes[n, PULSES] > 0)
            and wall - lanes[n, CLOSED_AT] < STALL_LENGTHS * lanes[n, LENGTH]
            and lanes[n, ROWS] <= limit
        ):
            continue
        if not settle(w, n, wall, timeout, limit, patient):
            return row, True
    return len(rows), False


@lean_kernel
def run_call(w, n, codes, names, find, named, length, timeout, wall, patient):
    """All rows of one lane as one call, from which at most one batch comes."""
    rows, lists, lanes, streams, rings, work = w.rows, w.lists, w.lanes, w.streams, w.rings, w.work
    n_held = len(rows) - len(codes)
    if lanes[n, LENGTH] == 0:
        lanes[n, LENGTH] = length
    for row in range(n_held, len(rows)):
        admit(rows, row, names[codes[row - n_held]], lanes, streams, find, n, named, work)
        if lanes[n, OPEN] == 0:
            append(rows, lists, n, ACTIVE, row)
        else:
            lift(rows, row, lanes, streams, n, patient)
            route(rows, row, lists, lanes, streams, rings, n, False)
    if lanes[n, OPEN] == 0:
        if lanes[n, ROWS] > 0:
            begin(w, n, wall, timeout)
        return
    gap(w, n, timeout)
    reason = due(lanes, n)
    if reason >= 0:
        close(w, n, reason, wall, timeout, patient)
    elif stall_due(lanes, n, wall):
        lanes[n, CLOSED_AT] = wall
        replace_window(w, n, timeout)


@lean_kernel
def settle_lanes(w, which, first, everything, timeout, limit, wall, patient):
    """Let out what is due in these lanes, or everything. Gives back how many of them are done:
    fewer than all if the room ran out."""
    lanes = w.lanes
    for i in range(first, len(which)):
        n = which[i]
        if lanes[n, OPEN] == 0:
            continue
        if everything:
            done = drain(w, n, wall, timeout, patient)
        else:
            done = settle(w, n, wall, timeout, limit, patient)
        if not done:
            return i
    return len(which)
