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
from typing import Any, Protocol

from tidegate.batching.layout import MAX_LENGTH_NS
from tidegate.batching.message import Message, MessageBatch
from tidegate.batching.settings import checked_length
from tidegate.core import checks, snapshot
from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError, StateError

__all__ = ["AdaptiveBatcher", "AdaptiveLength"]

CLIMB_AFTER = 2
"""Overloaded reports in a row before a climb: one slow batch is noise."""
CLIMB_LEVELS = 2
"""Levels of one climb: the length doubles, so that a backlog shrinks at once."""
DESCEND_AFTER = 3
"""Underloaded reports in a row before a descent: slower than the climb, or the two would swing."""
UNDERLOADED = (7, 10)
"""Share of the length below which a report counts as underloaded: a level down shortens the batch
to 71 %, so anything above would be overloaded again at once."""
IDLE_LENGTHS = 3
"""Batch lengths without work before a descent: an empty batch or two is no rest."""


class AdaptiveLength:
    """Which batch length the load asks for.

    Args:
        base_length: The length of level 0: ns, text such as "200 ms", or a timedelta.
        max_doublings: How often the length may double, 1 to 16; each doubling is two levels. Three
            by default: batches eight times as long cost about as little per message as any.
        pulse_rate_hz: Lengths are snapped to whole pulses of this rate, so that a batch of the main
            stream always has the same number of slots.

    Raises:
        ConfigError: for a value out of range, or if the longest batch would exceed one day.

    Example:
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
        """The highest level."""
        return len(self._lengths) - 1

    def report(self, messages: int | None, took: Duration, wall_ns: int = 0) -> int:
        """Report one batch, and return the level from now on.

        Args:
            messages: How many messages the batch had; None or 0: there was nothing to do.
            took: How long its processing took, in wall time. More than the batch length is
                overload, less than 70 % of it is underload, anything between resets both counts.
            wall_ns: Wall time now, in ns; only compared with that of other reports, to notice
                idleness.

        Raises:
            ConfigError: if `took` is no duration.
        """
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

    def state(self) -> list[int]:
        """What a snapshot keeps: level, reports in a row above and below, and the last work."""
        return [
            *(self.level, self._overloaded, self._underloaded),
            *(self._worked_at, int(self._any_work)),
        ]

    def take_state(self, state: object) -> None:
        """Go on from what `state` returned.

        Raises:
            StateError: if it is no such list, or its level is higher than this length has.
        """
        if not isinstance(state, list) or len(state) != 5 or not 0 <= state[0] <= self.max_level:
            raise StateError("snapshot is corrupt: its level is not one of this length's")
        self.level, self._overloaded, self._underloaded, self._worked_at, any_work = state
        self._any_work = bool(any_work)

    def _idle(self, wall_ns: int) -> None:
        """Go down one level after IDLE_LENGTHS batch lengths of wall time without work."""
        if not self._any_work:
            self._worked_at, self._any_work = wall_ns, True
        if self.level > 0 and wall_ns - self._worked_at >= IDLE_LENGTHS * self.length_ns:
            self._move(self.level - 1)
            self._worked_at = wall_ns

    def _move(self, level: int) -> None:
        """Set the level, and start counting reports again."""
        self.level = level
        self._overloaded = self._underloaded = 0


class BatcherLike(Protocol):
    """What `AdaptiveBatcher` drives: any in-process batcher."""

    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None:
        """Look at the messages together: at most one batch."""
        ...

    def push(self, message: Message) -> list[MessageBatch]:
        """Every batch that is due after one message."""
        ...

    def process(self, messages: Sequence[Message]) -> list[MessageBatch]:
        """Every batch that is due after these messages, one at a time."""
        ...

    def advance(self, watermark_ns: int) -> list[MessageBatch]:
        """No message at or before `watermark_ns` will come any more."""
        ...

    def tick(self, wall_ns: int | None = None) -> list[MessageBatch]:
        """What is due by the wall clock; None: by the batcher's own clock."""
        ...

    def flush(self) -> list[MessageBatch]:
        """Everything that waits. The next message starts anew."""
        ...

    def set_batch_length(self, batch_length: Duration) -> object:
        """A new length, from the next close on."""
        ...

    def snapshot(self, encode: Callable[[Any], Any] | None = None) -> bytes:
        """Everything as bytes; `encode` makes JSON values or bytes of payloads."""
        ...


