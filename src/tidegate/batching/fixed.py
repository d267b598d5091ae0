"""Fixed windows, one behind the other: the plain batcher that needs no rates.

    [ start ....... end )[ next ........ )
      messages in time     later ones are parked until their window comes

A window closes when something is parked. If the traffic lags more than one length behind the window
(one bad stamp in the future parked, real time still behind), it waits for the traffic instead.
Messages from before the window join it: nothing is lost, late is better than never.

Clock policy: event time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from tidegate.batching.message import Message, MessageBatch, message_of_json, message_to_json
from tidegate.batching.settings import checked_length
from tidegate.core import snapshot
from tidegate.core.time import Duration
from tidegate.errors import ConfigError, StateError

__all__ = ["SimpleBatcher"]

LAG_LENGTHS = 2
"""Batch lengths before the end of a window at which traffic may be and still close it when
something is parked. At 1 a message a little out of order would hold the window open; much above,
one stamp in the future closes windows that traffic has not reached."""


class SimpleBatcher:
    """Batches of exactly `batch_length`, after a first one that takes what comes first.

    Args:
        batch_length: Length of a batch in event time: ns, text such as "200 ms", or a timedelta;
            at most a day. ConfigError for anything else.

    Example:
        >>> batcher = SimpleBatcher("1 s")
        >>> times = [0, 200_000_000, 900_000_000, 1_100_000_000]
        >>> [len(batch.messages) for batch in batcher.process([Message("log", t) for t in times])]
        [1, 2]
        >>> [batch.reason for batch in batcher.flush()]
        ['flush']
    """

    name = "simple_batcher"
    version = 1

    def __init__(self, batch_length: Duration = "1 s") -> None:
        self._length = checked_length(batch_length)
        self._pending: int | None = None
        self._start: int | None = None
        self._active: list[tuple[int, int, Message]] = []
        self._parked: list[tuple[int, int, Message]] = []  # a heap by time, then arrival
        self._arrived = 0
        self._batches = 0

    @property
    def batch_length_ns(self) -> int:
        """The length of the window that stands now."""
        return self._length

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Start and end of the window, or None before the first message."""
        return None if self._start is None else (self._start, self._start + self._length)

    @property
    def waiting(self) -> int:
        """Messages that have come and not left."""
        return len(self._active) + len(self._parked)

    def set_batch_length(self, batch_length: Duration) -> None:
        """Set a new length. It applies at the next close; at once while there is no window.

        Args:
            batch_length: As in the constructor. Of several before a close, the last counts.

        Raises:
            ConfigError: if it is no duration, or longer than a day.
        """
        length = checked_length(batch_length)
        if self._start is None:
            self._length = length
        else:
            self._pending = length

    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None:
        """Look at these messages together.

        Args:
            messages: In order of arrival; may be empty, to get a batch that is due already.

        Returns:
            One batch, perhaps without messages, or None if the window stays open.
        """
        if self._start is None:
            return self._begin(messages) if messages else None
        for message in messages:
            self._route(message)
        if not self._parked:
            return None
        newest = max((message.time_ns for message in messages), default=None)
        return self._close("timeout") if self._reached(newest) else None

    def process(self, messages: Sequence[Message]) -> list[MessageBatch]:
        """Return every batch that is due, looking at one message at a time.

        Windows without messages are left out. The first message behind the window closes it; a
        second one is needed to go further, so a single stamp from the future moves time by no more
        than two lengths.

        Args:
            messages: In order of arrival. How they are cut into calls does not matter.
        """
        out: list[MessageBatch] = []
        for message in messages:
            if self._start is None:
                out.append(self._begin([message]))
                continue
            was_parked = bool(self._parked)
            self._route(message)
            if self._parked and not was_parked:
                out += self._step()
                continue
            while self._parked and self._reached(message.time_ns):
                out += self._step()
                self._skip(message.time_ns)
        return out

    def push(self, message: Message) -> list[MessageBatch]:
        """`process` of a single message."""
        return self.process((message,))

    def advance(self, watermark_ns: int) -> list[MessageBatch]:
        """Watermarks close no batch here: returns nothing. All in-process classes have it."""
        return []

    def tick(self, wall_ns: int | None = None) -> list[MessageBatch]:
        """Wall time closes no batch here: returns nothing. All in-process classes have it."""
        return []

    def flush(self) -> list[MessageBatch]:
        """Everything that still waits, window by window. The next message starts anew."""
        out: list[MessageBatch] = []
        while self.waiting:
            if not self._active:
                self._skip(self._parked[0][0] + LAG_LENGTHS * self._length)
            out.append(self._close("flush"))
        self._start = None
        return out

    def snapshot(self, encode: Callable[[Any], Any] | None = None) -> bytes:
        """Return everything as bytes, messages that wait included.

        Args:
            encode: Makes a JSON value or bytes of a payload that is neither.

        Raises:
            ContractError: if a payload is neither and there is no `encode`.
        """
        held = [[n, message_to_json(m, encode)] for _, n, m in (*self._active, *self._parked)]
        header = {
            "name": self.name,
            "version": self.version,
            "length_ns": self._length,
            "pending_ns": self._pending,
            "start_ns": self._start,
            "arrived": self._arrived,
            "batches": self._batches,
            "active": len(self._active),
            "held": held,
        }
        return snapshot.pack(header, [])

    @classmethod
    def restore(cls, blob: bytes, decode: Callable[[Any], Any] | None = None) -> SimpleBatcher:
        """Return the batcher that `snapshot` saw.

        Args:
            blob: What `snapshot` returned.
            decode: The reverse of its `encode`.

        Raises:
            StateError: if the blob is damaged, or of another class or version.
        """
        header, _ = snapshot.unpack(blob)
        if header.get("name") != cls.name or header.get("version") != cls.version:
            raise StateError(f"snapshot was made by {header.get('name')}, wants {cls.name}")
        try:
            batcher = cls(int(header["length_ns"]))
            if header["pending_ns"] is not None:
                batcher._pending = checked_length(header["pending_ns"])
            batcher._start = None if header["start_ns"] is None else int(header["start_ns"])
            batcher._arrived, batcher._batches = int(header["arrived"]), int(header["batches"])
            entries = []
            for number, values in header["held"]:
                message = message_of_json(values, decode)
                entries.append((message.time_ns, int(number), message))
            batcher._active = entries[: header["active"]]
            batcher._parked = entries[header["active"] :]
            heapify(batcher._parked)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise StateError(f"snapshot is corrupt: {error}") from error
        return batcher

    # -- inside ---------------------------------------------------------------------------------

    def _begin(self, messages: Sequence[Message]) -> MessageBatch:
        """Make the first batch, and open the window at the newest of its messages."""
        times = [message.time_ns for message in messages]
        self._start = max(times)
        for message in messages:
            self._active.append((message.time_ns, self._arrived, message))
            self._arrived += 1
        return self._hand_over(min(times), max(times), "first")

    def _route(self, message: Message) -> None:
        """Put a message into the window, or park it if it lies at or behind the end."""
        assert self._start is not None
        entry = (message.time_ns, self._arrived, message)
        self._arrived += 1
        if message.time_ns < self._start + self._length:
            self._active.append(entry)
        else:
            heappush(self._parked, entry)

    def _reached(self, newest: int | None) -> bool:
        """Return whether traffic is near enough to the window's end to close it: see LAG_LENGTHS.

        `newest` is the newest time of the call; None, an empty call, closes what is due.
        """
        assert self._start is not None
        end = self._start + self._length
        return newest is None or newest >= end - LAG_LENGTHS * self._length

    def _step(self) -> list[MessageBatch]:
        """Close the window. An empty batch is not delivered, and its number is used again."""
        batch = self._close("timeout")
        if batch.messages:
            return [batch]
        self._batches -= 1  # not delivered, so its number is free
        return []

    def _skip(self, newest: int) -> None:
        """Past windows without messages, to the earliest parked one that traffic has reached."""
        assert self._start is not None
        if self._active or not self._parked:
            return
        target = min(self._parked[0][0], newest + (LAG_LENGTHS - 1) * self._length)
        self._move(self._start + max(0, (target - self._start) // self._length) * self._length)

    def _close(self, reason: str) -> MessageBatch:
        """Hand the window over, take a pending length, and open the next window at its end."""
        assert self._start is not None
        start, end = self._start, self._start + self._length
        batch = self._hand_over(start, end, reason)
        if self._pending is not None:
            self._length, self._pending = self._pending, None
        self._move(end)
        return batch

    def _move(self, start: int) -> None:
        """The window goes forward; what was parked for it joins it."""
        self._start = start
        while self._parked and self._parked[0][0] < start + self._length:
            self._active.append(heappop(self._parked))

    def _hand_over(self, start: int, end: int, reason: str) -> MessageBatch:
        """Make a batch of the window's messages, by time, then arrival, and empty the window."""
        heapify(self._active)
        rows = [heappop(self._active) for _ in range(len(self._active))]
        batch = MessageBatch(
            id=self._batches,
            start_ns=start,
            end_ns=end,
            reason=reason,
            messages=[message for _, _, message in rows],
            late=sum(1 for time_ns, _, _ in rows if time_ns < start),
        )
        self._batches += 1
        return batch
