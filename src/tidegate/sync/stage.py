"""Synchronisation as a stage of a pipeline: many keys at once, payloads as Arrow columns.

A message that may still be needed waits as a row of the state table `held`; the kernel knows it by
its row number in (held rows, then new rows). Clock policy: event time of a key's own messages; the
watermark decides nothing here and is handed on as far as future sets allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Outcome,
    Side,
    StreamError,
    Watermark,
)
from tidegate.core.parallel import MANY, each, whole_runs
from tidegate.core.state import Column, Layout, State, as_text
from tidegate.core.time import UNSET
from tidegate.errors import ConfigError
from tidegate.sync import rows as assemble
from tidegate.sync.diagnosis import counters_of, diagnose
from tidegate.sync.layout import D_REASON, D_ROW, D_TIME, D_TOPIC
from tidegate.sync.matchers import APPROXIMATE, EXACT, Decided, Policy
from tidegate.sync.results import Diagnosis
from tidegate.sync.settings import SyncSettings, shifted

__all__ = ["Synchronize"]

_POLICIES = {"approximate": APPROXIMATE, "exact": EXACT}
_UNKNOWN, _NULL = 0, 1
_NO_SUCH_TOPIC, _NO_TOPIC = -1, -2


@dataclass(frozen=True)
class Synchronize(SyncSettings, Operator):
    """Sets of one message per topic, per key.

    A row of the output is one set: the `keys` of its first member, `spread_ns`, `decided_at_ns`
    (the stamp of the message that decided it) and per topic a struct of that topic's name with the
    payload columns and the member's `time_ns`; null where an optional member is missing. The event
    time of the row is that of its latest member.
    """

    name: ClassVar[str] = "synchronize"
    version: ClassVar[int] = 1

    topic: str = "topic"
    """The column that holds the topic."""
    keys: tuple[str, ...] = ()
    """Columns carried over to the set, from its first member."""
    unmatched: bool = True
    """Deliver the messages that leave without a set. They are counted in any case."""
    policy: str = "approximate"
    """`"approximate"` or `"exact"` (equal stamps; queue_size then counts open stamps)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        keys: Any = self.keys
        self._put("keys", (keys,) if isinstance(keys, str) else tuple(keys))
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError("topic", self.topic, "must be the name of a column")
        if self.policy not in _POLICIES:
            raise ConfigError("policy", self.policy, 'must be "approximate" or "exact"')
        taken = {"time_ns", "spread_ns", "decided_at_ns", *self.keys}
        for name in self.topics:
            if name in taken:
                raise ConfigError("topics", name, "is also the name of another output column")
        if self.policy == "exact":
            for field in ("max_interval", "optional", "timeout", "overflow_patience"):
                if getattr(self, field):
                    raise ConfigError(field, getattr(self, field), 'not with policy "exact"')
            if self.learn_bounds or any(self.lower_bounds):
                raise ConfigError("lower_bounds", self.lower_bounds, 'not with policy "exact"')

    @property
    def matching(self) -> Policy:
        return _POLICIES[self.policy]

    def compile(self) -> None:
        state = self.open()
        core, ring, rows = state["core"], state["ring"], self._rows(state)
        none = np.empty(0, np.int64)
        sets, drops, cur = self.matching.room(self, 0, 0)
        self.matching.run(self.codes, core, ring, rows, none, none, none, 0, none, sets, drops, cur)
        self.matching.finish(self.codes, core, ring, rows, none, sets, drops, cur)

    @property
    def needs_time(self) -> bool:
        return True

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {self.topic: tuple(self.topics)}

    def layout(self) -> Layout:
        base = self.matching.layout(self, rows=False)
        arrays = {
            **base.arrays,
            "handed": Column(np.int64, (), UNSET),  # the last watermark handed on
            "unusable": Column(np.int64, (2,)),  # rows of no known topic, rows without a topic
        }
        return Layout(arrays, base.tables)

    def schema(self, rows: pa.Schema) -> pa.Schema:
        self._check(rows)
        return assemble.set_schema(rows, self.topics, self.topic, self.keys)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        if self.max_jump_back is None:
            return {}
        return {"clock_jump": assemble.jump_schema(rows, self.topic, self.keys)}

    def _check(self, rows: pa.Schema) -> None:
        for field, column in [("topic", self.topic), *(("keys", key) for key in self.keys)]:
            if rows.get_field_index(column) < 0:
                have = ", ".join(rows.names)
                raise ConfigError(field, column, f"must be a column of the rows: {have}")

    # -- transitions ----------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        self._check(collection.schema)
        state.grow(int(collection.lane.max()) + 1)
        out: list[Outcome] = []
        number = collection.read(self.topic, self._numbers)
        usable, unknown = np.arange(len(number)), np.empty(0, np.int64)
        if int(number.min()) < 0:
            usable, unknown = np.flatnonzero(number >= 0), np.flatnonzero(number == _NO_SUCH_TOPIC)
            null = np.flatnonzero(number == _NO_TOPIC)
            if len(null):
                out.append(self._no_topic(state, collection.take(null)))
        held = state.tables["held"]
        count = 0 if held is None else int(held.num_rows)
        all_rows = assemble.held_and_new(held, collection, usable)
        topics, times = number, collection.time_ns
        if len(usable) < len(number):
            topics, times = number[usable], times[usable]
        if self.shifts.any():
            times = shifted(times, self.shifts[topics])
        lanes, rows = all_rows.lane[count:], self._rows(state)
        waiting = np.bincount(all_rows.lane[:count], minlength=state.lanes)
        places = np.empty(len(usable), np.int64)
        stays = np.ones(len(all_rows), np.bool_)

        def decide(part: slice) -> tuple[Decided, list[Outcome]]:
            mine = lanes[part].astype(np.int64)
            there = count
            if several:  # whole lanes, so what waits there is no other part's
                there = int(waiting[mine[0] : mine[-1] + 1].sum())
            sets, drops, cur = self.matching.room(self, there, len(mine))
            self.matching.run(
                self.codes, state["core"], state["ring"], rows, mine, topics[part], times[part],
                count + part.start, places[part], sets, drops, cur,
            )  # fmt: skip
            decided = Decided.of(sets[: cur[0]], drops[: cur[1]], self, self.matching)
            assemble.gone(stays, decided)
            return decided, self._outcomes(all_rows, decided, collection.wall_ns)

        work = [slice(0, len(lanes))] if len(unknown) else _by_lane(lanes)
        several = len(work) > 1
        done = each(decide, work)
        for _, made in done:
            out += made
        if len(unknown):
            np.add.at(state["unusable"][:, _UNKNOWN], collection.lane[unknown], 1)
            rest = collection.take(unknown)
            assemble.merge_unknown(out, rest, unknown, usable, done[0][0], count)
        assemble.keep(state, all_rows, stays, places)
        return out

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        """Hand on what no future set can undercut: a set is as late as its latest member, and
        must hold a message of every required topic, held already or still to come."""
        state.grow(int(watermark.lane.max()) + 1)
        n, k = len(self.topics), self.matching.kernel
        coming = shifted(np.repeat(watermark.time_ns[:, None], n, 1), self.shifts[None, :])
        if self.policy == "approximate":
            core = state["core"][watermark.lane]
            fronts = self.matching.topic(core, n, k.FRONT)
            earliest = np.where(self.matching.held(core, n) > 0, fronts - 1, coming)
            required = [j for j, name in enumerate(self.topics) if name not in self.optional]
            safe = np.minimum(watermark.time_ns, earliest[:, required].max(axis=1))
        else:
            safe = np.minimum(watermark.time_ns, coming.min(axis=1))
        newer = safe > state["handed"][watermark.lane]
        if not newer.any():
            return []
        state["handed"][watermark.lane[newer]] = safe[newer]
        return [Watermark(safe[newer], watermark.lane[newer])]

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        which = np.arange(state.lanes) if lanes is None else np.asarray(lanes)
        which = which[state["core"][which, self.matching.kernel.OPEN] != 0].astype(np.int64)
        held = state.tables["held"]
        if not len(which):
            return []
        count = 0 if held is None else int(held.num_rows)
        sets, drops, cur = self.matching.room(self, count, 0)
        rows = self._rows(state)
        self.matching.finish(
            self.codes, state["core"], state["ring"], rows, which, sets, drops, cur
        )
        state.touch(which)
        if held is None:
            return []
        all_rows = assemble.AllRows.of_held(held)
        decided = Decided.of(sets[: cur[0]], drops[: cur[1]], self, self.matching)
        out = self._outcomes(all_rows, decided, 0)
        stays = np.ones(len(all_rows), np.bool_)
        assemble.gone(stays, decided)
        assemble.keep(state, all_rows, stays, np.empty(0, np.int64))
        return out

    def discard(self, state: State) -> dict[str, int]:
        waiting = state.rows("held")
        state.free(np.arange(state.lanes))
        return {"held": waiting}

    def metrics(self, state: State) -> dict[str, int | float]:
        per_topic = counters_of(self.matching, self, state["core"])
        names = next(iter(per_topic.values()))
        out: dict[str, int | float] = {
            name: sum(counts[name] for counts in per_topic.values()) for name in names
        }
        out["sets"] = int(state["core"][:, self.matching.kernel.SETS].sum())
        out["held"] = state.rows("held")
        out["unknown_topic"] = int(state["unusable"][:, _UNKNOWN].sum())
        out["null_topic"] = int(state["unusable"][:, _NULL].sum())
        return out

    def counters(self, state: State) -> dict[str, dict[str, int]]:
        """Per topic, over all keys: received, matched, and one count per reason for leaving."""
        return counters_of(self.matching, self, state["core"])

    def diagnose(self, state: State, lane: int = 0) -> Diagnosis:
        """Which topic holds up the match of this lane, and by how much."""
        return diagnose(self.matching, self, state["core"][lane])

    def _numbers(self, column: pa.Array) -> Int64s:
        """The number of each row's topic; below zero if it has none, or an unknown one."""
        column = as_text(column)
        found = pc.index_in(column, pa.array(self.topics, column.type))
        if not found.null_count:
            return np.asarray(found.to_numpy(), np.int64)
        number = np.asarray(pc.fill_null(found, _NO_SUCH_TOPIC).to_numpy(), np.int64)
        number[column.is_null().to_numpy(zero_copy_only=False)] = _NO_TOPIC
        return number

    # -- rows -----------------------------------------------------------------------------------

    def _rows(self, state: State) -> Int64s:
        """Where the kernel finds the row numbers of what is held: rebuilt for every call, so that
        the table may be paged, filtered and joined in between."""
        rows = np.empty((state.lanes, len(self.topics) * self.ring), np.int64)
        if self.policy == "exact":
            rows.fill(-1)  # there, an empty place means a missing member
        held = state.tables["held"]
        if held is not None and held.num_rows:
            lane, place = assemble.places_of(held)
            rows[lane, place] = np.arange(held.num_rows)
        return rows

    def _no_topic(self, state: State, rows: Collection) -> StreamError:
        np.add.at(state["unusable"][:, _NULL], rows.lane, 1)
        n = len(rows)
        return StreamError(
            rows.rows,
            pa.array([self.topic] * n, pa.string()),
            pa.nulls(n, pa.string()),
            pa.array(["topic is null"] * n, pa.string()),
            rows.lane,
        )

    def _outcomes(self, rows: assemble.AllRows, decided: Decided, wall_ns: int) -> list[Outcome]:
        out: list[Outcome] = []
        if len(decided.members):
            made = assemble.sets(rows, decided, self.topics, self.topic, self.keys)
            lane = decided.lane.astype(np.int32)
            out.append(Collection(made, decided.time_ns.copy(), lane, wall_ns))
        gone, jumps = decided.gone, decided.jumps
        if self.unmatched and len(gone):
            at = gone[:, D_ROW]
            time_ns = shifted(gone[:, D_TIME], -self.shifts[gone[:, D_TOPIC]])
            names = pa.array(self.matching.reasons, pa.string())
            reason = names.take(pa.array(gone[:, D_REASON]))
            out.append(Dropped(rows.take(at), time_ns, rows.lane[at], reason))
        if len(jumps):
            at = jumps[:, D_ROW]
            made = assemble.jumps(rows, jumps, self.topic, self.keys)
            out.append(Side("clock_jump", made, rows.lane[at]))
        return out


def _by_lane(lanes: Int32s) -> list[slice]:
    """Parts to work on side by side: where rows lie by lane, whole lanes each."""
    if len(lanes) < MANY or bool((lanes[1:] < lanes[:-1]).any()):
        return [slice(0, len(lanes))]
    return whole_runs(lanes)
