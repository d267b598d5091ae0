"""Every setting of the window stage runs on Spark, in batch, as a stream and from YAML, and gives
what it gives in process."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import assert_same, count, in_process, run_now, say, written
from spark.recordings import Recording, ordered, stream_of, with_control
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.spark.query import run_batch_job
from tidegate.windows import (
    Accumulation,
    AfterCount,
    AfterSize,
    Aggregate,
    AtWatermark,
    Calendar,
    CountWindow,
    Cumulate,
    Memory,
    NextWindow,
    Once,
    Predicate,
    Reemit,
    Session,
    StateWindow,
    Tumbling,
    When,
    Window,
)

CASES: dict[str, dict[str, Any]] = {
    "rows": {
        "window": Tumbling("500 ms"), "deduplicate_by": "topic", "stats": True,
        "affected": "topic", "size_column": "seq",
    },
    "aggregates over text": {
        "window": Session("40 ms"), "group_by": ("topic",),
        "aggregates": {
            "n": "count", "first": ("first", "topic"), "least": ("min", "topic"),
            "kinds": ("count_distinct", "topic"),
            # A function of the user's that takes texts only.
            "longest": Aggregate(
                lambda v: max(len(text) for text in v.to_pylist()), "topic", type=pa.int64()
            ),
        },
    },
    "reemit": {
        "window": Tumbling("500 ms"), "late": Reemit("2 s", retract=True),
        "trigger": AtWatermark(early=Once(AfterCount(10))),
        "aggregates": {"n": "count", "v": ("mean", "value")},
    },
    "next window, accumulating": {
        "window": Tumbling("500 ms"), "late": NextWindow(), "trigger": AfterSize(2000),
        "accumulation": Accumulation.ACCUMULATING, "memory": Memory(), "in_order": True,
        "aggregates": {"n": "count"},
    },
    "conditions": {
        "window": StateWindow(When("topic", "==", "lidar"), When("value", ">", 1.0)),
        "aggregates": {"n": "count", "q": ("quantile", "value", 0.5)},
    },
    "complete": {
        "window": Tumbling("500 ms"), "trigger": AfterCount(5), "late": Reemit("1 s"),
        "aggregates": {"n": "count", "top": ("top", "value", 2)}, "complete": True,
        "timestamp": "earliest", "in_order": True,
    },
    "cumulate": {
        "window": Cumulate("1 s", "250 ms"),
        "aggregates": {"n": "count", "q": ("approx_quantile", "value", 0.9)},
    },
    "calendar": {
        "window": Calendar("day", "Europe/Berlin"), "group_by": ("topic",),
        "aggregates": {"n": "count"}, "timestamp": "latest",
    },
    "predicate": {
        "window": CountWindow(7),
        "trigger": Predicate(When("topic", "==", "gps"), "gps"),
    },
}  # fmt: skip

IN_YAML: dict[str, dict[str, Any]] = {
    "rows": {
        "tumbling": "500 ms", "deduplicateBy": "topic", "stats": True, "affected": "topic",
        "sizeColumn": "seq",
    },
    "reemit": {
        "tumbling": "500 ms", "late": {"reemit": {"maxLateness": "2 s", "retract": True}},
        "trigger": {"watermark": {"early": {"once": {"count": 10}}}},
        "aggregates": {"n": "count", "v": ["mean", "value"]},
    },
    "complete": {
        "tumbling": "500 ms", "trigger": {"count": 5}, "late": {"reemit": "1 s"},
        "aggregates": {"n": "count", "top": ["top", "value", 2]}, "complete": True,
        "timestamp": "earliest", "inOrder": True,
    },
    "cumulate": {
        "cumulate": {"size": "1 s", "step": "250 ms"},
        "aggregates": {"n": "count", "q": ["approx_quantile", "value", 0.9]},
    },
    "calendar": {
        "calendar": {"unit": "day", "zone": "Europe/Berlin"}, "groupBy": "topic",
        "aggregates": {"n": "count"}, "timestamp": "latest",
    },
    "next window, accumulating": {
        "tumbling": "500 ms", "late": "nextWindow", "trigger": {"size": 2000},
        "accumulation": "accumulating", "memory": {}, "inOrder": True,
        "aggregates": {"n": "count"},
    },
    "conditions": {
        "state": {
            "open": {"column": "topic", "compare": "==", "value": "lidar"},
            "emit": {"column": "value", "compare": ">", "value": 1.0},
        },
        "aggregates": {"n": "count", "q": ["quantile", "value", 0.5]},
    },
}  # fmt: skip


def test_every_setting_is_in_a_case() -> None:
    set_by_pipelines = {"keys"}
    named = {name for case in CASES.values() for name in case} | set_by_pipelines
    assert {field.name for field in fields(Window) if field.init} - named == set()


@pytest.mark.parametrize("name", IN_YAML)
def test_yaml_is_the_same_stage(name: str) -> None:
    made = build_window(IN_YAML[name], StageContext(key=("vehicle",)))
    given = CASES[name]
    assert made.settings() == Window(keys=("vehicle",), **given).settings()


@pytest.mark.parametrize("name", CASES)
def test_in_process_batch_and_stream_agree(
    name: str, spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    settings = dict(CASES[name])
    window = settings.pop("window")

    def opened(df: Any) -> Any:
        return ordered(df, topic="topic").window(window, **settings)

    batch = opened(spark.read.parquet(str(recording.folder)))
    expected = in_process(batch, recording.slices)
    assert count(expected["data"]) > (1 if name == "calendar" else 5)  # days: few rows
    run_batch_job(batch, str(tmp_path / "batch"))
    assert_same(expected, written(tmp_path / "batch", batch))
    control = tmp_path / "control"

    def stream() -> Any:
        return with_control(spark, opened(stream_of(spark, recording.folder)), control)

    run_now(stream(), tmp_path / "stream")
    say(control, "end", "graceful")
    run_now(stream(), tmp_path / "stream")
    assert_same(expected, written(tmp_path / "stream", stream()))
