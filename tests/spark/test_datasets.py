"""Datasets made on Spark are those made in process: by file, and by rows."""

from __future__ import annotations

import filecmp
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.dataset import LeRobotWriter, write_dataset
from tidegate.output.reader import StoredRun
from tidegate.pipeline import PipelineDefinition

pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
from dataset.recordings import messages, pipeline, record

pytestmark = pytest.mark.spark

FEATURES = {"observation.state": ["joint.q", "imu.az"], "action": "action"}
COLUMNS = ["camera.image", "joint.q", "imu.az", "action"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of three runs of a robot, one with a pause, one that is too short for a frame."""
    folder = tmp_path_factory.mktemp("logs")
    record(folder / "a.mcap", messages(2))
    record(folder / "b.mcap", messages(3, pause_s=1))
    record(folder / "c.mcap", [one for one in messages(0.3) if one.topic != "joint"])
    return folder


def definition(logs: Path, key: str, dataset: dict[str, Any]) -> PipelineDefinition:
    made = pipeline(logs, dataset)
    made["streams"]["arm"]["key"] = key
    return PipelineDefinition.of(made)


def test_files_are_dealt_to_tasks(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    features = dict(FEATURES)
    try:
        import av  # noqa: F401
    except ImportError:
        pass
    else:
        features["observation.images.front"] = "camera.image"
    lerobot = {"format": "lerobot", "fps": 10, "task": "wave", "features": features}
    for name, settings in (
        ("parquet", {"format": "parquet", "columns": COLUMNS}),
        ("lerobot", lerobot),
    ):
        one = write_dataset(definition(logs, "file", settings), to=tmp_path / f"{name}-one")
        many = write_dataset(
            definition(logs, "file", settings), to=tmp_path / f"{name}-many", spark=True
        )
        assert many.outcomes == one.outcomes
        assert many.rows_read == one.rows_read
        assert not list((tmp_path / f"{name}-many").glob(".parts*"))
        if name == "parquet":
            tables = [pq.read_table(tmp_path / f"{name}-{way}") for way in ("one", "many")]
            assert tables[0].schema == tables[1].schema
            assert tables[0].to_pylist() == tables[1].to_pylist()
            continue
        assert many.written == one.written
        found = sorted(
            file.relative_to(tmp_path / "lerobot-one")
            for file in (tmp_path / "lerobot-one").rglob("*")
            if file.is_file()
        )
        assert len(found) > 5
        for file in found:
            here, there = (tmp_path / f"lerobot-{way}" / file for way in ("one", "many"))
            if file.suffix != ".parquet":
                assert filecmp.cmp(here, there, shallow=False), file
                continue
            rows = pq.read_table(here)
            assert pq.read_table(there).select(rows.column_names).equals(rows), file


def tied_rows(cases: int, rows: int) -> list[list[dict[str, Any]]]:
    """Three files whose rows agree in their stamps within and between files and topics.

    Every case is a key of its own with a recording of its own, so that one run tries them all.
    """
    rng = random.Random(7)
    files: list[list[dict[str, Any]]] = [[], [], []]
    value = 0
    for case in range(cases):
        for at in range(rows):
            file = rng.choice(files[: rng.randint(1, 3)])
            stamp = 10 * at // 3 + rng.randint(-12, 3)  # some are late, many are equal
            value += 1
            topic = rng.choice(["camera", "joint", "imu"])
            file.append({"case": f"{case:03d}", "topic": topic, "stamp": stamp, "v": float(value)})
    return files


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_ties_between_files_are_decided_alike(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Parquet through gate 1, JSON lines through gate 2; names in another order than times.

    The one to Parquet, where only the order within keys is promised, the other to LeRobot, whose
    episodes are numbered by key: the same bytes.
    """
    folder = tmp_path / "in"
    folder.mkdir()
    for name, rows in zip(("b", "c", "a"), tied_rows(40, 40), strict=True):
        table = pa.Table.from_pylist(rows)
        if kind == "parquet":
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=100)
        else:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.json").write_text(lines)
    made = PipelineDefinition.of(
        {
            "name": "ties",
            "streams": {
                "arm": {
                    "source": {"format": kind, "path": str(folder)},
                    "key": "case", "topic": "topic",
                    "eventtime": {"column": "stamp", "type": "unixtimestamp_ns"},
                }
            },
            "options": {"mode": "batch", "eventtime": {"enabled": True, "lateTolerance": "8 ns"}},
            "stages": [
                {
                    "align": {
                        "reference": "camera",
                        "topics": {
                            "joint": {"latest": "9 ns"},
                            "imu": {"linear": "9 ns"},
                        },
                    }
                },
                {"episodes": {"gap": "15 ns"}},
            ],
            # Spark's JSON lines have columns of their own
            "dataset": {"format": "parquet", "columns": ["camera.v", "joint.v", "imu.v"]}
            if kind == "parquet"
            else {"format": "lerobot", "fps": 10, "task": "wave",
                  "features": {"observation.state": ["camera.v", "joint.v"]}},
        }
    )  # fmt: skip
    here = write_dataset(made, to=tmp_path / "here")
    there = write_dataset(made, to=tmp_path / "there", spark=True)
    assert here.outcomes["late"] == there.outcomes["late"] > 0
    assert here.outcomes == there.outcomes
    if kind == "parquet":
        tables = [pq.read_table(tmp_path / way) for way in ("here", "there")]
        rows = [sorted_by_key(table, "case") for table in tables]
        assert rows[0] == rows[1]
        return
    assert here.written == there.written
    assert here.written["episodes"] > 40
    for file in sorted((tmp_path / "here").rglob("*.*")):
        same = tmp_path / "there" / file.relative_to(tmp_path / "here")
        assert filecmp.cmp(file, same, shallow=False), file


def sorted_by_key(table: pa.Table, key: str) -> list[dict[str, Any]]:
    """The rows of each key in the order in which they left."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: row[key])


def test_by_rows_the_driver_holds_a_few_rows_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer gets is small, in order, and the episodes are those made in process."""
    record(tmp_path / "in" / "a.mcap", messages(3, pause_s=1))
    settings = {"format": "lerobot", "fps": 10, "task": "wave", "features": FEATURES}
    made = PipelineDefinition.of(pipeline(tmp_path / "in", settings))
    monkeypatch.setattr(StoredRun.batches, "__defaults__", (1000,))
    sizes = []
    write = LeRobotWriter.write
    monkeypatch.setattr(
        LeRobotWriter, "write", lambda self, rows: (sizes.append(rows.num_rows), write(self, rows))
    )
    there = write_dataset(made, to=tmp_path / "there", spark=True)
    assert max(sizes) < 10 < len(sizes) + sum(sizes)
    monkeypatch.undo()
    here = write_dataset(made, to=tmp_path / "here")
    assert there.written == here.written
    assert here.written["episodes"] == 2
    for file in ("data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"):
        rows = [pq.read_table(tmp_path / way / file).to_pylist() for way in ("here", "there")]
        assert rows[0] == rows[1]
