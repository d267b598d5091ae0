"""A restored state of the stage is untrusted until its invariants have passed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.core.columns import LANE, NEXT, TIME
from tidegate.core.outcomes import Collection
from tidegate.core.state import State
from tidegate.deltas import Add, Compact, Offset, VectorDelta, rows_from
from tidegate.errors import ConfigError, StateError


def a_stage() -> tuple[Compact, State]:
    stage = Compact(2, "full_merge", delta_threshold=3, time_threshold=None, keys=("car",))
    deltas = [VectorDelta(f"d{n}", f"v{n % 3}", Add([1.0, 2.0]), n) for n in range(11)]
    deltas.append(VectorDelta("child", "v0", Offset(1.0), 20, parent="nobody"))
    rows = rows_from(deltas)
    rows = rows.append_column("car", pa.array(["a"] * rows.num_rows))
    state = stage.open()
    stage.process(state, Collection.of(rows, rows.column("time_ns").to_numpy()))
    assert all(state.rows(name) for name in ("chains", "pending", "waiting"))
    return stage, state


def replaced(
    table: str, column: str, make: Callable[[pa.Array], pa.Array]
) -> Callable[[State], None]:
    def damage(state: State) -> None:
        rows = state.tables[table]
        assert rows is not None
        at = rows.schema.get_field_index(column)
        state.tables[table] = rows.set_column(at, column, make(rows.column(at)))

    return damage


def without(table: str, column: str) -> Callable[[State], None]:
    def damage(state: State) -> None:
        rows = state.tables[table]
        assert rows is not None
        state.tables[table] = rows.drop_columns([column])

    return damage


def nulls(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), column.type)


DAMAGE = [
    without("chains", "sealed_ns"),
    without("chains", "car"),
    without("chains", NEXT),
    replaced("chains", NEXT, lambda c: c.cast(pa.float64())),
    replaced("chains", "vector_id", nulls),
    replaced("chains", "vector_id", lambda c: pa.array(["v0"] * len(c))),
    replaced("chains", "vector", lambda c: pa.array([[1.0]] * len(c), pa.list_(pa.float64(), 1))),
    replaced("chains", "vector", lambda c: pa.array([[1.0, None]] * len(c), c.type)),
    replaced("chains", "covered_ns", lambda c: pa.array([[]] * len(c), c.type)),
    replaced("chains", "delta_count", nulls),
    without("pending", "values"),
    replaced("pending", "vector_id", lambda c: pc.binary_join_element_wise(c, "x", "")),
    replaced("pending", "values", lambda c: pa.array([[1.0]] * len(c), c.type)),
    replaced("pending", "op", lambda c: pa.array(["nothing"] * len(c))),
    replaced("pending", "time_ns", nulls),
    replaced("pending", "indices", lambda c: pa.array([[99]] * len(c), c.type)),
    without("waiting", TIME),
    replaced("waiting", "values", lambda c: pa.array(["text"] * len(c))),
]


def test_a_state_of_ours_passes() -> None:
    stage, state = a_stage()
    stage.invariants(state)
    stage.invariants(stage.open())
    again = stage.restore(stage.snapshot(state))
    stage.invariants(again)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_a_state_error(damage: Callable[[State], None]) -> None:
    stage, state = a_stage()
    damage(state)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (the caller makes any error one of ours)
        stage.invariants(state)
    assert isinstance(caught.value, (StateError, ConfigError))


def test_a_lane_without_its_vectors_is_a_state_error() -> None:
    stage, state = a_stage()
    rows = state.tables["chains"]
    assert rows is not None
    lane = pa.array(np.ones(rows.num_rows, np.int32))
    state.tables["chains"] = rows.set_column(rows.schema.get_field_index(LANE), LANE, lane)
    with pytest.raises(StateError, match="of no vector"):
        stage.invariants(state)
