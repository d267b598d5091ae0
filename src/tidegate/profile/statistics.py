"""Rates, jitter, gaps and duplicates per topic, computed from times alone.

A stream is one topic of one key. Its *period* is the median step between neighbouring times,
without zero steps. Messages that come in bursts, by chance or many at one time have no period: such
a topic is *irregular*, its rate is the mean, and nothing is said to be missing. Everything is
computed on whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.core.outcomes import Int64s

__all__ = ["Spread", "TopicStatistics", "histogram", "topic_statistics"]

GAP_PERIODS = 3
"""A step of more than this many periods is a gap. At 2, one lost message would be a gap; much
higher, short outages go unnoticed."""

IRREGULAR_GAPS = 0.05
"""A topic is irregular if at least this share of its steps are gaps. Outages are rare: where one
step in twenty is a gap, the median step is no period."""

FEW_STEPS = 20
"""Of fewer steps than this no share is taken. They are irregular if the period makes a rate of more
than ten times the mean, as of ten messages in two bursts."""

SHOWN_QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""In the order of the fields of `Spread`."""


@dataclass(frozen=True)
class Spread:
    """Quantiles of a quantity in nanoseconds; all 0 if there are no values."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    p999: int = 0
    max: int = 0

    @classmethod
    def of(cls, values: Int64s) -> Spread:
        """Compute the quantiles. Each is a value that occurs, never below its share."""
        if len(values) == 0:
            return cls()
        found = np.quantile(values, SHOWN_QUANTILES, method="higher")
        return cls(*(int(value) for value in found))


@dataclass(frozen=True)
class TopicStatistics:
    """One topic, over all its keys.

    Attributes:
        topic: Its name.
        streams: Number of keys that have it.
        rows: Number of messages.
        rate_hz: Messages per second of one stream: by its period, or the mean if the topic is
            irregular; 0 if every stream has one message.
        period_ns: The median period of its streams; 0 if every stream has one message.
        jitter: Distance of a step from the nearest multiple of the period.
        gaps: Steps of more than `GAP_PERIODS` periods; 0 if the topic is irregular.
        longest_gap_ns: The longest step.
        missing: Messages that should have come inside the steps, by the period; 0 if the topic is
            irregular.
        duplicates: Messages with the same time as their neighbour.
        regular: Whether there is a period: at most `IRREGULAR_GAPS` of the steps are gaps, and most
            messages have a time of their own.
    """

    topic: str
    streams: int
    rows: int
    rate_hz: float
    period_ns: int
    jitter: Spread
    gaps: int
    longest_gap_ns: int
    missing: int
    duplicates: int
    regular: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**self.__dict__, "jitter": self.jitter.__dict__, "rate_hz": round(self.rate_hz, 4)}


def topic_statistics(
    stream: Int64s, topic: Int64s, time_ns: Int64s, names: list[str]
) -> list[TopicStatistics]:
    """Compute the statistics of every topic.

    Args:
        stream: Per row the number of its (key, topic) pair.
        topic: Per row the number of its topic.
        time_ns: Per row its time; rows may be in any order.
        names: The names of the topics, by number.
    """
    order = np.lexsort((time_ns, stream))
    times, owner, of_topic = time_ns[order], stream[order], topic[order]
    same = owner[1:] == owner[:-1]
    steps = np.diff(times)[same]
    step_owner, step_topic = owner[1:][same], of_topic[1:][same]
    usual = _usual_period(steps, step_owner, int(stream.max(initial=-1)) + 1)
    period = usual[step_owner]
    pauses = np.zeros(len(steps), np.int64)
    known = period > 0
    pauses[known] = (steps[known] + period[known] // 2) // period[known]
    topics = []
    for number, name in enumerate(names):
        rows = int(np.count_nonzero(topic == number))
        own = step_topic == number
        moved = own & (steps > 0) & known
        # A lost message makes a step of two periods: jitter is the distance to whole periods.
        rest = np.abs(steps[moved] - pauses[moved] * period[moved])
        gap = own & known & (steps > GAP_PERIODS * period)
        periods = usual[np.unique(step_owner[own])]
        common = int(np.median(periods[periods > 0])) if np.any(periods > 0) else 0
        gaps, equal = int(np.count_nonzero(gap)), int(np.count_nonzero(own & (steps == 0)))
        moves, whole = int(np.count_nonzero(moved)), int(steps[own].sum())
        mean = np.count_nonzero(own) * 10**9 / whole if whole else 0.0
        even = gaps <= IRREGULAR_GAPS * moves
        if moves < FEW_STEPS:
            even = 10 * mean * common >= 10**9
        regular = even and 2 * equal <= rows
        topics.append(
            TopicStatistics(
                topic=name,
                streams=len(np.unique(stream[topic == number])),
                rows=rows,
                rate_hz=(10**9 / common if regular else mean) if common else 0.0,
                period_ns=common,
                jitter=Spread.of(rest),
                gaps=gaps if regular else 0,
                longest_gap_ns=int(steps[own].max(initial=0)),
                missing=int(np.maximum(pauses[own] - 1, 0).sum()) if regular else 0,
                duplicates=equal,
                regular=regular,
            )
        )
    return topics


def histogram(values: Int64s, bins: int = 40) -> tuple[list[int], list[int]]:
    """Return edges (ns) and counts on a logarithmic scale.

    The first bin holds everything below the scale, which begins at the 0.1 % quantile, but not
    below 1 µs: finer bins would be empty.
    """
    if len(values) == 0:
        return [], []
    top = max(int(values.max()), 10_000)
    low = int(np.quantile(values, 0.001, method="lower"))
    edges = np.unique(np.geomspace(min(max(low, 1_000), top // 2), top + 1, bins).astype(np.int64))
    edges = np.concatenate([[min(0, int(values.min()))], edges])
    edges[-1] = top + 1
    counts, _ = np.histogram(values, edges)
    return edges.tolist(), counts.tolist()


def _usual_period(steps: Int64s, owner: Int64s, streams: int) -> Int64s:
    """Return the median step of every stream, without the zero steps of duplicates; 0 if
    unknown."""
    usual = np.zeros(streams, np.int64)
    moved = steps > 0
    steps, owner = steps[moved], owner[moved]
    if len(steps) == 0:
        return usual
    order = np.lexsort((steps, owner))
    steps, owner = steps[order], owner[order]
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    ends = np.r_[starts[1:], len(owner)]
    usual[owner[starts]] = steps[(starts + ends - 1) // 2]
    return usual
