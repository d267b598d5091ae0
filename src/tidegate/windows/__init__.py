"""Windows: which rows belong together, when they are emitted, and what with late ones.

kinds         Tumbling, Sliding, Session, ...: which window a row belongs to
triggers      AfterCount, AfterTime, AtWatermark, ...: when a window emits
late          SideOutput, Discard, NextWindow, Reemit: rows whose window is closed
aggregates    what is worked out per window and group
results       what comes out
stage         Window: all of these as a stage of a pipeline
in_process    Windows: the same in plain Python, with a memory budget and a log
memory, rate, durable, look_back, sub_windows, kernels    what they are made of
"""

from tidegate.windows.aggregates import (
    Aggregate,
    AggregateFunction,
    Fold,
    QuantileSketch,
    aggregate_function,
)
from tidegate.windows.in_process import Windows
from tidegate.windows.kinds import (
    Adaptive,
    Calendar,
    CountWindow,
    Cumulate,
    Everything,
    Fixed,
    LookBack,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    WindowKind,
    window_kind,
)
from tidegate.windows.late import (
    Accumulation,
    Discard,
    LatePolicy,
    NextWindow,
    Reemit,
    SideOutput,
    late_policy,
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
from tidegate.windows.temporal import TemporalConfig
from tidegate.windows.triggers import (
    AfterCount,
    AfterSize,
    AfterTime,
    AtWatermark,
    MemoryPressure,
    Once,
    Predicate,
    RateChange,
    Trigger,
    TriggerProgram,
    trigger,
)

__all__ = [
    "Accumulation",
    "Adaptive",
    "Admission",
    "AfterCount",
    "AfterSize",
    "AfterTime",
    "Aggregate",
    "AggregateFunction",
    "AtWatermark",
    "Calendar",
    "CountWindow",
    "Cumulate",
    "Discard",
    "Everything",
    "Fixed",
    "Fold",
    "LatePolicy",
    "Level",
    "LookBack",
    "Memory",
    "MemoryGuard",
    "MemoryPolicy",
    "MemoryPressure",
    "MemoryTracker",
    "NextWindow",
    "Once",
    "Predicate",
    "QuantileSketch",
    "RateChange",
    "RateMonitor",
    "Reemit",
    "Session",
    "SideOutput",
    "Sliding",
    "StateWindow",
    "TemporalConfig",
    "Trigger",
    "TriggerProgram",
    "Tumbling",
    "When",
    "Window",
    "WindowKind",
    "WindowOutput",
    "WindowStats",
    "Windows",
    "aggregate_function",
    "late_policy",
    "outputs",
    "trigger",
    "window_kind",
]
