"""Counters per topic, and the diagnosis: are sets coming, and if not, because of which topic.

Theory of operation. Every topic keeps a short history (`lane.HISTORY`): how far its messages lay
behind the newest stamp of any topic when they came, over the last one to two blocks of 32. The
smallest of these is its *lateness*: what is left when jitter and bursts are taken out. Lateness is
one offset per topic, fitted to recent stamps.

- A topic that lags by 500 ms has a lateness of 500 ms, the others of about 0. One that leads by
  500 ms has 0, and all *others* have 500 ms. So the guilty one is the topic whose lateness is the
  furthest from the median, and the sign says whether it lags or leads. With two topics there is no
  median to speak of: the one behind is named.
- A topic whose distance from the median differs between the two blocks drifts.
- A topic that comes in bursts has a small lateness, but a large spread of it.
- A topic that has missed several messages, compared with its share before, is silent; one that
  keeps coming with one and the same stamp is stuck.

All of this is looked at only if sets are not coming: of the slowest required topic, most messages
should be in a set. (Of a fast topic beside a slow one, most are not.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.sync.lane import BLOCK
from tidegate.sync.matchers import Matcher
from tidegate.sync.results import Diagnosis
from tidegate.sync.settings import SyncSettings

__all__ = ["counters_of", "diagnose", "healthy"]

MISSED = 4
"""Messages a topic must have missed to be called silent. Fewer, and jitter does it; more, and a
slow topic is named late."""

PAUSES = 8
"""And how many times its longest recent pause (`pause`, which decays) this silence must last: a
topic that comes in bursts is not silent between them."""

UNKNOWN = 64
"""Messages per topic without one of a topic that came once or twice, until that one is silent."""

ROUNDS = 4
"""Messages that every topic may deliver without a set, because the proof needs the next ones."""

MATCHED = 0.75
"""The share of the slowest topic's recent messages that is in a set when all is well. Rates that
are not multiples of one another, and jitter, cost a few."""

STILL = 3
"""Repeated stamps after which a clock counts as stuck. One or two repetitions are ordinary."""

DRIFT = 0.02
"""Change of a distance from block to block, as a share of it, above which it is a drift, if it is
also more than a period: which topic came first changes a distance by up to one."""


def counters_of(matcher: Matcher, settings: SyncSettings, topics: Any) -> dict[str, dict[str, int]]:
    """Return the counters of every topic, summed over all lanes.

    Args:
        matcher: For the reasons for which its messages can leave.
        settings: For the names of the topics.
        topics: Records of the topics, lanes x topics.

    Returns:
        Per topic: received, matched, disorder, too_close, jumps, and one count per reason.
    """
    sums = {
        name: topics[name].sum(axis=0)
        for name in ("received", "matched", "disorder", "too_close", "jumps")
    }
    dropped = topics["dropped"].sum(axis=0)
    sums |= {reason.name.lower(): dropped[:, reason] for reason in matcher.reasons}
    return {
        topic: {name: int(values[number]) for name, values in sums.items()}
        for number, topic in enumerate(settings.topics)
    }


def healthy(settings: SyncSettings, topics: Any) -> Any:
    """Return whether sets are coming, per lane.

    They are if a set came within the last few messages, and most recent messages of the slowest
    required topic are in one.

    Args:
        settings: For which topics are required.
        topics: Records of the topics, lanes x topics.
    """
    required = settings.topic_rules["optional"] == 0
    mine = topics[:, required]
    recent = np.where(
        mine["arrivals"] > BLOCK, BLOCK + (mine["arrivals"] - 1) % BLOCK + 1, mine["arrivals"]
    )
    slowest = mine["arrivals"].argmin(axis=1)
    lanes = np.arange(len(mine))
    matched = (mine["matched"] - mine["matched_before"])[lanes, slowest]
    # The last few may still be waiting for their set.
    due = recent[lanes, slowest] - mine["since_set"][lanes, slowest]
    return (mine["since_set"].min(axis=1) < ROUNDS) & (matched >= MATCHED * due) & (matched > 0)


def diagnose(matcher: Matcher, settings: SyncSettings, search: Any, topics: Any) -> Diagnosis:
    """Return the diagnosis of one lane.

    Silence is looked at first, because it explains everything else; then whether sets are coming;
    then stuck clocks; then stamps that lie apart.

    Args:
        matcher: The search that was used.
        settings: Its settings.
        search: The record of the lane.
        topics: The records of its topics.
    """
    if not search["open"]:
        return Diagnosis("starting")
    refused = int(search["rejected"]) if "rejected" in matcher.search.names else 0
    required = [j for j in range(len(topics)) if not settings.topic_rules["optional"][j]]
    now = int(search["now"])
    silent = [j for j in required if _is_silent(search, topics, j)]
    if silent:
        j = min(silent, key=lambda j: int(topics[j]["last_arrival"]))
        since = int(topics[j]["newest"] if topics[j]["started"] else search["first"])
        return Diagnosis("silent", settings.topics[j], max(0, now - since), refused=refused)
    if healthy(settings, topics[None, :])[0]:
        return Diagnosis("healthy", refused=refused)
    if min(int(topics[j]["arrivals"]) for j in required) < ROUNDS:
        return Diagnosis("starting", refused=refused)
    for j in required:
        if topics[j]["still"] >= STILL and topics[j]["last"] < now:
            return Diagnosis("stuck", settings.topics[j], now - int(topics[j]["last"]), None, None)
    return _displaced(settings, topics, refused)


def _is_silent(search: Any, topics: Any, j: int) -> bool:
    """Whether the topic has missed several messages, by the share of the lane's it had before."""
    topic, total = topics[j], int(topics["arrivals"].sum())
    if topic["arrivals"] == 0:
        return bool(topics["arrivals"].max() >= MISSED)
    missing = int(search["seen"] - topic["last_arrival"])
    if topic["arrivals"] < 3:  # its period is not known
        return missing >= UNKNOWN * len(topics)
    before = max(1, total - missing)
    expected = missing * int(topic["arrivals"]) / before
    return expected >= MISSED and missing > PAUSES * int(topic["pause"])


