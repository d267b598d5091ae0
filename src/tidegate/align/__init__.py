"""Align: what every stream was at the times of a reference topic, or on a grid."""

from tidegate.align.methods import (
    Method,
    latest,
    linear,
    max,
    mean,
    min,
    nearest,
    next,
    slerp,
)
from tidegate.align.recorded import Aligned, align_recording, rows
from tidegate.align.stage import Align

__all__ = [
    "Align",
    "Aligned",
    "Method",
    "align_recording",
    "latest",
    "linear",
    "max",
    "mean",
    "min",
    "nearest",
    "next",
    "rows",
    "slerp",
]
