"""Tidegate reorders, aligns and batches messages from many clocks, on Spark.

The main nouns are here; everything else is in a namespace, which is loaded when it is first used:

=====================  =========================================================================
`tidegate.eventtime`   event-time types, the watermark stage, the decoder
`tidegate.sync`        one message per topic, matched by time, and its results
`tidegate.align`       every topic's value at the times of a reference, or on a grid
`tidegate.batching`    batches that close when the last expected pulse is in
`tidegate.windows`     window kinds, late policies, aggregates, memory limits
`tidegate.triggers`    when a window emits; triggers combine with `|` and `&`
`tidegate.deltas`      vector deltas, their chains, compaction strategies
`tidegate.pipeline`    definitions, the planner, `explain`, registration of stages
`tidegate.profile`     what a recording contains: `inspect`, and a first pipeline file
`tidegate.report`      the page of a run, notebook output
`tidegate.mcap`        read and write MCAP recordings
`tidegate.spool`       messages landed on disk
`tidegate.testing`     the laws, marble diagrams, hostile data and a synthetic fleet
`tidegate.spark`       DataFrames, sources and sinks; needs pyspark
=====================  =========================================================================

`import tidegate` loads no numpy, pyarrow, numba or Spark: the command line starts at once.

>>> import tidegate
>>> tidegate.ConfigError.__module__
'tidegate.errors'
>>> tidegate.errors.StateError is tidegate.StateError
True
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.version import __version__

if TYPE_CHECKING:
    from tidegate import (
        align,
        batching,
        deltas,
        errors,
        eventtime,
        mcap,
        pipeline,
        profile,
        report,
        spark,
        spool,
        sync,
        testing,
        windows,
    )
    from tidegate.align import Align
    from tidegate.batching import AdaptiveBatcher, Batch, Message, RateAwareBatcher, SimpleBatcher
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
    from tidegate.deltas import Compact, Compactor, DeltaChain, VectorDelta
    from tidegate.errors import ConfigError, ContractError, StateError, TidegateError
    from tidegate.eventtime import (
        Decoder,
        EventtimeTypes,
        EventtimeWatermark,
        ProcessTimeWatermark,
        TimeColumn,
    )
    from tidegate.pipeline import PipelineDefinition
    from tidegate.sync import ApproximateTime, ExactTime, Synchronize
    from tidegate.windows import Session, Sliding, Tumbling, Window, Windows, triggers

_NOUNS = {
    "tidegate.errors": ("ConfigError", "ContractError", "StateError", "TidegateError"),
    "tidegate.core.outcomes": (
        "Collection", "ControlSignal", "Dropped", "End", "Late", "StreamError", "Watermark",
    ),
    "tidegate.core.operator": ("Operator",),
    "tidegate.core.flow": ("Flow",),
    "tidegate.eventtime": (
        "Decoder", "EventtimeTypes", "EventtimeWatermark", "ProcessTimeWatermark", "TimeColumn",
    ),
    "tidegate.sync": ("ApproximateTime", "ExactTime", "Synchronize"),
    "tidegate.align": ("Align",),
    "tidegate.batching": (
        "AdaptiveBatcher", "Batch", "Message", "RateAwareBatcher", "SimpleBatcher",
    ),
    "tidegate.windows": ("Session", "Sliding", "Tumbling", "Window", "Windows"),
    "tidegate.deltas": ("Compact", "Compactor", "DeltaChain", "VectorDelta"),
    "tidegate.pipeline": ("PipelineDefinition",),
}  # fmt: skip
"""The nouns at the top of the package, by the module that defines them."""

_NAMESPACES = {
    "align": "tidegate.align",
    "batching": "tidegate.batching",
    "deltas": "tidegate.deltas",
    "errors": "tidegate.errors",
    "eventtime": "tidegate.eventtime",
    "mcap": "tidegate.mcap",
    "pipeline": "tidegate.pipeline",
    "profile": "tidegate.profile",
    "report": "tidegate.report",
    "spark": "tidegate.spark",
    "spool": "tidegate.spool",
    "sync": "tidegate.sync",
    "testing": "tidegate.testing",
    "triggers": "tidegate.windows.triggers",
    "windows": "tidegate.windows",
}
"""The namespaces, by the module that each one is."""

_MODULE_OF = {name: module for module, names in _NOUNS.items() for name in names}

__all__ = [
    "AdaptiveBatcher",
    "Align",
    "ApproximateTime",
    "Batch",
    "Collection",
    "Compact",
    "Compactor",
    "ConfigError",
    "ContractError",
    "ControlSignal",
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
    "Session",
    "SimpleBatcher",
    "Sliding",
    "StateError",
    "StreamError",
    "Synchronize",
    "TidegateError",
    "TimeColumn",
    "Tumbling",
    "VectorDelta",
    "Watermark",
    "Window",
    "Windows",
    "__version__",
    "align",
    "batching",
    "deltas",
    "errors",
    "eventtime",
    "mcap",
    "pipeline",
    "profile",
    "report",
    "spark",
    "spool",
    "sync",
    "testing",
    "triggers",
    "windows",
]


def __getattr__(name: str) -> Any:
    """Load a noun or a namespace when it is first used."""
    if name in _NAMESPACES:
        value: Any = import_module(_NAMESPACES[name])
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _in_notebook() -> None:
    """Inside IPython, show results as pictures. IPython is not imported if it is not running."""
    started = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if started is not None:
        from tidegate.report import load_ipython_extension

        load_ipython_extension(started)


_in_notebook()
