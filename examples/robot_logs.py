"""Robot logs: from a recording with troubles to sets of camera, lidar and gps.

    python examples/robot_logs.py

A fleet's recording is made up, looked at, put in order of event time, and matched: one message per
topic, the smallest spread. Everything runs in process; the same stages run on Spark from a file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import tidegate as tg
from tidegate.profile.inspect import inspect
from tidegate.profile.starter import starter
from tidegate.testing.fleet import fleet


def main() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.parquet"
        pq.write_table(fleet(vehicles=3, seconds=20, seed=1), path)

        # 1. look at it: which columns, how much disorder, what to set
        look = inspect(str(path))
        print(f"{look.rows:,} rows, {look.keys} keys, topics {[s.topic for s in look.streams]}")
        print(f"suggested late tolerance: {look.to_json()['suggested']['late_tolerance']}")
        print(starter(look).splitlines()[0])

        # 2. in order, and in step: every key has its own lane, watermark and queues
        flow = tg.Flow(
            [
                tg.EventtimeWatermark(look.late_tolerance_ns or 0, max_future_skew="1 h"),
                tg.Synchronize(("camera", "lidar", "gps"), queue_size=10, max_interval="80 ms"),
            ],
            key="vehicle",
            decoder=tg.Decoder((tg.TimeColumn("stamp", "unixtimestamp_ns"),)),
        )
        outcomes = []
        for batch in pq.ParquetFile(path).iter_batches(batch_size=2_000):
            outcomes += flow.process(batch)
        outcomes += flow.end()

    # 3. what came out: nothing is lost, everything says where it went
    counts: dict[str, int] = {"rows": look.rows}
    for outcome in outcomes:
        if outcome.kind != "watermark":
            counts[outcome.kind] = counts.get(outcome.kind, 0) + len(outcome)
    sets = [o for o in outcomes if isinstance(o, tg.Collection)]
    spread = np.concatenate([s.rows.column("spread_ns").to_numpy() for s in sets])
    print(f"{len(spread):,} sets, half within {np.median(spread) / 1e6:.1f} ms of each other")
    print(counts)
    return counts


if __name__ == "__main__":
    main()
