"""Batching as a stage of a pipeline: many keys, one kernel call per collection.

Clock policy: event time decides; the wall time of a collection (`wall_ns`) and of `wake` serve the
stall check and `idle_close` alone.

Rows leave with their batch, in order of time, then arrival; each batch leaves one summary in the
side table `batch`. Watermarks wait: one is handed on only as far as no row before it is still here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.batching.held import (
    SLACK_ROWS,
    LiveTables,
    change_length,
    check_held_table,
    compile_batching,
    held_records,
    held_table,
    kernel_call,
    live_tables,
)
from tidegate.batching.kernel import STALL_LENGTHS
from tidegate.batching.layout import (
    MAX_CHANGES,
    NEVER,
    CloseReason,
    KernelCall,
    check_state_values,
    lane_records,
    state_columns,
    stream_records,
)
from tidegate.batching.names import encode_names
from tidegate.batching.report import (
    DATA_FIELDS,
    SUMMARY_FIELDS,
    BatchDecision,
    data_columns,
    summaries,
)
from tidegate.batching.settings import (
    MAX_ROWS,
    MAX_STREAMS,
    RATES,
    checked_length,
    checked_timeout,
    digest,
)
from tidegate.core import checks
from tidegate.core.arrow import concat, take
from tidegate.core.columns import LANE
from tidegate.core.operator import Adopted, Operator, check_state
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
from tidegate.core.state import Column, Layout, State, require_int64
from tidegate.core.time import UNSET, Duration
from tidegate.errors import ConfigError, StateError

__all__ = ["Batch"]

_digest = lru_cache(maxsize=65536)(digest)


@dataclass(frozen=True)
class Batch(Operator):
    """Group rows into batches that close when every gated stream has reached its last slot.

    A stream that beats regularly gets a *grid*: the times at which its messages are expected. A
    batch is complete when the last expected message of every gated stream is in, so it closes
    without waiting for a timer. What a grid needs: five messages, a steady rate (missing, split and
    jittered messages are fine) of at least one message per batch, and, unless `rates="any"`, a
    rate that is a whole number of Hz. The summary of every batch (side table `batch`) says for each
    stream what was expected and missing, and why a stream does not gate.

    Every row leaves exactly once, in order of time, then arrival, with the columns `batch_id`,
    `batch_start_ns`, `batch_end_ns`, `batch_reason`, `slot` and `batch_late`. A watermark is handed
    on only as far as no row before it is still here.

    Example:
        >>> rows = pa.record_batch({"topic": ["det"] * 60})
        >>> times = np.arange(60) * 71_428_571
        >>> stage = Batch("1 s")
        >>> data, side = stage.process(stage.open(), Collection.of(rows, times))
        >>> data.rows.column("batch_reason").value_counts().to_pylist()[-1]
        {'values': 'gate', 'counts': 41}
        >>> side.rows.column("rows").to_pylist()
        [1, 14, 13, 14, 14]
        >>> Batch("1 s", timeout=5)
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: timeout: got 5, must be above 0 and at most 3 batch lengths, \
or infinite
    """

    length: Duration = "1 s"
    """Length of a batch in event time: ns, text such as "200 ms", or a timedelta; at most a day.
    A control signal `batch_length` changes it while the stream runs, from the first window that
    starts at or after the signal's time."""
    topic: str = "topic"
    """Column that says which stream a row belongs to. A row without a value is an error row."""
    gated: tuple[str, ...] | bool = True
    """Streams a batch waits for: True for all, False for none, or names (one string is one name).
    All by default, because a stream that cannot gate holds nothing up. From the fifth batch on, a
    name of which no row ever came is told in every summary."""
    timeout: float = 1.2
    """Batch lengths after the start of a window at which it closes without its gate, in event time;
    above 0 and at most 3, or infinite for gates only. 1.2 lets a message be a fifth of a batch
    late; below 1, batches close before their end."""
    keys: tuple[str, ...] = ()
    """Input columns that the summaries carry along, such as the key of the flow: of the first row
    of the batch, for an empty batch of the first row of its lane."""
    max_streams: int = 16
    """Streams measured per key, at most 4096; further ones ride along. Each takes 450 bytes of
    state per key, whether it comes or not."""
    max_rows: int = 100_000
    """Rows that may wait per key. One more closes the window with the reason `limit`, so that a
    stream that never completes cannot fill the memory."""
    rates: str = "whole"
    """`"whole"`: a grid needs a whole number of Hz, and snaps to it (within 10 %), so that slots
    never slide. `"any"`: periods and phases are followed as real numbers (29.97, 2.5, 1.5 Hz,
    drifting clocks); slots per batch then vary by one."""
    correct_skew: bool = False
    """Subtract the measured clock offset of each stream before batching, so that a clock two
    seconds ahead no longer pushes the others out of their batch. A stream that is merely delayed
    looks the same as one whose clock is behind, so this is off by default. `corrected_ns` of the
    summary says how much was subtracted; rows keep the time they came with."""
    idle_close: Duration | None = None
    """Wall time without a row after which everything that waits leaves, window by window, with the
    reason `idle`. None: a quiet tail waits for traffic or the end. Such a batch is final: what
    comes later for its time range is late."""

    name: ClassVar[str] = "batch"
    version: ClassVar[int] = 2
    adopts: ClassVar[Mapping[str, str]] = {
        "length": "holds from the next window of each key on; the open one keeps its length",
        "timeout": "holds from the next window of each key on",
        "max_rows": "holds from the next row on",
        "idle_close": "holds from then on",
    }
    refuses: ClassVar[Mapping[str, str]] = {
        "topic": "streams were measured by the old column",
        "gated": "open windows wait for the streams that were gated",
        "keys": "the state is kept by key",
        "max_streams": "the records of streams are reserved in the state",
        "rates": "grids of whole and of any rates are kept differently",
        "correct_skew": "waiting rows were placed with the old rule",
    }

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("length", checked_length(self.length, "length"))
        set_field("timeout", checked_timeout(self.timeout))
        checks.int_in("max_streams", self.max_streams, 1, MAX_STREAMS)
        checks.int_in("max_rows", self.max_rows, 1, MAX_ROWS)
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigError("topic", self.topic, "must be the name of a column")
        if not isinstance(self.gated, bool):
            set_field("gated", checks.names("gated", self.gated))
        set_field("keys", checks.names("keys", self.keys))
        checks.one_of("rates", self.rates, RATES)
        checks.boolean("correct_skew", self.correct_skew)
        if self.idle_close is not None:
            set_field("idle_close", checks.duration("idle_close", self.idle_close, 1))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "timeout": repr(self.timeout)}  # JSON has no infinity

    @property
    def needs_time(self) -> bool:
        return True

    def input_columns(self) -> frozenset[str] | None:
        return frozenset({self.topic, *self.keys})

    def expected_names(self) -> dict[str, tuple[str, ...]]:
        return {self.topic: self.gated} if isinstance(self.gated, tuple) else {}

    def layout(self) -> Layout:
        arrays = state_columns(self.max_streams)
        arrays["watermark"] = Column(np.int64, (), UNSET)
        arrays["handed"] = Column(np.int64, (), UNSET)
        return Layout(arrays, ("held", "names", "keys"))

    def invariants(self, state: State) -> None:
        check_held_table(state.tables["held"])
        require_int64(state, "names", "digest")
        names = state.tables["names"]
        held = held_records(state.tables["held"])
        check_state_values(state, held)
        lanes, streams = lane_records(state), stream_records(state)
        used = np.arange(streams.shape[1]) < lanes["streams"][:, None]
        known = np.empty(0, np.int64) if names is None else names.column("digest").to_numpy()
        if not np.isin(streams["name"][used & (streams["seen"] != 0)], known).all():
            raise StateError("state of batching is corrupt: the name of a stream is missing")
        if names is not None and names.column("name").type != pa.string():
            raise StateError("state of batching is corrupt: names are not text")
        keys = state.tables["keys"]
        if keys is not None and not set(self.keys) <= set(keys.schema.names):
            raise StateError("state of batching is corrupt: a key column is missing")

    def carry_over(self, old: Mapping[str, Any], state: State) -> Adopted:
        """A new length is scheduled for the next window of every key that has one open; it takes
        the place of lengths that wait where there is no room for more."""
        made = state.conformed(self.layout(), self.name)
        if old["length"] != self.length:
            lanes = lane_records(made)
            full = lanes["changes"] >= MAX_CHANGES
            lanes["changes"][full] = 0
            check_state(self, made)  # the schedule is written by a kernel
            length: Any = self.length
            change_length(made, np.flatnonzero(lanes["length"] > 0), length, None)
        return Adopted(made, [])

    def compile(self) -> None:
        compile_batching()

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
        codes, labels = encode_names(column)
        digests = np.array([_digest(label) for label in labels], np.int64)
        held = held_table(state)
        call = self._call(
            collection.wall_ns,
            lane=collection.lane,
            time_ns=collection.time_ns,
            code=codes,
            digests=digests,
            gated=np.array([self._gates(label) for label in labels], np.bool_),
        )
        held.append(collection.rows, call.order)
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
        due = self._due_at(state)
        earliest = int(due.min(initial=NEVER))
        return None if earliest == NEVER else earliest

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        return self._settle(state, np.flatnonzero(self._due_at(state) <= wall_ns), wall_ns)

    def resume(self, state: State, wall_ns: int) -> None:
        lanes = lane_records(state)
        waiting = np.flatnonzero((lanes["open"] != 0) & (lanes["rows"] > 0))
        lanes["closed_at"][waiting] = wall_ns
        lanes["arrived_at"][waiting] = wall_ns
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
        """`batch_length`: a new length, from the first window that starts at or after the signal's
        time (without one: from the next close on; lanes without a window start with it)."""
        if signal.name != "batch_length":
            return []
        length = checked_length(signal.value, "batch_length")
        chosen = np.arange(state.lanes, dtype=np.int64)
        if signal.lane is not None:
            chosen = signal.lane.astype(np.int64)
        state.grow(int(chosen.max(initial=0)) + 1)
        state.touch(chosen)
        taken = change_length(state, chosen, length, signal.time_ns)
        out: list[Outcome] = []
        if signal.time_ns is not None:
            # A signal brings no wall time: it is as if it came with the last row.
            wall_ns = int(lane_records(state)["arrived_at"][chosen].max(initial=0))
            call = self._call(wall_ns)
            out = self._let_out(
                state, held_table(state).change_windows(state, call, chosen), wall_ns
            )
        if taken == len(chosen):
            return out
        reason = f"more than {MAX_CHANGES} new batch lengths wait for their time"
        return [
            *out,
            StreamError(
                rows=pa.record_batch({"batch_length": [str(signal.value)]}),
                column=pa.array(["batch_length"]),
                value=pa.array([str(signal.value)]),
                reason=pa.array([reason]),
                lane=chosen[taken : taken + 1].astype(np.int32),
            ),
        ]

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
        """Check that the columns we read exist, and that those we add do not.

        Raises:
            ConfigError: with the column.
        """
        for field, column in (("topic", self.topic), *(("keys", key) for key in self.keys)):
            if column not in schema.names:
                raise ConfigError(field, column, f"must be one of the columns {schema.names}")
        for field in DATA_FIELDS:
            if field.name in schema.names:
                raise ConfigError("columns", field.name, "is a name that batching itself adds")

    def _call(self, wall_ns: int, **rows: Any) -> KernelCall:
        """Return a kernel call with the settings of this stage; `rows` are its columns, if it has
        any."""
        length: Any = self.length
        idle: Any = self.idle_close
        return kernel_call(
            length_ns=length,
            timeout=self.timeout,
            max_rows=self.max_rows,
            wall_ns=wall_ns,
            wanted=self._wanted(),
            idle_ns=idle,
            any_rate=self.rates == "any",
            correct_skew=self.correct_skew,
            **rows,
        )

    def _wanted(self) -> Int64s:
        """Return the digests of the gated names where they were listed; none for True or False."""
        names = () if isinstance(self.gated, bool) else self.gated
        return np.array([_digest(name) for name in names], np.int64)

    def _due_at(self, state: State) -> Int64s:
        """Per lane: the wall time of its next deadline (stall, idle), or NEVER."""
        lanes = lane_records(state)
        stalls = held_table(state).lanes_with_rows_in_window(state) & (lanes["open"] != 0)
        due = np.where(stalls, lanes["closed_at"] + STALL_LENGTHS * lanes["length"], NEVER)
        if self.idle_close is not None:
            idle: Any = self.idle_close
            waits = (lanes["open"] != 0) & (lanes["rows"] > 0)
            due = np.where(waits, np.minimum(due, lanes["arrived_at"] + idle), due)
        return np.asarray(due, np.int64)

    def _gates(self, stream: str) -> bool:
        """Return whether batches wait for a stream of this name."""
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

    def _let_out(self, state: State, decision: BatchDecision, wall_ns: int) -> list[Outcome]:
        """Make outcomes of what the kernel decided.

        Returns:
            The rows of all batches as one collection, their summaries as one side table, and the
            watermarks that these rows had held back, in this order.
        """
        out: list[Outcome] = []
        batches, held, tables = decision.batches, held_table(state), live_tables(state)
        if len(batches):
            lanes = batches["lane"].astype(np.int32)
            rows = held.take(decision.order)
            data_schema, side_schema = self._schemas(tables, rows.schema)
            if len(decision.order):
                columns, of = data_columns(decision)
                data = pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=data_schema)
                out.append(Collection(data, decision.stamp, of, wall_ns))
            columns = [
                *self._carried(state, rows, decision),
                *summaries(decision, tables.names.of(decision.parts["name"])),
            ]
            side = pa.RecordBatch.from_arrays(columns, schema=side_schema)
            out.append(Side("batch", side, lanes))
        if held.used > SLACK_ROWS and held.is_sparse(int(lane_records(state)["rows"].sum())):
            held.compact()
        return out + self._hand_on(state)

    def _carried(
        self, state: State, rows: pa.RecordBatch, decision: BatchDecision
    ) -> list[pa.Array]:
        """Return the key columns of the summaries, one value per batch.

        They are those of the first row of the batch. An empty batch has none: it gets those of the
        first row of its lane, which the state table `keys` keeps for this.
        """
        if not self.keys:
            return []
        batches = decision.batches
        keys = rows.select(list(self.keys))
        first = np.flatnonzero(batches["reason"] == CloseReason.FIRST)
        if len(first):
            lanes = pa.array(batches["lane"][first].astype(np.int32))
            new = take(keys, batches["first"][first]).append_column(LANE, lanes)
            state.tables["keys"] = concat([state.tables["keys"], new])
        empty = np.flatnonzero(batches["rows"] == 0)
        at = batches["first"].copy()
        table = state.tables["keys"]
        if len(empty) and table is not None:
            # The newest entry of each lane: a lane begins anew after a flush.
            last = np.zeros(state.lanes, np.int64)
            last[table.column(LANE).to_numpy()] = np.arange(table.num_rows)
            at[empty] = len(keys) + last[batches["lane"][empty]]
            whole = concat([keys, table.select(list(self.keys))]) if len(keys) else table
            assert whole is not None
            keys = whole.select(list(self.keys))
        return list(take(keys, at).columns)

    def _schemas(self, tables: LiveTables, rows: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
        """Return the schemas of rows and summaries that leave, made once per schema of rows that
        come."""
        if tables.schemas is None or not tables.schemas[0].equals(rows):
            tables.schemas = (rows, self.schema(rows), self.side_schemas(rows)["batch"])
            if not isinstance(self.gated, bool):
                tables.names.add(self._wanted(), pa.array(self.gated, pa.string()))
        return tables.schemas[1:]

    def _write_names(self, state: State, lane: Int32s, digests: Int64s, labels: pa.Array) -> None:
        """Write the names of streams seen for the first time to the state table `names`.

        Names of streams whose record was given to another one are dropped when they outnumber the
        records by four to one, so that a key with ever new names does not fill the state.
        """
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
        """Hand watermarks on as far as no row at or before them is still here.

        A lane whose watermark cannot move yet is looked at again after the next batch.
        """
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
        """Reset these lanes, but for the number of their next batch and their watermark.

        Batch numbers must not repeat for a key, and a watermark must not go back.
        """
        kept = {name: state[name][lanes].copy() for name in ("watermark", "handed")}
        ids = lane_records(state)["batches"][lanes]
        state.free(lanes)
        lane_records(state)["batches"][lanes] = ids
        for name, values in kept.items():
            state[name][lanes] = values


def _unnamed(collection: Collection, column: str, values: pa.Array) -> StreamError:
    """Return the rows whose stream is null as error rows: a row of no stream belongs to no grid."""
    bad = np.flatnonzero(values.is_null().to_numpy(False))
    n = len(bad)
    return StreamError(
        rows=collection.rows.take(pa.array(bad)),
        column=pa.array([column] * n),
        value=pa.nulls(n, pa.string()),
        reason=pa.array(["no stream: the column is null"] * n),
        lane=collection.lane[bad],
    )
