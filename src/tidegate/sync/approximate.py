"""The approximate-time search: one message of each topic, chosen as soon as the choice is proven.

The published rules (message_filters' ApproximateTime policy) move one front message at a time from
a queue into a past buffer and back. This kernel gives the same sets, decided at the same input,
without moving anything. Why that is allowed:

- The *candidate* is the best set known so far: its members are the fronts of the queues. The
  *pivot* is the topic of the latest member of the first candidate. While a candidate lives, only
  messages older than the pivot's leave their queue, oldest front first. So a topic's part in the
  search is two numbers: `low`, the newest stamp it has to pass, and `next`, its first message at or
  after the pivot (if it came already). Once `low` is passed, `next` stands at the front, and the
  end of the current interval (`reach`) is the largest of those.
- Fronts up to `limit = candidate start + (reach - candidate end) * (1 + age penalty)` are not
  better than the candidate. Passing a topic can only raise the reach and so the limit: passing all
  topics with `low <= limit` until nothing changes gives what single moves would have given.
- If a topic has nothing beyond the limit, its queue runs empty: of these the one with the smallest
  (low, topic) first. That topic is waited for (`wait`); a message of any other one starts nothing.
- If every topic has something beyond the limit, those messages are the better candidate. What lies
  before them is gone, so each message is stepped over once in its life.
- A queue is a ring; its head is the candidate's member, so "restore the past" is doing nothing.

The cost per message is one scan over the topics (times the rounds in which the reach grows),
whatever the queue size. `steps` counts them, and the tests hold it to that.

Clock policy: event time only. A lane's clock is the newest corrected stamp among its own messages
(`now`) or the time of a `tick`, whichever is later; so the outcome depends on the messages and
their order, never on when or how they were handed over.

The one departure from the published rules is `EQUAL_PATIENCE`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.numba import brief_kernel
from tidegate.core.numba import lean_inline as inline
from tidegate.core.numba import lean_kernel as kernel
from tidegate.sync.lane import (
    HIGHEST,
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
    later,
    note_arrival,
    note_drop,
    output_at,
    output_of,
    pointer,
    record,
    scaled,
    tell,
)

__all__ = [
    "SEARCH",
    "TOPIC",
    "check_approximate",
    "finish_approximate",
    "push_one_approximate",
    "run_approximate",
    "search_approximate",
    "tick_approximate",
]

SEARCH = record(
    # The candidate. Topic numbers are stored plus one, so that a lane of zeros is an empty lane.
    "pivot",  # topic + 1; 0: there is no candidate
    "wait",  # topic + 1 whose next message continues the search
    "start", "end",  # earliest and latest member
    "pivot_time", "reach",
    "hurry",  # 1: publish as it stands
    # The lane.
    "present",  # topics with a message in their queue, or absent
    "open",  # 1: a message has come since the start or the last flush
    "now",  # its clock
    "moment",  # stamp of the message being handled, as delivered
    "moment_corrected",
    "first",  # its clock when it opened, or after the last jump
    "deadline",  # next time an optional topic may become absent; LOWEST: find out
    "rejected",  # candidates refused since the last set
    "equal_stamp", "equal_streak",  # see EQUAL_PATIENCE
    "streak",  # candidates undone or refused by overflow in a row
    # Counters: these survive a flush.
    "seen", "sets", "steps",
)  # fmt: skip
"""The state of a lane."""

TOPIC = record(
    "head", "tail",  # the queue: running numbers of its first message and the next to come
    "front",  # corrected stamp of the message at the head
    "low", "next",  # see above; next: LOWEST if it has not come
    "last", "newest",  # corrected stamp of the last message, and the largest one
    "flag",  # 1: lost a message to overflow
    "takes_part",  # 1: has a member in the candidate
    "absent",  # 1: optional and silent for longer than the timeout
    "inverted",  # running number of the last message that came out of order
    "started",  # 1: a message has come
    "bound", "gap", "gap_before", "gaps",  # learned lower bound: see _learn
    *HISTORY,
    *TALLY,
)  # fmt: skip
"""The state of a topic in a lane. Of a flushed lane, head and tail go on counting."""

EQUAL_PATIENCE = 64
"""How many sets of one and the same stamp an overflow may veto. No lost message could have been
closer than that, and with a clock that repeats one stamp the veto would never end. Fewer would
change outcomes of ordinary traces with a few equal stamps; more only delays the recovery."""

LEARN_GAPS = 32
"""Gaps per block when learning bounds: the bound holds for the last one to two blocks. Fewer, and
one short gap is forgotten too soon; more, and a topic that becomes faster is wrong for longer."""


@kernel
def _drop(lane: Any, out: Any, j: Any, reason: Any, index: Any, amount: Any) -> None:
    """Let the oldest message of topic `j` leave without a set.

    Args:
        lane: The `Lane`.
        out: The `Output` it is noted in.
        j: Number of the topic; its queue is not empty.
        reason: A `LeaveReason`.
        index: Running number of the message that decided it; -1 for a flush or a tick.
        amount: By how many ns, where the reason has an amount; else 0.
    """
    topic = lane.topics[j]
    place = j * lane.rules.ring + (topic.head & (lane.rules.ring - 1))
    note_drop(out, lane.rows[place], reason, j, index, amount, lane.stamps[place])
    topic.dropped[reason] += 1
    _behead(lane, j)


@inline
def _behead(lane: Any, j: Any) -> None:
    """Take the head off the queue of topic `j`, and keep `front` and `present` right.

    An absent topic counts as present even with an empty queue, so it is not taken off the count.
    """
    topic = lane.topics[j]
    head = topic.head + 1
    topic.head = head
    if head < topic.tail:
        stamp = lane.stamps[j * lane.rules.ring + (head & (lane.rules.ring - 1))]
        topic.front = corrected(stamp, lane.limits[j].offset)
    elif topic.absent == 0:
        lane.search.present -= 1


@inline
def _publish(lane: Any, out: Any, index: Any) -> None:
    """Deliver the candidate as a set: its members are the heads of the queues that take part.

    Args:
        lane: The `Lane`, with a candidate.
        out: The `Output` it is written to.
        index: Running number of the message that decided it; -1 for a flush or a tick.
    """
    search, ring = lane.search, lane.rules.ring
    k = out.count.sets
    latest = np.int64(LOWEST)
    for j in range(lane.rules.topics):
        topic = lane.topics[j]
        topic.since_set = 0
        if topic.takes_part == 0:
            out.members[k, j] = -1
            out.times[k, j] = LOWEST
            continue
        place = j * ring + (topic.head & (ring - 1))
        stamp = lane.stamps[place]
        out.members[k, j] = lane.rows[place]
        out.times[k, j] = stamp
        latest = max(latest, stamp)
        topic.matched += 1
        _behead(lane, j)
    made = out.sets[k]
    made.index = index
    made.spread_ns = capped(search.end, search.start)
    made.time_ns = latest
    made.lane = lane.number
    made.decided_at_ns = search.moment
    made.delay_ns = search.moment_corrected - search.end
    out.count.sets = k + 1
    search.pivot = 0
    search.sets += 1
    search.rejected = 0
    search.streak = 0
    search.steps += lane.rules.topics


@kernel
def _look_ahead(lane: Any, j: Any, pivot_time: Any) -> None:
    """Find `low` and `next` of topic `j`, whose front lies before the new pivot.

    A queue in order is searched by doubling steps from the head, then by halving: the pivot is
    mostly near, and a long queue costs O(log n). With a message out of order in the queue, every
    message up to the first one at or after the pivot is looked at.

    Args:
        lane: The `Lane`.
        j: Number of the topic, with at least two messages in its queue.
        pivot_time: Corrected stamp of the pivot.
    """
    topic, offset = lane.topics[j], lane.limits[j].offset
    base, mask = j * lane.rules.ring, lane.rules.ring - 1
    head, tail = topic.head, topic.tail
    if topic.inverted > head:  # out of order: every message has to be looked at
        low = topic.front
        upcoming = np.int64(LOWEST)
        at = head + 1
        while at < tail:
            stamp = corrected(lane.stamps[base + (at & mask)], offset)
            if stamp >= pivot_time:
                upcoming = stamp
                break
            low = max(low, stamp)
            at += 1
        lane.search.steps += at - head
        topic.low = low
        topic.next = upcoming
        return
    if topic.last < pivot_time:
        topic.low = topic.last
        topic.next = LOWEST
        return
    below, step = head, 1
    while (
        below + step < tail
        and corrected(lane.stamps[base + ((below + step) & mask)], offset) < pivot_time
    ):
        below += step
        step *= 2
        lane.search.steps += 1
    above = min(below + step, tail - 1)
    while above - below > 1:
        middle = (above + below) // 2
        if corrected(lane.stamps[base + (middle & mask)], offset) < pivot_time:
            below = middle
        else:
            above = middle
        lane.search.steps += 1
    topic.low = corrected(lane.stamps[base + (below & mask)], offset)
    topic.next = corrected(lane.stamps[base + (above & mask)], offset)


@inline
def _form(lane: Any, out: Any, index: Any) -> bool:
    """Make the fronts a candidate, after letting go of fronts that cannot start one.

    The earliest front goes if the fronts are wider apart than `max_interval` (too_old), or if the
    latest topic has lost a message to overflow, because the lost one might have matched better
    (unproven). Then the next fronts are tried.

    Returns:
        False if a queue ran empty before there was a candidate.
    """
    search, rules, topics = lane.search, lane.rules, lane.topics
    n = rules.topics
    partial = rules.timeout >= 0
    while search.present == n:
        search.steps += n
        start, end = np.int64(HIGHEST), np.int64(LOWEST)
        first, last = -1, -1
        for j in range(n):
            topic = topics[j]
            if partial:
                here = topic.head < topic.tail
                topic.takes_part = 1 if here else 0
                if not here:
                    continue
            t = topic.front
            if first < 0 or t < start:
                start, first = t, j
            if t >= end:
                end, last = t, j
        if first < 0:
            return False
        flagged = topics[last].flag
        for j in range(n):
            topics[j].flag = 0
        topics[last].flag = flagged
        spread = capped(end, start)
        if rules.interval >= 0 and apart(end, start) > np.uint64(rules.interval):
            search.rejected += 1
            _drop(lane, out, first, LeaveReason.TOO_OLD, index, spread)
            continue
        hurry = rules.greedy != 0 or (rules.patience > 0 and search.streak >= rules.patience)
        if flagged != 0 and not hurry and not _forgiven(search, start, end):
            search.streak += 1
            search.rejected += 1
            _drop(lane, out, first, LeaveReason.UNPROVEN, index, spread)
            continue
        search.pivot = last + 1
        search.pivot_time = end
        search.start, search.end, search.reach = start, end, end
        search.hurry = 1 if hurry else 0
        for j in range(n):
            topic = topics[j]
            if topic.takes_part == 0:
                topic.low = HIGHEST  # never passed: no part in the search
                topic.next = LOWEST
            elif topic.front >= end:
                topic.low = LOWEST
                topic.next = end
            elif topic.tail - topic.head == 1:
                topic.low = topic.front
                topic.next = LOWEST
            else:
                _look_ahead(lane, j, end)
        return True
    return False


@kernel
def _forgiven(search: Any, start: Any, end: Any) -> bool:
    """Return whether the latest topic may be the pivot although it lost a message to overflow.

    That is so for fronts of one and the same stamp, after EQUAL_PATIENCE sets of it were refused.
    Counts the refusals as it goes.
    """
    if start != end:
        search.equal_streak = 0
        return False
    if search.equal_streak > 0 and search.equal_stamp == start:
        search.equal_streak += 1
    else:
        search.equal_stamp = start
        search.equal_streak = 1
    return bool(search.equal_streak > EQUAL_PATIENCE)


@kernel
def _proven_ahead(lane: Any, limit: Any, goal: Any) -> bool:
    """Return whether the earliest messages that can still come prove the candidate optimal.

    A topic whose next message has not come is assumed to deliver at its lower bound after its last
    one, the best case for a better set. If even then the interval grows too large, nothing better
    can come and there is no need to wait.

    Args:
        lane: The `Lane`, with a candidate.
        limit: Corrected stamp up to which fronts are not better than the candidate.
        goal: Pivot minus start of the candidate (uint64 ns). Once the interval has grown by this
            much, age penalty included, the candidate is proven.
    """
    search, rules = lane.search, lane.rules
    reach = search.reach
    while True:
        search.steps += rules.topics
        best = reach
        for j in range(rules.topics):
            topic = lane.topics[j]
            if topic.low > limit:
                continue
            t = topic.next
            if t == LOWEST:
                bound = max(lane.limits[j].lower_bound, topic.bound)
                t = topic.last + bound if topic.last <= HIGHEST - bound else np.int64(HIGHEST)
                if topic.absent != 0:
                    t = max(t, search.now)
            best = max(best, t)
        if best == reach:
            return False
        reach = best
        distance = scaled(apart(reach, search.end), rules.numerator, rules.shift)
        if distance >= goal:
            return True
        limit = later(search.start, distance)


@kernel
def _improve(lane: Any, out: Any, limit: Any, index: Any) -> None:
    """Make the first message beyond the limit of every topic the new candidate.

    What lies before these leaves as superseded. Each message is stepped over once in its life, so
    this is O(1) per message on average.
    """
    search = lane.search
    start = np.int64(HIGHEST)
    for j in range(lane.rules.topics):
        topic = lane.topics[j]
        if topic.takes_part == 0:
            continue
        while topic.front <= limit:
            _drop(lane, out, j, LeaveReason.SUPERSEDED, index, np.int64(0))
            search.steps += 1
        start = min(start, topic.front)
    search.start = start
    search.end = search.reach
    search.steps += lane.rules.topics


@inline
def _search(lane: Any, out: Any, index: Any) -> None:
    """Decide all that can be decided with the messages there are.

    Each round publishes the candidate, raises the reach, takes a better candidate, or ends: there
    is nothing to form a candidate of, or topic `wait` must deliver first.

    Args:
        lane: The `Lane`.
        out: The `Output` for sets and drops.
        index: Running number of the message being handled; -1 for a flush or a tick.
    """
    search, rules, topics = lane.search, lane.rules, lane.topics
    n = rules.topics
    while True:
        if search.pivot == 0 and not _form(lane, out, index):
            return
        goal = apart(search.pivot_time, search.start)
        distance = scaled(apart(search.reach, search.end), rules.numerator, rules.shift)
        if distance >= goal or search.hurry != 0:
            _publish(lane, out, index)
            continue
        limit = later(search.start, distance)
        search.steps += n
        reach = search.reach
        wait, wait_low = -1, np.int64(HIGHEST)
        for j in range(n):
            topic = topics[j]
            low = topic.low
            if low <= limit:
                if topic.next != LOWEST:
                    reach = max(reach, topic.next)
                elif low < wait_low:
                    wait, wait_low = j, low
        if reach > search.reach:
            search.reach = reach
        elif wait < 0:
            _improve(lane, out, limit, index)
        elif rules.look_ahead != 0 and _proven_ahead(lane, limit, goal):
            search.hurry = 1
        else:
            search.wait = wait + 1
            return


@kernel
def _search_again(lane: Any, out: Any, index: Any) -> None:
    """`_search` for the rare callers; it is inlined into one caller only."""
    _search(lane, out, index)


# -- messages, time and the end ---------------------------------------------------------------


@kernel
def _learn(topic: Any, gap: Any) -> None:
    """Learn the lower bound of a topic from one more gap between its messages (ns).

    The bound is the smallest gap of the last one to two blocks of LEARN_GAPS, less an eighth for
    gaps that were not seen yet. There is none before the first block is full.
    """
    current = gap if topic.gaps % LEARN_GAPS == 0 else min(topic.gap, gap)
    topic.gaps += 1
    topic.gap = current
    if topic.gaps < LEARN_GAPS:
        return
    if topic.gaps % LEARN_GAPS == 0:
        topic.gap_before = current
    smallest = min(current, topic.gap_before)
    topic.bound = smallest - smallest // 8


@kernel
def _clear(lane: Any, out: Any, j: Any, index: Any, amount: Any) -> None:
    """Let go of everything topic `j` holds, because of a jump; its overflow is forgotten too."""
    topic = lane.topics[j]
    while topic.head < topic.tail:
        _drop(lane, out, j, LeaveReason.TIME_JUMP, index, amount)
    topic.flag = 0


@kernel
def _clear_after_jump(lane: Any, out: Any, i: Any, t: Any, row: Any, index: Any) -> None:
    """Handle a jump: the clock of topic `i` went back to `t`, so what lies on the far side matches
    nothing.

    With `on_jump="all"` the same goes for every topic whose newest held message lies too far ahead
    of `t`; one that has jumped already holds near stamps and keeps them. The lane's clock starts
    again at `t`, and so does the silence of optional topics.

    Args:
        lane: The `Lane`.
        out: The `Output`; the jump itself is noted there as CLOCK_JUMP.
        i: Number of the topic.
        t: Corrected stamp after the jump.
        row: Row number of the message that brought it. The message stays.
        index: Its running number.
    """
    search, rules = lane.search, lane.rules
    topic = lane.topics[i]
    amount = capped(topic.newest, t)
    note_drop(out, row, LeaveReason.CLOCK_JUMP, i, index, amount, search.moment)
    topic.jumps += 1
    search.pivot = 0  # the candidate, if any, holds a message of this topic
    _clear(lane, out, i, index, amount)
    if rules.jump_all != 0:
        bound = np.uint64(lane.limits[i].jump_bound)
        for j in range(rules.topics):
            other = lane.topics[j]
            if other.head < other.tail and other.last > t and apart(other.last, t) > bound:
                _clear(lane, out, j, index, amount)
    topic.newest = t
    search.now = t
    search.first = t
    if rules.timeout >= 0:
        for j in range(rules.topics):  # silence is measured anew on this side of the jump
            other = lane.topics[j]
            if other.absent != 0:
                other.absent = 0
                if other.head == other.tail:
                    search.present -= 1
        search.deadline = LOWEST


@kernel
def _silences(lane: Any) -> None:
    """Mark the optional topics that have been silent for longer than the timeout as absent.

    Silence counts from the topic's last message, or from when the lane opened or its clock last
    jumped, whichever is later. `deadline` is set to the next time at which this can change, so
    that most messages need not look.
    """
    search, timeout = lane.search, lane.rules.timeout
    deadline = np.int64(HIGHEST)
    for j in range(lane.rules.topics):
        topic = lane.topics[j]
        if lane.limits[j].optional == 0 or topic.absent != 0:
            continue
        since = search.first
        if topic.started != 0:
            since = max(since, topic.last)
        due = since + timeout if since <= HIGHEST - timeout else np.int64(HIGHEST)
        if search.now > due:
            topic.absent = 1
            if topic.head == topic.tail:
                search.present += 1
        else:
            deadline = min(deadline, due)
    search.deadline = deadline


@kernel
def _pass_time(lane: Any, out: Any, index: Any) -> None:
    """Stop waiting for optional topics whose time is up, and search again if that helps."""
    search = lane.search
    if search.now > search.deadline or search.deadline == LOWEST:
        _silences(lane)
    if search.pivot == 0:
        if search.present == lane.rules.topics:
            _search_again(lane, out, index)
    elif lane.topics[search.wait - 1].absent != 0:
        _search_again(lane, out, index)


@kernel
def _newest(lane: Any) -> Any:
    """Return the newest of the topics' last stamps, LOWEST if there is none.

    Not the lane's clock: one wrong stamp in the future would hold that for ever, and every message
    would then be too old.
    """
    newest = np.int64(LOWEST)
    for j in range(lane.rules.topics):
        if lane.topics[j].started != 0:
            newest = max(newest, lane.topics[j].last)
    return newest


@kernel
def _front_expired(lane: Any, i: Any) -> bool:
    """Return whether `queue_time` is over for the oldest of several messages of topic `i`.

    The newest message of a topic always stays. The lane's clock is compared first: that needs no
    loop over the topics, and mostly settles it.
    """
    topic, bound = lane.topics[i], np.uint64(lane.rules.queue_time)
    if topic.tail - topic.head < 2:
        return False
    if lane.search.now <= topic.front or apart(lane.search.now, topic.front) <= bound:
        return False
    newest = _newest(lane)
    return bool(newest > topic.front and apart(newest, topic.front) > bound)


@inline
def _admit_to_queue(lane: Any, out: Any, i: Any, stamp: Any, row: Any, index: Any) -> Any:
    """Handle one message: put it into its queue, search, and let go of what overflows.

    In order: notice a jump or a gap, advance the lane's clock, append the message, search if it
    can change anything (its topic was waited for, came back, or was the last one missing), then
    enforce the bounds of the queue. A candidate whose member overflows is undone and what is left
    searched again.

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
    search, rules, topic, limits = lane.search, lane.rules, lane.topics[i], lane.limits[i]
    t = corrected(stamp, limits.offset)
    tail = topic.tail
    if search.open == 0:
        search.open = 1
        search.now = t
        search.first = t
        search.deadline = LOWEST
    search.seen += 1
    search.moment = stamp
    search.moment_corrected = t
    last = topic.last
    if topic.started != 0:
        gap = np.int64(0)
        if t < last:
            topic.disorder += 1
            topic.inverted = tail
            bound = limits.jump_bound
            if bound >= 0 and topic.newest > t and apart(topic.newest, t) > np.uint64(bound):
                _clear_after_jump(lane, out, i, t, row, index)
        elif rules.look_ahead != 0:
            gap = capped(t, last)
            if gap < max(limits.lower_bound, topic.bound):
                topic.too_close += 1
        if rules.learn != 0:
            _learn(topic, gap)
        topic.newest = max(topic.newest, t)
    else:
        topic.started = 1
        if rules.timeout < 0:  # else the search says who takes part, each time anew
            topic.takes_part = 1
        topic.newest = t
    topic.received += 1
    search.now = max(search.now, t)
    note_arrival(search, topic, t, last)
    if rules.timeout >= 0:
        _pass_time(lane, out, index)
    topic.last = t
    place = i * rules.ring + (tail & (rules.ring - 1))
    lane.stamps[place] = stamp
    lane.rows[place] = row
    topic.tail = tail + 1
    was_empty = topic.head == tail
    if was_empty:
        topic.front = t
        if topic.absent == 0:
            search.present += 1
    if topic.absent != 0:
        topic.absent = 0
        search.deadline = LOWEST
    ready = False
    if search.pivot != 0:
        if topic.takes_part == 0:  # back after a silence: search again with it
            search.pivot = 0
            ready = True
        else:
            if topic.next == LOWEST:
                if t < search.pivot_time:
                    topic.low = max(topic.low, t)
                else:
                    topic.next = t
            waited = search.wait - 1
            if waited == i and t >= search.pivot_time:
                search.reach = max(search.reach, t)  # all before it was passed: it is the front
            ready = waited == i or lane.topics[waited].absent != 0
    elif was_empty:
        ready = search.present == rules.topics
    while True:
        if ready:
            _search(lane, out, index)
        over = tail + 1 - topic.head > rules.queue
        if not over and rules.queue_time >= 0:
            over = _front_expired(lane, i)
        if not over:
            break
        ready = search.pivot != 0
        if ready:  # the candidate is undone, and what is left searched again
            search.pivot = 0
            search.streak += 1
        _drop(lane, out, i, LeaveReason.OVERFLOW, index, np.int64(0))
        topic.flag = 1
    return place


