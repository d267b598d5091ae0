"""What counting and hashing every row for `tidegate audit` costs a step, as a share of its CPU.

    python benchmarks/audit.py

Runs the step of one shard over a recorded fleet, with and without tallies, in turns in one process,
and prints the CPU of each and the difference.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import pyarrow as pa

from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.tally import audited_columns
from tidegate.spark.arrival import Packed
from tidegate.spark.pack import to_blob
from tidegate.spark.stateful_step import FlowRecipe, packed_rows, run_shard
from tidegate.sync import Synchronize
from tidegate.testing.fleet import fleet

ROUNDS = 7


def make() -> Flow:
    stages = (
        EventtimeWatermark("200 ms"),
        Synchronize(("lidar", "camera", "gps", "imu"), queue_size=10),
    )
    return Flow(stages, key="vehicle", timed=True)


def main() -> None:
    table = fleet(vehicles=20, seconds=60, seed=1, payload_bytes=64).combine_chunks()
    rows = table.to_batches()[0]
    stamp = pa.compute.cast(rows.column("log_time"), pa.int64())
    timed = rows.append_column(TIME, stamp)
    schema = rows.schema
    columns = audited_columns(schema, {"data": schema, "late": schema})
    packed = [
        Packed("data", 0, number, 0, "", 0, to_blob(timed.slice(at, 10_000)).as_py())
        for number, at in enumerate(range(0, timed.num_rows, 10_000))
    ]

    def run(audited: dict[str, Any]) -> float:
        flow, recipe = make(), FlowRecipe(make)
        began = time.process_time()
        for one in packed:
            made = run_shard(recipe, flow, [one], 0)
            for _ in packed_rows(0, made, flow, audited=audited):
                pass
        return time.process_time() - began

    for audited in ({}, columns):
        run(audited)
    plain, with_tallies = [], []
    for _ in range(ROUNDS):
        plain.append(run({}))
        with_tallies.append(run(columns))
    before, after = statistics.median(plain), statistics.median(with_tallies)
    share = (after - before) / after
    print(f"{timed.num_rows:,} rows, hashed by {', '.join(columns['in'])}")
    print(f"without {before * 1e9 / timed.num_rows:.0f} ns of CPU per row, with "
          f"{after * 1e9 / timed.num_rows:.0f} ns: {share:.1%} of the step")  # fmt: skip


if __name__ == "__main__":
    main()
