"""Episodes: rows cut into runs of frames, and actions made of the state that follows.

A policy is trained on *episodes*: one attempt at a task, from its first frame to its last. This
stage numbers the rows of every key by episode and by frame within it. A new episode begins

- with the first row of a key;
- after a **gap**: a row more than `gap` after the one before it;
- at a **marker**: the first row after a message of a marker topic, which is aligned as `latest`;
- with another **state**: where the value of a column changes. With `within`, only rows whose state
  is one of these values are part of an episode, and others leave as dropped.

An **action** is what the robot did next, as far as the rows tell: the value of a column in the next
row of the episode (`next`), or that minus the value in this one (`delta`). The last row of an
episode has no next row; `last` says what becomes of it.

Theory of operation. Whether a row is the last of its episode, and what its action is, is known when
the next row of its key is in. So the newest row of each key waits in the state, one per key; it
leaves with the next row, at the end, or when the watermark proves that the next row will be more
than `gap` later. Rows leave in the order in which they came, whatever the cut of the input.

Clock policy: event time only; wall time decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.align.values import blend_type, value_difference
from tidegate.core.arrow import as_text, column_of_path, factorize, take, type_of_path
from tidegate.core.checks import duration, names, one_of
from tidegate.core.columns import LANE, TIME, output_names
from tidegate.core.numba import as_readonly, kernel
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Side,
    Watermark,
)
from tidegate.core.sort import order_rows
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.time import MAX_NS, UNSET, Duration
from tidegate.errors import ConfigError, StateError

__all__ = ["Episodes", "cut_episodes"]


class Ended(IntEnum):
    """Why an episode ended, as the side table `episodes` says it."""

    NOT = 0
    GAP = 1
    MARKER = 2
    STATE = 3
    END = 4


class _Verdict(IntEnum):
    """What becomes of a row in a call."""

    WAITS = 0
    FOLLOWED = 1
    LAST = 2
    NO_MARKER = 3
    OTHER_STATE = 4
    LATE = 5


LAST_REASON = "last row of its episode: it has no next state"
"""The reason a row leaves with where `last` is `drop`."""

_OURS = ("episode", "frame", "episode_time_ns")
"""The columns this stage adds before the actions."""


@dataclass(frozen=True)
class Episodes(Operator):
    """Numbers rows by episode and frame, per key, and adds actions.

    Raises:
        ConfigError: A duration, an action or a value that is none; `within` without `state`. When
            the schema is known: a column that is missing, or a `delta` of what is no number.

    Example:
        >>> stage = Episodes(gap="1 s", actions={"action": {"next": "joint.position"}})
        >>> stage.settings()["actions"]
        {'action': {'next': 'joint.position'}}
    """

    gap: Duration | None = None
    """A row more than this after the one before it begins an episode. Default None: no gap does.
    Too short a value makes episodes of single frames; choose several periods of the rows."""
    marker: str | None = None
    """The column of a marker topic, a struct with `time_ns` as `align` makes it with `latest`. Each
    new message of it begins an episode; rows without one are dropped. Default None."""
    state: str | None = None
    """A column, or a field of a struct (`"status.mode"`), whose changes begin an episode. Null is a
    value of its own. Default None."""
    within: Sequence[str] | None = None
    """Values of `state`, as text: rows with any other are dropped. Default None: all are kept."""
    actions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns to add: `{"action": {"next": "joint.position"}}` is the value in the next row,
    `{"delta": "pose.x"}` the next value minus this one. Default: none."""
    last: str = "drop"
    """What becomes of the last row of an episode, where there are actions: `drop` (default, with
    the reason), `repeat` (the next state is the present one), or `null` (no action)."""
    keys: tuple[str, ...] = ()
    """Columns carried over to the side table: the key."""

    name: ClassVar[str] = "episodes"
    version: ClassVar[int] = 1
    adopts: ClassVar[Mapping[str, str]] = {
        "gap": "holds from the next row on",
        "within": "holds from the next row on",
        "actions": "hold for rows that leave from then on",
        "last": "holds for episodes that end from then on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "marker": "open episodes were begun by the old column",
        "state": "open episodes were begun by the old column",
        "keys": "the state is kept by key",
    }

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if self.gap is not None:
            put("gap", duration("gap", self.gap, 1))
        for name in ("marker", "state"):
            if getattr(self, name) is not None:
                names(name, getattr(self, name), empty=False)
        if self.within is not None:
            if self.state is None:
                raise ConfigError("within", self.within, "needs `state`")
            put("within", names("within", self.within, empty=False))
        one_of("last", self.last, ("drop", "repeat", "null"))
        put("keys", names("keys", self.keys))
        if not isinstance(self.actions, Mapping):
            raise ConfigError("actions", self.actions, 'must map names: {"action": {"next": "x"}}')
        for name, given in self.actions.items():
            wrong = not isinstance(given, Mapping) or len(given) != 1
            if wrong or next(iter(given)) not in ("next", "delta"):
                expected = 'must be {"next": column} or {"delta": column}'
                raise ConfigError(f"actions[{name!r}]", given, expected)
            names(f"actions[{name!r}]", next(iter(given.values())), empty=False)
        put("actions", {name: dict(given) for name, given in self.actions.items()})

    @property
    def needs_time(self) -> bool:
        return True

    def layout(self) -> Layout:
        arrays = {
            "newest": Column(np.int64, (), UNSET),
            "watermark": Column(np.int64, (), UNSET),
            "handed": Column(np.int64, (), UNSET),
            # Episodes begun; frame and start of the row that waits.
            "episodes": Column(np.int64),
            "frame": Column(np.int64),
            "start": Column(np.int64),
            "frames": Column(np.int64, (), 0, "sum"),
            "dropped": Column(np.int64, (), 0, "sum"),
        }
        return Layout(arrays, ("held",))

    def invariants(self, state: State) -> None:
        """Refuse restored state that has not one waiting row per lane, or negative counts.

        Raises:
            StateError: It has not.
        """
        require_int64(state, "held", TIME)
        held = state.tables["held"]
        if held is not None:
            lane = held.column(LANE).to_numpy()
            if len(np.unique(lane)) != len(lane) or (state["episodes"][lane] < 1).any():
                raise StateError("more than one row waits in a lane, or one without an episode")
            if len(set(held.schema.names)) != len(held.schema.names):
                raise StateError("a state table has two columns of one name")
            try:
                self._check(held.schema)
            except ConfigError as error:
                raise StateError(f"state table held does not fit the settings: {error}") from error
        if (state["episodes"] < 0).any() or (state["frame"] < 0).any():
            raise StateError("a lane has a negative number of episodes or frames")

    def schema(self, rows: pa.Schema) -> pa.Schema:
        self._check(rows)
        fields = [pa.field(name, pa.int64()) for name in output_names(rows.names, _OURS).values()]
        for name, given in self.actions.items():
            [(how, path)] = given.items()
            kind = type_of_path(rows, path)
            fields.append(pa.field(name, kind if how == "next" else blend_type(kind)))
        return pa.schema([*rows, *fields])

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        return {"episodes": pa.schema([*(rows.field(key) for key in self.keys), *_EPISODE])}

    def _check(self, rows: pa.Schema) -> None:
        """Check that the columns that settings name are there, and that actions fit beside them.

        Raises:
            ConfigError: One is missing, or taken, or is no number where one is needed.
        """
        wanted = [("keys", key) for key in self.keys]
        if self.state is not None:
            wanted.append(("state", self.state))
        if self.marker is not None:
            wanted.append(("marker", self.marker))
            kind = type_of_path(rows, self.marker)
            if kind is not None and not (
                pa.types.is_struct(kind) and kind.get_field_index("time_ns") >= 0
            ):
                expected = "must be a struct with time_ns: align its topic with `latest`"
                raise ConfigError("marker", self.marker, expected)
        for name, given in self.actions.items():
            [(how, path)] = given.items()
            field_name = f"actions[{name!r}]"
            wanted.append((field_name, path))
            kind = type_of_path(rows, path)
            if how == "delta" and kind is not None and not _numbers_inside(kind):
                raise ConfigError(field_name, path, f"delta needs numbers, and this is {kind}")
            if name in rows.names or name in output_names(rows.names, _OURS).values():
                raise ConfigError(field_name, name, "is a column already: choose another name")
        for setting, path in wanted:
            if type_of_path(rows, path) is None:
                have = ", ".join(rows.names)
                raise ConfigError(setting, path, f"must be a column of the rows: {have}")

    # -- transitions ------------------------------------------------------------------------------

    def compile(self) -> None:
        state = Episodes(gap=1).open()
        stage = Episodes(gap=1)
        rows = pa.record_batch({"v": [1, 2]})
        stage.process(state, Collection.of(rows, np.array([1, 2], np.int64)))
        stage.flush(state)

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        self._check(collection.schema)
        state.grow(int(collection.lane.max()) + 1)
        both = _Both.of(state.tables["held"], collection)
        found = self._walk(state, both)
        out = self._leave(state, both, found)
        waits = both.order[found.verdict[both.order] == _Verdict.WAITS]
        state.tables["held"] = both.keep(waits)
        return out

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        state.grow(int(watermark.lane.max()) + 1)
        lanes = watermark.lane
        np.maximum.at(state["watermark"], lanes, watermark.time_ns)
        held, out = state.tables["held"], []
        if held is not None and held.num_rows and self.gap is not None:
            gap = duration("gap", self.gap)
            passed = state["watermark"][held.column(LANE).to_numpy()]
            # In Python's integers where the sum could overflow: only the far future is concerned.
            limit = np.minimum(held.column(TIME).to_numpy(), MAX_NS - gap) + gap
            out = self._end(state, passed >= limit, Ended.GAP)
        first = np.full(state.lanes, MAX_NS)
        held = state.tables["held"]
        if held is not None and held.num_rows:
            first[held.column(LANE).to_numpy()] = held.column(TIME).to_numpy()
        safe = np.minimum(state["watermark"][lanes], first[lanes] - 1)
        newer = safe > state["handed"][lanes]
        state["handed"][lanes[newer]] = safe[newer]
        return [*out, *([Watermark(safe[newer], lanes[newer])] if newer.any() else [])]

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        held = state.tables["held"]
        if held is None or not held.num_rows:
            return []
        mine = np.ones(held.num_rows, np.bool_)
        if lanes is not None:
            mine = np.isin(held.column(LANE).to_numpy(), lanes)
        return self._end(state, mine, Ended.END)

    def discard(self, state: State) -> dict[str, int]:
        waiting = state.rows("held")
        state.free(np.arange(state.lanes))
        return {"rows_held": waiting}

    def metrics(self, state: State) -> dict[str, int | float]:
        return {
            "episodes": int(state["episodes"].sum()),
            "frames": int(state["frames"].sum()),
            "dropped": int(state["dropped"].sum()),
            "rows_held": state.rows("held"),
        }

    def _end(self, state: State, ending: NDArray[np.bool_], why: Ended) -> list[Outcome]:
        """End the episodes of some waiting rows.

        Args:
            state: Of this stage.
            ending: Per waiting row: whether it is the last of its episode.
            why: What ended it.
        """
        held = state.tables["held"]
        if held is None or not ending.any():
            return []
        both = _Both.of(held, None)
        found = _Found.waiting(state, both)
        found.verdict[ending] = _Verdict.LAST
        found.ended[ending] = why
        out = self._leave(state, both, found)
        state.tables["held"] = both.keep(np.flatnonzero(~ending))
        state.touch(both.lane[ending])
        return out

    def _walk(self, state: State, both: _Both) -> _Found:
        """Number the rows of a call and find where episodes end."""
        marker, no_marker = self._marks(both)
        code, other_state = self._codes(both)
        excluded = np.where(no_marker, _Verdict.NO_MARKER, 0)
        excluded = np.where(other_state & ~no_marker, _Verdict.OTHER_STATE, excluded)
        found = _Found.waiting(state, both)
        rows = _Rows(
            both.order, both.lane, both.time_ns, marker, code, excluded.astype(np.int8), both.waited
        )
        lanes = _Lanes(state["newest"], state["episodes"], state["frame"], state["start"])
        gap = -1 if self.gap is None else duration("gap", self.gap)
        _cut(rows, lanes, gap, found)
        return found

    def _marks(self, both: _Both) -> tuple[Int64s, NDArray[np.bool_]]:
        """The time of the marker message each row stands under, and which rows have none."""
        n = len(both.lane)
        if self.marker is None:
            return np.zeros(n, np.int64), np.zeros(n, np.bool_)
        kind: Any = type_of_path(both.schema, self.marker)
        name = "time_ns"
        while kind.get_field_index(f"tidegate_{name}") >= 0:
            name = f"tidegate_{name}"  # ours stepped aside for a column of the user
        column = both.column(f"{self.marker}.{name}")
        null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(), np.int64), null

    def _codes(self, both: _Both) -> tuple[Int64s, NDArray[np.bool_]]:
        """A number per state, and which rows are in a state that is not wanted."""
        n = len(both.lane)
        if self.state is None:
            return np.zeros(n, np.int64), np.zeros(n, np.bool_)
        column = as_text(both.column(self.state))
        codes = factorize([column]).codes
        if self.within is None:
            return codes, np.zeros(n, np.bool_)
        wanted = pc.is_in(column, pa.array(list(self.within), column.type))
        return codes, ~np.asarray(wanted.to_numpy(zero_copy_only=False), np.bool_)

    def _leave(self, state: State, both: _Both, found: _Found) -> list[Outcome]:
        """The outcomes of a call: rows with their numbers and actions, dropped and late rows."""
        verdict = found.verdict[both.order]
        ends = both.order[verdict == _Verdict.LAST]
        cuts = self.last == "drop" and bool(self.actions)
        leaves = (verdict == _Verdict.FOLLOWED) | ((verdict == _Verdict.LAST) & (not cuts))
        rows = both.order[leaves]
        out: list[Outcome] = [self._numbered(both, found, part) for part in both.apart(rows)]
        np.add.at(state["frames"], both.lane[rows], 1)
        if len(ends):
            out.append(self._ended(both, found, ends, cuts))
        excluded = (verdict == _Verdict.NO_MARKER) | (verdict == _Verdict.OTHER_STATE)
        gone = both.order[excluded | ((verdict == _Verdict.LAST) & cuts)]
        np.add.at(state["dropped"], both.lane[gone], 1)
        for part in both.apart(gone):
            why = self._reasons(both, found.verdict[part], part)
            out.append(Dropped(both.take(part), both.time_ns[part], both.lane[part], why))
        late = both.order[verdict == _Verdict.LATE]
        if len(late):
            by = state["newest"][both.lane[late]] - both.time_ns[late]
            out.append(Late(both.take(late), both.time_ns[late], both.lane[late], by))
        return out

    def _numbered(self, both: _Both, found: _Found, rows: Int64s) -> Collection:
        """These rows as data, with episode, frame and actions."""
        payload = both.take(rows)
        arrays = [
            pa.array(found.episode[rows]),
            pa.array(found.frame[rows]),
            pa.array(both.time_ns[rows] - found.start[rows]),
        ]
        last = found.verdict[rows] == _Verdict.LAST
        follower = found.follower[rows]
        if self.last == "repeat":
            follower = np.where(last, rows, follower)
        following = pa.array(np.maximum(follower, 0), mask=follower < 0)
        for given in self.actions.values():
            [(how, path)] = given.items()
            column = both.column(path)
            after = column.take(following)
            if how == "delta":
                after = value_difference(column.take(pa.array(rows)), after)
            arrays.append(after)
        schema = self.schema(payload.schema)
        made = pa.RecordBatch.from_arrays([*payload.columns, *arrays], schema=schema)
        return Collection(made, both.time_ns[rows], both.lane[rows])

    def _ended(self, both: _Both, found: _Found, rows: Int64s, cuts: bool) -> Side:
        """The side table of the episodes whose last rows these are."""
        keys = [both.column(key).take(pa.array(rows)) for key in self.keys]
        words = pa.array([member.name.lower() for member in Ended])
        arrays = [
            *keys,
            pa.array(found.episode[rows]),
            pa.array(found.start[rows]),
            pa.array(both.time_ns[rows]),
            pa.array(found.frame[rows] + (0 if cuts else 1)),
            words.take(pa.array(found.ended[rows])),
        ]
        schema = self.side_schemas(both.schema)["episodes"]
        return Side("episodes", pa.RecordBatch.from_arrays(arrays, schema=schema), both.lane[rows])

    def _reasons(self, both: _Both, verdict: NDArray[np.int8], rows: Int64s) -> pa.Array:
        """Why each of these rows is dropped."""
        out = np.full(len(rows), LAST_REASON, object)
        out[verdict == _Verdict.NO_MARKER] = f"no message of {self.marker} before it"
        other = np.flatnonzero(verdict == _Verdict.OTHER_STATE)
        if len(other) and self.state is not None:
            values = both.column(self.state).take(pa.array(rows[other])).to_pylist()
            out[other] = [f"{self.state} is {value}" for value in values]
        return pa.array(out, pa.string())


