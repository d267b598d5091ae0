"""Kill a running pipeline at random moments, let it go on, and compare with a run left in peace.

    python tests/faults/kill.py --sink parquet --kills 50 [--what driver|worker] [--seed 0]

The pipeline reads a fleet's recording as a stream, file by file. A killed run is started again on
the same output until it ends by itself; then all tables must equal those of the undisturbed run,
row for row: nothing lost, nothing twice. Exits with 1 at the first difference.

`driver` kills Java and Python of the run with SIGKILL, all at once. `worker` kills one Python
worker and leaves the run to cope (its tasks are tried again).
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.testing.fleet import fleet

FILES = 12
PIPELINE = """
name: faults
streams:
  fleet:
    source: {{path: {recording}, options: {{maxFilesPerTrigger: 1}}}}
    key: vehicle
    topic: topic
    arrival: log_time
    eventtime: {{column: stamp, type: unixtimestamp_ns}}
options:
  mode: streaming
  trigger: available_now
  shards: 2
  eventtime: {{enabled: true, lateTolerance: 200 ms, maxFutureSkew: 1 h, watermarkPer: tuple}}
sink: {{format: {sink}, path: {out}}}
"""


def record(folder: Path) -> None:
    table = fleet(vehicles=4, seconds=12, seed=5, late_share=0.01, late_by="1 s", payload_bytes=16)
    step = -(-table.num_rows // FILES)
    for number in range(FILES):
        path = folder / f"{number:03d}.parquet"
        pq.write_table(table.slice(number * step, step), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes files in order of their times


def rows_in(out: Path, sink: str, kind: str) -> collections.Counter[str]:
    """The rows of a table, each with how often it is there; only what is committed."""
    if not (out / kind).exists():
        return collections.Counter()
    if sink == "delta":
        import deltalake

        table: pa.Table = deltalake.DeltaTable(out / kind).to_pyarrow_table()
    else:
        table = pq.read_table(out / kind)
    if "batch" in table.column_names:
        table = table.drop_columns(["batch"])
    return collections.Counter(map(repr, table.to_pylist()))


def begin(folder: Path, recording: Path, out: Path, sink: str) -> subprocess.Popen[bytes]:
    file = folder / "pipeline.yaml"
    file.write_text(PIPELINE.format(recording=recording, out=out, sink=sink))
    command = [sys.executable, "-m", "tidegate", "run", str(file), "--master", "local[2,4]"]
    with open(folder / "run.log", "ab") as log:
        return subprocess.Popen(
            [*command, "--json"], stdout=log, stderr=log, start_new_session=True
        )


def descendants(pid: int) -> list[tuple[int, str]]:
    """All processes below one, with their command lines, from /proc."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children[parent].append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children[waiting.pop()]:
            try:
                words = (Path("/proc") / str(child) / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found.append((child, words.decode(errors="replace")))
            waiting.append(child)
    return found


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def strike(run: subprocess.Popen[bytes], what: str, dice: random.Random) -> bool:
    """Kill; whether anything was there to be killed. Only ever processes below our own run."""
    if what == "driver":
        below = [pid for pid, _ in descendants(run.pid)]
        run.kill()
        for pid in below:
            kill(pid)
        run.wait(timeout=60)
        return True
    # The daemon forks its workers, so they bear its name and stand below it.
    daemons = [pid for pid, words in descendants(run.pid) if "tidegate.spark.daemon" in words]
    workers = sorted({pid for daemon in daemons for pid, _ in descendants(daemon)})
    return bool(workers) and kill(dice.choice(workers))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sink", default="parquet", choices=["parquet", "delta"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--what", default="driver", choices=["driver", "worker"])
    parser.add_argument("--seed", type=int, default=0)
    given: Any = parser.parse_args()
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="tidegate-faults-") as place:
        folder = Path(place)
        (folder / "recording").mkdir()
        record(folder / "recording")
        began = time.monotonic()
        peaceful = begin(folder, folder / "recording", folder / "peace", "parquet")
        if peaceful.wait(timeout=600) != 0:
            print((folder / "run.log").read_text()[-2000:])
            return 1
        length = time.monotonic() - began
        kinds = ("data", "late", "error", "dropped")
        wanted = {kind: rows_in(folder / "peace", "parquet", kind) for kind in kinds}
        print(f"undisturbed: {length:.0f} s,", {k: sum(v.values()) for k, v in wanted.items()})
        kills = outputs = 0
        while kills < given.kills:
            out = folder / f"out-{outputs}"
            while True:
                run = begin(folder, folder / "recording", out, given.sink)
                try:
                    code = run.wait(timeout=dice.uniform(0.15, 1.1) * length)
                except subprocess.TimeoutExpired:
                    code = None
                if code is None and kills < given.kills:
                    struck = strike(run, given.what, dice)
                    kills += struck
                    if given.what == "driver":
                        continue
                    code = run.wait(timeout=600)
                elif code is None:
                    code = run.wait(timeout=600)
                if code == 0:
                    break
                print((folder / "run.log").read_text()[-2000:])
                return 1
            outputs += 1
            for kind in kinds:
                found = rows_in(out, given.sink, kind)
                if found != wanted[kind]:
                    lost, twice = wanted[kind] - found, found - wanted[kind]
                    print(f"{kind}: {sum(lost.values())} lost, {sum(twice.values())} too many")
                    return 1
            print(f"{kills} kills of the {given.what}, {outputs} outputs equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
