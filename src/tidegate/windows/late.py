"""What becomes of a row whose window is already closed, and what a second pane contains.

A row is late when every window it belongs to was closed by the watermark. A row at or before the
watermark whose window is still open simply joins it. Behind an event-time stage a late row carries
the watermark at which it became late, its own, and is judged by that one; without such a stage it
is judged by the watermark of the window stage.

A policy carries its own behaviour: what the kernels do with late rows (`rows`), for how long a
closed window is kept (`lateness_ns`) and what a second pane contains (`accumulation`). A new one is
one class here with `@late_policy("its_name")`, the name it has in YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar

from tidegate.core.checks import boolean, duration
from tidegate.core.time import Duration
from tidegate.errors import ConfigError
from tidegate.windows.kernels.layout import LateRows

__all__ = [
    "LATE_POLICIES",
    "Accumulation",
    "Discard",
    "LatePolicy",
    "NextWindow",
    "Reemit",
    "SideOutput",
    "late_policy",
]


class Accumulation(Enum):
    """What a pane after the first contains."""

    DISCARDING = "discarding"
    """Only the rows since the pane before it."""
    ACCUMULATING = "accumulating"
    """All rows of the window so far."""
    RETRACTING = "retracting"
    """All rows so far, after the pane before it has been taken back."""


class LatePolicy:
    """What all policies have in common. Subclass it to add one."""

    name: ClassVar[str] = ""
    """Its name in a definition (YAML); set by `late_policy`."""
    rows: ClassVar[LateRows] = LateRows.ASIDE
    """What becomes of a row that no window takes any more."""
    takes_late_rows: ClassVar[bool] = False
    """Late rows change windows: they are handed to the kernels rather than let pass."""

    @property
    def lateness_ns(self) -> int:
        """For how long after its end (in watermark time) a window can still change."""
        return 0

    def accumulation(self, wanted: Accumulation | None) -> Accumulation:
        """The mode of a stage with this policy, or a ConfigError where the two contradict.

        Args:
            wanted: what the stage asks for; None takes what fits the policy.
        """
        return wanted or Accumulation.DISCARDING


LATE_POLICIES: dict[str, type[LatePolicy]] = {}
"""Every policy by its name in a definition."""

P = TypeVar("P", bound=type[LatePolicy])


def late_policy(name: str) -> Callable[[P], P]:
    """Register a policy under the name it has in a definition (YAML).

    Args:
        name: the value of `late`, in snake case.

    Returns:
        A decorator for a frozen dataclass derived from `LatePolicy`.
    """

    def register(policy: P) -> P:
        policy.name = name
        LATE_POLICIES[name] = policy
        return policy

    return register


@late_policy("discard")
@dataclass(frozen=True)
class Discard(LatePolicy):
    """Late rows are counted and delivered as dropped, with the reason `late`.

    >>> Discard()
    Discard()
    """

    rows = LateRows.DISCARD


@late_policy("side_output")
@dataclass(frozen=True)
class SideOutput(LatePolicy):
    """Late rows are delivered beside the data, with their lateness. The default of `Window`:
    foreign rows do not belong in a sum unasked.

    >>> SideOutput()
    SideOutput()
    """


@late_policy("next_window")
@dataclass(frozen=True)
class NextWindow(LatePolicy):
    """Late rows join the next window to close, keep their own time and are flagged late.

    That is the window which contains the row's own watermark + 1 ns; of sliding windows the one
    that ends first; of other kinds the one that is open at that moment.

    >>> NextWindow()
    NextWindow()
    """

    rows = LateRows.NEXT
    takes_late_rows = True


@late_policy("reemit")
@dataclass(frozen=True)
class Reemit(LatePolicy):
    """A late row up to `max_lateness` behind the close of its window (that included) makes a new
    revision of it; beyond that it is delivered beside the data. Each late row makes a revision of
    its own, unless the trigger has late firings (`AtWatermark(late=...)`).

    >>> Reemit("5 s")
    Reemit(max_lateness=5000000000, retract=False)
    """

    max_lateness: Duration
    """For how long a closed window can change: ns, text or timedelta, at least 1 ns. The window's
    accumulators (or rows) are kept for as long, so memory grows with it."""
    retract: bool = False
    """Deliver the previous revision again, marked as a retraction, before each new one."""

    takes_late_rows = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_lateness", duration("max_lateness", self.max_lateness, 1))
        boolean("retract", self.retract)

    @property
    def lateness_ns(self) -> int:
        assert isinstance(self.max_lateness, int)
        return self.max_lateness

    def accumulation(self, wanted: Accumulation | None) -> Accumulation:
        if wanted is None:
            return Accumulation.RETRACTING if self.retract else Accumulation.ACCUMULATING
        if self.retract and wanted is not Accumulation.RETRACTING:
            raise ConfigError("accumulation", wanted.value, "must be retracting: Reemit retracts")
        return wanted
