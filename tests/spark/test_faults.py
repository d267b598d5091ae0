"""The short form of `make faults`, in the session of the tests; the long one has all scenarios."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from faults import outputs, storage
from faults.child import Fault, Gate, Touches, watch
from faults.scenarios import SCENARIOS
from faults.soak import in_process
from faults.sources import CannotTryError, Place
from spark.outcomes import run_now
from tidegate.errors import StateError
from tidegate.spark.query import check_checkpoint
from tidegate.spark.sinks import SinkSettings, open_sink

CASES = [
    ("_checkpoint/offsets/[0-9]*", "half"),
    ("_checkpoint/commits/[0-9]*", "empty"),
    ("_checkpoint/sources/0/[0-9]*", "gone"),
    ("_commits/*.json", "half"),
    ("_commits/*.json", "gone"),
]


@pytest.mark.parametrize(
    "name",
    [
        "a truncated file", "a clock that steps back", "a clock that is set back in a run",
        "a full disk", "a read-only disk", "a deleted part file",
    ],
)  # fmt: skip
def test_nothing_lost_nothing_twice(spark: SparkSession, tmp_path: Path, name: str) -> None:
    try:
        _, rows = SCENARIOS[name](spark, tmp_path)
    except CannotTryError as error:
        pytest.skip(str(error))
    assert rows > 1000


def test_files_half_written(spark: SparkSession, tmp_path: Path) -> None:
    said, _ = storage.half_written(spark, tmp_path, CASES)
    assert said.startswith(f"{len(CASES)} damages: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is corrupt: ''"),
        ('{"id":"ff727df3-fe37', "is corrupt"),
        ("[]", "is corrupt"),
        ('{"id": 7}', "is corrupt"),
        (None, "is lost"),
    ],
)
def test_a_checkpoint_that_does_not_say_whose_it_is(
    tmp_path: Path, text: str | None, says: str
) -> None:
    file = tmp_path / "metadata"
    check_checkpoint(str(tmp_path))  # a new one
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    file.write_text('{"id":"ff727df3-fe37-4e73-9fba-5e22f7f18f9f"}')
    check_checkpoint(str(tmp_path))
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(StateError, match=says):
        check_checkpoint(str(tmp_path))


class Raising(Fault):
    """Fails at a touch, in place of a kill: the session of the tests goes on."""

    def strike(self, number: int, when: str) -> None:
        if number == self.at and when == self.when:
            raise OSError(f"struck {when} touch {number}")


@pytest.mark.parametrize(
    ("sink", "read", "points"),
    [
        ("parquet", outputs.read_parquet, [(3, "after"), (9, "before"), (12, "after")]),
        ("delta", outputs.read_delta, [(4, "after"), (8, "before"), (8, "after")]),
    ],
)
def test_a_sink_that_fails_at_a_touch_goes_on_from_there(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: str,
    read: Any,
    points: list[tuple[int, str]],
) -> None:
    place = Place(spark, tmp_path)
    for number in (0, 1):
        place.put(place.parts[number], number)
    run_now(place.frames(), tmp_path / "peace")
    log = tmp_path / "touches"
    gate = Gate(["stream"])
    gate.all_there.set()
    for at, when in points:
        fault = Raising(gate, "stream", at, when)

        def opened(*arguments: Any, fault: Fault = fault) -> Any:
            return watch(Touches(log, fault), open_sink(*arguments), sink)

        monkeypatch.setattr("tidegate.spark.query.open_sink", opened)
        with pytest.raises(StreamingQueryException, match=f"struck {when} touch {at}"):
            run_now(place.frames(), place.out, settings=SinkSettings(sink))
    monkeypatch.undo()
    run_now(place.frames(), place.out, settings=SinkSettings(sink))
    wanted = outputs.read_parquet(tmp_path / "peace")
    assert outputs.count(wanted) > 1000
    assert outputs.differences(read(place.out), wanted) == []
    struck = set(log.read_text().splitlines())
    assert "> batch" in struck
    assert len(struck) > 6


def test_memory_and_state_stay_flat_for_a_simulated_day() -> None:
    said, _ = in_process(1, lambda: None)
    assert said.startswith("1 days, 2,419,200 rows: memory ")


FORKS = """
import os, time
from faults.processes import memory_by_role

held = bytes(range(256)) * (100 * 2**12)
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
try:
    print(sum(memory_by_role(os.getpid()).values()) / len(held))
finally:
    os.kill(child, 9)
"""
"""A process of 100 MB that forks."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_processes_share_counts_once() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, env=environment, check=True
    ).stdout
    assert 1.0 < float(said) < 1.5


def test_what_differs_is_seen() -> None:
    """The comparison itself: lost, doubled and reordered rows."""
    rows = [{"vehicle": "a", "n": n} for n in range(3)]
    wanted = outputs.arranged([("data", rows)])
    for found, says in (
        (rows[1:], "data a: 1 rows lost, 0 too many"),
        ([*rows, rows[0]], "data a: 0 rows lost, 1 too many"),
        (rows[::-1], "data a: rows in another order"),
    ):
        assert outputs.differences(outputs.arranged([("data", found)]), wanted) == [says]
