"""Run a backfill of one key with rows of a megabyte in a small Java heap, and print as JSON what it
took: `python memory_child.py FOLDER files|dataframe MEGABYTES [carried|addressed]`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MB = 2**20
LARGE_ROW = 52 * MB
"""Bytes of one row among the others: an outcome much larger than a blob."""

HEAP = "2g"
"""Half of what a session made by Tidegate has. In 1 GB the row of 52 MB does not pass: Spark copies
a row four times, each time into a buffer of up to twice its size, beside the memory of its sort."""


def write_recording(folder: Path, megabytes: int) -> None:
    """Write rows of one key, 1 MB each and one of 52, in files of 256; times jump to and fro."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    noise = rng.bytes(2 * MB)
    for first in range(0, megabytes, 256):
        numbers = range(first, min(megabytes, first + 256))
        body = [noise[n : n + (LARGE_ROW if n == 77 else MB)] for n in numbers]
        body = [noise * 26 if n == 77 else each for n, each in zip(numbers, body, strict=True)]
        rows = pa.table(
            {
                "key": ["one"] * len(numbers),
                "topic": [f"t{n % 2}" for n in numbers],
                "t": [n * 1000 + (n % 3) * 1500 for n in numbers],
                "n": list(numbers),
                "payload": pa.array(body, pa.binary()),
            }
        )
        pq.write_table(rows, folder / f"{first:06d}.parquet", row_group_size=32, compression="none")


class Peak(threading.Thread):
    """Watches the memory of all processes below this one: the most that each kind had, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}

    def run(self) -> None:
        while True:
            for kind, size in self._sizes():
                self.most[kind] = max(self.most.get(kind, 0), size)
            time.sleep(0.1)

    def _sizes(self) -> list[tuple[str, int]]:
        parents: dict[int, tuple[int, str, int]] = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                status = Path(f"/proc/{entry}/status").read_text()
            except OSError:
                continue
            told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            size = int(told.get("RssAnon", "0 kB").split()[0]) // 1024
            parents[int(entry)] = int(told["PPid"]), told["Name"].strip(), size
        found, below = [], {os.getpid()}
        while True:
            more = {pid for pid, (parent, _, _) in parents.items() if parent in below} - below
            if not more:
                break
            below |= more
        for pid in below:
            if pid in parents:
                _, name, size = parents[pid]
                own = "driver" if pid == os.getpid() else "java" if name == "java" else "worker"
                found.append((own, size))
        return found


def main() -> None:
    folder, how, megabytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    payload = sys.argv[4] if len(sys.argv) > 4 else "auto"
    if not (folder / "in").exists():
        write_recording(folder / "in", megabytes)
    from tidegate.spark import frames, read, session

    spark = session("local[2]", "memory", {"spark.driver.memory": HEAP})
    watch = Peak()
    watch.start()
    began = time.time()
    source = read(str(folder / "in"), spark=spark) if how == "files" else spark.read.parquet(
        str(folder / "in")
    )  # fmt: skip
    made = frames(source, key="key", time="t", topic="topic", payload=payload)
    made = made.event_time("unixtimestamp_ns", "10 us")
    notes = made.notes()
    made.write(str(folder / f"out-{how}-{payload}"))
    took = time.time() - began
    got: list[int] = []
    nbytes = 0
    for file in sorted((folder / f"out-{how}-{payload}" / "data").rglob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(64, columns=["n", "payload"]):
            got += batch.column("n").to_pylist()
            nbytes += sum(len(each.as_buffer()) for each in batch.column("payload"))
    print(json.dumps({
        "rows": len(got), "all": sorted(got) == list(range(megabytes)), "bytes": nbytes,
        "seconds": round(took, 1), "peak_mb": watch.most, "notes": notes,
    }))  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
