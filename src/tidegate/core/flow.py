"""A chain of operators with its state and its keys: the thing that runs, in process and in Spark.

A flow gives every key a lane, runs all lanes through the chain at once, forgets keys that have been
silent for long, and hands out its state in pages of lanes, so that only what changed is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core import snapshot
from tidegate.core.arrow import compile_kernels, concat, factorize, first_rows, present
from tidegate.core.chain import Chain
from tidegate.core.checks import names as check_names
from tidegate.core.columns import LANE, check_columns
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    End,
    Int32s,
    Outcome,
    StreamError,
)
from tidegate.core.state import Column, Layout, State
from tidegate.core.time import UNSET, Duration, parse_duration
from tidegate.errors import ConfigError, StateError

__all__ = ["PAGE_LANES", "Flow", "ReadsTime"]

PAGE_LANES = 512
"""Lanes per page of state: large enough that a page costs little beyond its bytes, small enough
that a few busy keys among a million do not rewrite the others."""


class ReadsTime(Protocol):
    """What a flow needs of a decoder: `tidegate.eventtime.Decoder` is the one there is."""

    def decode(
        self, rows: pa.RecordBatch, lane: Int32s | None = None, wall_ns: int = 0
    ) -> tuple[Collection, StreamError | None]:
        """The rows that have a time, and those that have none with the reason."""


class Flow:
    """Operators, their state, and a lane per key.

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
    ) -> None:
        self.chain = Chain(tuple(stages))
        self.keys = check_names("key", key)
        check_columns(self.keys, "key")
        self.decoder = decoder
        self.forget_ns = None if forget is None else parse_duration(forget, "forget", minimum=1)
        self.states = self.chain.open()
        self.lanes = State(_LANES)
        self._lane_of: dict[Any, int] = {}
        self._free: list[int] = []
        self._checked: list[str] = []
        self.counters = {"rows_in": 0, "parse_error_count": 0}

    def compile(self) -> None:
        """Compile what every collection runs through, so that no worker has to."""
        for stage in self.chain.stages:
            stage.compile()
        compile_kernels()
        State(_LANES).touch(np.zeros(2, np.int32))

    # -- running --------------------------------------------------------------------------------

    def process(self, rows: pa.RecordBatch, wall_ns: int = 0) -> list[Outcome]:
        """Rows came, in arrival order: read their times, find their lanes, run the chain."""
        self.counters["rows_in"] += rows.num_rows
        if rows.num_rows == 0:
            return []
        if rows.schema.names != self._checked:
            check_columns(rows.schema.names)
            self._checked = rows.schema.names
        out: list[Outcome] = []
        if self.decoder is None:
            stamps = np.full(rows.num_rows, wall_ns, np.int64)
            return self.accept(Collection.of(rows, stamps, wall_ns))
        collection, errors = self.decoder.decode(rows, wall_ns=wall_ns)
        if errors is not None:
            self.counters["parse_error_count"] += len(errors)
            out.append(errors)
        return out + self.accept(collection)

    def accept(self, collection: Collection) -> list[Outcome]:
        """Rows that have their times already; their lanes are found here."""
        if len(collection) == 0:
            return []
        lane = self._lanes_of(collection.rows)
        here = present(lane, self.lanes.lanes)
        self.lanes["seen"][here] = collection.wall_ns
        self.lanes.touch(here)
        return self.chain.process(
            self.states, Collection(collection.rows, collection.time_ns, lane, collection.wall_ns)
        )

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
        """Deadlines up to `wall_ns` are due; keys unseen for too long are flushed and freed."""
        out = self.chain.wake(self.states, wall_ns)
        if self.forget_ns is not None:
            old = (self.lanes["used"] == 1) & (self.lanes["seen"] < wall_ns - self.forget_ns)
            gone = np.flatnonzero(old).astype(np.int32)
            if len(gone):
                out += self.chain.flush(self.states, gone)
                self._forget(gone)
        return out

    def resume(self, wall_ns: int) -> None:
        """The flow runs again after a break, which no stage takes for silence of its streams."""
        self.chain.resume(self.states, wall_ns)

    def control(self, signal: ControlSignal) -> list[Outcome]:
        """Hand a signal to every stage."""
        return self.chain.control(self.states, signal)

    def end(self, how: End = End.GRACEFUL) -> list[Outcome]:
        """The stream ends: deliver everything held, or discard and count it."""
        return self.control(ControlSignal.end(how))

    def metrics(self) -> dict[str, int | float]:
        """Counters of the flow and of every stage."""
        return {
            **self.counters,
            "keys": len(self._lane_of),
            "state_bytes": sum(state.nbytes() for state in self.states),
            **self.chain.metrics(self.states),
        }

    # -- keys and lanes -------------------------------------------------------------------------

    def find_lane(self, *key: Any) -> int | None:
        """The lane of a key, if it has been seen."""
        return self._lane_of.get(key[0] if len(key) == 1 else key)

    def _lanes_of(self, rows: pa.RecordBatch) -> Int32s:
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
        for page, parts in enumerate(zip(*cut, strict=True)):
            if changed and page > 0 and not touched[edges[page] : edges[page + 1]].any():
                continue
            stages = list(zip(identities, parts, strict=True))
            out[page] = snapshot.encode(stages, {"page": page, "counters": self.counters})
        return out

    def load(self, pages: Mapping[int, bytes]) -> None:
        """Take up the state in these pages, or raise a StateError and change nothing."""
        expected = self._expected()
        parts: list[dict[int, State]] = [{} for _ in expected]
        counters = dict(self.counters)
        for place, page in enumerate(sorted(pages)):
            if page != place:
                raise StateError(f"state page {place} is missing; there are {sorted(pages)}")
            states, extra = snapshot.decode(pages[page], expected, f"state page {page}")
            if extra.get("page") != page:
                raise StateError(f"state page {page} calls itself page {extra.get('page')}")
            if page == 0:
                counters = {**counters, **extra["counters"]}
            for number, state in enumerate(states):
                parts[number][page * PAGE_LANES] = state
        lanes, *states = [
            State.of_pages(layout, part) for (_, layout), part in zip(expected, parts, strict=True)
        ]
        self.lanes, self.states, self.counters = lanes, states, counters
        self._lane_of = {}
        table = lanes.tables["keys"]
        if table is not None:
            numbers = table.column(LANE).to_pylist()
            columns = [_values(table.column(name)) for name in self.keys]
            names: list[Any] = [()] * len(numbers)
            if columns:
                names = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            self._lane_of = dict(zip(names, numbers, strict=True))
        taken = set(self._lane_of.values())
        self._free = [n for n in range(max(taken, default=-1), -1, -1) if n not in taken]

    def snapshot(self) -> bytes:
        """The whole state as one blob."""
        pages = self.pages()
        return snapshot.pack({"pages": sorted(pages)}, [pages[page] for page in sorted(pages)])

    def restore(self, blob: bytes) -> None:
        """Take up a snapshot of a flow with the same stages and keys, or raise a StateError."""
        header, buffers = snapshot.unpack(blob)
        pages = header.get("pages")
        if not isinstance(pages, list) or len(pages) != len(buffers):
            raise StateError("snapshot is not that of a flow")
        self.load({page: bytes(buffer) for page, buffer in zip(pages, buffers, strict=True)})

    def _expected(self) -> list[tuple[dict[str, Any], Layout]]:
        own = {"name": "lanes", "version": 1, "config": {"keys": list(self.keys)}}
        return [(own, _LANES), *((s.identity(), s.layout()) for s in self.chain.stages)]


_LANES = Layout(
    {"seen": Column(np.int64, fill=UNSET), "used": Column(np.int8)},
    tables=("keys",),
)


_NAN = float("nan")
"""NaN is not equal to itself; one object for all of them makes it a key like any other."""


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [_NAN if value != value else value for value in values]
    return values
