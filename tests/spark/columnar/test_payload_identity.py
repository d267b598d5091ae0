"""Files that change between decision and exit, in every format of gate 1: a row leaves with its own
payload or as an error that names its file, and nothing is lost. The payload of a row is a hash of
what identifies it, so that another row's payload would show."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import spool
from tidegate.core.columns import ADDRESS, ERROR_COLUMN, ERROR_REASON, ERROR_VALUE
from tidegate.core.time import MAX_NS
from tidegate.errors import StateError
from tidegate.mcap import McapWriter
from tidegate.spark.columnar.bags import BagColumns
from tidegate.spark.columnar.csv_lines import CsvColumns
from tidegate.spark.columnar.format import ColumnarFormat
from tidegate.spark.columnar.json_lines import JsonColumns
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.columnar.payload import PayloadAttacher
from tidegate.spark.columnar.pieces import FoundFile
from tidegate.spark.columnar.source import address_of
from tidegate.spark.columnar.spool import SpoolColumns
from tidegate.spark.sources.recording import RecordingSettings
from tidegate.spool import Landed, Spool

Row = tuple[str, int]
"""Topic and time: what identifies a row."""

ROWS: list[Row] = [(f"/t{n % 3}", 1000 + 10 * n) for n in range(120)]
OTHERS: list[Row] = [(f"/t{n % 2}", 1000 + 10 * (n // 2)) for n in range(120)]


def payload_of(row: Row) -> str:
    return hashlib.sha256(f"{row}".encode()).hexdigest()


SCHEMA = pa.schema([("topic", pa.string()), ("t", pa.int64()), ("payload", pa.string())])


def put_parquet(path: Path, rows: list[Row]) -> None:
    table = pa.Table.from_pylist(
        [{"topic": r[0], "t": r[1], "payload": payload_of(r)} for r in rows], schema=SCHEMA
    )
    pq.write_table(table, path, row_group_size=25)


def put_csv(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(f"{r[0]},{r[1]},{payload_of(r)}\n" for r in rows))


def put_json(path: Path, rows: list[Row]) -> None:
    path.write_text(
        "".join(
            json.dumps({"topic": r[0], "t": r[1], "payload": payload_of(r)}) + "\n" for r in rows
        )
    )


def put_mcap(path: Path, rows: list[Row]) -> None:
    with McapWriter(str(path), compression="zstd", chunk_bytes=1500) as writer:
        channels = {topic: writer.channel(topic) for topic in sorted({r[0] for r in rows})}
        for row in rows:
            writer.message(channels[row[0]], row[1], payload_of(row).encode())


def put_bag(path: Path, rows: list[Row]) -> None:
    from rosbags import rosbag1
    from rosbags.typesys import Stores, get_typestore

    kind = "std_msgs/msg/String"
    store = get_typestore(Stores.ROS1_NOETIC)
    path.unlink(missing_ok=True)
    with rosbag1.Writer(path) as bag:
        channels = {t: bag.add_connection(t, kind, typestore=store) for t in {r[0] for r in rows}}
        for row in rows:
            said = store.types[kind](data=payload_of(row))
            bag.write(channels[row[0]], row[1], store.serialize_ros1(said, kind))


def put_spool(path: Path, rows: list[Row]) -> None:
    with Spool(path, segment_bytes=4000) as landing:
        for row in rows:
            landing.append([Landed(row[0], row[1], payload_of(row).encode())])


def recording(of: Any, path: Path) -> ColumnarFormat:
    told = RecordingSettings.of({"path": str(path)})
    made: ColumnarFormat = of(told, told.schema)
    return made


TEXT = (SCHEMA, ("topic", "t", "payload"), "", "")

FORMATS: dict[str, tuple[Any, Callable[[Path], ColumnarFormat], str, str, str]] = {
    "parquet": (put_parquet, lambda p: ParquetColumns(str(p), SCHEMA), "topic", "t", "payload"),
    "csv": (put_csv, lambda p: CsvColumns(str(p), *TEXT), "topic", "t", "payload"),
    "json": (put_json, lambda p: JsonColumns(str(p), *TEXT), "topic", "t", "payload"),
    "mcap": (put_mcap, lambda p: recording(McapColumns, p), "topic", "log_time_ns", "data"),
    "bag": (put_bag, lambda p: recording(BagColumns, p), "topic", "log_time_ns", "data"),
    "spool": (
        put_spool, lambda p: SpoolColumns(str(p), spool.schema()),
        "topic", "received_ns", "payload",
    ),
}  # fmt: skip


def cut(path: Path, put: Any, at: float) -> None:
    """Keep the first part of a file; of a spool, of its last segment."""
    file = max(path.glob("*.spool")) if path.is_dir() else path
    file.write_bytes(file.read_bytes()[: int(at * file.stat().st_size)])


def replaced(path: Path, put: Any, at: float) -> None:
    """Put a file with as many rows in its place, of which some agree."""
    if path.is_dir():
        shutil.rmtree(path)
    put(path, OTHERS)


def shifted(path: Path, put: Any, at: float) -> None:
    """Put the same rows there, some of them at other places."""
    if path.is_dir():
        shutil.rmtree(path)
    first = int(at * 60)
    rows = ROWS[:first] + ROWS[first + 1 :] + [("/t9", 9_000)]
    put(path, rows)


def touched(path: Path, put: Any, at: float) -> None:
    for file in path.iterdir() if path.is_dir() else [path]:
        os.utime(file, (5, 5))


def damaged(path: Path, put: Any, at: float) -> None:
    """Change a byte."""
    file = min(path.glob("*.spool")) if path.is_dir() else path
    data = bytearray(file.read_bytes())
    data[min(int(at * len(data)), len(data) - 1)] ^= 0x55
    file.write_bytes(bytes(data))


def deleted(path: Path, put: Any, at: float) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


CHANGES = [cut, replaced, shifted, touched, damaged, deleted]


def digest_in(value: Any) -> str:
    """The hash inside a payload: ROS puts its length before it."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[-64:]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=18, deadline=None)
