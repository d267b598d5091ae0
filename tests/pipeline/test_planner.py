"""From a definition to what runs: the nodes, the errors before anything runs, and what is shown."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeTypes, EventtimeWatermark, ProcessTimeWatermark
from tidegate.pipeline import PipelineDefinition, StageContext, Stages, explain, explain_json, plan
from tidegate.pipeline.user_types import use_types
from tidegate.pipeline.window_stage import build_window
from tidegate.sync import Synchronize
from tidegate.testing.fleet import facts, fleet
from tidegate.windows import AfterCount, AfterTime, Reemit, Sliding, Tumbling, Window

STREAM: dict[str, Any] = {
    "columns": ["vehicle", "topic", "stamp", "log_time", "value"],
    "key": "vehicle",
    "topic": "topic",
    "arrival": "log_time",
    "eventtime": {"column": "stamp", "type": "unixtimestamp_ns"},
}
SCHEMA = pa.schema(
    {"vehicle": pa.string(), "topic": pa.string(), "stamp": pa.string(), "log_time": pa.int64(),
     "value": pa.float64()}
)  # fmt: skip


def define(*stages: Any, enabled: bool = True, **more: Any) -> PipelineDefinition:
    stream = {**STREAM, **more.pop("stream", {})}
    eventtime = {"enabled": enabled, "lateTolerance": "200 ms", **more.pop("eventtime", {})}
    return PipelineDefinition.of(
        {
            "name": "fleet",
            "streams": {"fleet": {k: v for k, v in stream.items() if v is not None}},
            "options": {"eventtime": eventtime, **more.pop("options", {})},
            "stages": list(stages),
            **more,
        }
    )


def names(definition: PipelineDefinition, **more: Any) -> list[str]:
    return [node.name for node in plan(definition, **more).nodes]


SYNC = {"synchronize": {"topics": ["camera", "lidar"]}}
WINDOW = {"window": {"tumbling": "10 s"}}


def test_event_time_stands_before_the_first_stage_that_needs_time() -> None:
    source = ["PhysicalDataSource", "PhysicalDecoder"]
    assert names(define(SYNC, sink={"path": "out"})) == [
        *source, "PhysicalEventtimeWatermark", "PhysicalSynchronize", "PhysicalSink",
    ]  # fmt: skip
    assert names(define()) == [*source, "PhysicalEventtimeWatermark"]
    assert names(define(enabled=False)) == source
    assert names(define(WINDOW, enabled=False)) == [
        *source, "PhysicalProcessTimeWatermark", "PhysicalWindow",
    ]  # fmt: skip


def test_the_ticker_of_processing_time_follows_the_first_window() -> None:
    def ticker(*stages: Any, **options: Any) -> ProcessTimeWatermark:
        stage = plan(define(*stages, enabled=False, options=options)).flow_stages()[0]
        assert isinstance(stage, ProcessTimeWatermark)
        return stage

    assert ticker(WINDOW).interval == 10 * 10**9
    assert ticker({"window": {"sliding": {"size": "10 s", "step": "2 s"}}}).interval == 2 * 10**9
    assert ticker(SYNC).interval == 10**9
    assert ticker(WINDOW, processtime={"interval": "5 s", "offset": "1 s"}) == ProcessTimeWatermark(
        "5 s", "1 s"
    )


def test_options_reach_the_stage() -> None:
    definition = define(
        eventtime={
            "late": "drop", "maxFutureSkew": "1 h", "idleTimeout": "30 s", "source": "topic",
            "maxSources": 4, "skewConfirm": 3, "skewAgainst": "clock", "watermarkPer": "collection",
        }
    )  # fmt: skip
    assert plan(definition).flow_stages() == (
        EventtimeWatermark(
            "200 ms", "drop", "collection", "1 h", "clock", 3, "topic", 4, "30 s",
        ),
    )  # fmt: skip


def test_a_plan_runs_in_process_as_its_facts_say() -> None:
    recording = fleet(vehicles=3, seconds=20, seed=5)
    known = facts(recording)
    definition = define(eventtime={"maxFutureSkew": "1 h"}, stream={"columns": None})
    made = plan(definition, {"fleet": recording.schema})
    flow = made.flow()
    found: dict[str, int] = {}
    outcomes = [o for rows in recording.to_batches(max_chunksize=500) for o in flow.process(rows)]
    for outcome in [*outcomes, *flow.end()]:
        found[outcome.kind] = found.get(outcome.kind, 0) + len(outcome)
    assert found["data"] == known.in_order
    assert found["late"] == known.late
    assert found["error"] == known.unreadable + known.skewed
    assert made.schema(recording.schema) == recording.schema


def test_key_topic_and_context_reach_a_stage() -> None:
    stage = plan(define(SYNC)).flow_stages()[1]
    assert isinstance(stage, Synchronize)
    assert stage == Synchronize(("camera", "lidar"), topic="topic", keys=("vehicle",))
    window = plan(define(WINDOW)).flow_stages()[1]
    assert isinstance(window, Window)
    assert (window.keys, window.in_order) == (("vehicle",), True)
    assert not plan(define(WINDOW, enabled=False)).flow_stages()[1].in_order  # type: ignore[attr-defined]


def test_messages_of_a_tuple() -> None:
    definition = PipelineDefinition.of(
        {
            "streams": {
                "pairs": {
                    "columns": ["lidar", "camera"],
                    "messages": {
                        "camera": {"eventtime": {"column": "at", "type": "iso8601"}},
                        "lidar": {"eventtime": {"column": "t", "type": "unixtimestamp_ns"}},
                        "other": {},
                    },
                }
            },
            "options": {"eventtime": {"enabled": True, "lateTolerance": "1 s"}},
        }
    )
    made = plan(definition)
    assert [time.path for time in made.decoder.times] == ["camera.at", "lidar.t"]
    info = explain_json(made)["nodes"][1]["info"]
    assert {"camera.eventtime.column=camera.at", "lidar.eventtime.index=0"} <= set(info)
    rows = pa.record_batch(
        {"lidar": pa.array([{"t": 5}, None]), "camera": pa.array([None, {"at": "1970-01-01"}])}
    )
    flow = made.flow()
    flow.process(rows)
    (data,) = flow.end()
    assert data.time_ns.tolist() == [0, 5]  # type: ignore[union-attr]


def test_several_streams_meet_in_one_pipeline() -> None:
    two = PipelineDefinition.of(
        {
            "streams": {
                "gps": {"key": "car", "eventtime": {"column": "t", "type": "unixtimestamp_s"}},
                "imu": {"key": "car", "eventtime": {"column": "at", "type": "iso8601"}},
            },
            "options": {"eventtime": {"enabled": True, "lateTolerance": "10 s"}},
        }
    )
    made = plan(two)
    assert [node.name for node in made.nodes] == [
        "PhysicalDataSource", "PhysicalDecoder", "PhysicalDataSource", "PhysicalDecoder",
        "PhysicalEventtimeWatermark",
    ]  # fmt: skip
    flow = made.flow()
    for each, rows in zip(
        made.inputs,
        [pa.record_batch({"car": ["a"], "t": [5]}),
         pa.record_batch({"car": ["a"], "at": ["1970-01-01T00:00:03Z"]})],
        strict=True,
    ):  # fmt: skip
        collection, errors = each.decoder.decode(rows)
        assert errors is None
        flow.accept(collection)
    (data,) = flow.end()
    assert [row["t"] for row in data.rows.to_pylist()] == [None, 5]  # type: ignore[union-attr]


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        (define(stream={"eventtime": {"column": "stmp", "type": "iso8601"}}),
         "eventtime.column `stmp` not found in stream `fleet` schema (columns: vehicle, topic, "
         "stamp, log_time, value)"),
        (define(stream={"eventtime": {"column": "stamp", "type": "unix"}}),
         "eventtime.type `unix` not registered (available: date, date_time, iso8601, timestamp, "
         "unixtimestamp_ms, unixtimestamp_ms_float, unixtimestamp_ns, unixtimestamp_s, "
         "unixtimestamp_s_float, unixtimestamp_s_ns, unixtimestamp_s_us, unixtimestamp_us, "
         "unixtimestamp_us_float, year_month_day) in stream `fleet`"),
        (define(stream={"eventtime": {"column": ["stamp", "clock"], "type": "iso8601"}}),
         "eventtime.column `clock` not found in stream `fleet` schema"),
        (define(stream={"eventtime": None}),
         "eventtime.enabled=true but no stream declares eventtime (streams: fleet)"),
        (define(stream={"key": ["vehicle", "vin"]}),
         "key `vin` not found in stream `fleet` schema"),
        (define(stream={"topic": "topc"}), "topic `topc` not found in stream `fleet` schema"),
        (define(stream={"arrival": ["offset"]}), "arrival `offset` not found in stream `fleet`"),
        (define(stream={"columns": [*STREAM["columns"], "__tidegate_lane"]}),
         "streams.fleet.columns: got '__tidegate_lane', columns that start with '__tidegate_' are"),
        (define(eventtime={"source": "partition"}),
         "options.eventtime.source `partition` not found in stream `fleet` schema"),
        (define("sort"), "stages[0].sort: is not known here; allowed are align, batch, compact"),
        (define({"sinchronise": {}}),
         "stages[0].sinchronise: is not known here; did you mean synchronize?"),
        (define({"synchronize": {}}), "stages[0].synchronize.topics: got None, is required"),
        (define({"synchronize": {"topics": ["a"]}}), "stages[0].synchronize.topics: got"),
        (define({"synchronize": {"topics": ["a", "b"], "maxIntervall": 1}}),
         "stages[0].synchronize.maxIntervall: got 1, is not known here; did you mean max_interval"),
        (define({"synchronize": {"topics": ["a", "b"], "maxInterval": "x"}}),
         "stages[0].synchronize.max_interval: got 'x', must be a number and a unit"),
        (define({"synchronize": {"topics": ["a", "b"], "queueSize": 1, "queue_size": 2}}),
         "stages[0].synchronize.queue_size: got 2, is also given as queue_size"),
        (define(SYNC, {"window": {"tumbling": "1 s", "session": "1 s"}}),
         "stages[1].window.session: got '1 s', one kind of window only; tumbling is given"),
        (define({"window": {"tumbling": "0 s"}}),
         "stages[0].window.tumbling.size: got '0 s', must be at least 1 ns"),
        (define({"window": {"tumbling": {}}}), "stages[0].window.tumbling: got {}, must be given"),
        (define({"window": {"tumblin": "1 s"}}), "did you mean tumbling?"),
        (define({"window": {"tumbling": "1 s", "trigger": {"count": 0}}}),
         "stages[0].window.trigger.count.rows: got 0"),
        (define({"window": {"tumbling": "1 s", "late": "never"}}),
         "stages[0].window.late: got 'never', is not known here;"),
        (define({"window": {"tumbling": "1 s", "aggregates": ["n"]}}),
         "stages[0].window.aggregates: got ['n'], must be like"),
    ],
)  # fmt: skip
def test_one_sentence_before_anything_runs(definition: PipelineDefinition, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(definition)
    assert says in str(caught.value)


def test_the_line_is_told_where_there_is_one() -> None:
    text = """\
