"""Batches that close when the last expected pulse of every gated stream is in.

stage        Batch: the stage of a pipeline          fixed      windows of one length, no rates
in_process   RateAwareBatcher: plain messages        adaptive   a length that follows the load
kernel       the decision itself: routing, windows, closing, from top to bottom
period       how fast a stream beats                 grid       where its messages are expected
report       what a batch says of itself             held       rows that wait, kept in place
layout       the records the kernel works on         settings, message
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
