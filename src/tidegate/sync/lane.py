"""What both searches share: the records their kernels work on, and exact arithmetic of stamps.

A *lane* is one key's synchroniser. Its state is one record (`search`), one record per topic
(`topics`), a ring of stamps and a ring of row numbers. The kernels are compiled functions that get
two NamedTuples: `Lane`, the arrays of one lane, and `Output`, the buffers for what they decide.

    LaneArrays (all lanes) --.at(lane)--> Lane --+
                                                   +--> arrive(lane, output, ...) decides
    Output (sets, members, drops, counts) ---------+

All records hold int64 only, so that they are views of plain int64 arrays: the state of an operator
is saved, paged and compared without knowing them (`core.state`), and the one array in which `push`
works (`push_one`) can hold all of them one behind the other.

Stamps are int64 nanoseconds. In the rings they are as delivered; every decision is made on
`stamp + offset of its topic`, called a *corrected* stamp here.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from tidegate.core.numba import lean_kernel as kernel
from tidegate.core.numba import written_in
from tidegate.core.outcomes import Int64s

__all__ = [
    "BLOCK",
    "COUNT",
    "DROP",
    "HIGHEST",
    "HISTORY",
    "LOWEST",
    "MOST",
    "PARTS",
    "RULES",
    "SET",
    "TALLY",
    "TOPIC_RULES",
    "Arrivals",
    "Lane",
    "LaneArrays",
    "LeaveReason",
    "Output",
    "apart",
    "as_int64",
    "capped",
    "carray",
    "corrected",
    "factor_of",
    "forget_history",
    "lane_at",
    "lane_of",
    "later",
    "note_arrival",
    "note_drop",
    "output_at",
    "output_of",
    "pointer",
    "record",
    "scaled",
    "tell",
]

LOWEST = -(2**63)
"""Smaller than every stamp: stands for "none" where a stamp is expected."""
HIGHEST = 2**63 - 1
"""Not smaller than any stamp: where arithmetic on stamps stops instead of wrapping around."""
MOST = 2**62
"""Messages a lane can count: at a billion per second, those of 146 years. State that claims more is
damaged, and its sums would overflow."""

BLOCK = 32
"""Messages per block of a topic's history (`HISTORY`). The history covers the last one to two
blocks: with fewer messages one late arrival looks like a habit, with more a change is seen late."""


PARTS = 12
"""Parts of the one array of `push_one`: rules, topic rules, search, topics, stamps, rows, count,
sets, members, times, drops, first set. It begins with the address of each."""


class LeaveReason(IntEnum):
    """Why a message leaves without a set. The name in lower case is what users see."""

    TOO_OLD = 0
    """Wider apart than `max_interval` from the newest front; exact: older than a complete set."""
    OVERFLOW = 1
    """The queue was full, or its oldest message older than `queue_time` allows."""
    UNPROVEN = 2
    """The latest topic had lost a message to overflow, so a better set cannot be ruled out."""
    SUPERSEDED = 3
    """A newer message of the topic made a better set."""
    REPLACED = 4
    """Exact only: another message of the same topic and stamp came."""
    TIME_JUMP = 5
    """A clock jumped back, and this message lies on the far side."""
    FLUSH = 6
    """The end of the input, or of the key."""
    CLOCK_JUMP = 7
    """Not a drop: the entry in `drops` that reports the jump itself. The message stays."""


def record(*names: str | tuple[Any, ...]) -> Any:
    """A record type of int64 fields; a tuple (name, length) is a field of several."""
    fields: list[Any] = [
        (name, np.int64) if isinstance(name, str) else (name[0], np.int64, (name[1],))
        for name in names
    ]
    return np.dtype((np.record, np.dtype(fields, align=True)))


RULES = record(
    "topics",  # how many
    "queue",  # messages held per topic at most (exact: open stamps)
    "ring",  # places per topic: a power of two above `queue`
    "queue_time",  # ns; -1: the queue is bounded by `queue` alone
    "numerator",  # 1 + age penalty = numerator / 2**shift
    "shift",
    "interval",  # max_interval in ns; -1: none
    "jump_all",  # a jump clears all topics (1) or only its own (0)
    "timeout",  # of optional topics in ns; -1: none
    "learn",  # 1: learn lower bounds
    "patience",  # overflow_patience; 0: none
    "look_ahead",  # 1: something is known of messages that have not come
    "greedy",  # 1: every candidate is published as it stands (epsilon time)
)
"""The settings, as the kernels read them."""

TOPIC_RULES = record(
    "lower_bound",  # ns between two messages of the topic, at least
    "jump_bound",  # ns a stamp may lie behind the newest one; -1: any
    "optional",  # 1: a set may lack the topic
    "offset",  # ns added to its stamps for every decision
)
"""The settings of one topic."""

TALLY = ("received", "matched", "disorder", "too_close", "jumps", ("dropped", len(LeaveReason)))
"""Counters of a topic. They survive a flush. `dropped` is indexed by `LeaveReason`."""

HISTORY = (
    "arrivals",  # messages since the lane opened
    "last_arrival",  # running number of its last message
    "pause",  # most messages of the lane between two of its own; halved with every block
    "still",  # messages in a row with one and the same stamp
    "late_low", "late_high",  # ns behind the newest stamp of any topic, on arrival: this block
    "late_low_before", "late_high_before",  # and the block before
    "late_first",  # late_low of the first block
    "block_stamp",  # stamp at the start of this block
    "period",  # mean ns between two messages, over the last full block; 0: not known yet
    "matched_block", "matched_before",  # `matched` at the start of this block, and of the last
    "since_set",  # messages since the last set
)  # fmt: skip
"""What `diagnose` needs to know of a topic's recent past."""

