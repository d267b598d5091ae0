"""Every setting of the window stage runs on Spark, in batch, as a stream and from YAML, and gives
what it gives in process. The settings come from the registries: a new one without a case fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import Tables, assert_same, count, in_process, run_now, say, written
from spark.recordings import Recording, ordered, stream_of, with_control
from tidegate.pipeline.stages import StageContext
from tidegate.pipeline.window_stage import build_window
from tidegate.spark.query import run_batch_job
from tidegate.windows import (
    Accumulation,
    Adaptive,
    AfterCount,
    AfterSize,
    AfterTime,
    Aggregate,
    AtWatermark,
    Calendar,
    CountWindow,
    Cumulate,
    Discard,
    Everything,
    Fixed,
    LookBack,
    Memory,
    MemoryPressure,
    NextWindow,
    Once,
    Predicate,
    RateChange,
    Reemit,
    Session,
    SideOutput,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    Window,
)
from tidegate.windows.aggregates import AGGREGATE_FUNCTIONS
from tidegate.windows.kinds import WINDOW_KINDS
from tidegate.windows.late import LATE_POLICIES
from tidegate.windows.triggers import TRIGGERS

CASES: dict[str, dict[str, Any]] = {
    "rows": {
        "window": Tumbling("500 ms", "30 ms"), "deduplicate_by": "topic", "stats": True,
        "affected": "topic", "size_column": "seq",
    },
    "aggregates over text": {
        "window": Session("40 ms"), "group_by": ("topic",),
        "aggregates": {
            "n": "count", "first": ("first", "topic"), "least": ("min", "topic"),
            "kinds": ("count_distinct", "topic"),
            # A function of the user's that takes texts only.
            "longest": Aggregate(
                lambda v: max(len(text) for text in v.to_pylist()), "topic", type=pa.int64(),
                name="longest",
            ),
        },
    },
    "aggregates over numbers": {
        "window": Sliding("500 ms", "250 ms", "30 ms"), "late": Discard(),
        "aggregates": {
            "s": ("sum", "value"), "m": ("mean", "value"), "hi": ("max", "value"),
            "l": ("last", "value"), "top": Aggregate("top", "topic", n=2, by="value"),
        },
    },
    "reemit": {
        "window": Tumbling("500 ms"), "late": Reemit("2 s", retract=True),
        "trigger": AtWatermark(early=Once(AfterCount(10)), late=AfterCount(2)),
        "aggregates": {"n": "count", "v": ("mean", "value")},
    },
    "next window, accumulating": {
        "window": Tumbling("500 ms"), "late": NextWindow(), "trigger": AfterSize(2000),
        "accumulation": Accumulation.ACCUMULATING, "memory": Memory(), "in_order": True,
        "aggregates": {"n": "count"},
    },
    "conditions": {
        "window": StateWindow(When("topic", "==", "lidar"), When("value", ">", 1.0), ("topic",)),
        "aggregates": {"n": "count", "q": ("quantile", "value", 0.5)},
    },
    "complete": {
        "window": Tumbling("500 ms"), "trigger": AfterCount(5), "late": Reemit("1 s"),
        "aggregates": {"n": "count", "top": ("top", "value", 2)}, "complete": True,
        "timestamp": "earliest", "in_order": True,
    },
    "cumulate": {
        "window": Cumulate("1 s", "250 ms", "30 ms"),
        "aggregates": {"n": "count", "q": ("approx_quantile", "value", 0.9)},
    },
    "calendar": {
        "window": Calendar("week", "Europe/Berlin"), "group_by": ("topic",),
        "aggregates": {"n": "count"}, "timestamp": "latest",
    },
    "predicate": {
        "window": CountWindow(7),
        "trigger": Predicate(When("topic", "==", "gps"), "gps"),
    },
    "look back": {
        "window": LookBack("50 ms", "20 ms"), "aggregates": {"m": ("mean", "value")},
    },
    "adaptive": {
        "window": Adaptive("100 ms", "2 s", 20), "late": SideOutput(), "aggregates": {"n": "count"},
    },
    "rate": {
        "window": Everything(),
        "trigger": RateChange(0.2, "300 ms") | AfterCount(40) & AfterSize(100),
    },
    # By the clock, or by what a shard holds: compared without what depends on that.
    "wall clock": {"window": Fixed("1 h"), "trigger": AfterTime("30 min")},
    "memory": {
        "window": Tumbling("10 s"), "trigger": MemoryPressure(0.3),
        "memory": Memory(20_000, 0.6, 0.9, "reject", {"ingestion": 15_000}),
    },
}  # fmt: skip

BY_ROWS = {"wall clock", "memory"}

NOT_IN_YAML = {
    "aggregates over text": "a function of the user's",
}

IN_YAML: dict[str, dict[str, Any]] = {
    "rows": {
        "tumbling": {"size": "500 ms", "offset": "30 ms"}, "deduplicateBy": "topic",
        "stats": True, "affected": "topic", "sizeColumn": "seq",
    },
    "aggregates over numbers": {
        "sliding": {"size": "500 ms", "step": "250 ms", "offset": "30 ms"}, "late": "discard",
        "aggregates": {
            "s": ["sum", "value"], "m": ["mean", "value"], "hi": ["max", "value"],
            "l": ["last", "value"],
            "top": {"function": "top", "column": "topic", "n": 2, "by": "value"},
        },
    },
    "reemit": {
        "tumbling": "500 ms", "late": {"reemit": {"maxLateness": "2 s", "retract": True}},
        "trigger": {"watermark": {"early": {"once": {"count": 10}}, "late": {"count": 2}}},
        "aggregates": {"n": "count", "v": ["mean", "value"]},
    },
    "complete": {
        "tumbling": "500 ms", "trigger": {"count": 5}, "late": {"reemit": "1 s"},
        "aggregates": {"n": "count", "top": ["top", "value", 2]}, "complete": True,
        "timestamp": "earliest", "inOrder": True,
    },
    "cumulate": {
        "cumulate": {"size": "1 s", "step": "250 ms", "offset": "30 ms"},
        "aggregates": {"n": "count", "q": ["approx_quantile", "value", 0.9]},
    },
    "calendar": {
        "calendar": {"unit": "week", "zone": "Europe/Berlin"}, "groupBy": "topic",
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
            "partitionBy": ["topic"],
        },
        "aggregates": {"n": "count", "q": ["quantile", "value", 0.5]},
    },
    "look back": {
        "lookBack": {"back": "50 ms", "ahead": "20 ms"}, "aggregates": {"m": ["mean", "value"]},
    },
    "adaptive": {
        "adaptive": {"min": "100 ms", "max": "2 s", "target": 20}, "late": "sideOutput",
        "aggregates": {"n": "count"},
    },
    "rate": {
        "everything": True,
        "trigger": {
            "any": [
                {"rateChange": {"threshold": 0.2, "period": "300 ms"}},
                {"all": [{"count": 40}, {"size": 100}]},
            ]
        },
    },
    "predicate": {
        "count": 7,
        "trigger": {
            "predicate": {
                "condition": {"column": "topic", "compare": "==", "value": "gps"}, "label": "gps",
            }
        },
    },
    "wall clock": {"fixed": "1 h", "trigger": {"time": "30 min"}},
    "memory": {
        "tumbling": "10 s", "trigger": {"memoryPressure": 0.3},
        "memory": {
            "budget": 20_000, "highWater": 0.6, "emergency": 0.9, "policy": "reject",
            "components": {"ingestion": 15_000},
        },
    },
}  # fmt: skip

NAMED = {*WINDOW_KINDS.values(), *TRIGGERS.values(), *LATE_POLICIES.values(), Memory, Aggregate}
"""Everything that a window stage is put together from."""


def settings_in(value: Any) -> Iterator[tuple[str, str]]:
    """(class, setting) for every setting that this value, or one inside it, gives: of those that
    have a default, only where it is another value."""
    if isinstance(value, dict | tuple | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from settings_in(each)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__, ""
        for setting in fields(value):
            inner = getattr(value, setting.name)
            if setting.init and inner != setting.default:
                yield type(value).__name__, setting.name
            yield from settings_in(inner)


@pytest.fixture(scope="module")
def given() -> set[tuple[str, str]]:
    """What the cases set; of aggregates, their functions as well."""
    out: set[tuple[str, str]] = set()
    for case in CASES.values():
        stage = Window(**case)
        out |= {("Window", name) for name in case} | set(settings_in(stage))
        out |= {("function", str(aggregate.function)) for _, aggregate in stage.aggregates}
    return out


def test_every_setting_is_in_a_case(given: set[tuple[str, str]]) -> None:
    set_by_pipelines = ("Window", "keys")
    wanted = {
        (kind.__name__, setting.name)
        for kind in (Window, *NAMED)
        for setting in fields(kind)
        if setting.init
    }
    wanted |= {(kind.__name__, "") for kind in NAMED}
    wanted |= {("function", name) for name in AGGREGATE_FUNCTIONS}
    assert wanted - given - {set_by_pipelines} == set()


def test_every_case_is_in_yaml_or_says_why_not() -> None:
    assert {*IN_YAML} | {*NOT_IN_YAML} == {*CASES}


@pytest.mark.parametrize("name", IN_YAML)
def test_yaml_is_the_same_stage(name: str) -> None:
    made = build_window(IN_YAML[name], StageContext(key=("vehicle",)))
    settings = CASES[name]
    assert made.settings() == Window(keys=("vehicle",), **settings).settings()


def rows_of(tables: Tables) -> dict[Any, list[Any]]:
    """The messages in any table, whichever window each came in: nothing is lost, nothing twice."""
    out = defaultdict(list)
    for rows in tables.values():
        for key, each in rows.items():
            out[key] += [(row["topic"], row["seq"], row["stamp"]) for row in each]
    return {key: sorted(each, key=repr) for key, each in out.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_in_process_batch_and_stream_agree(
    name: str, spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    settings = dict(CASES[name])
    window = settings.pop("window")

    def opened(df: Any) -> Any:
        return ordered(df, topic="topic").window(window, **settings)

    def check(ours: Tables) -> None:
        if name in BY_ROWS:
            assert rows_of(ours) == rows_of(expected)
        else:
            assert_same(expected, ours)

    batch = opened(spark.read.parquet(str(recording.folder)))
    expected = in_process(batch, recording.slices)
    assert count(expected["data"]) > (1 if name == "calendar" else 5)  # weeks: few rows
    if name == "memory":  # or nothing would be compared but an ordinary window
        reasons = {row["trigger"] for rows in expected["data"].values() for row in rows}
        assert "memory_pressure" in reasons
    run_batch_job(batch, str(tmp_path / "batch"))
    check(written(tmp_path / "batch", batch))
    control = tmp_path / "control"

    def stream() -> Any:
        return with_control(spark, opened(stream_of(spark, recording.folder)), control)

    run_now(stream(), tmp_path / "stream")
    say(control, "end", "graceful")
    run_now(stream(), tmp_path / "stream")
    check(written(tmp_path / "stream", stream()))
