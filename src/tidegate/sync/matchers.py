"""The two searches behind one interface: sizes, state layout, buffers and kernels.

`APPROXIMATE` and `EXACT` are the only two values of `Matcher`; the stage and the in-process classes
differ by nothing but which of them they use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tidegate.core.numba import interpret_first
from tidegate.core.outcomes import Int64s
from tidegate.core.state import Column, Layout, State
from tidegate.errors import StateError
from tidegate.sync import approximate, exact
from tidegate.sync.lane import COUNT, DROP, SET, Arrivals, LaneArrays, LeaveReason, Output
from tidegate.sync.settings import SyncSettings

__all__ = ["APPROXIMATE", "EXACT", "Decided", "Matcher"]


class Decided(NamedTuple):
    """What one kernel call decided."""

    sets: Any
    """Records of type `lane.SET`."""
    members: Int64s
    """Row numbers, sets x topics; -1 for a missing optional member."""
    times: Int64s
    """The members' stamps as delivered, sets x topics."""
    gone: Any
    """Messages that left without a set; records of type `lane.DROP`."""
    jumps: Any
    """Messages before which a clock jumped back; records of type `lane.DROP`."""

    @classmethod
    def of(cls, out: Output, settings: SyncSettings) -> Decided:
        """The filled part of the buffers."""
        made, dropped = int(out.count[0]["sets"]), int(out.count[0]["drops"])
        gone = out.drops[:dropped]
        jumps = gone[:0]
        if settings.max_jump_back is not None:
            jumped = gone["reason"] == LeaveReason.CLOCK_JUMP
            gone, jumps = gone[~jumped], gone[jumped]
        return cls(out.sets[:made], out.members[:made], out.times[:made], gone, jumps)


