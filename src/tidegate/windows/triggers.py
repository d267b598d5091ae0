"""When a window emits: tiny frozen values that compose with `|` and `&` and keep no state.

Clock policy: `Time` counts wall time from the first row of the pane; everything else looks at the
rows themselves (`RateChange` in event time). Every trigger is evaluated on every add, and `Time`
also at its deadline, so a quiet stream still fires. The watermark closes a window whatever the
trigger says: nothing is left behind. The leftmost trigger of an `|` that holds gives its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Int64s
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = [
    "AtWatermark",
    "Count",
    "MemoryPressure",
    "Predicate",
    "Program",
    "RateChange",
    "Size",
    "Time",
    "Trigger",
    "compile_trigger",
]

(OP_TIME, OP_COUNT, OP_SIZE, OP_RATE, OP_MEMORY, OP_PREDICATE, OP_NEVER, OP_OR, OP_AND) = range(9)


class Trigger:
    """What all triggers have in common: they compose."""

    name: ClassVar[str] = "trigger"

    def __or__(self, other: Trigger) -> Trigger:
        return _Either(self, _checked(other))

    def __and__(self, other: Trigger) -> Trigger:
        return _Both(self, _checked(other))

    def _leaves(self) -> Iterator[Trigger]:
        yield self


def _checked(other: object) -> Trigger:
    if not isinstance(other, Trigger):
        raise ConfigError("trigger", other, "can only be combined with another trigger")
    return other


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(name, value, "must be a whole number of at least 1")
    return value


@dataclass(frozen=True)
class Time(Trigger):
    """`interval` of wall time after the first row of the pane.

    >>> Count(100) | Time("50 ms")
    (Count(rows=100) | Time(interval=50000000))
    """

    interval: Duration
    name: ClassVar[str] = "time"

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", parse_duration(self.interval, "interval", minimum=1))


@dataclass(frozen=True)
class Count(Trigger):
    """`rows` rows in the pane."""

    rows: int
    name: ClassVar[str] = "count"

    def __post_init__(self) -> None:
        _whole(self.rows, "rows")


@dataclass(frozen=True)
class Size(Trigger):
    """At least `bytes` bytes in the pane."""

    bytes: int
    name: ClassVar[str] = "size"

    def __post_init__(self) -> None:
        _whole(self.bytes, "bytes")


@dataclass(frozen=True)
class RateChange(Trigger):
    """The rows of one period against those of the period before it differ by more than `threshold`,
    relative to the earlier: 0.5 is half as many again, or half. Judged once per period, by the
    first row after it, in event time; works at any rate, also below one row a second."""

    threshold: float
    period: Duration = "1 s"
    name: ClassVar[str] = "rate_change"

    def __post_init__(self) -> None:
        if not (isinstance(self.threshold, (int, float)) and 0 < self.threshold < float("inf")):
            raise ConfigError("threshold", self.threshold, "must be a number above 0")
        object.__setattr__(self, "period", parse_duration(self.period, "period", minimum=1))


@dataclass(frozen=True)
class MemoryPressure(Trigger):
    """Buffered rows fill at least this part of the memory budget."""

    threshold: float = 0.8
    name: ClassVar[str] = "memory_pressure"

    def __post_init__(self) -> None:
        if not (isinstance(self.threshold, (int, float)) and 0 < self.threshold <= 1):
            raise ConfigError("threshold", self.threshold, "must be above 0 and at most 1")


@dataclass(frozen=True)
class Predicate(Trigger):
    """A condition of your own on a row, for a whole collection at once: rows to booleans. The pane
    fires after the row for which it holds. `label` is the trigger's name in the output."""

    function: Callable[[pa.RecordBatch], Any] = field(repr=False)
    label: str = "predicate"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError("function", self.function, "must be a function of the rows")
        if not self.label or " & " in self.label:
            raise ConfigError("label", self.label, "must be a name")


