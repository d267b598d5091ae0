"""The compactor: when to compact, by which strategy, and what it brought.

Soft limit: `delta_threshold` pending deltas, or `time_threshold` since the oldest arrived or the
last compaction: worth doing in the background. Hard limit: `max_chain_length`: done before more is
accepted, and there the bound is stronger than the retention.

The law: a compaction never changes what a chain composes to, now or as of any time inside the
retention.

Clock policy: age is wall time and only comes in as an argument; everything else is event time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tidegate.core.checks import duration, int_in
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, MIN_NS, Duration
from tidegate.deltas.columns import Chains, Compacted, CompactionPlan, compact
from tidegate.deltas.delta_chain import DeltaChain
from tidegate.deltas.strategies import Horizon, Strategy, TieredMerge, read_strategy
from tidegate.errors import ConfigError

__all__ = ["CompactionResult", "Compactor", "Urgency"]


class Urgency(Enum):
    """How urgent a compaction is."""

    NONE = "none"
    BACKGROUND = "background"
    """Over the soft limit: worth doing beside the appends."""
    FORCED = "forced"
    """At the hard limit: to be done before more is accepted."""


@dataclass(frozen=True)
class CompactionResult:
    """What a compaction of one chain did (or, after a dry run, would do)."""

    strategy: str
    """The name of the strategy."""
    deltas_before: int
    """Pending deltas before."""
    deltas_after: int
    """Pending deltas after."""
    bytes_before: int
    """Measured bytes of checkpoint and pending deltas before, uncompressed."""
    bytes_after: int
    """The same after."""
    error: str | None = None
    """Why the chain was left as it was: a stored delta cannot be applied."""
    conflict: bool = False
    """Deltas came in before the folded place, or another compaction was first: nothing changed."""
    dry_run: bool = False
    """Nothing was changed, because that was asked for."""

    @property
    def deltas_merged(self) -> int:
        """How many pending deltas fewer."""
        return self.deltas_before - self.deltas_after

    @property
    def space_saved(self) -> int:
        """Measured bytes; negative if the chain grew."""
        return self.bytes_before - self.bytes_after

    @property
    def no_op(self) -> bool:
        """Whether nothing was merged."""
        return self.deltas_merged == 0


@dataclass(frozen=True)
class Compactor:
    """Keeps chains short without ever changing the vector they compose to.

    Raises:
        ConfigError: a setting is out of range, or `keep_recent` of the strategy is not below
            `delta_threshold` (every compaction would be a no-op).

    Example:
        >>> from tidegate.deltas import Add, VectorDelta
        >>> chain = DeltaChain("vec-1", dims=2)
        >>> deltas = [VectorDelta(f"d{n}", "vec-1", Add([1.0, 0.0]), time_ns=n) for n in range(12)]
        >>> chain.process(deltas)
        []
        >>> result = Compactor(TieredMerge(keep_recent=10)).compact(chain)
        >>> result.deltas_merged, len(chain), chain.compose().tolist()
        (2, 10, [12.0, 0.0])
    """

    strategy: Strategy = field(default_factory=TieredMerge)
    """What to fold or merge: a strategy, its name, or a mapping as in a definition."""
    delta_threshold: int = 100
    """The soft limit, in pending deltas (at least 1). 100 keeps a read below some ten microseconds
    and makes compactions rare enough not to matter."""
    time_threshold: Duration | None = "60 s"
    """The soft limit, in wall time since the oldest pending delta arrived or the last compaction.
    None: age never counts."""
    max_chain_length: int = 1000
    """The hard limit, in pending deltas (at least `delta_threshold`)."""
    retention: Duration | None = None
    """Deltas younger than this (event time) are neither folded nor merged: vectors can be composed
    as of any time in it. None: nothing is retained beyond what the strategy keeps."""
    remember: Duration | None = None
    """How long (event time) ids of folded deltas are kept to recognise duplicates. None: for ever;
    they are then most of what a chain occupies."""
    time_threshold_ns: int | None = field(init=False, repr=False)
    retention_ns: int | None = field(init=False, repr=False)
    remember_ns: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "strategy", read_strategy(self.strategy))
        int_in("delta_threshold", self.delta_threshold, 1)
        int_in("max_chain_length", self.max_chain_length, self.delta_threshold)
        keep = getattr(self.strategy, "keep_recent", 0)
        if keep >= self.delta_threshold:
            raise ConfigError(
                "keep_recent", keep, f"must be below delta_threshold ({self.delta_threshold})"
            )
        for name in ("time_threshold", "retention", "remember"):
            value = getattr(self, name)
            set_(self, f"{name}_ns", None if value is None else duration(name, value))

    # -- many chains ------------------------------------------------------------------------------

    def plan(
        self,
        chains: Chains,
        *,
        watermark_ns: Int64s | None = None,
        reads: Int64s | None = None,
        forced: NDArray[np.bool_] | None = None,
    ) -> CompactionPlan:
        """What the strategy would do with many chains.

        Args:
            chains: the chains.
            watermark_ns: event time per vector; None: that of its newest delta.
            reads: how often each vector was composed since its last compaction; None: never.
            forced: chains at the hard limit. If the strategy leaves one of them there, its older
                half is folded, whatever the retention says.
        """
        size = len(chains.ids)
        now = chains.newest_ns if watermark_ns is None else watermark_ns
        newest = np.full(size, MAX_NS, np.int64)
        if self.retention_ns is not None:
            low = MIN_NS + self.retention_ns
            newest = np.where(now >= low, np.maximum(now, low) - self.retention_ns, MIN_NS - 1)
        if reads is None:
            reads = np.zeros(size, np.int64)
        plan = self.strategy.plan(chains, Horizon(now, newest, reads))
        if forced is not None and forced.any():
            left = chains.pending - compact(chains, plan).merged
            over = forced & (left >= self.max_chain_length)
            rows = np.where(over, chains.pending - self.max_chain_length // 2, plan.fold)
            run = None if plan.run is None else np.where(over[chains.vec], -1, plan.run)
            plan = CompactionPlan(rows, run)
        return plan

    def carry_out(self, chains: Chains, plan: CompactionPlan) -> Compacted:
        """Compact many chains by a plan; forgets ids older than `remember`."""
        return compact(chains, plan, self.remember_ns)

    # -- one chain --------------------------------------------------------------------------------

    def urgency(self, chain: DeltaChain, wall_ns: int | None = None) -> Urgency:
        """How urgently a chain should be compacted; NONE if the strategy would change nothing.

        Args:
            chain: the chain.
            wall_ns: the time by the clock of its appends; None: age does not count.
        """
        pending = len(chain)
        if pending >= self.max_chain_length:
            return Urgency.FORCED
        limit = self.time_threshold_ns
        old = wall_ns is not None and limit is not None and chain.age_ns(wall_ns) > limit
        if pending < self.delta_threshold and not old:
            return Urgency.NONE
        chains = chain.chains
        if chains is None:
            return Urgency.NONE
        plan = self.plan(chains, reads=np.array([chain.reads], np.int64))
        return Urgency.BACKGROUND if plan.changes(chains).any() else Urgency.NONE

    def needs_compaction(self, chain: DeltaChain, wall_ns: int | None = None) -> bool:
        """Whether `compact` would be worth it now, and would change something.

        Args:
            chain: the chain.
            wall_ns: as for `urgency`.
        """
        return self.urgency(chain, wall_ns) is not Urgency.NONE

    def compact(
        self,
        chain: DeltaChain,
        *,
        watermark_ns: int | None = None,
        wall_ns: int | None = None,
        dry_run: bool = False,
    ) -> CompactionResult:
        """Compact one chain. Works on a snapshot and swaps at the end: appends go on meanwhile.

        Args:
            chain: the chain.
            watermark_ns: event time now; None: that of its newest delta.
            wall_ns: the time by the clock, from which its age counts again; None: unchanged.
            dry_run: only say what it would bring.
        """
        with chain.compacting() as attempt:
            before = attempt.chains
            if before is None:
                return CompactionResult(self.strategy.name, 0, 0, 0, 0, dry_run=dry_run)
            plan = self.plan(
                before,
                watermark_ns=None if watermark_ns is None else np.array([watermark_ns], np.int64),
                reads=np.array([attempt.reads], np.int64),
                forced=before.pending >= self.max_chain_length,
            )
            done = self.carry_out(before, plan)
            swapped = True
            if done.changed[0] and not dry_run:
                swapped = chain.swap(attempt, done.chains, wall_ns)
            after = done.chains if swapped else before
            return CompactionResult(
                self.strategy.name,
                int(before.pending[0]),
                int(after.pending[0]),
                int(before.nbytes[0]),
                int(after.nbytes[0]),
                done.errors.get(0),
                not swapped,
                dry_run,
            )
