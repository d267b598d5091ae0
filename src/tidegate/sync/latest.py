"""Latest time: a set at every message of one topic, with the newest message of each other one.

The other searches use a message once. Here the messages of slow topics are repeated (a zero-order
hold), so that every message of the pivot has a set: a control loop at 100 Hz with the camera image
it last saw. Nothing waits: at most one message per topic is kept.

Clock policy: event time only, taken from the stamps. "Newest" goes by stamp, after offsets, never
by arrival: a message that comes after a newer one of its topic leaves at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock, get_ident
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from tidegate.core import snapshot
from tidegate.core.state import Layout, State
from tidegate.core.time import UNSET, Duration
from tidegate.errors import ConfigError, ContractError, StateError
from tidegate.sync.in_process import Stamp, dump_payload, load_payload, stamp_of
from tidegate.sync.lane import LeaveReason
from tidegate.sync.results import SyncResult, SyncSet, Unmatched
from tidegate.sync.settings import PerTopic, SyncSettings

__all__ = ["LatestTime"]

_REASONS = tuple(reason.name.lower() for reason in LeaveReason)[: LeaveReason.CLOCK_JUMP]


class Newest(NamedTuple):
    """The newest message of a topic."""

    time_ns: int
    """Its stamp, as it was delivered."""
    row: int
    """Its running number."""
    payload: Any
    """As it was pushed."""
    used: bool
    """Whether it was in a set."""


class LatestTime:
    """A set at every message of `pivot`, with the newest message of every other topic.

    Messages of other topics are repeated in as many sets as there are messages of the pivot before
    a newer one comes; a message of the pivot is in one set. What leaves without a set says why: a
    message of the pivot before every topic has come is `unproven`, one whose set would be wider
    than `max_interval` is `too_old`; of other topics, a message is `superseded` by a newer one,
    and `too_old` if a newer one is there already.

    The same idea as message_filters' LatestTime policy, but the pivot is named instead of measured
    by the wall clock, so that the outcome depends on the messages alone.

    Args:
        topics: the topics of a set, in its order: 2 to 4096 different names.
        pivot: the topic whose messages make sets, usually the fastest. None: the first topic.
        max_interval: sets wider than this are not formed; one exactly as wide is. None: any width,
            so a topic that has fallen silent is repeated for ever.
        offsets: added to the stamps of a topic for every decision; may be negative.
        on_set: called with every set, after `push` decided it.
        on_unmatched: called with every message that leaves without a set.

    Raises:
        ConfigError: for a bad value; it names the setting, the value and what it should be.

    Example:
        >>> sync = LatestTime(["imu", "camera"])
        >>> sync.push("camera", 0, "c0"), [s.payloads for s in sync.push("imu", 10, "i1")]
        ([], [('i1', 'c0')])
        >>> [s.payloads for s in sync.push("imu", 20, "i2")]
        [('i2', 'c0')]
    """

    version = 1

    def __init__(
        self,
        topics: Iterable[str],
        *,
        pivot: str | None = None,
        max_interval: Duration | None = None,
        offsets: PerTopic = (),
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
    ) -> None:
        self.settings = SyncSettings(
            topics,  # type: ignore[arg-type]  # any iterable; it is checked there
            queue_size=1,
            max_interval=max_interval,
            offsets=offsets,
        )
        names = self.settings.topics
        if pivot is not None and pivot not in names:
            raise ConfigError("pivot", pivot, f"must be one of {', '.join(names)}")
        self.pivot = names[0] if pivot is None else pivot
        self._pivot = names.index(self.pivot)
        self._number = {name: number for number, name in enumerate(names)}
        offset: Any = self.settings.offsets
        self._offsets: tuple[int, ...] = tuple(int(each) for each in offset) or (0,) * len(names)
        self._newest: list[Newest | None] = [None] * len(names)
        self._counts = [dict.fromkeys(("received", "matched", *_REASONS), 0) for _ in names]
        self._seen = 0
        self._on_set, self._on_unmatched = on_set, on_unmatched
        self._lock = Lock()
        self._left: dict[int, list[Unmatched]] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, in the order of a set's members."""
        return self.settings.topics

    def push(self, topic: str, time_ns: Stamp, payload: Any = None) -> list[SyncSet]:
        """Hand over one message.

        Args:
            topic: one of `topics`.
            time_ns: its stamp: see `Stamp`. Floats are refused.
            payload: anything; it comes back in every set of the message, or in `unmatched`.

        Returns:
            The set of this message, if it is one of the pivot and has a set; else nothing. What
            left without a set is in `unmatched`.

        Raises:
            ContractError: no such topic, or no such time. Nothing has changed then.
        """
        number = self._number.get(topic)
        if number is None:
            known = ", ".join(self.settings.topics)
            raise ContractError(f"push: no topic {topic!r}; the topics are {known}")
        stamp = stamp_of(time_ns)
        with self._lock:
            made, left = self._take(number, stamp, payload)
            self._left[get_ident()] = left
        if self._on_set is not None:
            for one in made:
                self._on_set(one)
        if self._on_unmatched is not None:
            for gone in left:
                self._on_unmatched(gone)
        return made

    @property
    def unmatched(self) -> list[Unmatched]:
        """What left without a set in the last `push` or `flush` of the calling thread, and why."""
        return self._left.get(get_ident(), [])

    def process(self, topic_index: ArrayLike, time_ns: ArrayLike) -> SyncResult:
        """Hand over many messages, in arrival order. Callbacks are not called.

        Args:
            topic_index: the index of each message's topic in `topics`.
            time_ns: its stamp, int64 nanoseconds or datetime64.

        Returns:
            Everything these messages decide, as columns. Row numbers count all messages since the
            start, so any cuts give the same result.

        Raises:
            ContractError: arrays of different length, indices out of range, float times.

        >>> LatestTime(["a", "b"]).process([1, 0, 0], [1, 2, 9]).rows.tolist()
        [[1, 0], [2, 0]]
        """
        times = np.asarray(time_ns)
        if times.dtype.kind == "M":
            times = times.astype("datetime64[ns]").astype(np.int64)
        elif times.dtype.kind == "f" and times.size:
            raise ContractError("process: times are floats; give int64 nanoseconds")
        topics, times = np.asarray(topic_index, np.int64), np.asarray(times, np.int64)
        n = len(self.topics)
        if topics.ndim != 1 or topics.shape != times.shape:
            raise ContractError(
                f"process: topics have the shape {topics.shape}, times {times.shape}; give two "
                "arrays of the same length"
            )
        if len(topics) and not (topics.min() >= 0 and topics.max() < n and times.min() > UNSET):
            raise ContractError(f"process: topics must be 0 to {n - 1}, and every time set")
        sets: list[SyncSet] = []
        gone: list[Unmatched] = []
        with self._lock:
            for number, stamp in zip(topics.tolist(), times.tolist(), strict=True):
                made, left = self._take(number, stamp, None)
                sets += made
                gone += left
        return self._result(sets, gone)

    def tick(self, now: Stamp) -> list[SyncSet]:
        """Say what time it is. Sets are made by messages of the pivot alone: this returns nothing,
        and is here because all in-process classes have it."""
        stamp_of(now, "tick")
        return []

    def advance(self, watermark: Stamp) -> list[SyncSet]:
        """Say that no message at or before `watermark` will come. As `tick`."""
        return self.tick(watermark)

    def flush(self) -> list[SyncSet]:
        """Say that nothing more comes.

        Returns:
            No set: a message of the pivot is decided when it comes. Messages that were in no set
            are in `unmatched`. The synchroniser is then empty and may be used again.
        """
        with self._lock:
            left = []
            for number, kept in enumerate(self._newest):
                if kept is not None and not kept.used:
                    left.append(self._leaves(number, kept, LeaveReason.FLUSH, -1, 0))
            self._newest = [None] * len(self.topics)
            self._left[get_ident()] = left
        if self._on_unmatched is not None:
            for gone in left:
                self._on_unmatched(gone)
        return []

    @property
    def held(self) -> dict[str, int]:
        """How many messages of each topic are kept: one, or none yet."""
        with self._lock:
            kept = [int(newest is not None) for newest in self._newest]
        return dict(zip(self.topics, kept, strict=True))

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Per topic: received, matched (each message once), and one count per reason for
        leaving."""
        with self._lock:
            return {name: dict(of) for name, of in zip(self.topics, self._counts, strict=True)}

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot(self, dump: Callable[[Any], bytes] | None = None) -> bytes:
        """State, settings and payloads as bytes.

        Args:
            dump: makes bytes of a payload. Needed for payloads other than bool, int, float, str,
                bytes and None.

        Raises:
            ContractError: a payload of another type, and no `dump`.
        """
        with self._lock:
            kept = [
                None
                if one is None
                else [
                    one.time_ns,
                    one.row,
                    one.used,
                    None if one.payload is None else dump_payload(one.payload, dump),
                ]
                for one in self._newest
            ]
            extra = {"newest": kept, "seen": self._seen, "counts": self._counts}
            return snapshot.encode([(self._identity(), State(Layout()))], extra)

    @classmethod
    def restore(
        cls,
        blob: bytes,
        load: Callable[[bytes], Any] | None = None,
        *,
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
    ) -> Self:
        """The synchroniser that `snapshot` saw, settings and payloads included, callbacks not.

        Args:
            blob: what `snapshot` returned.
            load: the reverse of `dump`.
            on_set: as in the constructor.
            on_unmatched: as in the constructor.

        Raises:
            StateError: the snapshot is damaged, of another class, or of a newer version.
        """
        header, _ = snapshot.unpack(blob)
        try:
            stage = header["stages"][0]
            name, config = stage["name"], dict(stage["config"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StateError("snapshot is corrupt: it names no synchroniser") from error
        if name != cls.__name__:
            raise StateError(f"snapshot is of {name}, not of {cls.__name__}")
        try:
            made = cls(**config, on_set=on_set, on_unmatched=on_unmatched)
        except (ConfigError, TypeError) as error:
            raise StateError(f"snapshot is corrupt: its settings are not ours ({error})") from error
        _, extra = snapshot.decode(blob, [(made._identity(), Layout())])
        try:
            made._seen = int(extra["seen"])
            kept = list(extra["newest"])
            for counts, found in zip(made._counts, extra["counts"], strict=True):
                counts.update({reason: int(found[reason]) for reason in counts})
            if len(kept) != len(made.topics):
                raise ValueError("another number of topics")
            for number, one in enumerate(kept):
                if one is not None:
                    time_ns, row, used, payload = one
                    value = None
                    if payload is not None:
                        how, kept_as = payload
                        value = load_payload(how, kept_as, load)
                    made._newest[number] = Newest(stamp_of(time_ns), int(row), value, bool(used))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"snapshot is corrupt: {error}") from error
        return made

    # -- inside ---------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Return what a snapshot must agree with to be restored: class, version and settings."""
        config = {
            "topics": list(self.topics),
            "pivot": self.pivot,
            "max_interval": self.settings.max_interval,
            "offsets": list(self._offsets),
        }
        return {"name": type(self).__name__, "version": self.version, "config": config}

    def _take(self, number: int, stamp: int, payload: Any) -> tuple[list[SyncSet], list[Unmatched]]:
        """Handle one message. Returns its set, if it has one, and what leaves without."""
        row, self._seen = self._seen, self._seen + 1
        self._counts[number]["received"] += 1
        message = Newest(stamp, row, payload, False)
        before = self._newest[number]
        if before is not None and stamp < before.time_ns:
            # A set with it would lie before the one that left already.
            return [], [self._leaves(number, message, LeaveReason.TOO_OLD, row, 0)]
        left = []
        if before is not None and not before.used:
            left.append(self._leaves(number, before, LeaveReason.SUPERSEDED, row, 0))
        if number != self._pivot:
            self._newest[number] = message
            return [], left
        self._newest[number] = message._replace(used=True)  # as old as later ones are judged by
        members = [message if n == number else kept for n, kept in enumerate(self._newest)]
        if any(member is None for member in members):
            return [], [*left, self._leaves(number, message, LeaveReason.UNPROVEN, row, 0)]
        found: list[Newest] = [member for member in members if member is not None]
        times = [one.time_ns + by for one, by in zip(found, self._offsets, strict=True)]
        spread = max(times) - min(times)
        widest: Any = self.settings.max_interval
        if widest is not None and spread > widest:
            return [], [*left, self._leaves(number, message, LeaveReason.TOO_OLD, row, spread)]
        for n, one in enumerate(found):
            if n == number or not one.used:
                self._counts[n]["matched"] += 1
            self._newest[n] = one._replace(used=True)
        made = SyncSet(
            tuple(one.time_ns for one in found),
            tuple(one.payload for one in found),
            tuple(one.row for one in found),
            spread,
            row,
            stamp,
            max(0, times[number] - max(times)),
            self._offsets,
        )
        return [made], left

    def _leaves(
        self, number: int, message: Newest, reason: LeaveReason, at: int, by_ns: int
    ) -> Unmatched:
        """Count a message that leaves without a set, and return it as users see it."""
        why = _REASONS[reason]
        self._counts[number][why] += 1
        name, (time_ns, row, payload, _) = self.topics[number], message
        return Unmatched(name, time_ns, payload, row, why, at, by_ns)

    def _result(self, sets: list[SyncSet], gone: list[Unmatched]) -> SyncResult:
        """Return sets and what left without as columns."""
        n = len(self.topics)

        def column(values: Iterable[int]) -> Any:
            return np.fromiter(values, np.int64)

        return SyncResult(
            self.topics,
            column(row for one in sets for row in one.rows if row is not None).reshape(-1, n),
            column(t for one in sets for t in one.times_ns if t is not None).reshape(-1, n),
            column(one.decided_at for one in sets),
            column(one.spread_ns for one in sets),
            column(one.time_ns for one in sets),
            column(one.decided_at_ns for one in sets),
            column(one.delay_ns for one in sets),
            column(one.row for one in gone),
            column(self._number[one.topic] for one in gone),
            column(one.time_ns for one in gone),
            column(_REASONS.index(one.reason) for one in gone),
            column(one.decided_at for one in gone),
            np.empty((0, 3), np.int64),
            _REASONS,
            np.array(self._offsets, np.int64),
        )
