"""Batches that close when the last expected pulse of every gated stream is in.

Clock policy: event time decides what belongs together and when a batch is complete. The wall clock
is read only through the `clock` that was passed in, once per call, and serves the stall check
alone.

`poll` looks at the window once per call and gives at most one batch, as the recorded batcher did.
`process` looks at it after every message and gives every batch that is due, so how messages are cut
into calls does not matter.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from tidegate.batching.held import HeldRows, change_length, kernel_call
from tidegate.batching.layout import (
    MAX_CHANGES,
    NEVER,
    ROW,
    KernelCall,
    Records,
    check_state_values,
    lane_records,
    state_columns,
    stream_records,
)
from tidegate.batching.message import (
    Message,
    MessageBatch,
    StreamReport,
    message_of_json,
    message_to_json,
)
from tidegate.batching.report import REASONS, BatchDecision, why_not_gating
from tidegate.batching.settings import (
    MAX_ROWS,
    MAX_STREAMS,
    RATES,
    checked_length,
    checked_timeout,
    digest,
)
from tidegate.core import checks, snapshot
from tidegate.core.state import Layout, State
from tidegate.core.time import Duration
from tidegate.errors import ConfigError, ContractError, StateError

__all__ = ["RateAwareBatcher"]

_stream = attrgetter("stream")
_time = attrgetter("time_ns")
_gated = attrgetter("gated")
_LANE = np.zeros(1, np.int64)


class _NameCodes(dict[str, int]):
    """Codes of stream names as they come up: an even one, and the next for a gated message."""

    def __init__(self) -> None:
        self.digests = np.empty(16, np.int64)
        self.gated = np.tile(np.array([False, True]), 8)
        self.by_digest: dict[int, str] = {}

    def __missing__(self, name: str) -> int:
        code = 2 * len(self)
        if code == len(self.digests):
            self.digests = np.concatenate([self.digests, np.empty(code, np.int64)])
            self.gated = np.tile(self.gated, 2)
        self.digests[code : code + 2] = digest(name)
        self.by_digest[int(self.digests[code])] = name
        self[name] = code
        return code


class RateAwareBatcher:
    """Groups the messages of many streams into batches of about `batch_length`.

    A batch closes when the last expected message of every gated stream is in; see `Batch` for what
    a stream needs to gate.

    Args:
        batch_length: Length of a batch in event time: ns, text such as "200 ms", or a timedelta.
        timeout: Batch lengths after the start of a window at which it closes without its gate, in
            event time; above 0 and at most 3, or infinite for gates only. The default lets a
            message be a fifth of a batch late.
        clock: A function that returns wall time in ns. Without one there is neither a stall check
            nor `idle_close`, unless `tick` is given the time.
        max_streams: Streams that are measured, at most 4096; further ones ride along.
        max_rows: Messages that may wait; one more closes the window with the reason `limit`.
        rates: `"whole"`: a grid needs a whole number of Hz. `"any"`: 29.97, 2.5, 1.5 Hz and
            drifting clocks gate too; the slots of a batch then vary by one.
        correct_skew: Subtract the measured clock offset of each stream before batching.
        idle_close: Wall time without a message after which everything that waits leaves. None: a
            quiet tail waits for traffic or `flush`.

    Raises:
        ConfigError: for a value out of range; it names the setting, the value and the fix.

    Example:
        >>> batcher = RateAwareBatcher("1 s")
        >>> pulse = 71_428_571  # 14 Hz
        >>> batches = batcher.process([Message("det", n * pulse) for n in range(71)])
        >>> [(b.reason, len(b.messages)) for b in batches]
        [('first', 1), ('timeout', 14), ('gate', 13), ('gate', 14), ('gate', 14), ('gate', 14)]
        >>> batches[-1].streams["det"].expected, batches[-1].streams["det"].missing
        (14, 0)
        >>> [(b.reason, len(b.messages)) for b in batcher.flush()]
        [('flush', 1)]
    """

    name = "rate_aware_batcher"
    version = 2

    def __init__(
        self,
        batch_length: Duration = "1 s",
        timeout: float = 1.2,
        clock: Callable[[], int] | None = None,
        *,
        max_streams: int = 64,
        max_rows: int = 1_000_000,
        rates: str = "whole",
        correct_skew: bool = False,
        idle_close: Duration | None = None,
    ) -> None:
        self._length = checked_length(batch_length)
        self._timeout = checked_timeout(timeout)
        self._clock = clock
        self._max_streams = checks.int_in("max_streams", max_streams, 1, MAX_STREAMS)
        self._max_rows = checks.int_in("max_rows", max_rows, 1, MAX_ROWS)
        self._rates = checks.one_of("rates", rates, RATES)
        self._correct_skew = checks.boolean("correct_skew", correct_skew)
        idle = None if idle_close is None else checks.duration("idle_close", idle_close, 1)
        self._idle_close = idle
        self._names = _NameCodes()
        self._start_anew(self._length, 0)

    # -- messages -------------------------------------------------------------------------------

    def poll(self, messages: Sequence[Message] = ()) -> MessageBatch | None:
        """Look at these messages together, as the recorded batcher does.

        Args:
            messages: In order of arrival; may be empty.

        Returns:
            One batch, or None. A further batch that is due already comes out of the next call,
            which may bring no messages.
        """
        call = self._call(messages, patient=False)
        batches = self._take(self._held.add_as_one_call(self._state, call))
        return batches[0] if batches else None

    def process(self, messages: Sequence[Message]) -> list[MessageBatch]:
        """Return every batch that is due after these messages, looked at one at a time.

        Args:
            messages: In order of arrival. How they are cut into calls does not matter, as long as
                `clock` does not say that the batcher stalls in between.
        """
        return self._take(self._held.add_and_run(self._state, self._call(messages)))

    def push(self, message: Message) -> list[MessageBatch]:
        """`process` of a single message."""
        return self.process((message,))

    def advance(self, watermark_ns: int) -> list[MessageBatch]:
        """No message at or before `watermark_ns` will come any more. Batches are closed by messages
        and by `tick`, not by watermarks: this returns nothing, and is here because all in-process
        classes have it."""
        return []

    def tick(self, wall_ns: int | None = None) -> list[MessageBatch]:
        """Return what is due by the wall clock alone: the stall check, and `idle_close`.

        Args:
            wall_ns: The time now, in ns; None: what `clock` says. Use one clock throughout: times
                of two are compared with each other.
        """
        call = self._call((), wall_ns=wall_ns)
        return self._take(self._held.settle(self._state, call, _LANE, everything=False))

    def flush(self) -> list[MessageBatch]:
        """Return everything that still waits, window by window.

        The next message starts anew: rates are learned again, only the length and the numbering of
        batches go on.
        """
        call = self._call(())
        batches = self._take(self._held.settle(self._state, call, _LANE, everything=True))
        lane = self._lane
        self._start_anew(int(lane["length"]), int(lane["batches"]))
        return batches

    # -- settings -------------------------------------------------------------------------------

    @property
    def batch_length_ns(self) -> int:
        """The length of the window that stands now."""
        return int(self._lane["length"])

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Start and end of the window, or None before the first message."""
        lane = self._lane
        if not lane["open"]:
            return None
        return int(lane["start"]), int(lane["start"] + lane["length"])

    @property
    def waiting(self) -> int:
        """Messages that have come and not left."""
        return int(self._lane["rows"])

    def set_batch_length(
        self, batch_length: Duration, time_ns: int | None = None
    ) -> list[MessageBatch]:
        """Set a new length for windows from `time_ns` on. Grids keep their origin.

        Args:
            batch_length: As in the constructor.
            time_ns: It applies to the first window that starts here or later, also if that is
                open; None: at the next close. Of several for the same time the last counts.

        Returns:
            The batches that are due because a window became shorter.

        Raises:
            ConfigError: if it is no duration, or longer than a day.
            ContractError: if eight changes wait for their time already.
        """
        length = checked_length(batch_length)
        if change_length(self._state, _LANE, length, time_ns) == 0:
            raise ContractError(f"more than {MAX_CHANGES} new batch lengths wait for their time")
        if time_ns is None:
            return []
        call = self._call((), wall_ns=int(self._lane["arrived_at"]))
        return self._take(self._held.change_windows(self._state, call, _LANE))

    def set_timeout(self, timeout: float) -> None:
        """Set the timeout, in batch lengths from the window's start. Applies to the open window
        too.

        Nothing leaves by this call; the next message or `tick` judges the window by it.

        Raises:
            ConfigError: unless it is above 0 and at most 3, or infinite.
        """
        self._timeout = checked_timeout(timeout)
        lane = self._lane
        infinite = np.isinf(self._timeout)
        lane["timeout"] = NEVER if infinite else round(self._timeout * int(lane["length"]))

    # -- snapshot -------------------------------------------------------------------------------

    def snapshot(self, encode: Callable[[Any], Any] | None = None) -> bytes:
        """Return everything as bytes, messages that wait included; `clock` is not part of it.

        Args:
            encode: Makes a JSON value or bytes of a payload that is neither.

        Raises:
            ContractError: if a payload is neither and there is no `encode`.
        """
        self._compact()
        held = [message_to_json(message, encode) for message in self._messages]
        extra = {
            "timeout": repr(self._timeout),
            "names": list(self._names),
            "held": held,
            "rows": b64encode(np.ascontiguousarray(self._held.rows).tobytes()).decode(),
        }
        return snapshot.encode([(self._identity(), self._state)], extra)

    @classmethod
    def restore(
        cls,
        blob: bytes,
        clock: Callable[[], int] | None = None,
        decode: Callable[[Any], Any] | None = None,
    ) -> RateAwareBatcher:
        """Return the batcher that `snapshot` saw, settings included.

        Args:
            blob: What `snapshot` returned.
            clock: As in the constructor.
            decode: The reverse of `encode`.

        Raises:
            StateError: if the blob is damaged, or of another class or version.
        """
        header, _ = snapshot.unpack(blob)
        stages = header.get("stages") or [{}]
        config = stages[0].get("config", {})
        if stages[0].get("name") != cls.name or "max_streams" not in config:
            raise StateError(f"snapshot was made by {stages[0].get('name')}, wants {cls.name}")
        try:
            batcher = cls(
                config["length_ns"],
                clock=clock,
                max_streams=config["max_streams"],
                max_rows=config["max_rows"],
                rates=config["rates"],
                correct_skew=config["correct_skew"],
                idle_close=config["idle_close_ns"],
            )
        except (KeyError, ConfigError) as error:
            raise StateError(
                f"snapshot is corrupt: its settings are unreadable ({error})"
            ) from error
        layout = Layout(state_columns(batcher._max_streams))
        (state,), extra = snapshot.decode(blob, [(batcher._identity(), layout)])
        try:
            batcher._timeout = checked_timeout(float(extra["timeout"]))
            for name in extra["names"]:
                batcher._names[name]
            rows: Records = np.frombuffer(b64decode(extra["rows"]), ROW).copy()
            messages = [message_of_json(values, decode) for values in extra["held"]]
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise StateError(f"snapshot is corrupt: {error}") from error
        check_state_values(state, rows)
        if len(rows) != len(messages) or not batcher._knows(state):
            raise StateError("snapshot is corrupt: messages or names are missing")
        batcher._state, batcher._messages = state, messages
        batcher._held = HeldRows(state, rows)
        return batcher

    def _knows(self, state: State) -> bool:
        """Whether the names of all streams in the state are known."""
        used = int(lane_records(state)["streams"][0])
        return set(stream_records(state)["name"][0, :used].tolist()) <= set(self._names.by_digest)

    def _identity(self) -> dict[str, Any]:
        """Return what a snapshot must agree with to be restored: class, version and settings.

        The timeout is not among them: it may change while the batcher runs.
        """
        config = {
            "length_ns": self._length,
            "max_streams": self._max_streams,
            "max_rows": self._max_rows,
            "rates": self._rates,
            "correct_skew": self._correct_skew,
            "idle_close_ns": self._idle_close,
        }
        return {"name": self.name, "version": self.version, "config": config}

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _lane(self) -> Any:
        """The record of the only lane, which shares the memory of the state."""
        return lane_records(self._state)[0]

    def _start_anew(self, length_ns: int, batches: int) -> None:
        """Begin with an empty state: nothing waits, no stream is known, the next batch has this
        number."""
        self._state = State(Layout(state_columns(self._max_streams)))
        lane = self._lane
        lane["length"], lane["batches"] = length_ns, batches
        self._held = HeldRows(self._state)
        self._messages: list[Message] = []  # by row number; rows that left stay until compacted

    def _call(
        self, messages: Sequence[Message], *, patient: bool = True, wall_ns: int | None = None
    ) -> KernelCall:
        """The messages as columns. Each gets the next row number."""
        if wall_ns is None:
            wall_ns = 0 if self._clock is None else int(self._clock())
        n = len(messages)
        codes = np.fromiter(map(self._names.__getitem__, map(_stream, messages)), np.int32, n)
        codes += np.fromiter(map(_gated, messages), np.bool_, n)
        self._messages += messages
        return kernel_call(
            length_ns=self._length,
            timeout=self._timeout,
            max_rows=self._max_rows,
            wall_ns=wall_ns,
            idle_ns=self._idle_close,
            any_rate=self._rates == "any",
            correct_skew=self._correct_skew,
            lane=np.zeros(n, np.int32),
            time_ns=np.fromiter(map(_time, messages), np.int64, n),
            code=codes,
            digests=self._names.digests,
            gated=self._names.gated,
            patient=patient,
        )

    def _compact(self) -> None:
        """Renumber the rows that wait, and the messages with them."""
        messages = self._messages
        self._messages = [messages[i] for i in self._held.compact().tolist()]

    def _take(self, decision: BatchDecision) -> list[MessageBatch]:
        """Make batches of what the kernel decided, and give memory back if most rows have left."""
        if not len(decision.batches):
            return []
        messages = self._messages
        leaving = [messages[i] for i in decision.order.tolist()]
        if self._held.is_sparse(self.waiting):
            self._compact()
        return [
            MessageBatch(
                id=int(batch["id"]),
                start_ns=int(batch["start"]),
                end_ns=int(batch["end"]),
                reason=REASONS[batch["reason"]],
                messages=leaving[batch["first"] : batch["first"] + batch["rows"]],
                late=int(batch["late"]),
                early=int(batch["early"]),
                moved_ns=int(batch["moved"]),
                complete=bool(batch["complete"]),
                _report=partial(
                    _stream_reports,
                    self._names.by_digest,
                    decision.parts[batch["part"] : batch["part"] + batch["parts"]],
                ),
            )
            for batch in decision.batches
        ]


def _stream_reports(names: dict[int, str], parts: Records) -> dict[str, StreamReport]:
    """Make the `streams` of a batch from its PART records: one report per stream name."""
    out = {}
    for part in parts:
        has_grid = part["expected"] >= 0
        out[names[int(part["name"])]] = StreamReport(
            messages=int(part["rows"]),
            expected=int(part["expected"]) if has_grid else None,
            missing=int(part["missing"]) if has_grid else None,
            late=int(part["late"]),
            early=int(part["early"]),
            rate_hz=None if np.isnan(part["rate"]) else float(part["rate"]),
            jitter_ns=None if np.isnan(part["jitter"]) else float(part["jitter"]),
            skew_ns=int(part["skew"]) if part["skew_known"] else None,
            corrected_ns=int(part["corrected"]),
            why_not_gating=why_not_gating(int(part["gate"]), float(part["rate"])),
        )
    return out
