"""What goes into an in-process batcher, what comes out, and how both are kept in a snapshot."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import ContractError

__all__ = ["Message", "MessageBatch", "StreamReport", "message_of_json", "message_to_json"]


@dataclass(frozen=True, slots=True)
class Message:
    """One reading of one stream.

    Example:
        >>> Message("detector", 1_000_000_000, {"counts": 7}).gated
        True
    """

    stream: str
    """Name of the stream it belongs to."""
    time_ns: int
    """Event time: when it was taken, in ns since 1970."""
    payload: Any = None
    """Anything; it is handed through. A snapshot needs plain JSON values or bytes, or `encode`."""
    gated: bool = True
    """Whether batches wait for the last slot of its stream. True, as in `Batch`: a stream that
    cannot gate (a log, an alarm) holds nothing up, it only has to be learned."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a batch says about one of its streams."""

    messages: int
    """Messages of the stream in the batch."""
    expected: int | None
    """Slots of the window on the grid of the stream; None without a grid."""
    missing: int | None
    """Slots without a message; None without a grid."""
    late: int
    """Messages from before the batch."""
    early: int
    """Messages from behind its end, which rode along."""
    rate_hz: float | None
    """Measured rate; None while fewer than five messages were seen."""
    jitter_ns: float | None
    """Standard deviation of the messages around their slots; None for fewer than two."""
    skew_ns: int | None
    """How far its clock runs ahead of the median of the gated streams; None for a single one."""
    corrected_ns: int = 0
    """What `correct_skew` subtracted from its times."""
    why_not_gating: str | None = None
    """Why the stream does not gate, in words; None if it does."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """The messages of one window, by time, then arrival, and why the window closed.

    `reason` is one of `first` (what came first opens the window), `gate` (the last slot of every
    gating stream was reached), `timeout`, `gap` and `stall` (the window had been moved by this
    recovery, by `moved_ns`), `limit` (too many messages waited), `idle` (none came), `flush`.
    `complete` says whether every gating stream reached its last slot.
    """

    id: int
    """Number of the batch, from 0 on without gaps."""
    start_ns: int
    """Start of the window, in event time."""
    end_ns: int
    """End of the window; the next one starts here."""
    reason: str
    """Why it closed."""
    messages: list[Message]
    """The messages, by time, then arrival."""
    late: int = 0
    """Messages from before the window."""
    early: int = 0
    """Messages from behind its end, which rode along."""
    moved_ns: int = 0
    """How far recovery had moved the window."""
    complete: bool = False
    """Whether every gating stream reached its last slot."""
    _report: Callable[[], dict[str, StreamReport]] = field(default=dict, repr=False, compare=False)
    """Makes `streams` when they are read: most callers never do."""

    @property
    def streams(self) -> dict[str, StreamReport]:
        """One report per stream that had messages, or should have had."""
        return self._report()


def message_to_json(message: Message, encode: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return a message as a list of JSON values: stream, time, gated, payload.

    Args:
        message: The message.
        encode: Makes a JSON value or bytes of a payload. None: the payload is one already.

    Raises:
        ContractError: if the payload is neither JSON nor bytes.

    Example:
        >>> message_to_json(Message("log", 5, "text"))
        ['log', 5, True, {'j': 'text'}]
    """
    payload = encode(message.payload) if encode else message.payload
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return [message.stream, message.time_ns, message.gated, {"b": b64encode(payload).decode()}]
    try:
        json.dumps(payload)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"a payload of type {type(payload).__name__} is no JSON value: pass encode= and decode="
        ) from error
    return [message.stream, message.time_ns, message.gated, {"j": payload}]


def message_of_json(values: list[Any], decode: Callable[[Any], Any] | None = None) -> Message:
    """Return the message that `message_to_json` was given.

    Args:
        values: What it returned, read from a snapshot.
        decode: The reverse of `encode`. None: the payload is taken as stored.

    Raises:
        ValueError, TypeError, KeyError: if `values` is no message; the caller turns these into a
            StateError.
    """
    stream, time_ns, gated, wrapped = values
    if not (isinstance(stream, str) and isinstance(time_ns, int) and isinstance(gated, bool)):
        raise ValueError("a message is not one")
    payload = b64decode(wrapped["b"]) if "b" in wrapped else wrapped["j"]
    return Message(stream, time_ns, decode(payload) if decode else payload, gated)
