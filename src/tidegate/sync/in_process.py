"""Synchronisers for one key, in process: `push` one message, or `process` arrays of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import index
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from tidegate.core import snapshot
from tidegate.core.state import State
from tidegate.core.time import MAX_NS, MIN_NS, UNSET, Duration
from tidegate.errors import ContractError, StateError
from tidegate.sync.diagnosis import counters_of, diagnose
from tidegate.sync.layout import D_AMOUNT, D_INDEX, D_REASON, D_ROW, D_TIME, D_TOPIC, M_SIZE
from tidegate.sync.matchers import APPROXIMATE, EXACT, Decided, Policy
from tidegate.sync.results import Diagnosis, SyncResult, SyncSet, Unmatched
from tidegate.sync.settings import PerTopic, SyncSettings, shifted

__all__ = ["ApproximateTime", "ExactTime"]

_CHUNK = 1 << 16
"""Messages per kernel call: what a call needs beside them stays within the processor's cache."""


class _Synchronizer:
    """The interface both policies share."""

    policy: ClassVar[Policy]
    version: ClassVar[int] = 1

    def __init__(self, settings: SyncSettings) -> None:
        self.settings = settings
        self.unmatched: list[Unmatched] = []
        """What left without a set in the last call of `push` or `flush`, and why."""
        self._index = {name: number for number, name in enumerate(settings.topics)}
        self._shift = settings.shifts.tolist()
        self._payloads: dict[int, Any] = {}
        self._attach(State(self.policy.layout(settings, rows=True)))

    def _attach(self, state: State) -> None:
        """Lay the state and the room for results into one array: see `push_one`."""
        n = len(self.settings.topics)
        sets, drops, count = self.policy.room(self.settings, n * self.settings.queue_size, 1)
        kept = [self.settings.codes, *(state[name] for name in ("core", "ring", "rows"))]
        parts = [*kept, count, sets, drops]
        ends = np.cumsum([M_SIZE, *(part.size for part in parts)])
        self._memory = np.empty(ends[-1], np.int64)
        self._memory[:M_SIZE] = ends
        spans = zip(ends, ends[1:], parts, strict=False)
        views = [self._memory[a:b].reshape(part.shape) for a, b, part in spans]
        for view, part in zip(views[:5], parts[:5], strict=True):
            view[...] = part
        self._args = (views[0], views[1], views[2], views[3])
        self._room = (views[5], views[6], views[4])
        for name, view in zip(("core", "ring", "rows"), views[1:4], strict=True):
            state.arrays[name] = view
        self._state = state
        self._seen = int(state["core"][0, self.policy.kernel.SEEN])
        self._push_one = self.policy.push_one

    @property
    def topics(self) -> tuple[str, ...]:
        return self.settings.topics

    def push(self, topic: str, time_ns: int, payload: Any = None) -> list[SyncSet]:
        """Hand over one message. Returns the sets it decides, in order; mostly none."""
        number = self._index.get(topic)
        if number is None:
            known = ", ".join(self.settings.topics)
            raise ContractError(f"push: no topic {topic!r}; the topics are {known}")
        stamp = index(time_ns) + self._shift[number]
        if not MIN_NS <= stamp <= MAX_NS:
            if not MIN_NS <= time_ns <= MAX_NS:
                raise ContractError(f"push: {time_ns} is not a time in 64-bit nanoseconds")
            stamp = MAX_NS if stamp > 0 else MIN_NS
        seen = self._seen
        self._seen = seen + 1
        if payload is not None:
            self._payloads[seen] = payload
        if self.unmatched:
            self.unmatched = []
        made = self._push_one(self._memory, number, stamp)
        return self._collect(made & 0xFFFFFFFF, made >> 32) if made else []

    def _collect(self, made: int, gone: int) -> list[SyncSet]:
        """The results of the last call for one lane, with their payloads."""
        n = len(self._shift)
        take = self._payloads.pop
        out = []
        for row in self._room[0][:made].tolist():
            at, spread, _, _, moment = row[2 * n :]
            rows, times = tuple(row[:n]), tuple(row[n : 2 * n])
            if -1 in rows:
                rows = tuple([None if r < 0 else r for r in rows])
                times = tuple([None if t == UNSET else t for t in times])
            payloads = tuple([take(r, None) for r in rows])
            out.append(SyncSet(times, payloads, rows, spread, at, moment))
        if gone:
            self._report(self._room[1][:gone].tolist())
        return out

    def _report(self, drops: list[list[int]]) -> None:
        reasons = self.policy.reasons
        for row, why, topic, at, by, time_ns in drops:
            if why < len(reasons):  # else it tells of a jump: the message itself stays
                name = self.settings.topics[topic]
                payload = self._payloads.pop(row, None)
                self.unmatched.append(Unmatched(name, time_ns, payload, row, reasons[why], at, by))

    def process(self, topic_index: ArrayLike, time_ns: ArrayLike) -> SyncResult:
        """Messages in arrival order: the number of each one's topic, and its stamp.

        Row numbers count all messages since the start, so any cuts give the same result; for the
        first call they are indices into the arrays given.
        """
        topics = np.ascontiguousarray(topic_index, np.int64)
        times = np.ascontiguousarray(time_ns, np.int64)
        n = len(self.settings.topics)
        if topics.ndim != 1 or topics.shape != times.shape:
            raise ContractError(f"process: {topics.shape} topics and {times.shape} times")
        if len(topics) and not (topics.min() >= 0 and topics.max() < n and times.min() > UNSET):
            raise ContractError(f"process: topics must be 0 to {n - 1}, and every time set")
        if self.settings.shifts.any():
            times = shifted(times, self.settings.shifts[topics])
        held = int(self.policy.held(self._args[1], n).sum())
        sets, drops, count = self.policy.room(self.settings, held, len(topics))
        lanes = np.zeros(min(len(topics), _CHUNK), np.int64)
        places = np.empty_like(lanes)
        for at in range(0, len(topics), _CHUNK):
            part, stamps = topics[at : at + _CHUNK], times[at : at + _CHUNK]
            self.policy.run(
                *self._args, lanes, part, stamps, self._seen, places, sets, drops, count
            )
            self._seen += len(part)
        made, gone = count.tolist()
        decided = Decided.of(sets[:made], drops[:gone], self.settings, self.policy)
        self._forget(decided)
        return _result(self.settings.topics, self.policy, decided)

    def _forget(self, decided: Decided) -> None:
        if self._payloads:
            for row in [*decided.members.ravel().tolist(), *decided.gone[:, D_ROW].tolist()]:
                self._payloads.pop(row, None)

    def flush(self) -> list[SyncSet]:
        """Nothing more comes: the sets that can still be made; the rest is in `unmatched`."""
        self.unmatched = []
        self._room[2][:] = 0
        self.policy.finish(*self._args, np.zeros(1, np.int64), *self._room)
        return self._collect(*self._room[2].tolist())

    @property
    def held(self) -> dict[str, int]:
        """How many messages of each topic are still waiting."""
        counts = self.policy.held(self._args[1], len(self.topics))[0]
        return dict(zip(self.topics, counts.tolist(), strict=True))

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Per topic: received, matched, disorder, jumps, and one count per reason for leaving."""
        return counters_of(self.policy, self.settings, self._args[1])

    def diagnose(self) -> Diagnosis:
        """Which topic holds the match up right now, and by how much."""
        return diagnose(self.policy, self.settings, self._args[1][0])

    # -- snapshots ------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        config = {f.name: getattr(self.settings, f.name) for f in fields(self.settings) if f.init}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}
        return {"name": type(self).__name__, "version": self.version, "config": plain}

    def snapshot(self, dump: Callable[[Any], bytes] | None = None) -> bytes:
        """State and settings as bytes. Payloads that are not plain values need `dump`."""
        kept = [[row, *_dumped(value, dump)] for row, value in self._payloads.items()]
        return snapshot.encode([(self._identity(), self._state)], {"payloads": kept})

    @classmethod
    def restore(cls, blob: bytes, load: Callable[[bytes], Any] | None = None) -> Self:
        """The synchroniser that `snapshot` saw, settings and payloads included."""
        header, _ = snapshot.unpack(blob)
        stage = (header.get("stages") or [{}])[0]
        if stage.get("name") != cls.__name__:
            raise StateError(f"snapshot is of {stage.get('name')}, not of {cls.__name__}")
        self = cls._of(SyncSettings(**stage["config"]))
        expected = (self._identity(), self.policy.layout(self.settings, rows=True))
        states, extra = snapshot.decode(blob, [expected])
        self._attach(states[0])
        self._payloads = {row: _loaded(how, value, load) for row, how, value in extra["payloads"]}
        return self

    @classmethod
    def _of(cls, settings: SyncSettings) -> Self:
        self = cls.__new__(cls)
        _Synchronizer.__init__(self, settings)
        return self


class ApproximateTime(_Synchronizer):
    """One message of each topic, the set with the smallest spread, as soon as that is proven.

    >>> sync = ApproximateTime(["camera", "lidar"], queue_size=10)
    >>> sync.push("camera", 0, "frame 0"), sync.push("lidar", 10, "scan 0")
    ([], [])
    >>> [s] = sync.push("camera", 30, "frame 1")
    >>> s.times_ns, s.payloads, s.spread_ns
    ((0, 10), ('frame 0', 'scan 0'), 10)

    Settings beyond `lower_bounds` are off by default: see `SyncSettings` for each.
    """

    policy = APPROXIMATE

    def __init__(
        self,
        topics: Iterable[str],
        queue_size: int,
        age_penalty: float = 0.1,
        max_interval: Duration | None = None,
        lower_bounds: PerTopic = (),
        *,
        learn_bounds: bool = False,
        optional: Iterable[str] = (),
        timeout: Duration | None = None,
        max_jump_back: Duration | PerTopic | None = None,
        on_jump: str = "all",
        offsets: PerTopic = (),
        overflow_patience: int | None = None,
    ) -> None:
        super().__init__(
            SyncSettings(
                _names(topics),
                queue_size,
                age_penalty,
                max_interval,
                lower_bounds,
                learn_bounds,
                _names(optional),
                timeout,
                max_jump_back,
                on_jump,
                offsets,
                overflow_patience,
            )
        )


class ExactTime(_Synchronizer):
    """One message of each topic, all with the same stamp. `queue_size`: stamps that may be open.

    >>> sync = ExactTime(["left", "right"], queue_size=2)
    >>> sync.push("left", 5, "L"), [s.payloads for s in sync.push("right", 5, "R")]
    ([], [('L', 'R')])
    """

    policy = EXACT

    def __init__(
        self,
        topics: Iterable[str],
        queue_size: int,
        *,
        max_jump_back: Duration | PerTopic | None = None,
        offsets: PerTopic = (),
    ) -> None:
        super().__init__(
            SyncSettings(_names(topics), queue_size, max_jump_back=max_jump_back, offsets=offsets)
        )


def _names(given: Any) -> Any:
    """A list of names as a tuple; anything else as it is, for the settings to refuse."""
    return (
        given
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable)
        else tuple(given)
    )


def _result(topics: tuple[str, ...], policy: Policy, decided: Decided) -> SyncResult:
    gone = decided.gone
    return SyncResult(
        topics,
        decided.members,
        decided.member_time_ns,
        decided.index,
        decided.spread_ns,
        decided.time_ns,
        decided.decided_at_ns,
        gone[:, D_ROW],
        gone[:, D_TOPIC],
        gone[:, D_TIME],
        gone[:, D_REASON],
        gone[:, D_INDEX],
        decided.jumps[:, [D_ROW, D_TOPIC, D_AMOUNT]],
        policy.reasons,
    )


def _dumped(value: Any, dump: Callable[[Any], bytes] | None) -> tuple[str, Any]:
    if dump is not None:
        return "dumped", base64.b64encode(dump(value)).decode()
    if isinstance(value, bytes):
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, (bool, int, float, str)):
        return "plain", value
    raise ContractError(
        f"snapshot: a payload of type {type(value).__name__} needs `dump`, a function to bytes"
    )


def _loaded(how: str, value: Any, load: Callable[[bytes], Any] | None) -> Any:
    if how == "plain":
        return value
    raw = base64.b64decode(value)
    if how == "bytes":
        return raw
    if load is None:
        raise ContractError("restore: this snapshot was made with `dump`; give the matching `load`")
    return load(raw)
