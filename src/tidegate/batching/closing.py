# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Closing the window.

A close lets every stream look at its grid again, hands the rows of the window over in order of
time, opens the next window at its end and routes what had waited. If no stream gates, nothing could
wait for a better moment: the batch takes everything, and ends at the anchor, the newest time of the
largest group of rows.
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.grid import (
    FAR_LENGTHS,
    refresh,
    refresh_from_last,
)
from tidegate.batching.layout import (
    ABSENT,
    ACTIVE,
    B_COMPLETE,
    B_END,
    B_FIRST,
    B_ID,
    B_LANE,
    B_MOVED,
    B_PART,
    B_REASON,
    B_ROWS,
    B_START,
    BATCHES,
    CLOSED_AT,
    COUNT,
    DIFFS,
    FAR,
    FAR_MAX,
    FAR_MIN,
    FIRST,
    FIRST_AFTER,
    FIRST_ANY,
    GATED,
    GATING,
    GONE,
    HEAP,
    HELD,
    HELD_ROWS,
    HWM,
    LENGTH,
    MARK,
    MOVE,
    MOVED,
    N_BATCHES,
    N_OUT,
    NEXT,
    OPEN,
    ORIGIN,
    OVER,
    PENDING,
    PERIOD,
    PLACES,
    R_FIRST,
    R_GAP,
    ROWS,
    SLOTS,
    START,
    STREAK,
    STREAM,
    STREAMS,
    TIME,
    TRACKED,
    WAITING,
    WAS_FIRST,
    WAS_PERIOD,
    WAS_SLOTS,
    WHERE,
)
from tidegate.batching.period import observe
from tidegate.batching.report import explain
from tidegate.batching.routing import lift, route
from tidegate.batching.rows import (
    anchor_of,
    append,
    empty_heap,
    pop_heap,
    sort_rows,
    take_list,
)
from tidegate.batching.window import open_window, route_chain, route_overflow
from tidegate.core.numba import lean_kernel

EVICT_CLOSES = 5
"""Closes in a row without a message after which a stream no longer counts: a dead stream must not
make every later batch wait for its timeout."""


@lean_kernel
def collect(rows, row, numbers, at):
    """Write a chain of rows into `numbers`; gives back where it ended."""
    while row >= 0:
        numbers[at] = row
        at += 1
        row = rows[row, NEXT]
    return at


@lean_kernel
def collect_waiting(w, n, at):
    """Overflow and held rows, which leave their lists."""
    rows, lists, numbers = w.rows, w.lists, w.numbers
    at = collect(rows, take_list(lists, n, OVER), numbers, at)
    while lists[n, HEAP] >= 0:
        numbers[at] = pop_heap(rows, lists, n)
        at += 1
    return collect(rows, take_list(lists, n, HELD), numbers, at)


@lean_kernel
def hand_over(w, first, last, start, end, reason, complete, n):
    """Write the batch of the sorted rows `numbers[first:last]` down."""
    rows, lanes, streams, numbers, batches, work = (
        w.rows,
        w.lanes,
        w.streams,
        w.numbers,
        w.batches,
        w.work,
    )
    b = work[0, N_BATCHES]
    batches[b, B_LANE] = n
    batches[b, B_ID] = lanes[n, BATCHES]
    batches[b, B_START] = start
    batches[b, B_END] = end
    batches[b, B_REASON] = reason
    batches[b, B_FIRST] = first
    batches[b, B_ROWS] = last - first
    batches[b, B_MOVED] = lanes[n, MOVED]
    batches[b, B_COMPLETE] = complete
    batches[b, B_PART] = 0
    explain(w, first, last, start, end, n, b)
    for i in range(first, last):
        row = numbers[i]
        rows[row, WHERE] = GONE
        if rows[row, STREAM] >= 0:
            streams[n, rows[row, STREAM], HELD_ROWS] -= 1
    lanes[n, ROWS] -= last - first
    lanes[n, BATCHES] += 1
    lanes[n, MOVED] = 0
    lanes[n, MOVE] = 0
    work[0, N_OUT] = last
    work[0, N_BATCHES] += 1


@lean_kernel
def plausible_start(rows, numbers, first, last, end, length):
    """The earliest time that is of the same epoch as `end`."""
    for i in range(first, last):
        if rows[numbers[i], TIME] >= end - FAR_LENGTHS * length:
            return rows[numbers[i], TIME]
    return end