class AdaptiveBatcher:
    """A batcher whose length follows the reports on how long its batches took.

    Args:
        inner: The batcher that is driven; its length is set to that of `length` at once.
        length: Which length the load asks for.
        clock: A function that returns wall time in ns, for idleness alone. Without one the length
            never goes down because there is nothing to do.

    Example:
        >>> from tidegate.batching import RateAwareBatcher
        >>> batcher = AdaptiveBatcher(RateAwareBatcher("1 s"), AdaptiveLength("1 s"))
        >>> for _ in range(2):
        ...     level = batcher.report(messages=100, took="1.3 s")
        >>> level, batcher.inner.batch_length_ns
        (2, 2000000000)
    """

    name = "adaptive_batcher"
    version = 1

    def __init__(
        self,
        inner: BatcherLike,
        length: AdaptiveLength,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.inner = inner
        self.length = length
        self._clock = clock
        inner.set_batch_length(length.length_ns)

    @property
    def level(self) -> int:
        """The level of the length, from 0 (the base length) up."""
        return self.length.level

    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None:
        """`poll` of the inner batcher: at most one batch."""
        return self.inner.poll(messages)

    def push(self, message: Message) -> list[MessageBatch]:
        """`push` of the inner batcher."""
        return self.inner.push(message)

    def process(self, messages: Sequence[Message]) -> list[MessageBatch]:
        """`process` of the inner batcher: every batch that is due."""
        return self.inner.process(messages)

    def advance(self, watermark_ns: int) -> list[MessageBatch]:
        """`advance` of the inner batcher."""
        return self.inner.advance(watermark_ns)

    def tick(self, wall_ns: int | None = None) -> list[MessageBatch]:
        """`tick` of the inner batcher: what is due by the wall clock."""
        return self.inner.tick(wall_ns)

    def flush(self) -> list[MessageBatch]:
        """`flush` of the inner batcher: everything that waits."""
        return self.inner.flush()

    def report(self, messages: int | None, took: Duration) -> int:
        """Report how long the last batch took. A new length applies at the next close.

        Args:
            messages: How many messages it had; None or 0: there was nothing to do.
            took: How long its processing took, in wall time.

        Returns:
            The level from now on, 0 for the base length.
        """
        before = self.length.level
        level = self.length.report(messages, took, 0 if self._clock is None else self._clock())
        if level != before:
            self.inner.set_batch_length(self.length.length_ns)
        return level

    def snapshot(self, encode: Callable[[Any], Any] | None = None) -> bytes:
        """Everything as bytes, the inner batcher included."""
        header = {"name": self.name, "version": self.version, "length": self.length.state()}
        return snapshot.pack(header, [self.inner.snapshot(encode)])

    @classmethod
    def restore(
        cls,
        blob: bytes,
        restore_inner: Callable[[bytes], BatcherLike],
        length: AdaptiveLength,
        clock: Callable[[], int] | None = None,
    ) -> AdaptiveBatcher:
        """Return the batcher that `snapshot` saw.

        Args:
            blob: What `snapshot` returned.
            restore_inner: Restores the inner batcher, such as `RateAwareBatcher.restore`.
            length: An `AdaptiveLength` with the settings of before; its level is set from the
                blob.
            clock: As in the constructor; a function cannot be part of a snapshot.

        Raises:
            StateError: if the blob is damaged, of another class, or does not fit `length`.
        """
        header, buffers = snapshot.unpack(blob)
        if header.get("name") != cls.name or len(buffers) != 1:
            raise StateError(f"snapshot was made by {header.get('name')}, wants {cls.name}")
        if header.get("version") != cls.version:
            raise StateError(
                f"snapshot has version {header.get('version')}, this version of tidegate reads "
                f"{cls.version}"
            )
        inner = restore_inner(bytes(buffers[0]))
        length.take_state(header.get("length"))
        batcher = cls.__new__(cls)
        batcher.inner, batcher.length, batcher._clock = inner, length, clock
        return batcher
