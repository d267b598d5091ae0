"""How fast rows come, in constant memory, and the window length that fits.

Clock policy: none of its own. `now` is an argument: event time in the adaptive window, whatever the
caller likes in `RateMonitor`.

The rate is the rows in (now - window, now] divided by min(window, now - start), worked out when
asked: it decays while nothing comes, and one row is not a thousand a second. Rows are counted in a
ring of time buckets; the oldest bucket counts by the part of it that is still inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.checks import duration, int_in
from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s
from tidegate.core.time import UNSET, Duration
from tidegate.windows.kernels.layout import Int, LaneState

__all__ = ["RateMonitor", "fitting_duration"]

HYSTERESIS = 0.1
"""A length within 10 % of the fitting one is left alone, or every row would move it."""

JUMP = 2.0
"""Beyond a factor of two the fitting length is taken at once; below, half of the way."""


@lean_kernel
def rate_bucket(t: Int, width: Int) -> Int:
    """Buckets are (k * width, (k + 1) * width], so that (now - window, now] is whole buckets."""
    return -(-t // width) - 1


@lean_kernel
def rate_record(ring: Int64s, head: Int64s, t: Int, count: Int, width: Int) -> None:
    """Count rows at time t. `head` is (newest bucket, start time, rows ever), unset at first."""
    n = len(ring)
    b = rate_bucket(t, width)
    if head[2] <= 0:
        head[2] = 0
        head[0] = b
        if head[1] == UNSET:
            head[1] = t
    elif b > head[0]:
        gap = min(b - head[0], n)
        for k in range(gap):
            ring[(b - k) % n] = 0
        head[0] = b
    if b > head[0] - n:
        ring[b % n] += count
    head[2] += count


@lean_kernel
def rate_at(ring: Int64s, head: Int64s, now: Int, width: Int, window: Int) -> Any:
    """Rows per second in (now - window, now]; 0 before any time has passed."""
    n = len(ring)
    if head[2] <= 0 or now <= head[1]:
        return 0.0
    span = min(window, now - head[1])
    oldest = rate_bucket(now - window, width)
    newest = min(rate_bucket(now, width), head[0])
    inside = 0.0
    for b in range(max(oldest, head[0] - n + 1), newest + 1):
        if b == oldest:
            inside += ring[b % n] * (((oldest + 1) * width - (now - window)) % width) / width
        else:
            inside += ring[b % n]
    return inside * 1e9 / span


@lean_kernel
def fitting_duration(rate_hz: float, target: Int, shortest: Int, longest: Int) -> Any:
    """The length (ns) in which `target` rows come; clamped as a float, so that no rate, however
    small, can overflow an integer."""
    if rate_hz <= 0.0:
        return float(longest)
    wanted = target / rate_hz * 1e9
    if wanted > longest:
        return float(longest)
    if wanted < shortest:
        return float(shortest)
    return wanted


@lean_kernel
def adapted(current: float, wanted: float) -> Any:
    """The next length: unchanged when near enough, at once on a jump, else half of the way."""
    if abs(wanted - current) <= HYSTERESIS * current:
        return current
    if wanted > JUMP * current or wanted * JUMP < current:
        return wanted
    return current + 0.5 * (wanted - current)


@lean_kernel
def recent_rate(lanes: LaneState, lane: Int, t: Int, opened: bool, target: Int) -> Any:
    """Rows per second over the open window and the one before it, row at t included: a horizon that
    shrinks and grows with the windows themselves. Once the open window has half of its target it
    speaks for itself, so a jump is seen within the window in which it happens."""
    if opened:
        lanes.before_start[lane] = lanes.recent_start[lane]
        lanes.before_rows[lane] = lanes.recent_rows[lane]
        lanes.recent_start[lane], lanes.recent_rows[lane] = t, 0
    lanes.recent_rows[lane] += 1
    start, rows = lanes.recent_start[lane], lanes.recent_rows[lane]
    before = lanes.before_rows[lane]
    if before > 0 and 2 * rows < target:
        start, rows = min(start, lanes.before_start[lane]), rows + before
    if t <= start:
        return 0.0
    return rows * 1e9 / (t - start)


class RateMonitor:
    """Rows per second over the last `window`, in constant memory.

    >>> rate = RateMonitor("10 s", start_ns=0)
    >>> for second in range(1, 11):
    ...     rate.record(second * 10**9)
    >>> rate.rate(10 * 10**9), rate.rate(15 * 10**9), rate.rate(30 * 10**9)
    (1.0, 0.5, 0.0)
    """

    def __init__(
        self, window: Duration = "10 s", start_ns: int | None = None, buckets: int = 100
    ) -> None:
        """Start measuring.

        Args:
            window: how far back rows count: ns, text or timedelta.
            start_ns: when measuring began; None: at the first row.
            buckets: into how many parts the window is divided. The rate is exact to one part, so
                100 is one per cent; more takes 8 bytes each.
        """
        self.window_ns = duration("window", window, 1)
        int_in("buckets", buckets, 1)
        self._width = max(1, -(-self.window_ns // buckets))
        # One bucket more than the window: the newest and the oldest may both be cut.
        self._ring: NDArray[Any] = np.zeros(buckets + 1, np.int64)
        self._head = np.array([0, UNSET if start_ns is None else start_ns, 0], np.int64)

    def record(self, now_ns: int, count: int = 1) -> None:
        """Count rows.

        Args:
            now_ns: when they came.
            count: how many.
        """
        rate_record(self._ring, self._head, now_ns, count, self._width)

    def rate(self, now_ns: int) -> float:
        """Rows per second as of `now_ns`.

        Args:
            now_ns: the present time, in the clock of `record`.
        """
        return float(rate_at(self._ring, self._head, now_ns, self._width, self.window_ns))

    @property
    def nbytes(self) -> int:
        """Bytes held, whatever was recorded."""
        return int(self._ring.nbytes + self._head.nbytes)