@dataclass(frozen=True)
class AtWatermark(Trigger):
    """When the watermark passes the end of the window; `early` fires before, `late` after it.

    Without `late` every late row makes a revision of its own.
    """

    early: Trigger | None = None
    late: Trigger | None = None
    name: ClassVar[str] = "watermark"

    def __post_init__(self) -> None:
        for which in ("early", "late"):
            inner = getattr(self, which)
            if inner is None:
                continue
            if any(isinstance(leaf, AtWatermark) for leaf in _checked(inner)._leaves()):
                raise ConfigError(which, inner, "must not contain AtWatermark itself")


@dataclass(frozen=True, repr=False)
class _Pair(Trigger):
    left: Trigger
    right: Trigger
    sign: ClassVar[str] = "?"

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"

    def _leaves(self) -> Iterator[Trigger]:
        yield from self.left._leaves()
        yield from self.right._leaves()


class _Either(_Pair):
    sign = "|"


class _Both(_Pair):
    sign = "&"


@dataclass(frozen=True)
class Program:
    """A trigger as a kernel reads it: postfix steps of (what, argument, bit of its name)."""

    early: Int64s
    late: Int64s
    names: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    rate: RateChange | None
    intervals: tuple[int, ...]
    memory: bool
    sized: bool

    @property
    def plain(self) -> bool:
        """Nothing fires on an add: only the watermark does."""
        return len(self.early) == 0


MAX_LEAVES = 32
"""Bits of a fired mask that name triggers of the user; the rest name reasons of our own."""


def compile_trigger(trigger: Trigger, budget: int | None) -> Program:
    """The steps of a trigger, with its thresholds as whole numbers."""
    names: list[str] = []
    predicates: list[Predicate] = []
    rates: list[RateChange] = []
    intervals: list[int] = []
    seen: set[int] = set()
    lates: list[Trigger] = []

    def leaf(op: int, argument: int, name: str) -> list[list[int]]:
        seen.add(op)
        names.append(name)
        if len(names) > MAX_LEAVES:
            raise ConfigError("trigger", trigger, f"must have at most {MAX_LEAVES} parts")
        return [[op, argument, len(names) - 1]]

    def walk(node: Trigger) -> list[list[int]]:
        if isinstance(node, _Pair):
            left, right = walk(node.left), walk(node.right)
            return [*left, *right, [OP_OR if isinstance(node, _Either) else OP_AND, 0, 0]]
        if isinstance(node, AtWatermark):
            if node.late is not None:
                lates.append(node.late)
            return walk(node.early) if node.early is not None else [[OP_NEVER, 0, 0]]
        if isinstance(node, Time):
            intervals.append(parse_duration(node.interval))
            return leaf(OP_TIME, intervals[-1], node.name)
        if isinstance(node, Count):
            return leaf(OP_COUNT, node.rows, node.name)
        if isinstance(node, Size):
            return leaf(OP_SIZE, node.bytes, node.name)
        if isinstance(node, RateChange):
            rates.append(node)
            return leaf(OP_RATE, 0, node.name)
        if isinstance(node, MemoryPressure):
            if budget is None:
                raise ConfigError("trigger", node, "needs a memory budget (memory=Memory(...))")
            return leaf(OP_MEMORY, max(1, int(node.threshold * budget)), node.name)
        if isinstance(node, Predicate):
            predicates.append(node)
            return leaf(OP_PREDICATE, len(predicates) - 1, node.label)
        raise ConfigError("trigger", node, "must be one of Tidegate's triggers")

    early = walk(_checked(trigger))
    if len(lates) > 1:
        raise ConfigError("trigger", trigger, "must have at most one AtWatermark with late firings")
    late = walk(lates[0]) if lates else []
    if len(rates) > 1:
        raise ConfigError("trigger", trigger, "must have at most one RateChange")
    if all(step[0] in (OP_NEVER, OP_OR, OP_AND) for step in early):
        early = []
    return Program(
        np.array(early, np.int64).reshape(-1, 3),
        np.array(late, np.int64).reshape(-1, 3),
        tuple(names),
        tuple(predicates),
        rates[0] if rates else None,
        tuple(intervals),
        OP_MEMORY in seen,
        OP_SIZE in seen,
    )
