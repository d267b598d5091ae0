"""The messages that training data is made of, field by field: ROS 1 and 2, Foxglove as protobuf and
as JSON. What cannot be decoded is an error row."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from mcap_files import as_table
from tidegate import mcap
from tidegate.mcap import McapWriter

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")

PICTURE = bytes(range(256)) * 3


def read(path: Path, decode: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = as_table(mcap.read(path, decode=decode)).to_pydict()
    return found


def write(path: Path, channel: dict[str, Any], payloads: list[bytes]) -> Path:
    with McapWriter(path) as log:
        made = log.channel(topic="/t", **channel)
        for place, payload in enumerate(payloads):
            log.message(made, place, payload)
    return path


def ros_file(path: Path, message: Any, ros1: bool) -> Path:
    kind = message.__msgtype__
    channel = {
        "schema": kind.replace("/msg/", "/") if ros1 else kind,
        "schema_encoding": "ros1msg" if ros1 else "ros2msg",
        "schema_data": ros.definition(kind, ros1), "encoding": "ros1" if ros1 else "cdr",
    }  # fmt: skip
    good = ros.serialised(message, ros1)
    return write(path, channel, [good, good[: len(good) // 2]])


def header(ros1: bool) -> Any:
    types = ros.store(ros1).types
    stamp = types["builtin_interfaces/msg/Time"](sec=5, nanosec=7)
    seq = {"seq": 1} if ros1 else {}
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id="base", **seq)


@pytest.mark.parametrize("ros1", [False, True])
def test_images(tmp_path: Path, ros1: bool) -> None:
    types = ros.store(ros1).types
    pixels = np.frombuffer(PICTURE, np.uint8)
    image = types["sensor_msgs/msg/Image"](
        header=header(ros1), height=16, width=16, encoding="rgb8", is_bigendian=0, step=48,
        data=pixels,
    )  # fmt: skip
    got = read(
        ros_file(tmp_path / "i.mcap", image, ros1),
        "header.stamp, height, width, encoding as pixels, step, data as image",
    )
    assert got["image"] == [PICTURE, None]
    assert (got["height"][0], got["width"][0], got["step"][0]) == (16, 16, 48)
    assert got["pixels"][0] == "rgb8"
    assert got["header_stamp"][0] == 5_000_000_007
    assert got["error"][0] is None
    assert got["error"][1]
    packed = types["sensor_msgs/msg/CompressedImage"](
        header=header(ros1), format="jpeg", data=pixels
    )
    got = read(ros_file(tmp_path / "c.mcap", packed, ros1), "format, data as image")
    assert (got["format"], got["image"]) == (["jpeg", None], [PICTURE, None])


@pytest.mark.parametrize("ros1", [False, True])
def test_joints_imu_and_clouds(tmp_path: Path, ros1: bool) -> None:
    types = ros.store(ros1).types
    joints = types["sensor_msgs/msg/JointState"](
        header=header(ros1), name=["a", "b"], position=np.array([0.5, -1.0]),
        velocity=np.array([2.0]), effort=np.array([]),
    )  # fmt: skip
    got = read(
        ros_file(tmp_path / "j.mcap", joints, ros1),
        "name, position as q, velocity as dq, effort",
    )
    assert (got["name"][0], got["q"][0], got["dq"][0]) == (["a", "b"], [0.5, -1.0], [2.0])
    assert got["effort"][0] == []
    vector, zeros = types["geometry_msgs/msg/Vector3"], np.zeros(9)
    imu = types["sensor_msgs/msg/Imu"](
        header=header(ros1), orientation_covariance=zeros,
        orientation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.6, w=0.8),
        angular_velocity=vector(x=1.0, y=2.0, z=3.0), angular_velocity_covariance=zeros,
        linear_acceleration=vector(x=0.0, y=0.0, z=9.81), linear_acceleration_covariance=zeros,
    )  # fmt: skip
    got = read(
        ros_file(tmp_path / "m.mcap", imu, ros1),
        "orientation.z as qz, orientation.w as qw, linear_acceleration.z as az",
    )
    assert (got["qz"][0], got["qw"][0], got["az"][0]) == (0.6, 0.8, 9.81)
    point = types["sensor_msgs/msg/PointField"]
    cloud = types["sensor_msgs/msg/PointCloud2"](
        header=header(ros1), height=1, width=64,
        fields=[point(name="x", offset=0, datatype=7, count=1)], is_bigendian=False,
        point_step=12, row_step=768, data=np.frombuffer(PICTURE, np.uint8), is_dense=True,
    )  # fmt: skip
    got = read(
        ros_file(tmp_path / "p.mcap", cloud, ros1), "width, point_step, fields, data as points"
    )
    assert (got["width"][0], got["point_step"][0], got["points"][0]) == (64, 12, PICTURE)
    assert json.loads(got["fields"][0]) == [{"name": "x", "offset": 0, "datatype": 7, "count": 1}]
    assert got["error"][1]


def test_foxglove_json(tmp_path: Path) -> None:
    message = {
        "timestamp": {"sec": 5, "nsec": 7}, "frame_id": "camera", "format": "jpeg",
        "data": base64.b64encode(PICTURE).decode(),
    }  # fmt: skip
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string"},
            "data": {"type": "string", "contentEncoding": "base64"},
        },
    }
    channel = {
        "schema": "foxglove.CompressedImage", "schema_encoding": "jsonschema",
        "schema_data": json.dumps(schema).encode(), "encoding": "json",
    }  # fmt: skip
    path = write(tmp_path / "f.mcap", channel, [json.dumps(message).encode(), b"{"])
    for told in ("data", "data binary"):
        got = read(path, f"format, {told} as image, timestamp.sec long as sec")
        assert got["image"] == [PICTURE, None]
    assert got["format"][0] == "jpeg"
    assert got["sec"][0] == 5
    assert got["error"][1]


def test_text_that_is_no_base64_is_told(tmp_path: Path) -> None:
    channel = {"schema": "", "schema_encoding": "", "schema_data": b"", "encoding": "json"}
    path = write(tmp_path / "f.mcap", channel, [b'{"data": "###"}', b'{"data": 3}'])
    got = read(path, "data binary as image")
    assert got["image"] == [None, None]
    assert all("data" in error for error in got["error"])


def test_foxglove_protobuf(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="foxglove", syntax="proto3")
    made = file.message_type.add(name="CompressedImage")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [("frame_id", kinds.TYPE_STRING), ("data", kinds.TYPE_BYTES), ("format", kinds.TYPE_STRING)]
    ):
        made.field.add(name=name, number=number + 1, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    cls = message_factory.GetMessageClass(pool.FindMessageTypeByName("foxglove.CompressedImage"))
    payload = cls(frame_id="camera", data=PICTURE, format="png").SerializeToString()
    channel = {
        "schema": "foxglove.CompressedImage", "schema_encoding": "protobuf",
        "schema_data": descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(),
        "encoding": "protobuf",
    }  # fmt: skip
    path = write(tmp_path / "f.mcap", channel, [payload, b"\xff\xff\xff"])
    got = read(path, "format, data as image")
    assert (got["image"], got["format"]) == ([PICTURE, None], ["png", None])
    assert got["error"][1]
