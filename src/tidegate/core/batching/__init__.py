"""Batches that close when the last expected pulse of every gated stream is in.

period     how fast a stream beats               adaptive   a length that follows the load
grid       where its messages are expected       simple     fixed windows, without rates
batcher    in process: poll, process, flush      operator   the same as a stage of a pipeline
"""

from __future__ import annotations

from tidegate.core.batching.adaptive import AdaptiveBatcher, AdaptiveLength
from tidegate.core.batching.batcher import RateAwareBatcher
from tidegate.core.batching.grid import PulseGrid
from tidegate.core.batching.message import Message, MessageBatch, StreamReport
from tidegate.core.batching.operator import Batch
from tidegate.core.batching.period import StreamPeriodEstimator
from tidegate.core.batching.simple import SimpleBatcher

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
