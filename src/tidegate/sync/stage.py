"""Synchronisation as a stage of a pipeline: many keys at once, payloads as Arrow columns.

A message that may still be needed waits as a row of the state table `held`; the kernel knows it by
its row number in (held rows, then new rows). Clock policy: event time of a key's own messages; the
watermark decides nothing here and is handed on as far as future sets allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.arrow import as_text
from tidegate.core.checks import boolean, names, one_of
from tidegate.core.columns import LANE, PLACE
from tidegate.core.numba import all_readonly, as_readonly, compile_at_once
from tidegate.core.operator import Adopted, Operator, check_state, left_behind
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
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET
from tidegate.errors import ConfigError, StateError
from tidegate.sync import rows as assemble
from tidegate.sync.diagnosis import counters_of, diagnose
from tidegate.sync.lane import Arrivals, LaneArrays, LeaveReason
from tidegate.sync.matchers import APPROXIMATE, EXACT, Decided, Matcher
from tidegate.sync.resize import (
    forget_old_rules,
    resize_approximate,
    resize_exact,
    stamps_of_held,
)
from tidegate.sync.results import PROBLEMS, Diagnosis
from tidegate.sync.settings import SyncSettings, check_epsilon

__all__ = ["Synchronize"]

_MATCHERS = {"approximate": APPROXIMATE, "exact": EXACT, "epsilon": APPROXIMATE}
_REASONS = pa.array([reason.name.lower() for reason in LeaveReason], pa.string())
_SEARCH_SETTINGS = frozenset(
    ("queue_size", "max_queue", "age_penalty", "max_interval", "lower_bounds", "learn_bounds",
     "optional", "timeout")
)  # fmt: skip
"""Settings that a search which is under way depends on."""
_LATEST_IN_PROCESS = (
    "is in process only (tidegate.sync.LatestTime); in a flow use an align stage with the pivot as "
    "reference and the method latest, which makes the same sets: align: {reference: <pivot>, "
    "topics: {<other>: latest}, missing: drop}"
)
"""Why a stage has no policy `latest`: `align` makes the same sets (docs/adr/0017)."""
_UNKNOWN, _NULL = 0, 1
_NO_SUCH_TOPIC, _NO_TOPIC = -1, -2


@dataclass(frozen=True, kw_only=True)
class Synchronize(SyncSettings, Operator):
    """Sets of one message per topic, per key.

    A row of the output is one set: the `keys` of its first member, `spread_ns`, `decided_at_ns`
    (the stamp of the message that decided it) and per topic a struct of that topic's name with the
    payload columns and the member's `time_ns`; null where an optional member is missing. The event
    time of the row is that of its latest member.
    """

    name: ClassVar[str] = "synchronize"
    version: ClassVar[int] = 2
    adopts: ClassVar[Mapping[str, str]] = {
        "queue_size": "holds from then on; smaller, the oldest messages leave as overflow",
        "max_queue": "holds from then on; smaller, the oldest messages leave as overflow",
        "queue_time": "holds from the next message of a topic on",
        "age_penalty": "holds for every set that was not delivered yet",
        "max_interval": "holds for every set that was not delivered yet",
        "lower_bounds": "holds for every set that was not delivered yet",
        "learn_bounds": "turned off, what was learned is forgotten",
        "optional": "holds for every set that was not delivered yet",
        "timeout": "holds for every set that was not delivered yet",
        "max_jump_back": "holds for messages from then on",
        "on_jump": "holds for messages from then on",
        "overflow_patience": "holds from then on",
        "unmatched": "holds for messages that leave from then on",
        "diagnosis": "holds from the next collection on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "topics": "messages wait under the numbers of their topics",
        "policy": "the two searches keep different states",
        "offsets": "the search keeps corrected stamps",
        "topic": "waiting messages were sorted by the old column",
        "keys": "the state is kept by key",
    }

    topic: str = "topic"
    """The column that holds the topic."""
    keys: tuple[str, ...] = ()
    """Columns carried over to the set, from its first member."""
    unmatched: bool = True
    """Deliver the messages that leave without a set. They are counted in any case."""
    policy: str = "approximate"
    """`"approximate"`; `"exact"` (equal stamps; queue_size then counts open stamps); or
    `"epsilon"`: the oldest messages of all topics once they lie within `max_interval`. There is no
    `"latest"` here: an `align` stage with method `latest` does that for rows."""

    diagnosis: bool = False
    """Deliver a side table `diagnosis`: a row for a key whenever its diagnosis (`Diagnosis.problem`
    and `topic`) changes, at the end of a collection. Off by default: it costs a look at every key
    of a collection, and when rows come depends on how the input was cut."""

    def __post_init__(self) -> None:
        super().__post_init__()
        boolean("diagnosis", self.diagnosis)
        self._put("keys", names("keys", self.keys))
        boolean("unmatched", self.unmatched)
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError("topic", self.topic, "must be the name of a column")
        if self.policy == "latest":
            raise ConfigError("policy", self.policy, _LATEST_IN_PROCESS)
        one_of("policy", self.policy, _MATCHERS)
        taken = {"time_ns", "spread_ns", "decided_at_ns", *self.keys}
        for name in self.topics:
            if name in taken:
                raise ConfigError("topics", name, "is also the name of another output column")
        if self.policy == "epsilon":
            check_epsilon(self)
            self.rules["greedy"] = 1
        if self.policy == "exact":
            for field in ("max_interval", "optional", "timeout", "overflow_patience"):
                if getattr(self, field):
                    raise ConfigError(field, getattr(self, field), 'not with policy "exact"')
            if self.learn_bounds or any(self.lower_bounds):
                raise ConfigError("lower_bounds", self.lower_bounds, 'not with policy "exact"')

    @property
    def matcher(self) -> Matcher:
        """The search this stage uses."""
        return _MATCHERS[self.policy]

    def compile(self) -> None:
        state, matcher = self.open(), self.matcher
        none = np.empty(0, np.int64)
        read = as_readonly(none)
        out = matcher.output(self, 0, 0)
        arrays = self._arrays(state)
        with compile_at_once():
            matcher.run(arrays, Arrivals(none, read, read, 0, none), out)
            matcher.search_again(arrays, none, out)
            matcher.finish(arrays, none, out)
            self.invariants(state)

    @property
    def needs_time(self) -> bool:
        return True

    def input_columns(self) -> frozenset[str] | None:
        return frozenset({self.topic, *self.keys})

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {self.topic: tuple(self.topics)}

    def layout(self) -> Layout:
        base = self.matcher.layout(self, rows=False)
        arrays = {
            **base.arrays,
            "handed": Column(np.int64, (), UNSET),  # the last watermark handed on
            "unusable": Column(np.int64, (2,)),  # rows of no known topic, rows without a topic
            "told": Column(np.int64),  # the last diagnosis delivered: see _verdicts
        }
        return Layout(arrays, base.tables)

    def schema(self, rows: pa.Schema) -> pa.Schema:
        self._check(rows)
        return assemble.set_schema(rows, self, self.topic, self.keys)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        out = {}
        if self.max_jump_back is not None:
            out["clock_jump"] = assemble.jump_schema(rows, self.topic, self.keys)
        if self.diagnosis:
            out["diagnosis"] = assemble.diagnosis_schema(rows, self.keys)
        return out

    def _check(self, rows: pa.Schema) -> None:
        """Raise a ConfigError unless the topic and the keys are columns of the rows."""
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
        topics, times = all_readonly(topics, times)
        lanes, arrays = all_rows.lane[count:], self._arrays(state)
        waiting = np.bincount(all_rows.lane[:count], minlength=state.lanes)
        places = np.empty(len(usable), np.int64)
        stays = np.ones(len(all_rows.lane), np.bool_)

        def decide(part: slice) -> tuple[Decided, list[Outcome]]:
            mine = lanes[part].astype(np.int64)
            there = count
            if several:  # whole lanes, so what waits there is no other part's
                there = int(waiting[mine[0] : mine[-1] + 1].sum())
            result = self.matcher.output(self, there, len(mine))
            first = count + part.start
            messages = Arrivals(mine, topics[part], times[part], first, places[part])
            self.matcher.run(arrays, messages, result)
            decided = Decided.of(result, self)
            assemble.leave(stays, decided)
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
        if self.diagnosis and len(usable):
            out += self._verdicts(state, collection, usable)
        return out

    def _verdicts(self, state: State, collection: Collection, usable: Int64s) -> list[Outcome]:
        """The diagnoses that changed, of the lanes of this collection.

        `told` holds the last one of a lane as problem + 16 * (topic + 1); 0: none yet. Starting up
        is not worth a row.
        """
        lanes, first = np.unique(collection.lane[usable], return_index=True)
        topics, searches = self.matcher.topics(state), self.matcher.searches(state)
        found, rows = [], []
        for lane, row in zip(lanes.tolist(), usable[first].tolist(), strict=True):
            now = diagnose(self.matcher, self, searches[lane], topics[lane])
            number = 0 if now.topic is None else self.topics.index(now.topic) + 1
            code = PROBLEMS.index(now.problem) + 16 * number
            if now.problem != "starting" and code != state["told"][lane]:
                state["told"][lane] = code
                found.append(now)
                rows.append(row)
        if not found:
            return []
        picked = collection.take(np.array(rows))
        made = assemble.diagnosis_rows(picked.rows, found, self.keys)
        return [Side("diagnosis", made, picked.lane)]

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        """Hand on what no future set can undercut: a set is as late as its latest member, and
        must hold a message of every required topic, held already or still to come."""
        state.grow(int(watermark.lane.max()) + 1)
        safe = watermark.time_ns
        if self.matcher is APPROXIMATE:
            # Stamps as delivered: a watermark knows nothing of offsets.
            topics = self.matcher.topics(state)[watermark.lane]
            fronts = topics["front"] - self.topic_rules["offset"] - 1
            earliest = np.where(self.matcher.held(topics) > 0, fronts, watermark.time_ns[:, None])
            required = [j for j, name in enumerate(self.topics) if name not in self.optional]
            safe = np.minimum(watermark.time_ns, earliest[:, required].max(axis=1))
        handed = state["handed"]
        newer = safe > handed[watermark.lane]
        if not newer.any():
            return []
        handed[watermark.lane[newer]] = safe[newer]
        return [Watermark(safe[newer], watermark.lane[newer])]

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        which = np.arange(state.lanes) if lanes is None else np.asarray(lanes)
        which = which[self.matcher.searches(state)["open"][which] != 0].astype(np.int64)
        held = state.tables["held"]
        if not len(which):
            return []
        count = 0 if held is None else int(held.num_rows)
        result = self.matcher.output(self, count, 0)
        self.matcher.finish(self._arrays(state), which, result)
        state.touch(which)
        if held is None:
            return []
        all_rows = assemble.AllRows.of_held(held)
        decided = Decided.of(result, self)
        out = self._outcomes(all_rows, decided, 0)
        stays = np.ones(len(all_rows), np.bool_)
        assemble.leave(stays, decided)
        assemble.keep(state, all_rows, stays, np.empty(0, np.int64))
        return out

    def discard(self, state: State) -> dict[str, int]:
        waiting = state.rows("held")
        state.free(np.arange(state.lanes))
        return {"rows_held": waiting}

    def metrics(self, state: State) -> dict[str, int | float]:
        per_topic = self.counters(state)
        names = next(iter(per_topic.values()))
        out: dict[str, int | float] = {
            name: sum(counts[name] for counts in per_topic.values()) for name in names
        }
        out["sets"] = int(self.matcher.searches(state)["sets"].sum())
        out["rows_held"] = state.rows("held")
        out["unknown_topic"] = int(state["unusable"][:, _UNKNOWN].sum())
        out["null_topic"] = int(state["unusable"][:, _NULL].sum())
        return out

    def counters(self, state: State) -> dict[str, dict[str, int]]:
        """Per topic, over all keys: received, matched, and one count per reason for leaving."""
        return counters_of(self.matcher, self, self.matcher.topics(state))

    def diagnose(self, state: State, lane: int = 0) -> Diagnosis:
        """Return which topic holds up the match of a lane, and by how much.

        Args:
            state: The state of the stage.
            lane: Number of the lane; 0 is the first key that came.
        """
        topics = self.matcher.topics(state)[lane]
        return diagnose(self.matcher, self, self.matcher.searches(state)[lane], topics)

    def _numbers(self, column: pa.Array) -> Int64s:
        """Return the number of each row's topic; _NO_TOPIC for null, _NO_SUCH_TOPIC for an unknown
        one."""
        column = as_text(column)
        found = pc.index_in(column, pa.array(self.topics, column.type))
        if not found.null_count:
            return np.asarray(found.to_numpy(), np.int64)
        number = np.asarray(pc.fill_null(found, _NO_SUCH_TOPIC).to_numpy(), np.int64)
        number[column.is_null().to_numpy(zero_copy_only=False)] = _NO_TOPIC
        return number

    # -- rows -----------------------------------------------------------------------------------

    def _arrays(self, state: State) -> LaneArrays:
        """The state as the kernels see it. The row numbers of what is held are found anew for every
        call, so that the table may be paged, filtered and joined in between."""
        shape = (state.lanes, len(self.topics) * self.ring)
        # The exact search reads an empty place as a missing member; the other one reads none.
        rows = np.full(shape, -1, np.int64) if self.policy == "exact" else np.empty(shape, np.int64)
        held = state.tables["held"]
        if held is not None and held.num_rows:
            lane, place = assemble.held_places(held)
            rows[lane, place] = np.arange(held.num_rows)
        return self.matcher.arrays(self, state, rows)

    def invariants(self, state: State) -> None:
        """Refuse restored state that would lead the kernels out of their arrays: see
        `Matcher.invariants`. Besides, every held row must stand in exactly one place.

        Raises:
            StateError: with what is wrong.
        """
        rows = np.full((state.lanes, len(self.topics) * self.ring), -1, np.int64)
        held = state.tables["held"]
        waiting = self.matcher.held(self.matcher.topics(state)).astype(np.uint64).sum(axis=1)
        if held is not None and held.num_rows:
            kinds = {held.schema.field(PLACE).type} if PLACE in held.schema.names else set()
            if kinds != {pa.int64()} or held.column(PLACE).null_count:
                raise StateError("the table of held rows is damaged: it has no places")
            lane, place = assemble.held_places(held)
            if not 0 <= place.min() <= place.max() < rows.shape[1]:
                raise StateError("the table of held rows is damaged: a place out of range")
            rows[lane, place] = np.arange(held.num_rows)
            if int((rows >= 0).sum()) != held.num_rows:
                raise StateError("the table of held rows is damaged: two rows in one place")
        if not np.array_equal(waiting, (rows >= 0).sum(axis=1).astype(np.uint64)):
            raise StateError("the table of held rows is damaged: the queues hold other messages")
        self.matcher.invariants(self, state, rows)

    # -- other settings ---------------------------------------------------------------------------

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """Move the queues into rings of the new size; what does not fit leaves as overflow, oldest
        first. Where a rule of the search changed, candidates that were not delivered are undone and
        searched again, which may deliver sets at once."""
        changed = {each.setting.partition(".")[0] for each in self.changes(old)}
        if not changed & _SEARCH_SETTINGS:
            return Adopted(state.conformed(self.layout(), self.name), [])
        if not {"search", "topics", "stamps"} <= set(state.arrays) or "held" not in state.tables:
            raise StateError("state of synchronize: arrays differ from the layout")
        resize = resize_exact if self.policy == "exact" else resize_approximate
        made, gone, times = resize(self, self.matcher, state, self.layout())
        outcomes: list[Outcome] = []
        if self.unmatched and len(gone):
            rows, lane = assemble.AllRows.of_held(gone), gone.column(LANE).to_numpy()
            reason = _REASONS.take(pa.array(np.full(len(lane), int(LeaveReason.OVERFLOW))))
            outcomes.append(Dropped(rows.source, times, lane, reason))
        if self.policy == "approximate":
            forget_old_rules(self, self.matcher, made)
            check_state(self, made)
            outcomes += self._search_again(made)
        return Adopted(made, outcomes)

    def _search_again(self, state: State) -> list[Outcome]:
        """Undo what was found but not delivered, search with the settings of now, and return the
        sets and the messages that leave because of it."""
        lanes = np.flatnonzero(self.matcher.searches(state)["open"] != 0).astype(np.int64)
        held = state.tables["held"]
        if held is None or not held.num_rows or not len(lanes):
            return []
        result = self.matcher.output(self, held.num_rows, 0)
        self.matcher.search_again(self._arrays(state), lanes, result)
        all_rows, decided = assemble.AllRows.of_held(held), Decided.of(result, self)
        out = self._outcomes(all_rows, decided, 0)
        stays = np.ones(len(all_rows), np.bool_)
        assemble.leave(stays, decided)
        assemble.keep(state, all_rows, stays, np.empty(0, np.int64))
        return out

    @classmethod
    def release(cls, state: State, settings: Mapping[str, Any]) -> list[Outcome]:
        """Messages wait without a time of their own in the table: it is in the rings."""
        held = state.tables.get("held")
        if held is None or not held.num_rows:
            return []
        matcher = _MATCHERS[settings["policy"]]
        return [left_behind(held, stamps_of_held(matcher, state, settings))]

    def _no_topic(self, state: State, rows: Collection) -> StreamError:
        """Count rows whose topic is null, and return them as error rows."""
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
        """Return what was decided as outcomes: sets, then dropped rows, then jumps of clocks.

        Args:
            rows: Held and new rows.
            decided: What the kernel decided.
            wall_ns: Wall time of the collection, handed on with the sets; 0 at a flush.
        """
        out: list[Outcome] = []
        if len(decided.members):
            made = assemble.set_rows(rows, decided, self, self.topic, self.keys)
            lane = decided.sets["lane"].astype(np.int32)
            out.append(Collection(made, decided.sets["time_ns"].copy(), lane, wall_ns))
        gone, jumps = decided.gone, decided.jumps
        if self.unmatched and len(gone):
            at = np.ascontiguousarray(gone["row"])
            reason = _REASONS.take(pa.array(gone["reason"]))
            out.append(Dropped(rows.take(at), gone["time_ns"].copy(), rows.lane[at], reason))
        if len(jumps):
            made = assemble.jump_rows(rows, jumps, self.topic, self.keys)
            out.append(Side("clock_jump", made, rows.lane[jumps["row"]]))
        return out


def _by_lane(lanes: Int32s) -> list[slice]:
    """Return slices of the rows to work on side by side, each of whole lanes.

    One slice if there are few rows, where threads cost more than they save, or if the rows are not
    sorted by lane.
    """
    if len(lanes) < MANY or bool((lanes[1:] < lanes[:-1]).any()):
        return [slice(0, len(lanes))]
    return whole_runs(lanes)