@lean_kernel
def begin(w, n, wall, timeout):
    """Everything there is becomes one batch, and the window opens at its anchor."""
    rows, lists, lanes, streams, rings, numbers, spare, work, scratch = (
        w.rows,
        w.lists,
        w.lanes,
        w.streams,
        w.rings,
        w.numbers,
        w.spare,
        w.work,
        w.scratch,
    )
    reason = R_FIRST if lanes[n, OPEN] == 0 else R_GAP
    first = work[0, N_OUT]
    empty_heap(rows, lists, n, numbers, spare, first)
    last = first
    for waiting in range(PLACES):
        last = collect(rows, lists[n, 2 * waiting], numbers, last)
    sort_rows(rows, numbers, first, last, spare, True)
    if lanes[n, OPEN] != 0 and lanes[n, PENDING] != 0:
        lanes[n, LENGTH] = lanes[n, PENDING]
        lanes[n, PENDING] = 0
    anchor = anchor_of(rows, numbers, first, last, lanes[n, LENGTH])
    for s in range(lanes[n, STREAMS]):
        streams[n, s, PERIOD] = 0
        work[1 + s, WAS_SLOTS] = -1
    for waiting in range(PLACES):
        row = take_list(lists, n, waiting)
        while row >= 0:
            s = rows[row, STREAM]
            if rows[row, GATED] != 0 and s >= 0 and rows[row, TIME] <= anchor:
                observe(streams, rings, n, s, rows[row, TIME])
            row = rows[row, NEXT]
    for s in range(lanes[n, STREAMS]):
        if streams[n, s, TRACKED] != 0:
            refresh_from_last(streams, rings, n, s, anchor, lanes[n, LENGTH], scratch)
    start = plausible_start(rows, numbers, first, last, anchor, lanes[n, LENGTH])
    hand_over(w, first, last, start, anchor, reason, np.int64(0), n)
    lanes[n, OPEN] = 1
    lanes[n, HWM] = anchor
    lanes[n, MARK] = anchor
    lanes[n, STREAK] = 0
    lanes[n, FAR] = 0
    lanes[n, CLOSED_AT] = wall
    open_window(w, n, anchor, timeout)


@lean_kernel
def epoch_changed(w, n, patient):
    """Gating streams themselves have moved to times beyond reach: not one outlier, but a silence or
    a clock that was set. One at a time: for a whole batch length. Call by call: more than once, and
    nothing else came."""
    rows, lists, lanes = w.rows, w.lists, w.lanes
    if lanes[n, FAR] < 2:
        return False
    if patient:
        return lanes[n, FAR_MAX] - lanes[n, FAR_MIN] >= lanes[n, LENGTH]
    beyond = lanes[n, START] + (1 + FAR_LENGTHS) * lanes[n, LENGTH]
    row = lists[n, 2 * ACTIVE]
    while row >= 0:
        if rows[row, TIME] <= beyond:
            return False
        row = rows[row, NEXT]
    return lists[n, 2 * ACTIVE] >= 0


@lean_kernel
def look_again(w, n):
    """Every stream refreshes its grid or counts an absence; a pending length applies. Gives back
    how many streams gate now."""
    lanes, streams, rings, scratch = w.lanes, w.streams, w.rings, w.scratch
    start = lanes[n, START]
    for s in range(lanes[n, STREAMS]):
        if streams[n, s, TRACKED] == 0:
            continue
        if streams[n, s, COUNT] > 0:
            streams[n, s, ABSENT] = 0
            any_time, after_time = streams[n, s, FIRST_ANY], streams[n, s, FIRST_AFTER]
            refresh(streams, rings, n, s, start, lanes[n, LENGTH], any_time, after_time, scratch)
        else:
            streams[n, s, ABSENT] += 1
            if streams[n, s, ABSENT] >= EVICT_CLOSES:
                streams[n, s, PERIOD] = 0
    if lanes[n, PENDING] != 0:
        lanes[n, LENGTH] = lanes[n, PENDING]
        lanes[n, PENDING] = 0
        for s in range(lanes[n, STREAMS]):
            if streams[n, s, TRACKED] != 0 and streams[n, s, ABSENT] < EVICT_CLOSES:
                refresh_from_last(streams, rings, n, s, start, lanes[n, LENGTH], scratch)
    gating = 0
    for s in range(lanes[n, STREAMS]):
        if streams[n, s, TRACKED] != 0 and streams[n, s, PERIOD] != 0:
            gating += 1
    return gating


