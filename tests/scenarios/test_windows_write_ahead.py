"""A process that is killed between acknowledging a row and emitting its window loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.core.outcomes import Collection
from tidegate.errors import StateError
from tidegate.windows import AfterCount, Reemit, Tumbling, Windows
from tidegate.windows.durable import SpillStore, WriteAheadLog

# Pushes rows one by one, says which were acknowledged, writes every delivery to a file, and is
# killed by the parent somewhere on the way.
PUSHER = """
import json, sys
from tidegate.windows import AfterCount, Tumbling, Reemit, Windows
from tidegate.windows.durable import WriteAheadLog

def emit(delivery):
    with open(sys.argv[2], "a") as file:
        for row in delivery.rows.to_pylist():
            file.write(json.dumps(row) + "\\n")
        file.flush()

windows = Windows(Tumbling(10), trigger=AfterCount(3), late=Reemit(20),
                  log=WriteAheadLog(sys.argv[1]), emit=emit, checkpoint_every=7)
for number in range(int(windows.metrics()["rows_in"]), 400):  # the log knows how far it came
    if number % 4 == 1:
        windows.advance(number - 6)
    windows.push({"id": number}, number)
    print(number, flush=True)
windows.flush()
print("done", flush=True)
"""


def settings() -> dict[str, object]:
    return {"trigger": AfterCount(3), "late": Reemit(20), "checkpoint_every": 7}


def undisturbed() -> list[dict[str, object]]:
    got: list[dict[str, object]] = []
    windows = Windows(
        Tumbling(10), emit=lambda delivery: got.extend(delivery.rows.to_pylist()), **settings()
    )
    for number in range(400):
        if number % 4 == 1:
            windows.advance(number - 6)
        windows.push({"id": number}, number)
    windows.flush()
    return got


def test_killed_and_started_again_gives_the_same_windows(tmp_path: Path) -> None:
    log, out = str(tmp_path / "log.db"), tmp_path / "out.jsonl"
    acknowledged = -1
    for kill_after in (37, 118, 251):
        child = subprocess.Popen(
            [sys.executable, "-c", PUSHER, log, str(out)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for line in child.stdout:
            acknowledged = int(line)
            if acknowledged >= kill_after:
                break
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()  # acknowledged before the signal arrived
        acknowledged = max([acknowledged, *(int(line) for line in rest if line.isdigit())])
        child.wait()
    snapshot, _, _ = WriteAheadLog(log).load()
    assert snapshot is not None
    got: list[dict[str, object]] = []
    windows = Windows(
        Tumbling(10),
        emit=lambda delivery: got.extend(delivery.rows.to_pylist()),
        log=WriteAheadLog(log),
        **settings(),
    )
    next_one = int(windows.metrics()["rows_in"])
    assert next_one > acknowledged  # whatever was acknowledged is there
    for number in range(next_one, 400):
        if number % 4 == 1:
            windows.advance(number - 6)
        windows.push({"id": number}, number)
    windows.flush()
    written = [json.loads(line) for line in out.read_text().splitlines()] + got
    assert {row["id"] for row in written} == set(range(400))
    # At least once: a delivery accepted just before the kill may come again, but never changed.
    distinct = {json.dumps(row, sort_keys=True) for row in written}
    assert distinct == {json.dumps(row, sort_keys=True) for row in undisturbed()}


def test_a_refused_delivery_survives_the_crash(tmp_path: Path) -> None:
    def away(_: Collection) -> None:
        raise ConnectionError

    first = Windows(
        Tumbling(10), trigger=AfterCount(2), log=WriteAheadLog(tmp_path / "log.db"), emit=away
    )
    first.push({"id": 1}, 1)
    first.push({"id": 2}, 2)
    got: list[int] = []
    second = Windows(
        Tumbling(10),
        trigger=AfterCount(2),
        log=WriteAheadLog(tmp_path / "log.db"),
        emit=lambda delivery: got.extend(delivery.rows.column("id").to_pylist()),
    )
    second.tick(0)
    assert got == [1, 2]
    third = Windows(
        Tumbling(10),
        trigger=AfterCount(2),
        log=WriteAheadLog(tmp_path / "log.db"),
        emit=lambda delivery: got.append(-1),
    )
    third.tick(0)
    assert got == [1, 2]  # accepted once is accepted


def test_the_log_is_truncated_on_acknowledgement(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path / "log.db")
    windows = Windows(Tumbling(10), log=log, manual=True)
    for number in range(10):
        windows.push({"id": number}, number)
    assert len(log) == 10
    windows.advance(9)
    assert len(log) == 11
    windows.acknowledge()
    assert len(log) == 0


def test_a_foreign_or_broken_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StateError):
        WriteAheadLog(broken)
    assert broken.read_bytes().startswith(b"not a database")
    SpillStore(tmp_path / "spill.db").close()
    with pytest.raises(StateError, match="spill store"):
        WriteAheadLog(tmp_path / "spill.db")


def test_a_log_of_other_settings_is_refused(tmp_path: Path) -> None:
    windows = Windows(Tumbling(10), log=WriteAheadLog(tmp_path / "log.db"))
    windows.push({"id": 1}, 1)
    windows.flush()
    windows.tick(0)
    with pytest.raises(StateError, match="settings"):
        Windows(Tumbling(11), log=WriteAheadLog(tmp_path / "log.db"))