@kernel
def run_approximate(arrays: Any, messages: Any, out: Any) -> None:
    """`Matcher.run` of this search. The views of a lane are made when the lane changes, so
    messages sorted by lane are the cheapest."""
    known = np.int64(0)
    output = output_of(out)
    lane = lane_of(arrays, known)
    for k in range(len(messages.topic)):
        number, row = messages.lane[k], messages.first_row + k
        if number != known:
            known = number
            lane = lane_of(arrays, number)
        i, stamp = messages.topic[k], messages.time_ns[k]
        messages.places[k] = _admit_to_queue(lane, output, i, stamp, row, row)


@brief_kernel  # carray needs reference counts
def push_one_approximate(address: Any, i: Any, stamp: Any) -> Any:
    """`Matcher.push_one` of this search."""
    at = carray(pointer(address), (PARTS,), np.int64)
    lane = lane_at(at, SEARCH, TOPIC)
    out = output_at(at, lane.rules.topics, lane.rules.ring)
    row = lane.search.seen
    _admit_to_queue(lane, out, i, stamp, row, row)
    return tell(at, out, lane.rules.topics)


@kernel
def tick_approximate(arrays: Any, lanes: Any, now: Any, out: Any) -> None:
    """Let time pass without a message: optional topics whose time is up are waited for no longer.

    Args:
        arrays: The `LaneArrays` of all lanes.
        lanes: Numbers of the lanes. Lanes that are not open, or whose clock is at `now` or later,
            stay as they are.
        now: The time, comparable with corrected stamps.
        out: The `Output` for sets and drops.
    """
    output = output_of(out)
    for number in lanes:
        lane = lane_of(arrays, number)
        search = lane.search
        if search.open == 0 or now <= search.now or lane.rules.timeout < 0:
            continue
        search.now = now
        search.moment = now
        search.moment_corrected = now
        _pass_time(lane, output, np.int64(-1))


