"""The sequential decisions of the event-time watermark, for all lanes in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.jit import kernel
from tidegate.core.model import Int32s, Int64s
from tidegate.core.time import MIN_NS, UNSET

__all__ = ["ACCEPTED", "LATE", "NO_SLOT", "SKEWED", "admit", "order_rows", "settle_all"]

ACCEPTED, LATE, SKEWED, NO_SLOT = 0, 1, 2, 3

SKEW_OFF, SKEW_BULK, SKEW_CLOCK = 0, 1, 2

_BITS = np.uint64(11)
_BUCKETS = 2**11
_DIGIT = np.uint64(_BUCKETS - 1)
"""A digit of the radix sort: 2,048 buckets stay in the first-level cache."""


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
def slot_of(lane: Any, source: Any, ids: Any, wall: Any) -> int:
    """The slot of a source in a lane; a new source takes the first free one; -1 if none is."""
    for slot in range(ids.shape[1]):
        if wall[lane, slot] == UNSET:
            ids[lane, slot] = source
            return slot
        if ids[lane, slot] == source:
            return slot
    return -1


@kernel
def admit(
    lanes: Any, times: Any, sources: Any, wall_ns: int, settings: Any, watermark: Any, newest: Any,
    ids: Any, wall: Any, idle: Any, suspect: Any, codes: Any, behind: Any,
) -> Any:  # fmt: skip
    """Decide every row in arrival order: accepted, late, ahead of the clock, or of one source too
    many. Moves `newest`; moves `watermark` row by row if asked to, else at the end.

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
        if wall[lane, slot] != wall_ns:
            wall[lane, slot] = wall_ns
            idle[lane, slot] = 0
            if timeout >= 0:
                for other in range(wall.shape[1]):
                    if wall[lane, other] != UNSET and wall_ns - wall[lane, other] > timeout:
                        idle[lane, other] = 1
                if per_tuple:
                    watermark[lane] = settle(lane, tolerance, watermark, newest, wall, idle)
        if watermark[lane] != UNSET and time <= watermark[lane]:
            codes[row] = LATE
            behind[row] = watermark[lane] - time
            counts[LATE] += 1
            # A source whose rows are all late is behind, not silent: its time counts too, or it
            # would hold the watermark of the others for ever.
            newest[lane, slot] = max(newest[lane, slot], time)
            continue
        if skew_mode == SKEW_CLOCK and time - skew > wall_ns:
            codes[row] = SKEWED
            behind[row] = time - wall_ns
            counts[SKEWED] += 1
            continue
        if skew_mode == SKEW_BULK and newest[lane, slot] != UNSET:
            ahead = time - newest[lane, slot]
            if time > newest[lane, slot] and (ahead > skew or ahead < 0):
                # `ahead < 0` is an int64 wrap: the two times are further apart than 292 years.
                distance = time - suspect[lane, 0]
                if suspect[lane, 1] > 0 and -skew <= distance <= skew:
                    suspect[lane, 1] += 1
                else:
                    suspect[lane, 1] = 1
                suspect[lane, 0] = time
                if suspect[lane, 1] < confirm:
                    codes[row] = SKEWED
                    behind[row] = ahead if ahead > 0 else 2**63 - 1
                    counts[SKEWED] += 1
                    continue
            suspect[lane, 1] = 0
        codes[row] = ACCEPTED
        counts[ACCEPTED] += 1
        if time > newest[lane, slot]:
            newest[lane, slot] = time
            if per_tuple:
                watermark[lane] = settle(lane, tolerance, watermark, newest, wall, idle)
    return counts


@kernel
def order_rows(lanes: Int32s, times: Int64s, count: int) -> Int64s:
    """Row numbers by (lane, time, arrival), in time linear in the rows.

    A radix sort of the times by their distance from the earliest, then a counting sort by lane;
    both are stable. Rows that span a second need three passes, whatever their disorder.
    """
    rows = lanes.shape[0]
    order = np.arange(rows)
    if rows == 0:
        return order
    sorted_already, lowest, highest = True, times[0], times[0]
    for row in range(1, rows):
        if lanes[row] < lanes[row - 1] or (
            lanes[row] == lanes[row - 1] and times[row] < times[row - 1]
        ):
            sorted_already = False
        lowest = min(lowest, times[row])
        highest = max(highest, times[row])
    if sorted_already:
        return order
    other = np.empty(rows, np.int64)
    span = np.uint64(highest) - np.uint64(lowest)
    shift = np.uint64(0)
    starts = np.empty(_BUCKETS + 1, np.int64)
    while shift < 64 and (span >> shift) > 0:
        starts[:] = 0
        for row in range(rows):
            digit = np.int64(((np.uint64(times[row]) - np.uint64(lowest)) >> shift) & _DIGIT)
            starts[digit + 1] += 1
        for bucket in range(_BUCKETS):
            starts[bucket + 1] += starts[bucket]
        for at in range(rows):
            row = order[at]
            digit = np.int64(((np.uint64(times[row]) - np.uint64(lowest)) >> shift) & _DIGIT)
            other[starts[digit]] = row
            starts[digit] += 1
        order, other = other, order
        shift += _BITS
    if count == 1:
        return order
    places = np.zeros(count + 1, np.int64)
    for row in range(rows):
        places[lanes[row] + 1] += 1
    for lane in range(count):
        places[lane + 1] += places[lane]
    for at in range(rows):
        row = order[at]
        other[places[lanes[row]]] = row
        places[lanes[row]] += 1
    return other
