# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The period of a stream, from the distances between its messages.

    diffs     1   1   2   1   1      a missed pulse doubles one distance
    seed      median = 1
    per pulse 1   1   2/2 1   1      divided by how many pulses each distance spans
    period    median of these; its rate, if that is a whole number of Hz

Medians, so neither missed pulses nor split messages nor one bad stamp move it. Messages that come
out of order add nothing.

With `rates="any"` the median is only the beginning: from then on a straight line through the pulses
(time over pulse number) is followed message by message (`follow_phase`). Its slope is the period,
as a real number; its newest point is the phase. So 29.97 Hz stays 29.97 Hz, and a clock that
drifts is followed.
"""

from __future__ import annotations

import numpy as np

from tidegate.batching.layout import RING, STREAM, Gate
from tidegate.core.numba import lean_kernel

__all__ = ["MIN_DIFFS", "StreamPeriodEstimator"]

MIN_DIFFS = 4
"""Distances needed before a rate is believed. With fewer, one missed pulse is a large share of the
evidence; with more, a new stream gates later than it need."""

SNAP_SHARE = 0.1
"""A rate counts as whole within this share of the whole rate. Below, jitter of a fast stream keeps
it from gating; above, neighbouring whole rates would overlap from 5 Hz on."""

SNAP_HZ = 0.1
"""The same for slow rates, in Hz: 10 % of 1 Hz would already be this."""


@lean_kernel
def observe(stream, t):
    """Learn from a message of the stream at time `t` (ns).

    The first message starts the measurement. One at or before the newest seen adds no distance:
    messages out of order would otherwise make distances that no clock ever had. O(1); the median
    is taken only at a close.
    """
    if stream.tracked == 0:
        stream.tracked = 1
        stream.last = t
        stream.diffs = 0
        stream.head = 0
        stream.absent = 0
        stream.period = 0
        stream.gate = Gate.LEARNING.value
        stream.locked = 0
        return
    if stream.locked > 0:
        follow_phase(stream, t)
    if t > stream.last:
        head = stream.head
        stream.ring[head] = t - stream.last
        stream.head = 0 if head == RING - 1 else head + 1
        if stream.diffs < RING:
            stream.diffs += 1
        stream.last = t


MEMORY = 256
"""Messages over which phase and period are smoothed, or as many as a batch has slots if that is
more. With fewer than slots, jitter moves the predicted last slot of a batch by more than half a
period; with many more, a drifting clock is followed too slowly."""

MAX_GAP_PULSES = 64
"""Pulses that may be missing before the phase is taken from the next message alone: over a longer
silence even a good period has drifted too far to count pulses with."""

INLIER_SHARE = 0.25
"""A distance counts for the mean period if, per pulse, it is this close to the median. Half a
period is where the number of pulses becomes ambiguous."""


CHANGED_MEDIAN = 0.3
CHANGED_MEAN = 0.1
"""A followed period is given up when the median distance is this share away from it (half or twice
the rate: every distance still spans whole pulses), or the mean distance per pulse that much. Below,
the jitter of 32 distances looks like a change; above, a stream that changes its rate gates wrongly
for longer."""


@lean_kernel
def has_changed(stream, period):
    """Return whether the newest distances belong to another rate than the one that is followed.

    Args:
        stream: Record of the stream, with `locked` > 0.
        period: Median distance of the ring, in ns.
    """
    if abs(stream.fine - period) > CHANGED_MEDIAN * period:
        return True
    total = 0.0
    pulses = 0.0
    for i in range(stream.diffs):
        k = np.rint(stream.ring[i] / stream.fine)
        if 1.0 <= k <= MAX_GAP_PULSES:
            total += stream.ring[i]
            pulses += k
    return pulses > 0.0 and abs(total / pulses - stream.fine) > CHANGED_MEAN * stream.fine


@lean_kernel
def lock(stream, period):
    """Begin to follow phase and period of a stream (rates "any").

    Starts from the mean of all distances near the median `period` (ns), which is steadier than the
    median itself. The line begins with the weight of at most a quarter of a ring, so that it still
    moves quickly to where the pulses are.
    """
    total = 0.0
    pulses = 0.0
    for i in range(stream.diffs):
        k = np.rint(stream.ring[i] / period)
        if k >= 1.0 and abs(stream.ring[i] / k - period) < INLIER_SHARE * period:
            total += stream.ring[i]
            pulses += k
    stream.fine = total / pulses if pulses > 0.0 else period
    stream.phase = stream.last
    stream.locked = max(2, min(stream.diffs, RING // 4))


@lean_kernel
def follow_phase(stream, t):
    """Correct phase and period by one message at `t` (ns).

    A straight line through all pulses seen so far, with the weights of least squares for its
    `n`-th point. `n` stops growing at MEMORY (or the slots of a window, if more), so the line
    slowly forgets what lies further back. A second message of the same pulse, or a late one,
    changes nothing; after a gap of more than MAX_GAP_PULSES the phase starts at this message.
    """
    k = np.rint((t - stream.phase) / stream.fine)
    if k < 1.0:
        return  # a second message of the same pulse, or a late one
    if k > MAX_GAP_PULSES:
        stream.phase = t
        stream.locked = min(stream.locked, RING // 4)
        return
    n = stream.locked
    off = (t - stream.phase) - k * stream.fine
    weight = 2.0 * (2.0 * n - 1.0) / (n * (n + 1.0))
    slope = 6.0 / (n * (n + 1.0))
    stream.phase += int(np.rint(k * stream.fine + weight * off))
    stream.fine += slope * off / k
    stream.locked = min(n + 1, max(MEMORY, stream.slots))


@lean_kernel
def median(values, n):
    """Return the median of the first `n` values, at least one; the mean of the middle two if `n`
    is even.

    Counts ranks instead of sorting: for the few dozen values of a ring that is a handful of vector
    instructions each, without branches to mispredict. Quadratic, so not for long arrays.
    """
    low, high = (n - 1) // 2, n // 2
    lower = values[0]
    upper = values[0]
    found = 0
    for i in range(n):
        value = values[i]
        below = 0
        equal = 0
        for j in range(n):
            below += values[j] < value
            equal += values[j] == value
        if below <= low < below + equal:
            lower = value
            found |= 1
        if below <= high < below + equal:
            upper = value
            found |= 2
        if found == 3:
            break
    if low == high:
        return lower
    return (lower + upper) / 2


@lean_kernel
def measured_period(stream, scratch):
    """Return the period of a stream in ns, as a float; 0.0 with fewer than MIN_DIFFS distances.

    Args:
        stream: Record of the stream.
        scratch: At least RING float64 values, overwritten.
    """
    count = stream.diffs
    if count < MIN_DIFFS:
        return 0.0
    ring = stream.ring
    guess = stream.measured
    shortest = ring[0]
    longest = ring[0]
    below = 0
    above = 0
    for i in range(count):  # in whole numbers, so that it becomes vector instructions
        shortest = min(shortest, ring[i])
        longest = max(longest, ring[i])
        below += ring[i] < guess
        above += ring[i] > guess
    if below <= (count - 1) // 2 and above <= (count - 1) // 2:
        seed = float(guess)  # the median of a steady clock is mostly the one before
    else:
        for i in range(count):
            scratch[i] = ring[i]
        seed = median(scratch, count)
    if 2.0 * shortest > seed and 2.0 * longest < 3.0 * seed:
        return seed  # every distance is one pulse: the second median would be the first
    kept = 0
    for i in range(count):
        pulses = np.rint(ring[i] / seed)
        if pulses >= 1.0:
            scratch[kept] = ring[i] / pulses
            kept += 1
    return median(scratch, kept)


@lean_kernel
def whole_rate(period):
    """Return the whole number of Hz that a `period` (ns) stands for; 0 if it stands for none.

    Slower than about 0.9 Hz is none: the nearest whole rate must be at least 1 and close enough
    (SNAP_SHARE, SNAP_HZ).
    """
    if period <= 0.0:
        return 0
    rate = 1e9 / period
    whole = np.rint(rate)
    if whole < 1.0 or abs(rate - whole) > max(SNAP_SHARE * whole, SNAP_HZ):
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
        self._stream = np.zeros(1, STREAM)
        self._scratch = np.zeros(RING, np.float64)

    def observe(self, time_ns: int) -> None:
        """A message came at `time_ns`. One at or before the newest seen teaches nothing."""
        observe(self._stream[0], time_ns)

    @property
    def period_ns(self) -> float | None:
        """The measured period, or None before four distances were seen."""
        return float(measured_period(self._stream[0], self._scratch)) or None

    @property
    def rate_hz(self) -> int | None:
        """The whole rate, or None: too little evidence, slower than 1 Hz, or not whole."""
        return int(whole_rate(self.period_ns or 0.0)) or None