@kernel
def finish_approximate(arrays: Any, lanes: Any, out: Any) -> None:
    """End these lanes: publish what can be, then let go of the rest. The lanes are then empty.

    What has no successor cannot be beaten, so a candidate is published as it stands; an optional
    topic without a message is not waited for.

    Args:
        arrays: The `LaneArrays` of all lanes.
        lanes: Numbers of the lanes.
        out: The `Output` for sets and drops.
    """
    output = output_of(out)
    n = arrays.rules[0].topics
    for number in lanes:
        lane = lane_of(arrays, number)
        search = lane.search
        search.moment = search.now
        search.moment_corrected = search.now
        while True:
            if search.pivot != 0:
                _publish(lane, output, np.int64(-1))
            for j in range(n):
                topic = lane.topics[j]
                if lane.limits[j].optional != 0 and topic.absent == 0:
                    topic.absent = 1
                    if topic.head == topic.tail:
                        search.present += 1
            _search_again(lane, output, np.int64(-1))
            if search.pivot == 0:
                break
        for j in range(n):
            while lane.topics[j].head < lane.topics[j].tail:
                _drop(lane, output, j, LeaveReason.FLUSH, np.int64(-1), np.int64(0))
        _forget(lane)


@kernel
def search_approximate(arrays: Any, lanes: Any, out: Any) -> None:
    """Undo the candidates of these lanes and search again: their rules, or their queues, are not
    what they were.

    Args:
        arrays: The `LaneArrays` of all lanes.
        lanes: Numbers of the lanes.
        out: The `Output` for sets and drops, with room for all that is held.
    """
    output = output_of(out)
    for number in lanes:
        lane = lane_of(arrays, number)
        lane.search.pivot = 0
        _search_again(lane, output, np.int64(-1))


