"""Batches that close when the last expected pulse of every gated stream is in.

period     how fast a stream beats               adaptive   a length that follows the load
grid       where its messages are expected       simple     fixed windows, without rates
batcher    in process: poll, process, flush      operator   the same as a stage of a pipeline
"""

from __future__ import annotations

from tidegate.batching.adaptive import AdaptiveBatcher, AdaptiveLength
from tidegate.batching.fixed import SimpleBatcher
from tidegate.batching.grid import PulseGrid
from tidegate.batching.in_process import RateAwareBatcher
from tidegate.batching.message import Message, MessageBatch, StreamReport
from tidegate.batching.period import StreamPeriodEstimator
from tidegate.batching.stage import Batch

__all__ = [
    "AdaptiveBatcher",
    "AdaptiveLength",
    "Batch",
    "Message",
    "MessageBatch",
    "PulseGrid",
    "RateAwareBatcher",
    "SimpleBatcher",
    "StreamPeriodEstimator",
    "StreamReport",
]
