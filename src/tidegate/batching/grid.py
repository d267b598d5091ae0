# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The expected places of a periodic stream's messages.

    origin   period
      |-------|-------|-------|-------|      pulse index = round((t - origin) / period)
          [ window ............... ]         slot = pulse index - first pulse of the window

Rounding gives every slot half a period of jitter on either side. A grid is fixed once made; a new
rate or batch length keeps its origin, so slots never slide under a running stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.batching.layout import Gate
from tidegate.batching.period import has_changed, lock, measured_period, whole_rate
from tidegate.core.numba import lean_kernel
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = ["AHEAD_LENGTHS", "FAR_LENGTHS", "PulseGrid"]

AHEAD_LENGTHS = 3
"""Batch lengths a time may lie ahead and still be believed: caps the high-water mark and what is
held back, so that one bad stamp cannot close millions of windows or park messages for ever."""

FAR_LENGTHS = 1000
"""Batch lengths beyond which a time belongs to another epoch: no grid reaches that far, so a clock
43 years off never gates."""

DRIFT_NS = 1_000_000
"""A window may start this much after a pulse and still count it as its first (at most half a
period): rounding of lengths must not cost a slot."""


@lean_kernel
def pulse_index(origin, period, t):
    """Return the index of the pulse nearest to `t`; half a period rounds to the even pulse.

    In integers throughout: a time of today in ns does not fit into a float64. All arguments in ns,
    `period` at least 1.
    """
    index = (t - origin) // period
    twice = 2 * (t - origin - index * period)
    if twice > period or (twice == period and index % 2 != 0):
        index += 1
    return index


