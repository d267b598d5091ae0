"""Fuzzers for pipeline files: whatever the text, a ConfigError or a definition comes out, soon.

Three generators: bytes that look like YAML, YAML built from a grammar of its own tricks (anchors,
merge keys, tags), and a whole definition in which some values are replaced. The number of inputs is
`TIDEGATE_FUZZ` times 1 (a few seconds) in the tests; `make faults` raises it.
"""

from __future__ import annotations

import copy
import json
import os
import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, explain, explain_json, json_schema, plan
from tidegate.pipeline.formats import sink_options, source_settings
from tidegate.pipeline.run_record import record_text
from tidegate.pipeline.secrets import show_text, shown
from tidegate.pipeline.security import resolve_path

TIMES = int(os.environ.get("TIDEGATE_FUZZ", "1"))
SLOWEST_S = 10.0

fuzz = settings(max_examples=300 * TIMES, deadline=None, suppress_health_check=list(HealthCheck))

WHOLE: dict[str, Any] = {
    "name": "fleet",
    "dataset": {
        "format": "lerobot", "path": "dataset/", "images": "video", "fps": 30,
        "features": {"observation.state": "joint.position"}, "task": "pick up the cup",
    },
    "streams": {
        "fleet": {
            "source": {
                "format": "parquet",
                "path": "recording/",
                "options": {"mergeSchema": True},
                "schema": "vehicle string",
            },
            "columns": ["vehicle", "topic", "stamp", "log_time"],
            "key": "vehicle",
            "topic": "topic",
            "arrival": ["log_time"],
            "eventtime": {"column": "stamp", "type": "unixtimestamp_ns"},
        },
    },
    "options": {
        "eventtime": {
            "enabled": True, "lateTolerance": "200 ms", "late": "side_output",
            "maxFutureSkew": "1 h", "idleTimeout": "30 s", "watermarkPer": "tuple",
        },
        "processtime": {"interval": "1 s", "offset": 5},
        "mode": "streaming", "trigger": "1 s", "checkpoint": "state/", "shards": 4, "forget": "1 d",
    },
    "stages": [
        {"synchronize": {"topics": ["camera", "lidar"], "queueSize": 10,
                         "lowerBounds": {"camera": "1 ms"}}},
        {"batch": {"length": "1 s", "gated": ["det"]}},
        {"window": {"sliding": {"size": "10 s", "step": "5 s"},
                    "trigger": {"any": [{"count": 100}, {"time": "50 ms"}]},
                    "late": {"reemit": {"maxLateness": "5 s"}},
                    "aggregates": {"n": "count", "m": ["mean", "value"]}, "groupBy": ["topic"]}},
        {"compact": {"dims": 3}},
    ],
    "sink": {"format": "parquet", "path": "out/", "options": {"compression": "zstd"}},
}  # fmt: skip

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=30),
    st.sampled_from(
        ["", " ", "1 s", "-1 s", "1e9 s", "10 minutes", "${env:HOME}", "${file:/etc/passwd}", 
         "${x:y}",
         "count", "tumbling", "__tidegate_lane", "a.b", "../..", "file:/x", "s3://a:b@c?d#e", "\0",
         "\ud800", "٣", "<script>", "unixtimestamp_ns", "available_now", "kafka", "jdbc", "=", "<<"]
    ),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=8,
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the leaves and what is around them."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found += paths_of(inner, (*path, key))
    return found


PATHS = paths_of(WHOLE)


def replaced(document: Any, path: tuple[Any, ...], value: Any, how: str) -> Any:
    made = copy.deepcopy(document)
    here = made
    for part in path[:-1]:
        here = here[part]
    if how == "remove":
        here.pop(path[-1]) if isinstance(here, list) else here.pop(path[-1], None)
    elif how == "rename" and isinstance(here, dict):
        here[str(value)] = here.pop(path[-1])
    else:
        here[path[-1]] = value
    return made


def use(definition: PipelineDefinition) -> None:
    """Everything that is done with a definition before Spark starts. Only ConfigErrors come out."""
    text = record_text(definition)
    json.loads(text)
    with definition.located():
        for name, stream in definition.streams.items():
            if stream.source is not None:
                with suppress(ConfigError):
                    source_settings(stream.source, f"streams.{name}.source")
        if definition.sink is not None:
            sink_options(definition.sink)
    made = plan(definition)
    explain(made)
    json.dumps(explain_json(made))
    made.schema(pa.schema({"vehicle": pa.string(), "topic": pa.string(), "stamp": pa.int64(),
                           "log_time": pa.int64(), "value": pa.float64()}))  # fmt: skip