_EPISODE = pa.schema(
    {
        "episode": pa.int64(),
        "start_ns": pa.int64(),
        "end_ns": pa.int64(),
        "frames": pa.int64(),
        "ended_by": pa.string(),
    }
)
"""The columns of the side table `episodes`, behind the keys: number, times of the first and last
row, rows delivered, and what ended it: `gap`, `marker`, `state` or `end`."""


class _Rows(NamedTuple):
    """The rows of a call, for the kernel."""

    order: Int64s
    """Row numbers by lane; within a lane in the order of arrival, the waiting row first."""
    lane: Int32s
    time_ns: Int64s
    marker: Int64s
    """The time of the marker message a row stands under."""
    code: Int64s
    """The number of its state."""
    excluded: NDArray[np.int8]
    """0, or the verdict for a row that is part of no episode."""
    waited: int
    """Rows below this number waited in the state."""


class _Lanes(NamedTuple):
    """What the state says of each lane."""

    newest: Int64s
    """The newest time; older rows are late."""
    episodes: Int64s
    """Episodes begun so far."""
    frame: Int64s
    """The frame of the row that waits."""
    start: Int64s
    """The first time of its episode."""


class _Found(NamedTuple):
    """What the kernel finds, one entry per row of the call."""

    verdict: NDArray[np.int8]
    """A `_Verdict`."""
    ended: NDArray[np.int8]
    """For the last row of an episode: an `Ended`."""
    episode: Int64s
    frame: Int64s
    start: Int64s
    """The first time of the row's episode."""
    follower: Int64s
    """The next row of the episode; -1 where there is none."""

    @classmethod
    def waiting(cls, state: State, both: _Both) -> _Found:
        """All rows wait; those that waited have their numbers from the state."""
        n, lane = len(both.lane), both.lane[: both.waited]
        made = cls(
            np.zeros(n, np.int8), np.zeros(n, np.int8), np.zeros(n, np.int64),
            np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64),
        )  # fmt: skip
        made.episode[: both.waited] = state["episodes"][lane] - 1
        made.frame[: both.waited] = state["frame"][lane]
        made.start[: both.waited] = state["start"][lane]
        return made


