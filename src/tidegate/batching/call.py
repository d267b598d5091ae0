# mypy: disable-error-code="no-untyped-call"
"""Calling the engine: packs rows, makes room for what comes out, keeps what still waits.

The one way into the kernel, for the in-process classes and for the pipeline operator alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.batching import layout as c
from tidegate.batching.arrays import World
from tidegate.batching.engine import load, run, run_call, settle_lanes
from tidegate.batching.period import RING
from tidegate.core.outcomes import Int64s
from tidegate.core.state import Column, State

__all__ = ["Deciding", "Decision", "Waiting", "batch_arrays", "clip_times"]

_REACH = 2**62 - 2**58
"""Times are decided on as if they lay within about 137 years of 1970: distances between any two of
them then fit into int64. The rows themselves keep the time they came with."""


def clip_times(time_ns: Int64s) -> Int64s:
    return np.clip(time_ns, -_REACH, _REACH)


def batch_arrays(max_streams: int) -> dict[str, Column]:
    """The arrays of the state, for a bound on streams per lane."""
    places = 1 << (2 * max_streams - 1).bit_length()
    return {
        "lane": Column(np.int64, (c.LANE_COLUMNS,)),
        "stream": Column(np.int64, (max_streams, c.STREAM_COLUMNS)),
        "ring": Column(np.int64, (max_streams, RING)),
        "find": Column(np.int16, (places,), -1),
    }


@dataclass
class Decision:
    """What one call decided. `order` are the numbers of the rows that leave, batch by batch."""

    rows: Int64s
    order: Int64s
    batches: Int64s
    parts: Int64s
    part_floats: NDArray[np.float64]
    named: Int64s

    def kept(self) -> Int64s:
        """The numbers of the rows that still wait, in order of arrival."""
        return np.flatnonzero(self.rows[:, c.WHERE] != c.GONE)


class Waiting:
    """The rows of a call: those that waited before, then the new ones.

    An operator makes one per call from its state. An in-process batcher keeps its own between
    calls, so that a call costs what it brings and not what waits.
    """

    def __init__(self, state: State, held: Int64s | None = None) -> None:
        self._rows = np.empty((256, c.ROW_COLUMNS), np.int64) if held is None else held
        self.used = 0 if held is None else len(held)
        self.lists = np.full((state.lanes, c.LIST_COLUMNS), -1, np.int64)
        load(self._rows, self.used, self.lists)

    @property
    def rows(self) -> Int64s:
        return self._rows[: self.used]

    def add(self, lane: Any, time_ns: Int64s, gated: Any) -> None:
        """New rows, in order of arrival."""
        first, self.used = self.used, self.used + len(time_ns)
        if self.used > len(self._rows):
            rows = np.empty((max(self.used, 2 * first), c.ROW_COLUMNS), np.int64)
            rows[:first] = self._rows[:first]
            self._rows = rows
        new = self._rows[first : self.used]
        new[:, c.TIME] = clip_times(time_ns)
        new[:, c.LANE] = lane
        new[:, c.GATED] = gated
        new[:, c.WHERE] = c.GONE

    def compact(self) -> Int64s:
        """Forget rows that have left. The rest is renumbered: gives back its old numbers."""
        kept = np.flatnonzero(self.rows[:, c.WHERE] != c.GONE)
        self._rows[: len(kept)] = self.rows[kept]
        self.used = len(kept)
        self.lists[:] = -1
        load(self._rows, self.used, self.lists)
        return kept


@dataclass(frozen=True)
class Deciding:
    """The settings every call needs."""

    length_ns: int
    timeout: float
    max_rows: int

    def one_at_a_time(
        self, state: State, waiting: Waiting, codes: Int64s, names: Int64s, wall_ns: int
    ) -> Decision:
        """Every batch that the new rows (the last `len(codes)`) imply."""
        rows = waiting.rows
        room = _Room(state, waiting, len(codes), len(codes) // 4 + 8)
        first, again = len(rows) - len(codes), False
        while first < len(rows):
            first, again = run(
                room.world, first, again, codes, names, state["find"], room.named,
                self.length_ns, self.timeout, self.max_rows, wall_ns, True,
            )  # fmt: skip
            if first < len(rows):
                room.grow()
        return room.decision()

    def as_one_call(
        self, state: State, waiting: Waiting, codes: Int64s, names: Int64s, wall_ns: int
    ) -> Decision:
        """At most one batch, with all new rows looked at together."""
        room = _Room(state, waiting, len(codes), 1)
        run_call(
            room.world, 0, codes, names, state["find"], room.named,
            self.length_ns, self.timeout, wall_ns, False,
        )  # fmt: skip
        return room.decision()

    def lanes(
        self, state: State, waiting: Waiting, numbers: Int64s, wall_ns: int, *, everything: bool
    ) -> Decision:
        """What is due in these lanes now, or everything they hold."""
        room = _Room(state, waiting, 0, waiting.used // 4 + 8)
        done = 0
        while done < len(numbers):
            done = settle_lanes(
                room.world, numbers, done, everything,
                self.timeout, self.max_rows, wall_ns, True,
            )  # fmt: skip
            if done < len(numbers):
                room.grow()
        return room.decision()


class _Room:
    """The world of one call."""

    def __init__(self, state: State, waiting: Waiting, n_new: int, batches: int) -> None:
        streams = state["stream"].shape[1]
        parts = batches * min(streams, 4) + streams
        self.named = np.empty(n_new, np.int64)
        self.world = World(
            rows=waiting.rows,
            lists=waiting.lists,
            lanes=state["lane"],
            streams=state["stream"],
            rings=state["ring"],
            numbers=np.empty(waiting.used, np.int64),
            spare=np.empty(waiting.used, np.int64),
            batches=np.empty((batches, c.BATCH_COLUMNS), np.int64),
            parts=np.empty((parts, c.PART_COLUMNS), np.int64),
            floats=np.empty((parts, c.PART_FLOATS), np.float64),
            work=np.zeros((1 + streams, c.WORK_COLUMNS), np.int64),
            scratch=np.empty(64 + 2 * streams, np.float64),
        )

    def grow(self) -> None:
        """Twice the room for batches and parts, keeping what is written."""
        w = self.world
        self.world = w._replace(
            batches=_doubled(w.batches), parts=_doubled(w.parts), floats=_doubled(w.floats)
        )

    def decision(self) -> Decision:
        w = self.world
        return Decision(
            w.rows,
            w.numbers[: w.work[0, c.N_OUT]],
            w.batches[: w.work[0, c.N_BATCHES]],
            w.parts[: w.work[0, c.N_PARTS]],
            w.floats[: w.work[0, c.N_PARTS]],
            self.named[: w.work[0, c.N_NAMED]],
        )


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    out = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
