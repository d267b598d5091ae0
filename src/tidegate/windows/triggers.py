"""When a window emits: tiny frozen values that compose with `|` and `&` and keep no state.

Clock policy: `AfterTime` counts wall time from the first row of the pane; everything else looks at
the rows themselves (`RateChange` in event time). Every trigger is evaluated on every add, and
`AfterTime` also at its deadline, so a quiet stream still fires. The watermark closes a window
whatever the trigger says: nothing is left behind. The leftmost trigger of an `|` that holds gives
its name to the output.

A trigger carries its own behaviour: `compile` says which measure of the pane it compares with
which threshold (`TriggerProgram.measure`), or hands over a condition on rows
(`TriggerProgram.condition`). The kernels evaluate the resulting program. A new trigger is one class
with `compile` and `@trigger("its_name")`, the name it has in YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from tidegate.core.checks import duration, int_in, number_in
from tidegate.core.numba import as_readonly
from tidegate.core.time import Duration
from tidegate.errors import ConfigError
from tidegate.windows.kernels.layout import MAX_LEAVES, Op, PostfixProgram, Programs
from tidegate.windows.kinds import When

__all__ = [
    "TRIGGERS",
    "AfterCount",
    "AfterSize",
    "AfterTime",
    "AtWatermark",
    "MemoryPressure",
    "Once",
    "Predicate",
    "RateChange",
    "Trigger",
    "TriggerProgram",
    "trigger",
]


class TriggerProgram:
    """A trigger being compiled to the postfix steps a kernel evaluates.

    Attributes:
        names: of the triggers, in the order of their bits in the mask of a firing.
        predicates: the conditions on rows, each with the name it is reported by.
        rate: the `RateChange` among them, if any.
        intervals_ns: wall-time deadlines of a pane.
        sized: whether the bytes of rows matter.
        once: the bits of triggers that fire at most once per window.
        budget: bytes that `MemoryPressure` is a part of; None: no budget.
    """

    def __init__(self, trigger: Trigger, budget: int | None = None) -> None:
        """Compile `trigger`.

        Args:
            trigger: what to compile.
            budget: bytes of the memory budget rows are buffered in, if there is one.

        Raises:
            ConfigError: it has more than 32 parts, or parts that cannot stand together.
        """
        self.budget = budget
        self.names: list[str] = []
        self.predicates: list[tuple[str, Callable[[pa.RecordBatch], Any]]] = []
        self.rate: RateChange | None = None
        self.intervals_ns: list[int] = []
        self.sized = False
        self.once = 0
        self._trigger = trigger
        self._steps: list[tuple[int, int, int]] = []
        self._late: list[Trigger] = []
        checked_trigger(trigger).compile(self)
        early, self._steps = self._steps, []
        for late in self._late:
            late.compile(self)
        if all(step[0] in (Op.NEVER, Op.OR, Op.AND) for step in early):
            early = []
        self.programs = Programs(_as_program(early), _as_program(self._steps))

    @property
    def fires_on_rows(self) -> bool:
        """Whether anything but the watermark fires a pane before its window is complete."""
        return len(self.programs.early.op) > 0

    @property
    def fires_late(self) -> bool:
        """Whether the trigger says itself when late rows make a revision."""
        return len(self.programs.late.op) > 0

    # -- what `Trigger.compile` calls -------------------------------------------------------------

    def measure(self, what: Op, threshold: int, name: str) -> None:
        """Fire when a measure of the pane reaches a threshold.

        Args:
            what: the measure.
            threshold: a whole number: rows, bytes, or ns.
            name: the trigger's name in the output.
        """
        self._steps.append((what, threshold, len(self.names)))
        self.names.append(name)
        self.sized |= what is Op.SIZE
        if what is Op.TIME:
            self.intervals_ns.append(threshold)
        if len(self.names) > MAX_LEAVES:
            raise ConfigError("trigger", self._trigger, f"must have at most {MAX_LEAVES} parts")

    def condition(self, function: Callable[[pa.RecordBatch], Any], name: str) -> None:
        """Fire after a row for which a condition holds.

        Args:
            function: from the rows of a collection to one boolean for each of them.
            name: the trigger's name in the output.
        """
        self.predicates.append((name, function))
        self.measure(Op.PREDICATE, len(self.predicates) - 1, name)

    def never(self) -> None:
        """Fire by the watermark only."""
        self._steps.append((Op.NEVER, 0, 0))

    def combine(self, how: Op, left: Trigger, right: Trigger) -> None:
        """Combine two triggers by `Op.OR` or `Op.AND`."""
        left.compile(self)
        right.compile(self)
        self._steps.append((how, 0, 0))

    def only_once(self, inner: Trigger) -> None:
        """Let every part of `inner` fire at most once per window."""
        first = len(self.names)
        inner.compile(self)
        for bit in range(first, len(self.names)):
            self.once |= 1 << bit

    def rate_change(self, trigger: RateChange) -> None:
        """Fire when the rate changes; there can be one such trigger per stage."""
        if self.rate is not None:
            raise ConfigError("trigger", self._trigger, "must have at most one RateChange")
        self.rate = trigger
        self.measure(Op.RATE, 0, trigger.name)

    def after_watermark(self, late: Trigger) -> None:
        """Set what fires after the watermark has passed the end of the window."""
        if self._late:
            text = "must have at most one AtWatermark with late firings"
            raise ConfigError("trigger", self._trigger, text)
        self._late.append(late)


def _as_program(steps: list[tuple[int, int, int]]) -> PostfixProgram:
    made = np.array(steps, np.int64).reshape(-1, 3)
    return PostfixProgram(*(as_readonly(column) for column in made.T))


class Trigger:
    """What all triggers have in common: they compose. Subclass it to add one."""

    name: ClassVar[str] = "trigger"
    """Its name in the output and in a definition (YAML); set by `trigger`."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Settings that are triggers themselves."""

    def compile(self, program: TriggerProgram) -> None:
        """Add this trigger to a program. Called once, when the stage is made."""
        raise ConfigError("trigger", self, "must define compile()")

    def __or__(self, other: Trigger) -> Trigger:
        return Either(self, checked_trigger(other))

    def __and__(self, other: Trigger) -> Trigger:
        return Both(self, checked_trigger(other))

    def leaves(self) -> Iterator[Trigger]:
        """The triggers it consists of."""
        yield self
        for name in self.inner:
            part = getattr(self, name)
            if part is not None:
                yield from part.leaves()