@kernel
def _cut(rows: Any, lanes: Any, gap: int, found: Any) -> None:
    """Number the rows of a call by episode and frame, lane by lane.

    Args:
        rows: `_Rows`.
        lanes: `_Lanes`; moved on.
        gap: The longest time between two rows of an episode; -1: any.
        found: `_Found`; filled.
    """
    before = -1  # the row before in this lane and in an episode
    for at in range(len(rows.order)):
        row = rows.order[at]
        lane, time = rows.lane[row], rows.time_ns[row]
        if at > 0 and rows.lane[rows.order[at - 1]] != lane:
            before = -1
        if row < rows.waited:
            before = row
            continue
        if time < lanes.newest[lane]:
            found.verdict[row] = 5  # _Verdict.LATE
            continue
        lanes.newest[lane] = time
        why = 0
        if before >= 0:
            past = rows.time_ns[before]
            far = past < 0 and time > MAX_NS + past  # the difference does not fit into int64
            # A gap comes first: the watermark may have told of it before this row was in.
            if gap >= 0 and (far or time - past > gap):
                why = 1
            elif rows.excluded[row] != 0:
                why = rows.excluded[row] - 1  # MARKER or STATE
            elif rows.marker[row] != rows.marker[before]:
                why = 2
            elif rows.code[row] != rows.code[before]:
                why = 3
            found.verdict[before] = 1 if why == 0 else 2  # FOLLOWED or LAST
            found.ended[before] = why
        if rows.excluded[row] != 0:
            found.verdict[row] = rows.excluded[row]
            before = -1
            continue
        if before < 0 or why != 0:
            found.episode[row] = lanes.episodes[lane]
            lanes.episodes[lane] += 1
            lanes.start[lane] = time
            lanes.frame[lane] = 0
        else:
            found.follower[before] = row
            found.episode[row] = found.episode[before]
            lanes.frame[lane] += 1
        found.frame[row] = lanes.frame[lane]
        found.start[row] = lanes.start[lane]
        before = row


