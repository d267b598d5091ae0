"""The sequential decisions of the event-time watermark, for all lanes in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.sort import ACCEPTED
from tidegate.core.time import MAX_NS, MIN_NS, UNSET

__all__ = [
    "ACCEPTED",
    "LATE",
    "NO_SLOT",
    "SKEWED",
    "admit",
    "admit_plain",
    "settle_all",
]

LATE, SKEWED, NO_SLOT = 1, 2, 3

SKEW_OFF, SKEW_BULK, SKEW_CLOCK = 0, 1, 2


@kernel
def minus(time: int, span: int) -> int:
    """time - span, stopping at the earliest time instead of wrapping round."""
    return time - span if time >= MIN_NS + span else MIN_NS


@kernel
def settle(lane: Any, tolerance: int, watermark: Any, newest: Any, wall: Any, idle: Any) -> Any:
    """The watermark this lane may stand at: the slowest source that is not idle, less the
    tolerance; when all are idle nothing is waited for and it is the newest time of all."""
    slowest, top, active = UNSET, UNSET, 0
    for slot in range(newest.shape[1]):
        if wall[lane, slot] == UNSET:
            continue
        if newest[lane, slot] > top:
            top = newest[lane, slot]
        if idle[lane, slot] == 0:
            active += 1
            if active == 1 or newest[lane, slot] < slowest:
                slowest = newest[lane, slot]
    target = UNSET
    if active > 0 and slowest != UNSET:
        target = minus(slowest, tolerance)
    elif active == 0:
        target = top
    return max(target, watermark[lane])


@kernel
def settle_all(
    lanes: Any, tolerance: int, watermark: Any, newest: Any, wall: Any, idle: Any
) -> None:
    """Move the watermark of every lane named as far as it may go."""
    for lane in lanes:
        watermark[lane] = settle(lane, tolerance, watermark, newest, wall, idle)


@kernel
def beyond(time: int, other: int) -> int:
    """time - other where time is not the smaller, stopping at the largest span instead of wrapping
    round: two times may lie 584 years apart, a span of 64 bits only 292."""
    if other < 0 and time > MAX_NS + other:
        return MAX_NS
    return time - other


@kernel
def slot_of(lane: Any, source: Any, ids: Any, wall: Any) -> int:
    """The slot of a source in a lane, or the first free one for a new source; -1 if none is."""
    for slot in range(ids.shape[1]):
        if wall[lane, slot] == UNSET or ids[lane, slot] == source:
            return slot
    return -1


@kernel
def find_idle(lane: Any, slot: Any, wall_ns: int, timeout: int, wall: Any, idle: Any) -> None:
    """Mark the sources beside `slot` that have been silent for longer than the timeout."""
    for other in range(wall.shape[1]):
        if other != slot and wall[lane, other] != UNSET and wall_ns - wall[lane, other] > timeout:
            idle[lane, other] = 1


@kernel
def is_skewed(lane: Any, time: Any, newest: Any, limits: Any, suspect: Any) -> Any:
    """Whether a row is too far ahead of the newest of its source. A run of rows that agree with
    each other is believed in the end: the stream has really moved on."""
    skew, confirm = limits
    if newest == UNSET or time <= newest or beyond(time, newest) <= skew:
        suspect[lane, 1] = 0
        return False
    low, high = min(time, suspect[lane, 0]), max(time, suspect[lane, 0])
    agrees = suspect[lane, 1] > 0 and beyond(high, low) <= skew
    suspect[lane, 1] = suspect[lane, 1] + 1 if agrees else 1
    suspect[lane, 0] = time
    if suspect[lane, 1] < confirm:
        return True
    suspect[lane, 1] = 0
    return False


@kernel
def admit(
    lanes: Any, times: Any, sources: Any, wall_ns: int, settings: Any, watermark: Any, newest: Any,
    ids: Any, wall: Any, idle: Any, suspect: Any, codes: Any, behind: Any,
) -> Any:  # fmt: skip
    """Decide every row in arrival order: accepted, late, ahead of the clock, or of one source too
    many. Moves `newest`, and `watermark` too if it moves with every row: it then stands after each
    row where `settle` puts it, so that where a collection ends makes no difference.

    A row that is refused as skewed leaves its source as it was: it neither moves time nor keeps a
    source with a broken clock from being found idle, which would hold up all others.

    settings = (tolerance, per_tuple, skew mode, skew, confirm, idle timeout; -1 = none)
    """
    tolerance, per_tuple = settings[0], settings[1]
    skew_mode, skew, confirm, timeout = settings[2], settings[3], settings[4], settings[5]
    counts = np.zeros(4, np.int64)
    for row in range(lanes.shape[0]):
        lane, time = lanes[row], times[row]
        slot = slot_of(lane, sources[row], ids, wall)
        if slot < 0:
            codes[row] = NO_SLOT
            counts[NO_SLOT] += 1
            continue
        was_idle, known = idle[lane, slot], wall[lane, slot] != UNSET
        moved = timeout >= 0 and (wall[lane, slot] != wall_ns or was_idle == 1)
        if moved and known:
            find_idle(lane, slot, wall_ns, timeout, wall, idle)
            idle[lane, slot] = 0
            if per_tuple:
                watermark[lane] = settle(lane, tolerance, watermark, newest, wall, idle)
        if watermark[lane] != UNSET and time <= watermark[lane]:
            codes[row] = LATE
            behind[row] = beyond(watermark[lane], time)
        elif skew_mode == SKEW_CLOCK and time > wall_ns and beyond(time, wall_ns) > skew:
            codes[row] = SKEWED
            behind[row] = beyond(time, wall_ns)
        elif skew_mode == SKEW_BULK and is_skewed(
            lane, time, newest[lane, slot], (skew, confirm), suspect
        ):
            codes[row] = SKEWED
            behind[row] = beyond(time, newest[lane, slot])
        counts[codes[row]] += 1
        if codes[row] == SKEWED:
            idle[lane, slot] = was_idle
        else:
            # A source whose rows are all late is behind, not silent: its time counts too, or it
            # would hold the watermark of the others for ever.
            ids[lane, slot] = sources[row]
            wall[lane, slot] = wall_ns
            idle[lane, slot] = 0
            newer = time > newest[lane, slot]
            if newer:
                newest[lane, slot] = time
            if moved and not known:
                find_idle(lane, slot, wall_ns, timeout, wall, idle)
            if not newer and not moved:
                continue
        if per_tuple:
            watermark[lane] = settle(lane, tolerance, watermark, newest, wall, idle)
    return counts


@kernel
def admit_plain(
    lanes: Int32s, times: Int64s, settings: Any, watermark: Int64s, newest: Int64s, suspect: Any,
    codes: Any, behind: Int64s,
) -> int:  # fmt: skip
    """`admit` where every lane has one source that is always waited for, and time is not held
    against the clock: the usual case, with little to ask per row. Counts the refused ones."""
    tolerance, per_tuple = settings[0], settings[1]
    skewed, skew, confirm = settings[2] == SKEW_BULK, settings[3], settings[4]
    refused = 0
    for row in range(lanes.shape[0]):
        lane, time = lanes[row], times[row]
        if time <= watermark[lane] and watermark[lane] != UNSET:
            codes[row] = LATE
            behind[row] = beyond(watermark[lane], time)
            refused += 1
        elif skewed and is_skewed(lane, time, newest[lane], (skew, confirm), suspect):
            codes[row] = SKEWED
            behind[row] = beyond(time, newest[lane])
            refused += 1
        elif time > newest[lane]:
            newest[lane] = time
            if per_tuple:
                watermark[lane] = max(minus(time, tolerance), watermark[lane])
    return refused
