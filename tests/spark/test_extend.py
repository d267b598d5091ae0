"""A source and a sink from outside the package, by the public hooks alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.pipeline import PipelineDefinition, definition, formats
from tidegate.spark import Source, SourceRequest, register_sink, register_source
from tidegate.spark.runner import run_definition
from tidegate.spark.sinks import SINKS, SinkRequest, SinkSettings, open_sink
from tidegate.spark.sources import SOURCES


class Counting(Source):
    """Rows that count: option `rows` says how many."""

    def open(self, spark: SparkSession, request: SourceRequest) -> DataFrame:
        return spark.range(int(request.options["rows"])).withColumnRenamed("id", "stamp")


class Remember:
    """Keeps the number of rows per kind."""

    seen: dict[str, int]

    def __init__(self, request: SinkRequest) -> None:
        request.check_options("label")
        self.seen = SEEN.setdefault(request.options["label"], {})

    def check_unused(self) -> None:
        if self.seen:
            raise ConfigError("sink.options.label", "", "is used")

    def write(self, outcomes: DataFrame, batch: int, query: str) -> Commit:
        for row in outcomes.collect():
            if row.blob is not None:
                self.seen[row.kind] = self.seen.get(row.kind, 0) + row.rows
        return Commit(batch, query, self.seen)


SEEN: dict[str, dict[str, int]] = {}

YAML = """
streams:
  s:
    source: {{format: counting, options: {{rows: 40}}}}
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options: {{eventtime: {{enabled: true, lateTolerance: 1}}}}
sink: {{format: remember, path: {out}, options: {{label: {label}}}}}
"""


@pytest.fixture
def extended() -> Any:
    register_source("counting", Counting())
    register_sink("remember", Remember)
    yield
    del SOURCES["counting"], SINKS["remember"]
    del formats.SOURCES["counting"], formats.SINKS["remember"]
    definition.SINK_FORMATS.remove("remember")


def test_a_definition_uses_both(extended: Any, spark: SparkSession, tmp_path: Path) -> None:
    text = YAML.format(out=tmp_path, label="mine")
    run_definition(PipelineDefinition.from_yaml(text), console=Console(quiet=True))
    assert SEEN["mine"] == {"data": 40}
    with pytest.raises(ConfigError, match="is used"):
        run_definition(PipelineDefinition.from_yaml(text), console=Console(quiet=True))


def test_names_are_not_taken_twice(extended: Any) -> None:
    with pytest.raises(ConfigError, match="is taken; give replace=True"):
        register_sink("remember", Remember)
    with pytest.raises(ConfigError, match="is taken; give replace=True"):
        register_source("mcap", Counting())
    register_source("counting", Counting(), replace=True)


def test_a_wrong_option_is_said_before_anything_runs(extended: Any) -> None:
    with pytest.raises(ConfigError, match=r"sink\.options\.colour: got 'red', allowed are label"):
        open_sink(SinkSettings("remember", {"colour": "red"}), "out", {})


def test_without_registration_it_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink\.format: got 'remember', must be one of parquet"):
        PipelineDefinition.from_yaml(YAML.format(out=tmp_path, label="x"))
