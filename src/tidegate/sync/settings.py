"""The settings of a synchroniser: checked once, and laid out as int64 for the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, MIN_NS, UNSET, Duration, parse_duration
from tidegate.errors import ConfigError
from tidegate.sync.arithmetic import factor_of

__all__ = ["ON_JUMP", "PerTopic", "SyncSettings", "shifted"]

PerTopic = Mapping[str, Duration] | Sequence[Duration]
"""A duration for some topics by name, or for all of them in their order."""

ON_JUMP = ("all", "topic")

MAX_TOPICS = 4096
"""A set is one message of each; beyond this it is a list of topics given by mistake."""

MAX_PENALTY = 2.0**40
"""Keeps the numerator of the age factor within 53 bits, which the exact product relies on."""


@dataclass(frozen=True)
class SyncSettings:
    """What decides a match. Everything beyond `max_interval` and `lower_bounds` is off by default,
    and the outcome is then that of the recorded algorithm, message for message."""

    topics: tuple[str, ...]
    """The topics of a set, in its order. Equal stamps are decided by this order."""
    queue_size: int
    """Messages held per topic; one more and the oldest goes."""
    age_penalty: float = 0.1
    """How much tighter a newer set must be: its later end counts 1 + this."""
    max_interval: Duration | None = None
    """Sets wider than this are not formed. Inclusive."""
    lower_bounds: PerTopic = ()
    """The least time between two messages of a topic: lets a set be proven optimal earlier."""
    learn_bounds: bool = False
    """Learn lower bounds from the observed gaps, for topics without a given one."""
    optional: tuple[str, ...] = ()
    """Topics a set may lack when they have been silent for longer than `timeout`."""
    timeout: Duration | None = None
    """Silence of an optional topic, in event time of the lane, after which sets come without it."""
    max_jump_back: Duration | PerTopic | None = None
    """A stamp further than this behind its topic's newest one is a jump of the clock."""
    on_jump: str = "all"
    """What a jump clears: "topic", or "all" that lie as far ahead of it."""
    offsets: PerTopic = ()
    """Added to the stamps of a topic before matching, e.g. minus a known delay of its clock."""
    overflow_patience: int | None = None
    """After overflow has undone or refused this many sets in a row, the next one is delivered as it
    is. Without, topics further apart than their queues span give no sets at all."""
    codes: Int64s = field(init=False, repr=False, compare=False)
    shifts: Int64s = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = self._put
        put("topics", _topics(self.topics))
        n = len(self.topics)
        if not _whole(self.queue_size) or not 1 <= self.queue_size <= 2**24:
            raise ConfigError("queue_size", self.queue_size, "must be a whole number, 1 to 2**24")
        put("queue_size", int(self.queue_size))
        put("age_penalty", _penalty(self.age_penalty))
        if self.max_interval is not None:
            put("max_interval", parse_duration(self.max_interval, "max_interval"))
        put("lower_bounds", self._per_topic("lower_bounds", self.lower_bounds, 0, 0))
        put("offsets", self._per_topic("offsets", self.offsets, 0, None))
        put("optional", self._optional())
        if self.timeout is not None:
            put("timeout", parse_duration(self.timeout, "timeout"))
        if (self.timeout is None) != (not self.optional):
            raise ConfigError("timeout", self.timeout, "must be given together with `optional`")
        jumps = (-1,) * n
        if self.max_jump_back is not None:
            if isinstance(self.max_jump_back, (Mapping, list, tuple)):
                jumps = self._per_topic("max_jump_back", self.max_jump_back, -1, -1)
            else:
                jumps = (parse_duration(self.max_jump_back, "max_jump_back"),) * n
            put("max_jump_back", jumps)
        if self.on_jump not in ON_JUMP:
            raise ConfigError("on_jump", self.on_jump, 'must be "all" or "topic"')
        patience = self.overflow_patience
        if patience is not None and (not _whole(patience) or patience < 1):
            raise ConfigError("overflow_patience", patience, "must be at least 1, or None")
        put("codes", self._codes(jumps))
        put("shifts", np.array(self.offsets, np.int64))

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def ring(self) -> int:
        """Places per topic: a power of two, so that a place is found by a mask."""
        return 1 << int(self.queue_size).bit_length()

    def _codes(self, jumps: tuple[int, ...]) -> Int64s:
        bounds: Any = self.lower_bounds
        timeout: Any = -1 if self.timeout is None else self.timeout
        interval: Any = -1 if self.max_interval is None else self.max_interval
        ahead = any(bounds) or self.learn_bounds or self.timeout is not None
        scalars = [len(self.topics), self.queue_size, self.ring, *factor_of(self.age_penalty)]
        scalars += [interval, self.on_jump == "all", timeout, self.learn_bounds]
        scalars += [self.overflow_patience or 0, ahead]
        missing_allowed = [name in self.optional for name in self.topics]
        return np.array([*scalars, *bounds, *jumps, *missing_allowed], np.int64)

    def _optional(self) -> tuple[str, ...]:
        given: Any = self.optional
        names: tuple[str, ...] = (given,) if isinstance(given, str) else tuple(given)
        for name in names:
            if name not in self.topics:
                raise ConfigError("optional", name, f"must be one of {', '.join(self.topics)}")
        if len(set(names)) == len(self.topics):
            raise ConfigError("optional", names, "must leave at least one topic that is required")
        return names

    def _per_topic(
        self, name: str, given: Any, default: int, minimum: int | None
    ) -> tuple[int, ...]:
        if isinstance(given, Mapping):
            for topic in given:
                if topic not in self.topics:
                    wanted = f"may name only {', '.join(self.topics)}"
                    raise ConfigError(f"{name}[{topic!r}]", given[topic], wanted)
            return tuple(
                parse_duration(given[t], f"{name}[{t!r}]", minimum=minimum)
                if t in given
                else default
                for t in self.topics
            )
        if not isinstance(given, (list, tuple)) or len(given) not in (0, len(self.topics)):
            wanted = "must be a mapping from topic to duration, or one duration per topic"
            raise ConfigError(name, given, wanted)
        return tuple(
            parse_duration(value, f"{name}[{k}]", minimum=minimum) for k, value in enumerate(given)
        ) or (default,) * len(self.topics)


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _topics(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError("topics", given, "must be a list of names")
    topics = tuple(given)
    for name in topics:
        if not isinstance(name, str) or not name:
            raise ConfigError("topics", name, "must be names: non-empty text")
    if not 2 <= len(topics) <= MAX_TOPICS:
        raise ConfigError("topics", list(topics), f"must be 2 to {MAX_TOPICS} names")
    if len(set(topics)) != len(topics):
        twice = next(name for name in topics if topics.count(name) > 1)
        raise ConfigError("topics", twice, "must name each topic once")
    return topics


def _penalty(given: Any) -> float:
    number = isinstance(given, (int, float, np.floating, np.integer)) and not isinstance(
        given, bool
    )
    if not number or not isfinite(given) or not 0 <= given <= MAX_PENALTY:
        raise ConfigError("age_penalty", given, "must be a number, at least 0 and at most 2**40")
    return float(given)


def shifted(times: Int64s, by: Int64s) -> Int64s:
    """`times + by`, stopping at the ends of the range instead of wrapping around."""
    out = times + by
    out[(by > 0) & (out < times)] = MAX_NS
    out[(by < 0) & ((out > times) | (out == UNSET))] = MIN_NS
    return out
