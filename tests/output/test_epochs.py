"""Two drivers, one output: the second is refused, and one that was superseded harms nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults.outcomes import Outcomes
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Claim, Epochs, Owner, Standing
from tidegate.output.reader import open_run
from tidegate.spark.pack import to_blob
from tidegate.spark.sinks.delta import DeltaSink
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

SCHEMAS = {"data": pa.schema([("n", pa.int64())]), "late": pa.schema([("n", pa.int64())])}


def outcomes(*numbers: int) -> Any:
    """A micro-batch with these rows, and the metrics of a shard."""
    rows = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    made = [
        {"shard": 0, "kind": "data", "rows": len(numbers), "watermark_ns": None,
         "metrics": None, "blob": to_blob(rows)},
        {"shard": 0, "kind": "metric", "rows": 0, "watermark_ns": 1,
         "metrics": {"rows_in": len(numbers)}, "blob": None},
    ]  # fmt: skip
    return Outcomes(lambda: made)


def sink_of(out: Path, **settings: Any) -> ParquetSink:
    return ParquetSink(SinkRequest(str(out), SCHEMAS, **settings))


def delta_of(out: Path, **settings: Any) -> DeltaSink:
    return DeltaSink(SinkRequest(str(out), SCHEMAS, **settings))


Make = Callable[..., ParquetSink]


class Paused:
    """A sink that does something else before its n-th call of the file system."""

    def __init__(self, fs: Any, at: int, then: Callable[[], None]) -> None:
        self.fs, self.at, self.then, self.calls = fs, at, then, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.fs, name)
        if name not in ("get_file_info", "create_dir", "move", "delete_dir", "delete_file"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self.then()
            return found(*arguments, **named)

        return call


def rows(out: Path) -> list[int]:
    return list(open_run(str(out)).table("data", ["n"]).column("n").to_pylist())


def wake_up_at(out: Path, at: int, make: Make, *, dies: bool) -> bool:
    """Write batch 1 by a driver that is paused before its call number `at` while another one writes
    batches 1 and 2; return whether there was such a call."""
    old = make(out)
    old.write(outcomes(1, 2), 0, "q")
    new = make(out)
    woke = []

    def supersede() -> None:
        woke.append(at)
        new.write(outcomes(3, 4), 1, "q")
        new.write(outcomes(5), 2, "q")

    def step() -> Any:
        if woke and dies:
            raise OSError("dead")
        return outcomes(3, 4).rows()

    old.fs = Paused(old.fs, at, supersede)
    with contextlib.suppress(StateError, OSError):
        old.write(cast(Any, Outcomes(step)), 1, "q")
    return bool(woke)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("make", [sink_of, delta_of])
def test_a_superseded_driver_removes_nothing(tmp_path: Path, make: Make, dies: bool) -> None:
    """It is paused at some call; another one writes the same batch and the next; it wakes up, and
    may die before it gets any further. Before there were epochs it had removed committed files."""
    at = 1
    while wake_up_at(tmp_path / str(at), at, make, dies=dies):
        out = tmp_path / str(at)
        assert rows(out) == [1, 2, 3, 4, 5]
        for commit in CommitLog.at(str(out)):
            for file in commit.files:
                assert pq.read_metadata(out / file).num_rows
        if make is delta_of:
            found = deltalake.DeltaTable(out / "data").to_pyarrow_table().column("n")
            assert sorted(found.to_pylist()) == [1, 2, 3, 4, 5]
        at += 1
    assert at > 8


def test_a_delta_table_takes_nothing_from_a_superseded_driver(tmp_path: Path) -> None:
    """It wakes up right before its transaction, when it has looked at everything."""
    old, new = delta_of(tmp_path), delta_of(tmp_path, take_over=True)
    old._claim = replace(old.epochs, owner=other_process()).claim()
    old.write(outcomes(1), 0, "q")
    publish = old._publish

    def late(*arguments: Any) -> None:
        new.claim()
        publish(*arguments)

    old._publish = late  # type: ignore[method-assign]
    with pytest.raises(StateError, match="was taken over by another driver while it was writing"):
        old.write(outcomes(2), 1, "q")
    new.write(outcomes(2, 3), 1, "q")
    assert rows(tmp_path) == [1, 2, 3]
    found = deltalake.DeltaTable(tmp_path / "data").to_pyarrow_table().column("n")
    assert sorted(found.to_pylist()) == [1, 2, 3]


def test_rows_that_a_delta_table_has_already_are_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died between the transaction and the record: the next one must name the files."""

    def die(log: CommitLog, commit: Commit) -> None:
        raise OSError("dead")

    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "write", die)
        with pytest.raises(OSError, match="dead"):
            delta_of(tmp_path).write(outcomes(1, 2), 0, "q")
    delta_of(tmp_path).write(outcomes(1, 2), 0, "q")
    assert rows(tmp_path) == [1, 2]


def other_process(machine: str = "elsewhere") -> Owner:
    return Owner("another", "ship", machine, 17, 4)


def as_other(out: Path) -> Epochs:
    return replace(Epochs.at(str(out)), owner=other_process())


