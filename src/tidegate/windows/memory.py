"""How much may be buffered, and what happens when it is full.

Levels: low, medium above half, high above the high-water mark, emergency above the emergency mark.
Above high water a row is still admitted, with a warning. Beyond emergency open windows are flushed
first; if that does not help the policy decides. A row larger than the whole budget can never be
admitted, so it is refused as such and nothing is flushed for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.errors import ConfigError

__all__ = ["Admission", "Level", "Memory", "MemoryGuard", "MemoryPolicy", "MemoryTracker"]

MB = 1024 * 1024


class Level(Enum):
    """How full the budget is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    EMERGENCY = "emergency"


class Admission(Enum):
    """What became of a request for memory."""

    OK = "ok"
    WARNING = "ok_warning"
    EMERGENCY = "emergency"
    TOO_LARGE = "too_large"


class MemoryPolicy(Enum):
    """What happens at emergency when flushing the open windows did not make room."""

    FLUSH = "flush"
    """Nothing further: rows that still do not fit are refused."""
    BLOCK = "block"
    """The caller waits until an emitted window is acknowledged (in process)."""
    SPILL = "spill"
    """Rows go to an embedded store and come back when there is room (in process)."""
    REJECT = "reject"
    """Rows are refused without flushing anything: delivered as dropped."""


COMPONENTS = {
    "ingestion": 50 * MB,
    "rate": 1 * MB,
    "compaction": 20 * MB,
    "window_metadata": 5 * MB,
}
"""Budgets of the parts of a pipeline, by default."""


