# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The batching decision for many rows of many lanes in one call. Read it from top to bottom.

Clock policy
------------
Event time decides what belongs together and when a batch is complete. Wall time comes in as
`call.wall` and serves the stall check and `idle_close` alone. No clock is read here.

Rules
-----
    ... start ............. end ........... + 3 L ................ + 1000 L ........
        on a grid: a slot    | overflow: waits for its window         | another epoch
        others:    window    | held back        | rides along         | rides along

1.  The first row of a lane leaves at once as a batch of its own; the window opens at its time.
2.  Every further row may raise the high-water mark (`lift`) and goes to one of three lists
    (`route`): the window (ACTIVE), overflow (OVER), held back (HELD).
3.  The window is complete when every stream with a grid has reached its last slot, or when the
    high-water mark has passed the timeout (`due`).
4.  A close (`close`) writes the rows of the window down as a batch, lets every stream refresh its
    grid, opens the next window at the end of this one and routes what waited again.
5.  Recovery moves the window instead of closing it: over a silence (`skip_gap`), or, when nothing
    closed for ten batch lengths of wall time, to the rows that are in it (`replace_window`).
6.  Without a gating stream nothing is worth waiting for: a close takes everything that waits, and
    ends at the anchor, the newest time of the largest group of rows.
7.  A new batch length applies to the first window that starts at or after its effective time
    (`apply_changes`), also if that one is open already (`change_windows`); one that comes after
    that window closed, or has no time, at the next close.
8.  With `correct_skew`, a close takes the clock offset it has measured off the times of a stream
    (`correct_clocks`). Decisions go by corrected times; rows keep the time they came with.

Theory of operation
-------------------
`run_rows` takes rows one at a time and lets out every batch they imply, so cuts do not matter.
`run_call` takes all rows of one lane as a single call and lets out at most one batch, which is how
the recorded batcher worked. Both use the same routing and closing; only the moment at which the
window is looked at differs (docs/adr/0003-batching-per-message.md). `call.patient` says which of
the two it is; it is data, never a literal, because numba would compile everything once per literal.

Rows stay where they are: a row number is good until the caller compacts, lists are links between
rows, and what leaves is a list of row numbers in `numbers`. Overflow far ahead of the window goes
to a heap, so that a long backlog of one stream is not looked at again at every close. Buffers for
batches are made by the caller; a kernel that runs out of them returns early, is given larger ones
and goes on.

Nothing here allocates, so all of it is compiled without reference counts (`lean_kernel`).
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.grid import (
    AHEAD_LENGTHS,
    FAR_LENGTHS,
    place_window,
    pulse_index,
    refresh,
)
from tidegate.batching.layout import (
    MAX_CHANGES,
    NEVER,
    NO_SLOT,
    REACH_NS,
    RING,
    UNTIMED,
    BatchFrame,
    CloseReason,
    Gate,
    Place,
)
from tidegate.batching.period import follow_phase, observe
from tidegate.batching.report import report, report_run
from tidegate.core.numba import lean_inline, lean_inner, lean_kernel, prefetch
from tidegate.core.time import UNSET

__all__ = [
    "change_windows",
    "earliest_times",
    "group_by_lane",
    "load_rows",
    "run_call",
    "run_rows",
    "schedule_length",
    "settle_lanes",
    "waiting_rows",
]

EVICT_CLOSES = 5
"""Closes in a row without a message after which a stream no longer counts. Fewer, and a stream with
a short break must be learned again; more, and a dead stream makes that many batches wait for their
timeout."""

STALL_LENGTHS = 10
"""Batch lengths of wall time without a close, while rows wait, after which the window is taken to
be in the wrong place. Below about 3 (the furthest a believed stamp may lie ahead) ordinary
lateness would move it; above, one stamp a little in the future holds up real traffic longer."""

# Numpy's numbers, not Python's: numba would compile every function anew for each literal it is
# called with, and compiling is what a first call costs.
_ACTIVE, _OVER = np.int64(Place.ACTIVE.value), np.int64(Place.OVER.value)
_HELD = np.int64(Place.HELD.value)
_YES, _NO = np.bool_(True), np.bool_(False)


# -- entry points ---------------------------------------------------------------------------------


@lean_kernel
def run_rows(a, call, base, first, again):
    """Handle the rows of the call one at a time, letting out every batch each of them implies.

    Args:
        a: The `KernelArrays`: state, rows that wait, output buffers.
        call: The `KernelCall`: the new rows as columns, and the settings.
        base: Row number of the first row of the call. Rows are numbered in the order they are
            handled: the k-th of `call.order` is row `base + k`.
        first: Where in the order of the call to go on: 0, or what the last attempt returned.
        again: True if that row was routed by the last attempt already, which then ran out of
            buffers while letting batches out.

    Returns:
        (number of rows, False) when all are done. Otherwise where in the order of the call the
        buffers ran out, and whether that row has been routed: the caller makes larger buffers and
        calls again with both.
    """
    rows, lanes, lists, streams, counts = a.rows, a.lanes, a.lists, a.streams, a.counts[0]
    k, total = first, len(call.time_ns)
    until = k  # where the rows of a lane end
    if again:
        if not let_out_due(a, call, np.int64(call.lane[row_at(call, k)])):
            return k, True
        k += 1
    while k < total:
        i = row_at(call, k)
        n = np.int64(call.lane[i])
        lane = lanes[n]
        resume = False
        if k >= until:  # a lane begins: while it is handled, bring in the next one
            until = end_of_lane(call, k, n)
            # Once per lane and call, and only if half as many rows come as wait: a window that
            # fills over many calls must not be gone through in each of them.
            resume = lane.rows <= 2 * (until - k) and call.wall - lane.arrived_at < call.idle
            if until < total:
                following = np.int64(call.lane[row_at(call, until)])
                prefetch(lanes, following)
                prefetch(streams[0], following)
                prefetch(lists, following)
                for j in range(until, min(until + 16, total)):
                    prefetch(call.time_ns, row_at(call, j))
                    prefetch(call.code, row_at(call, j))
        if (lane.rows == 0 or resume) and expects_pulses(lane, call):
            k, routed = take_expected(a, call, base, k, until, n)
            if routed:  # the window is complete, but there is no room for its batch
                return k, True
            if k == until:
                continue
            i = row_at(call, k)
        if lane.open == 0 and not has_room(a, call):
            return k, False
        idle = call.wall - lane.arrived_at >= call.idle and lane.open != 0 and lane.rows > 0
        if idle and not drain(a, call, n, np.int64(CloseReason.IDLE.value)):
            return k, False
        lane.arrived_at = call.wall
        row = base + k  # so the records of a lane are neighbours in memory
        code = call.code[i]
        s = np.int64(a.known[code])
        if s >= lane.streams or streams[s, n].name != call.digests[code]:
            s = find_stream(call.digests[code], n, lane, streams, a.find)
            a.known[code] = max(s, 0)
        # A stream without a record rides along: it is never gated, so any record will do.
        stream = streams[max(s, 0), n]
        admit_row(rows, row, call.time_ns[i], lane, n, stream, s, call.gated[code])
        if s >= 0 and stream.seen == 0:
            note_name(stream, a.named, counts, i)
        if lane.open == 0:
            if lane.length == 0:
                lane.length = call.length
            append(rows, lists[n], _ACTIVE, row)
            begin(a, call, n)
            k += 1
            continue
        if not route_next_pulse(rows, row, lists[n], lane, stream):
            lift(rows[row], lane, stream, call.patient)
            route(rows, row, lists[n], lane, stream, _NO)
        # Nothing is due after most rows: say so here, without a call.
        if (
            (lane.waiting > 0 or lane.gating == 0)
            and lane.hwm < lane.start + lane.timeout
            and not gap_ahead(lane)
            and call.wall - lane.closed_at < STALL_LENGTHS * lane.length
            and lane.rows <= call.limit
        ):
            k += 1
            continue
        if not let_out_due(a, call, n):
            return k, True
        k += 1
    return total, False


