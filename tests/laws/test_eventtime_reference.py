"""The event-time stage against a slow one written from the specification: a heap and plain dicts,
one row at a time, one key at a time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.outcomes import Collection, Late, Outcome, StreamError, Watermark
from tidegate.eventtime import EventtimeWatermark

Row = tuple[int, int, int, int]  # lane, time, source, id


@dataclass
class Source:
    newest: int
    seen: int
    idle: bool = False


@dataclass
class Lane:
    watermark: int | None = None
    sources: dict[int, Source] = field(default_factory=dict)
    heap: list[tuple[int, int, int]] = field(default_factory=list)
    suspects: list[tuple[int, int, int]] = field(default_factory=list)  # time, source, id
    out: list[tuple[Any, ...]] = field(default_factory=list)


class Reference:
    """Rules 1 to 7, 15 and 21 of the specification, word by word."""

    def __init__(self, config: EventtimeWatermark) -> None:
        self.config: Any = config
        self.lanes: dict[int, Lane] = defaultdict(Lane)
        self.arrivals = 0
        # Rule 15: without tolerance, a row equal to the newest is on time.
        self.tie = int(config.watermark_per == "tuple" and config.late_tolerance == 0)

    def process(self, rows: list[Row], wall: int) -> None:
        touched = []
        for number, time, source, ident in rows:
            lane = self.lanes[number]
            if lane not in touched:
                touched.append(lane)
            self.row(lane, time, source if self.config.source else 0, ident, wall)
        for lane in touched:
            self.release(lane)

    def row(self, lane: Lane, time: int, source: int, ident: int, wall: int) -> None:
        config = self.config
        known = lane.sources.get(source)
        if known is None and len(lane.sources) == (config.max_sources if config.source else 1):
            lane.out.append(("error", ident))
            return
        tuplewise = config.watermark_per == "tuple"
        was_idle = known is not None and known.idle
        if known is not None:
            self.find_idle(lane, wall, but=source)
            known.idle = False
            if tuplewise:
                self.move(lane)
        late = lane.watermark is not None and time <= lane.watermark
        if late:
            assert lane.watermark is not None
            lane.out.append(("late", ident, lane.watermark - time, lane.watermark))
            believed = [(time, source, ident)]
        else:
            believed = self.believed(lane, known, time, source, ident, wall)
            for time_, _, ident_ in believed:
                heapq.heappush(lane.heap, (time_, self.arrivals, ident_))
                self.arrivals += 1
        if not believed and known is not None:
            known.idle = was_idle
        for time_, source_, _ in believed:
            if source_ not in lane.sources:
                lane.sources[source_] = Source(time_, wall)
                self.find_idle(lane, wall, but=source_)
            other = lane.sources[source_]
            other.seen, other.idle = wall, False
            other.newest = max(other.newest, time_)
        if tuplewise:
            self.move(lane)

    def believed(
        self, lane: Lane, known: Source | None, time: int, source: int, ident: int, wall: int
    ) -> list[tuple[int, int, int]]:
        """The rows that are data now: this one, with the suspects before it if it confirms them, or
        none. Suspects that are given up become errors."""
        limit = self.config.max_future_skew
        row = (time, source, ident)
        if limit is None:
            return [row]
        if self.config.skew_against == "clock":
            if time > wall + limit:
                lane.out.append(("error", ident))
                return []
            return [row]
        ahead = known is not None and time > known.newest + limit
        if not ahead or (lane.suspects and abs(time - lane.suspects[-1][0]) > limit):
            lane.out += [("error", other) for _, _, other in lane.suspects]
            lane.suspects = []
        if not ahead:
            return [row]
        lane.suspects.append(row)
        if len(lane.suspects) < self.config.skew_confirm:
            return []
        found, lane.suspects = lane.suspects, []
        return found

    def find_idle(self, lane: Lane, wall: int, but: int | None = None) -> None:
        if self.config.idle_timeout is not None:
            for name, source in lane.sources.items():
                if name != but and wall - source.seen > self.config.idle_timeout:
                    source.idle = True

    def target(self, lane: Lane) -> int | None:
        active = [source.newest for source in lane.sources.values() if not source.idle]
        if active:
            return min(active) - int(self.config.late_tolerance) - self.tie
        newest = [source.newest for source in lane.sources.values()]
        return max(newest) - self.tie if newest else None

    def move(self, lane: Lane) -> bool:
        target = self.target(lane)
        if target is None or (lane.watermark is not None and target <= lane.watermark):
            return False
        lane.watermark = target
        return True

    def release(self, lane: Lane) -> None:
        self.move(lane)
        while (
            lane.heap
            and lane.watermark is not None
            and lane.heap[0][0] <= lane.watermark + self.tie
        ):
            time, _, ident = heapq.heappop(lane.heap)
            lane.out.append(("data", ident, time))

    def wake(self, wall: int) -> None:
        for lane in self.lanes.values():
            if self.config.idle_timeout is not None:
                self.find_idle(lane, wall)
                self.release(lane)

    def flush(self) -> None:
        for lane in self.lanes.values():
            lane.out += [("data", ident, time) for time, _, ident in sorted(lane.heap)]
            lane.heap = []
            lane.out += [("error", ident) for _, _, ident in lane.suspects]


def collection(rows: list[Row], wall: int) -> Collection:
    lane, time, source, ident = (list(column) for column in zip(*rows, strict=True))
    batch = pa.record_batch({"id": pa.array(ident), "source": pa.array(source)})
    return Collection(batch, np.array(time, np.int64), np.array(lane, np.int32), wall)


def by_lane(outcomes: list[Outcome]) -> dict[int, list[tuple[Any, ...]]]:
    """Data in order, then late, then errors, of each lane: what the two must agree on."""
    out: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome, Watermark):
            continue
        ids = outcome.rows.column("id").to_pylist()
        for place, lane in enumerate(outcome.lane.tolist()):
            if isinstance(outcome, Collection):
                out[lane].append(("data", ids[place], int(outcome.time_ns[place])))
            elif isinstance(outcome, Late):
                late, at = int(outcome.lateness_ns[place]), int(outcome.watermark_ns[place])
                out[lane].append(("late", ids[place], late, at))
            else:
                assert isinstance(outcome, StreamError)
                out[lane].append(("error", ids[place]))
    return {lane: sort(found) for lane, found in out.items()}


def sort(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=lambda each: each[0])


def configs() -> st.SearchStrategy[EventtimeWatermark]:
    return st.builds(
        EventtimeWatermark,
        late_tolerance=st.integers(0, 12),
        watermark_per=st.sampled_from(["collection", "tuple"]),
        max_future_skew=st.none() | st.integers(0, 25),
        skew_against=st.sampled_from(["rows", "clock"]),
        skew_confirm=st.integers(1, 3),
        source=st.none() | st.just("source"),
        max_sources=st.integers(1, 3),
        idle_timeout=st.none() | st.integers(1, 20),
    )


rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-10, 60), st.integers(0, 3)), min_size=1, max_size=12
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), rows, st.integers(-3, 15)),
        st.tuples(st.just("wake"), st.none(), st.integers(0, 30)),
    ),
    max_size=12,
)


@settings(max_examples=250, deadline=None)
@given(config=configs(), steps=steps)
def test_stage_equals_reference(config: EventtimeWatermark, steps: Any) -> None:
    reference = Reference(config)
    state = config.open(3)
    outcomes: list[Outcome] = []
    wall, ident = 0, 0
    for what, given_rows, later in steps:
        wall += later  # now and then backwards: wall clocks are set
        if what == "wake":
            reference.wake(wall)
            outcomes += config.wake(state, wall)
            continue
        numbered = [(*row, ident + place) for place, row in enumerate(given_rows)]
        ident += len(numbered)
        reference.process(numbered, wall)
        outcomes += config.process(state, collection(numbered, wall))
        for number, lane in reference.lanes.items():
            held = state["watermark"][number]
            assert lane.watermark == (None if held == -(2**63) else held)
    held = sum(len(lane.heap) + len(lane.suspects) for lane in reference.lanes.values())
    assert config.metrics(state)["rows_held"] == held
    reference.flush()
    outcomes += config.flush(state)
    expected = {n: sort(lane.out) for n, lane in reference.lanes.items() if lane.out}
    assert by_lane(outcomes) == expected
