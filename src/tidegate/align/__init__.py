"""Align: what every stream was at the times of a reference topic, or on a grid.

methods     latest, next, nearest, linear, slerp, mean, min, max: how a value at t is found
stage       Align: the same as a stage of a pipeline
in_process  rows, align_recording: a whole recording in one call; Aligner: message by message
recorded    read_recording: what `rows` can be given
episodes    Episodes, cut_episodes: aligned rows cut into episodes, with actions
values      interpolation and aggregates over Arrow columns
kernels     the compiled search for the messages around each point
"""

from tidegate.align.episodes import Episodes, cut_episodes
from tidegate.align.in_process import Aligned, AlignedRow, Aligner, align_recording, rows
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
    "Aligned",
    "AlignedRow",
    "Aligner",
    "Episodes",
    "Method",
    "align_recording",
    "cut_episodes",
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
