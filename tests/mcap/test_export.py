"""Results as a log that the format's own reader plays."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mcap.reader import make_reader

from tidegate import mcap
from tidegate.core.outcomes import Collection
from tidegate.errors import ConfigError
from tidegate.output.commit import Commit
from tidegate.sync.stage import Synchronize

CAMERA_SCHEMA = {"schema": "pkg/msg/Image", "schema_encoding": "ros2msg", "schema_data": b"int32 x"}


def played(path: Path) -> list[tuple[str, int, int, str, bytes, bytes]]:
    found = make_reader(io.BytesIO(path.read_bytes()), validate_crcs=True).iter_messages()
    return [
        (channel.topic, m.log_time, m.publish_time, channel.message_encoding, m.data,
         schema.data if schema else b"")
        for schema, channel, m in found
    ]  # fmt: skip


@pytest.fixture
def sets(tmp_path: Path) -> tuple[pa.RecordBatch, Path]:
    """Two real sets, made by the synchroniser from a real recording."""
    source = tmp_path / "source.mcap"
    with mcap.McapWriter(source) as log:
        camera = log.channel("camera", encoding="cdr", **CAMERA_SCHEMA)  # type: ignore[arg-type]
        imu = log.channel("imu")
        for n in range(4):
            log.message(camera, 1000 * n + 1, b"frame %d" % n)
            log.message(imu, 1000 * n + 5, b'{"n": %d}' % n)
    rows = pa.concat_batches(list(mcap.read(source)))
    rows = rows.append_column("vehicle", pa.array(["v7"] * rows.num_rows))
    stage = Synchronize(["camera", "imu"], keys=("vehicle",), queue_size=10, max_interval=100)
    state = stage.open()
    times = rows.column("log_time_ns").to_numpy()
    outcomes = stage.process(state, Collection.of(rows, times)) + stage.flush(state)
    made = [outcome.table() for outcome in outcomes if outcome.kind == "data" and len(outcome)]
    return pa.concat_batches(made), source


def test_sets(tmp_path: Path, sets: tuple[pa.RecordBatch, Path]) -> None:
    rows, source = sets
    path = tmp_path / "sets.mcap"
    count = mcap.write_table([rows], path, key=["vehicle"], schemas_from=[source])
    assert rows.num_rows >= 3
    assert count == rows.num_rows * 3
    found = played(path)
    assert len(found) == count
    frames = [m for m in found if m[0] == "/v7/camera"]
    assert [m[4] for m in frames] == [b"frame %d" % n for n in range(rows.num_rows)]
    assert {m[3] for m in frames} == {"cdr"}
    assert {m[5] for m in frames} == {b"int32 x"}
    for n in range(rows.num_rows):
        together = [m for m in found if m[1] == 1000 * n + 5]
        assert sorted((m[0], m[2]) for m in together) == [
            ("/v7/camera", 1000 * n + 1), ("/v7/imu", 1000 * n + 5), ("/v7/sets", 1000 * n + 5),
        ]  # fmt: skip
    summary = json.loads(next(m[4] for m in found if m[0] == "/v7/sets"))
    assert summary["spread_ns"] == 4
    assert summary["times_ns"] == {"camera": 1, "imu": 5}


def run_folder(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> Path:
    files = []
    for kind, rows in tables.items():
        name = f"{kind}/batch=00000000/part.parquet"
        (folder / name).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
        files.append(name)
    (folder / "_commits").mkdir()
    (folder / "_commits" / "00000000.json").write_text(Commit(0, "batch", files=files).to_json())
    (folder / "data" / "batch=00000001").mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "data" / "batch=00000001" / "uncommitted.parquet")
    return folder


def test_the_output_of_a_run(tmp_path: Path) -> None:
    out = run_folder(
        tmp_path / "out",
        {
            "data": [{"topic": "/a", "time_ns": 5, "x": b"\x00\xff"}],
            "late": [{"topic": "/a", "time_ns": 1, "lateness_ns": 4}],
            "error": [{"topic": None, "error_reason": "no time"}],
        },
    )
    path = tmp_path / "log.mcap"
    assert mcap.export(out, path) == 1
    assert json.loads(played(path)[0][4]) == {"topic": "/a", "time_ns": 5, "x": "AP8="}
    assert mcap.export(out, path, kinds=("data", "late", "error")) == 3
    assert [(m[0], m[1]) for m in played(path)] == [("/error", 0), ("/late", 1), ("/a", 5)]


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the output of a run"):
        mcap.export(tmp_path, tmp_path / "x.mcap")
    rows = pa.record_batch({"time_ns": np.array([1])})
    with pytest.raises(ConfigError, match="key: got 'vehicle', must be a column of data"):
        mcap.write_table([rows], tmp_path / "x.mcap", key=["vehicle"])
    with pytest.raises(ConfigError, match="must have a column time_ns"):
        mcap.write_table([pa.record_batch({"t": [1]})], tmp_path / "x.mcap")
    assert not (tmp_path / "x.mcap").exists()
