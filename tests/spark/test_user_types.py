"""Event-time types of a user's own: the same rows in process, in a batch, in a stream, from a
pipeline file and by the command line's variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.user_types import TYPES
from tidegate.spark import Frames, frames, read
from tidegate.spark.open import open_pipeline

COUNTS = [40, 10, None, 30, 20, 100]


def halves(column: Any) -> Any:
    """Counts of half seconds, as a timestamp of milliseconds."""
    return pc.multiply(column, 500).cast(pa.timestamp("ms"))


def register(types: tg.EventtimeTypes) -> None:
    """What `--types` names."""
    types.register("half_seconds", halves)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    table = pa.table({"half": pa.array(COUNTS, pa.int64()), "n": range(len(COUNTS))})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    return tmp_path


def times(made: Frames) -> tuple[list[int], list[int], int]:
    late = sorted(row["time_ns"] for row in made.late.collect())
    return [row["time_ns"] for row in made.data.collect()], late, made.errors.count()


def test_one_type_in_every_mode(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = tg.EventtimeTypes()
    register(types)
    source = str(folder / "in")
    flow = tg.Flow(
        [tg.EventtimeWatermark("5 s")],
        decoder=tg.Decoder((tg.TimeColumn("half", "half_seconds"),), types),
    )
    kinds: dict[str, list[int]] = {"data": [], "late": [], "error": []}
    for outcome in flow.process(pq.read_table(source)) + flow.end():
        if outcome.kind in ("data", "late"):
            kinds[outcome.kind] += outcome.time_ns.tolist()
        elif outcome.kind == "error":
            kinds["error"] += [0] * len(outcome)
    expected = (kinds["data"], sorted(kinds["late"]), len(kinds["error"]))
    second = 10**9
    assert expected == ([20 * second, 50 * second], [5 * second, 10 * second, 15 * second], 1)

    settings: dict[str, Any] = {"time": "half", "types": types}
    batch = frames(spark.read.parquet(source), **settings)
    gate = frames(read(source, spark=spark), **settings)
    for made in (batch, gate):
        assert times(made.event_time("half_seconds", "5 s")) == expected
    stream = frames(read(source, streaming=True, spark=spark), **settings)
    out = folder / "out"
    stream.event_time("half_seconds", "5 s").write(str(out)).awaitTermination()
    late = pq.read_table(out / "late", partitioning=None).column("time_ns").to_pylist()
    assert sorted(late) == expected[1]

    # Workers unpickle the function by its module, so the tests' folder is on their path.
    monkeypatch.setenv(TYPES, f"{__name__}:register")
    definition = PipelineDefinition.of({
        "streams": {"s": {"source": {"format": "parquet", "path": source},
                          "eventtime": {"column": "half", "type": "half_seconds"}}},
        "options": {"mode": "batch", "eventtime": {"enabled": True, "lateTolerance": "5 s"}},
    })  # fmt: skip
    assert times(open_pipeline(spark, definition, streaming=False)[1]) == expected
