"""What to compact: four policies, each a small value that turns chains into a plan.

None of them may touch a delta younger than the retention horizon, so that a vector can still be
composed as of any time inside it.

Clock policy: event time. "Now" is the watermark if there is one, else the chain's newest delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.core.checks import snake
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, Duration, format_duration, parse_duration
from tidegate.deltas.columns import Chains
from tidegate.deltas.folding import Plan, fold
from tidegate.errors import ConfigError

__all__ = ["Adaptive", "FullMerge", "Strategy", "TieredMerge", "TimeBoundary", "read_strategy"]

APPLY_BYTES = 64
"""Applying one delta on a read costs about as much as reading a cache line more: Adaptive weighs
chain length against bytes with it, per read since the last compaction."""


def foldable(chains: Chains, limit_ns: Int64s) -> Int64s:
    """Per vector: how many of its first pending rows are at or before the limit."""
    if len(limit_ns) and int(limit_ns.min()) == MAX_NS:
        return chains.pending.copy()
    inside = chains.effective_ns <= limit_ns[chains.vec]
    return np.bincount(chains.vec[inside], minlength=len(chains)).astype(np.int64)


def whole(value: object, name: str, least: int) -> int:
    """An int setting, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, value, f"must be an int of at least {least}")
    return value


class Strategy(Protocol):
    """A compaction policy."""

    name: ClassVar[str]

    def plan(self, chains: Chains, now_ns: Int64s, keep_ns: Int64s, reads: Int64s) -> Plan:
        """What to do, given per vector: now, the newest time that may be folded, and reads."""
        ...

    def settings(self) -> dict[str, object]:
        """The policy as plain values."""
        ...


@dataclass(frozen=True)
class FullMerge:
    """Fold every pending delta into the checkpoint."""

    name: ClassVar[str] = "full_merge"

    def plan(self, chains: Chains, now_ns: Int64s, keep_ns: Int64s, reads: Int64s) -> Plan:
        return Plan(foldable(chains, keep_ns))

    def settings(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class TieredMerge:
    """Fold all but the newest `keep_recent` deltas into the checkpoint."""

    keep_recent: int = 10
    name: ClassVar[str] = "tiered_merge"

    def __post_init__(self) -> None:
        whole(self.keep_recent, "keep_recent", 0)

    def plan(self, chains: Chains, now_ns: Int64s, keep_ns: Int64s, reads: Int64s) -> Plan:
        old = np.maximum(chains.pending - self.keep_recent, 0)
        return Plan(np.minimum(old, foldable(chains, keep_ns)))

    def settings(self) -> dict[str, object]:
        return {"keep_recent": self.keep_recent}


@dataclass(frozen=True)
class TimeBoundary:
    """Merge the deltas of each closed bucket of time into one; the open bucket stays."""

    interval: Duration
    interval_ns: int = field(init=False, repr=False)
    name: ClassVar[str] = "time_boundary"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "interval_ns", parse_duration(self.interval, "interval", minimum=1)
        )

    def plan(self, chains: Chains, now_ns: Int64s, keep_ns: Int64s, reads: Int64s) -> Plan:
        bucket = chains.effective_ns // self.interval_ns
        limit = np.minimum(np.minimum(now_ns, keep_ns), MAX_NS - 1)
        closed = bucket < ((limit + 1) // self.interval_ns)[chains.vec]
        run = np.full(len(bucket), -1, np.int64)
        if len(bucket):
            new = np.ones(len(bucket), np.bool_)
            new[1:] = (bucket[1:] != bucket[:-1]) | (chains.vec[1:] != chains.vec[:-1])
            run[closed] = np.cumsum(new)[closed]
        return Plan(np.zeros(len(chains), np.int64), run)

    def settings(self) -> dict[str, object]:
        return {"interval": format_duration(self.interval_ns)}


@dataclass(frozen=True)
class Adaptive:
    """Whatever measures cheapest, and nothing at all if nothing gets smaller.

    Tried for every chain: fold all, fold all but `keep_recent`, merge all into one delta. The cost
    of each is its measured bytes, plus, for every read since the last compaction, the deltas that a
    read would still have to apply. A chain that would grow is left alone.
    """

    keep_recent: int = 10
    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        whole(self.keep_recent, "keep_recent", 0)

    def plan(self, chains: Chains, now_ns: Int64s, keep_ns: Int64s, reads: Int64s) -> Plan:
        free = foldable(chains, keep_ns)
        inside = np.arange(len(chains.vec)) - chains.start[:-1][chains.vec]
        nothing = np.zeros(len(chains), np.int64)
        one = np.where(inside < free[chains.vec], chains.vec, -1)
        candidates = [
            Plan(free),
            Plan(np.minimum(np.maximum(chains.pending - self.keep_recent, 0), free)),
            Plan(nothing, one),
        ]
        best_cost = chains.nbytes + reads * chains.pending * APPLY_BYTES
        choice = np.full(len(chains), -1, np.int64)
        for number, candidate in enumerate(candidates):
            after = fold(chains, candidate).chains
            cost = after.nbytes + reads * after.pending * APPLY_BYTES
            better = (after.nbytes < chains.nbytes) & (cost < best_cost)
            choice[better] = number
            best_cost = np.where(better, cost, best_cost)
        return _chosen(chains, candidates, choice)

    def settings(self) -> dict[str, object]:
        return {"keep_recent": self.keep_recent}


def read_strategy(value: Strategy | str | Mapping[str, Any]) -> Strategy:
    """A strategy, or its name as a definition writes it, with its settings if it has any.

    >>> read_strategy("tiered_merge"), read_strategy({"time_boundary": {"interval": "1 s"}})
    (TieredMerge(keep_recent=10), TimeBoundary(interval='1 s'))
    >>> read_strategy({"tieredMerge": {"keepRecent": 5}})
    TieredMerge(keep_recent=5)
    """
    if not isinstance(value, (str, Mapping)):
        if not hasattr(value, "plan"):
            raise ConfigError("strategy", value, f"must be one of {', '.join(_KNOWN)}")
        return value
    given: dict[str, Any] = {str(value): {}} if isinstance(value, str) else dict(value)
    if "name" in given:
        given = {str(given.pop("name")): given}
    given = {snake(name): settings for name, settings in given.items()}
    if len(given) != 1 or next(iter(given)) not in _KNOWN:
        raise ConfigError("strategy", value, f"must be one of {', '.join(_KNOWN)}")
    ((name, settings),) = given.items()
    try:
        made: Strategy = _KNOWN[name](**{snake(k): v for k, v in (settings or {}).items()})
    except TypeError as error:
        raise ConfigError("strategy", value, f"has settings that do not fit: {error}") from None
    return made


_KNOWN: dict[str, Any] = {
    kind.name: kind for kind in (FullMerge, TieredMerge, TimeBoundary, Adaptive)
}


def _chosen(chains: Chains, candidates: list[Plan], choice: NDArray[np.int64]) -> Plan:
    fold_rows = np.zeros(len(chains), np.int64)
    run = np.full(len(chains.vec), -1, np.int64)
    for number, candidate in enumerate(candidates):
        mine = choice == number
        fold_rows[mine] = candidate.fold[mine]
        if candidate.run is not None:
            run = np.where(mine[chains.vec], candidate.run, run)
    return Plan(fold_rows, run)