def _displaced(settings: SyncSettings, topics: Any, refused: int) -> Diagnosis:
    """Return which topic's stamps lie apart from the others', and how.

    Args:
        settings: For the names of the topics.
        topics: The records of the lane's topics.
        refused: Candidates refused since the last set, handed through.
    """
    two_blocks = topics["arrivals"] > BLOCK
    low = topics["late_low"].astype(float)
    before = np.where(two_blocks, topics["late_low_before"], low)
    high = np.maximum(topics["late_high"], np.where(two_blocks, topics["late_high_before"], 0))
    lateness = np.minimum(low, before)
    apart, apart_before = _from_median(low), _from_median(before)
    period = np.maximum(1, np.where(topics["period"] > 0, topics["period"], _guess(topics)))
    j = int(np.abs(_from_median(lateness)).argmax())
    swing = high - lateness
    burst = int(swing.argmax())
    if swing[burst] > 2 * abs(apart[j]) and swing[burst] > 4 * period[burst]:
        others = np.delete(swing, burst).max()
        if swing[burst] > 2 * others:
            queue = int(np.ceil(high[burst] / period).max()) + 3
            name = settings.topics[burst]
            return Diagnosis("bursting", name, int(high[burst]), queue, None, refused)
    distance = float(apart[j])
    if abs(distance) < period.min():
        return Diagnosis("unmatched", settings.topics[j], abs(int(distance)), refused=refused)
    if distance > 0:  # behind: the others must wait for it
        others = np.delete(period, j).min()
        queue = int(np.ceil(max(high[j], distance) / others)) + 3
    else:
        queue = int(np.ceil(-distance / period[j])) + 3
    problem = "lagging" if distance > 0 else "leading"
    change = distance - float(apart_before[j])
    much = max(DRIFT * abs(distance), float(period[j]))
    if two_blocks[j] and change * distance > 0 and abs(change) > much:
        problem = "drifting"
    name = settings.topics[j]
    return Diagnosis(problem, name, abs(int(distance)), queue, int(distance), refused)


def _from_median(lateness: Any) -> Any:
    """The distance of each from the median; of two, from the smaller."""
    middle = np.sort(lateness)[(len(lateness) - 1) // 2] if len(lateness) > 2 else lateness.min()
    if len(lateness) > 2 and len(lateness) % 2 == 0:
        # Two middle ones: the one that leaves the fewer topics far away.
        upper = np.sort(lateness)[len(lateness) // 2]
        if np.abs(lateness - upper).sum() < np.abs(lateness - middle).sum():
            middle = upper
    return lateness - middle


def _guess(topics: Any) -> Any:
    """Return the period (ns) of topics whose first block is not full yet, from the span so far."""
    span = np.maximum(0, topics["last"] - topics["block_stamp"]).astype(float)
    return span / np.maximum(1, topics["arrivals"] - 1)
