"""Where outcomes go: one module per sink, each exactly once, found by name through `registry`."""

from tidegate.spark.sinks.registry import (
    SINKS,
    Sink,
    SinkRequest,
    SinkSettings,
    check_output_is_free,
    claim_output,
    commit_state_only,
    join_output,
    open_sink,
    register_sink,
)

__all__ = [
    "SINKS",
    "Sink",
    "SinkRequest",
    "SinkSettings",
    "check_output_is_free",
    "claim_output",
    "commit_state_only",
    "join_output",
    "open_sink",
    "register_sink",
]
