"""`tidegate init --for training`: what it writes runs, and makes a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.errors import ConfigError
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition
from tidegate.profile.training import training_pipeline

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")
from dataset.recordings import messages, record  # noqa: E402


def test_the_file_fits_the_recording(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", messages(3))
    made = PipelineDefinition.from_yaml(training_pipeline(path, out="d"))
    align, episodes = made.stages
    assert align.settings["reference"] == "camera"
    assert align.settings["topics"] == {"joint": {"linear": "50 ms"}, "imu": {"linear": "25 ms"}}
    assert episodes.settings["gap"] == "150 ms"
    assert made.options.eventtime.late_tolerance == 100_000_000
    assert made.dataset is not None
    assert made.dataset.fps == 10
    assert made.dataset.features["observation.state"][0] == "joint.q"
    assert made.dataset.features["observation.images.camera"] == "camera.image"


def test_the_command_and_its_dataset(tmp_path: Path) -> None:
    path = record(tmp_path / "arm.mcap", [m for m in messages(3) if m.topic != "camera"])
    file, out = tmp_path / "run.yaml", tmp_path / "d"
    ran = CliRunner().invoke(
        app, ["init", str(path), "--for", "training", "--to", str(file), "--out", str(out)]
    )
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(app, ["dataset", str(file)])
    assert ran.exit_code == 0, ran.output
    assert (out / "meta" / "info.json").exists()
    with pytest.raises(ConfigError, match="training"):
        CliRunner().invoke(
            app, ["init", str(path), "--for", "fun", "--to", str(tmp_path / "x")],
            catch_exceptions=False,
        )  # fmt: skip


def test_raw_images(tmp_path: Path) -> None:
    types = ros.store().types
    kind = "sensor_msgs/msg/Image"
    joints = [m for m in messages(1) if m.topic == "joint"]
    path = record(tmp_path / "arm.mcap", joints)
    raw = tmp_path / "raw.mcap"
    from dataset.recordings import KINDS, START_NS, payload

    with McapWriter(raw) as log:
        camera = log.channel(
            topic="front", schema=kind, schema_encoding="ros2msg",
            schema_data=ros.definition(kind), encoding="cdr",
        )  # fmt: skip
        arm = log.channel(
            topic="joint", schema=KINDS["joint"], schema_encoding="ros2msg",
            schema_data=ros.definition(KINDS["joint"]), encoding="cdr",
        )  # fmt: skip
        for one in joints:
            log.message(arm, one.stamp_ns, payload(one))
        for n in range(10):
            stamp = START_NS + n * 100_000_000
            header = types["std_msgs/msg/Header"](
                stamp=types["builtin_interfaces/msg/Time"](
                    sec=stamp // 10**9, nanosec=stamp % 10**9
                ),
                frame_id="",
            )
            image = types[kind](
                header=header, height=4, width=4, encoding="bgr8", is_bigendian=0, step=12,
                data=np.full(48, 20 * n, np.uint8),
            )  # fmt: skip
            log.message(camera, stamp, ros.serialised(image))
    made = PipelineDefinition.from_yaml(training_pipeline(raw))
    assert made.dataset is not None
    assert made.dataset.features["observation.images.front"] == "front"
    pytest.importorskip("av", reason="pip install 'tidegate[video]'")
    from tidegate.dataset import write_dataset

    written = write_dataset(made, to=tmp_path / "d").written
    assert written["frames"] >= 8
    assert path.exists()


def test_what_is_no_recording_for_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MCAP"):
        training_pipeline(tmp_path / "none.mcap")
    with McapWriter(tmp_path / "text.mcap") as log:
        channel = log.channel(topic="said", encoding="json")
        for n in range(3):
            log.message(channel, n, b'{"text": "hello"}')
    with pytest.raises(ConfigError, match="no topic with numbers"):
        training_pipeline(tmp_path / "text.mcap")
    only = record(tmp_path / "a.mcap", [m for m in messages(1) if m.topic == "camera"])
    with pytest.raises(ConfigError, match="no topic with numbers"):
        training_pipeline(only)
    alone = record(tmp_path / "b.mcap", [m for m in messages(1) if m.topic == "joint"])
    with pytest.raises(ConfigError, match="nothing to align"):
        training_pipeline(alone)
