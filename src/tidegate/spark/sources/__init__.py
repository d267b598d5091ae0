"""Where rows come from: one module per source, found by the format's name through `registry`."""

from tidegate.spark.sources.registry import (
    SOURCES,
    PythonSource,
    Source,
    SourceRequest,
    register_source,
    register_sources,
    source_of,
)

__all__ = [
    "SOURCES",
    "PythonSource",
    "Source",
    "SourceRequest",
    "register_source",
    "register_sources",
    "source_of",
]
