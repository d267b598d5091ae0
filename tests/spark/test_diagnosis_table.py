"""The diagnosis of every key on Spark: a side table of the run, and on its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark.recordings import ordered
from tidegate.batching import Batch
from tidegate.core.flow import Flow
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.output.reader import open_run
from tidegate.report.health import health_of
from tidegate.report.page import page_text
from tidegate.report.roles import Roles
from tidegate.report.rows import gather_messages
from tidegate.spark.control_rows import apply_control
from tidegate.spark.pack import to_blob
from tidegate.spark.query import run_batch_job

MS = 1_000_000


def test_the_silent_topic_of_a_key_is_named_in_the_table_and_on_the_page(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        (n, car, topic, 10**15 + 100 * n * MS + k * MS)
        for n in range(300)
        for k, topic in enumerate(("camera", "lidar", "gps"))
        for car in ("good", "bad")
        if not (car == "bad" and topic == "lidar" and n > 100)
    ]
    numbers, cars, topics, stamps = zip(*rows, strict=True)
    table = pa.table({"n": numbers, "vehicle": cars, "topic": topics, "stamp": stamps})
    pq.write_table(table, tmp_path / "in.parquet")
    opened = ordered(
        spark.read.parquet(str(tmp_path / "in.parquet")), "10 s", topic="topic", arrival="n"
    ).synchronize(["camera", "lidar", "gps"], queue_size=5, diagnosis=True)
    run_batch_job(opened, str(tmp_path / "out"))
    run = open_run(str(tmp_path / "out"))
    messages = gather_messages(run, Roles())
    found = health_of(run, messages)["diagnosis"]
    (bad, *_) = found["rows"]
    assert (bad["key"], bad["topic"]) == ("bad", "lidar")
    assert "lidar" in bad["text"]
    assert found["keys"] == 2
    assert found["healthy"] == 1
    assert "Diagnosis of sets" in page_text(run, messages)


def test_a_control_row_holds_from_its_own_event_time() -> None:
    decoder = Decoder((TimeColumn("stamp", "unixtimestamp_ns"),))

    def ends(control: dict[str, object] | None) -> list[int]:
        flow = Flow([Batch("1 s", timeout=1.2)], key="car", decoder=decoder)
        stamps = np.arange(0, 8 * 10**9, 10**8)
        rows = pa.record_batch({"car": ["a"] * len(stamps), "topic": ["t"] * len(stamps),
                                "stamp": stamps})  # fmt: skip
        out = flow.process(rows.slice(0, 15))
        if control is not None:
            batch = pa.record_batch(
                {
                    "name": ["batch_length"],
                    "value": ["2 s"],
                    "car": pa.array([None], pa.string()),
                    **{k: pa.array([v], pa.int64()) for k, v in control.items()},
                }
            )
            out += apply_control(flow, to_blob(batch))
        out += flow.process(rows.slice(15))
        out += flow.end()
        sides = [one for one in out if one.kind == "batch"]
        return [row["batch_end_ns"] for one in sides for row in one.rows.to_pylist()]

    own = ends({"stamp": 5 * 10**9})
    assert own == ends({"time_ns": 5 * 10**9})
    assert own not in (ends(None), ends({"time_ns": None}))
