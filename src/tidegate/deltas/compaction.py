"""The compactor: when to compact, by which strategy, and what it brought.

Soft limit: `delta_threshold` pending deltas, or `time_threshold` since the oldest arrived or the
last compaction: worth doing in the background. Hard limit: `max_chain_length`: done before more is
accepted, and there the bound is stronger than the retention.

Clock policy: age is wall time and only comes in as an argument; everything else is event time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, MIN_NS, Duration, parse_duration
from tidegate.deltas.columns import Chains
from tidegate.deltas.delta_chain import DeltaChain
from tidegate.deltas.folding import Folded, Plan, fold
from tidegate.deltas.strategies import Strategy, TieredMerge, read_strategy, whole
from tidegate.errors import ConfigError

__all__ = ["CompactionResult", "Compactor", "Level"]


class Level(Enum):
    """How urgent a compaction is."""

    NONE = "none"
    BACKGROUND = "background"
    FORCED = "forced"


@dataclass(frozen=True)
class CompactionResult:
    """What a compaction of one chain did (or, after a dry run, would do)."""

    strategy: str
    deltas_before: int
    deltas_after: int
    bytes_before: int
    bytes_after: int
    error: str | None = None
    """Why the chain was left as it was: a stored delta cannot be applied."""
    conflict: bool = False
    """Deltas came in before the folded place, or another compaction was first: nothing changed."""
    dry_run: bool = False

    @property
    def deltas_merged(self) -> int:
        return self.deltas_before - self.deltas_after

    @property
    def space_saved(self) -> int:
        """Measured bytes; negative if the chain grew."""
        return self.bytes_before - self.bytes_after

    @property
    def no_op(self) -> bool:
        return self.deltas_merged == 0


@dataclass(frozen=True)
class Compactor:
    """Keeps chains short without ever changing the vector they compose to.

    >>> from tidegate.deltas import Add, VectorDelta
    >>> chain = DeltaChain("vec-1", dims=2)
    >>> deltas = [VectorDelta(f"d{n}", "vec-1", Add([1.0, 0.0]), time_ns=n) for n in range(12)]
    >>> chain.extend(deltas)
    []
    >>> result = Compactor(TieredMerge(keep_recent=10)).compact(chain)
    >>> result.deltas_merged, len(chain), chain.compose().tolist()
    (2, 10, [12.0, 0.0])
    """

    strategy: Strategy = field(default_factory=TieredMerge)
    delta_threshold: int = 100
    time_threshold: Duration | None = "60 s"
    """None: age never counts."""
    max_chain_length: int = 1000
    retention: Duration | None = None
    """Deltas younger than this are never folded: vectors can be composed as of any time in it."""
    remember: Duration | None = None
    """How long ids of folded deltas are kept to recognise duplicates; None: for ever."""
    time_threshold_ns: int | None = field(init=False, repr=False)
    retention_ns: int | None = field(init=False, repr=False)
    remember_ns: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", read_strategy(self.strategy))
        whole(self.delta_threshold, "delta_threshold", 1)
        whole(self.max_chain_length, "max_chain_length", self.delta_threshold)
        keep = getattr(self.strategy, "keep_recent", 0)
        if keep >= self.delta_threshold:
            raise ConfigError(
                "keep_recent", keep, f"must be below delta_threshold ({self.delta_threshold})"
            )
        set_ = object.__setattr__
        for name in ("time_threshold", "retention", "remember"):
            value = getattr(self, name)
            set_(self, f"{name}_ns", None if value is None else parse_duration(value, name))

    # -- many chains ------------------------------------------------------------------------------

    def plan(
        self,
        chains: Chains,
        *,
        watermark_ns: Int64s | None = None,
        reads: Int64s | None = None,
        forced: NDArray[np.bool_] | None = None,
    ) -> Plan:
        """What the strategy would do. `forced` chains get below the hard limit whatever it says."""
        now = chains.newest_ns if watermark_ns is None else watermark_ns
        keep = np.full(len(chains), MAX_NS, np.int64)
        if self.retention_ns is not None:
            low = MIN_NS + self.retention_ns
            keep = np.where(now >= low, np.maximum(now, low) - self.retention_ns, MIN_NS - 1)
        if reads is None:
            reads = np.zeros(len(chains), np.int64)
        plan = self.strategy.plan(chains, now, keep, reads)
        if forced is not None and forced.any():
            left = chains.pending - fold(chains, plan).merged
            over = forced & (left >= self.max_chain_length)
            rows = np.where(over, chains.pending - self.max_chain_length // 2, plan.fold)
            plan = Plan(
                rows, None if plan.run is None else np.where(over[chains.vec], -1, plan.run)
            )
        return plan

    def fold(self, chains: Chains, plan: Plan) -> Folded:
        """Carry the plan out."""
        return fold(chains, plan, self.remember_ns)

    # -- one chain --------------------------------------------------------------------------------

    def level(self, chain: DeltaChain, wall_ns: int | None = None) -> Level:
        """How urgently this chain should be compacted; NONE if the strategy would change nothing.

        `wall_ns` is the time by the clock of its appends; without it, age does not count.
        """
        pending = len(chain)
        if pending >= self.max_chain_length:
            return Level.FORCED
        limit = self.time_threshold_ns
        old = wall_ns is not None and limit is not None and chain.age_ns(wall_ns) > limit
        if pending < self.delta_threshold and not old:
            return Level.NONE
        chains = chain.chains
        if chains is None or not self.plan(chains, reads=chain.reads_array()).changes(chains).any():
            return Level.NONE
        return Level.BACKGROUND

    def needs_compaction(self, chain: DeltaChain, wall_ns: int | None = None) -> bool:
        """Whether `compact` would be worth it now, and would change something."""
        return self.level(chain, wall_ns) is not Level.NONE

    def compact(
        self,
        chain: DeltaChain,
        *,
        watermark_ns: int | None = None,
        wall_ns: int | None = None,
        dry_run: bool = False,
    ) -> CompactionResult:
        """Compact one chain. Works on a snapshot and swaps at the end: appends go on meanwhile."""
        with chain.compacting() as attempt:
            before = attempt.chains
            if before is None:
                return CompactionResult(self.strategy.name, 0, 0, 0, 0, dry_run=dry_run)
            plan = self.plan(
                before,
                watermark_ns=None if watermark_ns is None else np.array([watermark_ns], np.int64),
                reads=attempt.reads,
                forced=before.pending >= self.max_chain_length,
            )
            folded = self.fold(before, plan)
            swapped = True
            if folded.changed[0] and not dry_run:
                swapped = attempt.swap(folded.chains, wall_ns)
            after = folded.chains if swapped else before
            return CompactionResult(
                self.strategy.name,
                int(before.pending[0]),
                int(after.pending[0]),
                int(before.nbytes[0]),
                int(after.nbytes[0]),
                folded.errors.get(0),
                not swapped,
                dry_run,
            )
