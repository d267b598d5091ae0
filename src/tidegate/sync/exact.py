"""The exact-time search: sets of equal stamps.

The open stamps of a lane stand in a ring, oldest first; each has a *slot* with one row number per
topic. A full slot is a set, and what is older than it goes; more open stamps than the queue holds
and the oldest goes. Stamps in order cost O(topics) per message; one out of order is slid into its
place from the young end.

`stamps` of a lane holds two things per place of the ring: the (corrected) stamp, and behind all of
them the slot that belongs to it. Slots are never moved, only their numbers are.

Clock policy: event time only, as in the approximate-time search. Stamps are equal if they are equal
after the offsets of their topics were added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.numba import brief_kernel
from tidegate.core.numba import lean_kernel as kernel
from tidegate.sync.lane import (
    HISTORY,
    LOWEST,
    MOST,
    PARTS,
    TALLY,
    LeaveReason,
    apart,
    capped,
    carray,
    corrected,
    forget_history,
    lane_at,
    lane_of,
    note_arrival,
    note_drop,
    output_at,
    output_of,
    pointer,
    record,
    tell,
)

__all__ = [
    "SEARCH",
    "TOPIC",
    "check_exact",
    "finish_exact",
    "push_one_exact",
    "run_exact",
    "search_exact",
    "tick_exact",
]

SEARCH = record(
    "head",  # running number of the oldest open stamp
    "count",  # open stamps
    "open",  # 1: a message has come since the start or the last flush
    "now",  # the lane's clock: the newest corrected stamp
    "first",  # its clock when it opened, or after the last jump
    # Counters: these survive a flush.
    "seen", "sets", "steps",
)  # fmt: skip
"""The state of a lane."""

TOPIC = record("newest", "last", "started", "held", *HISTORY, *TALLY)
"""The state of a topic in a lane: its newest and its last corrected stamp, whether a message has
come, how many messages it holds, its history and its counters."""


@kernel
def _delivered(lane: Any, j: Any, stamp: Any) -> Any:
    """Return the stamp of topic `j` as it was delivered, from the corrected one."""
    return corrected(stamp, -lane.limits[j].offset)


@kernel
def _drop_slot(lane: Any, out: Any, place: Any, reason: Any, index: Any, amount: Any) -> None:
    """Let all messages of the open stamp at `place` leave without a set.

    Args:
        lane: The `Lane`.
        out: The `Output` they are noted in.
        place: Index of the stamp in the ring.
        reason: A `LeaveReason`.
        index: Running number of the message that decided it; -1 for a flush.
        amount: By how many ns, where the reason has an amount; else 0.
    """
    n = lane.rules.topics
    slot = lane.stamps[lane.rules.ring + place]
    for j in range(n):
        row = lane.rows[slot * n + j]
        if row >= 0:
            stamp = _delivered(lane, j, lane.stamps[place])
            note_drop(out, row, reason, j, index, amount, stamp)
            lane.topics[j].dropped[reason] += 1
            lane.topics[j].held -= 1


@kernel
def _drop_oldest(lane: Any, out: Any, reason: Any, index: Any) -> None:
    """Let the oldest open stamp go, with all its messages. There is at least one open stamp."""
    search = lane.search
    place = search.head & (lane.rules.ring - 1)
    _drop_slot(lane, out, place, reason, index, np.int64(0))
    search.head += 1
    search.count -= 1
    search.steps += lane.rules.topics


@kernel
def _slot_of_stamp(lane: Any, t: Any) -> Any:
    """Return the slot of the corrected stamp `t`, opening one if the stamp is new.

    Searched from the young end: stamps mostly come in order, so the first or second look finds it.
    A new stamp between others moves the younger ones up by one place; only stamps and slot numbers
    move, never the row numbers in the slots.
    """
    search, stamps, rows = lane.search, lane.stamps, lane.rows
    n, size = lane.rules.topics, lane.rules.ring
    mask = size - 1
    behind = search.head + search.count
    at = behind
    while at > search.head and stamps[(at - 1) & mask] > t:
        at -= 1
    search.steps += behind - at + 1
    if at > search.head and stamps[(at - 1) & mask] == t:
        return stamps[size + ((at - 1) & mask)]
    slot = stamps[size + (behind & mask)]  # the place behind the last one holds a free slot
    k = behind
    while k > at:
        stamps[k & mask] = stamps[(k - 1) & mask]
        stamps[size + (k & mask)] = stamps[size + ((k - 1) & mask)]
        k -= 1
    stamps[at & mask] = t
    stamps[size + (at & mask)] = slot
    for j in range(n):
        rows[slot * n + j] = -1
    search.count += 1
    return slot


@kernel
def _drop_far_stamps(lane: Any, out: Any, i: Any, t: Any, row: Any, index: Any) -> None:
    """Handle a jump: the clock of topic `i` went back to `t`, so open stamps on the far side will
    not fill.

    Open stamps up to `t`, or within the bound of the jump ahead of it, are kept. The lane's clock
    starts again at `t`.

    Args:
        lane: The `Lane`.
        out: The `Output`; the jump itself is noted there as CLOCK_JUMP.
        i: Number of the topic.
        t: Corrected stamp after the jump.
        row: Row number of the message that brought it. The message stays.
        index: Its running number.
    """
    search, mask = lane.search, lane.rules.ring - 1
    bound = np.uint64(lane.limits[i].jump_bound)
    topic = lane.topics[i]
    amount = capped(topic.newest, t)
    note_drop(out, row, LeaveReason.CLOCK_JUMP, i, index, amount, _delivered(lane, i, t))
    topic.jumps += 1
    near = 0  # those before it are near: they are kept, in front
    while near < search.count:
        stamp = lane.stamps[(search.head + near) & mask]
        if stamp > t and apart(stamp, t) > bound:
            break
        near += 1
    for k in range(near, search.count):
        _drop_slot(lane, out, (search.head + k) & mask, LeaveReason.TIME_JUMP, index, amount)
    search.count = near
    topic.newest = t
    search.now = t
    search.first = t


@kernel
def _oldest_expired(lane: Any) -> bool:
    """Return whether `queue_time` is over for the oldest of several open stamps.

    Measured against the newest of the topics' last stamps, not the lane's clock: one wrong stamp
    in the future would hold that for ever.
    """
    search = lane.search
    if lane.rules.queue_time < 0 or search.count < 2:
        return False
    oldest, newest = lane.stamps[search.head & (lane.rules.ring - 1)], np.int64(LOWEST)
    for j in range(lane.rules.topics):
        if lane.topics[j].started != 0:
            newest = max(newest, lane.topics[j].last)
    return bool(newest > oldest and apart(newest, oldest) > np.uint64(lane.rules.queue_time))


@kernel
def _admit_to_slot(lane: Any, out: Any, i: Any, stamp: Any, row: Any, index: Any) -> Any:
    """Handle one message: put it into the slot of its stamp, and deliver the slot if it is full.

    A second message of the same topic and stamp replaces the first. A set makes all older open
    stamps leave as too old: stamps are taken to arrive in order. Then the bounds on open stamps
    are enforced.

    Args:
        lane: The `Lane`.
        out: The `Output` for sets and drops.
        i: Number of the topic.
        stamp: Its stamp as delivered, in ns.
        row: Row number of the message.
        index: Running number, for what it decides.

    Returns:
        The place in `lane.rows` where its row number is kept.
    """
    search, rules, topic, rows = lane.search, lane.rules, lane.topics[i], lane.rows
    n, size = rules.topics, rules.ring
    t = corrected(stamp, lane.limits[i].offset)
    if search.open == 0:
        search.open = 1
        search.now = t
        search.first = t
        search.head = 0
        for k in range(size):
            lane.stamps[size + k] = k
    search.seen += 1
    topic.received += 1
    last = topic.last
    if topic.started == 0:
        topic.started = 1
        topic.newest = t
    elif t < topic.newest:
        topic.disorder += 1
        bound = lane.limits[i].jump_bound
        if bound >= 0 and apart(topic.newest, t) > np.uint64(bound):
            _drop_far_stamps(lane, out, i, t, row, index)
    topic.newest = max(topic.newest, t)
    topic.last = t
    search.now = max(search.now, t)
    note_arrival(search, topic, t, last)
    slot = _slot_of_stamp(lane, t)
    before = rows[slot * n + i]
    if before >= 0:
        note_drop(out, before, LeaveReason.REPLACED, i, index, np.int64(0), stamp)
        topic.dropped[LeaveReason.REPLACED] += 1
        topic.held -= 1
    rows[slot * n + i] = row
    topic.held += 1
    search.steps += n
    full = True
    for j in range(n):
        if rows[slot * n + j] < 0:
            full = False
            break
    if full:
        k = out.count.sets
        latest = np.int64(LOWEST)
        for j in range(n):
            out.members[k, j] = rows[slot * n + j]
            delivered = _delivered(lane, j, t)
            out.times[k, j] = delivered
            latest = max(latest, delivered)
            rows[slot * n + j] = -1
            lane.topics[j].matched += 1
            lane.topics[j].held -= 1
            lane.topics[j].since_set = 0
        made = out.sets[k]
        made.index = index
        made.spread_ns = 0
        made.time_ns = latest
        made.lane = lane.number
        made.decided_at_ns = stamp
        made.delay_ns = 0
        out.count.sets = k + 1
        search.sets += 1
        # Up to the set's own place, which is empty by now.
        while search.count > 0 and lane.stamps[search.head & (size - 1)] <= t:
            _drop_oldest(lane, out, LeaveReason.TOO_OLD, index)
    while search.count > rules.queue or _oldest_expired(lane):
        _drop_oldest(lane, out, LeaveReason.OVERFLOW, index)
    return slot * n + i


@kernel
def run_exact(arrays: Any, messages: Any, out: Any) -> None:
    """`Matcher.run` of this search."""
    output = output_of(out)
    for k in range(len(messages.topic)):
        number, row = messages.lane[k], messages.first_row + k
        lane = lane_of(arrays, number)
        i, stamp = messages.topic[k], messages.time_ns[k]
        messages.places[k] = _admit_to_slot(lane, output, i, stamp, row, row)


@brief_kernel  # carray needs reference counts
def push_one_exact(address: Any, i: Any, stamp: Any) -> Any:
    """`Matcher.push_one` of this search."""
    at = carray(pointer(address), (PARTS,), np.int64)
    lane = lane_at(at, SEARCH, TOPIC)
    out = output_at(at, lane.rules.topics, lane.rules.ring)
    row = lane.search.seen
    _admit_to_slot(lane, out, i, stamp, row, row)
    return tell(at, out, lane.rules.topics)


@kernel
def tick_exact(arrays: Any, lanes: Any, now: Any, out: Any) -> None:
    """Do nothing: no topic is optional here, so no decision depends on time that passes."""


@kernel
def search_exact(arrays: Any, lanes: Any, out: Any) -> None:
    """Do nothing: a set is found when its last message comes, and no rule can undo an open one."""


@kernel
def finish_exact(arrays: Any, lanes: Any, out: Any) -> None:
    """End these lanes: their open stamps will not fill, so their messages leave as `flush`.

    The lanes are then empty and may be used again; counters stay.

    Args:
        arrays: The `LaneArrays` of all lanes.
        lanes: Numbers of the lanes.
        out: The `Output` for drops.
    """
    output = output_of(out)
    for number in lanes:
        lane = lane_of(arrays, number)
        search = lane.search
        while search.count > 0:
            _drop_oldest(lane, output, LeaveReason.FLUSH, np.int64(-1))
        search.head = search.count = search.open = search.now = search.first = 0
        for j in range(lane.rules.topics):
            topic = lane.topics[j]
            topic.newest = topic.last = topic.started = topic.held = 0
            forget_history(topic)


PROBLEMS = (
    "",
    "more open stamps than its bound",
    "open stamps in a lane that is not open",
    "slots that are not one per place",
    "open stamps out of order",
    "a wrong count of held messages",
    "a complete set that was not delivered",
    "a running number out of range",
)
"""What `check_exact` may find: its result is an index into these."""


@kernel
def check_exact(arrays: Any, scratch: Any) -> Any:
    """`Matcher.check` of this search; the scratch shows that no slot belongs to two places."""
    for number in range(len(arrays.search)):
        lane = lane_of(arrays, number)
        problem = _check_lane(lane, scratch)
        if problem != 0:
            return number, problem
    return 0, 0


@kernel
def _check_lane(lane: Any, scratch: Any) -> Any:
    """Check one lane: its ring, its slots and the counts derived from them. Returns an index into
    PROBLEMS."""
    search, rules = lane.search, lane.rules
    n, size = rules.topics, rules.ring
    if not 0 <= search.seen <= MOST or search.head > MOST:
        return 7
    for j in range(n):
        if not 0 <= lane.topics[j].arrivals <= MOST:
            return 7
    if search.head < 0 or not 0 <= search.count <= rules.queue:
        return 1
    if search.open == 0:
        return 0 if search.count == 0 else 2
    total = np.int64(0)
    for k in range(size):
        slot = lane.stamps[size + k]
        if not 0 <= slot < size:
            return 3
        if scratch[slot] == lane.number + 1:
            return 3
        scratch[slot] = lane.number + 1
    for k in range(search.count):
        place = (search.head + k) & (size - 1)
        if k > 0:
            before = lane.stamps[(search.head + k - 1) & (size - 1)]
            if lane.stamps[place] <= before:
                return 4
        slot = lane.stamps[size + place]
        full = True
        for j in range(n):
            if lane.rows[slot * n + j] < 0:
                full = False
            else:
                total += 1
        if full:
            return 6
    for j in range(n):
        held = np.int64(0)
        for k in range(search.count):
            slot = lane.stamps[size + ((search.head + k) & (size - 1))]
            if lane.rows[slot * n + j] >= 0:
                held += 1
        if lane.topics[j].held != held:
            return 5
        total -= held
    return 0 if total == 0 else 5
