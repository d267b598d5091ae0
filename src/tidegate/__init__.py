"""Tidegate puts the messages of many clocks in order, in step and in batches, on Spark.

These are the public names. They are loaded when first used, so that `import tidegate` and the
command line start at once; DataFrames are in `tidegate.spark`, further windows, triggers and
strategies in `tidegate.windows` and `tidegate.deltas`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.batching import (
        AdaptiveBatcher,
        Batch,
        Message,
        RateAwareBatcher,
        SimpleBatcher,
    )
    from tidegate.core.flow import Flow
    from tidegate.core.operator import Operator
    from tidegate.core.outcomes import (
        Collection,
        ControlSignal,
        Dropped,
        End,
        Late,
        StreamError,
        Watermark,
    )
    from tidegate.deltas import Compact, Compactor, DeltaChain, TieredMerge, VectorDelta
    from tidegate.errors import ConfigError, StateError, TidegateError
    from tidegate.eventtime import (
        Decoder,
        EventtimeTypes,
        EventtimeWatermark,
        ProcessTimeWatermark,
        TimeColumn,
    )
    from tidegate.pipeline import PipelineDefinition
    from tidegate.sync import ApproximateTime, ExactTime, Synchronize
    from tidegate.windows import (
        Adaptive,
        Count,
        Reemit,
        Session,
        Sliding,
        Time,
        Tumbling,
        Window,
        Windows,
    )

_HOME = {
    "tidegate.batching": (
        "AdaptiveBatcher", "Batch", "Message", "RateAwareBatcher", "SimpleBatcher",
    ),
    "tidegate.deltas": ("Compact", "Compactor", "DeltaChain", "TieredMerge", "VectorDelta"),
    "tidegate.eventtime": (
        "Decoder", "EventtimeTypes", "EventtimeWatermark", "ProcessTimeWatermark", "TimeColumn",
    ),
    "tidegate.core.flow": ("Flow",),
    "tidegate.core.outcomes": (
        "Collection", "ControlSignal", "Dropped", "End", "Late", "StreamError", "Watermark",
    ),
    "tidegate.core.operator": ("Operator",),
    "tidegate.sync": ("ApproximateTime", "ExactTime", "Synchronize"),
    "tidegate.windows": (
        "Adaptive", "Count", "Reemit", "Session", "Sliding", "Time", "Tumbling", "Window",
        "Windows",
    ),
    "tidegate.errors": ("ConfigError", "StateError", "TidegateError"),
    "tidegate.pipeline": ("PipelineDefinition",),
}  # fmt: skip

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "AdaptiveBatcher",
    "ApproximateTime",
    "Batch",
    "Collection",
    "Compact",
    "Compactor",
    "ConfigError",
    "ControlSignal",
    "Count",
    "Decoder",
    "DeltaChain",
    "Dropped",
    "End",
    "EventtimeTypes",
    "EventtimeWatermark",
    "ExactTime",
    "Flow",
    "Late",
    "Message",
    "Operator",
    "PipelineDefinition",
    "ProcessTimeWatermark",
    "RateAwareBatcher",
    "Reemit",
    "Session",
    "SimpleBatcher",
    "Sliding",
    "StateError",
    "StreamError",
    "Synchronize",
    "TidegateError",
    "TieredMerge",
    "Time",
    "TimeColumn",
    "Tumbling",
    "VectorDelta",
    "Watermark",
    "Window",
    "Windows",
]


def __getattr__(name: str) -> Any:
    try:
        module = _MODULE_OF[name]
    except KeyError:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _in_notebook() -> None:
    """In IPython, results are shown as pictures; elsewhere IPython is not even looked for."""
    started = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if started is not None:
        from tidegate.report.notebook.register import load_ipython_extension

        load_ipython_extension(started)


_in_notebook()
