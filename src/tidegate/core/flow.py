"""A chain of operators with its state and its keys: the thing that runs, in process and on Spark.

A flow gives every key a lane, runs all lanes through the chain at once, forgets keys that have been
silent for long, and hands out its state in pages of lanes, so that only what changed is written.

    process(rows) ──► check columns ──► decoder: times ──► accept(collection)
    accept ──► a lane per key ──► Chain.process ──► outcomes
    wake   ──► deadlines of stages; keys unseen for too long leave as forgotten
    pages / load, snapshot / restore ──► the state, in pages of PAGE_LANES lanes

Clock policy: `wall_ns` of `process` and `wake` is the only clock. It decides which keys are
forgotten; what else it decides is said in each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Collection_
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core import snapshot
from tidegate.core.adoption import SettingChange, setting_difference
from tidegate.core.arrow import (
    as_text,
    compile_kernels,
    concat,
    factorize,
    first_rows,
    present,
)
from tidegate.core.broken_text import set_broken_text_apart
from tidegate.core.chain import STAGE_COUNTERS, Chain, StageCounts, check_time
from tidegate.core.checks import duration, one_of
from tidegate.core.checks import names as check_names
from tidegate.core.columns import LANE, check_columns
from tidegate.core.operator import Operator, check_state
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    End,
    Int32s,
    Outcome,
    StreamError,
)
from tidegate.core.seal import StateKey, check_tags, open_pages, tag_of
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET, Duration, format_time
from tidegate.errors import ConfigError, StateError

__all__ = ["PAGE_LANES", "Flow", "Lag", "ReadsTime", "never_seen", "regroup", "snapshot_pages"]

PAGE_LANES = 512
"""Lanes per page of state: large enough that a page costs little beyond its bytes, small enough
that a few busy keys among a million do not rewrite the others."""


_NAMES_KEPT = 20
"""Names kept per column for the sentence about one that never occurred: enough to recognise a
misspelling, few enough that a column of a million values costs nothing."""

_ADD_DECODER = (
    'pass decoder=Decoder((TimeColumn("stamp", "unixtimestamp_ns"),)) to Flow, with the name and '
    "the type of your time column"
)


class ReadsTime(Protocol):
    """What a flow needs of a decoder: `tidegate.eventtime.Decoder` is the one there is."""

    @property
    def reads_time(self) -> bool:
        """Whether rows get a time of their own; if not, they get the processing time."""

    def check_first(self, schema: pa.Schema) -> None:
        """Raise a ConfigError if rows of this schema have no column with a time."""

    def decode(
        self, rows: pa.RecordBatch, lane: Int32s | None = None, wall_ns: int = 0
    ) -> tuple[Collection, StreamError | None]:
        """The rows that have a time, and those that have none with the reason."""


class Lag(NamedTuple):
    """How far a key is behind."""

    key: Any
    """Its value, or a tuple of values if the key has several columns."""
    watermark_ns: int
    lag_ns: int
    """Its distance to the watermark of the key furthest ahead."""


class _Kept(NamedTuple):
    """What page 0 carries beside the states."""

    counters: dict[str, int]
    counts: list[StageCounts]
    columns: tuple[str, ...]
    seen: dict[str, list[str]]


def _batch_of_table(rows: object) -> pa.RecordBatch:
    """The rows of a table as one batch. Raises ConfigError, with the call to make, for others."""
    if not isinstance(rows, pa.Table):
        raise ConfigError(
            "rows", type(rows).__name__,
            "must be a pyarrow.RecordBatch or a pyarrow.Table, such as pa.Table.from_pylist(rows) "
            "or pa.Table.from_pandas(df)",
        )  # fmt: skip
    batches = rows.combine_chunks().to_batches()
    return concat(batches) or pa.RecordBatch.from_pylist([], schema=rows.schema)


def wrong_unit(newest_ns: int) -> list[str]:
    """Return a sentence if the newest event time is one that only a wrong unit makes likely: early
    in 1970, where a thousand or a million times as much it would be a time of this century.

    Nothing is refused: a simulation, or a clock that counts from a boot, begins at 0.

    >>> wrong_unit(1_700_000_000_000)  # milliseconds, read as nanoseconds
    ['the newest event time is 1970-01-01T00:28:20.000000000Z: if these are not times since a \
start, the unit of the event-time type is too small (unixtimestamp_ms read as unixtimestamp_ns?)']
    >>> wrong_unit(60_000_000_000), wrong_unit(1_700_000_000_000_000_000)
    ([], [])
    """
    if not any(_THIS_CENTURY[0] <= newest_ns * by < _THIS_CENTURY[1] for by in (10**3, 10**6)):
        return []
    return [
        f"the newest event time is {format_time(newest_ns)}: if these are not times since a start, "
        "the unit of the event-time type is too small (unixtimestamp_ms read as unixtimestamp_ns?)"
    ]


def newest_time(metrics: Mapping[str, int | float]) -> int:
    """Return the newest event time among the metrics of stages; 0 if there is none."""
    return max((int(v) for k, v in metrics.items() if k.endswith(".max_timestamp_seen")), default=0)


_THIS_CENTURY = (946_684_800 * 10**9, 4_102_444_800 * 10**9)
"""From 2000 to 2100, in ns."""


def never_seen(
    expected: Mapping[str, Sequence[str]], seen: Mapping[str, Collection_[str]]
) -> list[str]:
    """A sentence for every name that a setting expects in a column and the data never had.

    `expected` and `seen` are names by column, as from `Chain.expected_names` and
    `Flow.seen_names`; on Spark, `seen` is the union over all shards.
    """
    out = []
    for column, names in expected.items():
        found = seen.get(column, ())
        for name in names:
            if name not in found:
                others = ", ".join(sorted(found)) or "nothing"
                out.append(f"{column} {name!r} was never seen; seen: {others}")
    return out


class Flow:
    """Operators, their state, and a lane per key: the thing that runs, in process and on Spark.

    Args:
        stages: The operators, in order. They are adapted to each other, see `Chain`.
        key: The column, or columns, whose values are kept apart: each combination is a key with a
            lane of its own, null included. Default None: one lane for everything.
        decoder: Reads the event time of rows (`tidegate.eventtime.Decoder`). Without one, rows are
            stamped with the processing time given to `process`, and a stage that needs time is
            refused.
        forget: A key unseen for longer than this (wall time) leaves: what it holds is delivered
            with the reason `forgotten`, and its lane is used again. Default None: keys are kept for
            ever, and memory grows with their number.
        new_columns: What happens to rows with a column that the first collection did not have:
            `"deliver"` (default) delivers it from there on, null before; `"refuse"` makes errors of
            those rows.
        timed: True if collections come with their times, through `accept`, as on Spark. Default
            False.
        state_key: Seals pages and snapshots, so that only the holder of the key can write one that
            `restore` and `load` accept; at least 16 bytes. Default None: a snapshot somebody
            changed is checked, but cannot be told from a real one. See `tidegate.core.seal`.

    Raises:
        ConfigError: a bad setting; where a stage needs time and nothing gives it; and where a stage
            has `keys` that are not among `key`: its rows would not be kept apart by them.

    Example:
        >>> import pyarrow as pa
        >>> from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
        >>> decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
        >>> flow = Flow([EventtimeWatermark("10 s")], key="car", decoder=decoder)
        >>> rows = pa.record_batch({"car": ["a", "b", "a", "a"], "t": [20, 90, 15, 40]})
        >>> [o.rows.column("t").to_pylist() for o in flow.process(rows) if o.kind == "data"]
        [[15, 20]]
        >>> [o.rows.column("t").to_pylist() for o in flow.end()]
        [[40, 90]]
    """

    def __init__(
        self,
        stages: Sequence[Operator],
        *,
        key: str | Sequence[str] | None = None,
        decoder: ReadsTime | None = None,
        forget: Duration | None = None,
        new_columns: Literal["deliver", "refuse"] = "deliver",
        timed: bool = False,
        state_key: StateKey | str | bytes | None = None,
    ) -> None:
        self.chain = Chain(tuple(stages))
        self.keys = check_names("key", key)
        check_columns(self.keys, "key")
        self.decoder = decoder
        self.forget_ns = None if forget is None else duration("forget", forget, 1)
        self.new_columns = one_of("new_columns", new_columns, ("deliver", "refuse"))
        has_time = timed or (decoder is not None and decoder.reads_time)
        check_time(self.chain.stages, has_time, _ADD_DECODER)
        for stage in self.chain.stages:
            for name in getattr(stage, "keys", ()):
                if name not in self.keys:
                    raise ConfigError(
                        "keys", name,
                        f"is no key of this Flow, so {type(stage).__name__} would mix the rows of "
                        f"several: pass key={[*self.keys, name]!r} to Flow",
                    )  # fmt: skip
        if state_key is not None and not isinstance(state_key, StateKey):
            state_key = StateKey(state_key)
        self.state_key = state_key
        self.scope = ""
        """What sealed pages belong to: on Spark the shard, so that those of two cannot be
        exchanged."""
        self._tags: list[str] = []
        """The tags of the sealed pages behind page 0, as last written or loaded."""
        self.states = self.chain.open()
        self.lanes = State(_LANES)
        self._lane_of: dict[Any, int] = {}
        self._free: list[int] = []
        self._columns: tuple[str, ...] = ()
        """The columns seen so far, in order of appearance."""
        self._expected_names = self.chain.expected_names()
        self._seen: dict[str, set[str]] = {name: set() for name in self._expected_names}
        self.counters = {
            "rows_in": 0, "parse_error_count": 0, "new_column_error_count": 0,
            "forgotten_keys": 0,
        }  # fmt: skip
        self.counts = self.chain.open_counts()

    def compile(self) -> None:
        """Compile what every collection runs through, so that no worker has to."""
        for stage in self.chain.stages:
            stage.compile()
        compile_kernels()
        State(_LANES).touch(np.zeros(2, np.int32))

    # -- running --------------------------------------------------------------------------------

    def process(self, rows: pa.RecordBatch | pa.Table, wall_ns: int = 0) -> list[Outcome]:
        """Rows came, in arrival order: read their times, find their lanes, run the chain.

        Args:
            rows: The rows. A table counts as one collection.
            wall_ns: The processing time, in nanoseconds since 1970: the only clock there is.

        Raises:
            ConfigError: They are neither a record batch nor a table; a column has a name of ours;
                the key is not among the columns; or the first rows have no column with the time.
        """
        if not isinstance(rows, pa.RecordBatch):
            rows = _batch_of_table(rows)
        self.counters["rows_in"] += rows.num_rows
        if rows.num_rows == 0:
            return []
        refused = self._check_columns(rows)
        if refused is not None:
            return [refused]
        out: list[Outcome] = []
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid:
            rows, broken = set_broken_text_apart(rows)
            if broken is not None:
                self.counters["parse_error_count"] += len(broken)
                out.append(broken)
        if self.decoder is None:
            stamps = np.full(rows.num_rows, wall_ns, np.int64)
            return out + self.accept(Collection.of(rows, stamps, wall_ns))
        collection, errors = self.decoder.decode(rows, wall_ns=wall_ns)
        if errors is not None:
            self.counters["parse_error_count"] += len(errors)
            out.append(errors)
        return out + self.accept(collection)

    def accept(self, collection: Collection) -> list[Outcome]:
        """Rows that have their times already; their lanes are found here."""
        if collection.rows.num_rows == 0:
            return []
        self._look_for_names(collection.rows)
        lane = self._lanes_of(collection.rows)
        here = present(lane, self.lanes.lanes)
        self.lanes.arrays["seen"][here] = collection.wall_ns
        self.lanes.touch(here)
        with_lanes = Collection(collection.rows, collection.time_ns, lane, collection.wall_ns)
        return self.chain.process(self.states, with_lanes, self.counts)

    def _check_columns(self, rows: pa.RecordBatch) -> StreamError | None:
        """Refuse internal names, a key that no row ever had, a time that the first rows lack, and
        new columns if told to.
        """
        names = rows.schema.names
        new = [name for name in names if name not in self._columns]
        if not new:
            return None
        check_columns(new)
        for key in self.keys:
            if key not in names and key not in self._columns:
                columns = ", ".join([*self._columns, *new])
                raise ConfigError("key", key, f"must be a column of the rows: {columns}")
        if self.decoder is not None and not self._columns:
            self.decoder.check_first(rows.schema)
        if self.new_columns == "refuse" and self._columns:
            self.counters["new_column_error_count"] += rows.num_rows
            n = rows.num_rows
            reason = f"column {new[0]!r} is not among those the stream began with"
            return StreamError(
                rows, pa.repeat(new[0], n), as_text(rows.column(new[0])), pa.repeat(reason, n),
                np.zeros(n, np.int32),
            )  # fmt: skip
        self._columns += tuple(new)
        return None

    def wake_at(self) -> int | None:
        """The wall time of the next deadline: of a stage, or of a key to be forgotten."""
        due = self.chain.wake_at(self.states)
        if self.forget_ns is not None:
            seen = self.lanes["seen"][self.lanes["used"] == 1]
            if len(seen):
                forget = int(seen.min()) + self.forget_ns + 1
                due = forget if due is None else min(due, forget)
        return due

    def wake(self, wall_ns: int) -> list[Outcome]:
        """Deadlines up to `wall_ns` are due; keys unseen for too long are delivered and freed."""
        out = self.chain.wake(self.states, wall_ns, self.counts)
        if self.forget_ns is not None:
            old = (self.lanes["used"] == 1) & (self.lanes["seen"] < wall_ns - self.forget_ns)
            gone = np.flatnonzero(old).astype(np.int32)
            if len(gone):
                out += self.chain.forget(self.states, gone, self.counts)
                self._forget(gone)
                self.counters["forgotten_keys"] += len(gone)
        return out

    def resume(self, wall_ns: int) -> None:
        """The flow runs again after a break, which no stage takes for silence of its streams, or
        the clock was set back: a key that was seen in what is the future now was seen now."""
        self.chain.resume(self.states, wall_ns)
        ahead = np.flatnonzero(self.lanes["seen"] > wall_ns)
        if len(ahead):
            self.lanes.arrays["seen"][ahead] = wall_ns
            self.lanes.touch(ahead)

    def control(self, signal: ControlSignal) -> list[Outcome]:
        """Hand a signal to every stage."""
        return self.chain.control(self.states, signal, self.counts)

    def end(self, how: End = End.GRACEFUL) -> list[Outcome]:
        """The stream ends: deliver everything held, or discard and count it."""
        return self.control(ControlSignal.end(how))

    # -- what a run says --------------------------------------------------------------------------

    def metrics(self) -> dict[str, int | float]:
        """Counters of the flow and of every stage: its borders (see `StageCounts`) and its own."""
        borders = {
            f"{label}.{name}": value
            for label, counts in zip(self.chain.labels, self.counts, strict=True)
            for name, value in counts.items()
        }
        return {
            **self.counters,
            "keys": len(self._lane_of),
            "state_bytes": sum(state.nbytes() for state in self.states),
            "names_never_seen": len(self._names_never_seen()),
            **self.chain.metrics(self.states),
            **borders,
        }

    def warnings(self) -> list[str]:
        """Sentences about settings that name something the data does not have, and about times that
        look as if they were read in a wrong unit.

        >>> never_seen({"topic": ("lidr", "camera")}, {"topic": {"lidar", "camera"}})
        ["topic 'lidr' was never seen; seen: camera, lidar"]
        """
        return self._names_never_seen() + wrong_unit(newest_time(self.chain.metrics(self.states)))

    def _names_never_seen(self) -> list[str]:
        return never_seen(self._expected_names, self._seen) if self.counters["rows_in"] else []

    def seen_names(self) -> dict[str, list[str]]:
        """The values seen in columns of which a setting names values, sorted, by column."""
        return {column: sorted(names) for column, names in self._seen.items()}

    def lagging(self, count: int = 5) -> list[Lag]:
        """The keys furthest behind: their watermark, and its distance to that of the key furthest
        ahead. Most behind first, at most `count` of them; empty without an event-time stage."""
        for stage, state in zip(self.chain.stages, self.states, strict=True):
            watermark = stage.watermarks(state)
            if watermark is None:
                continue
            key_of = {lane: key for key, lane in self._lane_of.items()}
            used = np.array(sorted(key_of), np.int64)
            used = used[used < len(watermark)]
            used = used[watermark[used] != UNSET]
            if len(used) == 0:
                return []
            order = used[np.argsort(watermark[used], kind="stable")]
            ahead = int(watermark[order[-1]])
            return [
                Lag(key_of[int(lane)], int(watermark[lane]), ahead - int(watermark[lane]))
                for lane in order[:count]
            ]
        return []

    def _look_for_names(self, rows: pa.RecordBatch) -> None:
        """Note which of the values that settings name occur, and a few others for the message."""
        for column, names in self._expected_names.items():
            seen = self._seen[column]
            index = rows.schema.get_field_index(column)
            if index < 0 or seen.issuperset(names):
                continue
            found = as_text(rows.column(index).unique()).drop_null().to_pylist()
            seen.update(name for name in found if name in names)
            seen.update(found[: max(0, _NAMES_KEPT - len(seen))])

    # -- keys and lanes -------------------------------------------------------------------------

    def find_lane(self, *key: Any) -> int | None:
        """The lane of a key, if it has been seen."""
        return self._lane_of.get(key[0] if len(key) == 1 else key)

    def _lanes_of(self, rows: pa.RecordBatch) -> Int32s:
        """The lane of every row. A key that is new gets a lane, a freed one if there is any."""
        if not self.keys:
            if () not in self._lane_of:
                self._add([()], [], np.zeros(1, np.int64))
            return np.zeros(rows.num_rows, np.int32)
        keys = self._key_columns(rows)
        codes, size = factorize(keys)
        firsts = first_rows(codes, size)
        known = np.flatnonzero(firsts >= 0)
        firsts = firsts[known]
        columns = [_values(column.take(pa.array(firsts))) for column in keys]
        names: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        fresh = [place for place, name in enumerate(names) if name not in self._lane_of]
        if fresh:
            self._add([names[place] for place in fresh], keys, firsts[fresh])
        lane_of = self._lane_of
        lanes = np.zeros(size, np.int32)
        lanes[known] = np.fromiter((lane_of[name] for name in names), np.int32, len(names))
        return np.asarray(lanes[codes], np.int32)

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The columns of the key; one that is missing from this collection is null throughout."""
        columns = []
        for name in self.keys:
            place = rows.schema.get_field_index(name)
            column = rows.column(place) if place >= 0 else pa.nulls(rows.num_rows)
            if pa.types.is_nested(column.type):
                raise ConfigError(
                    "key", name, f"must be a column of plain values, is {column.type}"
                )
            columns.append(column)
        return columns

    def _add(self, names: list[Any], keys: Sequence[pa.Array], firsts: NDArray[Any]) -> None:
        """Give new keys lanes, freed ones first. `firsts` are the rows that have them."""
        lanes = []
        for name in names:
            lane = self._free.pop() if self._free else len(self._lane_of)
            self._lane_of[name] = lane
            lanes.append(lane)
        top = max(lanes) + 1
        for state in (self.lanes, *self.states):
            state.grow(top)
        self.lanes["used"][lanes] = 1
        table = pa.RecordBatch.from_arrays(
            [*(column.take(pa.array(firsts)) for column in keys), pa.array(lanes, pa.int32())],
            names=[*self.keys, LANE],
        )
        self.lanes.tables["keys"] = concat([self.lanes.tables["keys"], table])

    def _forget(self, gone: Int32s) -> None:
        """Free the lanes of these keys in all states; they are given out again, lowest first."""
        lanes = set(gone.tolist())
        self._lane_of = {name: lane for name, lane in self._lane_of.items() if lane not in lanes}
        self._free += sorted(lanes, reverse=True)
        for state in (self.lanes, *self.states):
            state.free(gone)

    # -- snapshots ------------------------------------------------------------------------------

    def pages(self, *, changed: bool = False) -> dict[int, bytes]:
        """The state in pages of lanes, by page number; only those that changed, if asked to.

        Page 0 carries the counters and is always among them.
        """
        touched = np.zeros(self.lanes.lanes, np.bool_)
        for state in (self.lanes, *self.states):
            known = min(len(touched), len(state.touched))
            touched[:known] |= state.touched[:known]
            state.touched[:] = False
        used = max(self._lane_of.values(), default=0) + 1
        top = max(used, int(np.flatnonzero(touched).max(initial=0)) + 1)
        edges = [*range(0, top, PAGE_LANES), top]
        identities = [identity for identity, _ in self._expected()]
        cut = [state.pages(edges) for state in (self.lanes, *self.states)]
        out = {}
        if not changed:
            self._tags = []
        # Page 0 comes last: it lists the tags of the others.
        for page, parts in reversed(list(enumerate(zip(*cut, strict=True)))):
            if changed and page > 0 and not touched[edges[page] : edges[page + 1]].any():
                continue
            stages = list(zip(identities, parts, strict=True))
            out[page] = self._sealed(page, snapshot.encode(stages, self._extra(page)))
        return dict(sorted(out.items()))

    def seal(self, blob: bytes, what: str) -> bytes:
        """Return a page that is kept beside the flow's own, sealed if there is a state key."""
        if self.state_key is None:
            return blob
        return self.state_key.seal(blob, f"{self.scope} {what}")

    def unseal(self, blob: bytes, what: str) -> bytes:
        """Return the page that `seal` sealed under the same name. Raises StateError."""
        if self.state_key is None:
            return blob
        return bytes(self.state_key.open(blob, f"{self.scope} {what}", f"the state page {what}"))

    def _sealed(self, page: int, blob: bytes) -> bytes:
        """Return a page as it is stored, and remember its tag for page 0."""
        if self.state_key is None:
            return blob
        blob = self.state_key.seal(blob, self.scope)
        if page > 0:
            self._tags += [""] * (page - len(self._tags))
            self._tags[page - 1] = tag_of(blob)
        return blob

    def load(self, pages: Mapping[int, bytes], *, adopt: bool = False) -> list[Outcome]:
        """Take up the state in these pages, or raise a StateError and change nothing.

        Pages may come from anybody: with a state key its seals are checked first. Sizes, lanes,
        keys and counters are checked here, the values of each stage by its `invariants`.

        Args:
            pages: the state, by page number; from `pages`, also of an older version.
            adopt: whether it may have been made with other settings, see `adopt`.

        Returns:
            What leaves because of changed settings; empty if nothing was changed.
        """
        opened = open_pages(self.state_key, self.scope, pages)
        tags: list[str] = []
        expected = self._expected()
        found = [snapshot.identities(opened[page]) for page in sorted(pages)]
        if found and any(each != found[0] for each in found) and None not in found:
            raise StateError("state is corrupt: its pages were made by different stages")
        made_by = found[0] if found else None
        differs = bool(made_by) and made_by != [identity for identity, _ in expected]
        if made_by and differs and (adopt or self._reads_older(made_by)):
            return self._adopt_pages(pages, opened)
        parts: list[dict[int, State]] = [{} for _ in expected]
        kept = _Kept(dict(self.counters), self.chain.open_counts(), (), {})
        for place, page in enumerate(sorted(pages)):
            if page != place:
                raise StateError(f"state page {place} is missing; there are {sorted(pages)}")
            what = f"state page {page}"
            states, extra = snapshot.decode(opened[page], expected, what)
            if extra.get("page") != page:
                raise StateError(f"{what} calls itself page {extra.get('page')}")
            for state in states:
                # A page may be shorter than others behind it: it was written when it was the last.
                if state.lanes > PAGE_LANES or state.lanes != states[0].lanes:
                    raise StateError(f"{what} is corrupt: it has {state.lanes} lanes")
            if page == 0:
                if self.state_key is not None:
                    tags = check_tags(extra.get("tags"), pages)
                kept = self._read_extra(extra)
            for number, state in enumerate(states):
                parts[number][page * PAGE_LANES] = state
        lanes, *states = [
            State.of_pages(layout, part) for (_, layout), part in zip(expected, parts, strict=True)
        ]
        lane_of = self._read_keys(lanes)
        for stage, state in zip(self.chain.stages, states, strict=True):
            check_state(stage, state)
        self.chain.check_held(states)
        self._take_up(lanes, states, lane_of, kept)
        self._tags = tags
        return []

    def _take_up(
        self, lanes: State, states: list[State], lane_of: dict[Any, int], kept: _Kept
    ) -> None:
        """Replace everything this flow holds by what was read and checked."""
        self.lanes, self.states, self._lane_of = lanes, states, lane_of
        self.counters, self.counts, self._columns, seen = kept
        self._seen = {name: set(seen.get(name, ())) for name in self._expected_names}
        taken = set(lane_of.values())
        self._free = [n for n in range(max(taken, default=-1), -1, -1) if n not in taken]

    def _reads_older(self, found: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a state was made by these very stages, some of them in an older version."""
        own, *stages = found
        return (
            own == self._expected()[0][0]
            and len(stages) == len(self.chain.stages)
            and all(
                each == stage.identity() or stage.reads_older(each)
                for each, stage in zip(stages, self.chain.stages, strict=True)
            )
        )

    def _adopt_pages(
        self, pages: Mapping[int, bytes], opened: Mapping[int, bytes | memoryview]
    ) -> list[Outcome]:
        """Take up pages of other settings, other stages at the end, or older versions.

        Args:
            pages: the pages as they are stored, sealed if there is a state key.
            opened: the same with their seals checked and taken off.
        """
        expected = self._expected()
        found: list[snapshot.FoundStage] = []
        parts: list[dict[int, State]] = []
        kept = _Kept(dict(self.counters), self.chain.open_counts(), (), {})
        for place, page in enumerate(sorted(pages)):
            if page != place:
                raise StateError(f"state page {place} is missing; there are {sorted(pages)}")
            what = f"state page {page}"
            stages, extra = snapshot.read_stages(opened[page], expected, what)
            if extra.get("page") != page:
                raise StateError(f"{what} calls itself page {extra.get('page')}")
            if any(
                each.state.lanes > PAGE_LANES or each.state.lanes != stages[0].state.lanes
                for each in stages
            ):
                raise StateError(f"{what} is corrupt: it has {stages[0].state.lanes} lanes")
            if page == 0:
                if self.state_key is not None:
                    check_tags(extra.get("tags"), pages)
                _check_own(stages, expected[0])
                found, parts = stages, [{} for _ in stages]
                kept = self._read_extra(extra, len(stages) - 1)
            for part, each, first in zip(parts, stages, found, strict=True):
                part[page * PAGE_LANES] = each.state.conformed(first.state.layout, each.name)
        lanes, *states = [
            State.of_pages(each.state.layout, part) for each, part in zip(found, parts, strict=True)
        ]
        lanes = lanes.conformed(_LANES, "the keys")
        lane_of = self._read_keys(lanes)
        old = [each._replace(state=state) for each, state in zip(found[1:], states, strict=True)]
        counts = self.chain.open_counts()
        match = self.chain.check_adoption([each.identity for each in old])
        counts[: match.kept] = kept.counts[: match.kept]
        states, out = self.chain.adopt(old, lanes.lanes, counts)
        self._take_up(lanes, states, lane_of, kept._replace(counts=counts))
        self._tags = []  # all pages are written again
        for state in (self.lanes, *self.states):
            state.touched[:] = True  # every page names the settings it was made with
        return out

    def _extra(self, page: int) -> dict[str, Any]:
        """What a page says beside the states. Counters and names are in page 0."""
        if page > 0:
            return {"page": page}
        extra = {
            "page": 0,
            "counters": self.counters,
            "counts": self.counts,
            "columns": list(self._columns),
            "seen": self.seen_names(),
        }
        return extra if self.state_key is None else {**extra, "tags": self._tags}

    def _read_extra(self, extra: dict[str, Any], stages: int | None = None) -> _Kept:
        """Read what page 0 says beside the states; `stages` is how many stages were counted, None:
        those of this chain."""
        wanted = len(self.counts) if stages is None else stages
        names = dict.fromkeys(STAGE_COUNTERS, 0)
        broken = StateError("state page 0 is corrupt: its counters are not those of this flow")
        counters, counts = extra.get("counters"), extra.get("counts")
        columns, seen = extra.get("columns"), extra.get("seen")
        if not isinstance(counts, list) or len(counts) != wanted:
            raise broken
        known_counters = [self.counters, *([names] * wanted)]
        for known, found in zip(known_counters, [counters, *counts], strict=True):
            if known is names and isinstance(found, dict):
                found.setdefault("discarded_count", 0)  # a state from before it was counted
            if not isinstance(found, dict) or set(found) != set(known):
                raise broken
            if any(type(value) is not int or not 0 <= value < 2**63 for value in found.values()):
                raise broken
        assert isinstance(counters, dict)
        if not isinstance(seen, dict) or not isinstance(columns, list):
            raise broken
        for texts in (columns, *seen.values()):
            if not isinstance(texts, list) or any(not isinstance(text, str) for text in texts):
                raise broken
        return _Kept(counters, counts, tuple(columns), seen)

    def _read_keys(self, lanes: State) -> dict[Any, int]:
        """The lane of each key; every key once, every lane once, and only lanes in use."""
        table = lanes.tables["keys"]
        if table is None:
            numbers: list[int] = []
            columns: list[list[Any]] = [[] for _ in self.keys]
        else:
            if set(table.schema.names) != {*self.keys, LANE}:
                raise StateError(f"state is corrupt: its keys have columns {table.schema.names}")
            if any(pa.types.is_nested(field.type) for field in table.schema):
                raise StateError("state is corrupt: its keys are not plain values")
            numbers = table.column(LANE).to_pylist()
            columns = [_values(table.column(name)) for name in self.keys]
        names: list[Any] = [()] * len(numbers)
        if columns:
            names = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        lane_of = dict(zip(names, numbers, strict=True))
        used = np.flatnonzero(lanes["used"])
        if sorted(numbers) != used.tolist() or len(lane_of) != len(numbers):
            raise StateError("state is corrupt: its keys and its lanes do not agree")
        return lane_of

    def snapshot(self) -> bytes:
        """The whole state as one blob; its pages are sealed if there is a state key."""
        pages = self.pages()
        return snapshot.pack({"pages": sorted(pages)}, [pages[page] for page in sorted(pages)])

    def restore(self, blob: bytes) -> None:
        """Take up a snapshot of a flow with the same stages and keys, or raise a StateError. One of
        an older version is read too."""
        self.load(snapshot_pages(blob))

    def adopt(self, blob: bytes) -> list[Outcome]:
        """Take up a snapshot of a flow with other settings, or raise a StateError.

        Settings that may change (`Operator.adopts`) hold from now on; nothing that was decided is
        decided again, and no watermark moves back. Stages may be appended, which start empty, and
        removed from the end. With equal settings it does what `restore` does.

        Args:
            blob: from `snapshot`, of this version or an older one.

        Returns:
            What leaves because of the change: rows that no longer fit, with their reason, and rows
            that a removed stage held, dropped with the reason `stage_removed`.

        Raises:
            StateError: it is damaged, kept by another key, or made with settings that cannot be
                adopted; those are listed in two columns. This flow is then unchanged.

        Example:
            >>> import pyarrow as pa
            >>> from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
            >>> decoder = Decoder((TimeColumn("t", "unixtimestamp_s"),))
            >>> old = Flow([EventtimeWatermark("10 s")], decoder=decoder)
            >>> _ = old.process(pa.record_batch({"t": [20, 15]}))
            >>> new = Flow([EventtimeWatermark("1 s")], decoder=decoder)
            >>> new.adopt(old.snapshot())
            []
            >>> [o.rows.column("t").to_pylist() for o in new.process(pa.record_batch({"t": [21]}))
            ...  if o.kind == "data"]
            [[15, 20]]
        """
        return self.load(snapshot_pages(blob), adopt=True)

    def take_over(self, flows: Sequence[Flow], lanes: Sequence[NDArray[Any]]) -> None:
        """Take up some keys of other flows with the same stages: how keys move between shards.

        What is counted per key moves with it. Counters of the flows themselves do not: see
        `regroup`.

        Args:
            flows: where the keys are now.
            lanes: per flow, the lanes to take, ascending.

        Raises:
            StateError: two flows have the same key.
        """
        every = [[flow.lanes, *flow.states] for flow in flows]
        joined = []
        for number, (_, layout) in enumerate(self._expected()):
            parts, first = {}, 0
            for states, which in zip(every, lanes, strict=True):
                if len(which):
                    parts[first] = states[number].take(which)
                    first += len(which)
            joined.append(State.of_pages(layout, parts))
        lane_of = self._read_keys(joined[0])
        kept = _Kept(dict(self.counters), self.counts, self._columns, self.seen_names())
        self._take_up(joined[0], joined[1:], lane_of, kept)
        for state in (self.lanes, *self.states):
            state.touched[:] = True

    def _expected(self) -> list[tuple[dict[str, Any], Layout]]:
        """The identity and layout of the lanes and of every stage, as a snapshot must have them."""
        own = {"name": "lanes", "version": 1, "config": {"keys": list(self.keys)}}
        return [(own, _LANES), *((s.identity(), s.layout()) for s in self.chain.stages)]


def regroup(
    flows: Sequence[Flow],
    made: Sequence[Flow],
    place: Callable[[Sequence[pa.Array], int], NDArray[Any]],
) -> None:
    """Move the keys of some flows into others: from one number of shards to another.

    Every key keeps its state, and every total over all flows stays what it was: what was counted
    for keys that are forgotten, and by the flows themselves, goes to the first of `made`.

    Args:
        flows: the flows that hold the keys, all with the same stages and key.
        made: new, empty flows with those stages.
        place: the number of the flow in `made` that a key belongs to, from the key columns and how
            many keys there are.

    Example:
        >>> import pyarrow as pa
        >>> one = Flow([], key="car")
        >>> _ = one.process(pa.record_batch({"car": ["a", "b", "c"]}))
        >>> two = [Flow([], key="car"), Flow([], key="car")]
        >>> regroup([one], two, lambda keys, n: np.arange(n) % 2)
        >>> [flow.metrics()["keys"] for flow in two], two[0].metrics()["rows_in"]
        ([2, 1], 3)
    """
    targets = []
    for flow in flows:
        target = np.full(flow.lanes.lanes, -1, np.int64)
        table = flow.lanes.tables["keys"]
        if table is not None and table.num_rows:
            columns = [table.column(name) for name in flow.keys]
            target[table.column(LANE).to_numpy()] = place(columns, table.num_rows)
        targets.append(target)
    names = {name: dict.fromkeys(n for f in flows for n in f.seen_names()[name])
             for name in made[0].seen_names()}  # fmt: skip
    columns_seen = tuple(dict.fromkeys(name for flow in flows for name in flow._columns))
    for number, into in enumerate(made):
        into._columns = columns_seen
        into._seen = {name: set(found) for name, found in names.items()}
        into.take_over(flows, [np.flatnonzero(target == number) for target in targets])
    first = made[0]
    for flow, target in zip(flows, targets, strict=True):
        for name, value in flow.counters.items():
            first.counters[name] += value
        for mine, theirs in zip(first.counts, flow.counts, strict=True):
            for name, value in theirs.items():
                mine[name] += value
        gone = np.flatnonzero(target < 0)
        for ours, state in zip(first.states, flow.states, strict=True):
            for name, column in state.layout.arrays.items():
                unused = state.arrays[name][gone]
                if column.merge == "sum":
                    ours.arrays[name][0] += unused.sum(axis=0)
                elif column.merge == "max" and len(unused):
                    ours.arrays[name][0] = np.maximum(ours.arrays[name][0], unused.max(axis=0))


def snapshot_pages(blob: bytes) -> dict[int, bytes]:
    """The pages inside a snapshot of a flow.

    Raises:
        StateError: it is damaged, or not the snapshot of a flow.
    """
    header, buffers = snapshot.unpack(blob)
    pages = header.get("pages")
    if not isinstance(pages, list) or pages != list(range(len(buffers))):
        raise StateError("snapshot is not that of a flow")
    return {page: bytes(buffer) for page, buffer in zip(pages, buffers, strict=True)}


def _check_own(
    stages: Sequence[snapshot.FoundStage], expected: tuple[dict[str, Any], Layout]
) -> None:
    """Raise a StateError unless the first stage of a page is the table of keys, of this key."""
    wanted = expected[0]
    if not stages or stages[0].name != wanted["name"]:
        raise StateError("state is corrupt: it has no keys")
    if stages[0].version > wanted["version"]:
        raise StateError("state was written by a newer version; upgrade tidegate")
    was, now = stages[0].settings.get("keys"), wanted["config"]["keys"]
    if was != now:
        changed = [SettingChange("keys", "key", was, now, "the state is kept by key")]
        raise StateError(
            f"the state cannot be adopted with another key:\n{setting_difference(changed)}\n"
            "use the old key, or a new output and checkpoint"
        )


_LANES = Layout(
    {"seen": Column(np.int64, fill=UNSET), "used": Column(np.int8)},
    tables=("keys",),
)


_NAN = float("nan")
"""NaN is not equal to itself; one object for all of them makes it a key like any other."""


def _values(column: pa.Array) -> list[Any]:
    """The values of a key column as Python objects that can be compared and hashed."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [_NAN if value != value else value for value in values]
    return values
