"""Sources of our own, as Spark Python data sources: `mcap`, `rosbag`, `spool`."""

from tidegate.spark.sources.register import OURS, register_sources

__all__ = ["OURS", "register_sources"]
