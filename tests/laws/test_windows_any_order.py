"""Windows that take rows as they come give what they give on rows that were put in order first."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Late, Outcome, Watermark
from tidegate.eventtime import EventtimeWatermark
from tidegate.windows import Discard, Sliding, Tumbling, Window
from tidegate.windows import stage as windows_stage
from tidegate.windows.triggers import AfterCount

SUMS = {
    "n": "count", "s": ("sum", "v"), "m": ("mean", "v"), "hi": ("max", "v"), "lo": ("min", "v"),
    "a": ("first", "v"), "z": ("last", "v"), "c": ("count", "w"), "x": ("sum", "f"),
}  # fmt: skip
ROW = st.tuples(
    st.integers(0, 3),  # lane
    st.integers(0, 40),  # time
    st.sampled_from(["a", "b", None]),
    st.one_of(st.none(), st.integers(-5, 5)),
)
WINDOWS = st.sampled_from([Tumbling(4), Tumbling(7, 3), Sliding(9, 3), Sliding(8, 6)])


def collection(rows: list[tuple[int, int, str | None, int | None]]) -> Collection:
    lanes, times, groups, values = (list(column) for column in zip(*rows, strict=True))
    batch = pa.record_batch(
        {
            "g": pa.array(groups, pa.string()),
            "v": pa.array(values, pa.int64()),
            "w": pa.array([None if v is None else str(v) for v in values], pa.string()),
            # Halves add up exactly, so the order of adding cannot show.
            "f": pa.array([None if v is None else v / 2 for v in values], pa.float64()),
            "k": pa.array(lanes, pa.int64()),
            "number": pa.array(range(len(rows)), pa.int64()),
        }
    )
    return Collection(batch, np.array(times, np.int64), np.array(lanes, np.int32))


def run(stages: list[Operator], pieces: list[Collection]) -> list[Outcome]:
    """The stages by hand: no `Chain`, so nothing is turned off."""
    states = [stage.open() for stage in stages]

    def push(number: int, items: list[Outcome]) -> list[Outcome]:
        out: list[Outcome] = []
        for item in items:
            if number == len(stages) or not isinstance(item, (Collection, Late, Watermark)):
                out.append(item)
            elif len(item):
                states[number].grow(int(item.lane.max()) + 1)
                stage: Any = stages[number]
                name = {"data": "process", "late": "process_late", "watermark": "advance"}
                made = getattr(stage, name[item.kind])(states[number], item)
                out += push(number + 1, made)
        return out

    out = [outcome for piece in pieces for outcome in push(0, [piece])]
    for number, stage in enumerate(stages):
        out += push(number + 1, stage.flush(states[number]))
    return out


def tables(outcomes: list[Outcome]) -> dict[str, list[Any]]:
    """Rows by kind; those of windows by lane and window, as the order across lanes is free."""
    out: dict[str, list[Any]] = {}
    for outcome in outcomes:
        if not isinstance(outcome, Watermark):
            out.setdefault(outcome.kind, []).extend(outcome.table().to_pylist())
    for rows in out.values():
        rows.sort(key=lambda row: (row["k"], row.get("window_end_ns", 0), str(row.get("g")),
                                   row.get("number", 0)))  # fmt: skip
    return out


@pytest.mark.parametrize("dense", [windows_stage.DENSE, 1], ids=["array", "hash"])
@pytest.mark.parametrize("group_by", [(), ("g",)], ids=["", "by group"])
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    tolerance=st.integers(0, 12),
    window=WINDOWS,
    discard=st.booleans(),
)
def test_the_same_windows_and_late_rows(
    dense: int, group_by: tuple[str, ...], rows: Any, cuts: Any, tolerance: int, window: Any,
    discard: bool,
) -> None:  # fmt: skip
    late = {"late": Discard()} if discard else {}
    stage = Window(window, aggregates=SUMS, group_by=group_by, keys=("k",), **late)
    assert stage.accepts_any_order
    held = EventtimeWatermark(tolerance, watermark_per="tuple")
    chain = Chain((held, stage))
    assert chain.stages[0] == held.without_buffering()
    whole = collection(rows)
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    pieces = [whole.take(np.arange(first, last)) for first, last in pairwise(edges)]
    states = chain.open(4)
    found: list[Outcome] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_stage, "DENSE", dense)
        for piece in pieces:
            found += chain.process(states, piece)
            # And a restart after every piece: all there is to know is in the snapshots.
            states = [
                operator.restore(operator.snapshot(state))
                for operator, state in zip(chain.stages, states, strict=True)
            ]
        found += chain.flush(states)
    assert tables(found) == tables(run([held, stage], [whole]))


def test_rows_are_held_for_stages_that_want_them_in_order() -> None:
    held = EventtimeWatermark("1 s")
    for stage in (
        Window(Tumbling("1 s")),
        Window(Tumbling("1 s"), aggregates={"n": "count"}, trigger=AfterCount(3)),
        Window(Tumbling("1 s"), aggregates={"q": ("stddev", "v")}),
        EventtimeWatermark("1 s"),
    ):
        assert Chain((held, stage)).stages == (held, stage)


def test_more_windows_than_there_is_room_for_in_one_call() -> None:
    """Every row opens a window of its own, more of them than one call has entries for."""
    n = 40_000
    rng = np.random.default_rng(3)
    rows = pa.record_batch({"v": rng.integers(0, 9, n), "g": rng.integers(0, 3, n)})
    times = rng.permutation(n).astype(np.int64) * 10
    stage = Window(Tumbling(10), aggregates={"n": "count", "s": ("sum", "v")}, group_by=("g",))
    state = stage.open()
    assert stage.process(state, Collection(rows, times, np.zeros(n, np.int32))) == []
    made = pa.Table.from_batches([o.table() for o in stage.flush(state)])
    assert made["n"].to_pylist() == [1] * n
    by_start = made["s"].to_numpy()[np.argsort(made["window_start_ns"].to_numpy())]
    assert np.array_equal(by_start, rows.column("v").to_numpy()[np.argsort(times)])