@kernel
def _forget(lane: Any) -> None:
    """Back to an empty lane; counters, and the running numbers of messages, stay."""
    search = lane.search
    search.pivot = search.wait = search.start = search.end = search.pivot_time = search.reach = 0
    search.hurry = search.present = search.open = search.now = search.first = 0
    search.moment = search.moment_corrected = search.deadline = search.rejected = 0
    search.equal_stamp = search.equal_streak = search.streak = 0
    for j in range(lane.rules.topics):
        topic = lane.topics[j]
        topic.front = topic.low = topic.next = topic.last = topic.newest = 0
        topic.flag = topic.takes_part = topic.absent = topic.inverted = topic.started = 0
        topic.bound = topic.gap = topic.gap_before = topic.gaps = 0
        forget_history(topic)


# -- restored state ---------------------------------------------------------------------------

PROBLEMS = (
    "",
    "a topic number out of range",
    "a flag that is neither 0 nor 1",
    "a queue longer than its bound",
    "a message in a lane that is not open",
    "a front that is not the stamp at the head of its queue",
    "a queue out of order that says it is in order",
    "a wrong count of topics that are present",
    "an absent topic that is not optional",
    "a candidate without a member of every topic that takes part",
    "a candidate whose ends are not those of its members",
    "a topic whose part in the search does not follow from its queue",
    "a learned bound below 0",
    "a held message without its row",
    "a running number out of range",
)
"""What `check_approximate` may find: its result is an index into these."""


