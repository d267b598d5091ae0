"""Values between messages: numbers, lists, structs, quaternions; and what comes out around them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import align
from tidegate.align.values import blend
from tidegate.errors import ConfigError


def table(rows: list[tuple[str, int, Any]], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table(
        {
            "topic": [r[0] for r in rows],
            "stamp": pa.array([r[1] for r in rows], pa.int64()),
            "v": pa.array([r[2] for r in rows], kind),
        }
    )


def values(recording: Any, method: Any, **more: Any) -> list[Any]:
    out = align.rows(
        recording, topic="topic", time="stamp", reference="ref", topics={"a": method}, **more
    )
    return [row["v"] for row in out.column("a").to_pylist()]


def test_lists_and_structs_are_interpolated_inside() -> None:
    kind = pa.struct(
        {"p": pa.list_(pa.int32()), "name": pa.string(), "q": pa.struct({"x": pa.float32()})}
    )
    rows = [
        ("a", 0, {"p": [0, 10], "name": "one", "q": {"x": 0.0}}),
        ("ref", 5, None),
        ("a", 10, {"p": [10, 30], "name": "two", "q": {"x": 4.0}}),
    ]
    assert values(table(rows, kind), align.linear("1 s")) == [
        {"p": [5.0, 20.0], "name": "one", "q": {"x": 2.0}}
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0], [1.0, 2.0], [1.0]),  # another length: the earlier one
        (None, [1.0], None),
        ([1.0], None, None),
        ([1.0, None], [3.0, 5.0], [2.0, None]),
        ([], [], []),
    ],
)
def test_lists_that_do_not_fit(before: Any, after: Any, expected: Any) -> None:
    rows = [("a", 0, before), ("ref", 5, None), ("a", 10, after)]
    assert values(table(rows, pa.list_(pa.float64())), align.linear(10)) == [expected]


def test_an_exact_message_is_taken_as_it_is() -> None:
    rows = [("a", 5, math.inf), ("ref", 5, 0.0), ("a", 6, math.nan)]
    assert values(table(rows), align.linear(10)) == [math.inf]


def test_numbers_by_type() -> None:
    for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.float64()):
        rows = [("a", 0, 1), ("ref", 1, 0), ("a", 4, 5)]
        assert values(table(rows, kind), align.linear(10)) == [2.0]
    rows = [("a", 0, True), ("ref", 1, False), ("a", 4, False)]
    assert values(table(rows), align.linear(10)) == [True]


unit = st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: math.hypot(*q) > 0.1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(unit, unit, st.floats(0, 1)), min_size=1, max_size=20))
def test_slerp_equals_scipy(cases: list[tuple[list[float], list[float], float]]) -> None:
    transform = pytest.importorskip("scipy.spatial.transform")
    first = np.array([np.array(a) / math.hypot(*a) for a, _, _ in cases])
    second = np.array([np.array(b) / math.hypot(*b) for _, b, _ in cases])
    share = np.array([s for _, _, s in cases])
    made = blend(
        pa.array(first.tolist()), pa.array(second.tolist()), share, spherical=True
    ).to_pylist()
    for one, two, part, ours in zip(first, second, share, made, strict=True):
        if abs(abs(one @ two)) < 1e-6:
            continue  # half a turn apart: both directions are the shorter one
        wanted = transform.Slerp([0, 1], transform.Rotation.from_quat([one, two]))(part).as_quat()
        assert min(np.abs(wanted - ours).max(), np.abs(wanted + ours).max()) < 1e-7


def test_quaternions_as_structs_and_what_is_none() -> None:
    kind = pa.struct({"x": pa.float64(), "y": pa.float64(), "z": pa.float64(), "w": pa.float64()})
    half = math.sqrt(0.5)
    rows = [
        ("a", 0, {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}),
        ("ref", 5, None),
        ("a", 10, {"x": 0.0, "y": 0.0, "z": 1.0, "w": 0.0}),
    ]
    made = values(table(rows, kind), align.slerp(10))[0]
    assert made == pytest.approx({"x": 0.0, "y": 0.0, "z": half, "w": half})
    short = [("a", 0, [0.0, 1.0]), ("ref", 5, None), ("a", 10, [1.0, 0.0])]
    assert values(table(short, pa.list_(pa.float64())), align.slerp(10)) == [None]


def test_a_list_of_dicts_a_file_and_a_data_frame_give_the_same(tmp_path: Path) -> None:
    rows = [("a", 0, 1.0), ("ref", 5, 0.0), ("a", 9, 4.0)]
    whole = table(rows)
    from pyarrow import csv, parquet

    parquet.write_table(whole, tmp_path / "r.parquet")
    csv.write_csv(whole, tmp_path / "r.csv")
    for recording in (
        whole,
        whole.to_pylist(),
        whole.to_pandas(),
        tmp_path / "r.parquet",
        str(tmp_path / "r.csv"),
    ):
        assert values(recording, align.nearest()) == [4.0]


def test_columns_of_ours_step_aside() -> None:
    rows = pa.table(
        {
            "topic": ["ref", "a"],
            "time_ns": pa.array([5, 4], pa.int64()),
            "offset_ns": ["mine", "yours"],
        }
    )
    out = align.rows(rows, topic="topic", time="time_ns", reference="ref", topics={"a": "latest"})
    assert out.column("a").to_pylist() == [
        {
            "time_ns": 4,
            "offset_ns": "yours",
            "tidegate_time_ns": 4,
            "tidegate_offset_ns": -1,
            "missing": None,
        }
    ]


@pytest.mark.parametrize("method", [align.linear("50 ns"), align.mean("50 ns")])
def test_places_in_a_recording_are_those_of_the_closer_message(method: Any) -> None:
    """A dataset with references had offsets between those of two messages, where nothing is."""
    rows = [
        {"topic": "joint", "stamp": 90, "file": "a", "offset": 10, "position": 5, "x": 2.0},
        {"topic": "camera", "stamp": 100, "file": "a", "offset": 10, "position": 9, "x": None},
        {"topic": "joint", "stamp": 105, "file": "b", "offset": 40, "position": 7, "x": 5.0},
    ]
    settings = {"topic": "topic", "time": "stamp", "reference": "camera"}
    [row] = align.rows(rows, topics={"joint": method}, **settings).to_pylist()
    joint = row["joint"]
    blended = method.name == "linear"
    assert joint["x"] == (4.0 if blended else 2.0)
    closer = ("b", 40, 7) if blended else ("a", 10, 5)
    assert (joint["file"], joint["offset"], joint["position"]) == closer
    assert isinstance(joint["offset"], int)
    # columns of that name that are no place in a recording lie between two messages
    for each in rows:
        del each["file"]
    [row] = align.rows(rows, topics={"joint": method}, **settings).to_pylist()
    assert isinstance(row["joint"]["offset"], float)


def test_unreadable_times_are_told() -> None:
    rows = [{"topic": "ref", "stamp": "soon", "v": 1.0}, {"topic": "a", "stamp": "1", "v": 1.0}]
    with pytest.warns(UserWarning, match="1 of the recording's rows could not be used.*'soon'"):
        align.rows(
            rows, topic="topic", time="stamp", type="unixtimestamp_ns", reference="ref",
            topics={"a": "latest"},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"topics": {}}, "topics"),
        ({"topics": {"a": "lastest"}}, "topics"),
        ({"topics": {"a": {"latest": "50 parsecs"}}}, "tolerance"),
        ({"topics": {"a": {"latest": "1 s", "next": "1 s"}}}, "topics"),
        ({"topics": {"a": {"mean": None}}}, "span"),
        ({"topics": {"a": {"latest": {"tolerence": "1 s"}}}}, "topics"),
        ({"topics": {"a": align.latest(columns=["w"])}}, "topics"),
        ({"topics": {"ref": "latest"}}, "topics"),
        ({"reference": None}, "reference"),
        ({"grid": "30 Hz"}, "reference"),
        ({"reference": None, "grid": "fast"}, "grid"),
        ({"reference": None, "grid": "0 Hz"}, "grid"),
        ({"max_gap": "1 s"}, "max_gap"),
        ({"missing": "skip"}, "missing"),
        ({"time": "when"}, "time"),
        ({"topic": "subject"}, "topic"),
        ({"key": "robot"}, "key"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {
        "topic": "topic", "time": "stamp", "reference": "ref", "topics": {"a": "latest"}
    }  # fmt: skip
    with pytest.raises(ConfigError) as error:
        align.rows(table([("ref", 1, 0.0), ("a", 1, 0.0)]), **{**given, **settings})
    assert error.value.field.startswith(field)


def test_a_grid_never_drifts() -> None:
    rows = [("a", t * 10**9, float(t)) for t in range(0, 3601, 1)]
    out = align.rows(
        table(rows), topic="topic", time="stamp", grid="29.97 Hz", topics={"a": align.latest("2 s")}
    )
    times = out.column("time_ns").to_numpy()
    number = np.arange(len(times))
    exact = [int((2 * 10**11 * int(n) + 2997) // (2 * 2997)) for n in number]
    assert times.tolist() == exact
    assert len(times) == math.floor(3600 * 29.97) + 1


def test_a_clock_that_jumps_ahead_does_not_fill_the_grid() -> None:
    year = 365 * 86400 * 10**9
    rows = [("a", 0, 0.0), ("a", 10**9, 1.0), ("a", year, 2.0)]
    out = align.rows(
        table(rows), topic="topic", time="stamp", grid="30 Hz", topics={"a": align.latest()}
    )
    assert out.num_rows < 60


@pytest.mark.parametrize("wrong", [{"reference": "reff"}, {"topics": {"aa": "latest"}}])
def test_a_misspelt_topic_is_told(wrong: dict[str, Any]) -> None:
    """No rows, or rows without a value, must not come without a word."""
    given: dict[str, Any] = {"reference": "ref", "topics": {"a": "latest"}}
    with pytest.warns(UserWarning, match=r"topic '(reff|aa)' was never seen; seen: a, ref"):
        align.rows(
            table([("ref", 1, 0.0), ("a", 1, 0.0)]),
            topic="topic",
            time="stamp",
            **{**given, **wrong},
        )
