"""One message of each topic, matched by time: in process, and as a stage of a pipeline.

in_process    ApproximateTime, ExactTime, EpsilonTime: push messages, get sets
latest        LatestTime: the newest message of every topic at each message of one
stage         Synchronize: the stage of a pipeline, many keys at once
settings      SyncSettings: what decides a match, checked once
results       what users get: sets, unmatched messages, clock jumps, a diagnosis
approximate   the approximate-time search, from top to bottom
exact         the exact-time search
best_sets     hindsight: the best sets of a recording, with all of it in view
lane          the records both searches work on, and exact arithmetic of stamps
matchers      the two searches behind one interface
diagnosis     are sets coming, and if not, because of which topic
rows          Arrow rows from the row numbers that the kernels decide on
"""

from __future__ import annotations

from tidegate.sync.best_sets import Hindsight, hindsight
from tidegate.sync.in_process import ApproximateTime, EpsilonTime, ExactTime
from tidegate.sync.latest import LatestTime
from tidegate.sync.results import ClockJump, Diagnosis, SyncResult, SyncSet, Unmatched
from tidegate.sync.settings import SyncSettings
from tidegate.sync.stage import Synchronize

__all__ = [
    "ApproximateTime",
    "ClockJump",
    "Diagnosis",
    "EpsilonTime",
    "ExactTime",
    "Hindsight",
    "LatestTime",
    "SyncResult",
    "SyncSet",
    "SyncSettings",
    "Synchronize",
    "Unmatched",
    "hindsight",
]
