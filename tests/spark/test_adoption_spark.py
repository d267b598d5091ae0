"""Other settings on an old checkpoint: the same as adopting the snapshot in process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, count, of_outcomes, run_now, written
from spark.recordings import Recording, ordered, stream_of
from tidegate.core.flow import Flow
from tidegate.errors import StateError
from tidegate.output.reader import run_totals
from tidegate.spark import Frames
from tidegate.spark.checkpoint import CheckpointRecord, stages_present
from tidegate.windows import Tumbling

Make = Callable[[SparkSession, Path], Frames]


def plain(tolerance: str) -> Make:
    return lambda spark, folder: ordered(stream_of(spark, folder, files=2), tolerance)


def windowed(aggregates: dict[str, str] | None = None) -> Make:
    def make(spark: SparkSession, folder: Path) -> Frames:
        return plain("300 ms")(spark, folder).window(Tumbling("700 ms"), aggregates=aggregates)

    return make


CHANGES: dict[str, tuple[Make, Make]] = {
    "wider": (plain("50 ms"), plain("2 s")),
    "narrower": (plain("2 s"), plain("0 ms")),
    "a stage more": (plain("300 ms"), windowed({"n": "count"})),
    "a stage less": (windowed(), plain("300 ms")),
}


def run_in_two(
    spark: SparkSession, recording: Recording, root: Path, old: Make, new: Make
) -> tuple[Frames, Frames]:
    """Half of the recording with the old pipeline, the rest with the new one, into root/out."""
    made = []
    for half, make in enumerate((old, new)):
        for number in (2 * half, 2 * half + 1):
            add_file(recording.slices[number], root / "in", number)
        made.append(make(spark, root / "in"))
        run_now(made[-1], root / "out")
    return made[0], made[1]


@pytest.mark.parametrize("name", CHANGES)
def test_as_in_process(
    name: str, spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    first, second = run_in_two(spark, recording, tmp_path, *CHANGES[name])
    old = Flow(first.stages, key=first.keys, decoder=first.decoder)
    before = []
    for part in recording.slices[:2]:
        for batch in part.combine_chunks().to_batches():
            before += old.process(batch)
    new = Flow(second.stages, key=second.keys, decoder=second.decoder)
    after = new.adopt(old.snapshot())
    for part in recording.slices[2:]:
        for batch in part.combine_chunks().to_batches():
            after += new.process(batch)
    ours = written(tmp_path / "out", second)
    ours.pop("error")  # they are in no order
    for kind, rows in of_outcomes(first, before).items():
        for key, found in rows.items() if kind != "error" else ():
            mine = ours[kind][key]
            assert mine[: len(found)] == found
            ours[kind][key] = mine[len(found) :]
    ours = {
        kind: {key: found for key, found in rows.items() if found} for kind, rows in ours.items()
    }
    assert_same(
        {kind: rows for kind, rows in ours.items() if rows},
        {kind: rows for kind, rows in of_outcomes(second, after).items() if kind != "error"},
    )
    record = CheckpointRecord.read(str(tmp_path / "out" / "_checkpoint"))
    assert record is not None
    assert len(record.made_by) == 2
    if name == "a stage less":
        reasons = {row["reason"] for rows in ours["dropped"].values() for row in rows}
        assert reasons == {"stage_removed"}
        assert count(ours["dropped"]) > 50
        # No shard has a window any more: another one may take its place.
        reported = run_totals(str(tmp_path / "out"))
        assert reported is not None
        other = second.window(Tumbling("1 s"))
        with pytest.raises(StateError, match=r"window\.size"):
            record.check(other)
        assert record.check(other, stages_present(reported.shards)) == [
            "stage window is new and starts empty"
        ]


def test_what_cannot_be_adopted_is_refused_before_anything_runs(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    add_file(recording.slices[0], tmp_path / "in", 0)
    run_now(windowed({"n": "count"})(spark, tmp_path / "in"), tmp_path / "out")
    other = plain("300 ms")(spark, tmp_path / "in").window(
        Tumbling("1 s"), aggregates={"n": "count"}
    )
    with pytest.raises(StateError) as error:
        run_now(other, tmp_path / "out")
    assert "window: window.size" in str(error.value)
    assert len(str(error.value).splitlines()) == 4
    forgetful = ordered(stream_of(spark, tmp_path / "in"), forget="1 h")
    with pytest.raises(StateError, match="without timers"):
        run_now(forgetful, tmp_path / "out")
