from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.arrow import as_text, concat
from tidegate.core.columns import LANE
from tidegate.core.state import Column, Layout, State

LAYOUT = Layout(
    {"count": Column(np.int64), "newest": Column(np.int64, (2,), -1)}, tables=("held", "more")
)


def held(lanes: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"v": [f"v{n}" for n in lanes], LANE: pa.array(lanes, pa.int32())})


def filled(lanes: int) -> State:
    state = State(LAYOUT, lanes)
    state["count"][:] = np.arange(lanes)
    state["newest"][:, 1] = np.arange(lanes) * 10
    state.tables["held"] = held([lane for lane in range(lanes) for _ in range(lane % 3)])
    return state


def same(one: State, other: State) -> bool:
    lanes = min(one.lanes, other.lanes)
    arrays = all(np.array_equal(one[n][:lanes], other[n][:lanes]) for n in LAYOUT.arrays)
    tables = all(
        (one.tables[n] is None or one.tables[n].num_rows == 0)
        if other.tables[n] is None
        else one.tables[n].equals(other.tables[n])
        for n in LAYOUT.tables
    )
    return arrays and tables


def test_a_new_state_is_filled_as_its_layout_says() -> None:
    state = State(LAYOUT, 3)
    assert state["count"].tolist() == [0, 0, 0]
    assert state["newest"].shape == (3, 2)
    assert (state["newest"] == -1).all()
    assert state.tables == {"held": None, "more": None}
    assert not state.touched.any()
    assert state.rows("held") == 0


def test_growing_keeps_what_was_and_fills_what_is_new() -> None:
    state = filled(3)
    state.touch(np.array([1]))
    state.grow(2)
    assert state.lanes == 3
    state.grow(4)
    assert state.lanes == 6
    assert state["count"].tolist() == [0, 1, 2, 0, 0, 0]
    assert state["newest"][5].tolist() == [-1, -1]
    assert state.touched.tolist() == [False, True, False, False, False, False]


def test_freed_lanes_are_as_new_and_touched() -> None:
    state = filled(4)
    state.free(np.array([2]))
    assert state["count"].tolist() == [0, 1, 0, 3]
    assert state["newest"][2].tolist() == [-1, -1]
    assert state.tables["held"].column(LANE).to_pylist() == [1]
    assert state.touched.tolist() == [False, False, True, False]


@given(lanes=st.integers(1, 9), size=st.integers(1, 5))
def test_pages_put_together_are_the_state(lanes: int, size: int) -> None:
    state = filled(lanes)
    firsts = range(0, lanes, size)
    pages = dict(zip(firsts, state.pages([*firsts, lanes]), strict=True))
    assert same(State.of_pages(LAYOUT, pages), state)


def test_rows_of_a_page_keep_their_order_where_lanes_are_mixed() -> None:
    state = filled(5)
    lanes = np.array([4, 0, 3, 1, 0, 2, 4, 1], np.int32)
    held = pa.record_batch({LANE: lanes, "n": np.arange(8)})
    state.tables["held"] = held
    found = [page.tables["held"].to_pydict() for page in state.pages([0, 2, 4, 5])]
    assert found == [
        {LANE: [0, 1, 0, 1], "n": [1, 3, 4, 7]},
        {LANE: [1, 0], "n": [2, 5]},
        {LANE: [0, 0], "n": [0, 6]},
    ]


def test_a_page_beyond_the_lanes_is_empty() -> None:
    (page,) = filled(2).pages([1, 4])
    assert page["count"].tolist() == [1, 0, 0]
    assert page.tables["held"].column(LANE).to_pylist() == [0]


def test_a_page_is_a_copy() -> None:
    state = filled(3)
    (page,) = state.pages([0, 3])
    page["count"][0] = 99
    assert state["count"][0] == 0


def test_bytes_are_those_of_arrays_and_tables() -> None:
    state = filled(3)
    assert state.nbytes() == 3 * 8 * 3 + state.tables["held"].nbytes


def test_concat_of_nothing_one_and_many() -> None:
    one = pa.record_batch({"a": [1]})
    assert concat([]) is None
    assert concat([None, None]) is None
    assert concat([None, one]) is one
    assert concat([one.slice(0, 0), one]).num_rows == 1
    assert concat([one, one]).to_pydict() == {"a": [1, 1]}


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ([1], [2.5], [1.0, 2.5]),
        ([1], [None], [1, None]),
        ([1], ["x"], ["1", "x"]),
        ([True], [2], ["true", "2"]),
        ([[1]], ["x"], ["[1]", "x"]),
        ([b"\xff"], [1], ["b'\\xff'", "1"]),
    ],
)
def test_concat_of_types_that_changed(first: list, second: list, joined: list) -> None:
    made = concat([pa.record_batch({"a": pa.array(first)}), pa.record_batch({"a": second})])
    assert made.column("a").to_pylist() == joined


def test_concat_of_columns_that_come_and_go() -> None:
    made = concat([pa.record_batch({"a": [1]}), pa.record_batch({"b": ["x"]})])
    assert made.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_as_text_keeps_null() -> None:
    assert as_text(pa.array([1, None])).to_pylist() == ["1", None]
    assert as_text(pa.array([{"a": 1}, None])).to_pylist() == ["{'a': 1}", None]