def check(text: str) -> None:
    began = time.monotonic()
    with suppress(ConfigError):
        use(PipelineDefinition.from_yaml(text))
    assert time.monotonic() - began < SLOWEST_S


@fuzz
@given(st.sampled_from(PATHS), values, st.sampled_from(["replace", "remove", "rename"]), st.data())
def test_a_definition_with_some_values_replaced(
    path: tuple[Any, ...], value: Any, how: str, data: st.DataObject
) -> None:
    document = replaced(WHOLE, path, value, how)
    left = paths_of(document)
    if left and data.draw(st.booleans()):
        second = data.draw(st.sampled_from(left))
        document = replaced(document, second, data.draw(values), "replace")
    began = time.monotonic()
    with suppress(ConfigError):
        use(PipelineDefinition.of(document))
    assert time.monotonic() - began < SLOWEST_S
    try:
        text = yaml.safe_dump(document)
    except (yaml.YAMLError, UnicodeError):
        return
    check(text)


words = st.sampled_from(
    ["a", "b", "streams", "options", "stages", "&x", "*x", "<<", ":", ": ", "- ", "? ", "[", "]",
     "{",
     "}", ",", "\n", "\n  ", "\n    ", "'", '"', "|", ">", "!!int ", "!!set ", "!!binary ",
     "!!map ",
     "!!python/object:x ", 
     "%YAML 1.1\n", "---\n", "...\n", "#", "\t", "1", "1.5", "2026-99-99",
     "0x", "1e999", "~", "\x85", "\u2028", "\ufeff", "é"]
)  # fmt: skip


@fuzz
@given(st.lists(words, max_size=60).map("".join))
def test_text_that_looks_like_yaml(text: str) -> None:
    check(text)


@fuzz
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    check(text)


@fuzz
@given(st.binary(max_size=300))
def test_any_bytes_in_a_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        PipelineDefinition.load(file)


@settings(max_examples=60 * TIMES, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.integers(0, 3))
def test_bombs_of_any_shape(levels: int, width: int, merge: bool, spare: int) -> None:
    lines = ["a0: &a0 {k: 1, l: 2}" if merge else "a0: &a0 [x, x]"]
    for n in range(1, levels):
        inner = ",".join([f"*a{n - 1}"] * width)
        lines.append(
            f"a{n}: &a{n} {{<<: [{inner}], m{n}: 1}}" if merge else f"a{n}: &a{n} [{inner}]"
        )
    lines += [f"z{n}: *a{levels - 1}" for n in range(spare)]
    check("\n".join(lines))


@fuzz
@given(st.text(max_size=60))
def test_paths_stay_inside_the_roots(path: str) -> None:
    env = {"TIDEGATE_ROOTS": "/srv/data"}
    for pattern in (False, True):
        try:
            found = resolve_path(path, "path", env, pattern=pattern)
        except ConfigError:
            continue
        assert found == "/srv/data" or found.startswith("/srv/data/")
        assert ".." not in found.split("/")


@fuzz
@given(
    st.sampled_from(["{}", "x {} y", "s3a://u:{}@h/p", "https://h/p?a={}", "pwd={};x=1", 
                     "https://{}@h",
                     "jdbc:x://h;password={}",
                     "Authorization: Basic {}", "${{env:A}}{}${{env:B}}"]),
    st.from_regex(r"[A-Za-z0-9]{12}", fullmatch=True),
)  # fmt: skip
def test_secrets_in_any_dress_are_hidden(dress: str, secret: str) -> None:
    text = dress.format(secret)
    assert secret not in str(shown("sasl.password", text))
    if dress not in ("{}", "x {} y", "${{env:A}}{}${{env:B}}"):
        assert secret not in str(show_text(text))


def test_the_json_schema_holds_for_what_is_accepted() -> None:
    """Every field that the models know is in the schema that editors use."""
    assert set(json_schema()["properties"]) == set(WHOLE)
