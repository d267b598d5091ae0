"""What the two policies have in common for their callers: names, sizes and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.core.outcomes import Int64s
from tidegate.core.state import Column, Layout
from tidegate.sync import approximate_kernel, approximate_run
from tidegate.sync import exact as exact_kernel
from tidegate.sync.layout import (
    D_REASON,
    DROP_SIZE,
    S_DECIDED,
    S_INDEX,
    S_LANE,
    S_SPREAD,
    S_TIME,
    SET_SIZE,
)
from tidegate.sync.settings import SyncSettings

__all__ = ["APPROXIMATE", "EXACT", "Decided", "Policy"]


@dataclass(frozen=True, eq=False)
class Decided:
    """What one kernel call decided, as columns. `index` is -1 for what the end decided."""

    members: Int64s
    """Row numbers, sets x topics; -1 for a missing optional member."""
    member_time_ns: Int64s
    index: Int64s
    spread_ns: Int64s
    time_ns: Int64s
    lane: Int64s
    decided_at_ns: Int64s
    gone: Int64s
    """Rows that left without a set; columns `D_*`."""
    jumps: Int64s
    """Rows before which a clock jumped back; columns `D_*`."""

    @classmethod
    def of(cls, sets: Int64s, drops: Int64s, settings: SyncSettings, policy: Policy) -> Decided:
        n = len(settings.topics)
        rest = sets[:, 2 * n :]
        gone, jumps = drops, drops[:0]
        if settings.max_jump_back is not None:
            jumped = drops[:, D_REASON] == policy.kernel.JUMPED
            gone, jumps = drops[~jumped], drops[jumped]
        return cls(
            sets[:, :n],
            sets[:, n : 2 * n],
            rest[:, S_INDEX],
            rest[:, S_SPREAD],
            rest[:, S_TIME],
            rest[:, S_LANE],
            rest[:, S_DECIDED],
            gone,
            jumps,
        )


@dataclass(frozen=True, eq=False)
class Policy:
    """A way to match: its kernels, and where they keep what callers want to know."""

    name: str
    reasons: tuple[str, ...]
    kernel: Any
    run: Callable[..., None]
    push_one: Callable[[Int64s, int, int], int]
    finish: Callable[..., None]

    def layout(self, settings: SyncSettings, *, rows: bool) -> Layout:
        """The state per lane; `rows`: with the row numbers of what is held."""
        n, ring, k = len(settings.topics), settings.ring, self.kernel
        stamps = 2 * ring if self is EXACT else n * ring
        arrays = {
            "core": Column(np.int64, (k.LANE_SIZE + n * k.TOPIC_SIZE,)),
            "ring": Column(np.int64, (stamps,)),
            "rows": Column(np.int64, (n * ring,)),
        }
        if not rows:
            del arrays["rows"]
        return Layout(arrays, tables=() if rows else ("held",))

    def lane(self, core: Int64s, field: int) -> Any:
        """A field of every lane."""
        return core[:, field]

    def topic(self, core: Int64s, topics: int, field: int) -> Any:
        """A field of every lane and topic."""
        at = self.kernel.LANE_SIZE + field * topics
        return core[:, at : at + topics]

    def held(self, core: Int64s, topics: int) -> Any:
        """How many messages every lane and topic holds."""
        if self is EXACT:
            return self.topic(core, topics, exact_kernel.HELD)
        k = approximate_kernel
        return self.topic(core, topics, k.TAIL) - self.topic(core, topics, k.HEAD)

    def room(self, settings: SyncSettings, held: int, coming: int) -> tuple[Int64s, Int64s, Int64s]:
        """Where results go: never less than one call can produce."""
        n = len(settings.topics)
        smallest = n - len(set(settings.optional))
        sets = np.empty(((held + coming) // smallest + 1, 2 * n + SET_SIZE), np.int64)
        jumps = coming if settings.max_jump_back is not None else 0
        drops = np.empty((held + coming + jumps + 1, DROP_SIZE), np.int64)
        return sets, drops, np.zeros(2, np.int64)


APPROXIMATE = Policy(
    "approximate",
    ("too_old", "overflow", "unproven", "superseded", "time_jump", "flush"),
    approximate_kernel,
    approximate_run.run,
    approximate_run.push_one,
    approximate_run.finish,
)
EXACT = Policy(
    "exact",
    ("too_old", "overflow", "replaced", "time_jump", "flush"),
    exact_kernel,
    exact_kernel.run,
    exact_kernel.push_one,
    exact_kernel.finish,
)
