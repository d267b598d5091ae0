"""What becomes of a row whose window is already closed, and what a second pane contains.

A row is late when every window it belongs to was closed by the watermark. A row at or before the
watermark whose window is still open simply joins it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = ["Accumulation", "Discard", "LatePolicy", "NextWindow", "Reemit", "SideOutput"]


@dataclass(frozen=True)
class Discard:
    """Late rows are counted and delivered as dropped, with the reason `late`."""


@dataclass(frozen=True)
class SideOutput:
    """Late rows are delivered beside the data, with their lateness."""


@dataclass(frozen=True)
class NextWindow:
    """Late rows join the next window to close, keep their own time and are flagged late."""


@dataclass(frozen=True)
class Reemit:
    """A late row up to `max_lateness` behind the close of its window (that included) makes a new
    revision of it; with `retract` the previous one is taken back first. Later: side output."""

    max_lateness: Duration
    retract: bool = False

    def __post_init__(self) -> None:
        parsed = parse_duration(self.max_lateness, "max_lateness", minimum=1)
        object.__setattr__(self, "max_lateness", parsed)


LatePolicy = Discard | SideOutput | NextWindow | Reemit


class Accumulation(Enum):
    """What a pane after the first contains."""

    DISCARDING = "discarding"
    """Only the rows since the pane before it."""
    ACCUMULATING = "accumulating"
    """All rows of the window so far."""
    RETRACTING = "retracting"
    """All rows so far, after the pane before it has been taken back."""


def accumulation_for(late: LatePolicy, wanted: Accumulation | None) -> Accumulation:
    """The mode, or a ConfigError where policy and mode contradict each other."""
    if isinstance(late, Reemit):
        if wanted is None:
            return Accumulation.RETRACTING if late.retract else Accumulation.ACCUMULATING
        if late.retract and wanted is not Accumulation.RETRACTING:
            raise ConfigError("accumulation", wanted.value, "must be retracting: Reemit retracts")
    return wanted or Accumulation.DISCARDING
