"""Compaction as a stage of a pipeline: deltas in, vectors out.

A lane holds many vectors (a shard of them, or one, if the key is the vector's id). A vector leaves
whenever its chain is compacted, at the latest `time_threshold` after its first undelivered delta
arrived, and at the end. `delta_count` is its version: it only grows.

Clock policy: chains, thresholds by count, retention and the wait for parents go by event time and
by the order of the deltas. Only "at the latest" is wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.columns import TIME
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    Dropped,
    Int32s,
    Int64s,
    Late,
    Outcome,
    Watermark,
    with_columns,
)
from tidegate.core.parallel import each
from tidegate.core.state import LANE, Column, Layout, State, concat
from tidegate.core.time import MAX_NS, UNSET, Duration, parse_duration
from tidegate.deltas import admission
from tidegate.deltas.compaction import Compactor
from tidegate.deltas.objects import rows_from
from tidegate.deltas.offer import Limits, Offer
from tidegate.deltas.operations import Offset, VectorDelta
from tidegate.deltas.pool import Pool
from tidegate.deltas.residence import Residents
from tidegate.deltas.rows import normalise
from tidegate.deltas.strategies import (
    FullMerge,
    Strategy,
    TimeBoundary,
    read_strategy,
    whole,
)

__all__ = ["Compact"]

_COUNTERS = ("accepted", "duplicates", "late", "refused", "compactions", "merged", "bytes_saved")


@dataclass(frozen=True)
class Arrived:
    """The rows of a collection where they lie, with time and lane beside them: all of them as they
    stand, or those of the numbers `order`. Rows that waited for a parent come first."""

    rows: pa.RecordBatch
    order: Int64s | None
    lane: Int32s
    """Of each row that is meant."""

    @classmethod
    def of(cls, collection: Collection, waited: pa.RecordBatch | None) -> Arrived:
        if waited is not None and waited.num_rows:
            beside = {TIME: collection.time_ns, LANE: collection.lane}
            rows = concat([waited, with_columns(collection.rows, beside)])
            assert rows is not None
            return cls(rows, None, rows.column(LANE).to_numpy())
        rows, order = collection.lies
        time_ns, lane = collection.time_ns, collection.lane
        if order is not None:
            time_ns, lane = np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.int32)
            time_ns[order], lane[order] = collection.time_ns, collection.lane
        return cls(with_columns(rows, {TIME: time_ns, LANE: lane}), order, collection.lane)

    def places(self, which: Int64s) -> Int64s:
        """Where in `rows` these of the rows that are meant lie."""
        return which if self.order is None else self.order[which]


@dataclass(frozen=True)
class Compact(Operator):
    """Keeps the chains of many vectors short, and hands their vectors on.

    Rows are deltas (columns as in `rows.DELTAS`; those missing are null). `time_column` names the
    int64 column with a delta's own time where that is not the row's event time (behind a window
    stage, for instance). `key` columns are carried through to the vectors. Without a
    `time_threshold` nothing leaves by the clock: only compactions and the end deliver.
    """

    dims: int
    strategy: Strategy | str | Mapping[str, Any] = "tiered_merge"
    delta_threshold: int = 100
    time_threshold: Duration | None = "60 s"
    max_chain_length: int = 1000
    retention: Duration | None = None
    remember: Duration | None = "7 d"
    parent_wait: Duration = "10 s"
    max_waiting: int = 1000
    time_column: str | None = None
    key: tuple[str, ...] = ()
    compactor: Compactor = field(init=False, repr=False, compare=False)
    limits: Limits = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "compact"

    def __post_init__(self) -> None:
        whole(self.dims, "dims", 1)
        whole(self.max_waiting, "max_waiting", 0)
        made = Compactor(
            read_strategy(self.strategy),
            self.delta_threshold,
            self.time_threshold,
            self.max_chain_length,
            self.retention,
            self.remember,
        )
        limits = Limits(parse_duration(self.parent_wait, "parent_wait"), self.max_waiting)
        object.__setattr__(self, "strategy", made.strategy)
        object.__setattr__(self, "key", tuple(k for k in self.key if k != "vector_id"))
        object.__setattr__(self, "compactor", made)
        object.__setattr__(self, "limits", limits)

    def layout(self) -> Layout:
        counters = {name: Column(np.int64) for name in _COUNTERS}
        due = {"due_ns": Column(np.int64, fill=MAX_NS)}
        return Layout(counters | due, ("chains", "pending", "waiting"))

    def schema(self, rows: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                *(rows.field(name) for name in self.key),
                pa.field("vector_id", pa.string()),
                pa.field("vector", pa.list_(pa.float64())),
                pa.field("deleted", pa.bool_()),
                pa.field("at_delta", pa.string()),
                pa.field("delta_count", pa.int64()),
            ]
        )

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        return {
            "compactions": pa.schema(
                [
                    *(rows.field(name) for name in self.key),
                    pa.field("vector_id", pa.string()),
                    pa.field("time_ns", pa.int64()),
                    pa.field("strategy", pa.string()),
                    pa.field("deltas_before", pa.int64()),
                    pa.field("deltas_after", pa.int64()),
                    pa.field("bytes_before", pa.int64()),
                    pa.field("bytes_after", pa.int64()),
                ]
            )
        }

    def compile(self) -> None:
        # A child before its parent, a run to merge, a prefix to fold: every kernel gets its turn.
        rows = rows_from(
            [
                VectorDelta("a", "v", Offset(1.0), 1, parent="b"),
                *(VectorDelta(name, "v", Offset(1.0), 2) for name in "bcd"),
                VectorDelta("e", "v", Offset(1.0), 9),
            ]
        )
        for strategy in (FullMerge(), TimeBoundary(4)):
            stage = Compact(1, strategy, delta_threshold=5)
            stage.process(stage.open(), Collection.of(rows, rows.column("time_ns").to_numpy()))

    # -- transitions ------------------------------------------------------------------------------

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        arrived = Arrived.of(collection, state.tables["waiting"])
        pool = Pool(self._deltas(arrived.rows))
        vectors = pool.rows.column("vector_id")

        def words() -> Any:
            return pc.fill_null(vectors, "").dictionary_encode()

        _, found, _ = each(_done, (lambda: pool.sound(self.dims), words, lambda: pool.nbytes))
        residents, vec = Residents.load(self, state, arrived, found)
        offer = Offer(residents.chains, pool, vec, self.limits, arrived.order)
        out = residents.work(offer, collection.wall_ns)
        residents.save(state)
        self._hold(state, arrived, offer)
        return [*out, *self._refused(state, arrived, offer)]

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        waited = state.tables["waiting"]
        out: list[Outcome] = []
        if waited is not None and waited.num_rows:
            now = np.full(state.lanes, UNSET, np.int64)
            now[watermark.lane] = watermark.time_ns
            out = self._orphans(state, waited, now)
        return [*out, watermark]

    def uses_wall_time(self) -> bool:
        return self.time_threshold is not None

    def wake_at(self, state: State) -> int | None:
        due = int(state["due_ns"].min())
        return None if due == MAX_NS else due

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        lanes = np.flatnonzero(state["due_ns"] <= wall_ns)
        if not len(lanes):
            return []
        state.touch(lanes)
        residents = Residents.of_lanes(self, state, lanes)
        threshold = self.compactor.time_threshold_ns or 0
        out = residents.deliver(residents.undelivered <= wall_ns - threshold, wall_ns)
        residents.save(state)
        return out

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        which: Int64s = (
            np.arange(state.lanes) if lanes is None else np.unique(lanes).astype(np.int64)
        )
        out: list[Outcome] = []
        residents = Residents.of_lanes(self, state, which, last=True)
        if len(residents.chains):
            out += residents.deliver(residents.undelivered < MAX_NS, None)
        waited = state.tables["waiting"]
        if waited is not None and waited.num_rows:
            now = np.full(state.lanes, UNSET, np.int64)
            now[which] = MAX_NS
            out += self._orphans(state, waited, now)
        counted = {name: state[name][which].copy() for name in _COUNTERS}
        state.free(which)
        for name, values in counted.items():  # what was counted stays counted
            state[name][which] = values
        return out

    def discard(self, state: State) -> dict[str, int]:
        gone = {name: state.rows(name) for name in ("pending", "waiting")}
        state.free(np.arange(state.lanes))
        return gone

    def metrics(self, state: State) -> dict[str, int | float]:
        out: dict[str, int | float] = {name: int(state[name].sum()) for name in _COUNTERS}
        levels = {name: state.rows(name) for name in ("chains", "pending", "waiting")}
        return out | {f"{name}_held": count for name, count in levels.items()}

    # -- rows that do not get into a chain --------------------------------------------------------

    def _deltas(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        time_ns = rows.column(TIME)
        if self.time_column is not None:
            return normalise(
                with_columns(rows, {"time_ns": rows.column(self.time_column).cast(pa.int64())})
            )
        return normalise(rows, time_ns.to_numpy())

    def _hold(self, state: State, arrived: Arrived, offer: Offer) -> None:
        waits = np.flatnonzero(offer.status == admission.WAITING)
        if len(waits) or state.rows("waiting"):
            lies = arrived.places(waits)
            state.tables["waiting"] = arrived.rows.take(pa.array(lies)) if len(waits) else None

    def _refused(self, state: State, arrived: Arrived, offer: Offer) -> list[Outcome]:
        status, lane = offer.status, arrived.lane
        for name, code in (
            ("accepted", admission.ACCEPTED),
            ("duplicates", admission.DUPLICATE),
            ("late", admission.LATE),
        ):
            state[name][:] += np.bincount(lane[status == code], minlength=state.lanes)
        gone = (status != admission.ACCEPTED) & (status != admission.WAITING)
        dropped = np.flatnonzero(gone & (status != admission.LATE))
        dropped = dropped[np.argsort(offer.decided[dropped], kind="stable")]
        np.add.at(state["refused"], lane[dropped][status[dropped] != admission.DUPLICATE], 1)
        late = np.flatnonzero(status == admission.LATE)
        late = late[np.argsort(offer.decided[late], kind="stable")]
        out: list[Outcome] = []
        if len(late):
            lies = arrived.places(late)
            time_ns = arrived.rows.column(TIME).to_numpy()[lies]
            out.append(Late(_own(arrived.rows, lies), time_ns, lane[late], offer.behind_ns[late]))
        if len(dropped):
            out.append(_dropped(arrived.rows, arrived.places(dropped), offer.reasons(dropped)))
        return out

    def _orphans(self, state: State, waited: pa.RecordBatch, now_ns: Int64s) -> list[Outcome]:
        lane = waited.column(LANE).to_numpy()
        limit = now_ns[lane]
        wait = self.limits.wait_ns
        time_ns = self._deltas(waited).column("time_ns").to_numpy()
        low = UNSET + 1 + wait
        over = (limit >= low) & (time_ns <= np.maximum(limit, low) - wait)
        over |= limit == MAX_NS
        if not over.any():
            return []
        state.tables["waiting"] = waited.filter(pa.array(~over))
        state.touch(np.unique(lane[over]))
        rows = np.flatnonzero(over)
        np.add.at(state["refused"], lane[rows], 1)
        parents = waited.column("parent").take(pa.array(rows)).to_pylist()
        return [
            _dropped(
                waited, rows, [f"unknown parent {p}, waited beyond the limit" for p in parents]
            )
        ]


def _done(work: Callable[[], Any]) -> Any:
    return work()


def _own(rows: pa.RecordBatch, which: Int64s) -> pa.RecordBatch:
    """The rows as they came, without the columns the stage put beside them."""
    names = [name for name in rows.schema.names if name not in (TIME, LANE)]
    return rows.select(names).take(pa.array(which))


def _dropped(rows: pa.RecordBatch, which: Int64s, reasons: list[str]) -> Dropped:
    time_ns = rows.column(TIME).to_numpy()[which]
    lane = rows.column(LANE).to_numpy()[which]
    return Dropped(_own(rows, which), time_ns, lane, pa.array(reasons, pa.string()))