streams:
  fleet:
    columns: [car, t]
    eventtime: {column: t, type: unix}
options:
  eventtime: {enabled: true}
stages:
  - synchronize:
      topics: [a, b]
      maxInterval: soon
"""
    definition = PipelineDefinition.from_yaml(text)
    with pytest.raises(ConfigError, match=r"`fleet` \(pipeline.yaml, line 4\)$"):
        plan(definition)
    definition = PipelineDefinition.from_yaml(text.replace("unix", "iso8601"))
    with pytest.raises(ConfigError, match=r"max_interval: got 'soon', .*yaml, line 10\)$"):
        plan(definition)


def test_schemas_of_the_data_are_looked_at() -> None:
    definition = define({"window": {"tumbling": "1 s", "aggregates": {"m": ["mean", "speed"]}}})
    plan(definition)  # names alone do not show it
    with pytest.raises(ConfigError, match=r"^stages\[0\].window.aggregates: got 'speed'"):
        plan(definition, {"fleet": SCHEMA})
    nested = SCHEMA.set(0, pa.field("vehicle", pa.list_(pa.string())))
    with pytest.raises(ConfigError, match="key `vehicle` of stream `fleet` must be a column of pl"):
        plan(define(), {"fleet": nested})
    with pytest.raises(ConfigError, match="arrival `log_time` not found"):
        plan(define(), {"fleet": SCHEMA.remove(3)})


def test_streams_that_do_not_fit_together() -> None:
    def two(**second: Any) -> PipelineDefinition:
        eventtime = {"column": "t", "type": "unixtimestamp_s"}
        streams = {"a": {"key": "car", "eventtime": eventtime}, "b": {"key": "car", **second}}
        return PipelineDefinition.of(
            {"streams": streams, "options": {"eventtime": {"enabled": True}}}
        )

    with pytest.raises(ConfigError, match="but stream `b` does not declare eventtime"):
        plan(two())
    eventtime = {"column": "t", "type": "iso8601"}
    with pytest.raises(
        ConfigError, match=r"streams.b.key: got \['vin'\], must be \['car'\], as in"
    ):
        plan(two(key="vin", eventtime=eventtime))
    clash = {"a": pa.schema({"car": pa.string(), "t": pa.int64()}),
             "b": pa.schema({"car": pa.string(), "t": pa.string()})}  # fmt: skip
    with pytest.raises(ConfigError, match="must agree in the types"):
        plan(two(eventtime=eventtime), clash)


def test_off_means_the_declaration_is_not_looked_at() -> None:
    definition = define(enabled=False, stream={"eventtime": {"column": "no", "type": "such"}})
    assert names(definition) == ["PhysicalDataSource", "PhysicalDecoder"]
    assert plan(definition).decoder.times == ()


def test_types_of_ones_own() -> None:
    types = EventtimeTypes()
    types.register("gps", lambda column: column)
    definition = define(stream={"eventtime": {"column": "stamp", "type": "gps"}})
    assert plan(definition, types=types).decoder.types is types
    with pytest.raises(ConfigError, match="not registered"):
        plan(definition)


# -- stages ---------------------------------------------------------------------------------------


def test_stages_of_ones_own() -> None:
    stages = Stages()
    stages.register("order", EventtimeWatermark, needs_time=False)
    made = plan(define({"order": {"lateTolerance": "1 s"}}), stages=stages)
    assert [node.name for node in made.nodes][2:] == ["PhysicalEventtimeWatermark", "PhysicalOrder"]
    with pytest.raises(ConfigError, match="registered already"):
        stages.register("order", EventtimeWatermark)
    stages.register("order", lambda settings, context: EventtimeWatermark(), replace=True)
    stages.register("gone", "tidegate.core.nowhere:Gone")
    assert stages.list() == ["gone", "order"]
    with pytest.raises(
        ConfigError, match=r"stages: got 'gone', cannot be loaded from tidegate.core"
    ):
        plan(define("gone"), stages=stages)


def test_windows_as_they_are_written() -> None:
    stage = build_window(
        {
            "sliding": {"size": "10 s", "step": "5 s"},
            "trigger": {"any": [{"count": 100}, {"all": [{"time": "50 ms"}, {"count": 5}]}]},
            "late": {"reemit": {"maxLateness": "5 s", "retract": True}},
            "aggregates": {"n": "count", "speed": ["mean", "value"],
                           "p99": {"function": "quantile", "column": "value", "q": 0.99}},
            "groupBy": "topic",
            "accumulation": "retracting",
            "memory": {"budget": 1000000, "policy": "reject"},
        },
        StageContext(key=("vehicle",), event_time=True),
    )  # fmt: skip
    assert isinstance(stage, Window)
    assert stage.window == Sliding("10 s", "5 s")
    assert repr(stage.trigger) == repr(AfterCount(100) | (AfterTime("50 ms") & AfterCount(5)))
    assert stage.late == Reemit("5 s", retract=True)
    assert [name for name, _ in stage.aggregates] == ["n", "speed", "p99"]
    assert stage.group_by == ("topic",)
    plain = build_window({"tumbling": "1 s", "trigger": {"watermark": {"early": {"count": 3}}}},
                         StageContext())  # fmt: skip
    assert isinstance(plain, Window)
    assert plain.window == Tumbling("1 s")
    state = build_window(
        {"state": {"open": {"column": "v", "compare": ">", "value": 3}, "emit": True}},
        StageContext(),
    )
    assert isinstance(state, Window)


def test_every_stage_can_be_planned_and_shown() -> None:
    for stage in (SYNC, WINDOW, {"batch": {"length": "1 s"}}, {"compact": {"dims": 3}}):
        made = plan(define(stage))
        assert json.loads(json.dumps(explain_json(made)))["nodes"][-1]["facts"]
        assert made.flow().process(pa.record_batch({"vehicle": []})) == []


# -- explain --------------------------------------------------------------------------------------


def test_explain_shows_nodes_settings_and_time() -> None:
    text = explain(plan(define(SYNC, sink={"path": "out/"})))
    lines = text.splitlines()
    assert lines[0] == "pipeline fleet: batch, event time"
    assert [line.split()[1] for line in lines[1:]] == [
        "PhysicalDataSource", "PhysicalDecoder", "PhysicalEventtimeWatermark",
        "PhysicalSynchronize", "PhysicalSink",
    ]  # fmt: skip
    assert "eventtime.column=stamp, eventtime.type=unixtimestamp_ns, eventtime.index=2" in lines[2]
    assert "late_tolerance_ms=200, late_tolerance=200 ms" in lines[3]
    assert "topics=[camera, lidar]" in lines[4]
    assert "path=out/" in lines[5]


def test_explain_as_json_has_the_same() -> None:
    shown = explain_json(plan(define(eventtime={"lateTolerance": 1_500_001})))
    assert shown["options"]["eventtime_late_tolerance_ms"] == 1.500001
    watermark = shown["nodes"][2]
    assert watermark["operator"] == "PhysicalEventtimeWatermark"
    assert watermark["facts"]["mode"] == "event_time"
    assert "late_tolerance_ms=1.500001" in watermark["info"]
    assert json.loads(json.dumps(shown)) == shown


def test_explain_never_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "from-the-environment")
    options = {
        "kafka.password": "written-out", "broker": "${env:BROKER_PASSWORD}",
        "url": "x://ada:in-the-url@h",
    }  # fmt: skip
    source = {"format": "kafka", "options": options}
    made = plan(define(stream={"source": source}, sink={"options": options}))
    for text in (explain(made), json.dumps(explain_json(made))):
        assert "${env:BROKER_PASSWORD}" in text
        for secret in ("written-out", "from-the-environment", "in-the-url"):
            assert secret not in text


def test_explain_warns_of_what_may_surprise() -> None:
    stages = Stages()
    stages.register("gate", EventtimeWatermark, needs_time=False)
    stages.register("window", "tidegate.pipeline.window_stage:build_window")
    shown = explain_json(plan(define("gate", WINDOW, stream={"arrival": None, "key": None}),
                              stages=stages))  # fmt: skip
    assert [note.split(":")[0] for note in shown["notes"]] == [
        "PhysicalGate is before the watermark", "no arrival columns", "no key",
    ]  # fmt: skip
    assert "PhysicalProcessTimeWatermark" in explain(plan(define(WINDOW, enabled=False)))


# -- no silent wrong answer -----------------------------------------------------------------------


def test_a_declared_event_time_that_is_not_enabled_is_refused_with_the_line_to_add() -> None:
    text = """\
