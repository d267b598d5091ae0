"""What a synchroniser hands to its user: sets, what left without one, and why nothing comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tidegate.core.outcomes import Int64s
from tidegate.core.time import format_duration

__all__ = ["Diagnosis", "SyncResult", "SyncSet", "Unmatched"]


class SyncSet(NamedTuple):
    """One message of each topic, in topic order; None for an optional member that is missing."""

    times_ns: tuple[int | None, ...]
    payloads: tuple[Any, ...]
    rows: tuple[int | None, ...]
    """The members' running numbers: how many messages had come before each."""
    spread_ns: int
    decided_at: int
    """The running number of the message that decided this set; -1: the end did."""
    decided_at_ns: int
    """The stamp of that message."""

    @property
    def time_ns(self) -> int:
        """The stamp of the latest member."""
        return max(t for t in self.times_ns if t is not None)

    @property
    def delay_ns(self) -> int:
        """How long after its latest member, in event time, the set was decided."""
        return self.decided_at_ns - self.time_ns


class Unmatched(NamedTuple):
    """A message that left without a set, and why."""

    topic: str
    time_ns: int
    payload: Any
    row: int
    reason: str
    decided_at: int
    by_ns: int
    """How much too wide (too_old, unproven) or how far the clock went back (time_jump); else 0."""


@dataclass(frozen=True, eq=False)
class SyncResult:
    """What `process` decided, as columns."""

    topics: tuple[str, ...]
    rows: Int64s
    """Sets x topics: running numbers of the members; -1 where an optional one is missing."""
    times_ns: Int64s
    decided_at: Int64s
    spread_ns: Int64s
    time_ns: Int64s
    decided_at_ns: Int64s
    unmatched_rows: Int64s
    unmatched_topics: Int64s
    unmatched_times_ns: Int64s
    unmatched_reasons: Int64s
    """Numbers into `reasons`."""
    unmatched_decided_at: Int64s
    jumps: Int64s
    """Jumps of a clock: the row that came after the jump, its topic, and how far back (ns)."""
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def delay_ns(self) -> Int64s:
        return np.asarray(self.decided_at_ns - self.time_ns)


@dataclass(frozen=True)
class Diagnosis:
    """Why sets come late or not at all: the topic that holds the match up, and by how much.

    `problem` is one of "none", "waiting" (the topic has delivered nothing that is still held),
    "ahead" (its stamps lie beyond what the queues of the others span) and "disordered".
    """

    problem: str
    topic: str | None = None
    by_ns: int = 0
    since_set: int = 0
    """Sets refused since the last one that was delivered."""

    def __str__(self) -> str:
        by = format_duration(self.by_ns)
        if self.problem == "waiting":
            return f"waiting for {self.topic}: {by} behind the newest message"
        if self.problem == "ahead":
            return (
                f"{self.topic} is {by} ahead of the others, more than their queues span: "
                f"{self.since_set} sets refused; raise queue_size or give it an offset"
            )
        return "sets are coming"
