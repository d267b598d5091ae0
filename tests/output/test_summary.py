"""What a run says adds up: summaries against counted rows, for any rows behind any stages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tidegate.align import Align, latest
from tidegate.batching.stage import Batch
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import End, Outcome, Watermark
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.output.commit import BEHIND, Commit
from tidegate.output.summary import Behind, Summary
from tidegate.sync import Synchronize
from tidegate.windows import Tumbling, Window

STAGES: dict[str, tuple[Operator, ...]] = {
    "order": (),
    "twice": (EventtimeWatermark(7, watermark_per="tuple"),),
    "sets": (Synchronize(("a", "b"), queue_size=3, topic="topic", keys=("key",)),),
    "windows": (Window(Tumbling(10), keys=("key",), in_order=True),),
    "batches": (Batch(20, topic="topic", gated=True, keys=("key",)),),
    "sets, windows": (
        Synchronize(("a", "b"), queue_size=3, topic="topic", keys=("key",)),
        Window(Tumbling(20), keys=("key",), in_order=True),
    ),
    "twice, sets, windows": (
        EventtimeWatermark(7, watermark_per="tuple"),
        Synchronize(("a", "b"), queue_size=2, topic="topic", keys=("key",)),
        Window(Tumbling(10), keys=("key",), aggregates={"n": "count"}, in_order=True),
    ),
    "aligned": (Align({"b": latest(5)}, reference="a", topic="topic", keys=("key",)),),
}

messages = st.lists(
    st.tuples(
        st.sampled_from(["k0", "k1", "k2"]), st.sampled_from("ab"),
        st.none() | st.integers(0, 60),
    ),
    max_size=60,
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    messages,
    st.sampled_from(sorted(STAGES)),
    st.sampled_from(["side_output", "drop"]),
    st.sampled_from([None, End.GRACEFUL, End.QUICK]),
    st.integers(1, 20),
)
def test_every_row_is_in_one_place(
    rows: list[tuple[str, str, int | None]], stages: str, late: Any, end: End | None, size: int
) -> None:
    flow = Flow(
        [EventtimeWatermark(5, late, "tuple"), *STAGES[stages]],
        key="key",
        decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)),
    )
    summary = Summary("out")
    counted: dict[str, int] = {}
    outcomes: list[Outcome] = []

    def commit(made: list[Outcome], number: int) -> None:
        outcomes.extend(made)
        kinds: dict[str, int] = {}
        for outcome in made:
            if not isinstance(outcome, Watermark) and len(outcome):
                kinds[outcome.kind] = kinds.get(outcome.kind, 0) + len(outcome)
        for kind, n in kinds.items():
            counted[kind] = counted.get(kind, 0) + n
        metrics = {name: int(value) for name, value in flow.metrics().items()}
        summary.add(Commit.of(number, "q", kinds, [(0, metrics, None)]))

    schema = pa.schema([("key", pa.string()), ("topic", pa.string()), ("t", pa.int64())])
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        batch = pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in some], schema=schema
        )
        commit(flow.process(batch), at)
    if end is not None:
        commit(flow.end(end), len(rows))
    assert summary.rows_in == len(rows)
    assert summary.rows == counted
    places = (summary.used, summary.late, summary.errors, summary.dropped, summary.discarded,
              summary.held)  # fmt: skip
    assert sum(places) == len(rows)
    assert min(places) >= 0
    if end is not None:
        assert summary.held == 0
    if stages == "order":
        assert summary.used == summary.in_order == counted.get("data", 0)
    if stages == "sets":
        assert summary.used == 2 * counted.get("data", 0)
    shown = summary.to_json()
    assert shown["rows_in"] == sum(
        shown[name] for name in ("used", "late", "errors", "dropped", "discarded", "held")
    )


def test_in_order_does_not_depend_on_later_stages() -> None:
    """A later stage refuses 20 of the 60 rows that came through in order: 60 were in order."""
    metrics = {"rows_in": 65, "parse_error_count": 2, "eventtime_watermark.late_dropped_count": 3,
               "eventtime_watermark.rows_held": 0}  # fmt: skip
    summary = Summary("out", rows={"late": 3, "error": 2, "dropped": 20}, shards={0: metrics})
    assert summary.in_order == 60
    assert summary.used == 40


def test_a_silent_vehicle_is_named() -> None:
    mark = "eventtime_watermark.watermark_"
    shard = {"keys": 2, f"{mark}lowest": 100, f"{mark}median": 100,
             f"{BEHIND}truck-7": 100, f"{BEHIND}a.b/c": 900}  # fmt: skip
    other = {"keys": 3, f"{mark}lowest": 800, f"{mark}median": 850, f"{BEHIND}truck-9": 800}
    commit = Commit.of(0, "q", {}, [(0, shard, 900), (1, other, 950)])
    assert Commit.from_json(commit.to_json(), "here") == commit
    summary = Summary.of("out", [commit])
    assert summary.lowest_watermark_ns == 100
    assert summary.median_watermark_ns == 850
    assert summary.furthest_behind(2) == [
        Behind("truck-7", 100, 850),
        Behind("truck-9", 800, 150),
    ]
    assert summary.shards[0] == {"keys": 2, f"{mark}lowest": 100, f"{mark}median": 100}


def test_what_is_held_is_shown_with_the_way_to_release_it() -> None:
    progress = pytest.importorskip("tidegate.spark.progress")
    shards = {0: {"rows_in": 9, "eventtime_watermark.rows_held": 4, "synchronize.rows_held": 2}}
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    progress.print_summary(Summary("out", shards=shards), console)
    shown = console.export_text()
    for words in ("by eventtime_watermark", "by synchronize", "an idle timeout, or an end",
                  'an end is a control row {"name": "end"'):  # fmt: skip
        assert words in shown