@dataclass(frozen=True, eq=False)
class _Both:
    """The rows that waited, and behind them those of a collection; nothing is copied."""

    held: pa.RecordBatch | None
    """The waiting rows, without columns of ours."""
    new: pa.RecordBatch | None
    """The rows of the collection."""
    lane: Int32s
    time_ns: Int64s
    order: Int64s
    """Row numbers by lane, in the order of arrival within a lane."""

    @classmethod
    def of(cls, held: pa.RecordBatch | None, new: Collection | None) -> _Both:
        """Put waiting rows and a collection behind each other."""
        lanes, times = [], []
        payload = None
        if held is not None and held.num_rows:
            payload = held.drop_columns([LANE, TIME])
            lanes.append(held.column(LANE).to_numpy())
            times.append(held.column(TIME).to_numpy())
        if new is not None:
            lanes.append(new.lane)
            times.append(new.time_ns)
        lane, time_ns = np.concatenate(lanes), np.concatenate(times)
        order = np.arange(len(lane))
        if (lane[1:] < lane[:-1]).any():
            order = np.argsort(lane, kind="stable")
        lane, time_ns = as_readonly(lane), as_readonly(time_ns)
        return cls(payload, None if new is None else new.rows, lane, time_ns, order)

    @property
    def waited(self) -> int:
        """How many rows waited: row numbers below it are theirs."""
        return 0 if self.held is None else int(self.held.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the new rows, else that of the waiting ones."""
        rows = self.held if self.new is None else self.new
        assert rows is not None
        return rows.schema

    def column(self, path: str) -> pa.Array:
        """A column, or a field of a struct, of all rows."""
        parts = [column_of_path(rows, path) for rows in (self.held, self.new) if rows is not None]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays([part.cast(parts[-1].type) for part in parts])

    def apart(self, rows: Int64s) -> list[Int64s]:
        """These rows as those that waited and those that are new; empty ones are left out."""
        parts = rows[rows < self.waited], rows[rows >= self.waited]
        return [part for part in parts if len(part)]

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """These rows, which all waited or are all new; a run of rows is not copied."""
        waited = bool(rows[0] < self.waited)
        source = self.held if waited else self.new
        assert source is not None
        at = rows if waited else rows - self.waited
        if len(at) == at[-1] - at[0] + 1 and (np.diff(at) == 1).all():
            return source.slice(int(at[0]), len(at))
        return take(source, at)

    def keep(self, rows: Int64s) -> pa.RecordBatch | None:
        """These rows as the state table, sorted by lane; None if there are none."""
        parts = []
        for part in self.apart(rows):
            payload = take(self.take(part), np.arange(len(part)))  # a copy: nothing else is kept
            extra = [pa.array(self.lane[part], pa.int32()), pa.array(self.time_ns[part])]
            parts.append(
                pa.RecordBatch.from_arrays(
                    [*payload.columns, *extra], names=[*payload.schema.names, LANE, TIME]
                )
            )
        if not parts:
            return None
        made = parts[0]
        if len(parts) == 2:
            one = parts[0]
            if one.schema != parts[1].schema:
                one = one.cast(parts[1].schema)
            made = pa.concat_batches([one, parts[1]])
            made = take(made, np.argsort(made.column(LANE).to_numpy(), kind="stable"))
        return made


def _numbers_inside(kind: pa.DataType) -> bool:
    """Whether a difference can be taken: of numbers, lists of numbers, structs with either."""
    if pa.types.is_struct(kind):
        return any(_numbers_inside(f.type) for f in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def cut_episodes(
    table: pa.Table, *, time: str = "time_ns", key: str | Sequence[str] = (), **settings: Any
) -> pa.Table:
    """Cut a table of aligned rows into episodes, in one call and without Spark.

    Args:
        table: As `align.rows` returns it, or any table with a time in nanoseconds.
        time: The column that holds the time: int64, nanoseconds since 1970.
        key: The column or columns that tell robots, vehicles or runs apart; each key has episodes
            of its own, numbered from 0.
        settings: Those of `Episodes`: `gap`, `marker`, `state`, `within`, `actions`, `last`.

    Returns:
        The rows of episodes, by key and time, with `episode`, `frame`, `episode_time_ns` and the
        actions. Rows that are part of none are left out; the stage `Episodes` tells why.

    Raises:
        ConfigError: A setting or a column is wrong.

    Example:
        >>> table = pa.table({"time_ns": [0, 10, 500], "x": [1.0, 2.0, 7.0]})
        >>> cut = cut_episodes(table, gap=100, actions={"action": {"delta": "x"}}, last="null")
        >>> cut.select(["episode", "frame", "action"]).to_pylist()[:2]
        [{'episode': 0, 'frame': 0, 'action': 1.0}, {'episode': 0, 'frame': 1, 'action': None}]
    """
    stage = Episodes(keys=names("key", key), **settings)
    if time not in table.column_names:
        raise ConfigError("time", time, f"must be a column: {', '.join(table.column_names)}")
    batch = pa.Table.from_batches(table.to_batches(), table.schema).combine_chunks()
    rows = pa.concat_batches(batch.to_batches()) if batch.num_rows else None
    schema = stage.schema(table.schema)
    if rows is None:
        return schema.empty_table()
    if rows.column(time).null_count or not pa.types.is_integer(rows.column(time).type):
        raise ConfigError("time", time, "must be int64 nanoseconds, without nulls")
    time_ns = np.asarray(rows.column(time).to_numpy(), np.int64)
    lane = np.zeros(len(time_ns), np.int32)
    if stage.keys:
        lane = factorize([rows.column(name) for name in stage.keys]).codes.astype(np.int32)
    lanes = int(lane.max()) + 1
    order = order_rows(lane, time_ns, lanes)
    state = stage.open(lanes)
    ordered = Collection(take(rows, order), time_ns[order], lane[order])
    out = [*stage.process(state, ordered), *stage.flush(state)]
    made = [(o.rows, o.lane, o.time_ns) for o in out if isinstance(o, Collection)]
    if not made:
        return schema.empty_table()
    joined = pa.concat_batches([one for one, _, _ in made])
    by = np.lexsort(
        (np.concatenate([t for *_, t in made]), np.concatenate([x for _, x, _ in made]))
    )
    return pa.Table.from_batches([take(joined, by)])
