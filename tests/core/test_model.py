from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import (
    Collection,
    ControlSignal,
    Dropped,
    End,
    Late,
    Side,
    StreamError,
    Watermark,
    lanes_like,
    with_columns,
)
from tidegate.errors import ContractError

ROWS = pa.record_batch({"id": ["a", "b", "c"]})
TIMES = np.array([30, 10, 20])


def test_a_collection_takes_rows_in_any_order() -> None:
    taken = Collection(ROWS, TIMES, np.array([0, 1, 2], np.int32), 5).take(np.array([2, 0]))
    assert taken.rows.column("id").to_pylist() == ["c", "a"]
    assert taken.time_ns.tolist() == [20, 30]
    assert taken.lane.tolist() == [2, 0]
    assert taken.wall_ns == 5
    assert len(taken) == 2


def test_lengths_must_agree() -> None:
    with pytest.raises(ContractError, match="Collection: 3 rows, 2 times, 3 lanes"):
        Collection(ROWS, TIMES[:2], lanes_like(ROWS))
    with pytest.raises(ContractError, match="Late: 3 rows, 3 times, 1 lanes"):
        Late(ROWS, TIMES, np.zeros(1, np.int32), TIMES)


def test_outcomes_are_frozen() -> None:
    collection = Collection.of(ROWS, TIMES)
    with pytest.raises(FrozenInstanceError):
        collection.wall_ns = 1  # type: ignore[misc]


def test_tables_have_the_rows_own_columns_then_ours() -> None:
    lane = lanes_like(ROWS)
    texts = pa.array(["x", "y", "z"])
    late = Late(ROWS, TIMES, lane, np.array([1, 2, 3]))
    assert late.table().schema.names == ["id", "time_ns", "lateness_ns", "watermark_ns"]
    assert Dropped(ROWS, TIMES, lane, texts).table().schema.names == ["id", "time_ns", "reason"]
    error = StreamError(ROWS, texts, texts, texts, lane)
    assert error.table().schema.names == ["id", "error_column", "error_value", "error_reason"]
    side = Side("summary", ROWS, lane)
    assert side.kind == "summary"
    assert side.table().equals(ROWS)
    kinds = [o.kind for o in (Collection.of(ROWS, TIMES), late, error, Watermark.at(5))]
    assert kinds == ["data", "late", "error", "watermark"]


def test_with_columns_replaces_in_place_and_appends() -> None:
    wide = with_columns(pa.record_batch({"a": [1], "b": [2]}), {"a": [9], "c": np.array([3])})
    assert wide.to_pydict() == {"a": [9], "b": [2], "c": [3]}


def test_end_signals() -> None:
    assert ControlSignal.end().value is End.GRACEFUL
    assert ControlSignal.end(End.QUICK).name == "end"
    assert ControlSignal("x").lane is None
