# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Opening and moving the window. Whatever waits is routed again into the new one."""

from __future__ import annotations

import numpy as np

from tidegate.batching.grid import AHEAD_LENGTHS, FAR_LENGTHS, first_pulse
from tidegate.batching.layout import (
    ACTIVE,
    COUNT,
    FIRST,
    GATING,
    HEAP,
    HELD,
    LENGTH,
    MOVE,
    MOVED,
    NEVER,
    NEXT,
    ORIGIN,
    OVER,
    OVER_MIN,
    PERIOD,
    PULSES,
    R_GAP,
    R_STALL,
    REACHED,
    START,
    STREAMS,
    TIME,
    TIMEOUT,
    TRACKED,
    WAITING,
)
from tidegate.batching.routing import gridded, route
from tidegate.batching.rows import empty_heap, pop_heap, push_heap, sort_rows, take_list
from tidegate.core.numba import lean_kernel


@lean_kernel
def open_window(w, n, start, timeout):
    lanes, streams = w.lanes, w.streams
    lanes[n, START] = start
    lanes[n, TIMEOUT] = NEVER if np.isinf(timeout) else int(np.rint(timeout * lanes[n, LENGTH]))
    lanes[n, OVER_MIN] = NEVER
    lanes[n, PULSES] = 0
    lanes[n, GATING] = 0
    for s in range(lanes[n, STREAMS]):
        streams[n, s, COUNT] = 0
        streams[n, s, REACHED] = -1
        if streams[n, s, TRACKED] != 0 and streams[n, s, PERIOD] != 0:
            streams[n, s, FIRST] = first_pulse(streams[n, s, ORIGIN], streams[n, s, PERIOD], start)
            lanes[n, GATING] += 1
    lanes[n, WAITING] = lanes[n, GATING]


@lean_kernel
def route_chain(w, row, n, stalled):
    rows, lists, lanes, streams, rings = w.rows, w.lists, w.lanes, w.streams, w.rings
    while row >= 0:
        following = rows[row, NEXT]
        route(rows, row, lists, lanes, streams, rings, n, stalled)
        row = following


@lean_kernel
def route_overflow(w, row, n, at):
    """Overflow meets the new window, in order of arrival. What is still too far ahead to matter
    goes to a heap, so that a long backlog of one stream is not looked at again at every close."""
    rows, lists, lanes, streams, rings, numbers, spare = (
        w.rows,
        w.lists,
        w.lanes,
        w.streams,
        w.rings,
        w.numbers,
        w.spare,
    )
    near = lanes[n, START] + 2 * AHEAD_LENGTHS * lanes[n, LENGTH]
    beyond = lanes[n, START] + (1 + FAR_LENGTHS) * lanes[n, LENGTH]
    last = at
    while row >= 0:
        following = rows[row, NEXT]
        if near < rows[row, TIME] <= beyond and gridded(rows, row, streams, n):
            push_heap(rows, lists, n, OVER, row)
        else:
            numbers[last] = row
            last += 1
        row = following
    listed = last
    while lists[n, HEAP] >= 0 and rows[lists[n, HEAP], TIME] <= near:
        numbers[last] = pop_heap(rows, lists, n)
        last += 1
    if last > listed:
        sort_rows(rows, numbers, at, last, spare, False)
    for i in range(at, last):
        route(rows, numbers[i], lists, lanes, streams, rings, n, False)
    if lists[n, HEAP] >= 0:
        lanes[n, OVER_MIN] = min(lanes[n, OVER_MIN], rows[lists[n, HEAP], TIME])


@lean_kernel
def place(w, n, start, stalled, timeout, at):
    """Move the window and route everything again. `numbers` from `at` on is free to use."""
    rows, lists, lanes, numbers, spare = w.rows, w.lists, w.lanes, w.numbers, w.spare
    lanes[n, MOVED] += start - lanes[n, START]
    lanes[n, MOVE] = R_STALL if stalled else max(lanes[n, MOVE], R_GAP)
    if stalled:
        empty_heap(rows, lists, n, numbers, spare, at)
    active = take_list(lists, n, ACTIVE)
    over = take_list(lists, n, OVER)
    held = take_list(lists, n, HELD)
    open_window(w, n, start, timeout)
    route_chain(w, active, n, stalled)
    if stalled:
        route_chain(w, over, n, True)
    else:
        route_overflow(w, over, n, at)
    route_chain(w, held, n, stalled)