streams:
  fleet:
    key: vehicle
    eventtime: {column: stamp, type: unixtimestamp_ns}
stages:
  - synchronize: {topics: [a, b], topic: t}
"""
    with pytest.raises(ConfigError) as caught:
        plan(PipelineDefinition.from_yaml(text))
    assert str(caught.value) == (
        "stream `fleet` declares eventtime, but options.eventtime.enabled is not set: add "
        "`options: {eventtime: {enabled: true}}`, or `enabled: false` for processing time "
        "(pipeline.yaml, line 4)"
    )
    for enabled in ("true", "false"):
        plan(PipelineDefinition.from_yaml(f"{text}options: {{eventtime: {{enabled: {enabled}}}}}"))


@pytest.mark.parametrize("stage", [SYNC, WINDOW, {"batch": {"length": "1 s"}}])
def test_a_stage_that_decides_by_time_needs_a_clock(stage: Any) -> None:
    streams = {"s": {"key": "vehicle", "topic": "topic"}}
    with pytest.raises(ConfigError, match=r"^stages\[0\]\.\w+ decides by time, and no stream"):
        plan(PipelineDefinition.of({"streams": streams, "stages": [stage]}))
    chosen = {"eventtime": {"enabled": False}}
    plan(PipelineDefinition.of({"streams": streams, "stages": [stage], "options": chosen}))


def test_a_stage_for_which_any_clock_will_do_does_not() -> None:
    streams = {"s": {"key": "vector"}}
    plan(PipelineDefinition.of({"streams": streams, "stages": [{"compact": {"dims": 3}}]}))
    plan(PipelineDefinition.of({"streams": streams}))


@pytest.mark.parametrize(
    ("kind", "type_", "able"),
    [
        (pa.int64(), "iso8601", "unixtimestamp_ms"),
        (pa.int64(), "timestamp", "unixtimestamp_ns"),
        (pa.bool_(), "unixtimestamp_ns", None),
        (pa.list_(pa.int64()), "unixtimestamp_ns", None),
        (pa.timestamp("us"), "unixtimestamp_ms", "timestamp"),
    ],
)
def test_a_column_that_can_never_be_read_as_that_time_is_a_plan_error(
    kind: pa.DataType, type_: str, able: str | None
) -> None:
    definition = define(stream={"eventtime": {"column": "stamp", "type": type_}})
    schema = SCHEMA.set(2, pa.field("stamp", kind))
    with pytest.raises(
        ConfigError, match=f"column `stamp` is .*, and eventtime type `{type_}` reads"
    ) as caught:
        plan(definition, {"fleet": schema})
    assert (able is None) or (able in str(caught.value))


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (pa.int64(), "unixtimestamp_ns"), (pa.int32(), "unixtimestamp_s"),
        (pa.string(), "iso8601"), (pa.string(), "unixtimestamp_ms"),
        (pa.dictionary(pa.int32(), pa.string()), "iso8601"), (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamp"), (pa.null(), "iso8601"),
    ],
)  # fmt: skip
def test_columns_that_can_be_read_are_planned(kind: pa.DataType, type_: str) -> None:
    definition = define(stream={"eventtime": {"column": "stamp", "type": type_}})
    plan(definition, {"fleet": SCHEMA.set(2, pa.field("stamp", kind))})


def test_a_time_inside_a_struct() -> None:
    header = pa.struct({"stamp": pa.int64(), "frame": pa.string()})
    schema = SCHEMA.set(2, pa.field("header", header))
    declared = {"column": "header.stamp", "type": "unixtimestamp_ns"}
    definition = define(stream={"eventtime": declared, "columns": None})
    made = plan(definition, {"fleet": schema})
    assert "eventtime.column=header.stamp" in explain(made)
    rows = pa.record_batch(
        [["v", "v"], ["t", "t"], [{"stamp": 5, "frame": "a"}, None], [1, 2], [1.0, 2.0]],
        schema=schema,
    )
    collection, errors = made.decoder.decode(rows)
    assert collection.time_ns.tolist() == [5]
    assert errors is not None
    assert len(errors.rows) == 1
    with pytest.raises(
        ConfigError, match=r"eventtime.column: got 'header.time', is not among the columns"
    ):
        plan(
            define(stream={"eventtime": {**declared, "column": "header.time"}, "columns": None}),
            {"fleet": schema},
        )
    dotted = SCHEMA.set(2, pa.field("header.stamp", pa.int64()))
    rows = pa.record_batch([["v"], ["t"], [7], [1], [1.0]], schema=dotted)
    assert plan(definition, {"fleet": dotted}).decoder.decode(rows)[0].time_ns.tolist() == [7]


def test_explain_states_the_zone_of_times_without_one() -> None:
    iso = define(stream={"eventtime": {"column": "stamp", "type": "iso8601"}})
    assert "eventtime.zone=UTC where a time has none" in explain(plan(iso))
    berlin = define(stream={"eventtime": {**iso_in("Europe/Berlin")}})
    assert "eventtime.zone=Europe/Berlin where a time has none" in explain(plan(berlin))
    with pytest.raises(ConfigError, match=r"must be a time zone .*in stream `fleet`"):
        plan(define(stream={"eventtime": {**iso_in("Mars/Olympus")}}))
    assert "zone" not in explain(plan(define()))


def iso_in(zone: str) -> dict[str, str]:
    return {"column": "stamp", "type": "iso8601", "zone": zone}


# -- event-time types of users --------------------------------------------------------------------


@pytest.fixture
def clocks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_clocks.py").write_text(
        "import pyarrow.compute as pc\n"
        "def register(types):\n"
        "    types.register('gps_seconds', lambda column: pc.multiply(column, 1_000_000_000))\n"
        "def broken(types):\n"
        "    raise RuntimeError('no clock')\n"
        "value = 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TIDEGATE_TYPES", raising=False)
    monkeypatch.setenv("TIDEGATE_TYPES", "")
    return "my_clocks"


GPS = {"eventtime": {"column": "stamp", "type": "gps_seconds"}}


def test_types_named_on_the_command_line(clocks: str) -> None:
    with pytest.raises(ConfigError, match=r"eventtime.type `gps_seconds` not registered"):
        plan(define(stream=GPS))
    use_types([f"{clocks}:register"])
    made = plan(define(stream=GPS))
    rows = pa.record_batch({"stamp": [2]})
    assert made.decoder.decode(rows)[0].time_ns.tolist() == [2_000_000_000]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:register", "cannot be loaded: No module named 'nowhere'"),
        ("my_clocks:nothing", "cannot be loaded"),
        ("my_clocks:value", "must be a function"),
        ("my_clocks:broken", "failed: RuntimeError: no clock"),
        ("unheard_of", "must be module:function or one of group tidegate.eventtime_types"),
    ],
)
def test_types_that_cannot_be_loaded_are_one_sentence(clocks: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        use_types([name])


def test_an_entry_point_is_code_and_must_be_allowed(
    clocks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("gps_seconds", f"{clocks}:register", "tidegate.eventtime_types")
    found = {"gps_seconds": [entry]}
    monkeypatch.setattr(
        "tidegate.pipeline.user_types.entry_points", lambda group, name: found.get(name, [])
    )
    with pytest.raises(ConfigError, match=r"allow it with --types gps_seconds or TIDEGATE_ALLOW"):
        plan(define(stream=GPS))
    monkeypatch.setenv("TIDEGATE_ALLOW_CODE", "1")
    plan(define(stream=GPS))
    monkeypatch.delenv("TIDEGATE_ALLOW_CODE")
    use_types(["gps_seconds"])
    plan(define(stream=GPS))


def test_a_stage_that_could_wait_for_ever_is_refused_in_a_stream() -> None:
    text = """
    name: training
    streams:
      log: {source: {format: parquet, path: in}, topic: topic,
            eventtime: {column: t, type: unixtimestamp_ns}}
    options: {mode: MODE, eventtime: {enabled: true}}
    stages: [{align: {reference: camera, topics: {imu: nearest}}}]
    sink: {format: parquet, path: out}
    """
    plan(PipelineDefinition.from_yaml(text.replace("MODE", "batch")))
    with pytest.raises(ConfigError, match=r"'imu'.*nearest needs a tolerance in a stream"):
        plan(PipelineDefinition.from_yaml(text.replace("MODE", "streaming")))
