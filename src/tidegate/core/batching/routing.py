"""Where one message goes: into the window, over its end, or held back. And how far time has come.

Clock policy: event time decides everything here. A message is *plausible* if its time lies within
reach of the window; only plausible messages move the high-water mark for good.

    ... start ............. end ........... + 3 L ................ + 1000 L ........
        gridded: slot        | overflow (waits for its window)        | another epoch
        others:  window      | held back        | rides along         | rides along
"""

from __future__ import annotations

from tidegate.core.batching.columns import (
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
from tidegate.core.batching.grid import AHEAD_LENGTHS, FAR_LENGTHS, pulse_index
from tidegate.core.batching.period import observe
from tidegate.core.batching.rows import append
from tidegate.core.jit import kernel


@kernel
def gridded(rows, row, streams):  # type: ignore[no-untyped-def]
    s = rows[row, STREAM]
    return s >= 0 and rows[row, GATED] != 0 and streams[s, TRACKED] != 0 and streams[s, PERIOD] != 0


@kernel
def lift(rows, row, lane, streams, patient):  # type: ignore[no-untyped-def]
    """Move the high-water mark, before the row is routed.

    While streams gate, a row that lies implausibly far ahead is a suspect. One at a time
    (`patient`), suspects move the mark only when they have spanned a whole batch length with no
    row of a gating stream between them: then time has really passed. Call by call, they close the
    window they came in, as the recorded batcher does, but never the next one: MARK stays behind.
    """
    t = rows[row, TIME]
    cap = lane[START] + AHEAD_LENGTHS * lane[LENGTH]
    end = lane[START] + lane[LENGTH]
    reach = min(t, cap)
    if lane[GATING] == 0:
        lane[HWM] = max(lane[HWM], reach)
        lane[MARK] = lane[HWM]
        return
    on_grid = gridded(rows, row, streams)
    if on_grid and t > end + FAR_LENGTHS * lane[LENGTH]:
        if lane[FAR] == 0:
            lane[FAR_MIN] = t
            lane[FAR_MAX] = t
        lane[FAR] += 1
        lane[FAR_MIN] = min(lane[FAR_MIN], t)
        lane[FAR_MAX] = max(lane[FAR_MAX], t)
        if not patient:
            lane[HWM] = max(lane[HWM], cap)
            lane[MARK] = max(lane[MARK], cap)
        elif lane[FAR_MAX] - lane[FAR_MIN] >= lane[LENGTH]:
            lane[HWM] = max(lane[HWM], cap)
        return
    if on_grid:
        lane[STREAK] = 0
        lane[FAR] = 0
    if on_grid or t <= end + AHEAD_LENGTHS * lane[LENGTH]:
        lane[HWM] = max(lane[HWM], reach)
        lane[MARK] = max(lane[MARK], reach)
        return
    if lane[STREAK] == 0:
        lane[STREAK_MIN] = t
        lane[STREAK_MAX] = t
    lane[STREAK] += 1
    lane[STREAK_MIN] = min(lane[STREAK_MIN], t)
    lane[STREAK_MAX] = max(lane[STREAK_MAX], t)
    if not patient or lane[STREAK_MAX] - lane[STREAK_MIN] >= lane[LENGTH]:
        lane[HWM] = max(lane[HWM], cap)


@kernel
def bucket(rows, row, lists, lane, stream):  # type: ignore[no-untyped-def]
    """Into the window, as a row of a gated stream."""
    t = rows[row, TIME]
    if stream[COUNT] == 0:
        stream[FIRST_ANY] = t
        stream[FIRST_AFTER] = t
    elif stream[FIRST_AFTER] < lane[START]:
        stream[FIRST_AFTER] = t
    stream[COUNT] += 1
    append(rows, lists, ACTIVE, row)


@kernel
def route(rows, row, lists, lane, streams, rings, stalled):  # type: ignore[no-untyped-def]
    """Put a row where it belongs. `stalled`: the window was just re-placed among these rows, and
    what still lies ahead of it is an outlier that must not drag it away again."""
    t = rows[row, TIME]
    length = lane[LENGTH]
    end = lane[START] + length
    rows[row, SLOT] = NO_SLOT
    if t > end + FAR_LENGTHS * length or (stalled and t > end + AHEAD_LENGTHS * length):
        append(rows, lists, ACTIVE, row)
        return
    s = rows[row, STREAM]
    if not gridded(rows, row, streams):
        if end < t <= end + AHEAD_LENGTHS * length:
            append(rows, lists, HELD, row)
        elif rows[row, GATED] != 0 and s >= 0:
            observe(streams[s], rings[s], t)
            bucket(rows, row, lists, lane, streams[s])
        else:
            append(rows, lists, ACTIVE, row)
        return
    stream = streams[s]
    observe(stream, rings[s], t)
    slot = pulse_index(stream[ORIGIN], stream[PERIOD], t) - stream[FIRST]
    slots = stream[SLOTS]
    if slot >= slots:
        append(rows, lists, OVER, row)
        lane[OVER_MIN] = min(lane[OVER_MIN], t)
        if slot < (1 + AHEAD_LENGTHS) * slots and stream[REACHED] < slots - 1:
            stream[REACHED] = slots - 1
            lane[WAITING] -= 1
        return
    rows[row, SLOT] = max(slot, NO_SLOT + 1)
    if slot > stream[REACHED]:
        if slot == slots - 1:
            lane[WAITING] -= 1
        stream[REACHED] = slot
    lane[PULSES] += 1
    bucket(rows, row, lists, lane, stream)
