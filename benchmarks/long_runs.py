"""What /state and /metrics of a live page cost after ever more commits.

    python benchmarks/long_runs.py [--most 100000]

Writes the records of a run (not its rows) of 10, 100, ... commits, folded as a run folds them, and
measures both answers. `--plain` leaves the records unfolded and reads all of them, as versions
before folds did, for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from tidegate.output.commit import Commit, CommitLog
from tidegate.output.maintenance import FOLD, Maintenance
from tidegate.output.reader import open_run
from tidegate.report.serve import LiveServer

ROUNDS = 7


def record(batch: int) -> Commit:
    """A record as an ordinary pipeline with two shards writes it."""
    names = ("rows_in", "late_dropped_count", "rows_held", "current_watermark", "watermark_lowest",
             "max_timestamp_seen", "max_lateness", "future_skew_count")  # fmt: skip
    metrics = {f"eventtime_watermark.{name}": batch * 1000 for name in names}
    metrics |= {"rows_in": batch * 1000, "keys": 20, "state_bytes": 40_000}
    files = [f"data/batch={batch:08d}/e1-part-0000{n}-{batch}.parquet" for n in range(2)]
    behind = {shard: {f"car-{n}": batch * 1000 for n in range(5)} for shard in range(2)}
    return Commit(batch, "q", {"data": 1000, "late": 3}, batch * 1000,
                  {0: metrics, 1: metrics}, files, behind, epoch=1)  # fmt: skip


def cpu_ms(call: Callable[[], object]) -> float:
    """The median CPU of a call, in ms."""
    call()
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        took.append((time.process_time() - began) * 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        log = CommitLog.at(out)
        live = LiveServer(out)
        written, goal = 0, 10
        while goal <= given.most:
            for batch in range(written, goal):
                # Without the waits for the disk that a run has: only reading is measured.
                file = log.root + f"/_commits/{batch:08d}.json"
                log.fs.create_dir(log.root + "/_commits")
                with log.fs.open_output_stream(file) as stream:
                    stream.write(record(batch).to_json().encode())
                if not given.plain and batch % FOLD == FOLD - 1:
                    Maintenance(log, 1, merge=False).run()
            written = goal
            if given.plain:
                took = [cpu_ms(lambda: open_run(out))]
                print(f"{written:>8,} commits: {took[0]:8.1f} ms to read all records")
            else:
                print(f"{written:>8,} commits: /state {cpu_ms(live.state):6.1f} ms, /metrics "
                      f"{cpu_ms(live.metrics):6.1f} ms of CPU")  # fmt: skip
            goal *= 10


if __name__ == "__main__":
    main()
