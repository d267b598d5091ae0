"""Synchronisers for ROS 2 nodes: drop-in for those of message_filters' Python package.

    from tidegate.ros2 import ApproximateTimeSynchronizer, Subscriber, TimeSynchronizer

The same calls and the same callbacks. What differs: `ApproximateTimeSynchronizer` runs the
algorithm of the C++ policy (message_filters' Python version is another, greedy one), every message
that leaves without a set is reported with its reason (`registerDropCallback`), `diagnose()` says
why no sets come, and callbacks run outside the lock, so a callback may publish or add messages
itself.

ROS is not needed to import this module. Inputs are anything with `registerCallback(callback,
*args)`: `Subscriber` of this module, filters of message_filters, or another synchroniser. Of rclpy
only `node.create_subscription` is used, and `rclpy.clock.ROSClock().now()` where a message has no
stamp or `sync_arrival_time` asks for the time of arrival.

Clock policy: the stamp in a message's header decides. With `allow_headerless` a message without one
counts as of its arrival; with `sync_arrival_time` all do. A message whose time is not known is
dropped with a warning, as in the original: an exception in a callback would end the node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.core.checks import number_in
from tidegate.errors import ConfigError, ContractError
from tidegate.sync import ApproximateTime, Diagnosis, ExactTime, SyncSet, Unmatched

__all__ = ["ApproximateTimeSynchronizer", "Subscriber", "TimeSynchronizer"]


class _Filter:
    """Calls its callbacks with every message that comes through."""

    def __init__(self) -> None:
        # By number, as message_filters' own filters have them: its `Chain` removes from there.
        self.callbacks: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}

    def registerCallback(self, cb: Callable[..., Any], *args: Any) -> int:  # noqa: N802
        """Call `cb` with every message (of a synchroniser: with the messages of every set, in the
        order of its inputs), followed by `args`. Returns the number of the callback."""
        number = max(self.callbacks, default=-1) + 1
        self.callbacks[number] = cb, args
        return number

    def signalMessage(self, *messages: Any) -> None:  # noqa: N802
        """Call the callbacks with these messages."""
        for callback, args in list(self.callbacks.values()):
            callback(*messages, *args)


class Subscriber(_Filter):
    """A subscription of a node, as an input of synchronisers.

    Args:
        node: the node; its `create_subscription` is called.
        msg_type: the class of the messages.
        topic: the name of the topic.
        qos_profile: as for `create_subscription`; 10, the default, is a queue of 10.
        kwargs: further arguments of `create_subscription`.
    """

    def __init__(
        self, node: Any, msg_type: Any, topic: str, qos_profile: Any = 10, **kwargs: Any
    ) -> None:
        super().__init__()
        self.node = node
        self.topic = topic
        self.sub = node.create_subscription(
            msg_type, topic, self.signalMessage, qos_profile, **kwargs
        )

    def getTopic(self) -> str:  # noqa: N802
        """The name of the topic."""
        return self.topic


class _Synchronizer(_Filter):
    """What both synchronisers share: inputs, stamps and callbacks around `tidegate.sync`."""

    _sync: ApproximateTime | ExactTime

    def __init__(self, fs: Sequence[Any], allow_headerless: bool, sync_arrival_time: bool) -> None:
        super().__init__()
        self._allow_headerless = allow_headerless
        self._sync_arrival_time = sync_arrival_time
        self._drop_callbacks: list[Callable[[Unmatched], Any]] = []
        self._warned = False
        self._names = [str(number) for number in range(len(fs))]
        self.input_connections: list[Any] = []

    def connectInput(self, fs: Sequence[Any]) -> None:  # noqa: N802
        """Take messages from these filters, one per topic. Called by the constructor."""
        if len(fs) != len(self._names):
            raise ConfigError("fs", fs, f"must be {len(self._names)} filters, as at the start")
        self.input_connections = [
            each.registerCallback(self.add, None, number) for number, each in enumerate(fs)
        ]

    def registerDropCallback(self, cb: Callable[[Unmatched], Any]) -> None:  # noqa: N802
        """Call `cb` with every message that leaves without a set: an `Unmatched` with the message
        (`payload`), the number of its input as text (`topic`), its stamp and the `reason`. For a
        message without a stamp the reason is `no_stamp`, and `time_ns` is 0."""
        self._drop_callbacks.append(cb)

    def add(self, msg: Any, my_queue: Any = None, my_queue_index: int | None = None) -> None:
        """Hand over one message of input `my_queue_index`. `my_queue` is there for callers of the
        original, and not used. A message without a stamp is dropped, and the first one warned
        about, unless `allow_headerless` is on.

        Raises:
            ContractError: there is no such input.
        """
        if my_queue_index is None or not 0 <= my_queue_index < len(self._names):
            raise ContractError(f"add: no input {my_queue_index!r}; there are {len(self._names)}")
        stamp = self._stamp(msg)
        if stamp is not None:
            self._sync.push(self._names[my_queue_index], stamp, msg)
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a {type(msg).__name__} of input {my_queue_index} has no header.stamp and is "
                "dropped, as are all like it; set allow_headerless=True to take the time of "
                "arrival (sync_arrival_time=True: of all messages)",
                stacklevel=2,
            )
        self._on_unmatched(Unmatched(self._names[my_queue_index], 0, msg, -1, "no_stamp", -1, 0))

    def tick(self, now: Any) -> None:
        """Tell the time, for optional topics: see `tidegate.sync.ApproximateTime.tick`."""
        self._sync.tick(now)

    def flush(self) -> None:
        """Deliver what can still be matched, at the end of a recording."""
        self._sync.flush()

    def diagnose(self) -> Diagnosis:
        """Why sets come or do not come; topics are named by the number of their input."""
        return self._sync.diagnose()

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Per input: received, matched, and one count per reason for leaving without a set."""
        return self._sync.counters

    def _stamp(self, msg: Any) -> Any:
        """The stamp of a message, or its time of arrival; None if neither counts."""
        if not self._sync_arrival_time:
            stamp = getattr(getattr(msg, "header", None), "stamp", None)
            if stamp is not None or not self._allow_headerless:
                return stamp
        from rclpy.clock import ROSClock  # type: ignore[import-not-found]

        return ROSClock().now().nanoseconds

    def _on_set(self, one: SyncSet) -> None:
        self.signalMessage(*one.payloads)

    def _on_unmatched(self, one: Unmatched) -> None:
        for callback in self._drop_callbacks:
            callback(one)


