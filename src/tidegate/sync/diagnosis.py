"""Counters per topic, and which topic holds the match up."""

from __future__ import annotations

from typing import Any

from tidegate.core.outcomes import Int64s
from tidegate.sync import approximate_kernel
from tidegate.sync.matchers import EXACT, Policy
from tidegate.sync.results import Diagnosis
from tidegate.sync.settings import SyncSettings

__all__ = ["counters_of", "diagnose"]

STARVING = 2
"""Refused sets in a row after which a topic counts as ahead: one may be the start of a stream."""


def counters_of(policy: Policy, settings: SyncSettings, core: Int64s) -> dict[str, dict[str, int]]:
    """Per topic, over all lanes."""
    k, n = policy.kernel, len(settings.topics)
    names = {
        "received": k.RECEIVED,
        "matched": k.MATCHED,
        "disorder": k.DISORDER,
        "too_close": k.TOO_CLOSE,
        "jumps": k.JUMPS,
    }
    names |= {reason: k.DROPS + number for number, reason in enumerate(policy.reasons)}
    sums = {name: policy.topic(core, n, field).sum(axis=0) for name, field in names.items()}
    return {
        topic: {name: int(values[number]) for name, values in sums.items()}
        for number, topic in enumerate(settings.topics)
    }


def diagnose(policy: Policy, settings: SyncSettings, lane: Int64s) -> Diagnosis:
    """What holds up the match of one lane."""
    k, n = policy.kernel, len(settings.topics)
    if not lane[k.OPEN]:
        return Diagnosis("waiting", settings.topics[0])

    def of(field: int, topic: int) -> int:
        return int(lane[k.LANE_SIZE + field * n + topic])

    refused = int(lane[k.REJECTED]) if policy is not EXACT else 0
    if refused >= STARVING:
        ahead = int(lane[k.REJECT_END])
        others = [of(k.NEWEST, j) for j in range(n) if j != ahead and of(k.STARTED, j)]
        lead = of(k.NEWEST, ahead) - max(others)
        by = max(lead, int(lane[k.REJECT_GAP]))
        return Diagnosis("ahead", settings.topics[ahead], by, refused)
    silent = _waited_for(policy, n, lane, of)
    if silent is None:
        return Diagnosis("none")
    now = int(lane[k.NOW])
    since = of(k.NEWEST, silent) if of(k.STARTED, silent) else int(lane[_first(policy)])
    return Diagnosis("waiting", settings.topics[silent], max(0, now - since), refused)


def _first(policy: Policy) -> int:
    return int(policy.kernel.NOW if policy is EXACT else approximate_kernel.FIRST)


def _waited_for(policy: Policy, n: int, lane: Int64s, of: Any) -> int | None:
    """The topic without which nothing can be decided: of several, the one silent the longest."""
    k = policy.kernel
    if policy is EXACT:
        newest = [of(k.NEWEST, j) if of(k.STARTED, j) else -(2**63) for j in range(n)]
        return newest.index(min(newest)) if min(newest) < max(newest) else None
    if lane[k.PIVOT]:
        return int(lane[k.WAIT]) - 1
    empty = [j for j in range(n) if of(k.HEAD, j) == of(k.TAIL, j) and not of(k.ABSENT, j)]
    if len(empty) in (0, n):
        return None
    return min(empty, key=lambda j: of(k.NEWEST, j) if of(k.STARTED, j) else -(2**63))
