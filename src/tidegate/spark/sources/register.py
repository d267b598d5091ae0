"""Makes our sources known to a session, by name."""

from __future__ import annotations

from importlib import import_module

from pyspark.sql import SparkSession

__all__ = ["OURS", "register_sources"]

OURS = {
    "mcap": "tidegate.spark.sources.mcap:McapSource",
}
"""Formats of ours, and where they are."""


def register_sources(spark: SparkSession) -> None:
    """Register our formats with a session, so that `spark.read.format("mcap")` works."""
    for target in OURS.values():
        module, _, name = target.partition(":")
        spark.dataSource.register(getattr(import_module(module), name))
