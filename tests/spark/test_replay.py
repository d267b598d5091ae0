"""Late and error tables are fed back into a pipeline, as docs/tutorials/what-was-late.md shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tidegate as tg
from tidegate.core.outcomes import Collection, Late, StreamError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.spark import frames

ROWS = {
    "vehicle": ["a", "a", "b", "a", "b", "a"],
    "stamp": ["5", "9", "20", "1", "broken", "30"],  # the fourth is late, the fifth unreadable
    "n": [0, 1, 2, 3, 4, 5],
}


def test_late_and_repaired_rows_are_replayed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table(ROWS)
    pq.write_table(table, tmp_path / "in" / "rows.parquet")
    df = spark.read.parquet(str(tmp_path / "in"))
    out = str(tmp_path / "out")
    frames(df, key="vehicle", time="stamp", arrival="n").event_time("unixtimestamp_s", "2 s").write(
        out
    )

    def read(kind: str):  # type: ignore[no-untyped-def]
        return spark.read.parquet(f"{out}/{kind}").select(*df.columns)

    repaired = read("error").withColumn("stamp", F.regexp_replace("stamp", "broken", "21"))
    again = read("data").union(read("late")).union(repaired)
    # In order of time there is nothing to wait for: the order of arrival is that of the stamps.
    seconds = again.withColumn("second", F.col("stamp").cast("long"))
    made = frames(seconds, key="vehicle", time="stamp", arrival=["second", "n"]).event_time(
        "unixtimestamp_s"
    )
    assert made.write(str(tmp_path / "again")).rows == {"data": 6}
    found = pq.read_table(tmp_path / "again" / "data", partitioning=None).to_pylist()
    ours = {car: [row["n"] for row in found if row["vehicle"] == car] for car in "ab"}
    assert ours == {"a": [3, 0, 1, 5], "b": [2, 4]}


def test_a_table_with_our_columns_can_be_an_input_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`time_ns` and `lateness_ns` of the late table are then columns like any other."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(ROWS).slice(0, 4), tmp_path / "in" / "rows.parquet")
    df = spark.read.parquet(str(tmp_path / "in"))
    made = frames(df, key="vehicle", time="stamp", arrival="n").event_time("unixtimestamp_s", "2 s")
    late = made.late
    again = frames(late, key="vehicle", time="time_ns", arrival="n").event_time("unixtimestamp_ns")
    (row,) = again.data.collect()
    assert (row["n"], row["time_ns"], row["lateness_ns"]) == (3, 10**9, 6 * 10**9)


def test_the_same_in_process() -> None:
    decoder = Decoder((TimeColumn("stamp", "unixtimestamp_s"),))
    flow = tg.Flow([EventtimeWatermark("2 s")], key="vehicle", decoder=decoder)
    batch = pa.RecordBatch.from_pydict(ROWS)
    out = flow.process(batch) + flow.end()
    back = [o.rows for o in out if isinstance(o, Late | StreamError)]
    rows = pa.Table.from_batches([o.rows for o in out if isinstance(o, Collection)] + back)
    fixed = ["21" if stamp == "broken" else stamp for stamp in rows["stamp"].to_pylist()]
    rows = rows.set_column(1, "stamp", pa.array(fixed))
    order = sorted(range(len(rows)), key=lambda k: int(fixed[k]))
    again = tg.Flow([EventtimeWatermark("0 s")], key="vehicle", decoder=decoder)
    (whole,) = rows.take(order).combine_chunks().to_batches()
    done = again.process(whole) + again.end()
    assert sum(len(o) for o in done if o.kind == "data") == 6
    assert not [o for o in done if o.kind in ("late", "error")]
