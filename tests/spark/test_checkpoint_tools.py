"""The state of a stopped stream: shown, checked, saved, started from, and rescaled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, in_process, of_outcomes, run_now, written
from spark.recordings import Recording, ordered, stream_of
from tidegate.core.flow import Flow
from tidegate.core.seal import StateKey
from tidegate.errors import ConfigError, StateError
from tidegate.output.audit import audit_run
from tidegate.output.commit import CommitLog
from tidegate.output.epochs import Epochs, Owner
from tidegate.output.savepoint import Savepoint, load_savepoint
from tidegate.spark import Frames
from tidegate.spark.checkpoint import CheckpointRecord
from tidegate.spark.checkpoint_tools import (
    checkpoint_of,
    describe,
    partitions_of,
    prepare_import,
    read_savepoint,
    rescale,
    verify,
)
from tidegate.windows import Tumbling


def flows_of(frames: Frames) -> Callable[[], Flow]:
    return lambda: Flow(frames.stages, key=frames.keys, timed=True, state_key=frames.state_key)


@pytest.mark.parametrize("windows", [False, True])
def test_rescaled_saved_and_started_from(
    spark: SparkSession, recording: Recording, tmp_path: Path, windows: bool
) -> None:
    """Two partitions, five, three; then into a new stream with other shards; then in process."""

    def pipeline(folder: Path, **options: Any) -> Frames:
        made = ordered(stream_of(spark, folder), **options)
        made = replace(made, state_key=StateKey("a key that is long enough"))
        return made.window(Tumbling("700 ms")) if windows else made

    source, out = tmp_path / "in", str(tmp_path / "out")
    for number in range(2):
        add_file(recording.slices[number], source, number)
    run_now(pipeline(source, shards=4), out)
    checkpoint = checkpoint_of(out)
    replace(Epochs.at(out), owner=Owner("another", "machine", "", 1)).claim(take_over=True)
    with pytest.raises(ConfigError, match="is written to by process 1 on machine"):
        rescale(spark, out, checkpoint, 5)
    with pytest.raises(ConfigError, match="is written to by process 1 on machine"):
        checkpoint_of(out)
    third = replace(Epochs.at(out), owner=Owner("third", "machine", "", 2)).claim(take_over=True)
    assert third.owes_seal
    CommitLog.at(out).seal(third.epoch)  # rescaling must write its record behind this
    third.sealed()
    third.release()
    for count in (5, 3):
        rescale(spark, out, checkpoint, count)
        rescale(spark, out, checkpoint, count)  # nothing to do
        assert partitions_of(checkpoint, CommitLog.at(out).numbers()[-1]) == count
    saved = read_savepoint(spark, checkpoint)
    shown = describe(saved, flows_of(pipeline(source)))
    assert (shown.keys, shown.shards, shown.partitions) == (5, 4, 3)
    assert shown.stages[-1].rows > 0
    record = CheckpointRecord.read(checkpoint)
    assert record is not None
    assert verify(saved, flows_of(pipeline(source)), record.partitions) == []
    one, *others = sorted(saved.pages)
    broken = replace(saved, pages={**saved.pages, one: saved.pages[others[0]]})
    assert len(verify(broken, flows_of(pipeline(source)), record.partitions)) == 1

    saved.write(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="holds a savepoint already"):
        saved.write(str(tmp_path / "saved"))
    for number in range(2, 4):
        add_file(recording.slices[number], source, number)
        add_file(recording.slices[number], tmp_path / "more", number)
    run_now(pipeline(source), out)
    whole = written(out, pipeline(source))
    assert_same(whole, in_process(pipeline(source), recording.slices, end=False))
    assert audit_run(out).passed, audit_run(out).failures

    # A new stream with three shards goes on from the savepoint, and again from its own checkpoint.
    new = str(tmp_path / "new")
    prepare_import(f"{new}/_checkpoint", str(tmp_path / "saved"))
    more = tmp_path / "more"
    (more / "003.parquet").rename(tmp_path / "003.parquet")
    run_now(pipeline(more, shards=3), new)
    (tmp_path / "003.parquet").rename(more / "003.parquet")
    run_now(pipeline(more, shards=3), new)
    assert audit_run(new).passed, audit_run(new).failures
    with pytest.raises(ConfigError, match="has run already"):
        prepare_import(f"{new}/_checkpoint", str(tmp_path / "saved"))
    flow, outcomes = load_savepoint(str(tmp_path / "saved"), flow_with_decoder(pipeline(source)))
    for part in recording.slices[2:]:
        for batch in part.combine_chunks().to_batches():
            outcomes += flow.process(batch)
    rest = of_outcomes(pipeline(source), outcomes)
    assert_same(written(new, pipeline(more)), rest)
    for key, rows in rest["data"].items():
        assert whole["data"][key][-len(rows) :] == rows


def flow_with_decoder(frames: Frames) -> Callable[[], Flow]:
    return lambda: Flow(
        frames.stages, key=frames.keys, decoder=frames.decoder, state_key=frames.state_key
    )


def test_a_checkpoint_that_is_none_and_a_savepoint_that_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="not the checkpoint of a stream"):
        checkpoint_of(str(tmp_path))
    with pytest.raises(StateError, match="holds no savepoint"):
        Savepoint.read(str(tmp_path))
    Savepoint(1, (), (), {0: {0: b"page"}}).write(str(tmp_path / "saved"))
    (tmp_path / "saved" / "pages-00000.arrow").write_bytes(b"ARROW1 and nothing more")
    with pytest.raises(StateError, match="corrupt"):
        Savepoint.read(str(tmp_path / "saved"))
    (tmp_path / "saved" / "pages-00000.arrow").unlink()
    with pytest.raises(StateError, match="missing"):
        Savepoint.read(str(tmp_path / "saved"))


@pytest.mark.apart
@pytest.mark.timeout(900)
def test_a_hundred_thousand_keys(spark: SparkSession, tmp_path: Path) -> None:
    """2, 8, 3 partitions, other settings, and other shards: each in under a minute."""
    keys, times = 100_000, 3
    number = np.arange(keys * times)

    def rows(first: int) -> pa.Table:
        stamp = (first + number // keys) * 10**9 + number * 7919 % 10**9
        return pa.table(
            {"vehicle": number % keys, "stamp": stamp, "log_time": first * 10**12 + number}
        )

    def pipeline(tolerance: str = "2 s", **options: Any) -> Frames:
        return ordered(stream_of(spark, tmp_path / "in"), tolerance, **options)

    out = str(tmp_path / "out")
    add_file(rows(0), tmp_path / "in", 0)
    run_now(pipeline(shards=16), out)
    checkpoint, took = checkpoint_of(out), {}
    for count in (8, 3):
        began = time.perf_counter()
        rescale(spark, out, checkpoint, count)
        took[f"rescale to {count}"] = time.perf_counter() - began
    add_file(rows(times), tmp_path / "in", 1)
    began = time.perf_counter()
    run_now(pipeline("5 s"), out)
    took["run with other settings"] = time.perf_counter() - began
    began = time.perf_counter()
    saved = read_savepoint(spark, checkpoint)
    assert describe(saved).keys == keys
    saved.write(str(tmp_path / "saved"))
    took["describe and export"] = time.perf_counter() - began
    prepare_import(f"{tmp_path}/new/_checkpoint", str(tmp_path / "saved"))
    add_file(rows(2 * times), tmp_path / "more", 2)
    began = time.perf_counter()
    more = ordered(stream_of(spark, tmp_path / "more"), "5 s", shards=5)
    run_now(more, tmp_path / "new")
    took["start with other shards"] = time.perf_counter() - began
    print({name: round(value, 1) for name, value in took.items()})
    made = pipeline()
    old = Flow(made.stages, key=made.keys, decoder=made.decoder)
    outcomes = old.process(rows(0).combine_chunks().to_batches()[0])
    new = Flow(pipeline("5 s").stages, key=made.keys, decoder=made.decoder)
    outcomes += new.adopt(old.snapshot())
    outcomes += new.process(rows(times).combine_chunks().to_batches()[0])
    assert_same(written(out, made), of_outcomes(made, outcomes))
    last = new.process(rows(2 * times).combine_chunks().to_batches()[0])
    assert_same(written(tmp_path / "new", made), of_outcomes(made, last))
    assert max(took.values()) < 60
