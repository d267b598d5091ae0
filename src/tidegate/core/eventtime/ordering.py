"""Rows by lane and time, in time linear in the rows, for some of the lanes at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tidegate.core.eventtime.kernel import ACCEPTED
from tidegate.core.jit import kernel
from tidegate.core.model import Int32s, Int64s
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.threads import count as threads
from tidegate.threads import each

__all__ = ["Arranged", "arrange", "order_rows"]

_BITS = np.uint64(11)
_BUCKETS = 2**11
_DIGIT = np.uint64(_BUCKETS - 1)
"""A digit of the radix sort: 2,048 buckets stay in the first-level cache."""
_SIGN = np.uint64(2**63)

"""With its sign bit turned, an int64 is a uint64 of the same order: distances cannot wrap."""

MANY = 1 << 16
"""Rows from which on lanes are worked on side by side."""

MOVES = 16
"""Places that rows may be moved on average before it costs more than a radix sort."""


@kernel
def roughly(lanes: Int32s, times: Int64s, codes: Any, low: int, high: int) -> tuple[Int64s, Int64s]:
    """The accepted rows of the lanes from `low` to before `high`, by lane and nearly by time, and
    where each lane begins.

    The span of a lane is cut into as many equal parts as it has rows, and rows are counted into
    them. Where times are spread evenly a part has one or two, and hardly a row is out of place;
    at worst all rows of a lane share a part and stay in order of arrival.
    """
    rows, count = lanes.shape[0], high - low
    edges = np.zeros(count + 1, np.int64)
    first, last = np.full(count, MAX_NS, np.int64), np.full(count, MIN_NS, np.int64)
    for row in range(rows):
        lane = lanes[row] - low
        if codes[row] == ACCEPTED and 0 <= lane < count:
            time = times[row]
            edges[lane + 1] += 1
            first[lane] = min(first[lane], time)
            last[lane] = max(last[lane], time)
    scale = np.zeros(count, np.float64)
    for lane in range(count):
        span = np.float64(last[lane]) - np.float64(first[lane])
        if span > 0:
            scale[lane] = (edges[lane + 1] - 1) / span
        edges[lane + 1] += edges[lane]
    part = np.empty(rows, np.int32)
    places = np.zeros(edges[count] + 1, np.int64)
    for row in range(rows):
        lane = lanes[row] - low
        if codes[row] == ACCEPTED and 0 <= lane < count:
            # As floats: never decreasing with time, whatever is rounded away.
            above = (np.float64(times[row]) - np.float64(first[lane])) * scale[lane]
            part[row] = edges[lane] + np.int64(above)
            places[part[row] + 1] += 1
    for at in range(edges[count]):
        places[at + 1] += places[at]
    order = np.empty(edges[count], np.int64)
    for row in range(rows):
        lane = lanes[row] - low
        if codes[row] == ACCEPTED and 0 <= lane < count:
            order[places[part[row]]] = row
            places[part[row]] += 1
    return order, edges


@kernel
def insert_rows(order: Int64s, edges: Int64s, times: Int64s, stamps: Int64s) -> bool:
    """Bring the rows of each lane into order of time by moving each to its place; `stamps` are
    then their times. False, with nothing done that matters, if they would have to move far."""
    budget = np.int64(4096)  # and more with every row: rows far out of order are found out early
    for lane in range(len(edges) - 1):
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
def is_sorted(lanes: Int32s, times: Int64s, codes: Any) -> bool:
    """Whether all rows are accepted, and by (lane, time) already."""
    for row in range(lanes.shape[0]):
        if codes[row] != ACCEPTED:
            return False
        if row > 0 and (
            lanes[row] < lanes[row - 1]
            or (lanes[row] == lanes[row - 1] and times[row] < times[row - 1])
        ):
            return False
    return True


@kernel
def by_lane_and_time(
    lanes: Int32s, times: Int64s, codes: Any, low: int, high: int
) -> tuple[Int64s, Int64s, Int64s]:
    """The accepted rows of some lanes by (lane, time, arrival), their times, and where each lane
    begins; in time linear in the rows.

    Rows are put roughly in order and then moved to their places. Where that is far, a radix sort of
    the times, then a counting sort by lane. All of these are stable.
    """
    order, edges = roughly(lanes, times, codes, low, high)
    stamps = np.empty(len(order), np.int64)
    if len(order) == 0 or insert_rows(order, edges, times, stamps):
        return order, stamps, edges
    count = 0
    for row in range(len(lanes)):
        if codes[row] == ACCEPTED and low <= lanes[row] < high:
            order[count] = row
            count += 1
    by_time = radix(order.copy(), times)
    places = edges[:-1].copy()
    for row in by_time:
        lane = lanes[row] - low
        order[places[lane]] = row
        stamps[places[lane]] = times[row]
        places[lane] += 1
    return order, stamps, edges


@kernel
def order_rows(lanes: Int32s, times: Int64s, count: int) -> Int64s:
    """Row numbers by (lane, time, arrival)."""
    codes = np.zeros(lanes.shape[0], np.int8)
    if is_sorted(lanes, times, codes):
        return np.arange(lanes.shape[0])
    return by_lane_and_time(lanes, times, codes, 0, count)[0]


@kernel
def _split(
    lanes: Int32s, times: Int64s, codes: Any, watermark: Int64s, low: int, high: int, ready: bool
) -> tuple[Int64s, Int64s, Int32s, int]:
    """The accepted rows of some lanes, their times and lanes: first all that the watermark of their
    lane has passed, by (lane, time, arrival), then all that wait; and how many leave. `ready`: the
    rows lie in that order already, and are those of all lanes."""
    if ready:
        order, stamps = np.arange(len(lanes)), times
        edges = np.searchsorted(lanes, np.arange(low, high + 1, dtype=np.int32))
    else:
        order, stamps, edges = by_lane_and_time(lanes, times, codes, low, high)
    count = len(order)
    leaves = 0
    for lane in range(high - low):
        for at in range(edges[lane], edges[lane + 1]):
            if stamps[at] > watermark[low + lane]:
                break
            leaves += 1
    rows, when = np.empty(count, np.int64), np.empty(count, np.int64)
    where = np.empty(count, np.int32)
    out, kept = 0, leaves
    for lane in range(high - low):
        for at in range(edges[lane], edges[lane + 1]):
            if stamps[at] <= watermark[low + lane]:
                place = out
                out += 1
            else:
                place = kept
                kept += 1
            rows[place], when[place], where[place] = order[at], stamps[at], low + lane
    return rows, when, where, leaves


class Arranged(NamedTuple):
    """Rows in order: their numbers, times and lanes."""

    rows: Int64s
    time_ns: Int64s
    lane: Int32s


def arrange(
    lanes: Int32s, times: Int64s, codes: Any, watermark: Int64s, count: int
) -> tuple[Arranged, Arranged]:
    """The accepted rows in two parts, each by (lane, time, arrival): those the watermark of their
    lane has passed, and those that wait."""
    if is_sorted(lanes, times, codes):
        parts = [_split(lanes, times, codes, watermark, 0, count, True)]
    else:
        some = min(threads(), count) if len(lanes) >= MANY else 1
        edges = [count * part // some for part in range(some + 1)]
        parts = each(
            lambda ends: _split(lanes, times, codes, watermark, *ends, False),
            list(pairwise(edges)),
        )
    leaving = [[column[: part[3]] for column in part[:3]] for part in parts]
    staying = [[column[part[3] :] for column in part[:3]] for part in parts]
    return _joined(leaving), _joined(staying)


def _joined(parts: list[list[Any]]) -> Arranged:
    if len(parts) == 1:
        return Arranged(*parts[0])
    return Arranged(*(np.concatenate(column) for column in zip(*parts, strict=True)))
