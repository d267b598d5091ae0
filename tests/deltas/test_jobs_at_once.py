"""Several compaction jobs on one table at once, in processes, some of them killed.

Whatever happens: nothing is lost, no job dies of a file that another one replaced, and one that
comes too late for a bucket says so in a sentence.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tidegate.deltas import Add, Compactor, Create, TieredMerge, VectorDelta
from tidegate.deltas.table import DeltaTable, compact_table

VECTORS, ROUNDS = 24, 6

JOB = """
import sys
from tidegate.deltas import Compactor, TieredMerge
from tidegate.deltas.table import compact_table

print("ready", flush=True)
for line in sys.stdin:
    report = compact_table(sys.argv[1], Compactor(TieredMerge(2), delta_threshold=4))
    assert all(text.startswith("VersionConflict: bucket ") for text in report.conflicts)
    print(len(report.conflicts), report.buckets, flush=True)
"""


def job(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> tuple[int, int]:
    assert process.stdout is not None
    answer = process.stdout.readline()
    if not answer:
        assert process.stderr is not None
        pytest.fail(process.stderr.read())
    conflicts, buckets = answer.split()
    return int(conflicts), int(buckets)


def a_round(number: int) -> list[VectorDelta]:
    return [
        VectorDelta(f"{number}-{n}-{v}", f"v{v}", Add([1.0, float(n)]), number * 100 + n)
        for n in range(5)
        for v in range(VECTORS)
    ]


def check(table: DeltaTable, rounds: int) -> None:
    expected = [float(5 * rounds), float(10 * rounds)]
    found = {
        row["vector_id"]: row["vector"] for part in table.vectors() for row in part.to_pylist()
    }
    assert found == {f"v{v}": expected for v in range(VECTORS)}
    assert table.refused().num_rows == 0


@pytest.mark.parametrize("jobs", [2, 4])
def test_jobs_at_once_lose_nothing_and_never_miss_a_file(tmp_path: Path, jobs: int) -> None:
    table = DeltaTable.create(tmp_path / "t", 2, buckets=4)
    running = [job(table.root) for _ in range(jobs)]
    try:
        for number in range(ROUNDS):
            table.append(a_round(number), batch=str(number))
            for process in running:
                say(process)
            heard = [hear(process) for process in running]
            assert sum(buckets for _, buckets in heard) > 0
            check(table, number + 1)
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.long
def test_jobs_killed_at_random_leave_the_table_whole(tmp_path: Path) -> None:
    rng = random.Random(7)
    table = DeltaTable.create(tmp_path / "t", 2, buckets=4)
    running = [job(table.root) for _ in range(3)]
    try:
        for number in range(ROUNDS):
            table.append(a_round(number), batch=str(number))
            for process in running:
                say(process)
            time.sleep(rng.random() * 0.15)
            killed = rng.randrange(len(running))
            os.kill(running[killed].pid, signal.SIGKILL)
            for n, process in enumerate(running):
                if n != killed:
                    hear(process)
            check(table, number + 1)
            running[killed].communicate()
            running[killed] = job(table.root)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    compact_table(table.root, Compactor(TieredMerge(2), delta_threshold=4))
    table.vacuum(grace_s=-10)
    check(table, ROUNDS)


def test_a_reader_beside_compactions_always_finds_the_vectors(tmp_path: Path) -> None:
    table = DeltaTable.create(tmp_path / "t", 2, buckets=1)
    table.append([VectorDelta("a", "v", Create([0.0, 0.0]), 0)])
    running = [job(table.root) for _ in range(2)]
    try:
        for number in range(ROUNDS):
            deltas = [
                VectorDelta(f"{number}-{n}", "v", Add([1.0, 1.0]), 1 + number * 9 + n)
                for n in range(8)
            ]
            table.append(deltas)
            for process in running:
                say(process)
            for _ in range(20):
                found = table.vector("v")
                assert found is not None
                assert np.array_equal(found, [8.0 * (number + 1)] * 2)
            for process in running:
                hear(process)
    finally:
        for process in running:
            process.kill()
            process.communicate()