@given(change=st.sampled_from(CHANGES), at=st.floats(0, 0.99), data=st.data())
def test_no_row_gets_the_payload_of_another(
    tmp_path_factory: Any, name: str, change: Any, at: float, data: Any
) -> None:
    if name == "bag":
        pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
    put, make, topic, stamp, payload = FORMATS[name]
    folder = tmp_path_factory.mktemp("identity")
    path = folder / {"bag": "a.bag", "spool": "spool"}.get(name, f"a.{name}")
    put(path, ROWS)
    of = make(path)
    columns = [each for each in of.schema.names if each in (topic, stamp, *of.always_read)]

    def low(rows: pa.RecordBatch) -> tuple[int, bool]:
        return min(rows.column(0).drop_null().to_pylist(), default=MAX_NS), True

    (file,) = of.files()
    parts = of.parts(file, columns, (), low)
    read = [each for part in parts for each in of.read(file, part.start, part.stop, columns)]
    decided = pa.Table.from_batches([rows for rows, _ in read]).combine_chunks().to_batches()[0]
    address = pa.array(address_of(0, np.concatenate([where for _, where in read])))
    decided = decided.append_column(ADDRESS, address)
    order = data.draw(st.permutations(range(len(ROWS))))[: data.draw(st.integers(1, len(ROWS)))]
    decided = decided.take(pa.array(order))

    change(path, put, at)

    error = pa.schema([*of.schema, *((n, pa.string()) for n in
                                     (ERROR_COLUMN, ERROR_VALUE, ERROR_REASON))])  # fmt: skip
    found = (FoundFile(0, file, 0),)

    def attached(missing: Any) -> list[tuple[str, dict[str, Any]]]:
        attacher = PayloadAttacher((of,), {"data": of.schema, "error": error}, None, found, missing)
        made = attacher.attach("data", decided)
        return [(kind, row) for kind, rows in made for row in rows.to_pylist()]

    rows = attached("error")
    seen = sorted((row[topic], row[stamp]) for _, row in rows)
    assert seen == sorted(ROWS[n] for n in order), "nothing is lost, nothing is doubled"
    # Of the formats only the spool has a checksum that is always verified: what else a changed byte
    # turns into is not for us to see.
    intact = name == "spool" or change is not damaged
    for kind, row in rows:
        if kind == "error":
            assert row[ERROR_VALUE] == file
            assert row[ERROR_REASON].startswith("the payload cannot be had: ")
        elif intact:
            assert digest_in(row[payload]) == payload_of((row[topic], row[stamp]))
    if change is touched:
        assert {kind for kind, _ in rows} == {"data"}, "the same bytes are the same rows"
    # Text that a changed byte made unreadable is bad data, not a missing file: it stops nothing.
    if any(kind == "error" and "not UTF-8" not in row[ERROR_REASON] for kind, row in rows):
        with pytest.raises(StateError, match="was changed or removed"):
            attached("stop")
    else:
        assert attached("stop") == rows


def test_half_a_line_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    put_csv(path, ROWS[:3])
    of, whole = FORMATS["csv"][1](path), path.read_bytes()
    last = np.array([whole[:-1].rfind(b"\n") + 1])
    of.check_whole(str(path), last, 0)
    path.write_bytes(whole[:-1])  # as some programs write files: right, unless it was modified
    of.check_whole(str(path), last, path.stat().st_mtime_ns // 1000)
    with pytest.raises(IndexError, match="may have been cut off"):
        of.check_whole(str(path), last, 0)
    of.check_whole(str(path), np.array([0]), 0)  # lines before it are whole


def test_a_file_that_raised_once_raises_again(tmp_path: Path) -> None:
    """A worker keeps files open. A retried task on the same worker must not find fewer rows in a
    damaged one, nor end with the process."""
    path = tmp_path / "a.parquet"
    put_parquet(path, ROWS)
    good, of = path.read_bytes(), FORMATS["parquet"][1](path)
    topics, stamps = zip(*ROWS, strict=True)
    decided = pa.record_batch({"topic": topics, "t": stamps, ADDRESS: np.arange(len(ROWS))})
    found = (FoundFile(0, str(path), 0),)

    def attempt() -> str:
        attacher = PayloadAttacher((of,), {"data": SCHEMA}, None, found, "stop")
        try:
            rows = [row for _, part in attacher.attach("data", decided) for row in part.to_pylist()]
        except StateError:
            return "refused"
        assert len(rows) == len(ROWS)
        assert all(row["payload"] is not None for row in rows)
        return "read"

    outcomes = []
    for at in range(4, len(good), 211):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        outcomes.append((attempt(), attempt()))
    assert set(outcomes) <= {("read", "read"), ("refused", "refused")}, outcomes
    assert ("refused", "refused") in outcomes
