"""Where outcomes go: one module per sink, each exactly once, found by name through `registry`."""

from tidegate.spark.sinks.registry import (
    SINKS,
    Sink,
    SinkRequest,
    SinkSettings,
    commit_state_only,
    open_sink,
    register_sink,
)

__all__ = [
    "SINKS",
    "Sink",
    "SinkRequest",
    "SinkSettings",
    "commit_state_only",
    "open_sink",
    "register_sink",
]
