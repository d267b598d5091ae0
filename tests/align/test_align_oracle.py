"""Align against an oracle in plain Python: every method, ties, gaps, many keys, any cut."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.align.methods import METHODS, Method
from tidegate.align.stage import Align, grid_period
from tidegate.core.outcomes import Collection
from tidegate.eventtime import EventtimeWatermark
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut, play

Row = dict[str, Any]
TOPICS = ("a", "b", "c")


def value_at(method: Method, rows: list[Row], t: int) -> tuple[float | None, int | None]:
    """The value and its source time; (None, None) if there is none. Rows by (time, arrival)."""
    limit = method.reach_ns
    before = [r for r in rows if r["t"] <= t]
    strictly_after = [r for r in rows if r["t"] > t]
    if method.aggregates:
        inside = [r for r in before if t - r["t"] < limit]
        if not inside:
            return None, None
        values = [r["v"] for r in inside]
        made = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
        return made[method.name], inside[-1]["t"]
    if method.name == "latest":
        found = before[-1] if before and t - before[-1]["t"] <= limit else None
    elif method.name == "next":
        at_or_after = [r for r in rows if r["t"] >= t]
        found = at_or_after[0] if at_or_after and at_or_after[0]["t"] - t <= limit else None
    elif method.name == "nearest":
        choices = ([before[-1]] if before else []) + strictly_after[:1]
        found = min(choices, key=lambda r: abs(r["t"] - t)) if choices else None
        if found is not None and abs(found["t"] - t) > limit:
            found = None
    else:
        if before and before[-1]["t"] == t:
            return before[-1]["v"], t
        if not before or not strictly_after:
            return None, None
        one, two = before[-1], strictly_after[0]
        if t - one["t"] > limit or two["t"] - t > limit:
            return None, None
        share = (t - one["t"]) / (two["t"] - one["t"])
        closer = one if t - one["t"] <= two["t"] - t else two
        return one["v"] + (two["v"] - one["v"]) * share, closer["t"]
    return (None, None) if found is None else (found["v"], found["t"])


def oracle(stage: Align, rows: list[Row]) -> dict[int, list[Row]]:
    """The aligned rows per lane, from all messages at once."""
    out: dict[int, list[Row]] = {}
    for lane in sorted({r["lane"] for r in rows}):
        mine = sorted((r for r in rows if r["lane"] == lane), key=lambda r: r["t"])
        known = [r for r in mine if r["topic"] in (*stage.topics, stage.reference)]
        if stage.reference is not None:
            points = [(r["t"], r["v"]) for r in known if r["topic"] == stage.reference]
        else:
            points = [(t, None) for t in grid_times(stage, [r["t"] for r in known])]
        made = []
        for t, v in points:
            row: Row = {"t": t, "reference": v}
            for name, method in stage.topics.items():
                row[name] = value_at(method, [r for r in known if r["topic"] == name], t)
            lacking = [row[name][1] is None for name in stage.topics]
            if stage.missing == "drop" and any(lacking):
                continue
            if stage.grid is not None and all(lacking):
                continue
            made.append(row)
        if made:
            out[lane] = made
    return out


def grid_times(stage: Align, times: list[int]) -> list[int]:
    if not times:
        return []
    period = grid_period(stage.grid)
    assert stage._rule is not None
    gap = stage._rule.gap_ns
    origin = stage._rule.origin
    first = math.floor(Fraction(times[0] - origin) / period) - 2
    last = math.ceil(Fraction(times[-1] - origin) / period) + 2
    points = [origin + math.floor(n * period + Fraction(1, 2)) for n in range(first, last + 1)]
    return [
        p
        for p in points
        if times[0] <= p <= times[-1] and p - max(t for t in times if t <= p) <= gap
    ]


def shown(outcomes: list[Any], stage: Align) -> dict[int, list[Row]]:
    out: dict[int, list[Row]] = {}
    for outcome in outcomes:
        if outcome.kind != "data":
            continue
        for lane, t, row in zip(
            outcome.lane.tolist(), outcome.time_ns.tolist(), outcome.rows.to_pylist(), strict=True
        ):
            made: Row = {
                "t": t,
                "reference": row[stage.reference]["v"] if stage.reference else None,
            }
            for name in stage.topics:
                value = row[name]
                there = value["missing"] is None
                assert (value["time_ns"] is not None) == there
                assert not there or value["offset_ns"] == value["time_ns"] - t
                made[name] = (value["v"], value["time_ns"]) if there else (None, None)
            out.setdefault(lane, []).append(made)
    return out


methods = st.builds(
    lambda name, reach: METHODS[name](reach),
    st.sampled_from(sorted(METHODS)),
    st.integers(1, 12),
)
messages = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(("ref", "a", "b", "c", "other")), st.integers(-20, 60)
    ),
    min_size=1,
    max_size=60,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Align, Collection, list[Row]]:
    topics = {name: draw(methods) for name in draw(st.sets(st.sampled_from(TOPICS), min_size=1))}
    where: dict[str, Any] = {"reference": "ref"}
    if draw(st.booleans()):
        where = {"grid": draw(st.sampled_from(["3 ns", "7 ns", "300000000 Hz"])), "origin": 2}
        where["max_gap"] = draw(st.sampled_from([None, 4, 15]))
    stage = Align(topics, missing=draw(st.sampled_from(["null", "drop"])), keys=("key",), **where)
    rows = [
        {"lane": lane, "topic": topic, "t": t, "v": float(n)}
        for n, (lane, topic, t) in enumerate(draw(messages))
    ]
    batch = pa.record_batch(
        {
            "key": [f"k{r['lane']}" for r in rows],
            "topic": [r["topic"] for r in rows],
            "v": [r["v"] for r in rows],
        }
    )
    times = np.array([r["t"] for r in rows], np.int64)
    lanes = np.array([r["lane"] for r in rows], np.int32)
    return stage, Collection(batch, times, lanes), rows


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_method_equals_the_oracle(case: tuple[Align, Collection, list[Row]]) -> None:
    stage, collection, rows = case
    out = play([EventtimeWatermark("1 s", watermark_per="tuple"), stage], [collection], lanes=2)
    assert shown(out, stage) == oracle(stage, rows)


@settings(max_examples=150, deadline=None)
@given(cases(), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 30))
def test_cut_and_restart(
    case: tuple[Align, Collection, list[Row]], at: list[int], tolerance: int
) -> None:
    stage, collection, _ = case
    chain = [EventtimeWatermark(tolerance, watermark_per="tuple"), stage]
    assert_cut_law(chain, collection, at, lanes=2)
    assert_restart_law(chain, cut(collection, at), lanes=2)


@settings(max_examples=150, deadline=None)
@given(cases(), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 30))
def test_conservation(
    case: tuple[Align, Collection, list[Row]], at: list[int], tolerance: int
) -> None:
    """Every message is used, dropped with a reason, or late; none twice as dropped or late."""
    stage, collection, rows = case
    out = play(
        [EventtimeWatermark(tolerance, watermark_per="tuple"), stage], cut(collection, at), lanes=2
    )
    left: list[float] = []
    for outcome in out:
        if outcome.kind in ("late", "dropped"):
            left += outcome.rows.column("v").to_pylist()
    assert len(left) == len(set(left))
    gone = set(left)
    references = {r["v"] for r in rows if r["topic"] == "ref" and stage.reference}
    delivered = {
        row[stage.reference]["v"]
        for outcome in out
        if outcome.kind == "data" and stage.reference
        for row in outcome.rows.to_pylist()
    }
    assert references - gone == delivered


def leavers(outcomes: list[Any], lane: int) -> list[tuple[float, str]]:
    """The dropped messages of a lane, in their order, each with its reason."""
    return [
        (v, why)
        for outcome in outcomes
        if outcome.kind == "dropped"
        for v, of, why in zip(
            outcome.rows.column("v").to_pylist(), outcome.lane.tolist(),
            outcome.reason.to_pylist(), strict=True,
        )
        if of == lane
    ]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_recording_at_once_equals_the_stage(case: tuple[Align, Collection, list[Row]]) -> None:
    """Data, dropped messages with their order and reasons, side tables."""
    stage, collection, rows = case
    lane = collection.lane.astype(np.int64)
    whole = stage.align_all(collection.rows, collection.time_ns, lane)
    assert shown(whole, stage) == oracle(stage, rows)
    out = play([EventtimeWatermark("1 s", watermark_per="tuple"), stage], [collection], lanes=2)
    for number in (0, 1):
        assert leavers(whole, number) == leavers(out, number)
    for name in ("offsets", "dropped_points"):
        mine, theirs = (
            sorted(str(row) for o in some if o.kind == name for row in o.rows.to_pylist())
            for some in (whole, out)
        )
        assert mine == theirs


def test_a_recording_far_out_of_order() -> None:
    """Beyond what is sorted by insertion, and with equal stamps, in one thread and in several."""
    n = 200_000
    rng = np.random.default_rng(3)
    topics = np.array(["ref", "a", "b"])[rng.integers(0, 3, n)]
    times = rng.integers(0, n // 4, n)
    rows = pa.record_batch({"topic": topics, "v": np.arange(n)})
    stage = Align({"a": "latest", "b": {"nearest": 5}}, reference="ref")
    order = np.argsort(times, kind="stable")
    state = stage.open()
    ordered = Collection(rows.take(pa.array(order)), times[order], np.zeros(n, np.int32))
    expected = [*stage.process(state, ordered), *stage.flush(state)]
    whole = stage.align_all(rows, times, np.zeros(n, np.int64))

    def data(some: list[Any]) -> pa.Table:
        return pa.concat_tables(pa.table(o.rows) for o in some if o.kind == "data")

    assert data(whole).equals(data(expected))
    assert leavers(whole, 0) == leavers(expected, 0)
