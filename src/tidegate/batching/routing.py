# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Where one message goes: into the window, over its end, or held back. And how far time has come.

Clock policy: event time decides everything here. A message is *plausible* if its time lies within
reach of the window; only plausible messages move the high-water mark for good.

    ... start ............. end ........... + 3 L ................ + 1000 L ........
        gridded: slot        | overflow (waits for its window)        | another epoch
        others:  window      | held back        | rides along         | rides along
"""

from __future__ import annotations

from tidegate.batching.grid import AHEAD_LENGTHS, FAR_LENGTHS, pulse_index
from tidegate.batching.layout import (
    ACTIVE,
    COUNT,
    FAR,
    FAR_MAX,
    FAR_MIN,
    FIRST,
    FIRST_AFTER,
    FIRST_ANY,
    GATED,
    GATING,
    HELD,
    HWM,
    LENGTH,
    MARK,
    NO_SLOT,
    ORIGIN,
    OVER,
    OVER_MIN,
    PERIOD,
    PULSES,
    REACHED,
    SLOT,
    SLOTS,
    START,
    STREAK,
    STREAK_MAX,
    STREAK_MIN,
    STREAM,
    TIME,
    TRACKED,
    WAITING,
)
from tidegate.batching.period import observe
from tidegate.batching.rows import append
from tidegate.core.numba import lean_kernel


@lean_kernel
def gridded(rows, row, streams, n):
    s = rows[row, STREAM]
    return (
        s >= 0
        and rows[row, GATED] != 0
        and streams[n, s, TRACKED] != 0
        and streams[n, s, PERIOD] != 0
    )


@lean_kernel
def lift(rows, row, lanes, streams, n, patient):
    """Move the high-water mark, before the row is routed.

    While streams gate, a row that lies implausibly far ahead is a suspect. One at a time
    (`patient`), suspects move the mark only when they have spanned a whole batch length with no
    row of a gating stream between them: then time has really passed. Call by call, they close the
    window they came in, as the recorded batcher does, but never the next one: MARK stays behind.
    """
    t = rows[row, TIME]
    cap = lanes[n, START] + AHEAD_LENGTHS * lanes[n, LENGTH]
    end = lanes[n, START] + lanes[n, LENGTH]
    reach = min(t, cap)
    if lanes[n, GATING] == 0:
        lanes[n, HWM] = max(lanes[n, HWM], reach)
        lanes[n, MARK] = lanes[n, HWM]
        return
    on_grid = gridded(rows, row, streams, n)
    if on_grid and t > end + FAR_LENGTHS * lanes[n, LENGTH]:
        if lanes[n, FAR] == 0:
            lanes[n, FAR_MIN] = t
            lanes[n, FAR_MAX] = t
        lanes[n, FAR] += 1
        lanes[n, FAR_MIN] = min(lanes[n, FAR_MIN], t)
        lanes[n, FAR_MAX] = max(lanes[n, FAR_MAX], t)
        if not patient:
            lanes[n, HWM] = max(lanes[n, HWM], cap)
            lanes[n, MARK] = max(lanes[n, MARK], cap)
        elif lanes[n, FAR_MAX] - lanes[n, FAR_MIN] >= lanes[n, LENGTH]:
            lanes[n, HWM] = max(lanes[n, HWM], cap)
        return
    if on_grid:
        lanes[n, STREAK] = 0
        lanes[n, FAR] = 0
    if on_grid or t <= end + AHEAD_LENGTHS * lanes[n, LENGTH]:
        lanes[n, HWM] = max(lanes[n, HWM], reach)
        lanes[n, MARK] = max(lanes[n, MARK], reach)
        return
    if lanes[n, STREAK] == 0:
        lanes[n, STREAK_MIN] = t
        lanes[n, STREAK_MAX] = t
    lanes[n, STREAK] += 1
    lanes[n, STREAK_MIN] = min(lanes[n, STREAK_MIN], t)
    lanes[n, STREAK_MAX] = max(lanes[n, STREAK_MAX], t)
    if not patient or lanes[n, STREAK_MAX] - lanes[n, STREAK_MIN] >= lanes[n, LENGTH]:
        lanes[n, HWM] = max(lanes[n, HWM], cap)


@lean_kernel
def bucket(rows, row, lists, lanes, streams, n, s):
    """Into the window, as a row of a gated stream."""
    t = rows[row, TIME]
    if streams[n, s, COUNT] == 0:
        streams[n, s, FIRST_ANY] = t
        streams[n, s, FIRST_AFTER] = t
    elif streams[n, s, FIRST_AFTER] < lanes[n, START]:
        streams[n, s, FIRST_AFTER] = t
    streams[n, s, COUNT] += 1
    append(rows, lists, n, ACTIVE, row)


@lean_kernel
def route(rows, row, lists, lanes, streams, rings, n, stalled):
    """Put a row where it belongs. `stalled`: the window was just re-placed among these rows, and
    what still lies ahead of it is an outlier that must not drag it away again."""
    t = rows[row, TIME]
    length = lanes[n, LENGTH]
    end = lanes[n, START] + length
    rows[row, SLOT] = NO_SLOT
    if t > end + FAR_LENGTHS * length or (stalled and t > end + AHEAD_LENGTHS * length):
        append(rows, lists, n, ACTIVE, row)
        return
    s = rows[row, STREAM]
    if not gridded(rows, row, streams, n):
        if end < t <= end + AHEAD_LENGTHS * length:
            append(rows, lists, n, HELD, row)
        elif rows[row, GATED] != 0 and s >= 0:
            observe(streams, rings, n, s, t)
            bucket(rows, row, lists, lanes, streams, n, s)
        else:
            append(rows, lists, n, ACTIVE, row)
        return
    observe(streams, rings, n, s, t)
    slot = pulse_index(streams[n, s, ORIGIN], streams[n, s, PERIOD], t) - streams[n, s, FIRST]
    slots = streams[n, s, SLOTS]
    if slot >= slots:
        append(rows, lists, n, OVER, row)
        lanes[n, OVER_MIN] = min(lanes[n, OVER_MIN], t)
        if slot < (1 + AHEAD_LENGTHS) * slots and streams[n, s, REACHED] < slots - 1:
            streams[n, s, REACHED] = slots - 1
            lanes[n, WAITING] -= 1
        return
    rows[row, SLOT] = min(max(slot, NO_SLOT + 1), -NO_SLOT - 1)  # an int32 column
    if slot > streams[n, s, REACHED]:
        if slot == slots - 1:
            lanes[n, WAITING] -= 1
        streams[n, s, REACHED] = slot
    lanes[n, PULSES] += 1
    bucket(rows, row, lists, lanes, streams, n, s)