@kernel
def check_approximate(arrays: Any, scratch: Any) -> Any:
    """`Matcher.check` of this search, without scratch: one look at every held message."""
    for number in range(len(arrays.search)):
        lane = lane_of(arrays, number)
        problem = _check_queues(lane)
        if problem == 0 and lane.search.pivot != 0:
            problem = _check_candidate(lane)
        if problem != 0:
            return number, problem
    return 0, 0


@kernel
def _flag(value: Any) -> bool:
    """Return whether a value is 0 or 1."""
    return bool(value == 0 or value == 1)


@kernel
def _check_queues(lane: Any) -> Any:
    """Check the queues of one lane and the counters derived from them. Returns an index into
    PROBLEMS."""
    search, rules = lane.search, lane.rules
    n, mask = rules.topics, rules.ring - 1
    if not (0 <= search.pivot <= n and 0 <= search.wait <= n):
        return 1
    if search.pivot > 0 and search.wait == 0:
        return 1
    if not (_flag(search.open) and _flag(search.hurry)):
        return 2
    if not 0 <= search.seen <= MOST:
        return 14
    present = 0
    for j in range(n):
        topic, offset = lane.topics[j], lane.limits[j].offset
        if topic.tail > MOST or not 0 <= topic.arrivals <= MOST:
            return 14
        if not (_flag(topic.flag) and _flag(topic.takes_part) and _flag(topic.started)):
            return 2
        if not _flag(topic.absent) or (rules.timeout < 0 and topic.takes_part != topic.started):
            return 2
        if topic.head < 0 or topic.tail < topic.head or topic.tail - topic.head > rules.queue:
            return 3
        if topic.absent == 1 and lane.limits[j].optional == 0:
            return 8
        if topic.bound < 0 or topic.gap < 0 or topic.gap_before < 0 or topic.gaps < 0:
            return 12
        if topic.head < topic.tail or topic.absent == 1:
            present += 1
        if topic.head == topic.tail:
            continue
        if search.open == 0 or topic.started == 0:
            return 4
        base = j * rules.ring
        before = corrected(lane.stamps[base + (topic.head & mask)], offset)
        if topic.front != before:
            return 5
        for at in range(topic.head, topic.tail):
            stamp = corrected(lane.stamps[base + (at & mask)], offset)
            if stamp < before and topic.inverted <= topic.head:
                return 6
            if lane.rows[base + (at & mask)] < 0:
                return 13
            before = stamp
        if topic.last != before or topic.inverted > topic.tail:
            return 6
    return 0 if present == search.present else 7


