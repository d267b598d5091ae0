"""Chaining: what goes on, what goes out, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Dropped,
    End,
    Int32s,
    Late,
    Outcome,
    Side,
    StreamError,
    Watermark,
)
from tidegate.core.state import Column, Layout, State
from tidegate.errors import ContractError


def collection(ids: Sequence[str], lane: int = 0) -> Collection:
    rows = pa.record_batch({"id": pa.array(list(ids), pa.string())})
    times = np.arange(len(ids), dtype=np.int64)
    return Collection(rows, times, np.full(len(ids), lane, np.int32))


def texts(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"w{int(o.time_ns[0])}"
        if isinstance(o, Watermark)
        else f"{o.kind}:{''.join(o.rows.column('id').to_pylist())}"
        for o in outcomes
    ]


@dataclass(frozen=True)
class Hold(Operator):
    """Holds one message back, and lets go of it when the next comes, time passes or it ends."""

    mark: str = "h"
    wakes: int = 0

    name: ClassVar[str] = "hold"

    def layout(self) -> Layout:
        return Layout({"calls": Column(np.int64)}, tables=("held",))

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        state["calls"][collection.lane] += 1
        before, state.tables["held"] = state.tables["held"], collection.rows.slice(0, 1)
        return [*self._out(before), Watermark.at(len(collection))]

    def advance(self, state: State, watermark: Watermark) -> list[Outcome]:
        return [*self.flush(state), watermark]

    def flush(self, state: State, lanes: Int32s | None = None) -> list[Outcome]:
        before, state.tables["held"] = state.tables["held"], None
        return self._out(before)

    def wake_at(self, state: State) -> int | None:
        return self.wakes or None

    def wake(self, state: State, wall_ns: int) -> list[Outcome]:
        return self.flush(state)

    def discard(self, state: State) -> dict[str, int]:
        state.tables["held"] = None
        return {"discarded_count": 1}

    def control(self, state: State, signal: ControlSignal) -> list[Outcome]:
        return self.flush(state) if signal.name == "go" else []

    def metrics(self, state: State) -> dict[str, int | float]:
        return {"calls": int(state["calls"].sum())}

    def schema(self, rows: pa.Schema) -> pa.Schema:
        return rows.append(pa.field(self.mark, pa.int64()))

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        return {"notes": rows}

    def _out(self, rows: pa.RecordBatch | None) -> list[Outcome]:
        if rows is None:
            return []
        ids = pa.array([v + self.mark for v in rows.column("id").to_pylist()], pa.string())
        return [Collection.of(pa.record_batch({"id": ids}), np.zeros(len(ids), np.int64))]


@dataclass(frozen=True)
class Emit(Operator):
    """Hands on what it was told to."""

    outcomes: list[Any] = field(default_factory=list)

    name: ClassVar[str] = "emit"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        return list(self.outcomes)


def test_what_a_stage_hands_on_reaches_the_next_in_order() -> None:
    chain = Chain((Hold("1"), Hold("2")))
    states = chain.open()
    assert texts(chain.process(states, collection("a"))) == ["w1"]
    # The second holds a1 until the watermark of the same call comes behind it.
    assert texts(chain.process(states, collection("b"))) == ["w1", "data:a12", "w1"]
    assert texts(chain.flush(states)) == ["w1", "data:b12"]
    assert texts(chain.flush(states)) == []


def test_only_data_late_and_watermarks_go_on() -> None:
    rows = pa.record_batch({"id": ["x"]})
    one, lane = np.zeros(1, np.int64), np.zeros(1, np.int32)
    word = pa.array(["w"])
    sent: list[Outcome] = [
        StreamError(rows, word, word, word, lane),
        Dropped(rows, one, lane, word),
        Side("notes", rows, lane),
        Late(rows, one, lane, one),
    ]
    chain = Chain((Emit(sent), Hold()))
    states = chain.open()
    out = chain.process(states, collection("a"))
    assert texts(out) == ["error:x", "dropped:x", "notes:x", "late:x"]
    assert states[1]["calls"].tolist() == [0]


def test_empty_collections_reach_no_stage() -> None:
    chain = Chain((Emit([collection("")]), Hold()))
    states = chain.open()
    assert chain.process(states, collection("a")) == []
    assert states[1]["calls"].tolist() == [0]


def test_lanes_that_rows_came_for_are_touched() -> None:
    chain = Chain((Emit([collection("x", lane=2)]), Hold()))
    states = chain.open(4)
    chain.process(states, collection("a", lane=1))
    assert [np.flatnonzero(state.touched).tolist() for state in states] == [[1], [2]]


def test_the_next_deadline_is_the_earliest() -> None:
    chain = Chain((Hold(wakes=7), Hold(), Hold(wakes=3)))
    states = chain.open()
    assert chain.wake_at(states) == 3
    assert Chain((Hold(),)).wake_at(states[:1]) is None
    chain.process(states, collection("a"))
    assert texts(chain.wake(states, 9)) == ["w1", "w1", "data:ahhh"]


def test_signals() -> None:
    chain = Chain((Hold(), Hold()))
    states = chain.open()
    chain.process(states, collection("a"))
    assert chain.control(states, ControlSignal("unknown")) == []
    assert texts(chain.control(states, ControlSignal("go"))) == ["w1", "data:ahh"]
    chain.process(states, collection("b"))
    assert chain.control(states, ControlSignal.end(End.QUICK)) == []
    assert texts(chain.control(states, ControlSignal.end())) == []
    chain.process(states, collection("c"))
    assert texts(chain.control(states, ControlSignal.end())) == ["w1", "data:chh"]


def test_metrics_and_schemas_of_a_chain() -> None:
    chain = Chain((Hold("x"), Emit()))
    states = chain.open()
    chain.process(states, collection("ab"))
    assert chain.metrics(states) == {"hold.calls": 1}
    rows = pa.schema({"id": pa.string()})
    assert chain.schema(rows).names == ["id", "x"]
    assert chain.side_schemas(rows) == {"notes": rows}


def test_two_different_tables_of_one_name_are_a_bug() -> None:
    chain = Chain((Hold("x"), Hold("y")))
    with pytest.raises(ContractError, match="different tables called notes"):
        chain.side_schemas(pa.schema({"id": pa.string()}))


def test_defaults_of_the_protocol() -> None:
    stage = Emit()
    state = stage.open(2)
    watermark = Watermark.at(5)
    rows = pa.record_batch({"id": ["x"]})
    late = Late(rows, np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int64))
    assert stage.advance(state, watermark) == [watermark]
    assert stage.process_late(state, late) == [late]
    assert stage.wake_at(state) is None
    assert stage.wake(state, 1) == stage.flush(state) == []
    assert stage.control(state, ControlSignal("x")) == []
    assert stage.metrics(state) == stage.discard(state) == stage.side_schemas(rows.schema) == {}
    assert stage.schema(rows.schema) == rows.schema


def test_identity_is_plain_json() -> None:
    @dataclass(frozen=True)
    class Policy:
        size: int
        name: ClassVar[str] = "policy"

        def settings(self) -> dict[str, Any]:
            return {"size": self.size}

    @dataclass(frozen=True)
    class Odd(Emit):
        policy: Any = None

        name: ClassVar[str] = "odd"

    made = Odd([1, (2.5, None)], Policy(3)).settings()
    assert made == {"outcomes": [1, [2.5, None]], "policy": {"name": "policy", "size": 3}}
    assert Odd(policy=End.QUICK).settings()["policy"] == "quick"
    assert Odd(policy={1: True}).settings()["policy"] == {"1": True}
    assert Odd().identity() == {"name": "odd", "version": 1, "config": Odd().settings()}
