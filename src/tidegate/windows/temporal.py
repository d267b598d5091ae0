"""One value with the defaults of adaptive delta windows, for those who want them all at once.

`Window` alone is careful: late rows are delivered aside. `TemporalConfig` is the configuration that
vector updates are usually run with: windows that follow the load, late deltas in the next window, a
memory budget, and a background task that looks at deadlines ten times a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.core.checks import duration
from tidegate.core.time import Duration
from tidegate.windows.in_process import Windows
from tidegate.windows.kinds import Adaptive, WindowKind
from tidegate.windows.late import LatePolicy, NextWindow
from tidegate.windows.memory import Memory
from tidegate.windows.stage import Window
from tidegate.windows.triggers import AtWatermark, Trigger

__all__ = ["TemporalConfig"]


@dataclass(frozen=True)
class TemporalConfig:
    """Windows, memory and late data as they are usually set together for vector deltas.

    Example:
        >>> config = TemporalConfig()
        >>> config.window, config.late
        (Adaptive(min=10000000, max=5000000000, target=100), NextWindow())
        >>> config.stage(keys="vehicle").late
        NextWindow()
    """

    window: WindowKind = field(default_factory=Adaptive)
    """Which window a delta belongs to: 10 ms to 5 s long, 100 deltas by target."""
    trigger: Trigger = field(default_factory=AtWatermark)
    """When a window emits besides by its length. Nothing by default."""
    late: LatePolicy = field(default_factory=NextWindow)
    """Late deltas join the next window: an update that comes late is still an update."""
    memory: Memory = field(default_factory=Memory)
    """100 MB, high water 0.8, emergency 0.95, of which buffered rows may take 50 MB."""
    background_interval: Duration = "100 ms"
    """How often to call `tick`: deadlines are then met within 100 ms, at a cost that does not
    show. ns, text or timedelta, at least 1 ns."""

    def __post_init__(self) -> None:
        found = duration("background_interval", self.background_interval, 1)
        object.__setattr__(self, "background_interval", found)

    def stage(self, **settings: Any) -> Window:
        """These settings as a stage of a pipeline.

        Args:
            settings: further ones of `Window`, such as `aggregates` and `keys`.
        """
        given = {"trigger": self.trigger, "late": self.late, "memory": self.memory}
        return Window(self.window, **{**given, **settings})

    def windows(self, **settings: Any) -> Windows:
        """These settings as windows in process.

        Args:
            settings: further ones of `Windows`, such as `emit` and `log`.
        """
        given = {"trigger": self.trigger, "late": self.late, "memory": self.memory}
        return Windows(self.window, **{**given, **settings})