SET = record(
    "index",  # running number of the message that decided it; -1: flush or tick did
    "spread_ns",  # of corrected stamps
    "time_ns",  # the latest member's stamp, as delivered
    "lane",
    "decided_at_ns",  # stamp of the deciding message; flush and tick: the lane's clock
    "delay_ns",  # corrected stamp of the deciding message minus the latest corrected member
)
"""A set, beside its row of `members` and `times`."""

DROP = record("row", "reason", "topic", "index", "amount", "time_ns")
"""A message that left without a set, or a jump of a clock (`LeaveReason.CLOCK_JUMP`).

`index` is the running number of the message that decided it. `amount`, in ns, is the spread of the
refused fronts (approximate: too_old, unproven), how far the clock went back (jumps), else 0.
"""

COUNT = record("sets", "drops")
"""How far the buffers of an `Output` are filled."""


class Lane(NamedTuple):
    """The arrays of one lane, as the kernels get them."""

    number: Any
    """Number of the lane."""
    rules: Any
    """One `RULES` record: the settings."""
    limits: Any
    """`TOPIC_RULES` per topic."""
    search: Any
    """The lane's own record; its type differs between the searches."""
    topics: Any
    """One record per topic; its type differs between the searches."""
    stamps: Any
    """The ring of stamps."""
    rows: Any
    """Row numbers of held messages."""


class LaneArrays(NamedTuple):
    """The arrays of all lanes."""

    rules: Any
    """One `RULES` record, in an array of length 1."""
    limits: Any
    """`TOPIC_RULES` per topic."""
    search: Any
    """One record per lane; its type differs between the searches."""
    topics: Any
    """Lanes x topics: one record each; the type differs between the searches."""
    stamps: Any
    """Per lane: the rings of stamps."""
    rows: Any
    """Per lane: the row numbers of held messages, by place."""


class Output(NamedTuple):
    """Buffers that kernels append to; `count` says how far they are filled."""

    sets: Any
    """One `SET` record per set."""
    members: Int64s
    """Sets x topics: row numbers, -1 for a missing optional member."""
    times: Int64s
    """Sets x topics: stamps as delivered, `LOWEST` for a missing one."""
    drops: Any
    """One `DROP` record per message that left without a set, and per jump."""
    count: Any
    """The `COUNT` record: in an array of length 1 outside the kernels, the record itself inside."""


class Arrivals(NamedTuple):
    """Messages in arrival order; message k is row `first_row + k`."""

    lane: Int64s
    """The lane of each message."""
    topic: Int64s
    """The number of each message's topic."""
    time_ns: Int64s
    """The stamp of each message, as delivered."""
    first_row: int
    """Row number of the first message; it is also its running number where rows are counted from
    the start."""
    places: Int64s
    """Filled by the kernel: the place in `rows` where each message's row number is kept."""


def as_int64(records: Any) -> Int64s:
    """The int64 array behind an array of records, with one axis more."""
    width = records.dtype.itemsize // 8
    return np.asarray(records.view(np.int64).reshape(*records.shape, width))


_numba: Any = numba  # its stubs do not export all that it documents