@lean_kernel
def observe_held(w, n):
    """Held rows of gated streams leave with this batch: they are evidence like any other. Without
    it a lone stream of one pulse per batch would lose every second pulse and never gate."""
    rows, lists, lanes, streams, rings, scratch = (
        w.rows,
        w.lists,
        w.lanes,
        w.streams,
        w.rings,
        w.scratch,
    )
    row = lists[n, 2 * HELD]
    while row >= 0:
        s = rows[row, STREAM]
        if rows[row, GATED] != 0 and s >= 0:
            t = rows[row, TIME]
            observe(streams, rings, n, s, t)
            if streams[n, s, COUNT] == 0:
                streams[n, s, FIRST_ANY] = t
                streams[n, s, FIRST_AFTER] = t
            elif streams[n, s, FIRST_AFTER] < lanes[n, START]:
                streams[n, s, FIRST_AFTER] = t
            streams[n, s, COUNT] += 1
            streams[n, s, ABSENT] = -1  # marked: refreshed once below
        row = rows[row, NEXT]
    for s in range(lanes[n, STREAMS]):
        if streams[n, s, TRACKED] != 0 and streams[n, s, ABSENT] == -1:
            streams[n, s, ABSENT] = 0
            any_time, after_time = streams[n, s, FIRST_ANY], streams[n, s, FIRST_AFTER]
            refresh(
                streams,
                rings,
                n,
                s,
                lanes[n, START],
                lanes[n, LENGTH],
                any_time,
                after_time,
                scratch,
            )


@lean_kernel
def close(w, n, reason, wall, timeout, patient):
    """Hand the window over and open the next."""
    rows, lists, lanes, streams, rings, numbers, spare, work = (
        w.rows,
        w.lists,
        w.lanes,
        w.streams,
        w.rings,
        w.numbers,
        w.spare,
        w.work,
    )
    length = lanes[n, LENGTH]
    start = lanes[n, START]
    end = start + length
    first = work[0, N_OUT]
    last = first
    epoch = -1
    if epoch_changed(w, n, patient):
        # The old window keeps what is its own; the new epoch begins for itself.
        beyond = end + FAR_LENGTHS * lanes[n, LENGTH]
        row = take_list(lists, n, ACTIVE)
        while row >= 0:
            following = rows[row, NEXT]
            if rows[row, TIME] > beyond:
                append(rows, lists, n, ACTIVE, row)
            else:
                numbers[last] = row
                last += 1
            row = following
        if last == first and lists[n, 2 * ACTIVE] >= 0:
            begin(w, n, wall, timeout)
            return
        epoch = take_list(lists, n, ACTIVE)
    else:
        last = collect(rows, take_list(lists, n, ACTIVE), numbers, first)
    complete = 1 if lanes[n, GATING] > 0 and lanes[n, WAITING] == 0 else 0
    for s in range(lanes[n, STREAMS]):  # the grids this window had, for the explanation
        has_grid = streams[n, s, TRACKED] != 0 and streams[n, s, PERIOD] != 0
        work[1 + s, WAS_SLOTS] = streams[n, s, SLOTS] if has_grid else -1
        work[1 + s, WAS_FIRST] = (
            streams[n, s, ORIGIN] + streams[n, s, FIRST] * streams[n, s, PERIOD]
        )
        work[1 + s, WAS_PERIOD] = streams[n, s, PERIOD]
    if look_again(w, n) == 0:
        observe_held(w, n)
        last = collect_waiting(w, n, last)
        sort_rows(rows, numbers, first, last, spare, True)
        if last > first:
            end = max(end, anchor_of(rows, numbers, first, last, lanes[n, LENGTH]))
            if end - start > FAR_LENGTHS * lanes[n, LENGTH]:
                start = plausible_start(rows, numbers, first, last, end, lanes[n, LENGTH])
    else:
        sort_rows(rows, numbers, first, last, spare, True)
    hand_over(w, first, last, start, end, reason, complete, n)
    for s in range(lanes[n, STREAMS]):
        if streams[n, s, TRACKED] != 0 and streams[n, s, ABSENT] >= EVICT_CLOSES:
            streams[n, s, TRACKED] = 0
            streams[n, s, DIFFS] = 0
    look_at_all = lanes[n, LENGTH] != length  # what is far ahead is measured in lengths
    for s in range(lanes[n, STREAMS]):
        if work[1 + s, WAS_SLOTS] > 0 and streams[n, s, PERIOD] == 0:
            look_at_all = True  # a grid is gone, and with it the reason for its overflow
    if look_at_all:
        empty_heap(rows, lists, n, numbers, spare, last)
    over = take_list(lists, n, OVER)
    held = take_list(lists, n, HELD)
    open_window(w, n, end, timeout)
    lanes[n, HWM] = lanes[n, MARK]
    lanes[n, CLOSED_AT] = wall
    while epoch >= 0:
        following = rows[epoch, NEXT]
        lift(rows, epoch, lanes, streams, n, patient)
        route(rows, epoch, lists, lanes, streams, rings, n, False)
        epoch = following
    route_overflow(w, over, n, last)
    route_chain(w, held, n, False)
