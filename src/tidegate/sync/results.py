"""What a synchroniser hands to its user: sets, what left without one, jumps, and a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.core.outcomes import Int64s
from tidegate.core.time import format_duration

__all__ = ["PROBLEMS", "ClockJump", "Diagnosis", "SyncResult", "SyncSet", "Unmatched"]


class SyncSet(NamedTuple):
    """One message of each topic, in topic order; None for an optional member that is missing."""

    times_ns: tuple[int | None, ...]
    """The members' stamps, as they were delivered."""
    payloads: tuple[Any, ...]
    """The members' payloads, as they were pushed."""
    rows: tuple[int | None, ...]
    """The members' running numbers: how many messages had come before each."""
    spread_ns: int
    """Latest minus earliest member, after the offsets of their topics were added."""
    decided_at: int
    """The running number of the message that decided this set; -1: `flush` or `tick` did."""
    decided_at_ns: int
    """The stamp of that message; for `flush` and `tick`, the newest time known."""
    delay_ns: int
    """How long after its latest member, in event time, the set was decided."""
    offsets_ns: tuple[int, ...]
    """What was added to the stamps of each topic for the decision (the setting `offsets`)."""

    @property
    def time_ns(self) -> int:
        """The stamp of the latest member."""
        return max(t for t in self.times_ns if t is not None)


class Unmatched(NamedTuple):
    """A message that left without a set, and why."""

    topic: str
    """The topic of the message."""
    time_ns: int
    """Its stamp, as it was delivered."""
    payload: Any
    """Its payload, as it was pushed."""
    row: int
    """Its running number: how many messages had come before it."""
    reason: str
    """`too_old`, `overflow`, `unproven`, `superseded`, `replaced`, `time_jump` or `flush`: see
    `tidegate.sync.lane.LeaveReason`."""
    decided_at: int
    """The running number of the message that decided it; -1: `flush` or `tick` did."""
    by_ns: int
    """The spread of the refused candidate (too_old and unproven, approximate only), or how far the
    clock went back (time_jump); else 0."""


class ClockJump(NamedTuple):
    """A stamp that lies further behind its topic's newest one than `max_jump_back` allows."""

    topic: str
    """The topic whose clock jumped."""
    time_ns: int
    """The stamp after the jump. The message itself stays and may be matched."""
    back_ns: int
    """How far back."""
    row: int
    """The running number of the message that came after the jump."""


@dataclass(frozen=True, eq=False)
class SyncResult:
    """What `process` decided, as columns."""

    topics: tuple[str, ...]
    """The topics, in the order of a set's members."""
    rows: Int64s
    """Sets x topics: running numbers of the members; -1 where an optional one is missing."""
    times_ns: Int64s
    """Sets x topics: the members' stamps, as they were delivered."""
    decided_at: Int64s
    """The running number of the message that decided each set."""
    spread_ns: Int64s
    """Latest minus earliest member of each set, after the offsets of their topics were added."""
    time_ns: Int64s
    """The stamp of each set's latest member."""
    decided_at_ns: Int64s
    """The stamp of the message that decided each set."""
    delay_ns: Int64s
    """How long after its latest member, in event time, each set was decided."""
    unmatched_rows: Int64s
    """Running numbers of the messages that left without a set, in the order they left."""
    unmatched_topics: Int64s
    """Indices into `topics`."""
    unmatched_times_ns: Int64s
    """Their stamps, as they were delivered."""
    unmatched_reasons: Int64s
    """Indices into `reasons`."""
    unmatched_decided_at: Int64s
    """The running number of the message that decided that each of them leaves."""
    jumps: Int64s
    """Jumps of a clock: the row that came after the jump, its topic, and how far back (ns)."""
    reasons: tuple[str, ...]
    """The names of the reasons, by number."""
    offsets_ns: Int64s
    """What was added to the stamps of each topic for the decisions."""

    def __len__(self) -> int:
        """The number of sets."""
        return len(self.rows)


PROBLEMS = (
    "starting", "healthy", "silent", "stuck", "lagging", "leading", "drifting", "bursting",
    "unmatched",
)  # fmt: skip
"""What a diagnosis may say. State refers to these by number: append only."""


@dataclass(frozen=True)
class Diagnosis:
    """Why sets come or do not come: what is wrong, with which topic, by how much, and what helps.

    >>> print(Diagnosis("lagging", "lidar", 500_000_000, queue_size=8, offset_ns=500_000_000))
    lidar is 500 ms behind the others: set queue_size to at least 8 (or queue_time to 500 ms and \
more), or, if it is the clock that is wrong, offsets={"lidar": "500 ms"}
    """

    problem: str
    """- `healthy`: sets are coming, and most messages of the slowest topic are in one.
    - `starting`: too little has come to say.
    - `silent`: the topic has stopped, or never began.
    - `stuck`: it delivers, but its stamps stand still.
    - `lagging`, `leading`: its stamps lie behind or ahead of the others'.
    - `drifting`: so they do, more and more.
    - `bursting`: it comes in bursts, later than the queues of the others span.
    - `unmatched`: none of these; the stamps do not fit together."""
    topic: str | None = None
    """The topic whose removal or shift would let sets form. Of two topics nobody can say which one
    is wrong: then it is the one behind."""
    by_ns: int = 0
    """How far it lies behind or ahead; for silent and stuck, for how long it has been."""
    queue_size: int | None = None
    """The queue that would bridge the distance; None: a queue does not help."""
    offset_ns: int | None = None
    """What to add to its stamps (the setting `offsets`) if it is its clock that is wrong, not its
    transport that is slow; None: an offset does not help."""
    refused: int = 0
    """Candidates refused since the last set."""

    def __str__(self) -> str:
        by = _rounded(self.by_ns)
        helps = f"set queue_size to at least {self.queue_size} (or queue_time to {by} and more)"
        offset = format_duration(self.offset_ns or 0)
        shift = f'or, if it is the clock that is wrong, offsets={{"{self.topic}": "{offset}"}}'
        match self.problem:
            case "healthy":
                return "healthy: sets are coming"
            case "starting":
                return "starting: too few messages have come to say"
            case "silent":
                return (
                    f"{self.topic} has been silent for {by}: make it optional with a timeout, or "
                    "leave it out"
                )
            case "stuck":
                return (
                    f"the clock of {self.topic} does not advance, {by} behind: leave the topic out"
                )
            case "bursting":
                return f"{self.topic} comes in bursts, up to {by} late: {helps}"
            case "lagging":
                return f"{self.topic} is {by} behind the others: {helps}, {shift}"
            case "leading":
                return f"{self.topic} is {by} ahead of the others: {helps}, {shift}"
            case "drifting":
                return f"{self.topic} drifts, now {by} from the others: {helps}, {shift}"
        return (
            f"the stamps do not fit together, and {self.topic} is the furthest from the others, by "
            f"{by}: check max_interval, and for exact matching that stamps are equal"
        )


def _rounded(ns: int) -> str:
    """A duration to three digits, because more are of no use to a reader."""
    digits = max(0, len(str(abs(ns))) - 3)
    return format_duration(round(ns / 10**digits) * 10**digits)