@lean_kernel
def run_call(a, call, base):
    """Handle all rows of lane 0 as one call, from which at most one batch comes.

    The window is looked at once, after the last row. A second batch that is due already comes out
    of the next call, which may bring no rows. There is always room for one batch, so this cannot
    run out of buffers.

    Args:
        a: The `KernelArrays`, with a single lane.
        call: The `KernelCall`; `patient` is False.
        base: Row number of the first row of the call.
    """
    rows, lane, lists = a.rows, a.lanes[0], a.lists[0]
    if lane.length == 0:
        lane.length = call.length
    for i in range(len(call.time_ns)):
        row = base + i
        code = call.code[i]
        s = find_stream(call.digests[code], np.int64(0), lane, a.streams, a.find)
        stream = a.streams[max(s, 0), 0]
        admit_row(rows, row, call.time_ns[i], lane, np.int64(0), stream, s, call.gated[code])
        if s >= 0 and stream.seen == 0:
            note_name(stream, a.named, a.counts[0], i)
        if lane.open == 0:
            append(rows, lists, _ACTIVE, row)
        else:
            lift(rows[row], lane, stream, call.patient)
            route(rows, row, lists, lane, stream, _NO)
    if lane.open == 0:
        if lane.rows > 0:
            begin(a, call, np.int64(0))
        return
    if gap_ahead(lane):
        skip_gap(a, call, np.int64(0))
    reason = due(lane)
    if reason >= 0:
        close(a, call, np.int64(0), reason)
    elif stall_due(lane, lists, call.wall):
        lane.closed_at = call.wall
        replace_window(a, call, np.int64(0), _NO)


@lean_kernel
def settle_lanes(a, call, which, first, everything):
    """Let out what is due in some lanes, or everything they hold.

    Args:
        a: The `KernelArrays`.
        call: The `KernelCall`; its rows are ignored, its wall time decides stalls and idleness.
        which: Lane numbers. Lanes without a window are skipped.
        first: Index into `which` to go on from.
        everything: True: drain the lanes, with the reason FLUSH. False: drain lanes that are idle
            (IDLE), let out what is due in the others.

    Returns:
        How many lanes are done: fewer than all if the buffers ran out.
    """
    for i in range(first, len(which)):
        n = which[i]
        if a.lanes[n].open == 0:
            continue
        idle = call.wall - a.lanes[n].arrived_at >= call.idle
        if everything or idle:
            reason = CloseReason.FLUSH.value if everything else CloseReason.IDLE.value
            done = drain(a, call, n, np.int64(reason))
        else:
            done = let_out_due(a, call, n)
        if not done:
            return i
    return len(which)


@lean_kernel
def schedule_length(lanes, which, at, length):
    """Note a new batch length for some lanes, for the first window that starts at `at` or later.

    A change for the same time replaces the earlier one. A lane without a window takes an untimed
    change at once.

    Args:
        lanes: Records of all lanes.
        which: Lane numbers.
        at: Effective time in ns, or UNTIMED: at the next close.
        length: The new length in ns; checked by the caller.

    Returns:
        How many lanes took it: all up to the first one whose schedule of MAX_CHANGES is full.
    """
    for i in range(len(which)):
        lane = lanes[which[i]]
        if lane.open == 0 and at == UNTIMED:
            lane.length = length
            continue
        place = lane.changes
        for k in range(lane.changes):
            if lane.change_at[k] == at:
                place = k
        if place == MAX_CHANGES:
            return i
        lane.change_at[place] = at
        lane.change_length[place] = length
        lane.changes = max(lane.changes, place + 1)
    return len(which)


@lean_kernel
def change_windows(a, call, which, first):
    """Give open windows a new length if they are the first to start at or after its effective
    time.

    Called after `schedule_length` with a time. A shorter window may be complete at once, so what
    is due then leaves.

    Args:
        a: The `KernelArrays`.
        call: The `KernelCall`, without rows.
        which: Lane numbers.
        first: Index into `which` to go on from.

    Returns:
        How many lanes are done: fewer than all if the buffers ran out.
    """
    for i in range(first, len(which)):
        n = which[i]
        lane = a.lanes[n]
        if lane.open == 0:
            continue
        newest = UNTIMED
        for k in range(lane.changes):
            if lane.before < lane.change_at[k] <= lane.start:
                newest = max(newest, lane.change_at[k])
        if newest > UNTIMED and apply_changes(lane, lane.start, _NO):
            refresh_from_last(a, call, n)
            route_again(a, call, n, lane.start, _NO)
        if not let_out_due(a, call, n):
            return i
    return len(which)


@lean_kernel
def load_rows(rows, used, lists):
    """Link rows into the lists of their lanes, after a restore or a renumbering.

    Rows are appended by number, which is the order of arrival. Rows that were in the heap come
    back into the list OVER; the next close sorts them out again.
    """
    for row in range(used):
        append(rows, lists[rows[row].lane], np.int64(rows[row].place), row)


@lean_kernel
def earliest_times(rows, waiting, reach):
    """Lower `reach` of each lane to just before the earliest of its rows that wait.

    Uses the time a row came with (`stamp`), because that is what watermarks promise about. The
    guard keeps `t - 1` from becoming UNSET, which means "no time".

    Args:
        rows: Records of all rows.
        waiting: Numbers of the rows that wait.
        reach: A time per lane, in ns; lowered in place.
    """
    for row in waiting:
        lane, t = rows[row].lane, rows[row].stamp
        before = t - 1 if t > UNSET + 1 else t
        reach[lane] = min(reach[lane], before)


@lean_kernel
def waiting_rows(rows, lists, out):
    """Write the numbers of all rows that wait to `out`, lane by lane, in no order within a lane,
    and return how many there are.

    `out` has room for as many as there are. The heap is walked as the tree it is: what has been
    written is the list of what is still to be looked at.
    """
    at = 0
    for n in range(len(lists)):
        for place in range(3):
            at = collect(rows, np.int64(lists[n].head[place]), out, at)
        if lists[n].heap >= 0:
            out[at] = lists[n].heap
            seen = at
            at += 1
            while seen < at:
                record = rows[out[seen]]
                for child in (record.left, record.right):
                    if child >= 0:
                        out[at] = child
                        at += 1
                seen += 1
    return at


@lean_kernel
def group_by_lane(lane, lanes, starts, order):
    """Write the rows of a call to `order`, lane by lane, within a lane as they came.

    A counting sort. Lanes do not know of each other, so the order between them is free, and all
    rows of one at once find its records in the cache: with ten thousand keys that is most of the
    time.

    Args:
        lane: Per row: its lane, below `lanes`.
        lanes: Number of lanes.
        starts: Zeros, one more than lanes; overwritten.
        order: As long as `lane`; overwritten.
    """
    for i in range(len(lane)):
        starts[lane[i] + 1] += 1
    for n in range(lanes):
        starts[n + 1] += starts[n]
    for i in range(len(lane)):
        order[starts[lane[i]]] = i
        starts[lane[i]] += 1


# -- runs of expected rows ------------------------------------------------------------------------
#
# Most rows are the next pulse of a stream with a grid, and come in order of time. They need no
# record: their window is a run in `numbers`, written as it comes, and leaves without another look
# at its rows. A window is handled like this from its first row on or not at all; if another row
# comes, or the call ends, the rows so far get their records and links (`settle_run`) and the
# general rules go on from there. The next call takes the run up again (`resume_run`).


@lean_inner
def row_at(call, k):
    """Return the index of the k-th row in the order of the call."""
    return np.int64(call.order[k]) if len(call.order) > 0 else np.int64(k)


@lean_inline
def end_of_lane(call, k, n):
    """Return where in the order of the call the rows of lane `n` end, of which the k-th is one."""
    total = len(call.time_ns)
    if len(call.ends) > 0:
        return np.int64(call.ends[n])
    if len(call.order) == 0 and call.lane[total - 1] == n:
        return total
    until = k + 1
    while until < total and call.lane[row_at(call, until)] == n:
        until += 1
    return until


