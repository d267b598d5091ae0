"""The search for each topic's messages around each point in time: one linear pass per topic.

Rows come in time order per lane. `group_rows` sorts their numbers by (lane, topic) by counting, so
that the messages of one topic in one lane are a contiguous, time-ordered *segment*. `find_values`
then walks each segment side by side with the points of its lane, like the merge step of a merge
sort: the cost is linear in rows plus points, whatever the tolerance.

Everything is decided by `known_ns`, per lane: no row at or before it will come any more. A decision
that could still change is left open, and so are all later points of the lane, because rows leave in
the order of their times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.time import UNSET

__all__ = [
    "AGGREGATE",
    "BLEND",
    "LATEST",
    "NEAREST",
    "NEXT",
    "REFERENCE",
    "UNALIGNED",
    "GridRule",
    "GridState",
    "LaneTimes",
    "Offsets",
    "Points",
    "Search",
    "Segments",
    "count_groups",
    "count_offsets",
    "count_unused",
    "deal_groups",
    "extend_grid",
    "find_values",
    "group_rows",
    "keep_from",
    "point_times",
    "scan_rows",
    "sort_segments",
]

LATEST, NEXT, NEAREST, BLEND, AGGREGATE, REFERENCE, UNALIGNED = range(7)
"""Families of methods, as the kernels tell them apart. The reference topic has a family of its own,
and so has the segment of all topics that are not aligned."""

FAR = 2**63 - 1
"""The largest int64: no limit, the end of a stream, or a difference that does not fit."""


class Segments(NamedTuple):
    """Row numbers sorted by (lane, topic); rows of one segment are in time order."""

    order: Int64s
    """Row numbers."""
    starts: Int64s
    """Segment s = lane * topics + topic holds order[starts[s]:starts[s + 1]]."""
    time_ns: Int64s
    """Times in the order of `order`."""


class Points(NamedTuple):
    """The moments to align to, by lane, in time order within a lane."""

    time_ns: Int64s
    """The moments themselves, in ns since 1970."""
    starts: Int64s
    """The points of lane l are starts[l]:starts[l + 1]."""
    position: Int64s
    """Position of the reference message in `Segments.order`; -1 on a grid."""


class Search(NamedTuple):
    """The settings of a search, one entry per topic, and what is known, one entry per lane."""

    family: Int64s
    """One of the families above; the last entry is `UNALIGNED`."""
    reach_ns: Int64s
    """Tolerance (inclusive) or span (open at its far end) in ns; FAR: no limit."""
    known_ns: Int64s
    """No row at or before this time will come any more; FAR at the end of the stream."""


@kernel
def _time_between(later: int, earlier: int) -> int:
    """later - earlier for later >= earlier, FAR where that does not fit into int64."""
    if earlier < 0 and later > FAR + earlier:
        return FAR
    return later - earlier


@kernel
def _later(time: int, by: int) -> int:
    """time + by, or the latest time there is."""
    return FAR if time > 0 and by > FAR - time else time + by


@kernel
def _waited(known: int, time: int, wait: int) -> bool:
    """Whether no message up to `wait` after `time` can still come."""
    return bool(known == FAR or _time_between(known, time) >= wait)


class LaneTimes(NamedTuple):
    """What a stage remembers of the rows of each lane."""

    newest_ns: Int64s
    """The newest time of any row."""
    last_ns: Int64s
    """The newest time of a message of an aligned topic."""
    first_row: Int64s
    """Filled: the first aligned row of this call; -1 if there is none."""


@kernel
def scan_rows(
    lane: NDArray[np.int32], time_ns: Int64s, number: Int64s, lanes: Any, late: NDArray[np.bool_]
) -> int:
    """Mark rows older than one that came before them in their lane, and move the lanes on.

    Args:
        lane: The lane of each row.
        time_ns: Its time.
        number: The number of its topic; below 0 if it is not aligned.
        lanes: `LaneTimes`; moved on.
        late: Filled: whether the row came out of order.

    Returns:
        How many rows were marked.
    """
    count = 0
    lanes.first_row[:] = -1
    for row in range(len(lane)):
        this = lane[row]
        if time_ns[row] < lanes.newest_ns[this]:
            late[row] = True
            count += 1
            continue
        lanes.newest_ns[this] = time_ns[row]
        if number[row] >= 0:
            lanes.last_ns[this] = time_ns[row]
            if lanes.first_row[this] < 0:
                lanes.first_row[this] = row
    return count


@kernel
def group_rows(
    lane: Any, topic: Any, time_ns: Int64s, sizes: tuple[int, int]
) -> tuple[Int64s, Int64s, Int64s]:
    """Sort row numbers by (lane, topic), stable, by counting.

    Args:
        lane: The lane of each row.
        topic: The number of each row's topic.
        time_ns: The time of each row.
        sizes: The number of lanes and of topics.

    Returns:
        The fields of `Segments`.
    """
    lanes, topics = sizes
    starts = np.zeros(lanes * topics + 1, np.int64)
    for row in range(len(lane)):
        starts[lane[row] * topics + topic[row] + 1] += 1
    for segment in range(lanes * topics):
        starts[segment + 1] += starts[segment]
    cursor = starts[:-1].copy()
    order = np.empty(len(lane), np.int64)
    sorted_ns = np.empty(len(lane), np.int64)
    for row in range(len(lane)):
        segment = lane[row] * topics + topic[row]
        order[cursor[segment]] = row
        sorted_ns[cursor[segment]] = time_ns[row]
        cursor[segment] += 1
    return order, starts, sorted_ns


@kernel
def count_groups(lane: Int64s, topic: NDArray[np.int32], topics: int, counts: Int64s) -> None:
    """Count the rows of each segment: the first half of `group_rows`, for one thread's share.

    Args:
        lane: The lane of each row of the share.
        topic: The number of each row's topic; rows below 0 are left out.
        topics: The number of topics.
        counts: Filled, one entry per segment.
    """
    counts[:] = 0
    for row in range(len(lane)):
        if topic[row] >= 0:
            counts[lane[row] * topics + topic[row]] += 1


@kernel
def deal_groups(share: Any, first_row: int, topics: int, cursor: Int64s, out: Any) -> None:
    """Write the rows of one thread's share to their segments: the second half of `group_rows`.

    Args:
        share: The lane, topic and time of each row, three arrays.
        first_row: The number of the first row of the share.
        topics: The number of topics.
        cursor: Per segment, the first position for this share; moved on.
        out: Filled: the arrays `order` and `time_ns` of `Segments`.
    """
    lane, topic, time_ns = share
    order, sorted_ns = out
    for row in range(len(lane)):
        if topic[row] >= 0:
            segment = lane[row] * topics + topic[row]
            at = cursor[segment]
            order[at] = first_row + row
            sorted_ns[at] = time_ns[row]
            cursor[segment] = at + 1


SHORT_SEGMENT = 64
"""Segments up to this long are always sorted by insertion: at worst 2,000 moves, which is less than
the call of a general sort."""
MOST_MOVES = 16
"""Positions a row may be moved on average before a general sort is faster. Messages that arrive a
little out of order, as recorded, move by one or two."""


@kernel
def sort_segments(
    order: Int64s, time_ns: Int64s, starts: Int64s, which: tuple[int, int], hard: Int64s
) -> int:
    """Sort the rows of some segments by time, by insertion; equal times keep their order.

    Args:
        order: `Segments.order`; sorted in place.
        time_ns: `Segments.time_ns`; likewise.
        starts: `Segments.starts`.
        which: The first segment, and the one behind the last.
        hard: Filled from its front: segments left half sorted because their rows are too far from
            their places. They must be sorted by other means, by time and then by row number.

    Returns:
        How many segments are in `hard`.
    """
    count = 0
    for segment in range(which[0], which[1]):
        begin, end = starts[segment], starts[segment + 1]
        budget = MOST_MOVES * (end - begin) if end - begin > SHORT_SEGMENT else FAR
        for at in range(begin + 1, end):
            time = time_ns[at]
            if time_ns[at - 1] <= time:
                continue
            row, place = order[at], at
            while place > begin and time_ns[place - 1] > time:
                time_ns[place] = time_ns[place - 1]
                order[place] = order[place - 1]
                place -= 1
            time_ns[place] = time
            order[place] = row
            budget -= at - place
            if budget < 0:
                hard[count] = segment
                count += 1
                break
    return count


@kernel
def count_unused(segments: Any, used: NDArray[np.bool_], topics: int, unused: Any) -> int:
    """Count per lane and topic the messages that no row used.

    Args:
        segments: `Segments`.
        used: Per row: whether it has been a value.
        topics: The number of topics, that of the topics that are not aligned included.
        unused: Added to, by lane and aligned topic.

    Returns:
        How many there are in all, those of topics that are not aligned included.
    """
    total = 0
    for segment in range(len(segments.starts) - 1):
        lane, topic = segment // topics, segment % topics
        count = 0
        for position in range(segments.starts[segment], segments.starts[segment + 1]):
            count += not used[segments.order[position]]
        total += count
        if topic < topics - 1:
            unused[lane, topic] += count
    return total


class Offsets(NamedTuple):
    """Statistics of the values of each topic, by lane and topic."""

    values: Any
    """How many rows have a value."""
    missing: Any
    """How many have none."""
    total_ns: Any
    """The sum of the offsets."""
    least_ns: Any
    """The smallest offset."""
    most_ns: Any
    """The largest one."""


@kernel
def count_offsets(
    lane: NDArray[np.int32], offset_ns: Int64s, lacking: Any, topic: int, offsets: Any
) -> None:
    """Add the values of one topic to the statistics.

    Args:
        lane: The lane of each point.
        offset_ns: How far its value is from it.
        lacking: Whether there is none.
        topic: The number of the topic.
        offsets: `Offsets`; added to.
    """
    for point in range(len(lane)):
        this = lane[point]
        if lacking[point]:
            offsets.missing[this, topic] += 1
            continue
        offsets.values[this, topic] += 1
        offsets.total_ns[this, topic] += offset_ns[point]
        offsets.least_ns[this, topic] = min(offsets.least_ns[this, topic], offset_ns[point])
        offsets.most_ns[this, topic] = max(offsets.most_ns[this, topic], offset_ns[point])


@kernel
def find_values(segments: Any, points: Any, search: Any, left: Any, right: Any, ready: Any) -> None:
    """Find the messages around every point and how many points of each lane are decided.

    Args:
        segments: `Segments`.
        points: `Points`.
        search: `Search`.
        left: Filled, one row per topic, one column per point, with positions in `Segments.order`,
            -1 where there is none: the message; for `BLEND` the message at or before the point;
            for `AGGREGATE` the first message of the span.
        right: Likewise: for `BLEND` the message after the point (or the same, if its time is that
            of the point), for `AGGREGATE` the end of the span.
        ready: Filled, one entry per lane: how many points at its head are decided.
    """
    topics = len(search.family)
    for lane in range(len(points.starts) - 1):
        first, last = points.starts[lane], points.starts[lane + 1]
        known = search.known_ns[lane]
        decided = last - first
        for topic in range(topics):
            begin = segments.starts[lane * topics + topic]
            end = segments.starts[lane * topics + topic + 1]
            family, reach = search.family[topic], search.reach_ns[topic]
            if family == UNALIGNED:
                continue
            if family == REFERENCE:
                for point in range(first, last):
                    left[topic, point] = points.position[point]
                continue
            after = begin  # the first message later than the point
            at = begin  # the first message at or after the point
            since = begin  # the first message within the span of an aggregate
            for point in range(first, last):
                time = points.time_ns[point]
                while at < end and segments.time_ns[at] < time:
                    at += 1
                after = max(after, at)
                while after < end and segments.time_ns[after] <= time:
                    after += 1
                back = FAR if after == begin else _time_between(time, segments.time_ns[after - 1])
                certain = known >= time  # no message at or before the point is still to come
                if family == LATEST:
                    left[topic, point] = after - 1 if after > begin and back <= reach else -1
                elif family == AGGREGATE:
                    while since < after and _time_between(time, segments.time_ns[since]) >= reach:
                        since += 1
                    # The span is (time - reach, time]: it is the half-open end that is far away.
                    left[topic, point] = since
                    right[topic, point] = after
                elif family == NEXT:
                    ahead = FAR if at == end else _time_between(segments.time_ns[at], time)
                    left[topic, point] = at if at < end and ahead <= reach else -1
                    certain = certain and (at < end or _waited(known, time, reach))
                elif family == NEAREST:
                    ahead = FAR if after == end else _time_between(segments.time_ns[after], time)
                    if after > begin and back <= ahead:
                        left[topic, point] = after - 1 if back <= reach else -1
                    else:
                        left[topic, point] = after if after < end and ahead <= reach else -1
                    if certain and after == end:
                        # A message still to come is later than `known`; it loses against one
                        # that is no farther back than that.
                        wait = reach if after == begin else min(reach, back - 1)
                        certain = _waited(known, time, wait)
                else:
                    ahead = FAR if after == end else _time_between(segments.time_ns[after], time)
                    if after > begin and back == 0:
                        left[topic, point] = right[topic, point] = after - 1
                    elif after == begin or back > reach:
                        left[topic, point] = right[topic, point] = -1
                    else:
                        close = after < end and ahead <= reach
                        left[topic, point] = after - 1 if close else -1
                        right[topic, point] = after if close else -1
                        if certain and after == end:
                            certain = _waited(known, time, reach)
                if not certain:
                    decided = min(decided, point - first)
                    break
        ready[lane] = decided


@kernel
def keep_from(segments: Any, search: Any, next_ns: Int64s, begin: Int64s, leave_ns: Int64s) -> None:
    """Find the first message of every segment that a later point may still need.

    Args:
        segments: `Segments`.
        search: `Search`.
        next_ns: Per lane, the earliest time that a point not yet delivered can have.
        begin: Filled, one entry per segment: messages before it will not be needed any more.
        leave_ns: Filled, one entry per position before `begin`: the smallest `next_ns` at which the
            message is not needed any more. It depends on the messages alone, so messages that leave
            by it leave in the same order however the input was cut.
    """
    topics = len(search.family)
    for segment in range(len(begin)):
        lane, topic = segment // topics, segment % topics
        first, end = segments.starts[segment], segments.starts[segment + 1]
        family, reach = search.family[topic], search.reach_ns[topic]
        at = first
        while at < end:
            time = segments.time_ns[at]
            if family in (REFERENCE, NEXT, UNALIGNED):
                leave = _later(time, 1)
            elif family == AGGREGATE:
                leave = _later(time, reach)
            else:
                leave = _later(_later(time, reach), 1)
                if at + 1 < end:  # a newer message takes its place
                    leave = min(leave, _later(segments.time_ns[at + 1], 1))
            if leave > next_ns[lane]:
                break
            leave_ns[at] = leave
            at += 1
        begin[segment] = at


@kernel
def point_time(number: int, origin: int, numerator: int, denominator: int) -> int:
    """The time of point `number`: origin + number * numerator / denominator, rounded half up.

    Whole multiples of the denominator are taken out first, so nothing overflows.

    Args:
        number: The number of the point; may be negative.
        origin: The time of point 0.
        numerator: With `denominator`, the period in nanoseconds.
        denominator: At least 1.
    """
    whole, rest = number // denominator, number % denominator
    return origin + whole * numerator + (2 * rest * numerator + denominator) // (2 * denominator)


@kernel
def last_point(time: int, origin: int, numerator: int, denominator: int) -> int:
    """The number of the last point at or before `time`.

    The division gives the number up to the rounding of `point_time`; the two loops correct for
    that.
    """
    whole, rest = (time - origin) // numerator, (time - origin) % numerator
    number = whole * denominator + rest * denominator // numerator
    while point_time(number + 1, origin, numerator, denominator) <= time:
        number += 1
    while point_time(number, origin, numerator, denominator) > time:
        number -= 1
    return number


class GridState(NamedTuple):
    """What a grid remembers, one entry per lane."""

    number: Int64s
    """The number of the next point; UNSET before the first message."""
    covered_ns: Int64s
    """Points after this time wait for the next message: the lane may have fallen silent."""


class GridRule(NamedTuple):
    """Where the points of a grid are, and for how long a lane goes on without messages."""

    origin: int
    """The time of point 0, in ns since 1970."""
    numerator: int
    """With `denominator`, the period as an exact fraction of nanoseconds, so that no point
    drifts."""
    denominator: int
    """The period is numerator / denominator nanoseconds."""
    gap_ns: int
    """How long after its last message a lane still makes points."""


@kernel
def extend_grid(
    lane: NDArray[np.int32],
    time_ns: Int64s,
    known_ns: Int64s,
    state: Any,
    rule: Any,
    out: Any,
) -> int:
    """Make the points up to what is known, given rows in time order per lane.

    Args:
        lane: The lane of each new row.
        time_ns: Its time.
        known_ns: What is known, per lane.
        state: `GridState`; moved on.
        rule: `GridRule`.
        out: Two arrays for the lanes and times of the points; empty ones only count.

    Returns:
        The number of points.
    """
    out_lane, out_time = out
    origin, numerator, denominator = rule.origin, rule.numerator, rule.denominator
    write = len(out_lane) > 0
    count = 0
    for row in range(len(lane) + len(state.number)):
        if row < len(lane):
            this = lane[row]
            until = time_ns[row] - 1
        else:
            this = row - len(lane)
            until = known_ns[this]
        if state.number[this] == UNSET:
            if row < len(lane):
                state.number[this] = last_point(until, origin, numerator, denominator) + 1
                state.covered_ns[this] = _later(time_ns[row], rule.gap_ns)
            continue
        last = last_point(min(until, state.covered_ns[this]), origin, numerator, denominator)
        for number in range(state.number[this], last + 1):
            if write:
                out_lane[count] = this
                out_time[count] = point_time(number, origin, numerator, denominator)
            count += 1
        state.number[this] = max(state.number[this], last + 1)
        if row < len(lane):
            if until > state.covered_ns[this]:
                skipped = last_point(until, origin, numerator, denominator) + 1
                state.number[this] = max(state.number[this], skipped)
            state.covered_ns[this] = _later(time_ns[row], rule.gap_ns)
    return count


@kernel
def point_times(number: Int64s, rule: Any) -> Int64s:
    """The times of the points with these numbers; UNSET for UNSET."""
    out = np.empty(len(number), np.int64)
    for at in range(len(number)):
        out[at] = UNSET
        if number[at] != UNSET:
            out[at] = point_time(number[at], rule.origin, rule.numerator, rule.denominator)
    return out
