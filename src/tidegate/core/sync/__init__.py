"""One message of each topic, matched by time: in process, and as a stage of a pipeline."""

from __future__ import annotations

from tidegate.core.sync.operator import Synchronize
from tidegate.core.sync.results import Diagnosis, SyncResult, SyncSet, Unmatched
from tidegate.core.sync.settings import SyncSettings
from tidegate.core.sync.synchronizer import ApproximateTime, ExactTime

__all__ = [
    "ApproximateTime",
    "Diagnosis",
    "ExactTime",
    "SyncResult",
    "SyncSet",
    "SyncSettings",
    "Synchronize",
    "Unmatched",
]
