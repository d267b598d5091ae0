# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The period of a stream, from the distances between its messages.

    diffs     1   1   2   1   1      a missed pulse doubles one distance
    seed      median = 1
    per pulse 1   1   2/2 1   1      divided by how many pulses each distance spans
    period    median of these; its rate, if that is a whole number of Hz

Medians, so neither missed pulses nor split messages nor one bad stamp move it. Messages that come
out of order add nothing.
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.layout import (
    ABSENT,
    DIFFS,
    HEAD,
    LAST,
    PERIOD,
    STREAM_COLUMNS,
    TRACKED,
)
from tidegate.core.numba import lean_kernel

__all__ = ["MIN_DIFFS", "RING", "StreamPeriodEstimator"]

RING = 32
"""Diffs remembered: long enough for a steady median, short enough to follow a new rate."""

MIN_DIFFS = 4
"""Diffs needed before a rate is believed: fewer, and one missed pulse would be half of it."""

_SNAP_SHARE = 0.1
_SNAP_HZ = 0.1
"""A rate is whole if it lies within 10 %, or 0.1 Hz, of a whole number of Hz."""


@lean_kernel
def observe(streams, rings, n, s, t):
    if streams[n, s, TRACKED] == 0:
        streams[n, s, TRACKED] = 1
        streams[n, s, LAST] = t
        streams[n, s, DIFFS] = 0
        streams[n, s, HEAD] = 0
        streams[n, s, ABSENT] = 0
        streams[n, s, PERIOD] = 0
        return
    if t > streams[n, s, LAST]:
        rings[n, s, streams[n, s, HEAD]] = t - streams[n, s, LAST]
        streams[n, s, HEAD] = (streams[n, s, HEAD] + 1) % RING
        streams[n, s, DIFFS] = min(streams[n, s, DIFFS] + 1, RING)
        streams[n, s, LAST] = t


@lean_kernel
def median(values, n):
    """Median of the first `n` values, which are sorted in place."""
    for i in range(1, n):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    if n % 2:
        return values[n // 2]
    return (values[n // 2 - 1] + values[n // 2]) / 2


@lean_kernel
def measured_period(rings, n, s, count, scratch):
    """The period in ns, as a float; 0.0 while there is too little evidence."""
    if count < MIN_DIFFS:
        return 0.0
    for i in range(count):
        scratch[i] = rings[n, s, i]
    seed = median(scratch, count)
    if np.rint(scratch[0] / seed) == 1.0 and np.rint(scratch[count - 1] / seed) == 1.0:
        return seed  # every distance is one pulse: the second median would be the first
    kept = 0
    for i in range(count):
        pulses = np.rint(rings[n, s, i] / seed)
        if pulses >= 1.0:
            scratch[kept] = rings[n, s, i] / pulses
            kept += 1
    return median(scratch, kept)


@lean_kernel
def whole_rate(period):
    """The whole number of Hz that `period` stands for; 0 if it stands for none."""
    if period <= 0.0:
        return 0
    rate = 1e9 / period
    whole = np.rint(rate)
    if whole < 1.0 or abs(rate - whole) > max(_SNAP_SHARE * rate, _SNAP_HZ):
        return 0
    return int(whole)


class StreamPeriodEstimator:
    """The rate of one periodic stream.

    >>> estimator = StreamPeriodEstimator()
    >>> for pulse in (0, 1, 2, 4, 5, 6):  # pulse 3 never came
    ...     estimator.observe(pulse * 71_428_571)
    >>> estimator.rate_hz, round(estimator.period_ns)
    (14, 71428571)
    """

    def __init__(self) -> None:
        self._stream = np.zeros((1, 1, STREAM_COLUMNS), np.int64)
        self._ring = np.zeros((1, 1, RING), np.int64)
        self._scratch = np.zeros(RING, np.float64)

    def observe(self, time_ns: int) -> None:
        """A message came. One at or before the newest seen teaches nothing."""
        observe(self._stream, self._ring, 0, 0, time_ns)

    @property
    def period_ns(self) -> float | None:
        """The measured period, or None before four distances were seen."""
        period = float(measured_period(self._ring, 0, 0, self._stream[0, 0, DIFFS], self._scratch))
        return period or None

    @property
    def rate_hz(self) -> int | None:
        """The whole rate, or None: too little evidence, slower than 1 Hz, or not whole."""
        return int(whole_rate(self.period_ns or 0.0)) or None
