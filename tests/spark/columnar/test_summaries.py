"""What a run through gate 1 says adds up, behind several stages: random recordings, cut into files
and slices at random, with late, broken and unmatched rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.output.commit import CommitLog
from tidegate.output.summary import Summary
from tidegate.spark import Frames, frames, read
from tidegate.spark.columnar.gate import Payload
from tidegate.windows import Tumbling

Message = tuple[str, str, int | None]


def messages(rng: random.Random) -> list[Message]:
    """Of three keys, some without a time, some of a topic that sets do not have."""
    times = [rng.choice([None, *range(60)]) for _ in range(rng.randint(60, 120))]
    return [(rng.choice(["k0", "k1", "k2"]), rng.choice("abx"), t) for t in times]


def put(table: pa.Table, file: Path, size: int) -> None:
    """Write a file of a recording; `size` is the rows of a row group."""
    if file.suffix == ".parquet":
        pq.write_table(table, file, row_group_size=size)
    elif file.suffix == ".csv":
        rows = (["" if value is None else str(value) for value in row.values()]
                for row in table.to_pylist())  # fmt: skip
        file.write_text("".join(",".join(row) + "\n" for row in rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def staged(rows: Frames, stages: str) -> Frames:
    """One to three stages behind event time."""
    made = rows.event_time("unixtimestamp_s", "5 s")
    if stages == "windows":
        return made.window(Tumbling("10 s"), aggregates={"n": "count"})
    made = made.synchronize(["a", "b"], queue_size=3)
    if stages == "sets, windows":
        return made.window(Tumbling("20 s"), aggregates={"n": "count"})
    return made


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("stages", "payload", "format", "seed"),
    [("windows", "carried", "json", 1), ("sets", "addressed", "csv", 2),
     ("sets, windows", "carried", "parquet", 3)],
)  # fmt: skip
def test_every_row_is_in_one_place(
    spark: SparkSession, tmp_path: Path, stages: str, payload: Payload, format: str, seed: int
) -> None:
    rng = random.Random(seed)
    rows, files = messages(rng), rng.randint(2, 4)
    source, out = tmp_path / "in", str(tmp_path / "out")
    source.mkdir()
    schema = pa.schema([("key", pa.string()), ("topic", pa.string()), ("t", pa.int64())])
    for number in range(files):
        some = [dict(zip(schema.names, row, strict=True)) for row in rows[number::files]]
        table = pa.Table.from_pylist(some, schema=schema)
        table = table.append_column("body", pa.array([f"{n}" * 90 for n in range(len(some))]))
        put(table, source / f"{number}.{format}", rng.randint(5, 20))
    ddl = "key string, topic string, t bigint, body string"
    options = {"maxBytesPerTrigger": "2000"}
    opened = read(str(source), format, schema=ddl, options=options, spark=spark)
    made = staged(frames(opened, key="key", time="t", topic="topic", payload=payload), stages)
    assert not made.gate().startswith("rows come through Spark")
    made.write(out)
    commits = list(CommitLog.at(out))
    summary = Summary.of(out, commits)
    counted: dict[str, int] = {}
    for commit in commits:
        for kind, count in commit.rows.items():
            counted[kind] = counted.get(kind, 0) + count
    assert summary.rows == counted
    assert summary.rows_in == len(rows)
    assert summary.errors == sum(t is None for _, _, t in rows) == counted.get("error", 0)
    places = (summary.used, summary.late, summary.errors, summary.dropped, summary.discarded,
              summary.held)  # fmt: skip
    assert sum(places) == len(rows)
    assert min(places) >= 0
    assert summary.held == 0
    if stages == "sets":
        assert summary.used == 2 * counted.get("data", 0)
