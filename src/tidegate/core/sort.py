"""Sort rows by (lane, time, arrival), in time linear in the rows.

    1. one pass: how many rows each lane has and between which times (`find_spans`); if the rows are
       in order already, nothing else is done
    2. rows are dealt to threads by lane (`deal`), and each thread sorts its lanes:
       a. counted into as many equal parts of the lane's span as it has rows (`sort_roughly`): where
          times are spread evenly, hardly a row is then out of place
       b. each moved to its place (`insert_rows`), or, where that would be far, a radix sort by time
          and a counting sort by lane
    3. the rows of each lane that the watermark has passed are written first (`split`)

Every step is stable, so rows with equal times keep their order of arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidegate.core.numba import all_readonly, as_readonly, kernel
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.parallel import MANY, each, parts
from tidegate.core.time import MAX_NS, MIN_NS

__all__ = ["Arranged", "arrange", "order_rows"]

ACCEPTED = 0
"""The code of rows to be sorted; rows with any other code are left out."""

_BITS = np.uint64(11)
_BUCKETS = 2**11
_DIGIT = np.uint64(_BUCKETS - 1)
"""A digit of the radix sort: 2,048 counters (16 KiB) stay in the first-level cache."""
_SIGN = np.uint64(2**63)
"""With its sign bit flipped, an int64 is a uint64 of the same order: differences cannot wrap."""

MOVES = 16
"""Positions a row may be moved on average before that costs more than a radix sort."""


class Spans(NamedTuple):
    """Per lane: where its rows begin in the sorted order (one more entry than lanes), and its
    earliest and latest time."""

    edges: Any
    first: Any
    last: Any


class Scratch(NamedTuple):
    """Room for counting: the part of each row, and the next free position of each part."""

    part: Any
    places: Any


class Arranged(NamedTuple):
    """Rows in order: their indices, times and lanes."""

    rows: Int64s
    time_ns: Int64s
    lane: Int32s


@kernel
def find_spans(lanes: Int32s, times: Int64s, codes: Any, spans: Spans) -> bool:
    """Fill `spans` from the accepted rows. Whether all rows are accepted and sorted already."""
    edges, first, last = spans
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
    """Write the accepted rows to the owners of their lanes, from `starts[owner]` on, in order of
    arrival."""
    free = starts.copy()
    for row in range(lanes.shape[0]):
        if codes[row] == ACCEPTED:
            mine = owner[lanes[row]]
            dealt[free[mine]] = row
            free[mine] += 1


@kernel
def sort_roughly(
    lanes: Int32s, times: Int64s, spans: Spans, rows: Int64s, scratch: Scratch, order: Int64s,
    which: Int64s,
) -> None:  # fmt: skip
    """Put `rows`, all those of the lanes `which`, into `order` by lane and nearly by time.

    The span of a lane is cut into as many equal parts as it has rows, and rows are counted into
    them. Where times are spread evenly a part has one or two; at worst all rows of a lane share a
    part and stay in order of arrival.
    """
    edges, first, last = spans
    part, places = scratch
    scale = np.zeros(len(first), np.float64)
    for lane in which:
        span = np.float64(last[lane]) - np.float64(first[lane])
        if span > 0:
            scale[lane] = (edges[lane + 1] - edges[lane] - 1) / span
        for at in range(edges[lane], edges[lane + 1]):
            places[at] = 0
    for k in range(len(rows)):
        lane = lanes[rows[k]]
        # Rounding does no harm: the part never decreases with time.
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
    """Sort the rows of these lanes by time, moving each to its place; `stamps` become their times.
    False if rows would have to move far: `order` is then no worse than before."""
    budget = np.int64(4096)  # grows with every row; rows far out of order use it up early
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
    """Sort row indices by time, digit by digit of the distance from the earliest; stable."""
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
def sort_lanes(
    lanes: Int32s, times: Int64s, spans: Spans, rows: Int64s, scratch: Scratch, order: Int64s,
    stamps: Int64s, which: Int64s,
) -> None:  # fmt: skip
    """Put `rows`, all those of the lanes `which`, into `order` by (lane, time, arrival), and their
    times into `stamps`."""
    if len(rows) == 0:
        return
    edges = spans.edges
    sort_roughly(lanes, times, spans, rows, scratch, order, which)
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
    """Count the rows of each of these lanes at or before its watermark into `leaves`."""
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
def split(
    order: Int64s, stamps: Int64s, edges: Int64s, leaves: Int64s, out: Int64s, which: Int64s,
    into: Arranged,
) -> None:  # fmt: skip
    """Write the rows of these lanes: those that leave from `out[lane]` on, the others behind all
    that leave."""
    rows, when, where = into
    total = out[len(out) - 1]
    for lane in which:
        cut = edges[lane] + leaves[lane]
        there = out[lane] - edges[lane]
        for at in range(edges[lane], cut):
            rows[there + at], when[there + at], where[there + at] = order[at], stamps[at], lane
        there = total - out[lane + 1]
        for at in range(cut, edges[lane + 1]):
            rows[there + at], when[there + at], where[there + at] = order[at], stamps[at], lane


def order_rows(lanes: Int32s, times: Int64s, count: int) -> Int64s:
    """Sort rows.

    Args:
        lanes: the lane of each row, in [0, count).
        times: the time of each row.
        count: the number of lanes.

    Returns:
        Row indices in order of (lane, time, arrival).

    Example:
        >>> order_rows(np.array([1, 0, 0], np.int32), np.array([5, 9, 7]), 2).tolist()
        [2, 1, 0]
    """
    codes = np.zeros(len(lanes), np.int8)
    return _sorted(lanes, times, codes, count)[0]


def arrange(
    lanes: Int32s, times: Int64s, codes: Any, watermark: Int64s, count: int
) -> tuple[Arranged, Arranged]:
    """Sort the accepted rows, and split them at the watermark.

    Args:
        lanes: the lane of each row, in [0, count).
        times: the time of each row.
        codes: one entry per row; only rows with 0 (`ACCEPTED`) take part.
        watermark: one entry per lane, inclusive.
        count: the number of lanes.

    Returns:
        The rows at or before the watermark of their lane, and the rest, each in order of (lane,
        time, arrival).
    """
    # Memory is allocated here: worker threads would return theirs to the system each time.
    order, stamps, edges = _sorted(lanes, times, codes, count)
    leaves, out = np.empty(count, np.int64), np.zeros(count + 1, np.int64)
    passed(stamps, edges, watermark, leaves, np.arange(count))
    np.cumsum(leaves, out=out[1:])
    rows, when = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    where = np.empty(len(order), np.int32)

    made = Arranged(rows, when, where)
    if len(order) < MANY:
        split(order, stamps, edges, leaves, out, np.arange(count), made)
    else:
        shares = _lanes_per_thread(len(order), count)
        each(lambda which: split(order, stamps, edges, leaves, out, which, made), shares)
    cut = int(out[count])
    return (
        Arranged(rows[:cut], when[:cut], where[:cut]),
        Arranged(rows[cut:], when[cut:], where[cut:]),
    )


def _sorted(lanes: Int32s, times: Int64s, codes: Any, count: int) -> tuple[Int64s, Int64s, Int64s]:
    """The accepted rows in order, their times, and where the rows of each lane begin."""
    n = len(lanes)
    lanes, times, codes = all_readonly(lanes, times, codes)
    edges, ends = np.empty(count + 1, np.int64), np.empty((2, count), np.int64)
    spans = Spans(edges, ends[0], ends[1])
    if find_spans(lanes, times, codes, spans):
        return np.arange(n), times, edges
    total = int(edges[count])
    shares = _lanes_per_thread(total, count)
    owner, starts = np.zeros(count, np.int32), np.zeros(len(shares) + 1, np.int64)
    for number, which in enumerate(shares):
        owner[which] = number
        starts[number + 1] = starts[number] + np.diff(edges)[which].sum()
    dealt, order, stamps = (np.empty(total, np.int64) for _ in range(3))
    part, places = np.empty(total, np.int32), np.empty(total, np.int32)
    deal(lanes, codes, owner, starts, dealt)

    def work(number: int) -> None:
        mine = slice(starts[number], starts[number + 1])
        scratch = Scratch(part[mine], places)
        sort_lanes(lanes, times, spans, dealt[mine], scratch, order, stamps, shares[number])

    each(work, range(len(shares)))
    return order, as_readonly(stamps), edges


def _lanes_per_thread(rows: int, count: int) -> list[Int64s]:
    """The lanes for each thread, in turns: busy keys are often the first ones, and would otherwise
    all fall to the same thread."""
    some = min(len(parts(rows)), count)
    return [np.arange(number, count, some) for number in range(some)]