def test_a_second_driver_is_refused_while_the_first_renews(tmp_path: Path) -> None:
    as_other(tmp_path).claim()
    message = (
        rf"{tmp_path} is written to by process 17 on ship \(epoch 1\): stop that run first; if it "
        "is gone without a trace, wait 30 s for its lease to expire; "
        "`tidegate run --take-over` ends it"
    )
    with pytest.raises(ConfigError, match=message):
        sink_of(tmp_path).claim()
    with pytest.raises(ConfigError, match=message):
        sink_of(tmp_path).check_free()
    assert sink_of(tmp_path, take_over=True).claim().epoch == 2


def test_a_lease_that_was_released_is_free(tmp_path: Path) -> None:
    epochs = Epochs.at(str(tmp_path))
    as_other(tmp_path).claim().release()
    claim = epochs.claim()
    assert (claim.epoch, claim.owes_seal) == (2, False)


class Clock:
    """A clock that only runs while somebody sleeps."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.then = 0.0, then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def age(out: Path, seconds: float) -> None:
    """Let the files of all epochs be older than they are."""
    for file in (out / "_epochs").iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


def test_a_lease_that_is_not_renewed_expires(tmp_path: Path) -> None:
    as_other(tmp_path).claim()
    age(tmp_path, 31)
    clock = Clock()
    claim = Epochs.at(str(tmp_path), clock=clock).claim()
    assert (claim.epoch, claim.owes_seal) == (2, True)
    assert 10 <= clock.now < 12  # a third of the lease, in which nothing was renewed


def test_a_clock_that_was_set_ends_no_living_lease(tmp_path: Path) -> None:
    held = as_other(tmp_path).claim()
    age(tmp_path, 3600)
    with pytest.raises(ConfigError, match="process 17 on ship"):
        Epochs.at(str(tmp_path), clock=Clock(held.renew)).claim()


def test_a_clock_that_was_set_back_keeps_no_dead_lease(tmp_path: Path) -> None:
    """A machine without a battery for its clock, after a reboot: the lease was renewed tomorrow."""
    held = as_other(tmp_path).claim()
    age(tmp_path, -86_400)
    with pytest.raises(ConfigError, match="process 17 on ship"):
        Epochs.at(str(tmp_path), clock=Clock(held.renew)).claim()
    age(tmp_path, -86_400)
    clock = Clock()
    claim = Epochs.at(str(tmp_path), clock=clock).claim()
    assert (claim.epoch, claim.owes_seal) == (2, True)
    assert 30 <= clock.now < 34  # a whole lease, in which nothing was renewed


def test_a_process_that_died_here_is_seen_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tidegate.output.epochs import Epochs; "
        "Epochs.at(sys.argv[1]).claim(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    epochs = Epochs.at(str(tmp_path))
    newest = epochs.newest()
    assert newest is not None
    assert epochs.standing(newest, Owner.here()) is Standing.DEAD
    assert epochs.claim().epoch == 2


def test_who_dies_before_sealing_leaves_it_to_the_next(tmp_path: Path) -> None:
    """Else the driver before it would be fenced off by nobody."""
    epochs = as_other(tmp_path)
    old = epochs.claim()
    log = CommitLog.at(str(tmp_path))
    log.write(Commit(0, "q", epoch=old.epoch))
    heir = replace(epochs, owner=Owner("b")).claim(take_over=True)
    assert heir.owes_seal
    heir.release()
    third = sink_of(tmp_path)
    third.write(outcomes(1), 1, "q")
    with pytest.raises(StateError, match=r"\(epoch 3\) committed batch 1 while epoch 1 was"):
        log.write(Commit(1, "q", epoch=old.epoch))


def test_claims_of_one_moment_get_one_epoch_each(tmp_path: Path) -> None:
    made: list[Claim] = []

    def claim(number: int) -> None:
        owner = Owner(f"process {number}")
        made.append(replace(Epochs.at(str(tmp_path)), owner=owner).claim(lease_s=0))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claim.epoch for claim in made) == list(range(1, 9))


def test_damaged_claims_are_one_sentence(tmp_path: Path) -> None:
    Epochs.at(str(tmp_path)).claim()
    (tmp_path / "_epochs" / "00000001.json").write_text("{")
    with pytest.raises(StateError, match=r"_epochs/00000001.json or .lease is corrupt"):
        Epochs.at(str(tmp_path)).claim()


def test_seals_are_a_chain(tmp_path: Path) -> None:
    log = CommitLog.at(str(tmp_path))
    assert log.seal(2) == 0
    assert log.seal(2) == 0
    assert log.seal(3) == 0
    assert log.numbers() == []
    for epoch in (1, 2):
        with pytest.raises(StateError, match=f"epoch {epoch} of this run was taken over by"):
            log.write(Commit(0, "q", epoch=epoch))
    log.write(Commit(0, "q", epoch=3))
    log.write(Commit(0, "q", epoch=3))
    with pytest.raises(StateError, match=r"\(epoch 3\) committed batch 0 while epoch 4"):
        log.write(Commit(0, "q", epoch=4))
    assert log.seal(4) == 1
    names = sorted(file.name for file in (tmp_path / "_commits").iterdir())
    assert names == ["00000000.2.json", "00000000.3.json", "00000000.json", "00000001.json"]
    assert json.loads((tmp_path / "_commits" / "00000000.json").read_text()) == {"sealed_by": 2}
    assert [commit.epoch for commit in log] == [3]