class ApproximateTimeSynchronizer(_Synchronizer):
    """Sets of one message per input with nearly the same stamp.

    Args:
        fs: the inputs, in the order of the callback's arguments.
        queue_size: messages held per input.
        slop: seconds by which the messages of a set may differ at most.
        allow_headerless: take the time of arrival for messages without `header.stamp`.
        sync_arrival_time: take the time of arrival for all messages.
        settings: further settings of `tidegate.sync.SyncSettings` that need no topic names, such
            as `age_penalty`, `overflow_patience` or `max_jump_back`. Not in the original.

    Raises:
        ConfigError: names the argument, its value and what it should be.

    >>> from types import SimpleNamespace as Message
    >>> left, right = _Filter(), _Filter()
    >>> sync = ApproximateTimeSynchronizer([left, right], queue_size=10, slop=0.05)
    >>> _ = sync.registerCallback(lambda a, b: print(a.name, b.name))
    >>> def message(name, ms):
    ...     return Message(name=name, header=Message(stamp=Message(sec=0, nanosec=ms * 10**6)))
    >>> left.signalMessage(message("L0", 0))
    >>> right.signalMessage(message("R0", 10))
    >>> left.signalMessage(message("L1", 100))
    L0 R0
    """

    def __init__(
        self,
        fs: Sequence[Any],
        queue_size: int,
        slop: float,
        allow_headerless: bool = False,
        sync_arrival_time: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(fs, allow_headerless, sync_arrival_time)
        seconds = number_in("slop", slop, 0, 10**9)
        self.slop = slop
        self._sync = ApproximateTime(
            self._names,
            queue_size=queue_size,
            max_interval=round(seconds * 10**9),
            on_set=self._on_set,
            on_unmatched=self._on_unmatched,
            **settings,
        )
        self.connectInput(fs)


class TimeSynchronizer(_Synchronizer):
    """Sets of one message per input with exactly the same stamp.

    Args:
        fs: the inputs, in the order of the callback's arguments.
        queue_size: stamps that may be incomplete at once.
        sync_arrival_time: take the time of arrival for all messages.
        **settings: further settings of `tidegate.ExactTime`.
    """

    def __init__(
        self, fs: Sequence[Any], queue_size: int, sync_arrival_time: bool = False, **settings: Any
    ) -> None:
        super().__init__(fs, False, sync_arrival_time)
        self._sync = ExactTime(
            self._names,
            queue_size=queue_size,
            on_set=self._on_set,
            on_unmatched=self._on_unmatched,
            **settings,
        )
        self.connectInput(fs)
