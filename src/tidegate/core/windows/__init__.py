"""Windows: which rows belong together, when they are emitted, and what with late ones."""

from tidegate.core.windows.aggregates import Aggregate
from tidegate.core.windows.assigners import (
    Adaptive,
    CountWindow,
    Everything,
    Fixed,
    LookBack,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    WindowKind,
)
from tidegate.core.windows.inprocess import Windows
from tidegate.core.windows.late import (
    Accumulation,
    Discard,
    LatePolicy,
    NextWindow,
    Reemit,
    SideOutput,
)
from tidegate.core.windows.memory import (
    Admission,
    Level,
    Memory,
    MemoryGuard,
    MemoryPolicy,
    MemoryTracker,
)
from tidegate.core.windows.operator import Window
from tidegate.core.windows.output import WindowOutput, WindowStats, outputs
from tidegate.core.windows.rate import RateMonitor
from tidegate.core.windows.triggers import (
    AtWatermark,
    Count,
    MemoryPressure,
    Predicate,
    RateChange,
    Size,
    Time,
    Trigger,
)

__all__ = [
    "Accumulation",
    "Adaptive",
    "Admission",
    "Aggregate",
    "AtWatermark",
    "Count",
    "CountWindow",
    "Discard",
    "Everything",
    "Fixed",
    "LatePolicy",
    "Level",
    "LookBack",
    "Memory",
    "MemoryGuard",
    "MemoryPolicy",
    "MemoryPressure",
    "MemoryTracker",
    "NextWindow",
    "Predicate",
    "RateChange",
    "RateMonitor",
    "Reemit",
    "Session",
    "SideOutput",
    "Size",
    "Sliding",
    "StateWindow",
    "Time",
    "Trigger",
    "Tumbling",
    "When",
    "Window",
    "WindowKind",
    "WindowOutput",
    "WindowStats",
    "Windows",
    "outputs",
]
