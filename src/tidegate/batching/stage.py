"""Batching as a stage of a pipeline: many keys, one kernel call per collection.

Clock policy: event time decides; the wall time of a collection (`wall_ns`) and of `wake` serve the
stall check alone.

Rows leave with their batch, in order of time, then arrival; each batch leaves one summary in the
side table `batch`. Watermarks wait: one is handed on only as far as no row before it is still here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batching.held import (
    SLACK_ROWS,
    LiveTables,
    held_table,
    kernel_call,
    live_tables,
)
from tidegate.batching.kernel import STALL_LENGTHS
from tidegate.batching.layout import KernelCall, lane_records, state_columns, stream_records
from tidegate.batching.report import (
    DATA_FIELDS,
    SUMMARY_FIELDS,
    Decision,
    data_columns,
    summaries,
)
from tidegate.batching.settings import (
    MAX_ROWS,
    MAX_STREAMS,
    checked_length,
    checked_timeout,
    digest,
)
from tidegate.core import checks
from tidegate.core.arrow import concat
from tidegate.core.columns import LANE
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
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET, Duration
from tidegate.errors import ConfigError

__all__ = ["Batch"]

_digest = lru_cache(maxsize=65536)(digest)


@dataclass(frozen=True)
class Batch(Operator):
    """Group rows into batches that close when every gated stream has reached its last slot.

    `topic` names the column that says which stream a row belongs to; `gated` the streams a batch
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
    topic: str = "topic"
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
        checks.int_in("max_streams", self.max_streams, 1, MAX_STREAMS)
        checks.int_in("max_rows", self.max_rows, 1, MAX_ROWS)
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError("topic", self.topic, "must be the name of a column")
        if not isinstance(self.gated, bool):
            object.__setattr__(self, "gated", checks.names("gated", self.gated))
        object.__setattr__(self, "keys", checks.names("keys", self.keys))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "timeout": repr(self.timeout)}  # JSON has no infinity

    @property
    def needs_time(self) -> bool:
        return True

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {self.topic: self.gated} if isinstance(self.gated, tuple) else {}

    def layout(self) -> Layout:
        arrays = state_columns(self.max_streams)
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
        self._schemas(live_tables(state), collection.rows.schema)
        out: list[Outcome] = []
        column = collection.rows.column(self.topic)
        if column.null_count:
            out.append(_unnamed(collection, self.topic, column))
            collection = collection.take(np.flatnonzero(column.is_valid().to_numpy(False)))
            column = column.drop_null()
            if not len(collection):
                return out
        state.grow(int(collection.lane.max()) + 1)
        codes, labels = _encoded(column)
        digests = np.array([_digest(label) for label in labels], np.int64)
        held = held_table(state)
        held.append(collection.rows)
        call = self._call(
            collection.wall_ns,
            lane=collection.lane,
            time_ns=collection.time_ns,
            code=codes,
            digests=digests,
            gated=np.array([self._gates(label) for label in labels], np.bool_),
        )
        decision = held.add_and_run(state, call)
        if len(decision.named):
            named = codes[decision.named]
            texts = pa.array([labels[code] for code in named.tolist()], pa.string())
            self._write_names(state, collection.lane[decision.named], digests[named], texts)
        return out + self._let_out(state, decision, collection.wall_ns)

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        state.grow(int(watermark.lane.max()) + 1)
        np.maximum.at(state["watermark"], watermark.lane, watermark.time_ns)
        return self._hand_on(state)

    def wake_at(self, state: State) -> int | None:
        lanes = lane_records(state)
        waiting = _waiting(state)
        if not waiting.any():
            return None
        due = lanes["closed_at"][waiting] + STALL_LENGTHS * lanes["length"][waiting]
        return int(due.min())

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        lanes = lane_records(state)
        due = lanes["closed_at"] + STALL_LENGTHS * lanes["length"] <= wall_ns
        return self._settle(state, np.flatnonzero(due & _waiting(state)), wall_ns)

    def resume(self, state: State, wall_ns: int) -> None:
        waiting = np.flatnonzero(_waiting(state))
        lane_records(state)["closed_at"][waiting] = wall_ns
        state.touch(waiting)

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        chosen = np.arange(state.lanes, dtype=np.int64)
        if lanes is not None:
            chosen = chosen[np.isin(chosen, lanes)]
        out = self._settle(state, chosen, 0, everything=True)
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
            chosen = np.arange(state.lanes) if signal.lane is None else np.asarray(signal.lane)
            state.grow(int(chosen.max(initial=0)) + 1)
            lanes = lane_records(state)
            is_open = lanes["open"][chosen] != 0
            lanes["pending"][chosen[is_open]] = length
            lanes["length"][chosen[~is_open]] = length
            state.touch(chosen)
        return []

    def metrics(self, state: State) -> dict[str, int | float]:
        lanes = lane_records(state)
        return {
            "batches": int(lanes["batches"].sum()),
            "rows_held": int(lanes["rows"].sum()),
            "streams": int(lanes["streams"].sum()),
            "streams_gating": int(lanes["gating"].sum()),
        }

    # -- inside ---------------------------------------------------------------------------------

    def _check(self, schema: pa.Schema) -> None:
        for field, column in (("topic", self.topic), *(("keys", key) for key in self.keys)):
            if column not in schema.names:
                raise ConfigError(field, column, f"must be one of the columns {schema.names}")
        for field in DATA_FIELDS:
            if field.name in schema.names:
                raise ConfigError("columns", field.name, "is a name that batching itself adds")

    def _call(self, wall_ns: int, **rows: Any) -> KernelCall:
        length: Any = self.length
        return kernel_call(
            length_ns=length, timeout=self.timeout, max_rows=self.max_rows, wall_ns=wall_ns, **rows
        )

    def _gates(self, stream: str) -> bool:
        return self.gated if isinstance(self.gated, bool) else stream in self.gated

    def _settle(
        self, state: State, lanes: Int64s, wall_ns: int, *, everything: bool = False
    ) -> list[Outcome]:
        """Let out what is due in these lanes, or everything they hold."""
        if not len(lanes):
            return []
        state.touch(lanes)
        call = self._call(wall_ns)
        decision = held_table(state).settle(state, call, lanes, everything=everything)
        return self._let_out(state, decision, wall_ns)

    def _let_out(self, state: State, decision: Decision, wall_ns: int) -> list[Outcome]:
        """Rows and summaries of the batches that were decided."""
        out: list[Outcome] = []
        batches, held, tables = decision.batches, held_table(state), live_tables(state)
        if len(batches):
            lanes = batches["lane"].astype(np.int32)
            rows = held.take(decision.order)
            data_schema, side_schema = self._schemas(tables, rows.schema)
            if len(decision.order):
                columns = [*rows.columns, *data_columns(decision)]
                data = pa.RecordBatch.from_arrays(columns, schema=data_schema)
                of = np.repeat(lanes, batches["rows"])
                out.append(Collection(data, decision.stamp, of, wall_ns))
            carried = [_carried(rows, key, decision) for key in self.keys]
            columns = [*carried, *summaries(decision, tables.names.of(decision.parts["name"]))]
            side = pa.RecordBatch.from_arrays(columns, schema=side_schema)
            out.append(Side("batch", side, lanes))
        if held.used > SLACK_ROWS and held.is_sparse(int(lane_records(state)["rows"].sum())):
            held.compact()
        return out + self._hand_on(state)

    def _schemas(self, tables: LiveTables, rows: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
        """The schemas of what leaves, made once per schema of what comes."""
        if tables.schemas is None or not tables.schemas[0].equals(rows):
            tables.schemas = (rows, self.schema(rows), self.side_schemas(rows)["batch"])
        return tables.schemas[1:]

    def _write_names(self, state: State, lane: Int32s, digests: Int64s, labels: pa.Array) -> None:
        """Write down the names of streams seen for the first time."""
        live_tables(state).names.add(digests, labels)
        new = pa.record_batch({LANE: lane, "digest": digests, "name": labels})
        table = concat([state.tables["names"], new])
        assert table is not None
        if table.num_rows > 4 * state.lanes * self.max_streams:  # names of streams long replaced
            at = table.column(LANE).to_numpy()
            have = stream_records(state)["name"][at] == table.column("digest").to_numpy()[:, None]
            table = table.filter(pa.array(have.any(axis=1)))
        state.tables["names"] = table

    def _hand_on(self, state: State) -> list[Outcome]:
        """Watermarks as far as they may go: not beyond a row that is still here."""
        reach = state["watermark"]
        behind = np.flatnonzero(state["handed"] < reach)
        if not len(behind):
            return []
        reach = reach.copy()
        held_table(state).hold_back(reach)
        lanes = behind[reach[behind] > state["handed"][behind]].astype(np.int32)
        if not len(lanes):
            return []
        state["handed"][lanes] = reach[lanes]
        state.touch(lanes)
        return [Watermark(reach[lanes], lanes)]

    def _forget(self, state: State, lanes: Int64s) -> None:
        """Everything about these lanes but the number of their next batch and the watermark."""
        kept = {name: state[name][lanes].copy() for name in ("watermark", "handed")}
        ids = lane_records(state)["batches"][lanes]
        state.free(lanes)
        lane_records(state)["batches"][lanes] = ids
        for name, values in kept.items():
            state[name][lanes] = values


def _encoded(column: pa.Array) -> tuple[Int32s, list[str]]:
    """A number per row, and the text of each number."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif len(column.dictionary) > len(column) or column.dictionary.null_count:
        column = column.dictionary_decode().dictionary_encode()
    labels = column.dictionary
    if not pa.types.is_string(labels.type):
        labels = labels.cast(pa.string())
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int32), labels.to_pylist()


def _waiting(state: State) -> NDArray[np.bool_]:
    """The lanes that have a window and rows."""
    lanes = lane_records(state)
    return np.asarray((lanes["open"] != 0) & (lanes["rows"] > 0))


def _carried(rows: pa.RecordBatch, key: str, decision: Decision) -> pa.Array:
    """A key column for the summaries: that of the first row of each batch."""
    batches = decision.batches
    first = np.minimum(batches["first"], max(len(decision.order) - 1, 0))
    return rows.column(key).take(pa.array(first, mask=batches["rows"] == 0))


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