@dataclass(frozen=True)
class Memory:
    """A budget in bytes, its marks and its policy.

    >>> Memory(budget=0)
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: budget: got 0, must be a whole number of bytes, at least 1
    """

    budget: int = 100 * MB
    """Bytes in all, at least 1. 100 MB is what one stage of a worker can usually spare."""
    high_water: float = 0.8
    """Above this part a row is admitted with a warning level; above 0, at most `emergency`."""
    emergency: float = 0.95
    """Above this part open windows are flushed, then the policy decides; at most 1. The rest is
    room for the row that is being admitted."""
    policy: MemoryPolicy | str = MemoryPolicy.FLUSH
    """What happens when flushing did not make room; see `MemoryPolicy`. By name or value."""
    components: Mapping[str, int] | None = None
    """Bytes of single components, which are limits of their own: `ingestion` (buffered rows, 50
    MB), `rate` (1 MB), `compaction` (20 MB), `window_metadata` (open windows and accumulators, 5
    MB). Those left out keep these values, or the whole budget where that is smaller."""

    def __post_init__(self) -> None:
        _bytes("budget", self.budget)
        for name in ("high_water", "emergency"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise ConfigError(name, value, "must be above 0 and at most 1")
        if self.high_water > self.emergency:
            raise ConfigError(
                "high_water", self.high_water, f"must not exceed emergency ({self.emergency})"
            )
        if not isinstance(self.policy, MemoryPolicy):
            try:
                object.__setattr__(self, "policy", MemoryPolicy(self.policy))
            except ValueError as error:
                known = ", ".join(policy.value for policy in MemoryPolicy)
                raise ConfigError("policy", self.policy, f"must be one of {known}") from error
        components: object = self.components
        if not isinstance(components, Mapping | None):
            text = "must be a mapping of components to bytes"
            raise ConfigError("components", components, text)
        parts = dict(COMPONENTS)
        for name, size in (self.components or {}).items():
            if name not in COMPONENTS:
                known = ", ".join(COMPONENTS)
                raise ConfigError("components", name, f"must be one of {known}")
            parts[name] = _bytes(f"components.{name}", size)
        # A part cannot have more than the whole: a small budget shrinks the defaults.
        given = self.components or {}
        parts = {k: v if k in given else min(v, self.budget) for k, v in parts.items()}
        object.__setattr__(self, "components", parts)

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for `explain()` and snapshots."""
        assert isinstance(self.policy, MemoryPolicy)
        return {
            "budget": self.budget,
            "high_water": self.high_water,
            "emergency": self.emergency,
            "policy": self.policy.value,
            "components": dict(self.components or {}),
        }

    def part(self, name: str) -> int:
        """The budget of one component.

        Args:
            name: which.
        """
        assert self.components is not None
        return self.components[name]

    @property
    def row_budget(self) -> int:
        """Bytes that buffered rows may take: the budget of the component `ingestion`."""
        return min(self.budget, self.part("ingestion"))

    @property
    def limit(self) -> int:
        """Bytes of buffered rows at which the emergency begins."""
        return max(1, int(self.emergency * self.row_budget))

    def level(self, used: int, budget: int | None = None) -> Level:
        """How full a budget is.

        Args:
            used: bytes in use.
            budget: bytes there are; None: the budget of buffered rows.
        """
        ratio = used / (self.row_budget if budget is None else budget)
        if ratio > self.emergency:
            return Level.EMERGENCY
        if ratio > self.high_water:
            return Level.HIGH
        return Level.MEDIUM if ratio > 0.5 else Level.LOW


def _bytes(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise ConfigError(name, value, "must be a whole number of bytes, at least 1")
    return value


class MemoryGuard:
    """Holds bytes of a tracker until released; releasing twice is harmless."""

    def __init__(self, tracker: MemoryTracker, size: int, component: str) -> None:
        """Made by `MemoryTracker.allocate`.

        Args:
            tracker: whose bytes they are.
            size: how many.
            component: of which component.
        """
        self._tracker = tracker
        self.size = size
        self.component = component

    def release(self) -> None:
        """Give the bytes back."""
        size, self.size = self.size, 0
        self._tracker._give_back(size, self.component)

    def __enter__(self) -> MemoryGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryTracker:
    """Counts the bytes held, per component, and admits or refuses more. Safe between threads.

    >>> tracker = MemoryTracker(Memory(budget=100))
    >>> verdict, guard = tracker.allocate(85)
    >>> verdict.value, tracker.used, tracker.level().value
    ('ok_warning', 85, 'high')
    >>> tracker.allocate(11)[0].value
    'emergency'
    >>> guard.release(); tracker.used
    0
    """

    def __init__(self, memory: Memory | None = None) -> None:
        """Start with nothing in use.

        Args:
            memory: budget and marks; 100 MB by default.
        """
        self.memory = memory or Memory()
        self._freed = threading.Condition()
        self._used = dict.fromkeys(COMPONENTS, 0)

    @property
    def used(self) -> int:
        """Bytes held by all components."""
        return sum(self._used.values())

    def level(self) -> Level:
        """How full the fullest is: the whole budget, or that of a component."""
        budget = self.memory.budget
        ratio = max(
            self.used / budget, *(n / self.memory.part(name) for name, n in self._used.items())
        )
        return self.memory.level(int(ratio * budget), budget)

    def allocate(
        self, size: int, component: str = "ingestion"
    ) -> tuple[Admission, MemoryGuard | None]:
        """A guard over `size` bytes, or none and why not.

        Args:
            size: bytes.
            component: whose budget they count against.
        """
        with self._freed:
            verdict = self._judge(size, component)
            if verdict in (Admission.EMERGENCY, Admission.TOO_LARGE):
                return verdict, None
            self._used[component] += size
            return verdict, MemoryGuard(self, size, component)

    def wait(self, size: int, component: str = "ingestion", timeout: float | None = None) -> bool:
        """Block until `size` bytes could be had; false when time is up.

        Args:
            size: bytes.
            component: whose budget they would count against.
            timeout: seconds; None: for ever.
        """
        with self._freed:
            return self._freed.wait_for(
                lambda: self._judge(size, component) is not Admission.EMERGENCY, timeout
            )

    def hold(self, component: str, size: int) -> None:
        """Set what a component holds in all; waiting callers look again.

        Args:
            component: which.
            size: bytes.
        """
        self.hold_all({component: size})

    def hold_all(self, sizes: Mapping[str, int]) -> None:
        """`hold` for several components at once.

        Args:
            sizes: bytes by component; those not named hold what they held.
        """
        with self._freed:
            self._used.update(sizes)
            self._freed.notify_all()

    def over(self) -> list[str]:
        """The components that hold more than their own budget; rows are judged as they come."""
        return [
            name
            for name, used in self._used.items()
            if name != "ingestion" and used > self.memory.part(name)
        ]

    def metrics(self) -> dict[str, int | float]:
        """Bytes, share of the budget, level (0 low to 3 emergency), in total and by component."""
        out: dict[str, int | float] = {
            "memory_used": self.used,
            "memory_budget": self.memory.budget,
            "memory_ratio": self.used / self.memory.budget,
            "memory_level": list(Level).index(self.level()),
        }
        for name, used in self._used.items():
            out[f"memory_used_{name}"] = used
            out[f"memory_budget_{name}"] = self.memory.part(name)
        return out

    def _judge(self, size: int, component: str) -> Admission:
        if component not in self._used:
            raise ConfigError("component", component, f"must be one of {', '.join(self._used)}")
        if size > min(self.memory.budget, self.memory.part(component)):
            return Admission.TOO_LARGE
        total = (self.used + size) / self.memory.budget
        if total > self.memory.emergency or self._used[component] + size > self.memory.part(
            component
        ):
            return Admission.EMERGENCY
        return Admission.WARNING if total > self.memory.high_water else Admission.OK

    def _give_back(self, size: int, component: str) -> None:
        with self._freed:
            self._used[component] -= size
            self._freed.notify_all()