TRIGGERS: dict[str, type[Trigger]] = {}
"""Every trigger by its name in a definition."""

T = TypeVar("T", bound=type[Trigger])


def trigger(name: str) -> Callable[[T], T]:
    """Register a trigger under the name it has in a definition (YAML) and in the output.

    Args:
        name: in snake case.

    Returns:
        A decorator for a frozen dataclass derived from `Trigger`.
    """

    def register(kind: T) -> T:
        kind.name = name
        TRIGGERS[name] = kind
        return kind

    return register


def checked_trigger(other: object) -> Trigger:
    """`other`, if it is a trigger; a ConfigError otherwise."""
    if not isinstance(other, Trigger):
        raise ConfigError("trigger", other, "must be a trigger such as AfterCount(100)")
    return other


@trigger("time")
@dataclass(frozen=True)
class AfterTime(Trigger):
    """`interval` of wall time after the first row of the pane. Needs a wall clock: rows must come
    with `wall_ns` (Spark and `tick` bring it).

    >>> AfterCount(100) | AfterTime("50 ms")
    (AfterCount(rows=100) | AfterTime(interval=50000000))
    """

    interval: Duration
    """ns, text or timedelta, at least 1 ns."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", duration("interval", self.interval, 1))

    def compile(self, program: TriggerProgram) -> None:
        assert isinstance(self.interval, int)
        program.measure(Op.TIME, self.interval, self.name)


@trigger("count")
@dataclass(frozen=True)
class AfterCount(Trigger):
    """`rows` rows since the last pane.

    >>> AfterCount(100)
    AfterCount(rows=100)
    """

    rows: int
    """At least 1."""

    def __post_init__(self) -> None:
        int_in("rows", self.rows, 1)

    def compile(self, program: TriggerProgram) -> None:
        program.measure(Op.COUNT, self.rows, self.name)


@trigger("size")
@dataclass(frozen=True)
class AfterSize(Trigger):
    """At least `bytes` bytes since the last pane: of the column `size_column`, or of the rows
    themselves.

    >>> AfterSize(1_000_000)
    AfterSize(bytes=1000000)
    """

    bytes: int
    """At least 1."""

    def __post_init__(self) -> None:
        int_in("bytes", self.bytes, 1)

    def compile(self, program: TriggerProgram) -> None:
        program.measure(Op.SIZE, self.bytes, self.name)


@trigger("rate_change")
@dataclass(frozen=True)
class RateChange(Trigger):
    """The rows of one period against those of the period before it differ by more than `threshold`,
    relative to the earlier: 0.5 is half as many again, or half. Judged once per period, by the
    first row after it, in event time; works at any rate, also below one row a second.

    >>> RateChange(0.5)
    RateChange(threshold=0.5, period=1000000000)
    """

    threshold: float
    """Relative change, above 0."""
    period: Duration = "1 s"
    """Length of a period: ns, text or timedelta. One second suits sensors; take longer where less
    than about ten rows come per second, or chance alone looks like a change."""

    def __post_init__(self) -> None:
        if number_in("threshold", self.threshold, 0) == 0:
            raise ConfigError("threshold", self.threshold, "must be a number above 0")
        object.__setattr__(self, "period", duration("period", self.period, 1))

    def compile(self, program: TriggerProgram) -> None:
        program.rate_change(self)


@trigger("memory_pressure")
@dataclass(frozen=True)
class MemoryPressure(Trigger):
    """Buffered rows fill at least this part of the memory they may take. Needs `memory`.

    >>> MemoryPressure()
    MemoryPressure(threshold=0.8)
    """

    threshold: float = 0.8
    """Above 0 and at most 1; the default is the high-water mark of `Memory`."""

    def __post_init__(self) -> None:
        if not 0 < number_in("threshold", self.threshold) <= 1:
            raise ConfigError("threshold", self.threshold, "must be above 0 and at most 1")

    def compile(self, program: TriggerProgram) -> None:
        if program.budget is None:
            raise ConfigError("trigger", self, "needs a memory budget (memory=Memory(...))")
        program.measure(Op.MEMORY, max(1, int(self.threshold * program.budget)), self.name)


@trigger("predicate")
@dataclass(frozen=True)
class Predicate(Trigger):
    """A condition of your own on a row. The pane fires after the row for which it holds. A pipeline
    file can write a comparison (`When`), Python any function.

    >>> Predicate(lambda rows: [True] * rows.num_rows, "always")
    Predicate(label='always')
    """

    condition: Callable[[pa.RecordBatch], Any] = field(repr=False)
    """A `When`, or a function from the rows of a collection to one boolean for each."""
    label: str = "predicate"
    """The trigger's name in the output."""

    nested: ClassVar[dict[str, type[Any]]] = {"condition": When}

    def __post_init__(self) -> None:
        condition: object = self.condition
        if not callable(condition):
            text = "must be a comparison such as When(...), or a function of the rows"
            raise ConfigError("condition", condition, text)
        if not isinstance(self.label, str) or not self.label or " & " in self.label:
            raise ConfigError("label", self.label, "must be a name")

    def compile(self, program: TriggerProgram) -> None:
        program.condition(self.condition, self.label)


