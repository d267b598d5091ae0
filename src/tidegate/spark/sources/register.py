"""Makes our sources known to a session, by name."""

from __future__ import annotations

from importlib import import_module

from pyspark.sql import SparkSession

__all__ = ["OURS", "register_sources"]

OURS = {
    "mcap": "tidegate.spark.sources.mcap:McapSource",
    "rosbag": "tidegate.spark.sources.rosbag:RosbagSource",
    "spool": "tidegate.spark.sources.spool:SpoolSource",
}
"""Formats of ours, and where they are."""


def register_sources(spark: SparkSession, *formats: str) -> None:
    """Register our formats (all, or those named) with a session: `spark.read.format("mcap")`."""
    for format in formats or OURS:
        module, _, name = OURS[format].partition(":")
        spark.dataSource.register(getattr(import_module(module), name))
