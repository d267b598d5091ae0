"""Episodes against an oracle in plain Python, under the laws, and as a function on tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import align
from tidegate.align import Align, Episodes, cut_episodes
from tidegate.align.episodes import LAST_REASON
from tidegate.core.outcomes import Collection
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play

Row = dict[str, Any]


def oracle(stage: Episodes, rows: list[Row]) -> tuple[list[Row], list[tuple[float, str]]]:
    """The rows of episodes and the dropped ones, of one key, from all rows in order."""
    marker = stage.marker is not None
    runs: list[list[Row]] = []
    before: Row | None = None
    dropped = []
    for row in rows:
        if marker and row["m"] is None:
            dropped.append((row["id"], "no message of m before it"))
            before = None
            continue
        if stage.within is not None and row["s"] not in stage.within:
            dropped.append((row["id"], f"s is {row['s']}"))
            before = None
            continue
        new = (
            before is None
            or (stage.gap is not None and row["t"] - before["t"] > stage.gap)
            or (marker and row["m"] != before["m"])
            or (stage.state is not None and row["s"] != before["s"])
        )
        if new:
            runs.append([])
        runs[-1].append(row)
        before = row
    out = []
    for number, run in enumerate(runs):
        for frame, row in enumerate(run):
            after = run[frame + 1] if frame + 1 < len(run) else None
            if after is None and stage.actions:
                if stage.last == "drop":
                    dropped.append((row["id"], LAST_REASON))
                    continue
                after = row if stage.last == "repeat" else None
            made = {"id": row["id"], "episode": number, "frame": frame}
            made["episode_time_ns"] = row["t"] - run[0]["t"]
            if stage.actions:
                made["next"] = None if after is None else after["x"]
                made["delta"] = None if after is None else after["x"] - row["x"]
            out.append(made)
    return out, dropped


@st.composite
def cases(draw: st.DrawFn) -> tuple[Episodes, Collection, dict[int, list[Row]]]:
    actions = {"next": {"next": "p.x"}, "delta": {"delta": "p.x"}} if draw(st.booleans()) else {}
    state = draw(st.booleans())
    stage = Episodes(
        gap=draw(st.sampled_from([None, 1, 5])),
        marker=draw(st.sampled_from([None, "m"])),
        state="s" if state else None,
        within=draw(st.sampled_from([None, ("a",), ("a", "b")])) if state else None,
        actions=actions,
        last=draw(st.sampled_from(["drop", "repeat", "null"])),
        keys=("key",),
    )
    many = draw(st.integers(1, 40))
    value = st.tuples(
        st.integers(0, 1), st.integers(0, 8), st.sampled_from([None, 1, 2]),
        st.sampled_from(["a", "b", None]), st.integers(-5, 5),
    )  # fmt: skip
    times, rows = {0: 0, 1: -3}, []
    for number in range(many):
        lane, step, marker, mode, x = draw(value)
        times[lane] += step
        rows.append(
            {"id": number, "lane": lane, "t": times[lane], "m": marker, "s": mode, "x": float(x)}
        )
    batch = pa.record_batch(
        {
            "key": [f"k{r['lane']}" for r in rows],
            "id": [r["id"] for r in rows],
            "m": pa.array(
                [None if r["m"] is None else {"time_ns": r["m"]} for r in rows],
                pa.struct({"time_ns": pa.int64()}),
            ),
            "s": pa.array([r["s"] for r in rows], pa.string()),
            "p": [{"x": r["x"]} for r in rows],
        }
    )
    collection = Collection(
        batch, np.array([r["t"] for r in rows], np.int64),
        np.array([r["lane"] for r in rows], np.int32),
    )  # fmt: skip
    return stage, collection, {k: [r for r in rows if r["lane"] == k] for k in (0, 1)}


def shown(out: list[Any], lane: int, stage: Episodes) -> tuple[list[Row], set[tuple[int, str]]]:
    wanted = ["id", "episode", "frame", "episode_time_ns", *stage.actions]
    data = [
        {name: row[name] for name in wanted}
        for o in out
        if o.kind == "data"
        for row, of in zip(o.rows.to_pylist(), o.lane.tolist(), strict=True)
        if of == lane
    ]
    dropped = [
        (row["id"], why)
        for o in out
        if o.kind == "dropped"
        for row, of, why in zip(
            o.rows.to_pylist(), o.lane.tolist(), o.reason.to_pylist(), strict=True
        )
        if of == lane
    ]
    assert len(dropped) == len(set(dropped))
    return data, set(dropped)


@settings(max_examples=300, deadline=None)
@given(cases(), st.lists(st.integers(0, 40), max_size=4))
def test_episodes_equal_the_oracle(
    case: tuple[Episodes, Collection, dict[int, list[Row]]], at: list[int]
) -> None:
    """And nothing is lost: every row is data or dropped, once."""
    stage, collection, rows = case
    out = play([stage], cut(collection, at), lanes=2)
    for lane in (0, 1):
        expected, dropped = oracle(stage, rows[lane])
        data, gone = shown(out, lane, stage)
        assert data == expected
        assert gone == set(dropped)
        assert len(data) + len(gone) == len(rows[lane])
    told = [row for o in out if o.kind == "episodes" for row in o.rows.to_pylist()]
    data = [row for o in out if o.kind == "data" for row in o.rows.to_pylist()]
    counts: dict[tuple[str, int], int] = {}
    for row in data:
        at_key = (row["key"], row["episode"])
        counts[at_key] = counts.get(at_key, 0) + 1
    assert {(t["key"], t["episode"]): t["frames"] for t in told if t["frames"]} == counts


@settings(max_examples=150, deadline=None)
@given(cases(), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 20))
def test_cut_and_restart(
    case: tuple[Episodes, Collection, dict[int, list[Row]]], at: list[int], tolerance: int
) -> None:
    stage, collection, _ = case
    chain = [EventtimeWatermark(tolerance, watermark_per="tuple"), stage]
    assert_cut_law(chain, collection, at, lanes=2)
    assert_restart_law(chain, cut(collection, at), lanes=2)


def test_the_watermark_ends_an_episode() -> None:
    """One nanosecond before it could, it does not."""
    stage = Episodes(gap=10, actions={"action": {"next": "x"}}, last="repeat")
    state = stage.open()
    rows = pa.record_batch({"x": [1.0]})
    from tidegate.core.outcomes import Watermark

    assert stage.process(state, Collection.of(rows, np.array([100]))) == []
    [waits] = stage.advance(state, Watermark.at(109))
    assert waits.time_ns.tolist() == [99]
    data, told, watermark = stage.advance(state, Watermark.at(110))
    assert data.rows.to_pylist() == [
        {"x": 1.0, "episode": 0, "frame": 0, "episode_time_ns": 0, "action": 1.0}
    ]
    assert told.rows.to_pylist()[0]["ended_by"] == "gap"
    assert watermark.time_ns.tolist() == [110]


def test_behind_align_with_a_marker_topic() -> None:
    """A button begins each attempt; joints are the state, their next value the action."""
    table = align.rows(
        [
            {"topic": "button", "t": 5, "q": None},
            *({"topic": "camera", "t": 10 * n, "q": None} for n in range(6)),
            *({"topic": "joint", "t": 10 * n, "q": [float(n), 0.0]} for n in range(6)),
            {"topic": "button", "t": 35, "q": None},
        ],
        topic="topic", time="t", reference="camera",
        topics={"joint": align.nearest(5), "button": align.latest()},
    )  # fmt: skip
    cut_up = cut_episodes(table, marker="button", actions={"action": {"next": "joint.q"}})
    assert cut_up.select(["time_ns", "episode", "frame", "action"]).to_pylist() == [
        {"time_ns": 10, "episode": 0, "frame": 0, "action": [2.0, 0.0]},
        {"time_ns": 20, "episode": 0, "frame": 1, "action": [3.0, 0.0]},
        {"time_ns": 40, "episode": 1, "frame": 0, "action": [5.0, 0.0]},
    ]


def test_a_table_by_key_in_any_order() -> None:
    table = pa.table(
        {"robot": ["b", "a", "b", "a"], "time_ns": [3, 9, 1, 2], "x": [1.0, 2.0, 3.0, 4.0]}
    )
    made = cut_episodes(table, key="robot", gap=5)
    assert sorted(made.select(["robot", "time_ns", "episode", "frame"]).to_pylist(), key=str) == [
        {"robot": "a", "time_ns": 2, "episode": 0, "frame": 0},
        {"robot": "a", "time_ns": 9, "episode": 1, "frame": 0},
        {"robot": "b", "time_ns": 1, "episode": 0, "frame": 0},
        {"robot": "b", "time_ns": 3, "episode": 0, "frame": 1},
    ]
    assert cut_episodes(table.slice(0, 0), gap=5).num_rows == 0


def test_rows_out_of_order_are_late() -> None:
    stage = Episodes(gap=5)
    state = stage.open()
    out = stage.process(state, Collection.of(pa.record_batch({"x": [1, 2]}), np.array([10, 9])))
    assert [(o.kind, o.lateness_ns.tolist()) for o in out] == [("late", [1])]


@pytest.mark.parametrize(
    ("given_settings", "field"),
    [
        ({"gap": 0}, "gap"),
        ({"within": ["a"]}, "within"),
        ({"last": "guess"}, "last"),
        ({"actions": {"action": {"previous": "x"}}}, "actions"),
        ({"actions": {"action": {"next": "y"}}}, "actions"),
        ({"actions": {"x": {"next": "x"}}}, "actions"),
        ({"actions": {"action": {"delta": "name"}}}, "actions"),
        ({"state": "y"}, "state"),
        ({"marker": "x"}, "marker"),
    ],
)
def test_wrong_settings_are_named(given_settings: dict[str, Any], field: str) -> None:
    table = pa.table({"time_ns": [1], "x": [1.0], "name": ["a"]})
    with pytest.raises(ConfigError, match=field):
        cut_episodes(table, **given_settings)


def test_delta_of_structs_and_lists() -> None:
    table = pa.table(
        {
            "time_ns": [1, 2, 3],
            "p": [{"x": 1, "q": [1.0, 2.0]}, {"x": 4, "q": [2.0, 2.0]}, {"x": 4, "q": [1.0]}],
        }
    )
    made = cut_episodes(table, actions={"d": {"delta": "p"}}, last="repeat")
    assert made["d"].to_pylist() == [
        {"x": 3.0, "q": [1.0, 0.0]},
        {"x": 0.0, "q": None},
        {"x": 0.0, "q": [0.0]},
    ]


def test_stage_names_its_columns_before_any_row() -> None:
    rows = pa.schema({"episode": pa.string(), "x": pa.int64()})
    made = Episodes(actions={"a": {"delta": "x"}}).schema(rows)
    assert made.names == ["episode", "x", "tidegate_episode", "frame", "episode_time_ns", "a"]
    assert made.field("a").type == pa.float64()
    assert Align({"a": "latest"}, reference="b").schema(
        pa.schema({"topic": pa.string()})
    ).names == ["b", "a"]