@trigger("watermark")
@dataclass(frozen=True)
class AtWatermark(Trigger):
    """When the watermark passes the end of the window; `early` fires before, `late` after it.

    Without `late` every late row makes a revision of its own.

    >>> AtWatermark(early=AfterTime("1 s"))
    AtWatermark(early=AfterTime(interval=1000000000), late=None)
    """

    early: Trigger | None = None
    """Fires panes before the window is complete. None by default."""
    late: Trigger | None = None
    """Fires panes of late rows; needs `late=Reemit(...)`. None by default."""

    inner = ("early", "late")

    def __post_init__(self) -> None:
        for which in self.inner:
            part = getattr(self, which)
            if part is not None and any(
                isinstance(leaf, AtWatermark) for leaf in checked_trigger(part).leaves()
            ):
                raise ConfigError(which, part, "must not contain AtWatermark itself")

    def compile(self, program: TriggerProgram) -> None:
        if self.late is not None:
            program.after_watermark(self.late)
        if self.early is not None:
            self.early.compile(program)
        else:
            program.never()


@trigger("once")
@dataclass(frozen=True)
class Once(Trigger):
    """`trigger` at most once per window; then only the others and the watermark fire.

    >>> AtWatermark(early=Once(AfterCount(10)))
    AtWatermark(early=Once(trigger=AfterCount(rows=10)), late=None)
    """

    trigger: Trigger
    """What fires once. Must not contain `AtWatermark`, which is once per window as it is."""

    inner = ("trigger",)

    def __post_init__(self) -> None:
        if any(isinstance(leaf, AtWatermark) for leaf in checked_trigger(self.trigger).leaves()):
            raise ConfigError("trigger", self.trigger, "must not contain AtWatermark")

    def compile(self, program: TriggerProgram) -> None:
        program.only_once(self.trigger)


@dataclass(frozen=True, repr=False)
class Combined(Trigger):
    """Two triggers as one: made by `|` and `&`, or in a definition by `any` and `all`."""

    left: Trigger
    """The one that gives its name where both of an `|` hold."""
    right: Trigger
    """The other."""
    sign: ClassVar[str] = "?"
    how: ClassVar[Op]
    inner = ("left", "right")

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"

    def compile(self, program: TriggerProgram) -> None:
        program.combine(self.how, self.left, self.right)


class Either(Combined):
    """`left | right`."""

    sign, how = "|", Op.OR


class Both(Combined):
    """`left & right`."""

    sign, how = "&", Op.AND
