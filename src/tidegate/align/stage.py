"""Align as a stage: every topic's value at the times of a reference topic, or on a grid.

Theory of operation. A *point* is a moment to align to. The rows that may still be needed wait in
the state: points not yet decided, and per topic the messages that a later point could use. Every
call puts the waiting rows before the new ones, finds the messages around each point (`kernels`),
and delivers the points that are decided, in order. A point is decided when nothing that could
change one of its values can still come; `methods` says when that is.

Clock policy: event time only. Per lane, `known_ns` is the larger of the watermark and the newest
row's time minus 1 ns: rows come in time order (the event-time stage before this one sees to that),
so nothing at or before it will come any more. Wall time decides nothing.

A row of the output stands for one point: the keys; on a reference, a struct of its columns and its
`time_ns`; per topic a struct of its columns with

- `time_ns`: when the value was measured. For `linear` and `slerp` that of the closer message, for
  aggregates that of the newest message;
- `offset_ns`: that time minus the time of the row; negative means older;
- `missing`: why there is no value; null where there is one.

The path of a row through this file:

    process    number its topic; set aside late rows and null topics; join it to those that wait
    _decide    group rows by lane and topic, list the points, find values, see what is decided
    _deliver   make output rows of decided points, or drop those that lack a value
    _let_go    keep what later points may need; drop the rest, with a reason if nothing used it

`advance` and `flush` run `_decide` without new rows: more is known, so more is decided. Rows
leave in an order given by their times, so that no cut of the input changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.align import kernels as k
from tidegate.align.methods import Method, parse_method
from tidegate.align.values import aggregate, aggregate_type, blend, blend_type
from tidegate.core.arrow import as_text, concat, ranges, take
from tidegate.core.checks import boolean, duration, names, one_of
from tidegate.core.columns import ADDRESS, LANE, PREFIX, TIME, output_names
from tidegate.core.numba import as_readonly
from tidegate.core.operator import Adopted, Operator
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Side,
    StreamError,
    Watermark,
)
from tidegate.core.parallel import MANY, each, parts
from tidegate.core.sort import order_rows
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.time import MAX_NS, UNSET, Duration
from tidegate.errors import ConfigError, StateError

__all__ = ["Align"]

USED = PREFIX + "used"
"""bool: whether a waiting message has been a value of some row."""

UNUSED = "not used by any aligned row"
"""The reason a message of an aligned topic leaves with when no row used it."""
NOT_ALIGNED = "topic is not aligned"
"""The reason a message leaves with when its topic is neither aligned nor the reference."""

_UNKNOWN, _NULL, _LATE = -1, -2, -3
"""Instead of a topic's number: a topic that is not aligned, no topic, a row out of order."""


class _Unusable(IntEnum):
    """The columns of the state array `unusable`: rows counted per lane."""

    UNKNOWN = 0
    """Rows of topics that are not aligned."""
    NULL = 1
    """Rows without a topic."""


FEWEST_GAP_PERIODS = 10
"""A lane of a grid goes on without messages for at least this many periods: fewer, and the jitter
of a slow topic would tear holes into the grid; many more, and a clock that jumps ahead would fill
memory with rows that repeat the last value."""


