"""Datasets made on Spark are those made in process: by file, and by rows."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.dataset import write_dataset
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
