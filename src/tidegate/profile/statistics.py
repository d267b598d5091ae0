"""Rates, jitter, gaps, disorder and lateness of streams, from their times alone.

A stream is one topic of one key. Everything is computed on columns; a row is never looked at twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.core.outcomes import Int64s

__all__ = ["Spread", "StreamLook", "histogram", "stream_looks"]

GAP_PERIODS = 3
"""A pause of more than so many periods is a gap: one lost message (two periods) is not."""

SHOWN_QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Spread:
    """Quantiles of a measure, in nanoseconds."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    p999: int = 0
    max: int = 0

    @classmethod
    def of(cls, values: Int64s) -> Spread:
        if len(values) == 0:
            return cls()
        # "higher": a quantile is then a value that was seen, and never below what it promises
        found = np.quantile(values, SHOWN_QUANTILES, method="higher")
        return cls(*(int(value) for value in found))


@dataclass(frozen=True)
class StreamLook:
    """One topic, over all its keys."""

    topic: str
    streams: int
    rows: int
    rate_hz: float
    period_ns: int
    jitter: Spread
    """How far the time between neighbours is from the usual period."""
    gaps: int
    longest_gap_ns: int
    missing: int
    """Messages that the gaps and pauses leave out, by the usual period."""
    duplicates: int
    """Messages with the same time as their neighbour."""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "jitter": self.jitter.__dict__, "rate_hz": round(self.rate_hz, 4)}


def stream_looks(
    stream: Int64s, topic: Int64s, time_ns: Int64s, names: list[str]
) -> list[StreamLook]:
    """One look per topic. `stream` numbers the (key, topic) pairs, `topic` the topics."""
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
    looks = []
    for number, name in enumerate(names):
        rows = int(np.count_nonzero(topic == number))
        own = step_topic == number
        moved = own & (steps > 0) & known
        # a lost message makes a step of two periods: jitter is what is left beside whole periods
        rest = np.abs(steps[moved] - pauses[moved] * period[moved])
        gap = own & known & (steps > GAP_PERIODS * period)
        periods = usual[np.unique(step_owner[own])]
        common = int(np.median(periods[periods > 0])) if np.any(periods > 0) else 0
        looks.append(
            StreamLook(
                topic=name,
                streams=len(np.unique(stream[topic == number])),
                rows=rows,
                rate_hz=10**9 / common if common else 0.0,
                period_ns=common,
                jitter=Spread.of(rest),
                gaps=int(np.count_nonzero(gap)),
                longest_gap_ns=int(steps[own].max(initial=0)),
                missing=int(np.maximum(pauses[own] - 1, 0).sum()),
                duplicates=int(np.count_nonzero(own & (steps == 0))),
            )
        )
    return looks


def histogram(values: Int64s, bins: int = 40) -> tuple[list[int], list[int]]:
    """Edges (ns) and counts on a logarithmic scale; the first bin holds all below the scale.

    The scale begins where one value in a thousand lies, at 1 µs at the least: bins below it would
    be empty.
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
    """The median step of every stream, without the zero steps of duplicates; 0 if unknown."""
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