@lean_inner
def expects_pulses(lane, call):
    """Return whether the window is open for gating streams, and nothing is due or pending."""
    return (
        lane.open != 0
        and lane.waiting > 0
        and lane.changes == 0
        and lane.hwm < lane.start + lane.timeout
        and call.wall - lane.closed_at < STALL_LENGTHS * lane.length
        and not call.correct_skew
    )


@lean_inline
def take_expected(a, call, base, k, until, n):
    """Handle rows of lane `n` from the k-th on for as long as each is the next pulse of its stream
    and not earlier than the row before.

    The condition is that of `route_next_pulse`, and what it does to lane and stream is the same.
    Called when `expects_pulses`. Nothing is done if rows wait that are not such a run themselves.
    Windows that become complete leave.

    Args:
        a: The `KernelArrays`.
        call: The `KernelCall`.
        base: Row number of the first row of the call.
        k: Where in the order of the call to begin.
        until: Where in the order of the call the rows of this lane end.
        n: Number of the lane.

    Returns:
        Where in the order of the call the first row is that is not handled, and False; or the last
        row that was handled and True, if its window is complete and the buffers are full.
    """
    lane, counts = a.lanes[n], a.counts[0]
    grouped = len(call.order) > 0
    begun = k
    while True:
        first = max(counts.rows, 0)  # never below; said so that indices are not looked at twice
        end = lane.start + lane.length
        newest = lane.start - lane.length
        latest = min(end, lane.start + lane.timeout - 1)
        waiting = lane.waiting
        last = min(until, k + call.limit - lane.rows)
        for s in range(lane.streams):
            a.tally[s].slot = -1
            a.tally[s].off_sum = 0.0
            a.tally[s].off_square = 0.0
        begins = first
        if lane.rows > 0:
            begins = resume_run(a, n, first)
            if begins < 0:
                break
            newest = a.out_stamp[begins - 1]
        at = begins
        while k < last:
            i = np.int64(call.order[k]) if grouped else np.int64(k)
            t = call.time_ns[i]
            code = call.code[i]
            s = int(a.known[code])
            stream = a.streams[s, n]
            period, slot = stream.period, stream.reached + 1
            off = t - stream.origin - (stream.first + slot) * period
            if (
                t < newest
                or t > latest
                or s >= lane.streams
                or stream.name != call.digests[code]
                or not call.gated[code]
                or period == 0
                or stream.tracked == 0
                or slot >= stream.slots
                or 2 * off >= period
                or 2 * off <= -period
            ):
                break
            newest = t
            stream.reached = slot
            # `observe`, which the compiler would not put here by itself.
            if stream.locked > 0:
                follow_phase(stream, t)
            if t > stream.last:
                head = stream.head
                stream.ring[head] = t - stream.last
                stream.head = 0 if head == RING - 1 else head + 1
                if stream.diffs < RING:
                    stream.diffs += 1
                stream.last = t
            if slot == 0:
                stream.first_any = t
                stream.first_after = t
            elif slot == 1 and stream.first_after < lane.start:
                stream.first_after = t
            tally = a.tally[s]
            tally.off_sum += float(off)
            tally.off_square += float(off) * float(off)
            a.numbers[at] = base + k
            a.spare[at] = s
            a.out_slot[at] = min(slot, -NO_SLOT - 1)
            a.out_stamp[at] = t
            at += 1
            k += 1
            if slot == stream.slots - 1:
                waiting -= 1
                if waiting == 0:
                    break
        if at == begins:
            break
        lane.waiting = waiting
        lane.pulses += at - begins
        lane.hwm = max(lane.hwm, newest)
        lane.mark = max(lane.mark, newest)
        lane.streak = 0
        lane.far = 0
        lane.rows += at - begins
        for s in range(lane.streams):  # one row per slot, from slot 0 on
            stream = a.streams[s, n]
            if stream.tracked != 0 and stream.period != 0:
                stream.held_rows += stream.reached + 1 - stream.count
                stream.count = stream.reached + 1
        if waiting > 0 or not has_room(a, call):
            settle_run(a, n, begins, at)
            lane.arrived_at = call.wall
            return (k, False) if waiting > 0 else (k - 1, True)
        close_run(a, call, n, first, at)
        if lane.rows > 0 or not expects_pulses(lane, call):
            break
    if k > begun:
        lane.arrived_at = call.wall
    return k, False


@lean_inline
def resume_run(a, n, first):
    """Write the rows of the window down as a run from `first` on, if they are one: those of earlier
    calls, whose records were written by `settle_run` or one at a time.

    They are a run if no other row waits, times ascend up to the end of the window, and every stream
    has one row per slot from 0 on. `tally` gets the sums of their offsets; its slots are -1 before.

    Returns:
        Where the run ends, or -1 if the rows are no run; then nothing but scratch was written.
    """
    rows, lane = a.rows, a.lanes[n]
    at = first
    newest = lane.start - lane.length
    end = lane.start + lane.length
    row = np.int64(a.lists[n].head[_ACTIVE])
    while row >= 0:
        record = rows[row]
        t, s, slot = record.time, max(np.int64(record.stream), 0), np.int64(record.slot)
        stream, tally = a.streams[s, n], a.tally[s]
        if (
            record.gated == 0
            or slot != tally.slot + 1
            or t < newest
            or t > end
            or t != record.stamp
        ):
            return np.int64(-1)
        newest = t
        off = float(t - stream.origin - (stream.first + slot) * stream.period)
        tally.slot = slot
        tally.off_sum += off
        tally.off_square += off * off
        a.numbers[at] = row
        a.spare[at] = s
        a.out_slot[at] = slot
        a.out_stamp[at] = t
        at += 1
        row = np.int64(record.next)
    if at - first != lane.rows or at == first:
        return np.int64(-1)
    for s in range(lane.streams):
        stream = a.streams[s, n]
        if stream.tracked != 0 and stream.period != 0 and stream.reached != a.tally[s].slot:
            return np.int64(-1)
    return np.int64(at)


@lean_inner
def write_records(a, n, first, last):
    """Write the records of rows that were handled without: `numbers[first:last]` of lane `n`."""
    for i in range(first, last):
        record = a.rows[a.numbers[i]]
        record.time = a.out_stamp[i]
        record.stamp = a.out_stamp[i]
        record.lane = n
        record.stream = a.spare[i]
        record.slot = a.out_slot[i]
        record.gated = 1


@lean_inner
def settle_run(a, n, first, last):
    """Give the rows of an incomplete run their records, and link them into the window."""
    write_records(a, n, first, last)
    for i in range(first, last):
        append(a.rows, a.lists[n], _ACTIVE, a.numbers[i])


# -- a row comes ----------------------------------------------------------------------------------


@lean_inner
def admit_row(rows, row, t, lane, n, stream, s, gated):
    """Fill in the record of a new row. It is linked into a list by `route` or `append` later.

    The decision time is the stamp, clipped to REACH_NS, minus the skew correction of its stream.

    Args:
        rows: Records of all rows.
        row: Number of the new row.
        t: The time it came with, in ns.
        lane: Record of its lane, whose number is `n`.
        n: Number of the lane.
        stream: Record of its stream; not touched if `s` is -1.
        s: Number of the stream in the lane; -1 if no record was free.
        gated: Whether batches may wait for its stream. A row without a stream record never gates.
    """
    record = rows[row]
    record.stamp = t
    record.time = min(max(t, -REACH_NS), REACH_NS) - (stream.offset if s >= 0 else 0)
    record.lane = n
    record.stream = s
    record.slot = NO_SLOT
    record.gated = 0
    if s >= 0:
        stream.held_rows += 1
        if gated:
            record.gated = 1
    lane.rows += 1


@lean_inner
def find_stream(name, n, lane, streams, find):
    """Return the number of a stream by the digest of its name; a new one if a record is free.

    Linear probing in the lane's hash table, which has at least twice as many slots as there are
    records, so a free slot always ends the search.

    Returns:
        The number of the stream in its lane, or -1 if all records are in use.
    """
    mask = find.shape[1] - 1
    at = name & mask
    while find[n, at] >= 0:
        if streams[find[n, at], n].name == name:
            return np.int64(find[n, at])
        at = (at + 1) & mask
    return make_stream(name, n, lane, streams, find, at)


