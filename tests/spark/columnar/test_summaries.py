"""What a run through gate 1 says adds up, behind several stages: any recording, cut into any files
and slices, with late, broken and unmatched rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tidegate.output.commit import CommitLog
from tidegate.output.summary import Summary
from tidegate.spark import Frames, frames, read
from tidegate.spark.columnar.gate import Payload
from tidegate.windows import Tumbling

Message = tuple[str, str, int | None]


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["k0", "k1", "k2"]),
        st.sampled_from("abx"),
        st.none() | st.integers(0, 59),
    ),
    min_size=1,
    max_size=120,
)
"""Of three keys, some without a time, some of a topic that sets do not have."""


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
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=MESSAGES,
    files=st.integers(1, 4),
    size=st.integers(5, 20),
    nbytes=st.sampled_from([500, 2000, 100_000]),
    stages=st.sampled_from(["windows", "sets", "sets, windows"]),
    payload=st.sampled_from(["carried", "addressed"]),
    format=st.sampled_from(["json", "csv", "parquet"]),
)
def test_every_row_is_in_one_place(
    spark: SparkSession, rows: list[Message], files: int, size: int, nbytes: int, stages: str,
    payload: Payload, format: str,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        check_run(spark, Path(folder), rows, files, size, nbytes, stages, payload, format)


def check_run(
    spark: SparkSession, folder: Path, rows: list[Message], files: int, size: int, nbytes: int,
    stages: str, payload: Payload, format: str,
) -> None:  # fmt: skip
    """Run a recording through gate 1, and add up what its commits and its summary say."""
    source, out = folder / "in", str(folder / "out")
    source.mkdir()
    schema = pa.schema([("key", pa.string()), ("topic", pa.string()), ("t", pa.int64())])
    for number in range(files):
        some = [dict(zip(schema.names, row, strict=True)) for row in rows[number::files]]
        table = pa.Table.from_pylist(some, schema=schema)
        table = table.append_column("body", pa.array([f"{n}" * 90 for n in range(len(some))]))
        put(table, source / f"{number}.{format}", size)
    ddl = "key string, topic string, t bigint, body string"
    options = {"maxBytesPerTrigger": str(nbytes)}
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
