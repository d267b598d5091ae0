"""State that cannot be used: the query stops and says why, and nothing is overwritten."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark.outcomes import add_file, assert_same, in_process, run_now, written
from spark.recordings import Recording, ordered, stream_of
from tidegate.core.seal import StateKey
from tidegate.errors import StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.spark import Frames
from tidegate.spark.processor import ShardProcessor

# The workers cannot import the tests: what is defined here travels to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def flip_a_byte(page: bytes) -> bytes:
    place = len(page) // 2
    return page[:place] + bytes([page[place] ^ 1]) + page[place + 1 :]


def newer_format(page: bytes) -> bytes:
    return page[:4] + struct.pack("<H", 7) + page[6:]


class _Spoiled:
    """The map state of a step that stores something else than it is given."""

    def __init__(self, pages: Any, how: Callable[[bytes], bytes]) -> None:
        self.pages, self.how = pages, how

    def updateValue(self, page: Any, blob: Any) -> None:  # noqa: N802  (Spark's name)
        self.pages.updateValue(page, blob if page[0] < 0 else (self.how(blob[0]),))

    def getValue(self, page: Any) -> Any:  # noqa: N802  (Spark's name)
        return self.pages.getValue(page)

    def iterator(self) -> Any:
        return self.pages.iterator()


@dataclass(frozen=True)
class NewerWatermark(EventtimeWatermark):
    """The stage of a later release."""

    version: ClassVar[int] = 9


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder and what is in it."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and "_epochs" not in file.parts  # who wrote last changes with every run
    }


@dataclass
class Started:
    """A stream that has read its first file; the second one waits."""

    spark: SparkSession
    recording: Recording
    folder: Path
    out: Path
    committed: dict[str, str] = field(default_factory=dict)
    """The files of the run that went well. (What a failed batch leaves is not among them: Spark
    writes the state of a batch anew until the batch is whole.)"""

    def frames(self, late_tolerance: str = "200 ms", **options: Any) -> Frames:
        return ordered(stream_of(self.spark, self.folder), late_tolerance, **options)

    def refused(
        self, pipeline: Frames, message: str, run: Callable[[Frames, Path], Any] = run_now
    ) -> None:
        """Running `pipeline` fails with this message and changes no file that is there."""
        before = self.committed
        assert any("/state/" in name for name in before)
        with pytest.raises((StateError, StreamingQueryException), match=message) as caught:
            run(pipeline, self.out)
        assert "StateError" in repr(caught.value) + str(caught.value)
        after = digests(self.out)
        assert {name: after.get(name) for name in before} == before
        new = [name for name in after.keys() - before.keys() if not name.startswith("_checkpoint/")]
        assert new == []


@pytest.fixture
def started(spark: SparkSession, recording: Recording, tmp_path: Path) -> Callable[..., Started]:
    def start(change: Callable[[Frames], Frames] = lambda frames: frames) -> Started:
        made = Started(spark, recording, tmp_path / "in", tmp_path / "out")
        add_file(recording.slices[0], made.folder, 0)
        run_now(change(made.frames()), made.out)
        made.committed = digests(made.out)
        add_file(recording.slices[1], made.folder, 1)
        return made

    return start


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (flip_a_byte, r"state page 0 is corrupt: its checksum does not match"),
        (newer_format, r"state page 0 has format 7, newer than the 1 this version reads"),
    ],
)
def test_a_spoiled_page(
    started: Callable[..., Started],
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[bytes], bytes],
    message: str,
) -> None:
    class Spoiler(ShardProcessor):
        def init(self, handle: Any) -> None:
            super().init(handle)
            self.pages = _Spoiled(self.pages, how)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["tidegate.spark.dataflow"], "ShardProcessor", Spoiler)
        run = started()
    run.refused(run.frames(), message)


def test_a_page_of_a_later_release(started: Callable[..., Started]) -> None:
    later = NewerWatermark(late_tolerance="200 ms", watermark_per="tuple", max_future_skew="1 h")
    run = started(lambda frames: replace(frames, stages=(later,)))
    run.refused(
        run.frames(),
        "state of eventtime_watermark: version 9 is newer than the 2 this version reads",
    )


def test_another_plan_is_refused_and_the_right_one_goes_on(
    started: Callable[..., Started], spark: SparkSession
) -> None:
    run = started()
    other = replace(run.frames(), stages=(EventtimeWatermark("300 ms", source="topic"),))
    run.refused(other, "eventtime_watermark: source")
    run.refused(other, "eventtime_watermark", run=run_by_hand)  # a worker finds it in the pages

    # Keys would go to other shards than their state, and what is held there would be lost.
    run.refused(run.frames(shards=3), "made with 8 shards, now the number is 3")
    run.refused(run.frames(shards=3), "made with 8 shards, now the number is 3", run=run_by_hand)
    spark.conf.set("spark.sql.shuffle.partitions", "5")  # as on a machine with more cores
    try:
        run_now(run.frames(), run.out)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    expected = in_process(run.frames(), run.recording.slices[:2], end=False)
    assert_same(written(run.out, run.frames()), expected)


STATE_KEY = "a state key that is long enough"


def test_a_sealed_state_opens_with_its_key_only(started: Callable[..., Started]) -> None:
    def key(secret: str | None) -> StateKey | None:
        return None if secret is None else StateKey(secret)

    run = started(lambda frames: replace(frames, state_key=key(STATE_KEY)))
    run.refused(run.frames(), "state page 0 is sealed: give the state key")
    run.refused(
        replace(run.frames(), state_key=key("another key that is long enough")),
        "state page 0 was changed, or is sealed with another key",
    )
    for file in run.out.rglob("*"):
        assert not file.is_file() or STATE_KEY.encode() not in file.read_bytes()
    same = replace(run.frames(), state_key=key(STATE_KEY))
    assert STATE_KEY not in repr(same)
    run_now(same, run.out)
    expected = in_process(run.frames(), run.recording.slices[:2], end=False)
    assert_same(written(run.out, run.frames()), expected)


def test_a_state_without_a_seal_is_refused_where_a_key_is_set(
    started: Callable[..., Started],
) -> None:
    run = started()
    sealed = replace(run.frames(), state_key=StateKey(STATE_KEY))
    run.refused(sealed, "state page 0 is not sealed, and a state key is set")


def run_by_hand(pipeline: Frames, out: Path) -> None:
    """Without our sink, which looks at the checkpoint first."""
    writer = pipeline.outcomes.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(out / "_checkpoint")).start()
    query.awaitTermination()