@lean_inner
def make_stream(name, n, lane, streams, find, at):
    """Give a new stream a record.

    While records are left they are handed out in order. Once all are taken, the record of a stream
    that is neither measured nor has rows waiting is reused. Linear probing cannot delete single
    entries, so the hash table is rebuilt in that case.

    Args:
        name: Digest of the name.
        n: Number of the lane.
        lane: Record of the lane.
        streams: Records of all streams, streams x lanes.
        find: Hash tables of all lanes.
        at: Free slot in the hash table where the search for the name ended.

    Returns:
        The number of the stream, or -1 if no record is free.
    """
    mask = find.shape[1] - 1
    s = np.int64(-1)
    if lane.streams < streams.shape[0]:
        s = lane.streams
        lane.streams += 1
        find[n, at] = s
    else:  # full: take the record of a stream that is neither measured nor waiting
        for other in range(lane.streams):
            if streams[other, n].tracked == 0 and streams[other, n].held_rows == 0:
                s = np.int64(other)
                break
        if s < 0:
            return s
    forget_stream(streams[s, n])
    streams[s, n].name = name
    if lane.streams == streams.shape[0]:
        for place in range(mask + 1):
            find[n, place] = -1
        for other in range(lane.streams):
            at = streams[other, n].name & mask
            while find[n, at] >= 0:
                at = (at + 1) & mask
            find[n, at] = other
    return s


@lean_inner
def note_name(stream, named, counts, i):
    """Remember that row `i` of the call brought the name of this stream for the first time.

    The caller writes the text of the name to the state: kernels know digests only.
    """
    named[counts.named] = i
    counts.named += 1
    stream.seen = 1


@lean_inner
def forget_stream(stream):
    """Reset a stream record to that of a new stream.

    Fields without a line here (`name`, `ring`) are written before they are read.
    """
    stream.last = 0
    stream.diffs = 0
    stream.head = 0
    stream.absent = 0
    stream.tracked = 0
    stream.origin = 0
    stream.period = 0
    stream.slots = 0
    stream.first = 0
    stream.reached = 0
    stream.count = 0
    stream.first_any = 0
    stream.first_after = 0
    stream.held_rows = 0
    stream.measured = 0
    stream.seen = 0
    stream.gate = Gate.NOT_GATED.value
    stream.follows = 0
    stream.locked = 0
    stream.phase = 0
    stream.offset = 0
    stream.fine = 0.0


@lean_inner
def on_grid(record, stream):
    """Whether a row belongs to a gated stream that has a grid."""
    return record.gated != 0 and stream.tracked != 0 and stream.period != 0


@lean_inner
def lift(record, lane, stream, patient):
    """Move the high-water mark, before the row is routed.

    While streams gate, a row that lies implausibly far ahead is a suspect. One at a time
    (`patient`), suspects move the mark only when they have spanned a whole batch length with no
    row of a gating stream between them: then time has really passed. Call by call, they close the
    window they came in, as the recorded batcher does, but never the next one: `mark` stays behind.
    """
    t, length = record.time, lane.length
    cap = lane.start + AHEAD_LENGTHS * length
    end = lane.start + length
    reach = min(t, cap)
    if lane.gating == 0:
        lane.hwm = max(lane.hwm, reach)
        lane.mark = lane.hwm
        return
    gridded = on_grid(record, stream)
    if gridded and t > end + FAR_LENGTHS * length:
        if lane.far == 0:
            lane.far_min = t
            lane.far_max = t
        lane.far += 1
        lane.far_min = min(lane.far_min, t)
        lane.far_max = max(lane.far_max, t)
        if not patient:
            lane.hwm = max(lane.hwm, cap)
            lane.mark = max(lane.mark, cap)
        elif lane.far_max - lane.far_min >= length:
            lane.hwm = max(lane.hwm, cap)
        return
    if gridded:
        lane.streak = 0
        lane.far = 0
    if gridded or t <= end + AHEAD_LENGTHS * length:
        lane.hwm = max(lane.hwm, reach)
        lane.mark = max(lane.mark, reach)
        return
    if lane.streak == 0:
        lane.streak_min = t
        lane.streak_max = t
    lane.streak += 1
    lane.streak_min = min(lane.streak_min, t)
    lane.streak_max = max(lane.streak_max, t)
    if not patient or lane.streak_max - lane.streak_min >= length:
        lane.hwm = max(lane.hwm, cap)


@lean_inner
def route(rows, row, lists, lane, stream, stalled):
    """Put a row into the list where it belongs, and update the progress of its stream.

        time                                    on a grid         not on a grid
        up to the end of the window             ACTIVE, a slot    ACTIVE
        behind it, up to 3 lengths              OVER              HELD
        further, up to 1000 lengths             OVER              ACTIVE (rides along)
        beyond that: another epoch              ACTIVE            ACTIVE

    On a grid, the slot decides rather than the time. Overflow within three lengths proves that the
    stream has passed its last slot of this window, so the stream is no longer waited for.

    Args:
        rows: Records of all rows.
        row: Number of the row; it is in no list.
        lists: Lists of its lane.
        lane: Record of its lane.
        stream: Record of its stream; any record if it has none.
        stalled: True if the window was just re-placed among these rows: what still lies more than
            three lengths ahead of it is an outlier that must not drag it away again, and leaves
            with this window.
    """
    record = rows[row]
    t, length = record.time, lane.length
    end = lane.start + length
    record.slot = NO_SLOT
    if t > end + FAR_LENGTHS * length or (stalled and t > end + AHEAD_LENGTHS * length):
        append(rows, lists, _ACTIVE, row)
        return
    if not on_grid(record, stream):
        if end < t <= end + AHEAD_LENGTHS * length:
            append(rows, lists, _HELD, row)
            return
        if record.gated != 0:
            observe(stream, t)
            count_in(stream, t, lane.start)
        append(rows, lists, _ACTIVE, row)
        return
    observe(stream, t)
    slot = pulse_index(stream.origin, stream.period, t) - stream.first
    slots = stream.slots
    if slot >= slots:
        append(rows, lists, _OVER, row)
        lane.over_min = min(lane.over_min, t)
        if slot < (1 + AHEAD_LENGTHS) * slots and stream.reached < slots - 1:
            stream.reached = slots - 1
            lane.waiting -= 1
        return
    record.slot = min(max(slot, NO_SLOT + 1), -NO_SLOT - 1)  # an int32
    if slot > stream.reached:
        if slot == slots - 1:
            lane.waiting -= 1
        stream.reached = slot
    lane.pulses += 1
    count_in(stream, t, lane.start)
    append(rows, lists, _ACTIVE, row)


@lean_inline
def route_next_pulse(rows, row, lists, lane, stream):
    """Do `lift` and `route` in one for the expected row: the next slot of a stream with a grid.

    Most rows of steady streams end here, without a division: the row must lie strictly within half
    a period of the next slot. At exactly half a period `route` decides, because it rounds to even.

    Returns:
        False, with nothing changed, for every other row.
    """
    record = rows[row]
    period = stream.period
    if record.gated == 0 or period == 0 or stream.tracked == 0:
        return False
    t = record.time
    slot = stream.reached + 1
    twice_off = 2 * (t - stream.origin - (stream.first + slot) * period)
    if slot >= stream.slots or twice_off >= period or twice_off <= -period:
        return False
    reach = min(t, lane.start + AHEAD_LENGTHS * lane.length)
    lane.hwm = max(lane.hwm, reach)
    lane.mark = max(lane.mark, reach)
    lane.streak = 0
    lane.far = 0
    lane.pulses += 1
    record.slot = min(slot, -NO_SLOT - 1)
    stream.reached = slot
    if slot == stream.slots - 1:
        lane.waiting -= 1
    observe(stream, t)
    count_in(stream, t, lane.start)
    append(rows, lists, _ACTIVE, row)
    return True


@lean_inner
def count_in(stream, t, start):
    """Count a row of a gated stream that is in the window.

    The time of the first row, and of the first one at or after the start of the window, can become
    the origin of the stream's grid.
    """
    if stream.count == 0:
        stream.first_any = t
        stream.first_after = t
    elif stream.first_after < start:
        stream.first_after = t
    stream.count += 1


