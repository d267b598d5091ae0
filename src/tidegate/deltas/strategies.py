"""What to compact: policies, each a small value that turns chains into a plan.

To add one, write a subclass of `Strategy` and add it to `STRATEGIES`; nothing
else in the package knows the strategies one by one.

None of them may touch a delta younger than the retention horizon, so that a vector can still be
composed as of any time inside it.

Clock policy: event time. "Now" is the watermark if there is one, else the chain's newest delta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tidegate.core.checks import int_in, snake
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, Duration, format_duration, parse_duration
from tidegate.deltas.columns import Chains, CompactionPlan, compact
from tidegate.errors import ConfigError

__all__ = [
    "STRATEGIES",
    "Adaptive",
    "FullMerge",
    "Horizon",
    "Strategy",
    "TieredMerge",
    "TimeBoundary",
    "read_strategy",
]

APPLY_BYTES = 64
"""What applying one delta on a read costs, in bytes read: about a cache line. Adaptive weighs chain
length against bytes with it, per read since the last compaction. Lower, and chains that are read
often stay long; higher, and it folds chains that hardly anybody reads."""


class Horizon(NamedTuple):
    """What a strategy knows beside the chains, one entry per vector."""

    now_ns: Int64s
    """Event time now."""
    newest_ns: Int64s
    """The newest time that may be folded or merged: now less the retention."""
    reads: Int64s
    """How often the vector was composed since the last compaction."""


class Strategy(ABC):
    """A compaction policy: a frozen dataclass. `Compactor.plan` calls `plan`, with all chains at
    once."""

    name: ClassVar[str]
    """Its name in a definition."""
    only_if_smaller: ClassVar[bool] = False
    """Whether a batch job leaves a bucket alone that does not get smaller on disk."""

    @abstractmethod
    def plan(self, chains: Chains, horizon: Horizon) -> CompactionPlan:
        """What to do with each chain. Must not fold or merge a delta behind `newest_ns`."""

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """The policy as plain values, as a definition writes them."""


def _foldable(chains: Chains, limit_ns: Int64s) -> Int64s:
    """Per vector: how many of its first pending deltas are at or before the limit."""
    if len(limit_ns) and int(limit_ns.min()) == MAX_NS:
        return chains.pending.copy()
    inside = chains.effective_ns <= limit_ns[chains.vec]
    return np.bincount(chains.vec[inside], minlength=len(chains)).astype(np.int64)


@dataclass(frozen=True)
class FullMerge(Strategy):
    """Fold every pending delta into the checkpoint: the fastest to read, no history."""

    name: ClassVar[str] = "full_merge"

    def plan(self, chains: Chains, horizon: Horizon) -> CompactionPlan:
        return CompactionPlan(_foldable(chains, horizon.newest_ns))

    def settings(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class TieredMerge(Strategy):
    """Fold all but the newest `keep_recent` deltas into the checkpoint.

    A late delta still finds its place among those that are kept.
    """

    keep_recent: int = 10
    """How many stay (at least 0, below the compactor's `delta_threshold`). More keeps more history
    and makes every read apply more deltas."""
    name: ClassVar[str] = "tiered_merge"

    def __post_init__(self) -> None:
        int_in("keep_recent", self.keep_recent, 0)

    def plan(self, chains: Chains, horizon: Horizon) -> CompactionPlan:
        old = np.maximum(chains.pending - self.keep_recent, 0)
        return CompactionPlan(np.minimum(old, _foldable(chains, horizon.newest_ns)))

    def settings(self) -> dict[str, object]:
        return {"keep_recent": self.keep_recent}


@dataclass(frozen=True)
class TimeBoundary(Strategy):
    """Merge the deltas of each closed bucket of time into one; the open bucket stays.

    A vector can be composed as of the end of any closed bucket. Bit-exact where no step rounds,
    else within a bound that `tidegate.deltas.kernels` states and proves.
    """

    interval: Duration
    """The length of a bucket (at least 1 ns). Buckets begin at whole multiples of it since the
    epoch, also before 1970."""
    interval_ns: int = field(init=False, repr=False)
    name: ClassVar[str] = "time_boundary"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "interval_ns", parse_duration(self.interval, "interval", minimum=1)
        )

    def plan(self, chains: Chains, horizon: Horizon) -> CompactionPlan:
        bucket = chains.effective_ns // self.interval_ns
        limit = np.minimum(np.minimum(horizon.now_ns, horizon.newest_ns), MAX_NS - 1)
        closed = bucket < ((limit + 1) // self.interval_ns)[chains.vec]
        run = np.full(len(bucket), -1, np.int64)
        if len(bucket):
            new = np.ones(len(bucket), np.bool_)
            new[1:] = (bucket[1:] != bucket[:-1]) | (chains.vec[1:] != chains.vec[:-1])
            run[closed] = np.cumsum(new)[closed]
        return CompactionPlan(np.zeros(len(chains), np.int64), run)

    def settings(self) -> dict[str, object]:
        return {"interval": format_duration(self.interval_ns)}


@dataclass(frozen=True)
class Adaptive(Strategy):
    """Whatever measures cheapest, and nothing at all if nothing gets smaller.

    Tried for every chain: fold all, fold all but `keep_recent`, merge all into one delta. The cost
    of each is its measured bytes, plus, for every read since the last compaction, the deltas that a
    read would still have to apply. A chain that would grow is left alone.
    """

    keep_recent: int = 10
    """How many the second candidate keeps (at least 0, below the compactor's `delta_threshold`)."""
    name: ClassVar[str] = "adaptive"
    only_if_smaller: ClassVar[bool] = True

    def __post_init__(self) -> None:
        int_in("keep_recent", self.keep_recent, 0)

    def plan(self, chains: Chains, horizon: Horizon) -> CompactionPlan:
        free = _foldable(chains, horizon.newest_ns)
        inside = np.arange(len(chains.vec)) - chains.start[:-1][chains.vec]
        nothing = np.zeros(len(chains), np.int64)
        candidates = [
            CompactionPlan(free),
            CompactionPlan(np.minimum(np.maximum(chains.pending - self.keep_recent, 0), free)),
            CompactionPlan(nothing, np.where(inside < free[chains.vec], chains.vec, -1)),
        ]
        lowest = chains.nbytes + horizon.reads * chains.pending * APPLY_BYTES
        choice = np.full(len(chains), -1, np.int64)
        for number, candidate in enumerate(candidates):
            after = compact(chains, candidate).chains
            cost = after.nbytes + horizon.reads * after.pending * APPLY_BYTES
            better = (after.nbytes < chains.nbytes) & (cost < lowest)
            choice[better] = number
            lowest = np.where(better, cost, lowest)
        fold, run = nothing.copy(), np.full(len(chains.vec), -1, np.int64)
        for number, candidate in enumerate(candidates):
            mine = choice == number
            fold[mine] = candidate.fold[mine]
            if candidate.run is not None:
                run = np.where(mine[chains.vec], candidate.run, run)
        return CompactionPlan(fold, run)

    def settings(self) -> dict[str, object]:
        return {"keep_recent": self.keep_recent}


STRATEGIES: dict[str, type[Any]] = {
    kind.name: kind for kind in (FullMerge, TieredMerge, TimeBoundary, Adaptive)
}
"""Every strategy by its name in a definition."""


def read_strategy(value: Strategy | str | Mapping[str, Any]) -> Strategy:
    """A strategy, or its name as a definition writes it, with its settings if it has any.

    Anything else is a ConfigError that lists the names.

    >>> read_strategy("tiered_merge"), read_strategy({"time_boundary": {"interval": "1 s"}})
    (TieredMerge(keep_recent=10), TimeBoundary(interval='1 s'))
    >>> read_strategy({"tieredMerge": {"keepRecent": 5}})
    TieredMerge(keep_recent=5)
    """
    expected = f"must be one of {', '.join(STRATEGIES)}"
    if not isinstance(value, (str, Mapping)):
        if not isinstance(value, Strategy):
            raise ConfigError("strategy", value, expected)
        return value
    given: dict[str, Any] = {str(value): {}} if isinstance(value, str) else dict(value)
    if "name" in given:
        given = {str(given.pop("name")): given}
    given = {snake(name): settings for name, settings in given.items()}
    if len(given) != 1 or next(iter(given)) not in STRATEGIES:
        raise ConfigError("strategy", value, expected)
    ((name, settings),) = given.items()
    try:
        made: Strategy = STRATEGIES[name](**{snake(k): v for k, v in (settings or {}).items()})
    except TypeError as error:
        raise ConfigError("strategy", value, f"has settings that do not fit: {error}") from None
    return made