@lean_kernel
def first_pulse(origin, period, start):
    """Pulse index of the first slot of a window that starts at `start`."""
    index = (start - origin) // period
    if start - origin - index * period <= min(DRIFT_NS, period // 2):
        return index
    return index + 1


@lean_kernel
def refresh(stream, start, length, any_time, after_time, scratch, any_rate):
    """Make, keep, change or drop the grid of a stream, and say in `stream.gate` why it has none.

    A grid keeps its origin for as long as it can, so that slots never slide under a running
    stream. With too little evidence nothing changes.

    Args:
        stream: Record of the stream.
        start: Start of the window, in ns.
        length: Batch length, in ns.
        any_time: Time of the first row in the window; the newest seen if there is none.
        after_time: Time of the first row at or after `start`; the newest seen if there is none. It
            is the better origin: a late row may be far from where pulses are now.
        scratch: At least RING float64 values, overwritten.
        any_rate: Whether rates need not be whole numbers of Hz.
    """
    period = measured_period(stream, scratch)
    stream.measured = int(np.rint(period))
    if period == 0.0:
        return
    if any_rate:
        refresh_any_rate(stream, start, length, period)
        return
    rate = whole_rate(period)
    if rate == 0:
        if period > 1e9:
            # Slower than 1 Hz now: a grid of its old rate would gate for ever.
            stream.period = 0
        if stream.period == 0:
            stream.gate = Gate.TOO_SLOW.value if period > length else Gate.NOT_WHOLE.value
        return
    if rate * (length + 1.0) < 1e9:
        # No whole pulse per batch: rides along. The +1 is the nanosecond that a length such as
        # 1/7 s loses when it is written in whole ones.
        stream.period = 0
        stream.gate = Gate.TOO_SLOW.value
        return
    origin = stream.origin
    if stream.period == 0 or abs(origin - start) > FAR_LENGTHS * length:
        origin = after_time if after_time >= start else any_time
        if abs(origin - start) > FAR_LENGTHS * length:
            stream.period = 0
            stream.gate = Gate.FAR.value
            return
    stream.origin = origin
    stream.period = int(np.rint(1e9 / rate))
    stream.slots = max(1, int(np.rint(rate * (length / 1e9))))
    stream.gate = Gate.GATES.value


@lean_kernel
def refresh_any_rate(stream, start, length, period):
    """Make, keep or drop the grid of a stream of any rate.

    The origin moves with the phase, pulse by pulse, so that neither rounding nor drift adds up.
    The number of slots is that of each window (`place_window`).

    Args:
        stream: Record of the stream.
        start: Start of the window, in ns.
        length: Batch length, in ns.
        period: Median distance of its messages, in ns, above 0.
    """
    if stream.locked == 0 or has_changed(stream, period):
        lock(stream, period)
        stream.follows = 0
    stream.measured = int(np.rint(stream.fine))
    if stream.fine > length + 1.0 or abs(stream.phase - start) > FAR_LENGTHS * length:
        stream.gate = Gate.TOO_SLOW.value if stream.fine > length + 1.0 else Gate.FAR.value
        stream.period = 0
        stream.follows = 0
        return
    if stream.period != 0:
        # The window that closes keeps its place among the pulses.
        stream.first -= pulse_index(stream.origin, stream.period, stream.phase)
    else:
        stream.follows = 0
    stream.origin = stream.phase
    stream.period = int(np.rint(stream.fine))
    stream.gate = Gate.GATES.value


@lean_kernel
def place_window(stream, start, length, any_rate, consecutive):
    """Where the slots of a new window lie on the grid of a stream. With any rate, a window that
    follows another one begins with the pulse behind its last: no pulse is expected twice or never,
    however close to the edge it falls."""
    first = first_pulse(stream.origin, stream.period, start)
    if any_rate:
        if consecutive and stream.follows != 0:
            behind = stream.first + stream.slots
            if abs(behind - first) <= 1:
                first = behind
        end = first_pulse(stream.origin, stream.period, start + length)
        stream.slots = max(1, end - first)
        stream.follows = 1
    stream.first = first


@dataclass(frozen=True)
class PulseGrid:
    """Where the messages of a periodic stream are expected.

    >>> grid = PulseGrid.of_rate(14, "1 s", origin_ns=0)
    >>> grid.slots, grid.period_ns
    (14, 71428571)
    >>> grid.slot(1_428_600_000, start_ns=1_000_000_000)   # pulse 20, the seventh of this second
    6
    >>> grid.slot(900_000_000, start_ns=1_000_000_000)     # before the window: late
    -1
    """

    origin_ns: int
    """Time of pulse 0, in ns since 1970."""
    period_ns: int
    """Time between pulses, at least 1 ns."""
    slots: int
    """Pulses per window, at least 1."""

    def __post_init__(self) -> None:
        if self.period_ns < 1:
            raise ConfigError("period_ns", self.period_ns, "must be at least 1 ns")
        if self.slots < 1:
            raise ConfigError("slots", self.slots, "must be at least 1")

    @classmethod
    def of_rate(cls, rate_hz: int, batch_length: Duration, origin_ns: int = 0) -> PulseGrid:
        """The grid of a whole rate in batches of this length.

        Args:
            rate_hz: Pulses per second, at least 1.
            batch_length: Length of a window; it must hold a pulse.
            origin_ns: Time of pulse 0.

        Raises:
            ConfigError: for a rate below 1 Hz, or a batch shorter than its period.
        """
        if rate_hz < 1:
            raise ConfigError("rate_hz", rate_hz, "must be at least 1 Hz")
        length = parse_duration(batch_length, "batch_length", minimum=1)
        if rate_hz * (length + 1) < 10**9:
            raise ConfigError("batch_length", batch_length, f"must hold a pulse at {rate_hz} Hz")
        return cls(origin_ns, round(1e9 / rate_hz), max(1, round(rate_hz * (length / 1e9))))

    def pulse_index(self, time_ns: int) -> int:
        """The nearest pulse, counted from the origin; half a period rounds to even."""
        return int(pulse_index(self.origin_ns, self.period_ns, time_ns))

    def first_pulse(self, start_ns: int) -> int:
        """The pulse that is slot 0 of a window starting here."""
        return int(first_pulse(self.origin_ns, self.period_ns, start_ns))

    def slot(self, time_ns: int, start_ns: int) -> int:
        """The slot of a time in the window that starts here. Negative: late. `slots` or more:
        belongs to a later window."""
        return self.pulse_index(time_ns) - self.first_pulse(start_ns)