# -- is the window complete? ----------------------------------------------------------------------


@lean_inline
def due(lane):
    """Return the CloseReason for which the window is complete, or -1.

    A window that recovery has moved closes with the reason of the move (GAP, STALL), whether the
    gate or the timeout closes it: the user should see that it was moved.
    """
    timed_out = lane.timeout != NEVER and lane.hwm >= lane.start + lane.timeout
    gated = lane.gating > 0 and lane.waiting == 0
    if not (timed_out or gated):
        return np.int64(-1)
    if lane.move != 0:
        return lane.move
    return np.int64(CloseReason.GATE.value) if gated else np.int64(CloseReason.TIMEOUT.value)


@lean_inline
def stall_due(lane, lists, wall):
    """Return whether nothing closed for STALL_LENGTHS of wall time while rows are in the window.

    With a clock that always says 0 (no `clock` was given) this is never true.
    """
    return wall - lane.closed_at >= STALL_LENGTHS * lane.length and lists.head[_ACTIVE] >= 0


@lean_inline
def has_room(a, call):
    """Return whether the output buffers hold one more batch with as many parts as it can have.

    Asked before a batch is begun: running out halfway would leave the lane between two windows.
    """
    counts = a.counts[0]
    parts = a.streams.shape[0] + len(call.wanted)
    return counts.batches < len(a.batches) and counts.parts + parts <= len(a.parts)


@lean_inner
def let_out_due(a, call, n):
    """Let out every batch of lane `n` that is due.

    Each round either closes a window, or moves it once, or ends. The order matters: a silence is
    skipped before the window is judged, a stall is only looked at if nothing is due, and the limit
    on waiting rows comes last, because every other way to close frees rows too.

    Returns:
        False if the buffers ran out before the end: call it again with larger ones.
    """
    lane = a.lanes[n]
    moved = False
    while True:
        if not has_room(a, call):
            return False
        if gap_ahead(lane):
            skip_gap(a, call, n)
        reason = due(lane)
        if reason < 0 and stall_due(lane, a.lists[n], call.wall):
            lane.closed_at = call.wall
            if replace_window(a, call, n, _NO):
                continue
        if reason < 0 and lane.rows > call.limit:
            # Once: `skip_gap` may have moved it on from there, and the two would never agree.
            if not moved and replace_window(a, call, n, _YES):
                moved = True
                continue
            reason = np.int64(CloseReason.LIMIT.value) if lane.move == 0 else lane.move
        if reason < 0:
            return True
        close(a, call, n, reason)
        moved = False


@lean_inner
def drain(a, call, n, reason):
    """Let out everything lane `n` holds, window by window, with this CloseReason.

    Windows that would be empty are skipped: the window moves by whole lengths to the earliest row
    that waits.

    Returns:
        False if the buffers ran out before the end: call it again with larger ones.
    """
    rows, lists, lane = a.rows, a.lists[n], a.lanes[n]
    while lane.rows > 0:
        if not has_room(a, call):
            return False
        if gap_ahead(lane):
            skip_gap(a, call, n)
        if lists.head[_ACTIVE] < 0:
            earliest = lane.over_min
            row = np.int64(lists.head[_HELD])
            while row >= 0:
                earliest = min(earliest, rows[row].time)
                row = np.int64(rows[row].next)
            steps = (earliest - lane.start) // lane.length
            if steps > 0:
                skip_to(a, call, n, lane.start + steps * lane.length)
        close(a, call, n, reason)
    return True


# -- opening and moving the window ----------------------------------------------------------------


@lean_inner
def open_window(lane, streams, n, start, timeout, any_rate, consecutive):
    """Open an empty window at `start`. The caller routes whatever waits again.

    Args:
        lane: Record of the lane; its `length` is that of the new window.
        streams: Records of all streams, streams x lanes.
        n: Number of the lane.
        start: Start of the window, in event time (ns).
        timeout: In batch lengths; infinite for gates only.
        any_rate: Whether the number of slots is that of each window (rates "any").
        consecutive: True if it starts where the window before it ended. Then grids of any rate go
            on with the pulse behind their last slot.
    """
    lane.start = start
    lane.timeout = NEVER if np.isinf(timeout) else int(np.rint(timeout * lane.length))
    lane.over_min = NEVER
    lane.pulses = 0
    lane.gating = 0
    for s in range(lane.streams):
        stream = streams[s, n]
        stream.count = 0
        stream.reached = -1
        if stream.tracked != 0 and stream.period != 0:
            place_window(stream, start, lane.length, any_rate, consecutive)
            lane.gating += 1
    lane.waiting = lane.gating


@lean_inline
def gap_ahead(lane):
    """Return whether rows of gating streams wait for a later window while none is in this one."""
    return lane.over_min != NEVER and lane.pulses == 0


@lean_inner
def skip_gap(a, call, n):
    """Move the window over a silence, by whole lengths, to where traffic resumes.

    Otherwise an hour without messages would let out thousands of empty batches.
    """
    lane = a.lanes[n]
    steps = (lane.over_min - lane.start) // lane.length
    if steps > 0:
        skip_to(a, call, n, lane.start + steps * lane.length)


@lean_inner
def skip_to(a, call, n, start):
    """Move the window forward over a silence to `start`.

    A new length whose time the silence passed applies: the window that starts here is the first
    one at or after it.
    """
    lane = a.lanes[n]
    if lane.changes > 0 and apply_changes(lane, start, _NO):
        refresh_from_last(a, call, n)
    move_window(a, call, n, start, _NO)


@lean_inner
def apply_changes(lane, start, closing):
    """Take the new length that is in effect for a window that starts at `start`.

    Of all changes that are due, the one with the latest effective time counts, and of equal times
    the last; all of them leave the schedule.

    Args:
        lane: Record of the lane.
        start: Start of the window, in ns.
        closing: True at a close. Changes without a time wait for one.

    Returns:
        Whether the length of the lane is another one now.
    """
    before = lane.length
    newest = UNTIMED - 1
    kept = 0
    for i in range(lane.changes):
        at, length = lane.change_at[i], lane.change_length[i]
        if at > start or (at == UNTIMED and not closing):
            lane.change_at[kept] = at
            lane.change_length[kept] = length
            kept += 1
        elif at >= newest:
            newest = at
            lane.length = length
    lane.changes = kept
    return lane.length != before


@lean_inner
def refresh_from_last(a, call, n):
    """Make the grids of all streams of lane `n` fit a new batch length.

    Origins are kept; a stream without a grid gets the time of its newest message as origin.
    """
    lane = a.lanes[n]
    for s in range(lane.streams):
        stream = a.streams[s, n]
        if stream.tracked != 0 and stream.absent < EVICT_CLOSES:
            last = stream.last
            refresh(stream, lane.start, lane.length, last, last, a.scratch, call.any_rate)


@lean_inner
def replace_window(a, call, n, everything):
    """Put the window at the anchor of the rows in it, unless it is there already.

    This is the recovery from a window in the wrong place: one stamp from the future opened it, and
    real traffic comes from before. Streams that were measured in the other epoch are forgotten,
    because nothing that comes now would be newer than their last message.

    Args:
        a: The `KernelArrays`.
        call: The `KernelCall`.
        n: Number of the lane.
        everything: True: take the anchor of all rows that wait, for the limit on them. False: of
            the rows in the window.

    Returns:
        Whether the window was moved.
    """
    lists, lane, numbers = a.lists[n], a.lanes[n], a.numbers
    first = a.counts[0].rows
    empty_heap(a, n, first)
    last = collect(a.rows, lists.head[_ACTIVE], numbers, first)
    if everything:
        last = collect(a.rows, lists.head[_OVER], numbers, last)
        last = collect(a.rows, lists.head[_HELD], numbers, last)
    sort_rows(a.rows, numbers, first, last, a.spare, _YES)
    anchor = anchor_of(a.rows, numbers, first, last, lane.length)
    if lane.start <= anchor < lane.start + lane.length:
        return False
    lane.hwm = anchor
    lane.mark = anchor
    lane.streak = 0
    lane.far = 0
    for s in range(lane.streams):
        stream = a.streams[s, n]
        # Measured in another epoch: nothing that comes now would ever be newer.
        if stream.last > anchor + FAR_LENGTHS * lane.length:
            stream.tracked = 0
            stream.period = 0
            stream.diffs = 0
    move_window(a, call, n, anchor, _YES)
    return True


