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
from tidegate.align.stage import Align

__all__ = [
    "Align",
    "Method",
    "latest",
    "linear",
    "max",
    "mean",
    "min",
    "nearest",
    "next",
    "slerp",
]