@dataclass(frozen=True)
class Align(Operator):
    """What every stream was at the times of a reference topic, or on a grid, per key.

    Raises:
        ConfigError: No topics; neither or both of `reference` and `grid`; a topic that is also the
            reference, a key or `time_ns`; `max_gap` without `grid`; an unknown method or value.
            When the schema is known: a column that is missing.

    Example:
        >>> from tidegate.align import latest
        >>> Align({"joint": latest("50 ms")}, reference="camera").settings()["reference"]
        'camera'
    """

    topics: Mapping[str, Any]
    """Method per topic: `{"joint": latest("50 ms"), "pose": linear("100 ms")}`, or as a pipeline
    file writes it: `{"joint": {"latest": "50 ms"}}`."""
    reference: str | None = None
    """The topic whose messages give the times of the rows. Either this or `grid`."""
    grid: str | Duration | None = None
    """Regular times instead: a rate (`"30 Hz"`, `"29.97 Hz"`) or a period (`"20 ms"`). Points are
    at origin + n * period exactly, each rounded to a nanosecond by itself, so they never drift;
    jitter of the messages does not move them. Points stand between the first and the last message
    of a key; one after the newest message waits for the next. A point where no topic has a value
    is not delivered."""
    origin: Duration = 0
    """Where the grid has a point, in nanoseconds since 1970 (or a duration after it)."""
    max_gap: Duration | None = None
    """For how long after a message a grid goes on without another one of any aligned topic.
    Default: the largest finite tolerance, at least ten periods. Points in a longer gap are left
    out."""
    missing: str = "null"
    """What happens to a row where a topic has no value: `null` delivers it with null and the
    reason, `drop` drops the row whole and says why."""
    unused: bool = True
    """Deliver messages that no row used as dropped. They are counted in any case."""
    topic: str = "topic"
    """The column that holds the topic."""
    keys: tuple[str, ...] = ()
    """Columns carried over to every row: the key."""

    name: ClassVar[str] = "align"
    version: ClassVar[int] = 1
    adopts: ClassVar[Mapping[str, str]] = {
        "topics": "methods, tolerances and columns hold for points not delivered yet; messages "
        "that were let go of before do not come back",
        "max_gap": "holds from the next message on",
        "missing": "holds for every point that was not delivered yet",
        "unused": "holds from then on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "reference": "the points in the state are its messages",
        "grid": "the points in the state are counted in its periods",
        "origin": "the points in the state are counted from it",
        "topic": "waiting messages were sorted by the old column",
        "keys": "the state is kept by key",
    }

    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The topics by number: the reference first, if there is one, then `topics` in their order."""
    _methods: tuple[Method | None, ...] = field(init=False, repr=False, compare=False)
    """The method of each of these topics; None for the reference."""
    _rule: k.GridRule | None = field(init=False, repr=False, compare=False)
    """Where the points of the grid are; None with a reference."""

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.topics, Mapping) or not self.topics:
            raise ConfigError(
                "topics", self.topics, 'must map topics to methods: {"imu": "latest"}'
            )
        topics = {str(n): parse_method(str(n), given) for n, given in self.topics.items()}
        put("topics", topics)
        put("keys", names("keys", self.keys))
        one_of("missing", self.missing, ("null", "drop"))
        boolean("unused", self.unused)
        names("topic", self.topic, empty=False)
        if (self.reference is None) == (self.grid is None):
            raise ConfigError("reference", self.reference, "give either `reference` or `grid`")
        if self.reference is not None:
            names("reference", self.reference, empty=False)
            if self.reference in topics:
                raise ConfigError("topics", self.reference, "is the reference: leave it out here")
        taken = {"time_ns", *self.keys}
        for name in (*topics, *([self.reference] if self.reference else [])):
            if name in taken:
                raise ConfigError("topics", name, "is also the name of another output column")
        put("origin", duration("origin", self.origin, None))
        put("_rule", None if self.grid is None else self._grid_rule(topics))
        if self.max_gap is not None:
            if self.grid is None:
                raise ConfigError("max_gap", self.max_gap, "needs `grid`")
            put("max_gap", duration("max_gap", self.max_gap, 1))
        first = () if self.reference is None else (self.reference,)
        put("_names", (*first, *topics))
        put("_methods", (*(None for _ in first), *topics.values()))

    def _grid_rule(self, topics: Mapping[str, Method]) -> k.GridRule:
        """The grid as the kernels read it: an exact period, and the gap after which a lane is
        silent."""
        period = grid_period(self.grid)
        finite = [m.reach_ns for m in topics.values() if m.tolerance is not None]
        gap = max([*finite, int(FEWEST_GAP_PERIODS * period)])
        if self.max_gap is not None:
            gap = duration("max_gap", self.max_gap, 1)
        origin = duration("origin", self.origin, None)
        return k.GridRule(origin, period.numerator, period.denominator, gap)

    def settings(self) -> dict[str, Any]:
        topics = {n: {"method": m.name, **m.settings()} for n, m in self.topics.items()}
        return {**super().settings(), "topics": topics}

    def unbounded(self) -> str | None:
        """Why this stage may not run in a stream: a method that could wait for ever."""
        for name, method in self.topics.items():
            if method.after and method.tolerance is None:
                return f"topics[{name!r}]: {method.name} needs a tolerance in a stream"
        return None

    @property
    def needs_time(self) -> bool:
        return True

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {self.topic: self._names}

    def invariants(self, state: State) -> None:
        """Refuse restored state on which the kernels would run for ever or out of their arrays.

        Raises:
            StateError: A table lacks a column of ours, or the grid does not fit the messages.
        """
        require_int64(state, "held", TIME)
        held, keys = state.tables["held"], state.tables["keys"]
        if held is not None and (
            held.schema.get_field_index(self.topic) < 0
            or held.schema.get_field_index(USED) < 0
            or not pa.types.is_boolean(held.column(USED).type)
            or held.column(USED).null_count
        ):
            raise StateError("state table held lacks its topic, or the mark of used rows")
        if keys is not None and any(keys.schema.get_field_index(key) < 0 for key in self.keys):
            raise StateError("state table keys lacks a key column")
        for table in (held, keys):
            if table is not None and len(set(table.schema.names)) != len(table.schema.names):
                raise StateError("a state table has two columns of one name")
        if self._rule is None:
            return
        require_int64(state, "points", TIME)
        number, last, covered = state["number"], state["last"], state["covered"]
        begun = number != UNSET
        if (begun != (last != UNSET)).any() or (begun != (covered != UNSET)).any():
            raise StateError("a lane of the grid has begun without a message, or the reverse")
        reached = np.minimum(np.minimum(self._known(state), last), covered)
        rule = self._rule
        for lane in np.flatnonzero(begun).tolist():
            ahead = 2 * int(number[lane]) * rule.numerator + rule.denominator
            coming = rule.origin + ahead // (2 * rule.denominator)  # exact: no int64 here
            newest = int(last[lane])
            latest = newest + 2 * (rule.numerator // rule.denominator + 1)
            if not int(reached[lane]) < coming <= latest or coming > MAX_NS:
                raise StateError("the grid of a lane does not fit its messages")
            if int(covered[lane]) != min(newest + rule.gap_ns, MAX_NS):
                raise StateError("the grid of a lane does not fit its messages")

    def refusal(self, setting: str, was: Any, now: Any) -> str | None:
        if setting == "topics" and list(was) != list(now):
            return "the state counts values by the number of their topic"
        return super().refusal(setting, was, now)

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """How long a grid goes on without messages follows from the tolerances, too."""
        made = state.conformed(self.layout(), self.name)
        if self._rule is not None:
            last, gap = made["last"], self._rule.gap_ns
            reach = np.where(last > MAX_NS - gap, MAX_NS, np.minimum(last, MAX_NS - gap) + gap)
            made["covered"][:] = np.where(last == UNSET, UNSET, reach)
        return Adopted(made, [])

    @classmethod
    def release(cls, state: State, settings: Mapping[str, Any]) -> list[Outcome]:
        """Waiting messages that no row has used."""
        held = state.tables.get("held")
        if held is not None and USED in held.schema.names:
            state.tables["held"] = held.filter(pc.invert(held.column(USED)))
        return super().release(state, settings)

    # -- what comes out ---------------------------------------------------------------------------

    def layout(self) -> Layout:
        n = len(self._names)
        arrays = {
            "watermark": Column(np.int64, (), UNSET),
            "newest": Column(np.int64, (), UNSET),
            "last": Column(np.int64, (), UNSET),  # the newest message of an aligned topic
            "named": Column(np.int8),
            # The watermark that was handed on, which never goes back.
            "handed": Column(np.int64, (), UNSET),
            "rows": Column(np.int64, ()),
            "values": Column(np.int64, (n,)),
            "missing": Column(np.int64, (n,)),
            "unused": Column(np.int64, (n,)),
            "unusable": Column(np.int64, (len(_Unusable),)),
            "offset_sum": Column(np.int64, (n,)),
            "offset_min": Column(np.int64, (n,), MAX_NS),
            "offset_max": Column(np.int64, (n,), UNSET),
        }
        tables: tuple[str, ...] = ("held", "keys")
        if self._rule is not None:
            arrays["number"] = Column(np.int64, (), UNSET)
            arrays["covered"] = Column(np.int64, (), UNSET)
            tables = ("held", "keys", "points")
        return Layout(arrays, tables)

    def schema(self, rows: pa.Schema) -> pa.Schema:
        self._check(rows)
        fields = [rows.field(key) for key in self.keys]
        for name, method in zip(self._names, self._methods, strict=True):
            fields.append(pa.field(name, pa.struct(self._struct(rows, method))))
        return pa.schema(fields)

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        keys = [rows.field(key) for key in self.keys]
        out = {"offsets": pa.schema([*keys, *list(_STATISTICS)])}
        if self._rule is not None and self.missing == "drop":
            told = [pa.field("time_ns", pa.int64()), pa.field("reason", pa.string())]
            out["dropped_points"] = pa.schema([*keys, *told])
        return out

    def _check(self, rows: pa.Schema) -> None:
        """Check that the columns that settings name are there.

        Args:
            rows: The schema of the rows that come.

        Raises:
            ConfigError: One is missing; the message names the setting and the columns there are.
        """
        for name, column in [("topic", self.topic), *(("keys", key) for key in self.keys)]:
            if rows.get_field_index(column) < 0:
                have = ", ".join(rows.names)
                raise ConfigError(name, column, f"must be a column of the rows: {have}")
        addressed = rows.get_field_index(ADDRESS) >= 0
        for name, method in self.topics.items():
            for column in () if addressed and not _computes(method) else method.columns or ():
                if rows.get_field_index(column) < 0:
                    have = ", ".join(rows.names)
                    raise ConfigError(f"topics[{name!r}].columns", column, f"must be one of {have}")

    def _payload(self, rows: pa.Schema, method: Method | None) -> list[pa.Field]:
        """The columns of a topic: those chosen, else all but topic, keys and internal ones.

        Where rows have an address, a value that is one message has it too, and gets the columns
        that are not here when it leaves.
        """
        if method is not None and method.columns is not None:
            there = [name for name in method.columns if rows.get_field_index(name) >= 0]
            chosen = [rows.field(name) for name in there]
        else:
            hidden = {self.topic, *self.keys}
            chosen = [f for f in rows if f.name not in hidden and not f.name.startswith(PREFIX)]
        if rows.get_field_index(ADDRESS) >= 0 and not _computes(method):
            chosen.append(rows.field(ADDRESS))
        return chosen

    def _struct(self, rows: pa.Schema, method: Method | None) -> list[pa.Field]:
        """The fields of a topic's struct. Ours step aside where the user has a column so named."""
        payload = self._payload(rows, method)
        places = _recording_places(rows)
        fields = []
        for column in payload:
            kind = column.type
            if column.name in places:
                pass
            elif method is not None and method.blends:
                kind = blend_type(kind)
            elif method is not None and method.aggregates:
                kind = aggregate_type(kind)
            fields.append(pa.field(column.name, kind))
        ours = {"time_ns": pa.int64()}
        if method is not None:
            ours |= {"offset_ns": pa.int64(), "missing": pa.string()}
        called = output_names([column.name for column in payload], list(ours))
        return [*fields, *(pa.field(called[name], kind) for name, kind in ours.items())]

    def input_columns(self) -> frozenset[str] | None:
        # Of a topic whose value is one message, columns are payload: nothing is computed of them.
        computed = [m for m in self._methods if m is not None and _computes(m)]
        if any(method.columns is None for method in computed):
            return None
        columns = {column for method in computed for column in method.columns or ()}
        return frozenset({self.topic, *self.keys, *columns})

    # -- transitions ------------------------------------------------------------------------------

    def compile(self) -> None:
        rows = pa.record_batch(
            {self.topic: [self._names[0]] * 2} | {key: [0, 0] for key in self.keys}
        )
        # Without `columns`: the two rows have only the topic and the keys.
        stage = Align(
            {n: type(m)(m.tolerance) for n, m in self.topics.items()}, self.reference,
            self.grid, topic=self.topic, keys=self.keys,
        )  # fmt: skip
        state = stage.open()
        stage.process(state, Collection.of(rows, np.array([1, 2], np.int64)))
        stage.advance(state, Watermark.at(2))
        stage.flush(state)

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        self._check(collection.schema)
        state.grow(int(collection.lane.max()) + 1)
        number = collection.read(self.topic, self._topic_numbers)
        late = np.zeros(len(number), np.bool_)
        lanes = k.LaneTimes(state["newest"], state["last"], np.empty(state.lanes, np.int64))
        if k.scan_rows(
            as_readonly(collection.lane), as_readonly(collection.time_ns), number, lanes, late
        ):
            number = np.where(late, _LATE, number)
        self._note_keys(state, collection, lanes.first_row)
        out: list[Outcome] = []
        new = collection
        # Late rows and null topics leave now; topics that are not aligned wait for their turn, so
        # that they leave in the order of their times.
        if int(number.min()) < _UNKNOWN:
            out = self._set_aside(state, collection, number, late)
            which = np.flatnonzero(number >= _UNKNOWN)
            number, new = number[which], collection.take(which)
        if not len(new):
            return out
        unknown = number == _UNKNOWN
        aligned_lane, aligned_time = new.lane, new.time_ns
        if unknown.any():
            np.add.at(state["unusable"][:, _Unusable.UNKNOWN], new.lane[unknown], 1)
            number = np.where(unknown, len(self._names), number)
            aligned_lane, aligned_time = new.lane[~unknown], new.time_ns[~unknown]
        rows = _CallRows.join(self._waiting(state), new, number)
        return out + self._decide(state, rows, aligned_lane, aligned_time)

    def align_all(self, rows: pa.RecordBatch, time_ns: Int64s, lane: Int64s) -> list[Outcome]:
        """Align a complete recording in one call: what `process` and `flush` give for sorted rows.

        Nothing can still come, so no state is kept and rows need not be in the order of their
        times: they are dealt to their topics as they arrived, and each topic is sorted by itself,
        which for a recording that is nearly in order is hardly more than a look at every row.

        Args:
            rows: All rows.
            time_ns: Their times.
            lane: The number of each row's key, from 0.

        Returns:
            Rows with a null topic as errors, aligned rows, side tables, and dropped rows.
        """
        self._check(rows.schema)
        if not len(time_ns):
            return []
        column = rows.column(self.topic)
        pieces = each(lambda part: self._topic_codes(column[part]), parts(len(column)))
        number = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        out: list[Outcome] = []
        state = self.open(int(lane.max()) + 1)
        if column.null_count:
            null = np.flatnonzero(number == _NULL)
            null = null[np.lexsort((time_ns[null], lane[null]))]
            out.append(self._null_topics(rows.take(pa.array(null)), lane[null].astype(np.int32)))
        segments = _group(lane, number, time_ns, (state.lanes, len(self._names) + 1))
        used = np.zeros(len(time_ns), np.bool_)
        call = _CallRows(rows, None, lane, time_ns, number, used)
        aligned_lane, aligned_time = self._note_recording(state, call, segments)
        known = np.full(state.lanes, MAX_NS)
        points = self._points(state, segments, known, aligned_lane, aligned_time)
        left = np.full((len(self._names) + 1, len(points.time_ns)), -1, np.int64)
        right = left.copy()
        search = self._search(known)
        k.find_values(segments, points, search, left, right, np.zeros(state.lanes, np.int64))
        lane_of = np.repeat(np.arange(state.lanes, dtype=np.int32), np.diff(points.starts))
        made = _Decided(segments, points.time_ns, lane_of, left[:-1], right[:-1])
        more, dropped = self._deliver(state, call, made, used)
        some = k.count_unused(segments, used, len(self._names) + 1, state["unused"])
        if some and self.unused:
            begin, leave_ns = segments.starts[1:].copy(), np.zeros(len(segments.order), np.int64)
            k.keep_from(segments, search, known, begin, leave_ns)
            dropped += self._unused_rows(call, segments, begin, leave_ns, used)
        return [*out, *more, *_in_one(call, dropped), *self._offset_statistics(state)]

    def _note_recording(
        self, state: State, rows: _CallRows, segments: k.Segments
    ) -> tuple[Int32s, Int64s]:
        """Note the keys of a recording; for a grid, also the last time of each lane.

        Returns:
            For a grid, the lanes and times of all aligned rows in order; else empty arrays.
        """
        topics = len(self._names) + 1
        begin = segments.starts[:-1].reshape(-1, topics)[:, :-1]
        end = segments.starts[1:].reshape(-1, topics)[:, :-1]
        some = end > begin
        lanes = np.flatnonzero(some.any(axis=1))
        position = begin[lanes, some[lanes].argmax(axis=1)]
        keys = rows.take(segments.order[position]).select(list(self.keys))
        state.tables["keys"] = pa.RecordBatch.from_arrays(
            [*keys.columns, pa.array(lanes, pa.int32())], names=[*self.keys, LANE]
        )
        if self._rule is None:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        aligned = np.flatnonzero((rows.number >= 0) & (rows.number < topics - 1))
        lane, time_ns = rows.lane[aligned].astype(np.int32), rows.time_ns[aligned]
        np.maximum.at(state["last"], lane, time_ns)
        order = order_rows(lane, time_ns, state.lanes)
        return lane[order], time_ns[order]

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        state.grow(int(watermark.lane.max()) + 1)
        lanes = watermark.lane
        state["watermark"][lanes] = np.maximum(state["watermark"][lanes], watermark.time_ns)
        out: list[Outcome] = []
        held = self._waiting(state)
        if len(held) or self._rule is not None:
            none = np.empty(0, np.int64)
            out = self._decide(state, held, none.astype(np.int32), none)
        # Rows still to come are later than the watermark, and so are their points.
        safe = np.minimum(state["watermark"][lanes], self._first_waiting(state)[lanes] - 1)
        newer = safe > state["handed"][lanes]
        state["handed"][lanes[newer]] = safe[newer]
        return [*out, *([Watermark(safe[newer], lanes[newer])] if newer.any() else [])]

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        which = np.arange(state.lanes) if lanes is None else np.asarray(lanes)
        which = which[state["newest"][which] != UNSET].astype(np.int32)
        if not len(which):
            return []
        # The end of a lane decides like a watermark behind every time. The real one is put back
        # afterwards: it belongs to the state, and a flush of some lanes must not change what it
        # says.
        watermark = state["watermark"].copy()
        state["watermark"][which] = MAX_NS
        held = self._waiting(state)
        none = np.empty(0, np.int64)
        out = self._decide(state, held, none.astype(np.int32), none)
        out += self._offset_statistics(state, which)
        state["watermark"][:] = watermark
        state.touch(which)
        return out

    def discard(self, state: State) -> dict[str, int]:
        waiting = state.rows("held")
        state.free(np.arange(state.lanes))
        return {"rows_held": waiting}

    def metrics(self, state: State) -> dict[str, int | float]:
        return {
            "aligned_rows": int(state["rows"].sum()),
            "values": int(state["values"].sum()),
            "missing_values": int(state["missing"].sum()),
            "unused": int(state["unused"].sum()),
            "rows_held": state.rows("held"),
            "unknown_topic": int(state["unusable"][:, _Unusable.UNKNOWN].sum()),
            "null_topic": int(state["unusable"][:, _Unusable.NULL].sum()),
        }

    # -- rows that are not aligned ----------------------------------------------------------------

    def _topic_numbers(self, column: pa.Array) -> Int64s:
        """The number of each row's topic in `_names`, `_UNKNOWN` if it is not among them, `_NULL`
        for null."""
        column = as_text(column)
        found = pc.index_in(column, pa.array(self._names, column.type))
        number = np.asarray(pc.fill_null(found, _UNKNOWN).to_numpy(), np.int64)
        if column.null_count:
            number = number.copy()
            number[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
        return number

    def _topic_codes(self, column: pa.Array) -> Int32s:
        """Like `_topic_numbers`, but a topic that is not aligned has the number behind the last."""
        number = self._topic_numbers(column).astype(np.int32)
        number[number == _UNKNOWN] = len(self._names)
        return number

    def _null_topics(self, rows: pa.RecordBatch, lane: Int32s) -> StreamError:
        """Rows without a topic, as errors."""
        text = pa.array([self.topic] * len(lane), pa.string())
        why = pa.array(["topic is null"] * len(lane), pa.string())
        return StreamError(rows, text, pa.nulls(len(lane), pa.string()), why, lane)

    def _set_aside(
        self, state: State, rows: Collection, number: Int64s, late: NDArray[np.bool_]
    ) -> list[Outcome]:
        """Rows that cannot be aligned, each with its reason: late ones as `Late`, null topics as
        errors.

        Args:
            state: Of this stage; rows with a null topic are counted in it.
            rows: The collection.
            number: The number of each row's topic; `_NULL` where there is none.
            late: Which rows came out of order.
        """
        out: list[Outcome] = []
        if late.any():
            which = np.flatnonzero(late)
            gone = rows.take(which)
            by = state["newest"][gone.lane] - gone.time_ns
            out.append(Late(gone.rows, gone.time_ns, gone.lane, by))
        null = np.flatnonzero(number == _NULL)
        if len(null):
            gone = rows.take(null)
            np.add.at(state["unusable"][:, _Unusable.NULL], gone.lane, 1)
            out.append(self._null_topics(gone.rows, gone.lane))
        return out

    # -- decisions --------------------------------------------------------------------------------

    def _known(self, state: State) -> Int64s:
        """Per lane, the time up to which everything has come; UNSET before the first row and
        watermark."""
        newest = state["newest"]
        newest = np.where(newest == UNSET, UNSET, newest - 1)
        return np.asarray(np.maximum(state["watermark"], newest), np.int64)

    def _decide(
        self, state: State, rows: _CallRows, new_lane: Int32s, new_time: Int64s
    ) -> list[Outcome]:
        """Deliver the decided points, let go of what no later point needs, keep the rest.

        Args:
            state: Of this stage. Everything it keeps is replaced.
            rows: The rows that waited, and behind them the new ones.
            new_lane: The lanes of the new rows of aligned topics; a grid grows by these.
            new_time: Their times.

        Returns:
            Aligned rows, then side tables, then dropped rows.
        """
        known = self._known(state)
        search = self._search(known)
        segment_count = len(self._names) + 1  # the last one: topics that are not aligned
        sizes = (state.lanes, segment_count)
        segments = k.Segments(*k.group_rows(rows.lane, rows.number, rows.time_ns, sizes))
        points = self._points(state, segments, known, new_lane, new_time)
        left = np.full((segment_count, len(points.time_ns)), -1, np.int64)
        right = left.copy()
        ready = np.zeros(state.lanes, np.int64)
        k.find_values(segments, points, search, left, right, ready)
        lane_of = np.repeat(np.arange(state.lanes, dtype=np.int32), np.diff(points.starts))
        place = np.arange(len(lane_of)) - points.starts[lane_of]
        decided = np.flatnonzero(place < ready[lane_of])
        made = _Decided(
            segments,
            points.time_ns[decided],
            lane_of[decided],
            left[:-1, decided],
            right[:-1, decided],
        )
        used = rows.used.copy()
        out, dropped = self._deliver(state, rows, made, used)
        next_ns = self._next_points(state, points, ready, known)
        if self._rule is not None:
            waits = np.flatnonzero(place >= ready[lane_of])
            _keep_points(state, lane_of[waits], points.time_ns[waits])
        begin = np.zeros(state.lanes * segment_count, np.int64)
        leave_ns = np.zeros(len(rows), np.int64)
        k.keep_from(segments, search, next_ns, begin, leave_ns)
        dropped += self._let_go(state, rows, segments, begin, leave_ns, used)
        state.touch(lane_of[decided])
        return out + _in_one(rows, dropped)

    def _search(self, known: Int64s) -> k.Search:
        """The settings as the kernels read them, with what is known per lane."""
        families = [k.REFERENCE if m is None else _family(m) for m in self._methods]
        reach = [MAX_NS if m is None else m.reach_ns for m in self._methods]
        return k.Search(
            np.array([*families, k.UNALIGNED]), np.array([*reach, MAX_NS], np.int64), known
        )

    def _points(
        self,
        state: State,
        segments: k.Segments,
        known: Int64s,
        new_lane: Int32s,
        new_time: Int64s,
    ) -> k.Points:
        """The points to decide: those that waited, and those that the new rows bring.

        With a reference, its messages are the points. A grid is extended twice: once on a copy of
        its state to count the points, then into arrays of that size.

        Args:
            state: Of this stage; a grid's position is moved on.
            segments: The rows by lane and topic.
            known: The time up to which everything has come, per lane.
            new_lane: The lanes of the new rows of aligned topics.
            new_time: Their times.
        """
        lanes, n = state.lanes, len(self._names) + 1
        if self._rule is None:  # the reference is the first topic of each lane
            begin, end = segments.starts[0:-1:n], segments.starts[1::n]
            position, lane = ranges(begin, end)
            starts = np.concatenate([[0], np.cumsum(end - begin)])
            return k.Points(segments.time_ns[position], starts, position)
        known = np.minimum(known, state["last"])  # points stand between messages
        grid = k.GridState(state["number"], state["covered"])
        trial = k.GridState(grid.number.copy(), grid.covered_ns.copy())
        none = np.empty(0, np.int64)
        count = k.extend_grid(new_lane, new_time, known, trial, self._rule, (none, none))
        out = (np.empty(max(count, 1), np.int64), np.empty(max(count, 1), np.int64))
        k.extend_grid(new_lane, new_time, known, grid, self._rule, out)
        lane, time_ns = out[0][:count], out[1][:count]
        waiting = state.tables["points"]
        if waiting is not None and waiting.num_rows:
            lane = np.concatenate([waiting.column(LANE).to_numpy(), lane])
            time_ns = np.concatenate([waiting.column(TIME).to_numpy(), time_ns])
        # Stable: within a lane the points that waited are older than the new ones and stay before
        # them.
        order = np.argsort(lane, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(lane, minlength=lanes))])
        return k.Points(time_ns[order], starts, np.full(len(lane), -1, np.int64))

    def _next_points(self, state: State, points: k.Points, ready: Int64s, known: Int64s) -> Int64s:
        """Per lane, the earliest time of a point not yet delivered, now or later."""
        out = np.where(known == MAX_NS, MAX_NS, known + 1)
        out = np.where(known == UNSET, UNSET, out)
        if self._rule is not None:
            open_lanes = np.flatnonzero((state["number"] != UNSET) & (known != MAX_NS))
            out[open_lanes] = self._coming(state)[open_lanes]
        first = points.starts[:-1] + ready
        waits = np.flatnonzero(first < points.starts[1:])
        out[waits] = np.minimum(out[waits], points.time_ns[first[waits]])
        return out

    def _coming(self, state: State) -> Int64s:
        """Per lane, the time of the next point of the grid; nonsense before its first message."""
        assert self._rule is not None
        return k.point_times(state["number"], self._rule)

    def _first_waiting(self, state: State) -> Int64s:
        """Per lane, the earliest point that waits for a decision; the latest time if none does."""
        out = np.full(state.lanes, MAX_NS)
        if self._rule is not None:
            points = state.tables["points"]
            if points is not None and points.num_rows:
                np.minimum.at(out, points.column(LANE).to_numpy(), points.column(TIME).to_numpy())
            started = np.flatnonzero(state["number"] != UNSET)
            out[started] = np.minimum(out[started], self._coming(state)[started])
            return out
        held = state.tables["held"]
        if held is not None and held.num_rows:
            mine = self._topic_numbers(held.column(self.topic)) == 0
            lane, time_ns = held.column(LANE).to_numpy()[mine], held.column(TIME).to_numpy()[mine]
            np.minimum.at(out, lane, time_ns)
        return out

    # -- rows that leave --------------------------------------------------------------------------

    def _deliver(
        self, state: State, rows: _CallRows, made: _Decided, used: NDArray[np.bool_]
    ) -> tuple[list[Outcome], list[_DroppedRows]]:
        """The aligned rows, and reference messages that did not become one; marks what was used."""
        if not len(made.time_ns):
            return [], []
        lacking = made.lacking(self._methods)
        whole = np.ones(len(made.time_ns), np.bool_)
        if self.missing == "drop":
            whole &= ~lacking.any(axis=0)
        if self._rule is not None:  # a point without any value is no row
            whole &= ~lacking.all(axis=0)
        out: list[Outcome] = []
        dropped: list[_DroppedRows] = []
        gone = np.flatnonzero(~whole)
        if not len(gone):
            out.append(self._aligned(state, rows, made, lacking, used))
        elif len(gone) < len(whole):
            kept = made.select(np.flatnonzero(whole))
            out.append(self._aligned(state, rows, kept, lacking[:, whole], used))
        if len(gone) and self.missing == "drop":
            told, dropped = self._lacking(rows, made.select(gone), lacking[:, gone], used)
            out += told
        return out, dropped

    def _aligned(
        self,
        state: State,
        rows: _CallRows,
        made: _Decided,
        lacking: NDArray[np.bool_],
        used: NDArray[np.bool_],
    ) -> Collection:
        """The aligned rows of these points, and their statistics.

        Args:
            state: Of this stage; counts are added to it.
            rows: The rows of this call.
            made: The points to deliver.
            lacking: Per topic and point: whether there is no value.
            used: Filled: the messages that became a value.
        """
        schema = self.schema(rows.source.schema)
        arrays: list[pa.Array] = [
            rows.source.column(key).take(pa.array(rows.at(made.any_row(lacking))))
            for key in self.keys
        ]

        def column(number: int) -> pa.StructArray:
            # Threads: each topic writes its own column of the statistics, and its own rows' marks.
            method = self._methods[number]
            struct, source_ns = self._values(rows, made, number, method, lacking[number], used)
            if method is not None:
                self._count(state, made, number, lacking[number], source_ns)
            return struct

        numbers = range(len(self._methods))
        many = len(made.time_ns) * len(numbers) >= MANY
        arrays += each(column, numbers) if many else map(column, numbers)
        state["rows"][:] += np.bincount(made.lane, minlength=state.lanes)
        return Collection(
            pa.RecordBatch.from_arrays(arrays, schema=schema), made.time_ns.copy(), made.lane
        )

    def _values(
        self,
        rows: _CallRows,
        made: _Decided,
        number: int,
        method: Method | None,
        lacking: NDArray[np.bool_],
        used: NDArray[np.bool_],
    ) -> tuple[pa.StructArray, Int64s]:
        """The struct of one topic, and when its values were measured.

        Args:
            rows: The rows of this call.
            made: The points to deliver.
            number: The number of the topic.
            method: Its method; None for the reference.
            lacking: Per point: whether there is no value.
            used: Filled: the messages that became part of a value.

        Returns:
            One struct per point, and the time of the message it stands for (0 where there is none).
        """
        order, time_ns = made.segments.order, made.segments.time_ns
        left, right = made.left[number], made.right[number]
        payload = self._payload(rows.source.schema, method)
        places = _recording_places(rows.source.schema)

        def rows_at(position: Int64s) -> pa.Array:
            none = position < 0
            row = rows.at(_at(order, position))
            return pa.array(row, mask=none if none.any() else None)

        def column_at(name: str, position: Int64s) -> pa.Array:
            return rows.source.column(name).take(rows_at(position))

        if method is not None and method.aggregates:
            touched, _ = ranges(left[~lacking], right[~lacking])
            nearest = np.where(lacking, -1, right - 1)
            spans = (left, right)
            columns = [
                column_at(f.name, nearest)
                if f.name in places
                else aggregate(method.name, partial(column_at, f.name), f.type, spans)
                for f in payload
            ]
        elif method is not None and method.blends:
            touched = np.concatenate([left[~lacking], right[~lacking]])
            before, after = _at(time_ns, left), _at(time_ns, right)
            length = np.where(lacking, 1, np.maximum(after - before, 1))
            share = np.where(lacking, 0.0, (made.time_ns - before) / length)
            nearest = np.where(made.time_ns - before <= after - made.time_ns, left, right)
            nearest = np.where(lacking, -1, nearest)
            spherical = method.name == "slerp"
            one, two = rows_at(left), rows_at(right)
            columns = [
                column_at(f.name, nearest)
                if f.name in places
                else blend(
                    rows.source.column(f.name).take(one), rows.source.column(f.name).take(two),
                    share, spherical=spherical,
                )
                for f in payload
            ]  # fmt: skip
        else:
            touched, nearest = (left[~lacking] if lacking.any() else left), left
            at = rows_at(left)
            columns = [rows.source.column(f.name).take(at) for f in payload]
        used[order[touched]] = True
        source_ns = np.where(lacking, 0, _at(time_ns, nearest))
        mask = lacking if lacking.any() else None
        columns.append(pa.array(source_ns, pa.int64(), mask=mask))
        if method is not None:
            columns.append(pa.array(source_ns - made.time_ns, pa.int64(), mask=mask))
            if mask is None:
                columns.append(pa.nulls(len(lacking), pa.string()))
            else:
                why = pa.array([method.missing()], pa.string())
                columns.append(why.take(pa.array(np.zeros(len(lacking), np.int64), mask=~lacking)))
        fields = self._struct(rows.source.schema, method)
        return pa.StructArray.from_arrays(columns, fields=fields), source_ns

    def _count(
        self, state: State, made: _Decided, number: int, lacking: NDArray[np.bool_], source: Int64s
    ) -> None:
        """Statistics of the offsets of a topic, per lane."""
        tallies = ("values", "missing", "offset_sum", "offset_min", "offset_max")
        offsets = k.Offsets(*(state[name] for name in tallies))
        k.count_offsets(made.lane, source - made.time_ns, lacking, number, offsets)

    def _lacking(
        self, rows: _CallRows, made: _Decided, lacking: NDArray[np.bool_], used: NDArray[np.bool_]
    ) -> tuple[list[Outcome], list[_DroppedRows]]:
        """Points that lack a value: the reference message with the reason, or a row that tells."""
        reasons = []
        for column in lacking.T:
            gone = [
                f"{self._names[n]}: {method.missing()}"
                for n in np.flatnonzero(column)
                if (method := self._methods[n]) is not None
            ]
            reasons.append("; ".join(gone))
        why = pa.array(reasons, pa.string())
        if self._rule is None:
            row = made.segments.order[made.left[0]]
            used[row] = True
            return [], [_DroppedRows(row, made.time_ns, 1, why)]
        some = ~lacking.all(axis=0)
        if not some.any():
            return [], []
        made = made.select(np.flatnonzero(some))
        at = pa.array(rows.at(made.any_row(lacking[:, some])))
        keys = [rows.source.column(key).take(at) for key in self.keys]
        arrays = [*keys, pa.array(made.time_ns), why.filter(pa.array(some))]
        schema = self.side_schemas(rows.source.schema)["dropped_points"]
        told = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return [Side("dropped_points", told, made.lane)], []

    def _let_go(
        self,
        state: State,
        rows: _CallRows,
        segments: k.Segments,
        begin: Int64s,
        leave_ns: Int64s,
        used: NDArray[np.bool_],
    ) -> list[_DroppedRows]:
        """Keep what later points may need; the rest leaves, told if nothing used it.

        Args:
            state: Of this stage; its table `held` is replaced.
            rows: The rows of this call.
            segments: The rows by lane and topic.
            begin: Per segment, the first position that may still be needed.
            leave_ns: Per position before that, when it was no longer needed; gives the order of
                leaving.
            used: Per row: whether it has been a value.

        Returns:
            The rows to drop, at most one entry; none with `unused=False`.
        """
        position, _ = ranges(begin, segments.starts[1:])
        state.tables["held"] = rows.keep(np.sort(segments.order[position]), used)
        position, _ = ranges(segments.starts[:-1], begin)
        row = segments.order[position[~used[segments.order[position]]]]
        row = row[rows.number[row] < len(self._names)]
        np.add.at(state["unused"], (rows.lane[row], rows.number[row]), 1)
        return self._unused_rows(rows, segments, begin, leave_ns, used) if self.unused else []

    def _unused_rows(
        self,
        rows: _CallRows,
        segments: k.Segments,
        begin: Int64s,
        leave_ns: Int64s,
        used: NDArray[np.bool_],
    ) -> list[_DroppedRows]:
        """The messages before `begin` that no row used. Arguments as for `_let_go`."""
        position, _ = ranges(segments.starts[:-1], begin)
        position = position[~used[segments.order[position]]]
        row = segments.order[position]
        if not len(row):
            return []
        aligned = rows.number[row] < len(self._names)
        why = pa.array([UNUSED, NOT_ALIGNED], pa.string()).take(
            pa.array((~aligned).astype(np.int8))
        )
        return [_DroppedRows(row, leave_ns[position], 0, why)]

    def _note_keys(self, state: State, rows: Collection, first_row: Int64s) -> None:
        """Remember the keys of new lanes, for tables that have no row to take them from."""
        lanes = np.flatnonzero((first_row >= 0) & (state["named"] == 0))
        if not len(lanes):
            return
        state["named"][lanes] = 1
        keys = rows.take(first_row[lanes]).rows.select(list(self.keys))
        made = pa.RecordBatch.from_arrays(
            [*keys.columns, pa.array(lanes, pa.int32())], names=[*self.keys, LANE]
        )
        state.tables["keys"] = concat([state.tables["keys"], made])

    def _offset_statistics(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        """How far the values of each topic were from their rows: one row per lane and topic.

        Args:
            state: Of this stage.
            lanes: The lanes to tell about; None: all of them.
        """
        keys = state.tables["keys"]
        if keys is None:
            return []
        if lanes is not None:
            keys = keys.filter(pc.is_in(keys.column(LANE), pa.array(lanes, pa.int32())))
        many, first = len(self.topics), len(self._names) - len(self.topics)
        again = np.repeat(np.arange(len(keys)), many)
        number = np.tile(np.arange(first, first + many), len(keys))
        lane = keys.column(LANE).to_numpy()[again]
        count = state["values"][lane, number]
        none = count == 0
        mean = state["offset_sum"][lane, number] / np.maximum(count, 1)
        arrays = [
            *(keys.column(key).take(pa.array(again)) for key in self.keys),
            pa.array([self._names[n] for n in number], pa.string()),
            pa.array(count),
            pa.array(state["missing"][lane, number]),
            pa.array(state["unused"][lane, number]),
            pa.array(mean, mask=none),
            pa.array(state["offset_min"][lane, number], mask=none),
            pa.array(state["offset_max"][lane, number], mask=none),
        ]
        fields = [keys.schema.field(key) for key in self.keys]
        schema = pa.schema([*fields, *list(_STATISTICS)])
        return [Side("offsets", pa.RecordBatch.from_arrays(arrays, schema=schema), lane)]

    def offset_table(self, state: State) -> pa.Table:
        """The statistics so far: per key and topic how many values, how many missing, and how far
        from their rows. The stage delivers them as the side table `offsets` when a lane ends.

        Args:
            state: Of this stage.
        """
        made = self._offset_statistics(state)
        keys = state.tables["keys"]
        if not made or keys is None:
            return _STATISTICS.empty_table()
        [side] = made
        assert isinstance(side, Side)
        return pa.Table.from_batches([side.rows])

    def _waiting(self, state: State) -> _CallRows:
        """The rows that wait in the state."""
        held = state.tables["held"]
        if held is None or not held.num_rows:
            return _CallRows.none()
        number = self._topic_numbers(held.column(self.topic))
        return _CallRows.waiting(held, np.where(number < 0, len(self._names), number))


_STATISTICS = pa.schema(
    {
        "topic": pa.string(),
        "values": pa.int64(),
        "missing": pa.int64(),
        "unused": pa.int64(),
        "mean_offset_ns": pa.float64(),
        "min_offset_ns": pa.int64(),
        "max_offset_ns": pa.int64(),
    }
)
"""The columns of the side table `offsets`, behind the keys."""


def _group(lane: Int64s, topic: Int32s, time_ns: Int64s, sizes: tuple[int, int]) -> k.Segments:
    """Row numbers by (lane, topic, time, arrival), in threads if there are many rows.

    Args:
        lane: The lane of each row.
        topic: The number of each row's topic; rows below 0 are left out.
        time_ns: The time of each row, in any order.
        sizes: The number of lanes and of topics.
    """
    shares = parts(len(lane))
    count, topics = sizes[0] * sizes[1], sizes[1]
    counts = np.empty((len(shares), count), np.int64)
    lane, topic, time_ns = as_readonly(lane), as_readonly(topic), as_readonly(time_ns)

    def count_share(number: int) -> None:
        part = shares[number]
        k.count_groups(lane[part], topic[part], topics, counts[number])

    each(count_share, range(len(shares)))
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    cursor = starts[:-1] + np.cumsum(counts, axis=0) - counts
    out = (np.empty(starts[-1], np.int64), np.empty(starts[-1], np.int64))

    def deal_share(number: int) -> None:
        part = shares[number]
        share = (lane[part], topic[part], time_ns[part])
        k.deal_groups(share, part.start, topics, cursor[number], out)

    each(deal_share, range(len(shares)))
    edges = np.searchsorted(starts, [len(lane) * n // len(shares) for n in range(len(shares))])
    edges = np.append(np.minimum(edges, count), count)
    order, sorted_ns = out

    def sort_share(number: int) -> None:
        which = (int(edges[number]), int(edges[number + 1]))
        hard = np.empty(max(which[1] - which[0], 0), np.int64)
        found = k.sort_segments(order, sorted_ns, starts, which, hard)
        for segment in hard[:found].tolist():
            mine = slice(starts[segment], starts[segment + 1])
            by = np.lexsort((order[mine], sorted_ns[mine]))
            order[mine], sorted_ns[mine] = order[mine][by], sorted_ns[mine][by]

    each(sort_share, range(len(shares)))
    return k.Segments(order, starts, sorted_ns)


def _at(values: Int64s, position: Int64s) -> Int64s:
    """`values[position]`; anything where the position is negative or there are no values."""
    return np.asarray(values[np.maximum(position, 0)] if len(values) else position, np.int64)


class _DroppedRows(NamedTuple):
    """Rows that are dropped, and what decides their order."""

    row: Int64s
    """Row numbers of this call."""
    when_ns: Int64s
    """Rows leave in this order within a lane."""
    rank: int
    """Of rows with the same time, those of the lower rank leave first."""
    reason: pa.Array
    """Why each of them is dropped."""


def _in_one(rows: _CallRows, leaving: list[_DroppedRows]) -> list[Outcome]:
    """All dropped rows of a call as one outcome, in an order that no cut of the input changes."""
    if not leaving:
        return []
    row = np.concatenate([one.row for one in leaving])
    when = np.concatenate([one.when_ns for one in leaving])
    rank = np.repeat([one.rank for one in leaving], [len(one.row) for one in leaving])
    reason = pa.concat_arrays([one.reason for one in leaving])
    order = np.lexsort((row, rows.time_ns[row], rank, when, rows.lane[row]))
    row = row[order]
    why = reason.take(pa.array(order))
    lane = rows.lane[row].astype(np.int32, copy=False)
    return [Dropped(rows.take(row), rows.time_ns[row], lane, why)]


class _Decided(NamedTuple):
    """Points whose values are known, and the positions of these values."""

    segments: k.Segments
    """What the positions in `left` and `right` point into."""
    time_ns: Int64s
    lane: Int32s
    left: Int64s
    """Per topic and point, as `find_values` writes it."""
    right: Int64s
    """Likewise."""

    def select(self, which: Int64s) -> _Decided:
        """Only these points, in this order."""
        return self._replace(
            time_ns=self.time_ns[which],
            lane=self.lane[which],
            left=self.left[:, which],
            right=self.right[:, which],
        )

    def lacking(self, methods: Sequence[Method | None]) -> NDArray[np.bool_]:
        """Per topic and point: whether there is no value."""
        out = self.left < 0
        for number, method in enumerate(methods):
            if method is not None and method.aggregates:
                out[number] = self.right[number] <= self.left[number]
        return out

    def any_row(self, lacking: NDArray[np.bool_]) -> Int64s:
        """The row of one value of each point, from which its key can be taken."""
        first = (~lacking).argmax(axis=0)
        return _at(self.segments.order, self.left[first, np.arange(len(self.time_ns))])


@dataclass(frozen=True, eq=False)
class _CallRows:
    """The waiting rows and behind them the new ones: what row numbers mean during a call."""

    source: pa.RecordBatch
    """The batch that holds the rows; it may hold others as well."""
    index: Int64s | None
    """Where each row is in the source; None: where its number says."""
    lane: Int32s | Int64s
    time_ns: Int64s
    number: Int32s | Int64s
    """The number of each row's topic."""
    used: NDArray[np.bool_]
    """Whether each row has been a value, in this call or an earlier one."""

    @classmethod
    def none(cls) -> _CallRows:
        """No rows at all: nothing waits."""
        empty = np.empty(0, np.int64)
        lane, used = empty.astype(np.int32), empty.astype(np.bool_)
        return cls(pa.record_batch({}), None, lane, empty, empty, used)

    @classmethod
    def waiting(cls, held: pa.RecordBatch, number: Int64s) -> _CallRows:
        """The rows of the state table alone."""
        used = held.column(USED).to_numpy(zero_copy_only=False)
        return cls(
            held.drop_columns([LANE, TIME, USED]), None, held.column(LANE).to_numpy(),
            held.column(TIME).to_numpy(), number, used,
        )  # fmt: skip

    @classmethod
    def join(cls, before: _CallRows, new: Collection, number: Int64s) -> _CallRows:
        """Waiting rows, and behind them those of a collection.

        A collection that is a selection of a larger batch is not copied: `index` says where its
        rows are.

        Args:
            before: The rows that waited.
            new: The collection.
            number: The number of the topic of each new row.
        """
        source, index = new.lies
        fresh = cls(source, index, new.lane, new.time_ns, number, np.zeros(len(new), np.bool_))
        if not len(before):
            return fresh
        joined: Any = concat([before.source, source])
        if index is not None:
            index = np.concatenate([np.arange(len(before)), len(before) + index])
        return cls(
            joined, index, np.concatenate([before.lane, new.lane]),
            np.concatenate([before.time_ns, new.time_ns]),
            np.concatenate([before.number, number]), np.concatenate([before.used, fresh.used]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.lane)

    def at(self, rows: Int64s) -> Int64s:
        """Where these rows are in the source."""
        return rows if self.index is None else self.index[rows]

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """These rows as a batch of their own."""
        return take(self.source, self.at(rows))

    def keep(self, rows: Int64s, used: NDArray[np.bool_]) -> pa.RecordBatch | None:
        """These rows as the state table, or None if there are none.

        Args:
            rows: Row numbers of this call, ascending.
            used: Per row of the call: whether it has been a value.
        """
        if not len(rows):
            return None
        payload = self.take(rows)
        extra = [
            pa.array(self.lane[rows], pa.int32()),
            pa.array(self.time_ns[rows]),
            pa.array(used[rows]),
        ]
        return pa.RecordBatch.from_arrays(
            [*payload.columns, *extra], names=[*payload.schema.names, LANE, TIME, USED]
        )


def _keep_points(state: State, lane: Int32s, time_ns: Int64s) -> None:
    """Store the points of a grid that are not decided yet."""
    state.tables["points"] = pa.record_batch(
        {LANE: pa.array(lane, pa.int32()), TIME: pa.array(time_ns, pa.int64())}
    )


_PLACE = ("offset", "position")
_IN_RECORDING = (*_PLACE, "sequence", "log_time_ns", "publish_time_ns", "header_stamp_ns")


def _recording_places(rows: pa.Schema) -> frozenset[str]:
    """The columns that say where and when a message of a recording was written, in rows of MCAP
    files and bags. They are numbers, but nothing lies between two of them: they are those of the
    closer message."""
    plain = {field.name for field in rows if pa.types.is_int64(field.type)}
    if "file" not in rows.names or not plain.issuperset(_PLACE):
        return frozenset()
    return frozenset({"file", *plain.intersection(_IN_RECORDING)})


def _computes(method: Method | None) -> bool:
    """Whether values are made of several messages, so that no address leads to them."""
    return method is not None and (method.blends or method.aggregates)


def _family(method: Method) -> int:
    """How the kernels search for the values of this method."""
    if method.aggregates:
        return k.AGGREGATE
    if method.blends:
        return k.BLEND
    if not method.after:
        return k.LATEST
    return k.NEAREST if method.before else k.NEXT


def grid_period(given: Any) -> Fraction:
    """The period of a grid in nanoseconds, exactly.

    Args:
        given: A rate such as `"30 Hz"` or `"29.97 Hz"`, or a period as a duration.

    Raises:
        ConfigError: Not a rate or duration; a rate of 0 or above 1e9 Hz; or a fraction so long that
            the kernels' arithmetic in 64 bits would overflow.

    Example:
        >>> grid_period("30 Hz"), grid_period("20 ms")
        (Fraction(100000000, 3), Fraction(20000000, 1))
    """
    if isinstance(given, str) and given.strip().lower().endswith("hz"):
        try:
            rate = Fraction(Decimal(given.strip()[:-2].strip()))
        except InvalidOperation:
            raise ConfigError("grid", given, 'must be a rate such as "30 Hz"') from None
        if not 0 < rate <= 10**9:
            raise ConfigError("grid", given, "must be above 0 and at most 1e9 Hz")
        period = Fraction(10**9) / rate
    else:
        period = Fraction(duration("grid", given, 1))
    if 2 * period.numerator * period.denominator >= 2**62 or period.numerator > 2**53:
        raise ConfigError("grid", given, "has too many digits, or too long a period")
    return period