@lean_inner
def move_window(a, call, n, start, stalled):
    """Move the window to `start`, note the move for the report, and route everything again.

    `stalled`: the move is a recovery from a stall, which outranks a gap as a reason, and
    everything leaves the heap because the distances it was sorted out by no longer hold.
    """
    lane = a.lanes[n]
    lane.moved += start - lane.start
    if stalled:
        lane.move = CloseReason.STALL.value
        empty_heap(a, n, a.counts[0].rows)
    else:
        lane.move = max(lane.move, CloseReason.GAP.value)
    route_again(a, call, n, start, stalled)


@lean_inner
def route_again(a, call, n, start, stalled):
    """Open the window at `start` and route every row that waits.

    Rows of the window go first, then overflow, then held rows: each list is in order of arrival.
    """
    lists, lane = a.lists[n], a.lanes[n]
    active = take_list(lists, _ACTIVE)
    over = take_list(lists, _OVER)
    held = take_list(lists, _HELD)
    open_window(lane, a.streams, n, start, call.timeout, call.any_rate, _NO)
    route_list(a.rows, active, lists, lane, a.streams, n, stalled)
    if stalled:
        route_list(a.rows, over, lists, lane, a.streams, n, _YES)
    else:
        route_overflow(a, over, n, a.counts[0].rows)
    route_list(a.rows, held, lists, lane, a.streams, n, stalled)


@lean_inner
def route_list(rows, row, lists, lane, streams, n, stalled):
    """Route a row and all rows that follow it in the list it was in.

    `next` is read before routing, because routing overwrites it.
    """
    while row >= 0:
        following = np.int64(rows[row].next)
        route(rows, row, lists, lane, streams[max(rows[row].stream, 0), n], stalled)
        row = following


@lean_inner
def route_overflow(a, row, n, at):
    """Route overflow against a new window, in order of arrival.

    Rows more than six lengths ahead go to the heap, where they are not looked at again until the
    window comes near: a backlog of one stream would otherwise be walked through at every close.
    Rows of another epoch are routed, so that they are noticed.

    Args:
        a: The `KernelArrays`.
        row: First row of the former list OVER, or -1.
        n: Number of the lane.
        at: `numbers` from this index on is scratch.
    """
    rows, streams, numbers, lists, lane = a.rows, a.streams, a.numbers, a.lists[n], a.lanes[n]
    near = lane.start + 2 * AHEAD_LENGTHS * lane.length
    beyond = lane.start + (1 + FAR_LENGTHS) * lane.length
    last = at
    while row >= 0:
        record = rows[row]
        following = np.int64(record.next)
        if near < record.time <= beyond and on_grid(record, streams[max(record.stream, 0), n]):
            push_heap(rows, lists, _OVER, row)
        else:
            numbers[last] = row
            last += 1
        row = following
    listed = last
    while lists.heap >= 0 and rows[lists.heap].time <= near:
        numbers[last] = pop_heap(rows, lists)
        last += 1
    if last > listed:
        sort_rows(rows, numbers, at, last, a.spare, _NO)
    for i in range(at, last):
        row = numbers[i]
        route(rows, row, lists, lane, streams[max(rows[row].stream, 0), n], _NO)
    if lists.heap >= 0:
        lane.over_min = min(lane.over_min, rows[lists.heap].time)


# -- closing --------------------------------------------------------------------------------------


@lean_inner
def begin(a, call, n):
    """Make one batch of everything there is, and open the window at its anchor.

    Called for the first rows of a lane (reason FIRST), and when all rows of a window belong to a
    new epoch (reason GAP). Grids are made anew; rows later than the anchor are outliers, so they
    teach nothing about the rate of their stream.
    """
    rows, lists, lane, numbers = a.rows, a.lists[n], a.lanes[n], a.numbers
    reason = (
        np.int64(CloseReason.FIRST.value) if lane.open == 0 else np.int64(CloseReason.GAP.value)
    )
    first = a.counts[0].rows
    empty_heap(a, n, first)
    last = first
    for place in range(3):
        last = collect(rows, lists.head[place], numbers, last)
    sort_rows(rows, numbers, first, last, a.spare, _YES)
    anchor = anchor_of(rows, numbers, first, last, lane.length)
    if lane.changes > 0 and apply_changes(lane, anchor, _YES):
        anchor = anchor_of(rows, numbers, first, last, lane.length)
    for s in range(lane.streams):
        a.streams[s, n].period = 0
        a.tally[s].had_slots = -1
    for place in range(3):
        row = take_list(lists, place)
        while row >= 0:
            record = rows[row]
            if record.gated != 0 and record.time <= anchor:
                observe(a.streams[record.stream, n], record.time)
            row = np.int64(record.next)
    for s in range(lane.streams):
        stream = a.streams[s, n]
        if stream.tracked != 0:
            last_seen = stream.last
            refresh(stream, anchor, lane.length, last_seen, last_seen, a.scratch, call.any_rate)
    start = plausible_start(rows, numbers, first, last, anchor, lane.length)
    frame = BatchFrame(last, start, anchor, reason, np.int64(0))
    write_down(a, call, n, frame)
    lane.open = 1
    lane.before = UNTIMED
    lane.hwm = anchor
    lane.mark = anchor
    lane.streak = 0
    lane.far = 0
    lane.closed_at = call.wall
    open_window(lane, a.streams, n, anchor, call.timeout, call.any_rate, _NO)


@lean_inner
def close(a, call, n, reason):
    """Write the window down as a batch and open the next one.

    First the rows of the window are collected. If gating streams have moved to another epoch, the
    old window keeps its own rows and the others are routed into the next one. Then the grids are
    refreshed, and `finish_close` does the rest.

    Args:
        a: The `KernelArrays`, with room for one batch (`has_room`).
        call: The `KernelCall`.
        n: Number of the lane.
        reason: A CloseReason.
    """
    rows, lists, lane, numbers = a.rows, a.lists[n], a.lanes[n], a.numbers
    first = a.counts[0].rows
    last = first
    epoch = np.int64(-1)
    if epoch_changed(a, n, call.patient):
        # The old window keeps what is its own; the new epoch begins for itself.
        beyond = lane.start + (1 + FAR_LENGTHS) * lane.length
        row = take_list(lists, _ACTIVE)
        while row >= 0:
            following = np.int64(rows[row].next)
            if rows[row].time > beyond:
                append(rows, lists, _ACTIVE, row)
            else:
                numbers[last] = row
                last += 1
            row = following
        if last == first and lists.head[_ACTIVE] >= 0:
            begin(a, call, n)
            return
        epoch = take_list(lists, _ACTIVE)
    else:
        last = collect(rows, take_list(lists, _ACTIVE), numbers, first)
    closing = closing_window(lane, last, reason)
    remember_grids(a, n)
    finish_close(a, call, n, closing, refresh_grids(a, call, n), epoch)


@lean_inline
def closing_window(lane, last, reason):
    """Return the `BatchFrame` of the window that stands, before its grids are refreshed."""
    complete = np.int64(1) if lane.gating > 0 and lane.waiting == 0 else np.int64(0)
    return BatchFrame(last, lane.start, lane.start + lane.length, reason, complete)


