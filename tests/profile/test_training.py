"""`tidegate init --for training`: what it writes runs, and makes a dataset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.dataset import write_dataset
from tidegate.errors import ConfigError
from tidegate.mcap import McapWriter
from tidegate.pipeline import PipelineDefinition
from tidegate.profile.training import training_pipeline

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")
from dataset.recordings import START_NS, messages, record  # noqa: E402


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


def test_a_file_per_topic(tmp_path: Path) -> None:
    """The same pipeline as for one file with all topics; a missing topic is named."""
    sent = messages(3)
    whole = training_pipeline(record(tmp_path / "whole" / "a.mcap", sent), out="d")
    for topic in ("imu", "joint", "camera"):
        record(tmp_path / "parts" / f"{topic}.mcap", [one for one in sent if one.topic == topic])
    made, expected = (
        PipelineDefinition.from_yaml(text)
        for text in (training_pipeline(tmp_path / "parts", out="d"), whole)
    )
    assert made.stages == expected.stages
    assert made.dataset is not None
    assert expected.dataset is not None
    state = "observation.state"
    assert set(made.dataset.features.pop(state)) == set(expected.dataset.features.pop(state))
    assert made.dataset == expected.dataset
    with pytest.raises(ConfigError, match=r"no topic with numbers.*its topics: camera"):
        training_pipeline(tmp_path / "parts" / "camera.mcap")


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
    from dataset.recordings import KINDS, payload

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


def test_any_floats_are_features_and_commands_are_actions(tmp_path: Path) -> None:
    """A mobile robot: odometry, commands, a scale, a battery beside text and a camera whose field
    `data` is of another type. Every value of the dataset is that of a message."""
    kinds = {
        "/odom": "nav_msgs/msg/Odometry", "/cmd_vel": "geometry_msgs/msg/Twist",
        "/chatter": "std_msgs/msg/String", "/scale": "std_msgs/msg/Float64",
        "/battery": "sensor_msgs/msg/BatteryState", "/front": "sensor_msgs/msg/CompressedImage",
    }  # fmt: skip
    rng, types = random.Random(3), ros.store().types
    start, path = 1_700_000_000 * 10**9, tmp_path / "robot.mcap"
    sent: dict[int, tuple[Any, Any]] = {}
    with McapWriter(path) as log:
        channels = {
            topic: log.channel(
                topic=topic, schema=kind, schema_encoding="ros2msg",
                schema_data=ros.definition(kind), encoding="cdr",
            )
            for topic, kind in kinds.items() if topic != "/front"
        }  # fmt: skip
        for n in range(100):
            now = start + n * 50_000_000
            stamp = types["builtin_interfaces/msg/Time"](sec=now // 10**9, nanosec=now % 10**9)
            odometry = ros.any_message(kinds["/odom"], rng)
            odometry.header.stamp = stamp
            vector = types["geometry_msgs/msg/Vector3"]
            command = types[kinds["/cmd_vel"]](
                linear=vector(x=float(n), y=0.0, z=0.0), angular=vector(x=0.0, y=0.0, z=-float(n))
            )
            sent[now] = (odometry, command)
            log.message(channels["/odom"], now, ros.serialised(odometry))
            log.message(channels["/cmd_vel"], now + 1_000_000, ros.serialised(command))
            log.message(channels["/chatter"], now, ros.serialised(types[kinds["/chatter"]]("hi")))
            log.message(channels["/scale"], now, ros.serialised(types[kinds["/scale"]](float(n))))
    text = training_pipeline(path, out=str(tmp_path / "d"))
    assert "# not read: /battery, /chatter" in text
    made = PipelineDefinition.from_yaml(text)
    align, episodes = made.stages
    assert align.settings["reference"] == "/odom"
    assert align.settings["topics"] == {
        "/cmd_vel": {"latest": "125 ms"}, "/scale": {"linear": "125 ms"},
    }  # fmt: skip
    assert "actions" not in episodes.settings
    assert made.dataset is not None
    state = made.dataset.features["observation.state"]
    assert [name for name in state if "covariance" in name] == []
    assert state[:2] == ["/odom.pose_pose_position_x", "/odom.pose_pose_position_y"]
    assert state[-1] == "/scale.data_value"
    written = write_dataset(made)
    assert written.written["frames"] == 99, "the first has no command before it"
    assert written.reasons == {
        "dropped": {
            "not used by any aligned row": 2,
            "/cmd_vel: no message at or before within 125 ms": 1,
        }
    }
    rows = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    for row in rows:
        odometry, _ = sent[row["time_ns"]]
        _, before = sent[row["time_ns"] - 50_000_000]
        pose, twist = odometry.pose.pose, odometry.twist.twist
        values = [
            *(getattr(pose.position, axis) for axis in "xyz"),
            *(getattr(pose.orientation, axis) for axis in "xyzw"),
            *(getattr(twist.linear, axis) for axis in "xyz"),
            *(getattr(twist.angular, axis) for axis in "xyz"),
            before.linear.x + 1,
        ]
        assert row["observation.state"] == pytest.approx(values, rel=1e-6)
        assert row["action"] == pytest.approx([before.linear.x, 0, 0, 0, 0, before.angular.z])


def test_a_topic_without_a_header_beside_cameras(tmp_path: Path) -> None:
    """A gripper as `std_msgs/Float64`: its field `data` is bytes in the images, and it has no stamp
    of its own. It was not read at all."""
    sent = messages(3)
    path = tmp_path / "arm.mcap"
    record(path, sent)
    gripper = ros.store().types["std_msgs/msg/Float64"]
    folder = tmp_path / "both"
    folder.mkdir()
    path.rename(folder / "a.mcap")
    with McapWriter(folder / "b.mcap") as log:
        channel = log.channel(
            topic="/gripper", schema="std_msgs/msg/Float64", schema_encoding="ros2msg",
            schema_data=ros.definition("std_msgs/msg/Float64"), encoding="cdr",
        )  # fmt: skip
        for n in range(60):
            log.message(channel, START_NS + n * 50_000_000, ros.serialised(gripper(float(n))))
    made = PipelineDefinition.from_yaml(training_pipeline(folder, out=str(tmp_path / "d")))
    source = made.streams["robot"].source
    assert source is not None
    assert source.options["clock"] == "header_or_log"
    assert "/gripper:data double as gripper_data_value" in source.options["decode"]
    assert made.dataset is not None
    written = write_dataset(made)
    assert written.written["frames"] > 20
    state = made.dataset.features["observation.state"]
    place = state.index("/gripper.gripper_data_value") - len(state)
    rows = pq.read_table(tmp_path / "d/data/chunk-000/file-000.parquet").to_pylist()
    for row in rows:
        expected = (row["time_ns"] - START_NS) / 50_000_000
        assert row["observation.state"][place] == pytest.approx(expected)


def in_ros1(one: Any, store: Any) -> bytes:
    """A message of joints or an IMU as ROS 1 serialises it."""
    from dataset.recordings import KINDS

    types = store.types
    stamp = types["builtin_interfaces/msg/Time"](
        sec=one.stamp_ns // 10**9, nanosec=one.stamp_ns % 10**9
    )
    header = types["std_msgs/msg/Header"](seq=0, stamp=stamp, frame_id="base")
    none, zeros = np.array([], np.float64), np.zeros(9)
    if one.topic == "joint":
        made = types[KINDS["joint"]](
            header=header, name=["a", "b"], position=np.array(one.value), velocity=none,
            effort=none,
        )  # fmt: skip
    else:
        vector = types["geometry_msgs/msg/Vector3"]
        made = types[KINDS["imu"]](
            header=header,
            orientation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0),
            orientation_covariance=zeros, angular_velocity=vector(x=0.0, y=0.0, z=0.0),
            angular_velocity_covariance=zeros,
            linear_acceleration=vector(x=0.0, y=0.0, z=one.value),
            linear_acceleration_covariance=zeros,
        )  # fmt: skip
    return bytes(store.serialize_ros1(made, KINDS[one.topic]))


@pytest.mark.parametrize("kind", ["one.bag", "two"])
def test_bags_too(tmp_path: Path, kind: str) -> None:
    """ROS 1 and ROS 2 bags, from `init` to the dataset; their joints are those that were sent."""
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    from dataset.recordings import KINDS, payload

    sent = sorted((m for m in messages(2) if m.topic != "camera"), key=lambda m: m.stamp_ns)
    path, ros1 = tmp_path / kind, get_typestore(Stores.ROS1_NOETIC)
    if kind == "two":
        with rosbag2.Writer(path, version=9) as bag:
            topics = {
                name: bag.add_connection(name, KINDS[name], typestore=ros.store())
                for name in ("joint", "imu")
            }
            for one in sent:
                bag.write(topics[one.topic], one.stamp_ns, payload(one))
    else:
        with rosbag1.Writer(path) as old:
            topics = {
                name: old.add_connection(name, KINDS[name], typestore=ros1)
                for name in ("joint", "imu")
            }
            for one in sent:
                old.write(topics[one.topic], one.stamp_ns, in_ros1(one, ros1))
    file, out = tmp_path / "run.yaml", tmp_path / "d"
    ran = CliRunner().invoke(
        app, ["init", str(path), "--for", "training", "--to", str(file), "--out", str(out)]
    )
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(app, ["dataset", str(file)])
    assert ran.exit_code == 0, ran.output
    rows = pq.read_table(out / "data/chunk-000/file-000.parquet").to_pylist()
    joints = {m.stamp_ns: m.value for m in sent if m.topic == "joint"}
    assert len(rows) > 90
    for row in rows:
        assert row["observation.state"][:2] == pytest.approx(joints[row["time_ns"]], rel=1e-6)
