"""One message of each topic, matched by time: in process, and as a stage of a pipeline."""

from __future__ import annotations

from tidegate.sync.in_process import ApproximateTime, ExactTime
from tidegate.sync.results import ClockJump, Diagnosis, SyncResult, SyncSet, Unmatched
from tidegate.sync.settings import SyncSettings
from tidegate.sync.stage import Synchronize

__all__ = [
    "ApproximateTime",
    "ClockJump",
    "Diagnosis",
    "ExactTime",
    "SyncResult",
    "SyncSet",
    "SyncSettings",
    "Synchronize",
    "Unmatched",
]
