"""One model for YAML and Python, and one sentence per mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, json_schema
from tidegate.pipeline.definition import (
    EventtimeDefinition,
    EventtimeOptions,
    Options,
    SinkDefinition,
    SourceDefinition,
    StageDefinition,
    StreamDefinition,
)
from tidegate.pipeline.secrets import is_reference, resolve, shown

WHOLE = """\
name: fleet
streams:
  fleet:
    source: {format: parquet, path: recording/, options: {mergeSchema: true}}
    columns: [vehicle, topic, stamp, log_time]
    key: vehicle
    topic: topic
    arrival: [log_time]
    eventtime: {column: stamp, type: unixtimestamp_ns}
options:
  eventtime:
    enabled: true
    lateTolerance: 200 ms
    late: side_output
    maxFutureSkew: 1 h
    idleTimeout: 30 s
    watermarkPer: tuple
  mode: streaming
  trigger: 1 s
  checkpoint: state/
  shards: 4
  forget: 1 d
stages:
  - synchronize: {topics: [camera, lidar], queueSize: 10}
  - compact
sink: {format: parquet, path: out/}
"""


def test_yaml_and_python_are_one_model() -> None:
    written = PipelineDefinition.from_yaml(WHOLE)
    made = PipelineDefinition(
        name="fleet",
        streams={
            "fleet": StreamDefinition(
                source=SourceDefinition(path="recording/", options={"mergeSchema": True}),
                columns=["vehicle", "topic", "stamp", "log_time"],
                key=["vehicle"],
                topic="topic",
                arrival=["log_time"],
                eventtime=EventtimeDefinition(column="stamp", type="unixtimestamp_ns"),
            )
        },
        options=Options(
            eventtime=EventtimeOptions(
                enabled=True,
                late_tolerance=200_000_000,
                max_future_skew=3600 * 10**9,
                idle_timeout=30 * 10**9,
            ),
            mode="streaming",
            trigger="1 s",
            checkpoint="state/",
            shards=4,
            forget=86400 * 10**9,
        ),
        stages=[
            StageDefinition(
                name="synchronize", settings={"topics": ["camera", "lidar"], "queueSize": 10}
            ),
            StageDefinition(name="compact"),
        ],
        sink=SinkDefinition(path="out/"),
    )
    assert made == written
    assert PipelineDefinition.of(yaml.safe_load(WHOLE)) == written


def test_what_is_dumped_is_read_back() -> None:
    definition = PipelineDefinition.from_yaml(WHOLE)
    dumped = json.loads(json.dumps(definition.model_dump(by_alias=True)))
    assert dumped["options"]["eventtime"]["lateTolerance"] == 200_000_000
    assert dumped["stages"][1] == {"compact": {}}
    assert PipelineDefinition.of(dumped) == definition
    assert PipelineDefinition.of(definition.model_dump()) == definition


def test_either_spelling() -> None:
    camel = EventtimeOptions.model_validate({"lateTolerance": "1 s", "watermarkPer": "collection"})
    snake = EventtimeOptions.model_validate(
        {"late_tolerance": 10**9, "watermark_per": "collection"}
    )
    assert camel == snake


def test_definitions_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        PipelineDefinition.from_yaml(WHOLE).name = "other"


@pytest.mark.parametrize(
    ("find", "write", "says"),
    [
        ("lateTolerance: 200 ms", "lateTolerance: 7 parsecs",
         "options.eventtime.lateTolerance: got '7 parsecs', unit must be one of ns, us, µs, ms, s, "
         "min, m, h, d (fleet.yaml, line 13)"),
        ("lateTolerance: 200 ms", "lateTolerance: -1 s",
         "options.eventtime.lateTolerance: got '-1 s', must be at least 0 ns (fleet.yaml, line 13"),
        ("lateTolerance: 200 ms", "lateTolerance:",
         'options.eventtime.lateTolerance: got None, must be nanoseconds, a string like "200 ms", '
         "or a timedelta (fleet.yaml, line 13)"),
        ("lateTolerance:", "lateTolerence:",
         "options.eventtime.lateTolerence: is not known here; did you mean lateTolerance? allowed "
         "are enabled, idleTimeout, late, lateTolerance, maxFutureSkew, maxSources, skewAgainst, "
         "skewConfirm, source, watermarkPer (fleet.yaml, line 13)"),
        ("late: side_output", "late: never",
         "options.eventtime.late: got 'never', must be one of side_output, drop "
         "(fleet.yaml, line 14)"),
        ("late: side_output", "late_tolerance: 1 s",
         "options.eventtime.late_tolerance: got '1 s', is also given as lateTolerance "
         "(fleet.yaml, line 14)"),
        ("late: side_output", "enabled: false",
         "options.eventtime.enabled: is given twice, on lines 12 and 14 of fleet.yaml"),
        ("enabled: true", "enabled: 7",
         "options.eventtime.enabled: got 7, must be true or false (fleet.yaml, line 12)"),
        ("shards: 4", "shards: 0",
         "options.shards: got 0, must be at least 1 (fleet.yaml, line 21)"),
        ("shards: 4", "shards: many",
         "options.shards: got 'many', must be a whole number (fleet.yaml, line 21)"),
        ("mode: streaming", "mode: stream",
         "options.mode: got 'stream', must be one of batch, streaming (fleet.yaml, line 18)"),
        ("mode: streaming", "mode: batch",
         "options.trigger: got '1 s', needs mode: streaming (fleet.yaml, line 19)"),
        ("trigger: 1 s", "trigger: soon",
         'options.trigger: got \'soon\', must be available_now or a duration such as "1 s" '
         "(fleet.yaml, line 19)"),
        ("key: vehicle", "key: 5",
         "streams.fleet.key: got 5, must be a list (fleet.yaml, line 6)"),
        ("key: vehicle", "key: [vehicle, vehicle]",
         "streams.fleet.key: got ['vehicle', 'vehicle'], names a column twice "
         "(fleet.yaml, line 6)"),
        ("key: vehicle", "kye: vehicle",
         "streams.fleet.kye: is not known here; did you mean key? allowed are arrival, columns, "
         "eventtime, key, messages, source, topic (fleet.yaml, line 6)"),
        ("column: stamp, ", "",
         "streams.fleet.eventtime.column: is required and missing (fleet.yaml, line 9)"),
        ("column: stamp", "column: 5",
         "streams.fleet.eventtime.column: got 5, must be text (fleet.yaml, line 9)"),
        ("mergeSchema: true", "mergeSchema: [1]",
         "streams.fleet.source.options.mergeSchema: got [1], must be text, a number, true or false "
         "(fleet.yaml, line 4)"),
        ("- compact", "- {compact: {}, batch: {}}",
         "stages[1]: got {'compact': {}, 'batch': {}}, must be one name with its settings "
         "(fleet.yaml, line 25)"),
        ("- compact", "- compact: 5",
         "stages[1].settings: got 5, must be a mapping of names to values (fleet.yaml, line 25)"),
        ("sink: {format: parquet, path: out/}", "sink: out/",
         "sink: got 'out/', must be a mapping of names to values (fleet.yaml, line 26)"),
        ("sink: {", "sink: [{", "cannot be read as YAML"),
        ("name: fleet\n", "name: ''\n", "name: got '', must not be empty (fleet.yaml, line 1)"),
        ("name: fleet\n", "name: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
        ("trigger: 1 s", "trigger: *nowhere", "undefined alias"),
    ],
)  # fmt: skip
def test_one_sentence_per_mistake(find: str, write: str, says: str) -> None:
    assert find in WHOLE
    with pytest.raises(ConfigError) as caught:
        PipelineDefinition.from_yaml(WHOLE.replace(find, write, 1), "fleet.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_several_mistakes_are_counted_and_the_first_is_told() -> None:
    text = WHOLE.replace("shards: 4", "shards: 0").replace("key: vehicle", "key: 5")
    with pytest.raises(ConfigError, match=r"^streams.fleet.key: .*line 6\); 1 more after this$"):
        PipelineDefinition.from_yaml(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "x.yaml must be a mapping, got nothing"),
        ("[1]", "x.yaml must be a mapping, got list"),
        ("just words", "x.yaml must be a mapping, got str"),
        ("name: x", "streams: is required and missing (x.yaml, line 1)"),
        ("streams: {}", "streams: got {}, must not be empty (x.yaml, line 1)"),
        ("streams: [1]", "streams: got [1], must be a mapping of names to values"),
        ("streams: {s: }", "streams.s: got None, must be a mapping of names to values"),
        ("a: {\n", "x.yaml, line 2: cannot be read as YAML"),
        ("\tname: x", "x.yaml, line 1: cannot be read as YAML"),
    ],
)
def test_files_that_are_no_pipelines(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PipelineDefinition.from_yaml(text, "x.yaml")
    assert says in str(caught.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(WHOLE)
    assert PipelineDefinition.load(path).name == "fleet"
    assert PipelineDefinition.load(str(path)).where("options", "shards") == f" ({path}, line 21)"
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        PipelineDefinition.load(tmp_path / "nowhere.yaml")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        PipelineDefinition.load(path)
    with pytest.raises(ConfigError, match="is a folder, not a pipeline file: write one"):
        PipelineDefinition.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StreamDefinition(key=5), "key: got 5, must be a list"),
        (lambda: EventtimeOptions(lateTolerance="x"), "lateTolerance: got 'x'"),
        (lambda: StreamDefinition(kye="a"), "kye: is not known here; did you mean key?"),
        (lambda: PipelineDefinition(streams={"s": {"key": 5}}), "streams.s.key: got 5"),
        (lambda: EventtimeDefinition(column="a"), "type: is required and missing"),
        (lambda: StreamDefinition(
            eventtime={"column": "t", "type": "x"}, messages={"m": {}}), "messages: got"),
    ],
)  # fmt: skip
def test_mistakes_in_python_are_config_errors_too(make: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


def test_anchors_may_be_used() -> None:
    text = """
