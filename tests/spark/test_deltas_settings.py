"""Every setting, strategy and operation of the compact stage runs on Spark, in batch, as a stream
and from YAML, and gives what it gives in process. The settings come from the class and the
registries: a new one without a case fails."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, count, in_process, run_now, written
from tidegate.core.checks import snake
from tidegate.deltas import (
    Adaptive,
    Add,
    Affine,
    Compact,
    Create,
    Delete,
    Dense,
    FullMerge,
    Offset,
    Operation,
    Scale,
    Sparse,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
)
from tidegate.deltas.operations import OPERATIONS, rows_from
from tidegate.deltas.strategies import STRATEGIES
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.open import open_pipeline
from tidegate.spark.query import run_batch_job

DIMS = 4
FILES = 3

CASES: dict[str, dict[str, Any]] = {
    "full merge": {
        "strategy": FullMerge(), "delta_threshold": 5, "time_threshold": None, "remember": "150 ms",
    },
    "tiered merge": {
        "strategy": TieredMerge(3), "delta_threshold": 9, "max_chain_length": 12,
        "retention": "40 ms", "time_threshold": "1 h",
    },
    "time boundary": {
        "strategy": TimeBoundary("20 ms"), "delta_threshold": 6, "parent_wait": "30 ms",
        "max_waiting": 1, "time_column": "made_at", "time_threshold": None,
    },
    "adaptive": {
        "strategy": Adaptive(2), "delta_threshold": 4, "time_threshold": None,
    },
}  # fmt: skip

IN_YAML: dict[str, dict[str, Any]] = {
    "full merge": {
        "strategy": "fullMerge", "deltaThreshold": 5, "timeThreshold": None, "remember": "150 ms",
    },
    "tiered merge": {
        "strategy": {"tieredMerge": {"keepRecent": 3}}, "deltaThreshold": 9, "maxChainLength": 12,
        "retention": "40 ms", "timeThreshold": "1 h",
    },
    "time boundary": {
        "strategy": {"timeBoundary": {"interval": "20 ms"}}, "deltaThreshold": 6,
        "parentWait": "30 ms", "maxWaiting": 1, "timeColumn": "made_at", "timeThreshold": None,
    },
    "adaptive": {
        "strategy": {"adaptive": {"keepRecent": 2}}, "deltaThreshold": 4, "timeThreshold": None,
    },
}  # fmt: skip

SAMPLES: dict[str, Operation] = {
    "create": Create([1.0, 2.0, 3.0, 4.0]),
    "dense": Dense([4.0, 3.0, 2.0, 1.0]),
    "sparse": Sparse([1, 3], [5.0, 6.0]),
    "add": Add([1.0, 2.0], [0, 3]),
    "scale": Scale(0.5),
    "offset": Offset(1.0),
    "delete": Delete(),
    "affine": Affine(2.0, 1.0, [2], [0.5], [3.0]),
}


def deltas() -> list[VectorDelta]:
    """Each operation many times, a millisecond apart; some name a parent, a few of them one that
    never comes, and some come twice."""
    rng = np.random.default_rng(6)
    operations = list(SAMPLES.values())
    out = []
    for n in range(240):
        vector = n % 5
        which = 0 if n < 5 else int(rng.integers(len(operations)))
        parent = f"d{n - 5}" if n >= 5 and rng.random() < 0.3 else None
        if n % 37 == 36:
            parent = f"missing{n}"
        name = f"d{n - 5}" if n % 41 == 40 else f"d{n}"
        out.append(VectorDelta(name, f"v{vector}", operations[which], n * 1_000_000, parent))
    return out


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[pa.Table]]:
    """The deltas as they arrive, up to 5 ms out of order, in a few files."""
    rows = pa.Table.from_batches([rows_from(deltas())])
    arrived = np.argsort(np.arange(len(rows)) + np.random.default_rng(5).integers(0, 6, len(rows)))
    rows = rows.take(pa.array(arrived))
    shard = [int(name[1:]) % 3 for name in rows.column("vector_id").to_pylist()]
    rows = rows.rename_columns({"time_ns": "made_at"}).append_column("shard", pa.array(shard))
    rows = rows.append_column("arrival", pa.array(np.arange(len(rows))))
    step = -(-len(rows) // FILES)
    out = [rows.slice(first, step) for first in range(0, len(rows), step)]
    folder = tmp_path_factory.mktemp("deltas")
    for number, part in enumerate(out):
        add_file(part, folder, number)
    return folder, out


def definition(name: str, folder: Path, out: Path, mode: str) -> PipelineDefinition:
    """The case as a pipeline file: every JSON text is a YAML text."""
    options = {"maxFilesPerTrigger": 1} if mode == "streaming" else {}
    source = {"format": "parquet", "path": str(folder), "options": options}
    stream = {
        "source": source, "key": "shard", "arrival": "arrival",
        "eventtime": {"column": "made_at", "type": "unixtimestamp_ns"},
    }  # fmt: skip
    document = {
        "name": "deltas",
        "streams": {"deltas": stream},
        "options": {
            "mode": mode, "shards": 2,
            "eventtime": {"enabled": True, "lateTolerance": "20 ms", "watermarkPer": "tuple"},
        },
        "stages": [{"compact": {"dims": DIMS, **IN_YAML[name]}}],
        "sink": {"path": str(out)},
    }  # fmt: skip
    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(document))
    return PipelineDefinition.load(file)


def test_every_setting_strategy_and_operation_is_in_a_case() -> None:
    set_by_pipelines = {"keys"}
    given = {"dims"}
    strategies: dict[str, set[str]] = {}
    for case in CASES.values():
        given |= {name for name in case if case[name] != getattr(Compact(DIMS), name)}
        strategy = case["strategy"]
        strategies[strategy.name] = {field.name for field in fields(strategy) if field.init}
    assert {field.name for field in fields(Compact) if field.init} - set_by_pipelines == given
    assert strategies == {
        name: {field.name for field in fields(kind) if field.init}
        for name, kind in STRATEGIES.items()
    }
    assert {name: type(each) for name, each in SAMPLES.items()} == OPERATIONS
    assert {type(delta.operation) for delta in deltas()} == set(OPERATIONS.values())


@pytest.mark.parametrize("name", CASES)
def test_yaml_is_the_same_stage(name: str) -> None:
    made = Compact(DIMS, **{snake(key): value for key, value in IN_YAML[name].items()})
    assert made.settings() == Compact(DIMS, **CASES[name]).settings()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_in_process_batch_and_stream_agree(
    name: str, spark: SparkSession, parts: tuple[Path, list[pa.Table]], tmp_path: Path
) -> None:
    folder, tables = parts
    for mode in ("batch", "streaming"):
        streaming = mode == "streaming"
        out = tmp_path / mode
        _, pipeline = open_pipeline(spark, definition(name, folder, out, mode), streaming=streaming)
        planned = next(stage for stage in pipeline.stages if isinstance(stage, Compact))
        assert planned.settings() == Compact(DIMS, keys="shard", **CASES[name]).settings()
        if streaming:
            run_now(pipeline, out)
        else:
            run_batch_job(pipeline, str(out))
        ours = written(out, pipeline)
        assert_same(ours, in_process(pipeline, tables, end=not streaming))
        assert count(ours["compactions"]) > 3
        assert {"dropped", "error"} & {*ours}