@dataclass(frozen=True, eq=False)
class Matcher:
    """A way to match: its record types and kernels.

    There are two, `APPROXIMATE` and `EXACT`. The kernels have the same signatures in both, so the
    stage and the in-process classes never ask which one they have.
    """

    name: str
    """As users write it in the setting `policy`."""
    reasons: tuple[LeaveReason, ...]
    """The reasons for which a message can leave without a set, in the order of their counters."""
    search: Any
    """Record type of a lane."""
    topic: Any
    """Record type of a topic in a lane."""
    stamps_per_place: int
    """int64 per place of a ring of stamps; 0: one ring per topic with one each."""
    run: Callable[[LaneArrays, Arrivals, Output], None]
    """Handle many messages in arrival order, of any lanes. `Arrivals.places` is filled in; the
    `Output` has room for all that these messages can decide (`output`)."""
    push_one: Callable[[int, int, int], int]
    """Handle one message for the only lane, whose arrays are parts of one array: (address of that
    array, which begins with the addresses of its parts, see `in_process` and `lane.PARTS`; topic
    number; stamp as delivered in ns) to sets + 2**32 * drops, mostly 0. A single set is also
    written as plain numbers (`lane.first_set`)."""
    tick: Callable[[LaneArrays, Int64s, int, Output], None]
    """Let time pass in some lanes, without a message."""
    search_again: Callable[[LaneArrays, Int64s, Output], None]
    """Search some lanes anew, after their rules or queues were changed."""
    finish: Callable[[LaneArrays, Int64s, Output], None]
    """End some lanes: deliver what can be, let go of the rest."""
    check: Callable[[LaneArrays, Int64s], tuple[int, int]]
    """Check what the other kernels rely on, in state that comes from outside: they check no bounds,
    and their loops end because of these rules. Zeros, one per place of the ring, are scratch.
    Returns (lane, index into `problems`) of the first lane with a problem, (0, 0) if all is well.
    """
    problems: tuple[str, ...]
    """What `check` may find."""

    def layout(self, settings: SyncSettings, *, rows: bool) -> Layout:
        """Return the layout of the state.

        Args:
            settings: For the number of topics and the size of the rings.
            rows: True: the row numbers of held messages are part of the state (in process, where
                payloads are kept by number). False: held messages are rows of the table `held`
                (stage).
        """
        n, ring = len(settings.topics), settings.ring
        arrays = {
            "search": Column(np.int64, (self.search.itemsize // 8,)),
            "topics": Column(np.int64, (n, self.topic.itemsize // 8)),
            "stamps": Column(np.int64, ((self.stamps_per_place or n) * ring,)),
        }
        if rows:
            arrays["rows"] = Column(np.int64, (n * ring,))
        return Layout(arrays, tables=() if rows else ("held",))

    def searches(self, state: State) -> Any:
        """The records of all lanes."""
        return state["search"].view(self.search)[:, 0]

    def topics(self, state: State) -> Any:
        """The records of all topics, lanes x topics."""
        return state["topics"].view(self.topic)[:, :, 0]

    def arrays(self, settings: SyncSettings, state: State, rows: Int64s) -> LaneArrays:
        """What the kernels get: views of the state, and the row numbers of what is held."""
        return LaneArrays(
            settings.rules,
            settings.topic_rules,
            self.searches(state),
            self.topics(state),
            state["stamps"],
            rows,
        )

    def held(self, topics: Any) -> Int64s:
        """How many messages each of these topics holds."""
        if self is EXACT:
            return np.asarray(topics["held"])
        return np.asarray(topics["tail"] - topics["head"])

    def output(self, settings: SyncSettings, held: int, coming: int) -> Output:
        """Return buffers for what one call can produce at most, so that kernels need no checks.

        Every message leaves at most once, as a member or without a set; a set has at least one
        member of every required topic; and every message that comes may report one jump.

        Args:
            settings: For topics, optional topics and `max_jump_back`.
            held: Messages that wait in the lanes of the call.
            coming: Messages the call brings.
        """
        n = len(settings.topics)
        smallest = n - len(set(settings.optional))
        sets = (held + coming) // smallest + 1
        jumps = coming if settings.max_jump_back is not None else 0
        return Output(
            np.empty(sets, SET),
            np.empty((sets, n), np.int64),
            np.empty((sets, n), np.int64),
            np.empty(held + coming + jumps + 1, DROP),
            np.zeros(1, COUNT),
        )

    def invariants(self, settings: SyncSettings, state: State, rows: Int64s) -> None:
        """Refuse restored state that would lead the kernels out of their arrays.

        Args:
            settings: The settings the state is used with.
            state: The restored state.
            rows: Row numbers of what is held, by lane and place.

        Raises:
            StateError: with the number of the lane and what is wrong there.
        """
        scratch = np.zeros(settings.ring, np.int64)
        lane, problem = self.check(self.arrays(settings, state, rows), scratch)
        if problem:
            raise StateError(f"the state of lane {lane} is damaged: {self.problems[problem]}")


def _messages_of(arrays: Any, messages: Arrivals, out: Output) -> int:
    """How many messages a call of `run` handles."""
    return len(messages.time_ns)


def _room_of(arrays: Any, lanes: Any, out: Output) -> int:
    """How many messages a call of `finish` can let go: those that wait."""
    return len(out.drops)


APPROXIMATE = Matcher(
    "approximate",
    (
        LeaveReason.TOO_OLD,
        LeaveReason.OVERFLOW,
        LeaveReason.UNPROVEN,
        LeaveReason.SUPERSEDED,
        LeaveReason.TIME_JUMP,
        LeaveReason.FLUSH,
    ),
    approximate.SEARCH,
    approximate.TOPIC,
    0,
    interpret_first(approximate.run_approximate, _messages_of),
    approximate.push_one_approximate,
    approximate.tick_approximate,
    approximate.search_approximate,
    interpret_first(approximate.finish_approximate, _room_of),
    approximate.check_approximate,
    approximate.PROBLEMS,
)
EXACT = Matcher(
    "exact",
    (
        LeaveReason.TOO_OLD,
        LeaveReason.OVERFLOW,
        LeaveReason.REPLACED,
        LeaveReason.TIME_JUMP,
        LeaveReason.FLUSH,
    ),
    exact.SEARCH,
    exact.TOPIC,
    2,
    interpret_first(exact.run_exact, _messages_of),
    exact.push_one_exact,
    exact.tick_exact,
    exact.search_exact,
    interpret_first(exact.finish_exact, _room_of),
    exact.check_exact,
    exact.PROBLEMS,
)
