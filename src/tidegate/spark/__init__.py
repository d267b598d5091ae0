"""Tidegate on Spark. The only part that imports pyspark."""

from tidegate.spark.frames import Frames, frames
from tidegate.spark.session import session

__all__ = ["Frames", "frames", "session"]
