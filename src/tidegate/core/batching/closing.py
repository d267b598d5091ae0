"""Opening, moving and closing the window, and what a batch says about itself.

A close lets every stream look at its grid again, hands over the rows of the window in order of time,
opens the next window at its end and routes what had waited. If no stream gates, nothing could wait
for a better moment: the batch takes everything, and ends at the anchor, the newest time of the
largest group of rows.
"""

from __future__ import annotations

import numpy as np

from tidegate.core.batching.columns import (
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
    NEVER,
    NEXT,
    OPEN,
    ORIGIN,
    OVER,
    OVER_MIN,
    PENDING,
    PERIOD,
    PULSES,
    R_FIRST,
    R_GAP,
    R_STALL,
    REACHED,
    ROWS,
    SLOTS,
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
from tidegate.core.batching.explain import explain
from tidegate.core.batching.grid import (
    AHEAD_LENGTHS,
    FAR_LENGTHS,
    first_pulse,
    refresh,
    refresh_from_last,
)
from tidegate.core.batching.period import observe
from tidegate.core.batching.routing import gridded, lift, route
from tidegate.core.batching.rows import anchor_of, append, pop_heap, push_heap, sort_rows, take_list
from tidegate.core.jit import kernel

EVICT_CLOSES = 5
"""Closes in a row without a message after which a stream no longer counts: a dead stream must not
make every later batch wait for its timeout."""


@kernel
def open_window(lane, streams, start, timeout):  # type: ignore[no-untyped-def]
    lane[START] = start
    lane[TIMEOUT] = NEVER if np.isinf(timeout) else int(np.rint(timeout * lane[LENGTH]))
    lane[OVER_MIN] = NEVER
    lane[PULSES] = 0
    lane[GATING] = 0
    for s in range(lane[STREAMS]):
        stream = streams[s]
        stream[COUNT] = 0
        stream[REACHED] = -1
        if stream[TRACKED] != 0 and stream[PERIOD] != 0:
            stream[FIRST] = first_pulse(stream[ORIGIN], stream[PERIOD], start)
            lane[GATING] += 1
    lane[WAITING] = lane[GATING]


@kernel
def route_chain(rows, row, lists, lane, streams, rings, stalled):  # type: ignore[no-untyped-def]
    while row >= 0:
        following = rows[row, NEXT]
        route(rows, row, lists, lane, streams, rings, stalled)
        row = following


@kernel
def route_overflow(rows, row, lists, lane, streams, rings):  # type: ignore[no-untyped-def]
    """Overflow meets the new window. What is still too far ahead to matter goes to a heap, so that
    a long backlog of one stream is not looked at again at every close."""
    near = lane[START] + 2 * AHEAD_LENGTHS * lane[LENGTH]
    while row >= 0:
        following = rows[row, NEXT]
        if rows[row, TIME] > near and gridded(rows, row, streams):
            push_heap(rows, lists, OVER, row)
        else:
            route(rows, row, lists, lane, streams, rings, False)
        row = following
    while lists[HEAP] >= 0 and rows[lists[HEAP], TIME] <= near:
        route(rows, pop_heap(rows, lists), lists, lane, streams, rings, False)
    if lists[HEAP] >= 0:
        lane[OVER_MIN] = min(lane[OVER_MIN], rows[lists[HEAP], TIME])


@kernel
def place(rows, lists, lane, streams, rings, start, stalled, timeout):  # type: ignore[no-untyped-def]
    """Move the window and route everything again."""
    lane[MOVED] += start - lane[START]
    lane[MOVE] = R_STALL if stalled else max(lane[MOVE], R_GAP)
    active = take_list(lists, ACTIVE)
    over = take_list(lists, OVER)
    held = take_list(lists, HELD)
    open_window(lane, streams, start, timeout)
    route_chain(rows, active, lists, lane, streams, rings, stalled)
    if stalled:
        route_chain(rows, over, lists, lane, streams, rings, True)
        while lists[HEAP] >= 0:
            route(rows, pop_heap(rows, lists), lists, lane, streams, rings, True)
    else:
        route_overflow(rows, over, lists, lane, streams, rings)
    route_chain(rows, held, lists, lane, streams, rings, stalled)


@kernel
def collect(rows, row, numbers, at):  # type: ignore[no-untyped-def]
    """Write a chain of rows into `numbers`; gives back where it ended."""
    while row >= 0:
        numbers[at] = row
        at += 1
        row = rows[row, NEXT]
    return at


@kernel
def collect_waiting(rows, lists, numbers, at):  # type: ignore[no-untyped-def]
    """Overflow and held rows, which leave their lists."""
    at = collect(rows, take_list(lists, OVER), numbers, at)
    while lists[HEAP] >= 0:
        numbers[at] = pop_heap(rows, lists)
        at += 1
    return collect(rows, take_list(lists, HELD), numbers, at)


@kernel
def hand_over(rows, first, last, start, end, reason, complete, number, lane, streams, out):  # type: ignore[no-untyped-def]
    """Write the batch of the sorted rows `numbers[first:last]` down."""
    numbers, _, batches, _, _, counters, _, _, _ = out
    batch = batches[counters[N_BATCHES]]
    batch[B_LANE] = number
    batch[B_ID] = lane[BATCHES]
    batch[B_START] = start
    batch[B_END] = end
    batch[B_REASON] = reason
    batch[B_FIRST] = first
    batch[B_ROWS] = last - first
    batch[B_MOVED] = lane[MOVED]
    batch[B_COMPLETE] = complete
    batch[B_PART] = 0
    explain(rows, first, last, start, end, lane, streams, batch, out)
    for i in range(first, last):
        row = numbers[i]
        rows[row, WHERE] = GONE
        if rows[row, STREAM] >= 0:
            streams[rows[row, STREAM], HELD_ROWS] -= 1
    lane[ROWS] -= last - first
    lane[BATCHES] += 1
    lane[MOVED] = 0
    lane[MOVE] = 0
    counters[N_OUT] = last
    counters[N_BATCHES] += 1


@kernel
def plausible_start(rows, numbers, first, last, end, length):  # type: ignore[no-untyped-def]
    """The earliest time that is of the same epoch as `end`."""
    for i in range(first, last):
        if rows[numbers[i], TIME] >= end - FAR_LENGTHS * length:
            return rows[numbers[i], TIME]
    return end


@kernel
def begin(rows, number, lists, lane, streams, rings, out, wall, timeout):  # type: ignore[no-untyped-def]
    """Everything there is becomes one batch, and the window opens at its anchor."""
    numbers, spare, _, _, _, counters, scratch, was, _ = out
    reason = R_FIRST if lane[OPEN] == 0 else R_GAP
    first = counters[N_OUT]
    last = collect(rows, take_list(lists, ACTIVE), numbers, first)
    last = collect_waiting(rows, lists, numbers, last)
    arrived = numbers[first:last].copy()
    sort_rows(rows, numbers, first, last, spare)
    if lane[OPEN] != 0 and lane[PENDING] != 0:
        lane[LENGTH] = lane[PENDING]
        lane[PENDING] = 0
    anchor = anchor_of(rows, numbers, first, last, lane[LENGTH])
    for s in range(lane[STREAMS]):
        streams[s, PERIOD] = 0
        was[s, 0] = -1
    for row in arrived:
        if rows[row, GATED] != 0 and rows[row, STREAM] >= 0 and rows[row, TIME] <= anchor:
            s = rows[row, STREAM]
            observe(streams[s], rings[s], rows[row, TIME])
    for s in range(lane[STREAMS]):
        if streams[s, TRACKED] != 0:
            refresh_from_last(streams[s], rings[s], anchor, lane[LENGTH], scratch)
    start = plausible_start(rows, numbers, first, last, anchor, lane[LENGTH])
    hand_over(rows, first, last, start, anchor, reason, 0, number, lane, streams, out)
    lane[OPEN] = 1
    lane[HWM] = anchor
    lane[MARK] = anchor
    lane[STREAK] = 0
    lane[FAR] = 0
    lane[CLOSED_AT] = wall
    open_window(lane, streams, anchor, timeout)


@kernel
def epoch_changed(rows, lists, lane, patient):  # type: ignore[no-untyped-def]
    """Gating streams themselves have moved to times beyond reach: not one outlier, but a silence or
    a clock that was set. One at a time: for a whole batch length. Call by call: more than once, and
    nothing else came."""
    if lane[FAR] < 2:
        return False
    if patient:
        return lane[FAR_MAX] - lane[FAR_MIN] >= lane[LENGTH]
    beyond = lane[START] + (1 + FAR_LENGTHS) * lane[LENGTH]
    row = lists[2 * ACTIVE]
    while row >= 0:
        if rows[row, TIME] <= beyond:
            return False
        row = rows[row, NEXT]
    return True


@kernel
def look_again(rows, lane, streams, rings, scratch):  # type: ignore[no-untyped-def]
    """Every stream refreshes its grid or counts an absence; a pending length applies. Gives back
    how many streams gate now."""
    start = lane[START]
    for s in range(lane[STREAMS]):
        stream = streams[s]
        if stream[TRACKED] == 0:
            continue
        if stream[COUNT] > 0:
            stream[ABSENT] = 0
            any_time, after_time = stream[FIRST_ANY], stream[FIRST_AFTER]
            refresh(stream, rings[s], start, lane[LENGTH], any_time, after_time, scratch)
        else:
            stream[ABSENT] += 1
            if stream[ABSENT] >= EVICT_CLOSES:
                stream[PERIOD] = 0
    if lane[PENDING] != 0:
        lane[LENGTH] = lane[PENDING]
        lane[PENDING] = 0
        for s in range(lane[STREAMS]):
            if streams[s, TRACKED] != 0 and streams[s, ABSENT] < EVICT_CLOSES:
                refresh_from_last(streams[s], rings[s], start, lane[LENGTH], scratch)
    gating = 0
    for s in range(lane[STREAMS]):
        if streams[s, TRACKED] != 0 and streams[s, PERIOD] != 0:
            gating += 1
    return gating


@kernel
def observe_held(rows, lists, lane, streams, rings, scratch):  # type: ignore[no-untyped-def]
    """Held rows of gated streams leave with this batch: they are evidence like any other. Without
    it a lone stream of one pulse per batch would lose every second pulse and never gate."""
    row = lists[2 * HELD]
    while row >= 0:
        s = rows[row, STREAM]
        if rows[row, GATED] != 0 and s >= 0:
            stream = streams[s]
            t = rows[row, TIME]
            observe(stream, rings[s], t)
            if stream[COUNT] == 0:
                stream[FIRST_ANY] = t
                stream[FIRST_AFTER] = t
            elif stream[FIRST_AFTER] < lane[START]:
                stream[FIRST_AFTER] = t
            stream[COUNT] += 1
            stream[ABSENT] = -1  # marked: refreshed once below
        row = rows[row, NEXT]
    for s in range(lane[STREAMS]):
        stream = streams[s]
        if stream[TRACKED] != 0 and stream[ABSENT] == -1:
            stream[ABSENT] = 0
            any_time, after_time = stream[FIRST_ANY], stream[FIRST_AFTER]
            refresh(stream, rings[s], lane[START], lane[LENGTH], any_time, after_time, scratch)


@kernel
def close(rows, number, lists, lane, streams, rings, out, reason, wall, timeout, patient):  # type: ignore[no-untyped-def]
    """Hand the window over and open the next."""
    numbers, spare, _, _, _, counters, scratch, was, _ = out
    start = lane[START]
    end = start + lane[LENGTH]
    first = counters[N_OUT]
    last = first
    epoch = -1
    if epoch_changed(rows, lists, lane, patient):
        # The old window keeps what is its own; the new epoch begins for itself.
        beyond = end + FAR_LENGTHS * lane[LENGTH]
        row = take_list(lists, ACTIVE)
        while row >= 0:
            following = rows[row, NEXT]
            if rows[row, TIME] > beyond:
                append(rows, lists, ACTIVE, row)
            else:
                numbers[last] = row
                last += 1
            row = following
        if last == first:
            begin(rows, number, lists, lane, streams, rings, out, wall, timeout)
            return
        epoch = take_list(lists, ACTIVE)
    else:
        last = collect(rows, take_list(lists, ACTIVE), numbers, first)
    complete = 1 if lane[GATING] > 0 and lane[WAITING] == 0 else 0
    for s in range(lane[STREAMS]):  # the grids this window had, for the explanation
        stream = streams[s]
        has_grid = stream[TRACKED] != 0 and stream[PERIOD] != 0
        was[s, 0] = stream[SLOTS] if has_grid else -1
        was[s, 1] = stream[ORIGIN] + stream[FIRST] * stream[PERIOD]
        was[s, 2] = stream[PERIOD]
    if look_again(rows, lane, streams, rings, scratch) == 0:
        observe_held(rows, lists, lane, streams, rings, scratch)
        last = collect_waiting(rows, lists, numbers, last)
        sort_rows(rows, numbers, first, last, spare)
        if last > first:
            end = max(end, anchor_of(rows, numbers, first, last, lane[LENGTH]))
            if end - start > FAR_LENGTHS * lane[LENGTH]:
                start = plausible_start(rows, numbers, first, last, end, lane[LENGTH])
    else:
        sort_rows(rows, numbers, first, last, spare)
    hand_over(rows, first, last, start, end, reason, complete, number, lane, streams, out)
    for s in range(lane[STREAMS]):
        if streams[s, TRACKED] != 0 and streams[s, ABSENT] >= EVICT_CLOSES:
            streams[s, TRACKED] = 0
            streams[s, DIFFS] = 0
    over = take_list(lists, OVER)
    held = take_list(lists, HELD)
    open_window(lane, streams, end, timeout)
    lane[HWM] = lane[MARK]
    lane[CLOSED_AT] = wall
    while epoch >= 0:
        following = rows[epoch, NEXT]
        lift(rows, epoch, lane, streams, patient)
        route(rows, epoch, lists, lane, streams, rings, False)
        epoch = following
    route_overflow(rows, over, lists, lane, streams, rings)
    route_chain(rows, held, lists, lane, streams, rings, False)