@lean_inner
def finish_close(a, call, n, closing, gating, epoch):
    """Write a window down whose rows are collected and whose grids are refreshed, and open the next
    one.

    In order:

    - If no stream gates any more, everything that waits leaves with this batch, which then ends at
      the anchor of its rows, if that is later.
    - Write the batch and its report, and correct clocks if `correct_skew` is set.
    - Evict streams that were absent for EVICT_CLOSES closes.
    - Open the next window at the end of this one and route what waited.

    Args:
        a: The `KernelArrays`, with room for one batch; `numbers[counts.rows:closing.last]` are the
            rows, in any order.
        call: The `KernelCall`.
        n: Number of the lane.
        closing: The `BatchFrame` from `closing_window`.
        gating: How many streams gate now.
        epoch: First of the linked rows that belong to a new epoch, or -1.
    """
    rows, lists, lane, numbers = a.rows, a.lists[n], a.lanes[n], a.numbers
    first = a.counts[0].rows
    last, start, end = closing.last, closing.start, closing.end
    length = end - start
    if gating == 0:
        observe_held(a, call, n)
        last = collect(rows, take_list(lists, _OVER), numbers, last)
        while lists.heap >= 0:
            numbers[last] = pop_heap(rows, lists)
            last += 1
        last = collect(rows, take_list(lists, _HELD), numbers, last)
        sort_rows(rows, numbers, first, last, a.spare, _YES)
        if last > first:
            end = max(end, anchor_of(rows, numbers, first, last, lane.length))
            if end - start > FAR_LENGTHS * lane.length:
                start = plausible_start(rows, numbers, first, last, end, lane.length)
        if lane.changes > 0:
            apply_changes(lane, end, _YES)
    else:
        sort_rows(rows, numbers, first, last, a.spare, _YES)
    write_down(a, call, n, BatchFrame(last, start, end, closing.reason, closing.complete))
    if call.correct_skew:
        correct_clocks(a, n)
    look_at_all = lane.length != length  # what is far ahead is measured in lengths
    evict_absent(a, n)
    for s in range(lane.streams):
        if a.tally[s].had_slots > 0 and a.streams[s, n].period == 0:
            look_at_all = True  # a grid is gone, and with it the reason for its overflow
    if look_at_all and lists.heap >= 0:
        empty_heap(a, n, last)
    over = take_list(lists, _OVER)
    held = take_list(lists, _HELD)
    begin_next(a, call, n, end)
    while epoch >= 0:
        following = np.int64(rows[epoch].next)
        stream = a.streams[max(rows[epoch].stream, 0), n]
        lift(rows[epoch], lane, stream, call.patient)
        route(rows, epoch, lists, lane, stream, _NO)
        epoch = following
    if over >= 0 or lists.heap >= 0:
        route_overflow(a, over, n, last)
    route_list(rows, held, lists, lane, a.streams, n, _NO)


@lean_inline
def close_run(a, call, n, first, last):
    """Do what `close` does for a complete run of expected pulses (`take_expected`).

    Its rows are `numbers[first:last]`, in order and without records, and nothing else waits. Most
    batches of steady streams leave here, so all of it is written into the loop over rows: handing
    over the arguments of `close` takes as long as the work.
    """
    lane = a.lanes[n]
    take_list(a.lists[n], _ACTIVE)
    closing = closing_window(lane, last, due(lane))
    remember_grids(a, n)
    gating = refresh_grids(a, call, n)
    if gating == 0:
        write_records(a, n, first, last)
        finish_close(a, call, n, closing, gating, np.int64(-1))
        return
    batch = note_batch(a, n, closing)
    report_run(a, call, n, batch)
    count_out(a, n, last)
    evict_absent(a, n)
    begin_next(a, call, n, closing.end)


@lean_inline
def evict_absent(a, n):
    """Stop measuring streams that were absent for EVICT_CLOSES closes."""
    for s in range(a.lanes[n].streams):
        stream = a.streams[s, n]
        if stream.tracked != 0 and stream.absent >= EVICT_CLOSES:
            stream.tracked = 0
            stream.diffs = 0


@lean_inline
def begin_next(a, call, n, start):
    """Open the window behind the one that has just closed."""
    lane = a.lanes[n]
    lane.before = lane.start
    open_window(lane, a.streams, n, start, call.timeout, call.any_rate, _YES)
    lane.hwm = lane.mark
    lane.closed_at = call.wall


@lean_inline
def epoch_changed(a, n, patient):
    """Return whether gating streams themselves have moved to times beyond reach.

    That is not one outlier, but a long silence or a clock that was set. One row at a time
    (`patient`): their far times must span a batch length. Call by call: at least two rows, and no
    row of the window is near.
    """
    rows, lane = a.rows, a.lanes[n]
    if lane.far < 2:
        return False
    if patient:
        return lane.far_max - lane.far_min >= lane.length
    beyond = lane.start + (1 + FAR_LENGTHS) * lane.length
    row = np.int64(a.lists[n].head[_ACTIVE])
    found = row >= 0
    while row >= 0:
        if rows[row].time <= beyond:
            return False
        row = np.int64(rows[row].next)
    return found


@lean_inline
def remember_grids(a, n):
    """Note the grids of the closing window: its report is written after they are refreshed."""
    for s in range(a.lanes[n].streams):
        stream, tally = a.streams[s, n], a.tally[s]
        tally.had_slots = stream.slots if stream.tracked != 0 and stream.period != 0 else -1
        tally.had_first = stream.origin + stream.first * stream.period
        tally.had_period = stream.period


@lean_inline
def refresh_grids(a, call, n):
    """Refresh the grid of every stream with rows in the window, and count an absence for the
    others.

    A length that is due for the next window applies here, so that grids and slots fit it.

    Returns:
        How many streams gate now.
    """
    lane = a.lanes[n]
    for s in range(lane.streams):
        stream = a.streams[s, n]
        if stream.tracked == 0:
            continue
        if stream.count > 0:
            stream.absent = 0
            any_time, after_time = stream.first_any, stream.first_after
            refresh(stream, lane.start, lane.length, any_time, after_time, a.scratch, call.any_rate)
        else:
            stream.absent += 1
            if stream.absent >= EVICT_CLOSES:
                stream.period = 0
    if lane.changes > 0 and apply_changes(lane, lane.start + lane.length, _YES):
        refresh_from_last(a, call, n)
    gating = 0
    for s in range(lane.streams):
        if a.streams[s, n].tracked != 0 and a.streams[s, n].period != 0:
            gating += 1
    return gating


@lean_inline
def observe_held(a, call, n):
    """Learn from the held rows of gated streams, which leave with this batch.

    Without it a lone stream of one pulse per batch would lose every second pulse as evidence and
    never gate.
    """
    rows, lane = a.rows, a.lanes[n]
    row = np.int64(a.lists[n].head[_HELD])
    while row >= 0:
        record = rows[row]
        if record.gated != 0:
            stream = a.streams[record.stream, n]
            observe(stream, record.time)
            count_in(stream, record.time, lane.start)
            stream.absent = -1  # marked: refreshed once below
        row = np.int64(record.next)
    for s in range(lane.streams):
        stream = a.streams[s, n]
        if stream.tracked != 0 and stream.absent == -1:
            stream.absent = 0
            any_time, after_time = stream.first_any, stream.first_after
            refresh(stream, lane.start, lane.length, any_time, after_time, a.scratch, call.any_rate)


@lean_inner
def write_down(a, call, n, frame):
    """Write one batch with its report, and take its rows off the counts of what waits.

    Args:
        a: The `KernelArrays`; the rows are `numbers[counts.rows:frame.last]`, sorted.
        call: The `KernelCall`.
        n: Number of the lane.
        frame: The `BatchFrame`.
    """
    batch = note_batch(a, n, frame)
    report(a, call, n, batch)
    count_out(a, n, frame.last)


@lean_inline
def note_batch(a, n, frame):
    """Write the record of the batch that leaves, but for what its report says, and return it."""
    lane, counts = a.lanes[n], a.counts[0]
    batch = a.batches[counts.batches]
    batch.lane = n
    batch.id = lane.batches
    batch.start = frame.start
    batch.end = frame.end
    batch.reason = frame.reason
    batch.first = counts.rows
    batch.rows = frame.last - counts.rows
    batch.moved = lane.moved
    batch.complete = frame.complete
    return batch


