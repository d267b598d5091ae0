"""Batching as a stage of a pipeline: many keys, one kernel call per collection.

Clock policy: event time decides; the wall time of a collection (`wall_ns`) and of `wake` serve the
stall check alone.

Rows leave with their batch, in order of time, then arrival; each batch leaves one summary in the
side table `batch`. Watermarks wait: one is handed on only as far as no row before it is still here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.batching import layout as c
from tidegate.batching.call import Deciding, Decision, Waiting, batch_arrays
from tidegate.batching.engine import STALL_LENGTHS
from tidegate.batching.settings import checked_count, checked_length, checked_timeout, digest
from tidegate.batching.summary import (
    DATA_FIELDS,
    SUMMARY_FIELDS,
    data_columns,
    summaries,
    take_rows,
)
from tidegate.core.columns import GATED, SLOT, STREAM, TIME, WHERE
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Int32s,
    Int64s,
    Outcome,
    Side,
    StreamError,
    Watermark,
)
from tidegate.core.state import LANE, Column, Layout, State, concat
from tidegate.core.time import UNSET, Duration
from tidegate.errors import ConfigError

__all__ = ["Batch"]

_HELD = (
    (TIME, pa.int64(), None),
    (STREAM, pa.int32(), c.STREAM),
    (GATED, pa.int8(), c.GATED),
    (SLOT, pa.int32(), c.SLOT),
    (WHERE, pa.int8(), c.WHERE),
)
"""What is kept beside the columns of a row that waits."""
_OURS = {LANE, *(name for name, _, _ in _HELD)}

_digest = lru_cache(maxsize=65536)(digest)


@dataclass(frozen=True)
class Batch(Operator):
    """Group rows into batches that close when every gated stream has reached its last slot.

    `stream` names the column that says which stream a row belongs to; `gated` the streams a batch
    waits for (True: all of them). `keys` are input columns that the summaries carry along, taken
    from the first row of each batch (null for a batch without rows). At most `max_streams` streams
    per key are measured, further ones ride along; at most `max_rows` rows per key wait.

    >>> rows = pa.record_batch({"topic": ["det"] * 60})
    >>> times = np.arange(60) * 71_428_571
    >>> stage = Batch("1 s")
    >>> data, side = stage.process(stage.open(), Collection.of(rows, times))
    >>> data.rows.column("batch_reason").value_counts().to_pylist()[-1]
    {'values': 'gate', 'counts': 41}
    >>> side.rows.column("rows").to_pylist()
    [1, 14, 13, 14, 14]
    """

    length: Duration = "1 s"
    stream: str = "topic"
    gated: tuple[str, ...] | bool = True
    timeout: float = 1.2
    keys: tuple[str, ...] = ()
    max_streams: int = 16
    max_rows: int = 100_000

    name: ClassVar[str] = "batch"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", checked_length(self.length, "length"))
        object.__setattr__(self, "timeout", checked_timeout(self.timeout))
        checked_count(self.max_streams, "max_streams", 4096)
        checked_count(self.max_rows, "max_rows", 2**31)
        if not isinstance(self.stream, str) or not self.stream:
            raise ConfigError("stream", self.stream, "must be the name of a column")
        if not isinstance(self.gated, bool):
            object.__setattr__(self, "gated", _names("gated", self.gated))
        object.__setattr__(self, "keys", _names("keys", self.keys))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "timeout": repr(self.timeout)}  # JSON has no infinity

    def layout(self) -> Layout:
        arrays = batch_arrays(self.max_streams)
        arrays["watermark"] = Column(np.int64, (), UNSET)
        arrays["handed"] = Column(np.int64, (), UNSET)
        return Layout(arrays, ("held", "names"))

    def schema(self, rows: pa.Schema) -> pa.Schema:
        self._check(rows)
        for field in DATA_FIELDS:
            rows = rows.append(field)
        return rows

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        self._check(rows)
        return {"batch": pa.schema([*(rows.field(key) for key in self.keys), *SUMMARY_FIELDS])}

    # -- transitions ----------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        self._check(collection.rows.schema)
        out: list[Outcome] = []
        column = _plain_strings(collection.rows.column(self.stream))
        if column.null_count:
            out.append(_unnamed(collection, self.stream, column))
            collection = collection.take(np.flatnonzero(column.is_valid().to_numpy(False)))
            column = column.drop_null()
            if not len(collection):
                return out
        state.grow(int(collection.lane.max()) + 1)
        encoded = column.dictionary_encode()
        labels: list[str] = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy().astype(np.int64)
        names = np.array([_digest(label) for label in labels], np.int64)
        gates = np.array([self._gates(label) for label in labels], np.bool_)
        waiting = Waiting(state, _held_rows(state))
        n_held = waiting.used
        waiting.add(collection.lane, collection.time_ns, gates[codes])
        decision = self._deciding().one_at_a_time(state, waiting, codes, names, collection.wall_ns)
        self._remember(state, decision, encoded, n_held)
        known = dict(zip(names.tolist(), labels, strict=True))
        return out + self._let_out(state, decision, collection, known)

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        state.grow(int(watermark.lane.max()) + 1)
        np.maximum.at(state["watermark"], watermark.lane, watermark.time_ns)
        return self._hand_on(state)

    def wake_at(self, state: State) -> int | None:
        lane = state["lane"]
        waiting = (lane[:, c.OPEN] != 0) & (lane[:, c.ROWS] > 0)
        if not waiting.any():
            return None
        due = lane[waiting, c.CLOSED_AT] + STALL_LENGTHS * lane[waiting, c.LENGTH]
        return int(due.min())

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        lane = state["lane"]
        due = lane[:, c.CLOSED_AT] + STALL_LENGTHS * lane[:, c.LENGTH] <= wall_ns
        lanes = np.flatnonzero(due & (lane[:, c.OPEN] != 0) & (lane[:, c.ROWS] > 0))
        return self._lanes(state, lanes, wall_ns, everything=False)

    def resume(self, state: State, wall_ns: int) -> None:
        lane = state["lane"]
        waiting = np.flatnonzero((lane[:, c.OPEN] != 0) & (lane[:, c.ROWS] > 0))
        lane[waiting, c.CLOSED_AT] = wall_ns
        state.touch(waiting)

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        chosen = np.arange(state.lanes, dtype=np.int64)
        if lanes is not None:
            chosen = chosen[np.isin(chosen, lanes)]
        out = self._lanes(state, chosen, 0, everything=True)
        self._forget(state, chosen)
        return out

    def discard(self, state: State) -> dict[str, int]:
        waiting = state.rows("held")
        self._forget(state, np.arange(state.lanes))
        state.tables["held"] = None
        return {"rows": waiting}

    def control(self, state: State, signal: ControlSignal) -> list[Outcome]:
        """`batch_length`: a new length, from the next close on. Lanes without a window start
        with it."""
        if signal.name == "batch_length":
            length = checked_length(signal.value, "batch_length")
            lanes = np.arange(state.lanes) if signal.lane is None else np.asarray(signal.lane)
            state.grow(int(lanes.max(initial=0)) + 1)
            lane = state["lane"]
            is_open = lane[lanes, c.OPEN] != 0
            lane[lanes[is_open], c.PENDING] = length
            lane[lanes[~is_open], c.LENGTH] = length
            state.touch(lanes)
        return []

    def metrics(self, state: State) -> dict[str, int | float]:
        lane = state["lane"]
        return {
            "batches": int(lane[:, c.BATCHES].sum()),
            "rows_held": int(lane[:, c.ROWS].sum()),
            "streams": int(lane[:, c.STREAMS].sum()),
            "streams_gating": int(lane[:, c.GATING].sum()),
        }

    # -- inside ---------------------------------------------------------------------------------

    def _check(self, schema: pa.Schema) -> None:
        for field, column in (("stream", self.stream), *(("keys", key) for key in self.keys)):
            if column not in schema.names:
                raise ConfigError(field, column, f"must be one of the columns {schema.names}")
        for field in DATA_FIELDS:
            if field.name in schema.names:
                raise ConfigError("columns", field.name, "is a name that batching itself adds")

    def _deciding(self) -> Deciding:
        return Deciding(int(self.length), self.timeout, self.max_rows)  # type: ignore[arg-type]

    def _gates(self, stream: str) -> bool:
        return self.gated if isinstance(self.gated, bool) else stream in self.gated

    def _lanes(
        self, state: State, lanes: Int64s, wall_ns: int, *, everything: bool
    ) -> list[Outcome]:
        if not len(lanes):
            return []
        state.touch(lanes)
        waiting = Waiting(state, _held_rows(state))
        decision = self._deciding().lanes(state, waiting, lanes, wall_ns, everything=everything)
        return self._let_out(state, decision, None, {}, wall_ns)

    def _let_out(
        self,
        state: State,
        decision: Decision,
        collection: Collection | None,
        names: dict[int, str],
        wall_ns: int = 0,
    ) -> list[Outcome]:
        """Rows and summaries of the batches; what still waits goes back into the state."""
        held = state.tables["held"]
        payload: pa.RecordBatch | None = None
        held_times = np.empty(0, np.int64)
        if held is not None:
            held_times = held.column(TIME).to_numpy()
            payload = held.select([name for name in held.schema.names if name not in _OURS])
        if collection is not None:
            payload = concat([payload, collection.rows])
            held_times = np.concatenate([held_times, collection.time_ns])
            wall_ns = collection.wall_ns
        if payload is None:
            return self._hand_on(state)
        state.tables["held"] = _held_table(payload, decision, held_times)
        out: list[Outcome] = []
        lanes = decision.batches[:, c.B_LANE].astype(np.int32)
        if len(decision.order):
            order = decision.order
            rows, time_ns = take_rows(payload, order), held_times[order]
            columns = [*rows.columns, *data_columns(decision, time_ns)]
            data = pa.RecordBatch.from_arrays(columns, schema=self.schema(rows.schema))
            of = decision.rows[order, c.LANE].astype(np.int32)
            out.append(Collection(data, time_ns, of, wall_ns))
        if len(lanes):
            named = self._all_names(state, decision, names)
            carried = [self._carried(payload, key, decision) for key in self.keys]
            columns = [*carried, *summaries(decision, named)]
            schema = self.side_schemas(payload.schema)["batch"]
            out.append(Side("batch", pa.RecordBatch.from_arrays(columns, schema=schema), lanes))
        return out + self._hand_on(state)

    def _carried(self, payload: pa.RecordBatch, key: str, decision: Decision) -> pa.Array:
        batches = decision.batches
        empty = batches[:, c.B_ROWS] == 0
        at = np.minimum(batches[:, c.B_FIRST], max(len(decision.order) - 1, 0))
        first = decision.order[at] if len(decision.order) else np.zeros(len(batches), np.int64)
        return payload.column(key).take(pa.array(first, mask=empty))

    def _remember(self, state: State, decision: Decision, encoded: pa.Array, n_held: int) -> None:
        """Write down the names of streams seen for the first time."""
        if not len(decision.named):
            return
        lane = decision.rows[decision.named, c.LANE].astype(np.int32)
        label = encoded.take(pa.array(decision.named - n_held)).dictionary_decode()
        name = np.array([_digest(text) for text in label.to_pylist()], np.int64)
        new = pa.record_batch({LANE: lane, "digest": name, "name": label.cast(pa.string())})
        table = concat([state.tables["names"], new])
        assert table is not None
        if table.num_rows > 4 * state.lanes * self.max_streams:  # names of streams long replaced
            at = table.column(LANE).to_numpy()
            have = state["stream"][at, :, c.NAME] == table.column("digest").to_numpy()[:, None]
            table = table.filter(pa.array(have.any(axis=1)))
        state.tables["names"] = table

    def _all_names(self, state: State, decision: Decision, names: dict[int, str]) -> dict[int, str]:
        """`names`, and those of streams that sent nothing in this collection but were expected."""
        unknown = set(np.unique(decision.parts[:, c.P_NAME]).tolist()) - set(names)
        table = state.tables["names"]
        if unknown and table is not None:
            wanted = pa.array(sorted(unknown), pa.int64())
            found = table.filter(pc.is_in(table.column("digest"), wanted))
            labels = found.column("name").to_pylist()
            names = names | dict(zip(found.column("digest").to_pylist(), labels, strict=True))
        return names

    def _hand_on(self, state: State) -> list[Outcome]:
        """Watermarks as far as they may go: not beyond a row that is still here."""
        reach = state["watermark"]
        behind = np.flatnonzero(state["handed"] < reach)
        if not len(behind):
            return []
        reach = reach.copy()
        held = state.tables["held"]
        if held is not None and held.num_rows:
            before = held.column(TIME).to_numpy()
            np.minimum.at(reach, held.column(LANE).to_numpy(), before - (before > UNSET + 1))
        lanes = behind[reach[behind] > state["handed"][behind]].astype(np.int32)
        if not len(lanes):
            return []
        state["handed"][lanes] = reach[lanes]
        state.touch(lanes)
        return [Watermark(reach[lanes], lanes)]

    def _forget(self, state: State, lanes: Int64s) -> None:
        """Everything about these lanes but the number of their next batch and the watermark."""
        kept = {name: state[name][lanes].copy() for name in ("watermark", "handed")}
        ids = state["lane"][lanes, c.BATCHES].copy()
        state.free(lanes)
        state["lane"][lanes, c.BATCHES] = ids
        for name, values in kept.items():
            state[name][lanes] = values


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(field, value, "must be a list of names")
    if not all(isinstance(item, str) for item in value):
        raise ConfigError(field, value, "must be a list of names")
    return tuple(value)


def _plain_strings(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _unnamed(collection: Collection, column: str, values: pa.Array) -> StreamError:
    bad = np.flatnonzero(values.is_null().to_numpy(False))
    n = len(bad)
    return StreamError(
        rows=collection.rows.take(pa.array(bad)),
        column=pa.array([column] * n),
        value=pa.nulls(n, pa.string()),
        reason=pa.array(["no stream: the column is null"] * n),
        lane=collection.lane[bad],
    )


def _held_rows(state: State) -> Int64s:
    """The rows that wait, packed for the kernel."""
    held = state.tables["held"]
    n = 0 if held is None else held.num_rows
    rows = np.empty((n, c.ROW_COLUMNS), np.int64)
    if held is not None:
        rows[:, c.LANE] = held.column(LANE).to_numpy()
        for name, _, column in _HELD:
            rows[:, c.TIME if column is None else column] = held.column(name).to_numpy()
    return rows


def _held_table(payload: pa.RecordBatch, decision: Decision, time_ns: Int64s) -> pa.RecordBatch:
    kept = decision.kept()
    rows = take_rows(payload, kept)
    packed = decision.rows[kept]
    names = [*rows.schema.names, LANE]
    columns = [*rows.columns, pa.array(packed[:, c.LANE].astype(np.int32))]
    for name, kind, column in _HELD:
        values = time_ns[kept] if column is None else packed[:, column]
        names.append(name)
        columns.append(pa.array(values.astype(kind.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(columns, names=names)
