"""Runs pipelines on a Spark Connect server, as its client; started by `test_connect.py`.

A process of its own: pyspark decides once per process whether it is a client. Prints one JSON
object: what was equal to the same pipeline in process, and what a second run was told.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from spark.outcomes import in_process, written
from spark.recordings import ordered, stream_of
from tidegate.errors import ConfigError
from tidegate.spark import read, session
from tidegate.spark.query import start
from tidegate.spark.runner import run_frames


def main(address: str, folder: Path, out: Path) -> dict[str, Any]:
    spark = session(address)
    parts = [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    equal: dict[str, bool] = {}

    # gate 2, a stream: foreachBatch runs on the server
    stream = ordered(stream_of(spark, folder, files=2))
    query = start(stream, str(out / "stream"))
    try:
        start(stream, str(out / "stream"))
        told = ""
    except ConfigError as error:  # the client holds the lease for the server
        told = str(error)
    query.awaitTermination()
    equal["stream"] = written(out / "stream", stream) == in_process(stream, parts, end=False)

    # gate 1, a backfill with a summary: the client reads the records of the server
    backfill = ordered(read(str(folder), spark=spark))
    done = run_frames(backfill, str(out / "backfill"), console=Console(file=io.StringIO()))
    expected = in_process(backfill, [pa.concat_tables(parts)])
    equal["backfill"] = written(out / "backfill", backfill) == expected
    equal["summary"] = done.rows_in == sum(len(part) for part in parts)

    # a DataFrame of a batch
    rows = sum(len(of_key) for of_key in expected["data"].values())
    equal["batch"] = ordered(spark.read.parquet(str(folder))).data.count() == rows
    spark.stop()
    return {"equal": equal, "told": told}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