@lean_inline
def count_out(a, n, last):
    """Take the rows of the batch, which end at `last`, off the counts of what waits."""
    lane, counts = a.lanes[n], a.counts[0]
    for s in range(lane.streams):
        a.streams[s, n].held_rows -= a.tally[s].rows
    lane.rows -= last - counts.rows
    lane.batches += 1
    lane.moved = 0
    lane.move = 0
    counts.rows = last
    counts.batches += 1


@lean_inner
def correct_clocks(a, n):
    """Subtract the skew that the report has just measured from the clock of each stream.

    It is taken off the times of its rows that wait, off its grid, and (`offset`) off every row to
    come. Skews within one and a quarter periods of the slowest stream are ignored: the newest
    messages of streams lie that far apart anyway. Skews beyond FAR_LENGTHS are another epoch, not
    a skew.
    """
    rows, lists, lane = a.rows, a.lists[n], a.lanes[n]
    batch = a.batches[a.counts[0].batches - 1]
    slack = np.int64(0)
    for at in range(batch.part, batch.part + batch.parts):
        part = a.parts[at]
        if part.skew_known != 0:
            slack = max(slack, 5 * a.streams[part.stream, n].measured // 4)
    corrected = False
    for at in range(batch.part, batch.part + batch.parts):
        part = a.parts[at]
        if part.skew_known == 0:
            continue
        stream = a.streams[part.stream, n]
        skew = part.skew - part.corrected  # what is left of it
        if stream.measured == 0 or abs(skew) <= slack or abs(skew) > FAR_LENGTHS * lane.length:
            continue
        corrected = True
        stream.offset += skew
        stream.last -= skew
        stream.origin -= skew
        stream.phase -= skew
        stream.first_any -= skew
        stream.first_after -= skew
        stream.follows = 0
        empty_heap(a, n, a.counts[0].rows)
        for place in (_OVER, _HELD):
            row = np.int64(lists.head[place])
            while row >= 0:
                if rows[row].stream == part.stream:
                    rows[row].time -= skew
                row = np.int64(rows[row].next)
    if corrected:
        newest = lane.start
        for s in range(lane.streams):
            if a.streams[s, n].tracked != 0:
                newest = max(newest, a.streams[s, n].last)
        lane.mark = min(lane.mark, newest)


@lean_inner
def plausible_start(rows, numbers, first, last, end, length):
    """Return the earliest time of the sorted rows that is of the same epoch as `end`.

    Keeps one stamp of 1970 from making a batch that claims to span fifty years.
    """
    for i in range(first, last):
        if rows[numbers[i]].time >= end - FAR_LENGTHS * length:
            return rows[numbers[i]].time
    return end


@lean_kernel
def anchor_of(rows, numbers, first, last, length):
    """Return the newest time of the largest group of sorted rows.

    Groups are cut at gaps of more than three batch lengths; of two equally large ones, the later
    counts. So one wrong stamp, however far away, never decides where the window is.
    """
    best = 0
    anchor = rows[numbers[last - 1]].time
    begun = first
    for i in range(first, last):
        here = rows[numbers[i]].time
        if i + 1 == last or rows[numbers[i + 1]].time - here > AHEAD_LENGTHS * length:
            if i + 1 - begun >= best:
                best = i + 1 - begun
                anchor = here
            begun = i + 1
    return anchor


# -- lists, heap and sorting: by row number; nothing below knows what a batch is ------------------


@lean_kernel
def append(rows, lists, place, row):
    """Put a row at the end of the list `place` of its lane."""
    rows[row].next = -1
    rows[row].place = place
    tail = lists.tail[place]
    if tail < 0:
        lists.head[place] = row
    else:
        rows[tail].next = row
    lists.tail[place] = row


@lean_inner
def take_list(lists, place):
    """Empty a list. Returns its first row, from which `next` leads on, or -1."""
    head = np.int64(lists.head[place])
    lists.head[place] = -1
    lists.tail[place] = -1
    return head


@lean_inner
def collect(rows, row, numbers, at):
    """Write a list of rows into `numbers` from `at` on. Returns where it ended."""
    while row >= 0:
        numbers[at] = row
        at += 1
        row = rows[row].next
    return at


@lean_inner
def meld(rows, one, other):
    """Two leftist heaps (earliest time, then arrival, on top) become one. Returns its root.

    Written as a walk down the right spines and back up: the spine is at most log2(n) long, and
    numba compiles loops better than recursion. While walking down, `right` of a spine row is
    borrowed to find the way up.
    """
    if one < 0:
        return other
    if other < 0:
        return one
    up = np.int64(-1)
    while one >= 0 and other >= 0:
        if rows[other].time < rows[one].time or (
            rows[other].time == rows[one].time and other < one
        ):
            one, other = other, one
        below = np.int64(rows[one].right)
        rows[one].right = up
        up = one
        one = below
    root = one if one >= 0 else other
    while up >= 0:
        above = np.int64(rows[up].right)
        left = np.int64(rows[up].left)
        left_rank = np.int64(rows[left].rank) if left >= 0 else np.int64(0)
        root_rank = np.int64(rows[root].rank) if root >= 0 else np.int64(0)
        if left_rank >= root_rank:
            rows[up].right = root
            rows[up].rank = root_rank + 1
        else:
            rows[up].left = root
            rows[up].right = left
            rows[up].rank = left_rank + 1
        root = up
        up = above
    return root


@lean_kernel
def push_heap(rows, lists, place, row):
    """Put a row on the heap of far overflow; its `place` says that it is in the list `place`."""
    rows[row].left = -1
    rows[row].right = -1
    rows[row].rank = 1
    rows[row].place = place
    lists.heap = meld(rows, np.int64(lists.heap), np.int64(row))


@lean_kernel
def pop_heap(rows, lists):
    """Take the earliest row off the heap, which is not empty."""
    top = np.int64(lists.heap)
    lists.heap = meld(rows, np.int64(rows[top].left), np.int64(rows[top].right))
    return top


@lean_kernel
def empty_heap(a, n, at):
    """Move all overflow from the heap back into its list, in order of arrival.

    After this it does not matter which rows had been in the heap, so decisions do not depend on
    it. `numbers` from `at` on is scratch.
    """
    rows, lists, numbers = a.rows, a.lists[n], a.numbers
    if lists.heap < 0:
        return
    last = collect(rows, take_list(lists, _OVER), numbers, at)
    while lists.heap >= 0:
        numbers[last] = pop_heap(rows, lists)
        last += 1
    sort_rows(rows, numbers, at, last, a.spare, _NO)
    for i in range(at, last):
        append(rows, lists, _OVER, numbers[i])


@lean_inner
def comes_after(rows, one, other, by_time):
    """Whether row `one` belongs behind row `other`: by time, then arrival, or by arrival alone."""
    if by_time and rows[one].time != rows[other].time:
        return rows[one].time > rows[other].time
    return one > other


@lean_kernel
def sort_rows(rows, numbers, first, last, spare, by_time):
    """Sort `numbers[first:last]` in place, by time and arrival, or by arrival alone.

    A natural merge sort: neighbouring sorted runs are merged until one is left. Linear if already
    sorted, which is the usual case, and stable without extra keys.

    Args:
        rows: Records of all rows.
        numbers: Row numbers; only the given range is touched.
        first: Start of the range.
        last: End of the range.
        spare: Scratch, at least as long as `numbers`.
        by_time: True: by (time, row number). False: by row number.
    """
    while True:
        runs = 0
        at = first
        while at < last:
            middle = at + 1
            while middle < last and not comes_after(
                rows, numbers[middle - 1], numbers[middle], by_time
            ):
                middle += 1
            if middle == last:
                runs += 1
                break
            end = middle + 1
            while end < last and not comes_after(rows, numbers[end - 1], numbers[end], by_time):
                end += 1
            for i in range(at, middle):
                spare[i] = numbers[i]
            i, j, k = at, middle, at
            while i < middle:
                if j < end and comes_after(rows, spare[i], numbers[j], by_time):
                    numbers[k] = numbers[j]
                    j += 1
                else:
                    numbers[k] = spare[i]
                    i += 1
                k += 1
            runs += 1
            at = end
        if runs <= 1:
            return
