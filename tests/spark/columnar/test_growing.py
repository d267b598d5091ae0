"""Bags, the spool and MCAP files that are still being written, at gate 1 and without Spark: the
same rows as their own readers give, each found again by its address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mcap_files import recording, unindexed

from tidegate import spool
from tidegate.core.time import MAX_NS
from tidegate.eventtime import Decoder
from tidegate.mcap import McapFile, Selection
from tidegate.recordings.bags import read_bag, read_bag_index
from tidegate.spark.columnar.bags import BagColumns
from tidegate.spark.columnar.format import ColumnarFormat, Limits
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.source import (
    POSITION_BITS,
    GateInput,
    GatePlan,
    GateStreamReader,
)
from tidegate.spark.columnar.spool import SpoolColumns
from tidegate.spark.pack import Packer
from tidegate.spark.sources.recording import RecordingSettings
from tidegate.spool import Landed, Spool

NO_LIMITS = Limits()


def plan_of(
    of: ColumnarFormat, log: Path, limits: Limits = NO_LIMITS, recorded: bool = False
) -> GatePlan:
    packer = Packer(Decoder(), (0,))
    ordering = ("log_time_ns",) if "log_time_ns" in of.schema.names else ("offset",)
    one = GateInput(of, tuple(of.schema.names), True, packer, ordering, limits)
    return GatePlan((one,), (0,), recorded, True, str(log))


class Stream:
    """What Spark does with a stream: offsets, tasks, rows; a new reader after a restart."""

    def __init__(self, plan: GatePlan) -> None:
        self.plan = plan
        self.offset: dict[str, Any] = GateStreamReader(plan).initialOffset()

    def micro_batch(self) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
        """The rows of one micro-batch, read twice with the same result, and their addresses."""
        end = GateStreamReader(self.plan).latestOffset(self.offset, None)
        rows, positions = self._read(end)
        assert self._read(end) == (rows, positions), "a micro-batch that runs again is the same"
        self.offset = end
        return rows, positions

    def _read(self, end: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
        rows: list[dict[str, Any]] = []
        positions: list[tuple[int, int]] = []
        of = self.plan.inputs[0].format
        tasks = GateStreamReader(self.plan).partitions(self.offset, end)
        pieces = sorted(
            ((piece, file) for task in tasks for piece, file in task.pieces),  # type: ignore[attr-defined]
            key=lambda one: (one[1].path, one[0].start),
        )
        for piece, file in pieces:
            assert not piece.fault
            for batch, at in of.read(file.path, piece.start, piece.stop, of.schema.names):
                rows += batch.to_pylist()
                positions += [(piece.file, each) for each in at.tolist()]
        return rows, positions


def found_again(of: ColumnarFormat, path: str, positions: list[int]) -> list[dict[str, Any]]:
    out: dict[int, dict[str, Any]] = {}
    for rows, which in of.fetch(path, np.array(positions, np.int64), of.schema.names):
        out |= dict(zip(which.tolist(), rows.to_pylist(), strict=True))
    return [out[place] for place in range(len(positions))]


# -- MCAP files that grow -------------------------------------------------------------------------


def mcap_of(path: Path, settle: int = 10**18, **options: str) -> McapColumns:
    told = RecordingSettings.of({"path": str(path), **options})
    return McapColumns(told, told.schema, (), settle)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([recording, unindexed]),
    st.lists(st.floats(0, 1), max_size=5),
    st.booleans(),
    st.sampled_from([{}, {"topics": "/imu"}, {"clock": "header"}]),
    st.sampled_from([Limits(), Limits(nbytes=3000), Limits(files=1)]),
)
def test_mcap_while_it_is_written(
    tmp_path_factory: Any, make: Any, cuts: list[float], chunked: bool, options: Any, limits: Limits
) -> None:
    """In any cuts, with and without chunks and a summary: every message once, in order."""
    folder = tmp_path_factory.mktemp("live")
    whole = make(200, use_chunking=chunked)
    file = folder / "a.mcap"
    of = mcap_of(folder, **options)
    stream = Stream(plan_of(of, folder / "log", limits))
    rows: list[dict[str, Any]] = []
    at: list[tuple[int, int]] = []
    for size in [*sorted(int(cut * len(whole)) for cut in cuts), len(whole), len(whole)]:
        file.write_bytes(whole[:size])
        while (before := stream.offset) is not None:
            more, positions = stream.micro_batch()
            rows, at = rows + more, at + positions
            if stream.offset == before:
                break
    with McapFile(file) as opened:
        expected = [row for b in opened.batches(of.settings.selection) for row in b.to_pylist()]
    assert rows == expected
    assert found_again(of, str(file), [position for _, position in at]) == expected


def test_mcap_that_was_cut_off_is_told_when_it_has_settled(tmp_path: Path) -> None:
    file = tmp_path / "a.mcap"
    file.write_bytes(recording(200)[:4000])
    waiting = Stream(plan_of(mcap_of(tmp_path), tmp_path / "log"))
    rows, _ = waiting.micro_batch()
    assert {row["error"] for row in rows} == {None}, "it may still be written"
    assert waiting.micro_batch()[0] == []
    waiting.plan = plan_of(mcap_of(tmp_path, settle=0), tmp_path / "log")
    rest, _ = waiting.micro_batch()
    assert "ends inside a record" in rest[-1]["error"]
    assert rest[-1]["file"] == str(file)
    with McapFile(file) as opened:
        assert rows + rest == [row for b in opened.batches(Selection()) for row in b.to_pylist()]
    assert waiting.micro_batch()[0] == []


def test_mcap_side_by_side_while_one_grows(tmp_path: Path) -> None:
    """Available-now, twice: what is new of a growing file goes behind, and its file is begun."""
    whole = unindexed(200)
    (tmp_path / "a.mcap").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.mcap").write_bytes(recording(100))
    stream = Stream(plan_of(mcap_of(tmp_path), tmp_path / "log", recorded=True))
    first, _ = stream.micro_batch()
    reader = GateStreamReader(stream.plan)
    assert [reader._log().files[n].path for n in reader._log().begun(stream.offset["piece"])] == [
        str(tmp_path / "a.mcap")
    ]
    (tmp_path / "a.mcap").write_bytes(whole)
    rest, _ = stream.micro_batch()
    times = sorted(row["log_time_ns"] for row in first + rest)
    assert times == sorted([*range(7, 200_000, 1000), *range(7, 100_000, 1000)])


# -- the spool ------------------------------------------------------------------------------------


def spool_of(folder: Path, rows: int | None = None) -> SpoolColumns:
    return SpoolColumns(str(folder), spool.schema(), rows)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=9), max_size=6),
    st.integers(1, 300),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_spool_as_it_is_landed(
    tmp_path_factory: Any, appended: list[list[bytes]], segment: int, most: int | None,
    damaged: bool,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("spool")
    of = spool_of(folder, most)
    stream = Stream(plan_of(of, folder / "log", Limits(rows=most)))
    rows: list[dict[str, Any]] = []
    at: list[tuple[int, int]] = []
    for number, payloads in enumerate(appended):
        with Spool(folder, segment_bytes=segment) as landing:
            landing.append([Landed(f"t{number}", number, payload) for payload in payloads])
        while (before := stream.offset) is not None:
            more, positions = stream.micro_batch()
            assert most is None or len(more) <= most
            rows, at = rows + more, at + positions
            if stream.offset == before:
                break
    expected = [row for batch in spool.read(folder) for row in batch.to_pylist()]
    assert rows == expected
    assert found_again(of, str(folder), [position for _, position in at]) == expected
    if damaged and expected:
        for file in folder.glob("*.spool"):
            if data := bytearray(file.read_bytes()):
                data[len(data) // 2] ^= 255
                file.write_bytes(bytes(data))
        anew = Stream(plan_of(of, folder / "other"))
        rows, at = [], []
        while (before := anew.offset) is not None:
            more, positions = anew.micro_batch()
            rows, at = rows + more, at + positions
            if anew.offset == before:
                break
        expected = [row for batch in spool.read(folder) for row in batch.to_pylist()]
        assert rows == expected
        assert any(row["error"] for row in rows)
        assert found_again(of, str(folder), [position for _, position in at]) == expected


def test_spool_offsets_beyond_an_address(tmp_path: Path) -> None:
    """Offsets count every byte ever landed; an address has 40 bits of them."""
    begin = (1 << POSITION_BITS) * 3 - 30
    (tmp_path / f"{begin:020d}.spool").touch()
    with Spool(tmp_path) as landing:
        landing.append([Landed("t", n, b"payload %d" % n) for n in range(50)])
    of = spool_of(tmp_path)
    read = list(of.read(str(tmp_path), begin, spool.durable_end(tmp_path), ["offset", "payload"]))
    at = np.concatenate([each for _, each in read])
    assert at.max() < 1 << POSITION_BITS
    rows = found_again(of, str(tmp_path), at.tolist())
    assert [row["payload"] for row in rows] == [b"payload %d" % n for n in range(50)]
    assert [row["offset"] for row in rows] == read[0][0].column("offset").to_pylist()


def test_spool_that_was_deleted_from(tmp_path: Path) -> None:
    with Spool(tmp_path, segment_bytes=1) as landing:
        for n in range(3):
            landing.append([Landed("t", n, b"x")])
    of = spool_of(tmp_path)
    at = next(iter(of.read(str(tmp_path), 0, spool.durable_end(tmp_path), ["topic"])))[1]
    min(tmp_path.glob("*.spool")).unlink()
    with pytest.raises(OSError, match="deleted"):
        list(of.fetch(str(tmp_path), at, ["payload"]))


# -- bags -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
    from rosbags import rosbag1, rosbag2
    from rosbags.rosbag2 import StoragePlugin
    from rosbags.typesys import Stores, get_typestore

    folder = tmp_path_factory.mktemp("bags")
    kind = "std_msgs/msg/String"
    new, old = get_typestore(Stores.LATEST), get_typestore(Stores.ROS1_NOETIC)

    def put(bag: Any, store: Any, write: Any) -> None:
        channels = [bag.add_connection(f"/t{n}", kind, typestore=store) for n in range(3)]
        for n in range(300):
            said = store.types[kind](data=f"message {n} {'x' * (n % 40)}")
            bag.write(channels[n % 3], 1000 + n // 4 * 4, write(said, kind))

    with rosbag2.Writer(folder / "sql", version=9) as bag:
        put(bag, new, new.serialize_cdr)
    with rosbag2.Writer(folder / "mcap", version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        put(bag, new, new.serialize_cdr)
    with rosbag1.Writer(folder / "one.bag") as bag1:
        put(bag1, old, old.serialize_ros1)
    return folder


def bags_at(path: Path, **options: str) -> BagColumns:
    told = RecordingSettings.of({"path": str(path), **options})
    return BagColumns(told, told.schema)


def low(rows: pa.RecordBatch) -> tuple[int, bool]:
    return (min(rows.column(0).drop_null().to_pylist(), default=MAX_NS), True)


@pytest.mark.parametrize("name", ["sql", "mcap", "one.bag"])
@pytest.mark.parametrize("options", [{}, {"topics": "/t1"}, {"startNs": "1100", "endNs": "1200"}])
def test_bags_have_the_rows_that_their_reader_gives(bags: Path, name: str, options: Any) -> None:
    path = str(bags / name)
    of = bags_at(bags / name, partitionBytes="3000", **options)
    expected = [row for b in read_bag(path, of.settings.selection) for row in b.to_pylist()]
    parts = of.parts(path, of.schema.names, ["log_time_ns"], low)
    indexed = name != "mcap"
    assert (len(parts) > 1) == indexed, "a large bag is read by several tasks"
    rows, at = [], []
    for part in parts:
        for batch, positions in of.read(path, part.start, part.stop, of.schema.names):
            rows += batch.to_pylist()
            at += positions.tolist()
            assert low(batch.select(["log_time_ns"]))[0] >= part.low
    assert rows == expected
    backwards = at[::-1]
    assert found_again(of, path, backwards) == expected[::-1]
    assert found_again(of, path, at[7:90:9]) == expected[7:90:9]
    few = ["topic", "log_time_ns", "offset", "schema", "encoding"]
    by_index = [
        row
        for part in parts
        for batch, _ in of.read(path, part.start, part.stop, few)
        for row in batch.to_pylist()
    ]
    assert by_index == [{name: row[name] for name in few} for row in expected]
    assert (read_bag_index(path, Selection()) is not None) == indexed


def test_no_message_of_a_bag_is_read_for_a_decision(bags: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tidegate.spark.columnar.bags.read_bag", None)
    for name in ("sql", "one.bag"):
        of = bags_at(bags / name)
        path = str(bags / name)
        (part,) = of.parts(path, ["topic", "log_time_ns"], ["log_time_ns"], low)
        (rows, _), *_ = of.read(path, part.start, part.stop, ["topic", "log_time_ns"])
        assert rows.num_rows == 300


def test_bag_that_is_broken_in_the_middle(bags: Path, tmp_path: Path) -> None:
    """What can be read before the damage is, then one row says why no more."""
    whole = (bags / "one.bag").read_bytes()
    file = tmp_path / "one.bag"
    at = whole.index(b"message 150")
    file.write_bytes(whole[: at - 60] + bytes(60) + whole[at:])
    of = bags_at(file)
    rows = [row for batch in read_bag(str(file), Selection()) for row in batch.to_pylist()]
    assert [row["error"] is None for row in rows] == [True] * 148 + [False]
    (part,) = of.parts(str(file), of.schema.names, (), low)
    read = list(of.read(str(file), part.start, part.stop, of.schema.names))
    assert [row for batch, _ in read for row in batch.to_pylist()] == rows
    positions = [each for _, each_of in read for each in each_of.tolist()]
    assert found_again(of, str(file), positions) == rows


def test_bag_that_is_still_copied_is_waited_for(bags: Path, tmp_path: Path) -> None:
    whole = (bags / "one.bag").read_bytes()
    file = tmp_path / "one.bag"
    file.write_bytes(whole[:2000])
    stream = Stream(plan_of(bags_at(tmp_path), tmp_path / "log"))
    assert stream.micro_batch()[0] == []
    file.write_bytes(whole)
    rows, _ = stream.micro_batch()
    assert len(rows) == 300
    assert stream.micro_batch()[0] == []
    (tmp_path / "two.bag").write_bytes(whole[:2000])
    os.utime(tmp_path / "two.bag", (0, 0))
    (row,) = stream.micro_batch()[0]
    assert "index is damaged" in row["error"]
