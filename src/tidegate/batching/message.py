"""What goes into an in-process batcher and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Message", "MessageBatch", "StreamReport"]


@dataclass(frozen=True, slots=True)
class Message:
    """One reading of one stream. A gated stream is one whose last slot a batch waits for."""

    stream: str
    time_ns: int
    payload: Any = None
    gated: bool = False


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a batch says about one of its streams.

    `expected` and `missing` count slots and are None for a stream without a grid. `late` messages
    are from before the batch, `early` ones from behind its end. `skew_ns` is how far this stream's
    clock runs ahead of the median of the gated streams in the batch.
    """

    messages: int
    expected: int | None
    missing: int | None
    late: int
    early: int
    rate_hz: float | None
    jitter_ns: float | None
    skew_ns: int | None


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """The messages of one window, by time, then arrival, and why the window closed.

    `reason` is one of `first` (what came first opens the window), `gate` (the last slot of every
    gating stream was reached), `timeout`, `gap` and `stall` (the window had been moved by this
    recovery, by `moved_ns`), `limit` (too many messages waited), `flush`.
    `complete` says whether every gating stream reached its last slot.
    """

    id: int
    start_ns: int
    end_ns: int
    reason: str
    messages: list[Message]
    late: int = 0
    early: int = 0
    moved_ns: int = 0
    complete: bool = False
    _report: Callable[[], dict[str, StreamReport]] = field(default=dict, repr=False, compare=False)

    @property
    def streams(self) -> dict[str, StreamReport]:
        """One report per stream that had messages, or should have had."""
        return self._report()