@kernel
def _check_candidate(lane: Any) -> Any:
    """Check the candidate of a lane whose queues are sound. Returns an index into PROBLEMS.

    Everything the search keeps about it follows from the queues and the pivot, so it is computed
    again and compared.
    """
    search, rules = lane.search, lane.rules
    mask = rules.ring - 1
    start = np.int64(HIGHEST)
    for j in range(rules.topics):
        topic, offset = lane.topics[j], lane.limits[j].offset
        if topic.takes_part == 0:
            if lane.limits[j].optional == 0 or topic.low != HIGHEST or topic.next != LOWEST:
                return 9
            continue
        if topic.head == topic.tail:
            return 9
        start = min(start, topic.front)
        if topic.front >= search.pivot_time:
            if topic.next != topic.front:
                return 11
            continue
        low, upcoming = topic.front, np.int64(LOWEST)
        for at in range(topic.head, topic.tail):
            stamp = corrected(lane.stamps[j * rules.ring + (at & mask)], offset)
            if stamp >= search.pivot_time:
                upcoming = stamp
                break
            low = max(low, stamp)
        if topic.low != low or topic.next != upcoming:
            return 11
    if lane.topics[search.pivot - 1].takes_part == 0:
        return 9
    inside = search.start <= search.end <= search.reach
    if search.start != start or not inside or not start <= search.pivot_time <= search.reach:
        return 10
    return 0