streams:
  a: &one {key: car, eventtime: {column: t, type: iso8601}}
  b: *one
  c: {<<: *one, topic: x}
"""
    streams = PipelineDefinition.from_yaml(text).streams
    assert streams["a"] == streams["b"]
    assert streams["c"].key == ["car"]
    assert streams["c"].topic == "x"


# -- secrets --------------------------------------------------------------------------------------


def test_references_are_looked_up_only_when_asked(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    env = {"USER_NAME": "ada"}
    text = f"${{env:USER_NAME}}:${{file:{secret}}}@host"
    assert is_reference(text)
    assert resolve(text, env=env) == "ada:hunter2@host"
    assert resolve("plain ${not a reference}", env=env) == "plain ${not a reference}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${env:MISSING}", "the environment variable MISSING must be set"),
        ("${file:/no/such/file}", "file must be readable: No such file"),
        ("${vault:x}", r"must be \$\{env:NAME\} or \$\{file:path\}"),
    ],
)
def test_references_that_lead_nowhere(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        resolve(text, "sink.options.password", env={})
    assert caught.value.field == "sink.options.password"


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("password", "hunter2", "***"),
        ("kafka.sasl.jaas.config", 'x required password="p";', "***"),
        ("fs.s3a.secret.key", "abc", "***"),
        ("auth_token", 5, "***"),
        ("password", "${env:PASSWORD}", "${env:PASSWORD}"),
        ("path", "out/", "out/"),
        ("mergeSchema", True, True),
        ("url", "jdbc:postgresql://ada:hunter2@db/x", "jdbc:postgresql://ada:***@db/x"),
    ],
)
def test_what_is_shown_is_never_a_secret(name: str, value: object, seen: object) -> None:
    assert shown(name, value) == seen


# -- for editors ----------------------------------------------------------------------------------


def test_json_schema_knows_every_field_in_both_spellings_and_every_stage() -> None:
    schema = json_schema()
    json.dumps(schema)
    eventtime = schema["$defs"]["EventtimeOptions"]
    assert {"lateTolerance", "late_tolerance", "enabled"} <= set(eventtime["properties"])
    assert eventtime["additionalProperties"] is False
    assert eventtime["properties"]["late"]["enum"] == ["side_output", "drop"]
    assert "How far behind" in eventtime["properties"]["lateTolerance"]["description"]
    source = schema["$defs"]["SourceDefinition"]["properties"]
    assert {"format", "path", "options", "schema"} <= set(source)
    named, folded = schema["$defs"]["StageDefinition"]["anyOf"]
    assert {"batch", "compact", "synchronize", "window"} <= set(named["enum"])
    stages = folded["properties"]
    assert {"topics", "maxInterval", "max_interval"} <= set(stages["synchronize"]["properties"])
    assert {"tumbling", "lookBack", "aggregates"} <= set(stages["window"]["properties"])


def test_json_schema_takes_what_the_model_takes() -> None:
    """Every name in the example above is a property where it stands."""
    schema = json_schema()

    def resolve_ref(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in node:
            return resolve_ref(schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
        inner = [*node.get("anyOf", ()), *node.get("allOf", ())]
        return [found for each in inner for found in resolve_ref(each)] or [node]

    def check(value: Any, node: dict[str, Any], path: str) -> None:
        options = resolve_ref(node)
        if isinstance(value, dict):
            for name, inner in value.items():
                found = [o["properties"][name] for o in options if name in o.get("properties", {})]
                found += [o["additionalProperties"] for o in options
                          if isinstance(o.get("additionalProperties"), dict)]  # fmt: skip
                assert found, f"{path}.{name}"
                check(inner, found[0], f"{path}.{name}")

    check({k: v for k, v in yaml.safe_load(WHOLE).items() if k != "stages"}, schema, "")