@intrinsic
def _pointer(_: Any, address: Any) -> Any:
    """Compiled form of `pointer`: a cast from int64 to a void pointer."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(address), generate


def _interpreted_pointer(address: int) -> Any:
    """`pointer` without the JIT, for tests that run the kernels as plain Python."""
    return ctypes.c_void_p(int(address))


# For `numba.carray`: a pointer from an address. `push_one` gets the address of its one array
# instead of the ten arrays of a call, because handing these over takes longer than the search.
pointer: Any = _interpreted_pointer if _numba.config.DISABLE_JIT else _pointer
carray: Any = _numba.carray


# -- stamps -----------------------------------------------------------------------------------
# Two int64 stamps lie up to 2**64 - 1 apart, and that times a 53-bit numerator needs 117 bits.
# Both are done in uint64 without ever overflowing one, so that the compiled and the interpreted
# kernel agree.

_TOP = np.uint64(1 << 63)
_HALF = np.uint64(32)
_WORD = np.uint64(64)
_LOW = np.uint64((1 << 32) - 1)
_FULL = np.uint64((1 << 64) - 1)
_NONE = np.uint64(0)


def factor_of(age_penalty: float) -> tuple[int, int]:
    """`1 + age_penalty` as (numerator, shift): a float is a whole number over a power of two.

    >>> factor_of(0.5), factor_of(0.0)
    ((3, 1), (1, 0))
    """
    numerator, denominator = (1.0 + age_penalty).as_integer_ratio()
    return numerator, denominator.bit_length() - 1


@kernel
def apart(later_ns: Any, earlier_ns: Any) -> Any:
    """`later - earlier` as uint64; the caller knows which one is later."""
    return (np.uint64(later_ns) ^ _TOP) - (np.uint64(earlier_ns) ^ _TOP)


@kernel
def later(time_ns: Any, by: Any) -> Any:
    """`time + by` for a uint64 distance that is known to fit."""
    return np.int64(((np.uint64(time_ns) ^ _TOP) + by) ^ _TOP)


@kernel
def capped(end: Any, start: Any) -> Any:
    """`end - start` as int64, at most `HIGHEST`; the caller knows that `end` is later."""
    distance = apart(end, start)
    return np.int64(HIGHEST) if distance > np.uint64(HIGHEST) else np.int64(distance)


@kernel
def corrected(time_ns: Any, offset: Any) -> Any:
    """`time + offset`, stopping at the ends of the range instead of wrapping around."""
    moved = time_ns + offset
    if offset > 0 and moved < time_ns:
        return np.int64(HIGHEST)
    if offset < 0 and (moved > time_ns or moved == LOWEST):
        return np.int64(LOWEST + 1)
    return np.int64(moved)


@kernel
def scaled(distance: Any, numerator: Any, shift: Any) -> Any:
    """Return `distance * numerator / 2**shift`, cut off to whole nanoseconds; at most 2**64 - 1.

    The product has up to 117 bits, so it is made of four products of 32-bit halves, as on paper.

    Args:
        distance: uint64 nanoseconds.
        numerator: Below 2**53 (see `factor_of`).
        shift: 0 to 63.
    """
    if distance == _NONE:
        return _NONE
    n = np.uint64(numerator)
    s = np.uint64(shift)
    d_high = distance >> _HALF
    d_low = distance & _LOW
    n_high = n >> _HALF
    n_low = n & _LOW
    low_low = d_low * n_low
    cross = d_high * n_low
    other = d_low * n_high
    middle = (low_low >> _HALF) + (cross & _LOW) + (other & _LOW)
    high = d_high * n_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    low = ((middle & _LOW) << _HALF) | (low_low & _LOW)
    if high >> s != _NONE:
        return _FULL
    if s == _NONE:
        return low
    return (high << (_WORD - s)) | (low >> s)


# -- what both searches write down ------------------------------------------------------------


@kernel
def note_drop(out: Any, row: Any, reason: Any, topic: Any, index: Any, amount: Any,
              time_ns: Any) -> None:  # fmt: skip
    """Append one entry to `drops`; the caller has made room for it.

    Args:
        out: The `Output`.
        row: Row number of the message.
        reason: A `LeaveReason`.
        topic: Number of its topic.
        index: Running number of the message that decided it; -1 for a flush or a tick.
        amount: In ns, see `DROP`.
        time_ns: Its stamp as delivered.
    """
    count = out.count
    entry = out.drops[count.drops]
    entry.row = row
    entry.reason = reason
    entry.topic = topic
    entry.index = index
    entry.amount = amount
    entry.time_ns = time_ns
    count.drops += 1


@kernel
def first_set(out: Any, n: Any, flat: Any) -> None:
    """Write the first set as plain numbers: members, times, then how it was decided.

    Python unpacks them with one call instead of one per record field.
    """
    for j in range(n):
        flat[j] = out.members[0, j]
        flat[n + j] = out.times[0, j]
    one = out.sets[0]
    flat[2 * n] = one.spread_ns
    flat[2 * n + 1] = one.index
    flat[2 * n + 2] = one.decided_at_ns
    flat[2 * n + 3] = one.delay_ns


@kernel
def note_arrival(search: Any, topic: Any, stamp: Any, last: Any) -> None:
    """Keep the history of a topic (`HISTORY`) with one more message.

    Every BLOCK messages the current block becomes the one before, and a new one starts.

    Args:
        search: Record of the lane; `now` is its clock with this message.
        topic: Record of the topic.
        stamp: Corrected stamp of the message.
        last: Corrected stamp of the topic's message before it.
    """
    number = topic.arrivals
    topic.arrivals = number + 1
    if number > 0:
        topic.pause = max(topic.pause, search.seen - topic.last_arrival)
    topic.last_arrival = search.seen
    topic.since_set += 1
    topic.still = topic.still + 1 if number > 0 and stamp == last else 0
    late = capped(search.now, stamp) if search.now > stamp else np.int64(0)
    if number % BLOCK == 0:
        if number > 0:
            if number == BLOCK:
                topic.late_first = topic.late_low
            span = capped(stamp, topic.block_stamp) if stamp > topic.block_stamp else np.int64(0)
            topic.period = span // BLOCK
            topic.late_low_before = topic.late_low
            topic.late_high_before = topic.late_high
            topic.matched_before = topic.matched_block
            topic.pause //= 2
        topic.matched_block = topic.matched
        topic.block_stamp = stamp
        topic.late_low = late
        topic.late_high = late
    else:
        topic.late_low = min(topic.late_low, late)
        topic.late_high = max(topic.late_high, late)


@kernel
def forget_history(topic: Any) -> None:
    """Begin the history of a topic (`HISTORY`) anew; its counters stay."""
    topic.arrivals = topic.last_arrival = topic.pause = topic.still = topic.since_set = 0
    topic.late_low = topic.late_high = topic.late_low_before = topic.late_high_before = 0
    topic.late_first = topic.block_stamp = topic.period = 0
    topic.matched_block = topic.matched_before = topic.matched


# -- views of one lane ------------------------------------------------------------------------


@written_in
def lane_of(arrays: Any, number: Any) -> Any:
    """Return the `Lane` with this number, out of the `LaneArrays` of all lanes."""
    return Lane(number, arrays.rules[0], arrays.limits, arrays.search[number],
                arrays.topics[number], arrays.stamps[number], arrays.rows[number])  # fmt: skip


@written_in
def output_of(out: Any) -> Any:
    """Return an `Output` whose `count` is the record itself instead of an array of one."""
    return Output(out.sets, out.members, out.times, out.drops, out.count[0])


@written_in
def lane_at(at: Any, search_type: Any, topic_type: Any) -> Any:
    """Return the only `Lane` of a synchroniser whose arrays are parts of one array.

    Args:
        at: The addresses of the parts (`PARTS`).
        search_type: Record type of the lane's own record.
        topic_type: Record type of its topics.
    """
    rules = carray(pointer(at[0]), (1,), RULES)[0]
    n = rules.topics
    return Lane(
        0,
        rules,
        carray(pointer(at[1]), (n,), TOPIC_RULES),
        carray(pointer(at[2]), (1,), search_type)[0],
        carray(pointer(at[3]), (n,), topic_type),
        carray(pointer(at[4]), (n * rules.ring,), np.int64),
        carray(pointer(at[5]), (n * rules.ring,), np.int64),
    )


@written_in
def output_at(at: Any, n: Any, ring: Any) -> Any:
    """Return the `Output` of such a synchroniser, empty.

    Args:
        at: The addresses of the parts (`PARTS`).
        n: Number of topics.
        ring: Places per topic.
    """
    room = n * ring
    count = carray(pointer(at[6]), (1,), COUNT)[0]
    count.sets = 0
    count.drops = 0
    return Output(
        carray(pointer(at[7]), (room,), SET),
        carray(pointer(at[8]), (room, n), np.int64),
        carray(pointer(at[9]), (room, n), np.int64),
        carray(pointer(at[10]), (room,), DROP),
        count,
    )


@written_in
def tell(at: Any, out: Any, n: Any) -> Any:
    """Return what `push_one` returns: sets + 2**32 * drops. A single set is also written as plain
    numbers (`first_set`)."""
    if out.count.sets == 1:
        first_set(out, n, carray(pointer(at[11]), (2 * n + 4,), np.int64))
    return out.count.sets + (out.count.drops << 32)
