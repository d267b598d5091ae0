"""Synchronisers for one key, in process: `push` one message, or `process` arrays of them.

Every method may be called from several threads: a lock makes calls take turns. Callbacks are called
after the lock was released, by the thread whose call decided, so a callback may itself push.

Clock policy: event time only, taken from the stamps. No method reads a clock; `tick` tells it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import fields
from datetime import UTC, datetime
from struct import Struct
from threading import Lock, get_ident
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from tidegate.core import snapshot
from tidegate.core.numba import as_readonly, entry_point
from tidegate.core.state import State
from tidegate.core.time import MAX_NS, MIN_NS, UNSET, Duration
from tidegate.errors import ConfigError, ContractError, StateError
from tidegate.sync.diagnosis import counters_of, diagnose
from tidegate.sync.lane import (
    COUNT,
    DROP,
    PARTS,
    RULES,
    SET,
    TOPIC_RULES,
    Arrivals,
    LaneArrays,
    LeaveReason,
    Output,
    as_int64,
)
from tidegate.sync.matchers import APPROXIMATE, EXACT, Decided, Matcher
from tidegate.sync.results import ClockJump, Diagnosis, SyncResult, SyncSet, Unmatched
from tidegate.sync.settings import PerTopic, SyncSettings, check_epsilon

__all__ = [
    "ApproximateTime",
    "EpsilonTime",
    "ExactTime",
    "Stamp",
    "dump_payload",
    "load_payload",
    "stamp_of",
]

Stamp = int | datetime | Any
"""A time: int nanoseconds since the epoch, a datetime with a time zone, numpy's datetime64, or an
object like a ROS stamp: with `sec` and `nanosec`, `secs` and `nsecs`, or `nanoseconds`."""

_CHUNK = 1 << 16
"""Messages per kernel call: what a call needs beside them stays within the processor's cache. Fewer
pay the call too often, more spill; between 2**14 and 2**18 there is no difference to measure."""

_REASONS = tuple(reason.name.lower() for reason in LeaveReason)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stamp_of(value: Stamp, what: str = "push") -> int:
    """A stamp of any kind (`Stamp`) as int nanoseconds since the epoch.

    Args:
        value: the stamp.
        what: for the error message, which call was given it.

    Raises:
        ContractError: a float (it cannot hold nanoseconds of today), a datetime without a time
            zone, or anything that is no stamp or out of the range of 64 bits.

    >>> stamp_of(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000000
    >>> stamp_of(1.5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tidegate.errors.ContractError: push: 1.5 is a float, which cannot hold a time ...
    """
    if isinstance(value, (float, np.floating)):
        raise ContractError(
            f"{what}: {value} is a float, which cannot hold a time to the nanosecond; give int "
            f"nanoseconds, such as round({value} * 10**9) for seconds"
        )
    stamp: Any = None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ContractError(
                f"{what}: {value} has no time zone, so it is not a time; use replace(tzinfo=...)"
            )
        since = value - _EPOCH
        stamp = (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000
    elif isinstance(value, np.datetime64):
        stamp = int(value.astype("datetime64[ns]").astype(np.int64))
    elif isinstance(value, bool):
        pass
    elif hasattr(value, "__index__"):
        stamp = value.__index__()
    else:
        for seconds, rest in (("sec", "nanosec"), ("secs", "nsecs")):
            if hasattr(value, seconds) and hasattr(value, rest):
                stamp = int(getattr(value, seconds)) * 10**9 + int(getattr(value, rest))
        if stamp is None and isinstance(getattr(value, "nanoseconds", None), int):
            stamp = getattr(value, "nanoseconds", None)
    if stamp is None:
        raise ContractError(
            f"{what}: {value!r} is not a time; give int nanoseconds, a datetime with a time zone, "
            "or a ROS stamp"
        )
    if not MIN_NS <= stamp <= MAX_NS:
        raise ContractError(f"{what}: {value} is not a time in 64-bit nanoseconds")
    return int(stamp)


class _InProcessSynchronizer:
    """The interface both policies share.

    Messages are known by their running number (`row`), counted from 0 over the whole life.
    Payloads are kept by that number until the message leaves; one that is None is not kept at all.

    Args:
        settings: The checked settings.
        on_set: Called with every set; None for not at all.
        on_unmatched: Called with every message that leaves without a set.
        on_clock_jump: Called with every jump of a clock.
        state: A restored state; None: an empty one.
    """

    matcher: ClassVar[Matcher]
    version: ClassVar[int] = 2
    greedy: ClassVar[bool] = False
    """Whether candidates are published as they stand (`EpsilonTime`)."""

    def __init__(
        self,
        settings: SyncSettings,
        on_set: Callable[[SyncSet], object] | None,
        on_unmatched: Callable[[Unmatched], object] | None,
        on_clock_jump: Callable[[ClockJump], object] | None,
        state: State | None = None,
    ) -> None:
        settings.rules["greedy"] = self.greedy
        self.settings = settings
        self._on_set, self._on_unmatched, self._on_clock_jump = on_set, on_unmatched, on_clock_jump
        self._observed = (on_set, on_unmatched, on_clock_jump) != (None, None, None)
        self._lock = Lock()
        self._number = {name: number for number, name in enumerate(settings.topics)}
        self._payloads: dict[int, Any] = {}
        self._left: dict[int, tuple[list[Unmatched], list[ClockJump]]] = {}
        # What `push` needs every time: looking it up one by one is a twelfth of a call.
        lock = self._lock
        self._for_push = self._number, self._payloads, self._left, lock.acquire, lock.release
        # What `push_one` returns for one set and no drop, where all members are there.
        self._one_set = -1 if settings.optional else 1
        self._attach(state or State(self.matcher.layout(settings, rows=True)))

    def _attach(self, state: State) -> None:
        """Lay state and buffers into one array, and make the views of it that the kernels use.

        `push_one` gets this array by its address, because handing over ten arrays takes longer
        than the search. The array begins with the address of each part (`lane.PARTS`). The arrays
        of `state` are replaced by views of it, so that a snapshot sees what the kernel writes.
        """
        n = len(self.settings.topics)
        out = self.matcher.output(self.settings, n * self.settings.ring, 1)
        kept = [
            as_int64(self.settings.rules),
            as_int64(self.settings.topic_rules),
            *(state[name] for name in ("search", "topics", "stamps", "rows")),
        ]
        parts = [*kept, *(as_int64(b) for b in (out.count, out.sets)), out.members, out.times]
        parts += [as_int64(out.drops), np.zeros(2 * n + 4, np.int64)]
        ends = np.cumsum([PARTS, *(part.size for part in parts)])
        self._memory = np.empty(ends[-1], np.int64)
        self._address = self._memory.ctypes.data
        self._memory[:PARTS] = self._address + 8 * ends[:-1]
        views = [
            self._memory[a:b].reshape(part.shape)
            for a, b, part in zip(ends, ends[1:], parts, strict=False)
        ]
        for view, part in zip(views, kept, strict=False):
            view[...] = part
        for name, view in zip(("search", "topics", "stamps", "rows"), views[2:6], strict=True):
            state.arrays[name] = view
        self._state = state
        self._arrays = LaneArrays(
            views[0].view(RULES)[:, 0],
            views[1].view(TOPIC_RULES)[:, 0],
            self.matcher.searches(state),
            self.matcher.topics(state),
            views[4],
            views[5],
        )
        self._out = Output(
            views[7].view(SET)[:, 0],
            views[8],
            views[9],
            views[10].view(DROP)[:, 0],
            views[6].view(COUNT)[:, 0],
        )
        # The first set of a call without building arrays for it: mostly there is just one.
        self._unpack = Struct(f"{2 * n + 4}q").unpack_from
        self._first = memoryview(self._memory.data)[ends[11] :].cast("B")
        self._topic_count = n
        self._no_payloads = (None,) * n
        self._seen = int(self._arrays.search[0]["seen"])
        self._push_one: Callable[[int, int, int], int] = self._first_push

    def _first_push(self, address: int, number: int, time_ns: int) -> int:
        """`Matcher.push_one` until the first call: then it is compiled, or read from the cache."""
        self._push_one = entry_point(self.matcher.push_one, "int64", "int64", "int64")
        return self._push_one(address, number, time_ns)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, in the order of a set's members."""
        return self.settings.topics

    def push(self, topic: str, time_ns: Stamp, payload: Any = None) -> list[SyncSet]:
        """Hand over one message.

        Args:
            topic: one of `topics`.
            time_ns: its stamp: see `Stamp`. Floats are refused.
            payload: anything; it comes back in the set, or in `unmatched`.

        Returns:
            The sets this message decides, in order; mostly none. What left without a set is in
            `unmatched`, jumps of a clock are in `clock_jumps`.

        Raises:
            ContractError: no such topic, or no such time. Nothing has changed then.

        >>> sync = ApproximateTime(["a", "b"], queue_size=2)
        >>> sync.push("a", 1), sync.push("b", 2), len(sync.push("a", 9))
        ([], [], 1)
        """
        numbers, kept, left, acquire, release = self._for_push
        number = numbers.get(topic)
        if number is None:
            known = ", ".join(self.settings.topics)
            raise ContractError(f"push: no topic {topic!r}; the topics are {known}")
        if type(time_ns) is not int or not MIN_NS <= time_ns <= MAX_NS:
            time_ns = stamp_of(time_ns)
        acquire()
        try:
            row = self._seen
            if payload is not None:
                kept[row] = payload
            self._seen = row + 1
            if left:
                left.pop(get_ident(), None)
            made = self._push_one(self._address, number, time_ns)
            if not made:
                return []
            if made == self._one_set:
                flat = self._unpack(self._first)
                n = self._topic_count
                rows = flat[:n]
                payloads = tuple(map(kept.pop, rows, self._no_payloads))
                how = flat[2 * n :]
                one = (flat[n : 2 * n], payloads, rows, *how, self.settings.offsets)
                out = [tuple.__new__(SyncSet, one)]
            else:
                out = self._collect(made & 0xFFFFFFFF, made >> 32)
        finally:
            release()
        if self._observed:
            self._call_back(out)
        return out

    def _collect(self, made: int, dropped: int) -> list[SyncSet]:
        """Return the sets of the last kernel call, with their payloads.

        What left without a set, and jumps, are kept for the calling thread (`unmatched`,
        `clock_jumps`).

        Args:
            made: How many sets the kernel wrote.
            dropped: How many entries it wrote to `drops`.
        """
        take = self._payloads.pop
        out = []
        buffers = self._out
        for record, members, stamps in zip(
            buffers.sets[:made].tolist(),
            buffers.members[:made].tolist(),
            buffers.times[:made].tolist(),
            strict=True,
        ):
            at, spread, _, _, moment, delay = record
            rows = tuple([None if r < 0 else r for r in members])
            times = tuple([None if t == UNSET else t for t in stamps])
            payloads = tuple([None if r is None else take(r, None) for r in rows])
            offsets: Any = self.settings.offsets
            out.append(SyncSet(times, payloads, rows, spread, at, moment, delay, offsets))
        if dropped:
            unmatched: list[Unmatched] = []
            jumps: list[ClockJump] = []
            for row, why, number, at, by, time_ns in buffers.drops[:dropped].tolist():
                name = self.settings.topics[number]
                if why == LeaveReason.CLOCK_JUMP:  # the message itself stays
                    jumps.append(ClockJump(name, time_ns, by, row))
                    continue
                payload = take(row, None)
                unmatched.append(Unmatched(name, time_ns, payload, row, _REASONS[why], at, by))
            self._left[get_ident()] = unmatched, jumps
        return out

    def _call_back(self, sets: list[SyncSet]) -> None:
        """Call the callbacks for the calling thread's last call. Never under the lock."""
        if self._on_set is not None:
            for one in sets:
                self._on_set(one)
        if self._on_unmatched is not None:
            for left in self.unmatched:
                self._on_unmatched(left)
        if self._on_clock_jump is not None:
            for jump in self.clock_jumps:
                self._on_clock_jump(jump)

    @property
    def unmatched(self) -> list[Unmatched]:
        """What left without a set in the last `push`, `tick`, `advance` or `flush` of the calling
        thread, and why."""
        return self._left.get(get_ident(), ((), ()))[0] or []

    @property
    def clock_jumps(self) -> list[ClockJump]:
        """Jumps of a clock in the last call of the calling thread; needs `max_jump_back`."""
        return self._left.get(get_ident(), ((), ()))[1] or []

    def process(self, topic_index: ArrayLike, time_ns: ArrayLike) -> SyncResult:
        """Hand over many messages, in arrival order. Callbacks are not called.

        Args:
            topic_index: the index of each message's topic in `topics`.
            time_ns: its stamp, int64 nanoseconds or datetime64.

        Returns:
            Everything these messages decide, as columns. Row numbers count all messages since the
            start, so any cuts give the same result; for the first call they are indices into the
            arrays given.

        Raises:
            ContractError: arrays of different length, indices out of range, float times.

        >>> sync = ApproximateTime(["a", "b"], queue_size=2)
        >>> sync.process([0, 1, 0], [1, 2, 9]).rows.tolist()
        [[0, 1]]
        """
        times = np.asarray(time_ns)
        if times.dtype.kind == "M":
            times = times.astype("datetime64[ns]").astype(np.int64)
        elif times.dtype.kind == "f" and times.size:
            raise ContractError("process: times are floats; give int64 nanoseconds")
        topics = np.ascontiguousarray(topic_index, np.int64)
        times = np.ascontiguousarray(times, np.int64)
        n = len(self.settings.topics)
        if topics.ndim != 1 or topics.shape != times.shape:
            raise ContractError(f"process: {topics.shape} topics and {times.shape} times")
        if len(topics) and not (topics.min() >= 0 and topics.max() < n and times.min() > UNSET):
            raise ContractError(f"process: topics must be 0 to {n - 1}, and every time set")
        with self._lock:
            held = int(self.matcher.held(self._arrays.topics).sum())
            out = self.matcher.output(self.settings, held, len(topics))
            lanes = np.zeros(min(len(topics), _CHUNK), np.int64)
            places = np.empty_like(lanes)
            for at in range(0, len(topics), _CHUNK):
                part, stamps = topics[at : at + _CHUNK], times[at : at + _CHUNK]
                messages = Arrivals(
                    lanes, as_readonly(part), as_readonly(stamps), self._seen, places
                )
                self.matcher.run(self._arrays, messages, out)
                self._seen += len(part)
            decided = Decided.of(out, self.settings)
            if self._payloads:
                for row in [*decided.members.ravel().tolist(), *decided.gone["row"].tolist()]:
                    self._payloads.pop(row, None)
        return _result(self.settings, decided)

    def tick(self, now: Stamp) -> list[SyncSet]:
        """Say what time it is, without a message: optional topics may time out in silence.

        Args:
            now: the time, on the clock of the stamps (after offsets). One that is not newer than
                the newest stamp changes nothing.

        Returns:
            The sets that no longer wait for a silent optional topic.

        >>> sync = ApproximateTime(["a", "b", "c"], queue_size=9, optional=["c"], timeout=10)
        >>> [sync.push(*message) for message in [("a", 0), ("b", 1), ("a", 9)]]
        [[], [], []]
        >>> [s.times_ns for s in sync.tick(12)]
        [(0, 1, None)]
        """
        time_ns = stamp_of(now, "tick")
        with self._lock:
            self._left.pop(get_ident(), None)
            self._out.count[0] = (0, 0)
            self.matcher.tick(self._arrays, np.zeros(1, np.int64), time_ns, self._out)
            out = self._collect(*self._out.count[0].tolist())
        self._call_back(out)
        return out

    def advance(self, watermark: Stamp) -> list[SyncSet]:
        """Say that no message at or before `watermark` will come. Time has passed, as in `tick`;
        beyond that a watermark decides nothing here."""
        return self.tick(watermark)

    def flush(self) -> list[SyncSet]:
        """Say that nothing more comes.

        Returns:
            The sets that can still be made; the rest is in `unmatched`. The synchroniser is then
            empty and may be used again; counters and running numbers go on.

        >>> sync = ApproximateTime(["a", "b"], queue_size=2)
        >>> sync.push("a", 1), sync.push("b", 2), sync.flush()[0].times_ns
        ([], [], (1, 2))
        """
        with self._lock:
            self._left.pop(get_ident(), None)
            self._out.count[0] = (0, 0)
            self.matcher.finish(self._arrays, np.zeros(1, np.int64), self._out)
            out = self._collect(*self._out.count[0].tolist())
        self._call_back(out)
        return out

    @property
    def held(self) -> dict[str, int]:
        """How many messages of each topic are still waiting."""
        with self._lock:
            counts = self.matcher.held(self._arrays.topics)[0]
            return dict(zip(self.topics, counts.tolist(), strict=True))

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Per topic: received, matched, disorder, jumps, and one count per reason for leaving."""
        with self._lock:
            return counters_of(self.matcher, self.settings, self._arrays.topics)

    def diagnose(self) -> Diagnosis:
        """Whether sets are coming, and if not, which topic is the reason and what would help.

        >>> sync = ApproximateTime(["a", "b"], queue_size=2)
        >>> print(sync.diagnose())
        starting: too few messages have come to say
        """
        with self._lock:
            arrays = self._arrays
            return diagnose(self.matcher, self.settings, arrays.search[0], arrays.topics[0])

    # -- snapshots ------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Return what a snapshot must agree with to be restored: class, version and settings."""
        return {
            "name": type(self).__name__,
            "version": self.version,
            "config": _settings_as_json(self.settings),
        }

    def snapshot(self, dump: Callable[[Any], bytes] | None = None) -> bytes:
        """State, settings and payloads as bytes.

        Args:
            dump: makes bytes of a payload. Needed for payloads other than bool, int, float, str and
                bytes.

        Raises:
            ContractError: a payload of another type, and no `dump`.

        >>> sync = ApproximateTime(["a", "b"], queue_size=2)
        >>> sync.push("a", 1, "x")
        []
        >>> len(ApproximateTime.restore(sync.snapshot()).push("b", 1, "y"))
        1
        """
        with self._lock:
            kept = [[row, *dump_payload(value, dump)] for row, value in self._payloads.items()]
            return snapshot.encode([(self._identity(), self._state)], {"payloads": kept})

    @classmethod
    def restore(
        cls,
        blob: bytes,
        load: Callable[[bytes], Any] | None = None,
        *,
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
        on_clock_jump: Callable[[ClockJump], object] | None = None,
    ) -> Self:
        """The synchroniser that `snapshot` saw, settings and payloads included, callbacks not.

        Args:
            blob: what `snapshot` returned.
            load: the reverse of `dump`. It sees bytes of the snapshot only after its checksum was
                right; do not unpickle snapshots of strangers.

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
            settings = SyncSettings(**config)
        except (ConfigError, TypeError) as error:
            raise StateError(f"snapshot is corrupt: its settings are not ours ({error})") from error
        identity = {"name": name, "version": cls.version, "config": _settings_as_json(settings)}
        layout = cls.matcher.layout(settings, rows=True)
        needed = sum(int(np.prod(column.shape)) * 8 for column in layout.arrays.values())
        if needed > len(blob):  # before anything of that size is allocated
            raise StateError("snapshot is corrupt: it is smaller than the state it claims to hold")
        [state], extra = snapshot.decode(blob, [(identity, layout)])
        if state.lanes != 1:
            raise StateError(f"snapshot is corrupt: it holds {state.lanes} keys, not one")
        cls.matcher.invariants(settings, state, state["rows"])
        self = cls.__new__(cls)
        _InProcessSynchronizer.__init__(self, settings, on_set, on_unmatched, on_clock_jump, state)
        try:
            for row, how, value in extra["payloads"]:
                self._payloads[int(row)] = load_payload(how, value, load)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError("snapshot is corrupt: its payloads are unreadable") from error
        return self


class ApproximateTime(_InProcessSynchronizer):
    """One message of each topic with nearly the same stamp, as soon as the choice is proven.

    With `age_penalty=0` a set has the smallest spread there is; with a penalty it is the best
    trade of spread and age. With a given `queue_size` the outcome equals that of message_filters'
    ApproximateTime policy, message for message (see `SyncSettings` for the one exception).

    All settings but `topics` are keyword-only; `SyncSettings` says more about each, and why its
    default is what it is.

    Args:
        topics: the topics of a set, in its order: 2 to 4096 different names.
        queue_size: messages held per topic; one more and the oldest leaves. None: see
            `queue_time`.
        age_penalty: how much better a newer set must be to replace an older one; 0 for the
            smallest spread.
        max_interval: sets wider than this are not formed. None: any width.
        lower_bounds: least time between two messages of a topic; lets sets be decided earlier.
        learn_bounds: learn lower bounds from the gaps that were seen.
        optional: topics that a set may lack after a silence of `timeout`.
        timeout: silence of an optional topic, in event time; given together with `optional`.
        max_jump_back: a stamp further than this behind its topic's newest is a jump of the clock.
            None: stamps may go back.
        on_jump: what a jump clears: `"all"` topics that lie as far ahead, or its own `"topic"`.
        offsets: added to the stamps of a topic for every decision; may be negative.
        overflow_patience: sets that overflow may undo in a row before one is delivered as it is.
            None: any number.
        queue_time: how long a message may wait, in event time; 1 s by default. Only without
            `queue_size`.
        max_queue: messages held per topic at most; 250 by default. Only without `queue_size`.
        on_set: called with every set, after `push`, `tick` or `flush` decided it.
        on_unmatched: called with every message that leaves without a set.
        on_clock_jump: called with every jump of a clock.

    Raises:
        ConfigError: for a bad value; it names the setting, the value and what it should be.

    Example:
        >>> sync = ApproximateTime(["camera", "lidar"], queue_size=10)
        >>> sync.push("camera", 0, "frame 0"), sync.push("lidar", 10, "scan 0")
        ([], [])
        >>> [s] = sync.push("camera", 30, "frame 1")
        >>> s.times_ns, s.payloads, s.spread_ns
        ((0, 10), ('frame 0', 'scan 0'), 10)
    """

    matcher = APPROXIMATE

    def __init__(
        self,
        topics: Iterable[str],
        *,
        queue_size: int | None = None,
        age_penalty: float = 0.1,
        max_interval: Duration | None = None,
        lower_bounds: PerTopic = (),
        learn_bounds: bool = False,
        optional: Iterable[str] = (),
        timeout: Duration | None = None,
        max_jump_back: Duration | PerTopic | None = None,
        on_jump: str = "all",
        offsets: PerTopic = (),
        overflow_patience: int | None = None,
        queue_time: Duration | None = None,
        max_queue: int | None = None,
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
        on_clock_jump: Callable[[ClockJump], object] | None = None,
    ) -> None:
        settings = SyncSettings(
            topics,  # type: ignore[arg-type]  # any iterable; it is checked there
            queue_size=queue_size,
            age_penalty=age_penalty,
            max_interval=max_interval,
            lower_bounds=lower_bounds,
            learn_bounds=learn_bounds,
            optional=optional,  # type: ignore[arg-type]
            timeout=timeout,
            max_jump_back=max_jump_back,
            on_jump=on_jump,
            offsets=offsets,
            overflow_patience=overflow_patience,
            queue_time=queue_time,
            max_queue=max_queue,
        )
        super().__init__(settings, on_set, on_unmatched, on_clock_jump)


class EpsilonTime(_InProcessSynchronizer):
    """The oldest messages of all topics, as soon as they lie within `max_interval` of each other.

    Whenever every topic has a message waiting and the oldest ones lie further apart, the oldest of
    all leaves as `too_old`. Nothing is compared with what may come, so a set is decided by its own
    last member, without delay, but need not have the smallest spread: `ApproximateTime` waits for
    that. The same as message_filters' ApproximateEpsilonTime policy.

    Args:
        topics: the topics of a set, in its order: 2 to 4096 different names.
        max_interval: how far the members of a set may lie apart, that included.
        queue_size: messages held per topic; one more and the oldest leaves. None: see
            `queue_time`.
        optional: topics that a set may lack after a silence of `timeout`.
        timeout: silence of an optional topic, in event time; given together with `optional`.
        max_jump_back: a stamp further than this behind its topic's newest is a jump of the clock.
            None: stamps may go back.
        on_jump: what a jump clears: `"all"` topics that lie as far ahead, or its own `"topic"`.
        offsets: added to the stamps of a topic for every decision; may be negative.
        queue_time: how long a message may wait, in event time; 1 s by default. Only without
            `queue_size`.
        max_queue: messages held per topic at most; 250 by default. Only without `queue_size`.
        on_set: called with every set, after `push`, `tick` or `flush` decided it.
        on_unmatched: called with every message that leaves without a set.
        on_clock_jump: called with every jump of a clock.

    Raises:
        ConfigError: for a bad value; it names the setting, the value and what it should be.

    Example:
        >>> sync = EpsilonTime(["camera", "lidar"], max_interval=20, queue_size=10)
        >>> sync.push("camera", 0), len(sync.push("lidar", 15)), sync.push("camera", 100)
        ([], 1, [])
        >>> sync.push("lidar", 130), sync.unmatched[0].reason
        ([], 'too_old')
    """

    matcher = APPROXIMATE
    greedy = True

    def __init__(
        self,
        topics: Iterable[str],
        *,
        max_interval: Duration,
        queue_size: int | None = None,
        optional: Iterable[str] = (),
        timeout: Duration | None = None,
        max_jump_back: Duration | PerTopic | None = None,
        on_jump: str = "all",
        offsets: PerTopic = (),
        queue_time: Duration | None = None,
        max_queue: int | None = None,
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
        on_clock_jump: Callable[[ClockJump], object] | None = None,
    ) -> None:
        settings = SyncSettings(
            topics,  # type: ignore[arg-type]  # any iterable; it is checked there
            queue_size=queue_size,
            max_interval=max_interval,
            optional=optional,  # type: ignore[arg-type]
            timeout=timeout,
            max_jump_back=max_jump_back,
            on_jump=on_jump,
            offsets=offsets,
            queue_time=queue_time,
            max_queue=max_queue,
        )
        check_epsilon(settings)
        super().__init__(settings, on_set, on_unmatched, on_clock_jump)


class ExactTime(_InProcessSynchronizer):
    """One message of each topic, all with the same stamp.

    Args:
        topics: the topics of a set, in its order: 2 to 4096 different names.
        queue_size: stamps that may be open at once; one more and the oldest goes. None: see
            `queue_time`.
        max_jump_back: a stamp further than this behind its topic's newest is a jump of the clock.
            None: stamps may go back.
        offsets: added to the stamps of a topic before they are compared; may be negative.
        queue_time: how long a stamp may stay open, in event time; 1 s by default. Only without
            `queue_size`.
        max_queue: stamps that may be open at most; 250 by default. Only without `queue_size`.
        on_set: called with every set, after `push` decided it.
        on_unmatched: called with every message that leaves without a set.
        on_clock_jump: called with every jump of a clock.

    Raises:
        ConfigError: for a bad value; it names the setting, the value and what it should be.

    Example:
        >>> sync = ExactTime(["left", "right"], queue_size=2)
        >>> sync.push("left", 5, "L"), [s.payloads for s in sync.push("right", 5, "R")]
        ([], [('L', 'R')])
    """

    matcher = EXACT

    def __init__(
        self,
        topics: Iterable[str],
        *,
        queue_size: int | None = None,
        max_jump_back: Duration | PerTopic | None = None,
        offsets: PerTopic = (),
        queue_time: Duration | None = None,
        max_queue: int | None = None,
        on_set: Callable[[SyncSet], object] | None = None,
        on_unmatched: Callable[[Unmatched], object] | None = None,
        on_clock_jump: Callable[[ClockJump], object] | None = None,
    ) -> None:
        settings = SyncSettings(
            topics,  # type: ignore[arg-type]  # any iterable; it is checked there
            queue_size=queue_size,
            max_jump_back=max_jump_back,
            offsets=offsets,
            queue_time=queue_time,
            max_queue=max_queue,
        )
        super().__init__(settings, on_set, on_unmatched, on_clock_jump)


def _settings_as_json(settings: SyncSettings) -> dict[str, Any]:
    """Return the settings as a snapshot keeps them: those a user may give, tuples as lists."""
    config = {f.name: getattr(settings, f.name) for f in fields(settings) if f.init}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}


def _result(settings: SyncSettings, decided: Decided) -> SyncResult:
    """Return what the kernel decided as the columns of a `SyncResult`."""
    sets, gone, jumps = decided.sets, decided.gone, decided.jumps
    return SyncResult(
        settings.topics,
        decided.members,
        decided.times,
        sets["index"],
        sets["spread_ns"],
        sets["time_ns"],
        sets["decided_at_ns"],
        sets["delay_ns"],
        gone["row"],
        gone["topic"],
        gone["time_ns"],
        gone["reason"],
        gone["index"],
        np.stack([jumps["row"], jumps["topic"], jumps["amount"]], axis=1),
        _REASONS[: LeaveReason.CLOCK_JUMP],
        settings.topic_rules["offset"],
    )


def dump_payload(value: Any, dump: Callable[[Any], bytes] | None) -> tuple[str, Any]:
    """Return a payload as (how it is kept, JSON value).

    Raises:
        ContractError: if it is of a type that needs `dump`, and there is none.
    """
    if dump is not None:
        return "dumped", base64.b64encode(dump(value)).decode()
    if isinstance(value, bytes):
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, (bool, int, float, str)):
        return "plain", value
    raise ContractError(
        f"snapshot: a payload of type {type(value).__name__} needs `dump`, a function to bytes"
    )


def load_payload(how: str, value: Any, load: Callable[[bytes], Any] | None) -> Any:
    """Return the payload that `dump_payload` was given.

    Raises:
        ContractError: if it was made with `dump` and there is no `load`.
        ValueError: if it is no base64; the caller turns this into a StateError.
    """
    if how == "plain":
        return value
    raw = base64.b64decode(value, validate=True)
    if how == "bytes":
        return raw
    if load is None:
        raise ContractError("restore: this snapshot was made with `dump`; give the matching `load`")
    return load(raw)
