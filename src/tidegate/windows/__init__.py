"""Windows: which rows belong together, when they are emitted, and what with late ones."""

from tidegate.windows.aggregates import Aggregate
from tidegate.windows.in_process import Windows
from tidegate.windows.kinds import (
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
from tidegate.windows.late import (
    Accumulation,
    Discard,
    LatePolicy,
    NextWindow,
    Reemit,
    SideOutput,
)
from tidegate.windows.memory import (
    Admission,
    Level,
    Memory,
    MemoryGuard,
    MemoryPolicy,
    MemoryTracker,
)
from tidegate.windows.rate import RateMonitor
from tidegate.windows.results import WindowOutput, WindowStats, outputs
from tidegate.windows.stage import Window
from tidegate.windows.triggers import (
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
