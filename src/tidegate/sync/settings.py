"""The settings of a synchroniser: checked once, and laid out as records for the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from tidegate.core.checks import boolean, duration, int_in, names, number_in, one_of
from tidegate.core.time import Duration
from tidegate.errors import ConfigError
from tidegate.sync.lane import RULES, TOPIC_RULES, factor_of

__all__ = ["ON_JUMP", "PerTopic", "SyncSettings", "check_epsilon"]

PerTopic = Mapping[str, Duration] | Sequence[Duration]
"""A duration for some topics by name, or for all of them in their order."""

ON_JUMP = ("all", "topic")
"""What a jump of a clock may clear: all topics that lie as far ahead, or its own alone."""

MAX_TOPICS = 4096
"""A set is one message of each; beyond this it is a list of topics given by mistake."""

MAX_QUEUE = 2**24
"""Messages per topic: beyond this the ring of one lane alone takes more than 128 MiB per topic."""

MAX_PENALTY = 2.0**40
"""Keeps the numerator of the age factor within 53 bits, which the exact product relies on."""


@dataclass(frozen=True)
class SyncSettings:
    """What decides a match. Everything but `topics` is keyword-only.

    With a given `queue_size`, `age_penalty`, `max_interval` and `lower_bounds`, and the rest left
    at its default, the sets and the message that decides each are those of message_filters'
    ApproximateTime policy, with one exception: a clock that repeats one stamp
    (`tidegate.sync.approximate.EQUAL_PATIENCE`).

    All durations are whole nanoseconds (int), text such as `"50 ms"`, or a timedelta. A bad value
    is a `ConfigError` that names the setting, the value and what it should be.

    >>> SyncSettings(["camera", "lidar"], queue_size=10, max_interval="50 ms").max_interval
    50000000
    >>> SyncSettings(["camera", "lidar"], queue_size=0)
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: queue_size: got 0, must be a whole number between 1 and 16777216
    """

    topics: tuple[str, ...]
    """The topics of a set, in its order: 2 to 4096 different names. Among equal stamps this order
    decides which topic is the earliest and which the latest."""
    _: KW_ONLY
    queue_size: int | None = None
    """Messages held per topic, 1 to 2**24; one more and the oldest leaves as `overflow`. Omitted,
    the default: queues are bounded by time (`queue_time`), which suits topics of different rates. A
    given one makes the outcome equal to that of message_filters with this queue size."""
    age_penalty: float = 0.1
    """How much better a newer set must be to replace an older one, 0 to 2**40: the time by which it
    ends later counts 1 + this. 0 gives the smallest spread of all, as late as it takes; more
    decides earlier. The default is that of message_filters."""
    max_interval: Duration | None = None
    """Sets wider than this are not formed; a set exactly as wide is. None: any width."""
    lower_bounds: PerTopic = ()
    """The least time between two messages of a topic: lets a set be proven optimal earlier, before
    the next message comes. 0, the default, assumes nothing. A bound that does not hold is counted
    (`too_close`) and may cost the better of two sets, never a message."""
    learn_bounds: bool = False
    """Learn lower bounds from the observed gaps, for topics without a given one. Sets are decided
    up to a period earlier; off by default because the outcome is then not the reference's."""
    optional: tuple[str, ...] = ()
    """Topics a set may lack when they have been silent for longer than `timeout`. At least one
    topic must be left that is required."""
    timeout: Duration | None = None
    """Silence of an optional topic, in event time of the lane, after which sets come without it.
    Given together with `optional`."""
    max_jump_back: Duration | PerTopic | None = None
    """A stamp further than this behind its topic's newest one is a jump of the clock: it is
    reported, and what lies on the far side leaves as `time_jump`. None: stamps may go back."""
    on_jump: str = "all"
    """What a jump clears: `"topic"`, or `"all"` topics whose messages lie as far ahead of it."""
    offsets: PerTopic = ()
    """Added to the stamps of a topic for every decision, e.g. minus a known delay of its clock. May
    be negative. What is delivered keeps its stamp."""
    overflow_patience: int | None = None
    """After overflow has undone or refused this many sets in a row, the next one is delivered as it
    is. None: topics further apart than their queues span give no sets, as in the reference."""
    queue_time: Duration | None = None
    """How long a message may wait, in event time: the newest last stamp of any topic minus its own.
    Checked when a message of its topic comes; the newest message of a topic always stays. Only
    without `queue_size`; then the default is 1 s, which covers usual transport delays. Shorter
    starves matches with topics that come later than that; longer holds more."""
    max_queue: int | None = None
    """Messages held per topic at most, whatever `queue_time` allows, 1 to 2**24. Only without
    `queue_size`; then the default is 250, enough for 1 s of 250 Hz. The state takes 8 bytes for
    each (rounded up to a power of two), per topic and key."""
    rules: Any = field(init=False, repr=False, compare=False)
    """The settings as one record (`lane.RULES`), in an array of length 1."""
    topic_rules: Any = field(init=False, repr=False, compare=False)
    """The settings per topic (`lane.TOPIC_RULES`)."""

    def __post_init__(self) -> None:
        put = self._put
        put("topics", _checked_topics(self.topics))
        self._check_queue()
        put("age_penalty", number_in("age_penalty", self.age_penalty, 0, MAX_PENALTY))
        if self.max_interval is not None:
            put("max_interval", duration("max_interval", self.max_interval))
        put("lower_bounds", self._per_topic("lower_bounds", self.lower_bounds, 0, 0))
        put("learn_bounds", boolean("learn_bounds", self.learn_bounds))
        put("offsets", self._per_topic("offsets", self.offsets, 0, None))
        put("optional", self._optional())
        if self.timeout is not None:
            put("timeout", duration("timeout", self.timeout))
        if (self.timeout is None) != (not self.optional):
            raise ConfigError("timeout", self.timeout, "must be given together with `optional`")
        jumps = (-1,) * len(self.topics)
        if self.max_jump_back is not None:
            if isinstance(self.max_jump_back, (Mapping, list, tuple)):
                jumps = self._per_topic("max_jump_back", self.max_jump_back, -1, -1)
            else:
                jumps = (duration("max_jump_back", self.max_jump_back),) * len(self.topics)
            put("max_jump_back", jumps)
        one_of("on_jump", self.on_jump, ON_JUMP)
        if self.overflow_patience is not None:
            put("overflow_patience", int_in("overflow_patience", self.overflow_patience, 1))
        self._lay_out(jumps)

    def _put(self, name: str, value: Any) -> None:
        """Set a field of this frozen class: only while it is being made."""
        object.__setattr__(self, name, value)

    @property
    def queue(self) -> int:
        """Messages held per topic at most (exact: open stamps)."""
        return self.queue_size or self.max_queue or 1

    @property
    def ring(self) -> int:
        """Places per topic: a power of two above `queue`, so that a mask finds a place, and a
        message has one before the oldest goes."""
        return 1 << self.queue.bit_length()

    def _check_queue(self) -> None:
        """Check that the queue is bounded in one of two ways, and fill in the defaults of the
        second."""
        if self.queue_size is not None:
            self._put("queue_size", int_in("queue_size", self.queue_size, 1, MAX_QUEUE))
            for name in ("queue_time", "max_queue"):
                if getattr(self, name) is not None:
                    wanted = "not together with queue_size, which alone bounds the queue"
                    raise ConfigError(name, getattr(self, name), wanted)
            return
        time = "1 s" if self.queue_time is None else self.queue_time
        most = 250 if self.max_queue is None else self.max_queue
        self._put("queue_time", duration("queue_time", time))
        self._put("max_queue", int_in("max_queue", most, 1, MAX_QUEUE))

    def _lay_out(self, jumps: tuple[int, ...]) -> None:
        """Write the checked settings into the records that the kernels read; None becomes -1."""

        def number(value: Any) -> Any:
            return -1 if value is None else value

        bounds: Any = self.lower_bounds
        rules = np.zeros(1, RULES)
        rules["topics"] = len(self.topics)
        rules["queue"] = self.queue
        rules["ring"] = self.ring
        rules["queue_time"] = number(self.queue_time)
        rules["numerator"], rules["shift"] = factor_of(self.age_penalty)
        rules["interval"] = number(self.max_interval)
        rules["jump_all"] = self.on_jump == "all"
        rules["timeout"] = number(self.timeout)
        rules["learn"] = self.learn_bounds
        rules["patience"] = self.overflow_patience or 0
        rules["look_ahead"] = any(bounds) or self.learn_bounds or self.timeout is not None
        self._put("rules", rules)
        per_topic = np.zeros(len(self.topics), TOPIC_RULES)
        per_topic["lower_bound"] = bounds
        per_topic["jump_bound"] = jumps
        per_topic["optional"] = [name in self.optional for name in self.topics]
        per_topic["offset"] = self.offsets
        self._put("topic_rules", per_topic)

    def _optional(self) -> tuple[str, ...]:
        """Return the optional topics, all of which are topics, and at least one topic is not
        optional."""
        found = names("optional", self.optional)
        for name in found:
            one_of("optional", name, self.topics)
        if len(found) == len(self.topics):
            raise ConfigError("optional", found, "must leave at least one topic that is required")
        return found

    def _per_topic(
        self, name: str, given: Any, default: int, minimum: int | None
    ) -> tuple[int, ...]:
        """Return one duration per topic, in the order of `topics`.

        Args:
            name: Name of the setting, for the error.
            given: A mapping from topic to duration, or one duration per topic, or nothing.
            default: For topics without one.
            minimum: Smallest duration allowed, in ns; None: any, also negative.

        Raises:
            ConfigError: for an unknown topic, a wrong number of durations, or a bad one.
        """
        if isinstance(given, Mapping):
            for topic in given:
                if topic not in self.topics:
                    wanted = f"may name only {', '.join(self.topics)}"
                    raise ConfigError(f"{name}[{topic!r}]", given[topic], wanted)
            return tuple(
                duration(f"{name}[{t!r}]", given[t], minimum) if t in given else default
                for t in self.topics
            )
        if not isinstance(given, (list, tuple)) or len(given) not in (0, len(self.topics)):
            wanted = "must be a mapping from topic to duration, or one duration per topic"
            raise ConfigError(name, given, wanted)
        return tuple(duration(f"{name}[{k}]", value, minimum) for k, value in enumerate(given)) or (
            default,
        ) * len(self.topics)


def _checked_topics(given: Any) -> tuple[str, ...]:
    """Return the topics as a tuple of 2 to MAX_TOPICS different names; a ConfigError if they are
    not.

    A single string is refused: it would be read as one topic per letter.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError("topics", given, "must be a list of names")
    topics = names("topics", given)
    if not 2 <= len(topics) <= MAX_TOPICS:
        raise ConfigError("topics", list(topics), f"must be 2 to {MAX_TOPICS} names")
    return topics


def check_epsilon(settings: SyncSettings) -> None:
    """Refuse settings that mean nothing to the policy `epsilon`, and ask for its one number.

    Args:
        settings: the settings, checked already.

    Raises:
        ConfigError: `max_interval` is missing, or a setting that only proves a choice is given.
    """
    if settings.max_interval is None:
        text = 'must be given with policy "epsilon": how far the members of a set may lie apart'
        raise ConfigError("max_interval", None, text)
    bounds: Any = settings.lower_bounds
    if settings.learn_bounds or any(bounds) or settings.overflow_patience is not None:
        text = 'not with policy "epsilon", which proves nothing'
        raise ConfigError("lower_bounds", settings.lower_bounds, text)
