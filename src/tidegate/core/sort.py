"""Rows by lane and time, in time linear in the rows, for some of the lanes at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.core.numba import as_readonly, kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.parallel import each, parts
from tidegate.core.time import MAX_NS, MIN_NS

__all__ = ["Arranged", "arrange", "order_rows"]

ACCEPTED = 0
"""The code of rows to be sorted; rows with any other code are left out."""

_BITS = np.uint64(11)
_BUCKETS = 2**11
_DIGIT = np.uint64(_BUCKETS - 1)
"""A digit of the radix sort: 2,048 buckets stay in the first-level cache."""
_SIGN = np.uint64(2**63)

"""With its sign bit turned, an int64 is a uint64 of the same order: distances cannot wrap."""

MOVES = 16
"""Places that rows may be moved on average before it costs more than a radix sort."""


@kernel
def spans(
    lanes: Int32s, times: Int64s, codes: Any, edges: Int64s, first: Int64s, last: Int64s
) -> bool:
    """Where the accepted rows of each lane will begin, and between which times they lie. Whether
    all rows are accepted, and by (lane, time) already."""
    edges[:] = 0
    first[:] = MAX_NS
    last[:] = MIN_NS
    ready = True
    before, newest = np.int32(-1), MIN_NS
    for row in range(lanes.shape[0]):
        if codes[row] != ACCEPTED:
            ready = False
            continue
        lane, time = lanes[row], times[row]
        edges[lane + 1] += 1
        first[lane] = min(first[lane], time)
        last[lane] = max(last[lane], time)
        if lane < before or (lane == before and time < newest):
            ready = False
        before, newest = lane, time
    for lane in range(len(first)):
        edges[lane + 1] += edges[lane]
    return ready


@kernel
def deal(lanes: Int32s, codes: Any, owner: Int32s, starts: Int64s, dealt: Int64s) -> None:
    """Deal the accepted rows out to the owners of their lanes, from `starts[owner]` on; each gets
    them in order of arrival. Without a question per row that could be guessed wrongly."""
    free = starts.copy()
    for row in range(lanes.shape[0]):
        if codes[row] == ACCEPTED:
            mine = owner[lanes[row]]
            dealt[free[mine]] = row
            free[mine] += 1


@kernel
def roughly(
    lanes: Int32s, times: Int64s, edges: Int64s, first: Int64s, last: Int64s,
    rows: Int64s, part: Int32s, places: Int32s, order: Int64s, which: Int64s,
) -> None:  # fmt: skip
    """Put these rows, which are all of the lanes `which`, into `order` by lane and nearly by time.

    The span of a lane is cut into as many equal parts as it has rows, and rows are counted into
    them. Where times are spread evenly a part has one or two, and hardly a row is out of place;
    at worst all rows of a lane share a part and stay in order of arrival.
    """
    scale = np.zeros(len(first), np.float64)
    for lane in which:
        span = np.float64(last[lane]) - np.float64(first[lane])
        if span > 0:
            scale[lane] = (edges[lane + 1] - edges[lane] - 1) / span
        for at in range(edges[lane], edges[lane + 1]):
            places[at] = 0
    for k in range(len(rows)):
        lane = lanes[rows[k]]
        # As floats: never decreasing with time, whatever is rounded away.
        above = (np.float64(times[rows[k]]) - np.float64(first[lane])) * scale[lane]
        at = edges[lane] + np.int64(above)
        part[k] = at
        places[at] += 1
    for lane in which:
        total = edges[lane]
        for at in range(edges[lane], edges[lane + 1]):
            count = places[at]
            places[at] = total
            total += count
    for k in range(len(rows)):
        at = part[k]
        order[places[at]] = rows[k]
        places[at] += 1


@kernel
def insert_rows(order: Int64s, edges: Int64s, times: Int64s, stamps: Int64s, which: Int64s) -> bool:
    """Bring the rows of these lanes into order of time by moving each to its place; `stamps` are
    then their times. False, with nothing done that matters, if they would have to move far."""
    budget = np.int64(4096)  # and more with every row: rows far out of order are found out early
    for lane in which:
        for at in range(edges[lane], edges[lane + 1]):
            stamps[at] = times[order[at]]
        for at in range(edges[lane] + 1, edges[lane + 1]):
            stamp, row = stamps[at], order[at]
            place = at
            while place > edges[lane] and stamps[place - 1] > stamp:
                stamps[place], order[place] = stamps[place - 1], order[place - 1]
                place -= 1
            stamps[place], order[place] = stamp, row
            budget += MOVES - (at - place)
            if budget < 0:
                return False
    return True


@kernel
def radix(order: Int64s, times: Int64s) -> Int64s:
    """These rows by time, digit by digit from the earliest; equal ones stay as they were."""
    rows = len(order)
    other = np.empty(rows, np.int64)
    lowest, highest = times[order[0]], times[order[0]]
    for row in order:
        lowest = min(lowest, times[row])
        highest = max(highest, times[row])
    lowest_bits = np.uint64(lowest) ^ _SIGN
    span = (np.uint64(highest) ^ _SIGN) - lowest_bits
    shift = np.uint64(0)
    starts = np.empty(_BUCKETS + 1, np.int64)
    while shift < 64 and (span >> shift) > 0:
        starts[:] = 0
        for row in order:
            above = (np.uint64(times[row]) ^ _SIGN) - lowest_bits
            digit = np.int64((above >> shift) & _DIGIT)
            starts[digit + 1] += 1
        for bucket in range(_BUCKETS):
            starts[bucket + 1] += starts[bucket]
        for row in order:
            above = (np.uint64(times[row]) ^ _SIGN) - lowest_bits
            digit = np.int64((above >> shift) & _DIGIT)
            other[starts[digit]] = row
            starts[digit] += 1
        order, other = other, order
        shift += _BITS
    return order


@kernel
def by_lane_and_time(
    lanes: Int32s, times: Int64s, edges: Int64s, first: Int64s, last: Int64s,
    rows: Int64s, part: Int32s, places: Int32s, order: Int64s, stamps: Int64s, which: Int64s,
) -> None:  # fmt: skip
    """Put these rows, which are all of the lanes `which`, into `order` by (lane, time, arrival),
    and their times into `stamps`; in time linear in the rows. `part` and `places` are scratch.

    Rows are put roughly in order and then moved to their places. Where that is far, a radix sort of
    the times, then a counting sort by lane. All of these are stable.
    """
    if len(rows) == 0:
        return
    roughly(lanes, times, edges, first, last, rows, part, places, order, which)
    if insert_rows(order, edges, times, stamps, which):
        return
    free = edges.copy()
    for row in radix(rows.copy(), times):
        at = free[lanes[row]]
        order[at] = row
        stamps[at] = times[row]
        free[lanes[row]] += 1


@kernel
def passed(stamps: Int64s, edges: Int64s, watermark: Int64s, leaves: Int64s, which: Int64s) -> None:
    """How many rows of each of these lanes the watermark has passed."""
    for lane in which:
        begin, end = edges[lane], edges[lane + 1]
        while begin < end:
            middle = (begin + end) // 2
            if stamps[middle] <= watermark[lane]:
                begin = middle + 1
            else:
                end = middle
        leaves[lane] = begin - edges[lane]


@kernel
def part_rows(
    order: Int64s, stamps: Int64s, edges: Int64s, leaves: Int64s, out: Int64s, which: Int64s,
    rows: Int64s, when: Int64s, where: Int32s,
) -> None:  # fmt: skip
    """Write down the rows of these lanes: those that leave from `out[lane]` on, the others behind
    all that leave."""
    total = out[len(out) - 1]
    for lane in which:
        cut = edges[lane] + leaves[lane]
        there = out[lane] - edges[lane]
        for at in range(edges[lane], cut):
            rows[there + at], when[there + at], where[there + at] = order[at], stamps[at], lane
        there = total - out[lane + 1]
        for at in range(cut, edges[lane + 1]):
            rows[there + at], when[there + at], where[there + at] = order[at], stamps[at], lane


class Arranged(NamedTuple):
    """Rows in order: their numbers, times and lanes."""

    rows: Int64s
    time_ns: Int64s
    lane: Int32s


def order_rows(lanes: Int32s, times: Int64s, count: int) -> Int64s:
    """Row numbers by (lane, time, arrival)."""
    codes = np.zeros(len(lanes), np.int8)
    return _sorted(lanes, times, codes, count)[0]


def arrange(
    lanes: Int32s, times: Int64s, codes: Any, watermark: Int64s, count: int
) -> tuple[Arranged, Arranged]:
    """The accepted rows in two parts, each by (lane, time, arrival): those the watermark of their
    lane has passed, and those that wait."""
    # All memory is asked for here: other threads would give theirs back to the system each time.
    order, stamps, edges = _sorted(lanes, times, codes, count)
    leaves, out = np.empty(count, np.int64), np.zeros(count + 1, np.int64)
    passed(stamps, edges, watermark, leaves, np.arange(count))
    np.cumsum(leaves, out=out[1:])
    rows, when = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    where = np.empty(len(order), np.int32)

    def write(which: Int64s) -> None:
        part_rows(order, stamps, edges, leaves, out, which, rows, when, where)

    each(write, _dealt_out(len(order), count))
    cut = int(out[count])
    return (
        Arranged(rows[:cut], when[:cut], where[:cut]),
        Arranged(rows[cut:], when[cut:], where[cut:]),
    )


def _sorted(lanes: Int32s, times: Int64s, codes: Any, count: int) -> tuple[Int64s, Int64s, Int64s]:
    """The accepted rows in order, their times, and where each lane begins."""
    n, lanes, times, codes = len(lanes), as_readonly(lanes), as_readonly(times), as_readonly(codes)
    edges, ends = np.empty(count + 1, np.int64), np.empty((2, count), np.int64)
    if spans(lanes, times, codes, edges, ends[0], ends[1]):
        return np.arange(n), times, edges
    total = int(edges[count])
    hands = _dealt_out(total, count)
    owner, starts = np.zeros(count, np.int32), np.zeros(len(hands) + 1, np.int64)
    for number, which in enumerate(hands):
        owner[which] = number
        starts[number + 1] = starts[number] + np.diff(edges)[which].sum()
    dealt, order, stamps = (np.empty(total, np.int64) for _ in range(3))
    part, places = np.empty(total, np.int32), np.empty(total, np.int32)
    deal(lanes, codes, owner, starts, dealt)

    def work(number: int) -> None:
        mine = slice(starts[number], starts[number + 1])
        by_lane_and_time(
            lanes, times, edges, ends[0], ends[1],
            dealt[mine], part[mine], places, order, stamps, hands[number],
        )  # fmt: skip

    each(work, range(len(hands)))
    return order, as_readonly(stamps), edges


def _dealt_out(rows: int, count: int) -> list[Int64s]:
    """The lanes for each thread, in turns: busy ones often have low numbers, being the first."""
    some = min(len(parts(rows)), count)
    return [np.arange(number, count, some) for number in range(some)]
