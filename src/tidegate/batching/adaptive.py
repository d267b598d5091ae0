"""A batch length that follows the load.

    level     0      1      2      3      4      5      6
    length    b    1.4 b   2 b   2.8 b   4 b   5.7 b   8 b       snapped to whole pulses

Longer batches cost less per message. Two overloaded reports in a row climb two levels (doubling the
length), three below 70 % go down one, and so does a time without work. Up fast, down slowly: a
backlog hurts more than a batch that is longer than it need be.

Clock policy: `wall_ns` comes in with every report and decides idleness alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.batching.message import Message, MessageBatch
from tidegate.batching.settings import MAX_LENGTH_NS, checked_length
from tidegate.core import checks
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = ["AdaptiveBatcher", "AdaptiveLength"]

CLIMB_AFTER = 2
"""Overloaded reports in a row before a climb: one slow batch is noise."""
CLIMB_LEVELS = 2
DESCEND_AFTER = 3
"""Underloaded reports in a row before a descent."""
UNDERLOADED = (7, 10)
"""Share of the length below which a report counts as underloaded: a level down shortens the batch
to 71 %, so anything above would be overloaded again at once."""
IDLE_LENGTHS = 3
"""Batch lengths without work before a descent."""


class AdaptiveLength:
    """Which level the load asks for.

    >>> length = AdaptiveLength("1 s", pulse_rate_hz=14)
    >>> length.report(100, "1.5 s"), length.report(100, "1.5 s")   # overloaded twice
    (0, 2)
    >>> length.length_ns
    2000000000
    """

    def __init__(
        self,
        base_length: Duration = "1 s",
        *,
        max_doublings: int = 3,
        pulse_rate_hz: int = 14,
    ) -> None:
        base = checked_length(base_length, "base_length")
        doublings = checks.int_in("max_doublings", max_doublings, 1, 16)
        rate = checks.int_in("pulse_rate_hz", pulse_rate_hz, 1, 10**9)
        if base << doublings > MAX_LENGTH_NS:
            raise ConfigError("max_doublings", max_doublings, "must keep batches within one day")
        self._lengths = [
            max(1, round(base * 2 ** (level / 2) * rate / 1e9)) * 10**9 // rate
            for level in range(2 * doublings + 1)
        ]
        self._lengths[0] = base
        self.level = 0
        self._overloaded = 0
        self._underloaded = 0
        self._worked_at = 0
        self._any_work = False

    @property
    def length_ns(self) -> int:
        """The batch length of this level."""
        return self._lengths[self.level]

    @property
    def max_level(self) -> int:
        return len(self._lengths) - 1

    def report(self, messages: int | None, took: Duration, wall_ns: int = 0) -> int:
        """A batch of so many messages took so long; None or 0 messages: there was nothing to do.
        Gives back the level."""
        took_ns = parse_duration(took, "took")
        if not messages:
            self._idle(wall_ns)
            return self.level
        self._worked_at, self._any_work = wall_ns, True
        share, whole = UNDERLOADED
        if took_ns > self.length_ns:
            self._overloaded += 1
            self._underloaded = 0
        elif took_ns * whole < share * self.length_ns:
            self._underloaded += 1
            self._overloaded = 0
        else:
            self._overloaded = self._underloaded = 0
        if self._overloaded >= CLIMB_AFTER:
            self._move(min(self.level + CLIMB_LEVELS, self.max_level))
        elif self._underloaded >= DESCEND_AFTER:
            self._move(max(self.level - 1, 0))
        return self.level

    def _idle(self, wall_ns: int) -> None:
        if not self._any_work:
            self._worked_at, self._any_work = wall_ns, True
        if self.level > 0 and wall_ns - self._worked_at >= IDLE_LENGTHS * self.length_ns:
            self._move(self.level - 1)
            self._worked_at = wall_ns

    def _move(self, level: int) -> None:
        self.level = level
        self._overloaded = self._underloaded = 0


class _Batcher(Protocol):
    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None: ...
    def process(self, messages: Sequence[Message]) -> list[MessageBatch]: ...
    def flush(self) -> list[MessageBatch]: ...
    def set_batch_length(self, batch_length: Duration) -> None: ...


class AdaptiveBatcher:
    """A batcher whose length follows the reports on how long its batches took.

    >>> from tidegate.batching import RateAwareBatcher
    >>> batcher = AdaptiveBatcher(RateAwareBatcher("1 s"), AdaptiveLength("1 s"))
    >>> for _ in range(2):
    ...     level = batcher.report(messages=100, took="1.3 s")
    >>> level, batcher.inner.batch_length_ns
    (2, 2000000000)
    """

    def __init__(
        self,
        inner: _Batcher,
        length: AdaptiveLength,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.inner = inner
        self.length = length
        self._clock = clock
        inner.set_batch_length(length.length_ns)

    @property
    def level(self) -> int:
        return self.length.level

    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None:
        return self.inner.poll(messages)

    def process(self, messages: Sequence[Message]) -> list[MessageBatch]:
        return self.inner.process(messages)

    def flush(self) -> list[MessageBatch]:
        return self.inner.flush()

    def report(self, messages: int | None, took: Duration) -> int:
        """How long the last batch took. A new length applies at the next close."""
        before = self.length.level
        level = self.length.report(messages, took, 0 if self._clock is None else self._clock())
        if level != before:
            self.inner.set_batch_length(self.length.length_ns)
        return level
