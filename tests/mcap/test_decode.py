"""Payloads as columns: ROS 2, ROS 1, protobuf and JSON, by the schemas that recordings carry."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from mcap_files import as_table
from tidegate import mcap
from tidegate.errors import ConfigError
from tidegate.mcap import McapWriter
from tidegate.mcap.payload.codecs import codec_of
from tidegate.mcap.records import Channel, Schema

ros = pytest.importorskip("ros_messages", reason="pip install 'tidegate[rosbag]'")

Payloads = list[bytes]


def record(path: Path, *channels: tuple[dict[str, Any], Payloads]) -> Path:
    with McapWriter(path, compression="none") as log:
        for number, (channel, payloads) in enumerate(channels):
            made = log.channel(**{"topic": f"/{number}", **channel})
            for place, payload in enumerate(payloads):
                log.message(made, 10 * place + number, payload)
    return path


def ros_channel(kind: str, ros1: bool = False) -> dict[str, Any]:
    return {
        "schema": kind.replace("/msg/", "/") if ros1 else kind,
        "schema_encoding": "ros1msg" if ros1 else "ros2msg",
        "schema_data": ros.definition(kind, ros1), "encoding": "ros1" if ros1 else "cdr",
    }  # fmt: skip


def columns(path: Path, decode: str, **options: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = as_table(mcap.read(path, decode=decode, **options)).to_pydict()
    return found


# -- ROS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["little", "big", "ros1"])
@pytest.mark.parametrize("kind", ros.TYPES)
def test_any_ros_message_is_read_as_it_was_written(tmp_path: Path, kind: str, way: str) -> None:
    rng, ros1 = random.Random(kind + way), way == "ros1"
    if kind not in ros.store(ros1).types:
        pytest.skip("ROS 1 does not have this type")
    sent = [ros.any_message(kind, rng, ros1) for _ in range(12)]
    payloads = [ros.serialised(one, ros1, way == "little") for one in sent]
    path = record(tmp_path / "a.mcap", (ros_channel(kind, ros1), payloads))
    got = columns(path, "*")
    assert got["error"] == [None] * 12
    assert [json.loads(text) for text in got["decoded"]] == [ros.as_json(one) for one in sent]


@pytest.mark.parametrize("way", ["little", "big", "ros1"])
def test_fields_of_ros_messages(tmp_path: Path, way: str) -> None:
    rng, ros1 = random.Random(7), way == "ros1"
    kind = "sensor_msgs/msg/BatteryState"
    sent = [ros.any_message(kind, rng, ros1) for _ in range(50)]
    for one in sent:
        one.header.stamp.nanosec %= 10**9
        one.header.stamp.sec = abs(one.header.stamp.sec)
    payloads = [ros.serialised(one, ros1, way == "little") for one in sent]
    path = record(tmp_path / "a.mcap", (ros_channel(kind, ros1), payloads))
    got = columns(
        path,
        "header.stamp, header.frame_id, cell_voltage, voltage double, power_supply_status, present,"
        "location as place",
    )
    assert got["header_stamp"] == [
        m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in sent
    ]
    assert got["header_frame_id"] == [m.header.frame_id for m in sent]
    assert got["cell_voltage"] == [m.cell_voltage.tolist() for m in sent]
    assert got["voltage"] == [m.voltage for m in sent]
    assert got["power_supply_status"] == [m.power_supply_status for m in sent]
    assert got["present"] == [m.present for m in sent]
    assert got["place"] == [m.location for m in sent]


def test_lists_of_texts_and_messages_and_bytes(tmp_path: Path) -> None:
    rng = random.Random(8)
    joints = [ros.any_message("sensor_msgs/msg/JointState", rng) for _ in range(9)]
    clouds = [ros.any_message("sensor_msgs/msg/PointCloud2", rng) for _ in range(9)]
    path = record(
        tmp_path / "a.mcap",
        (ros_channel("sensor_msgs/msg/JointState"), [ros.serialised(m) for m in joints]),
        (ros_channel("sensor_msgs/msg/PointCloud2"), [ros.serialised(m) for m in clouds]),
    )
    got = columns(path, "name as names, data as points, fields")
    assert got["names"] == [m.name for m in joints] + [None] * 9
    assert got["points"] == [None] * 9 + [m.data.tobytes() for m in clouds]
    said = [json.loads(text) for text in got["fields"][9:]]
    assert said == [ros.as_json(m)["fields"] for m in clouds]


IDL = b"""
module pkg { module msg {
  module Point_Constants { const uint8 ORIGIN = 0; };
  struct Point { double x; sequence<float, 3> more; };
}; };
"""


def test_a_definition_in_idl(tmp_path: Path) -> None:
    separator = b"=" * 80 + b"\n"
    outer = b"""#include "pkg/msg/Point.idl"
module pkg { module msg { struct Track { string id; pkg::msg::Point at; }; }; };
"""
    text = outer + separator + b"IDL: pkg/msg/Point\n" + IDL
    channel = {"schema": "pkg/msg/Track", "schema_encoding": "ros2idl", "schema_data": text,
               "encoding": "cdr"}  # fmt: skip
    payload = b"\0\1\0\0" + b"\x02\0\0\0a\0\0\0" + bytes(8) + b"\x01\0\0\0\0\0\x80\x3f"
    got = columns(record(tmp_path / "a.mcap", (channel, [payload])), "id, at.x, at.more")
    assert (got["error"], got["id"], got["at_x"], got["at_more"]) == ([None], ["a"], [0.0], [[1.0]])


# -- protobuf -----------------------------------------------------------------------------------


def track_class() -> tuple[Any, bytes]:
    """A message type with a bit of everything, and its descriptors, last needed first."""
    file = descriptor_pb2.FileDescriptorProto(
        name="track.proto", package="pkg", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="CAR", number=0)
    kind.value.add(name="BIKE", number=1)
    F = descriptor_pb2.FieldDescriptorProto  # noqa: N806
    point = file.message_type.add(name="Point")
    point.field.add(name="x", number=1, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    track = file.message_type.add(name="Track")
    for number, (name, kind_of, label, inside) in enumerate(
        [
            ("timestamp", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("id", F.TYPE_UINT64, F.LABEL_OPTIONAL, None),
            ("kind", F.TYPE_ENUM, F.LABEL_OPTIONAL, ".pkg.Kind"),
            ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".pkg.Point"),
            ("speeds", F.TYPE_FLOAT, F.LABEL_REPEATED, None),
            ("path", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".pkg.Point"),
            ("image", F.TYPE_BYTES, F.LABEL_OPTIONAL, None),
            ("name", F.TYPE_STRING, F.LABEL_OPTIONAL, None),
        ],
        1,
    ):
        track.field.add(name=name, number=number, type=kind_of, label=label, type_name=inside)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool = DescriptorPool()
    pool.Add(stamp)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("pkg.Track"))
    return made, descriptor_pb2.FileDescriptorSet(file=[file, stamp]).SerializeToString()


def test_protobuf(tmp_path: Path) -> None:
    track, descriptors = track_class()
    first = track(id=7, kind=1, speeds=[1.5, 2], image=b"\xff", name="é")
    first.timestamp.FromNanoseconds(5_000_000_007)
    first.at.x = 2.5
    first.path.add(x=1)
    huge = track(id=2**63)
    channel = {"schema": "pkg.Track", "schema_encoding": "protobuf", "schema_data": descriptors,
               "encoding": "protobuf"}  # fmt: skip
    payloads = [first.SerializeToString(), b"", b"\x0a\xff", huge.SerializeToString()]
    got = columns(
        record(tmp_path / "a.mcap", (channel, payloads)),
        "timestamp, id, kind, at.x, speeds, image, name, path, *",
    )
    assert got["timestamp"] == [5_000_000_007, None, None, None]
    assert got["id"] == [7, 0, None, None]
    assert got["kind"] == ["BIKE", "CAR", None, None]
    assert got["at_x"] == [2.5, None, None, None]
    assert got["speeds"] == [[1.5, 2.0], [], None, None]
    assert got["image"] == [b"\xff", b"", None, None]
    assert got["path"] == ['[{"x": 1.0}]', "[]", None, None]
    assert json.loads(got["decoded"][0]) == {
        "timestamp": {"seconds": 5, "nanos": 7}, "id": 7, "kind": "BIKE", "at": {"x": 2.5},
        "speeds": [1.5, 2.0], "path": [{"x": 1.0}], "image": "/w==", "name": "é",
    }  # fmt: skip
    assert got["error"][:2] == [None, None]
    assert got["error"][2].startswith("pkg.Track cannot be decoded: ")
    assert got["error"][3] == f"id is {2**63}, which is not a int64"
    assert got["log_time_ns"] == [0, 10, None, None]


# -- JSON ---------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "speed": {"type": "number"}, "n": {"type": ["integer", "null"]}, "free": {},
        "tags": {"type": "array", "items": {"type": "string"}},
        "pose": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}  # fmt: skip


def test_json(tmp_path: Path) -> None:
    payloads = [
        b'{"speed": 2, "n": 3, "tags": ["a"], "pose": {"x": 1.5}, "free": {"a": [1, "b"]}}',
        b'{"n": null}', b'{"n": 2.5}', b'{"n": true}', b'{"pose": 4}', b'\xff', b"[1", b"",
        b'{"free": "\\ud800"}',
    ]  # fmt: skip
    channel = {"schema": "S", "schema_encoding": "jsonschema", "encoding": "json",
               "schema_data": json.dumps(SCHEMA).encode()}  # fmt: skip
    path = record(tmp_path / "a.mcap", (channel, payloads))
    got = columns(path, "speed, n, tags, pose.x, free string, pose")
    assert got["speed"] == [2.0] + [None] * 8
    assert got["n"][:2] == [3, None]
    assert got["tags"][:2] == [["a"], None]
    assert got["pose_x"][0] == 1.5
    assert got["free"][0] == '{"a": [1, "b"]}'
    assert got["pose"][0] == '{"x": 1.5}'
    assert got["error"][:2] == [None, None]
    assert got["error"][2] == "n is 2.5, which is not a int64"
    assert got["error"][3] == "n is True, which is not a int64"
    assert got["error"][4] == "JSON of another shape: pose has no fields"
    assert all(reason.startswith("not JSON: ") for reason in got["error"][5:8])
    assert got["error"][8] == "free is '\\ud800', which is not a string"


@pytest.mark.parametrize("depth", [100, 900, 990, 100_000])
def test_json_that_is_nested_deeply_does_not_raise(tmp_path: Path, depth: int) -> None:
    payload = b'{"x": ' + b"[" * depth + b"1.5" + b"]" * depth + b"}"
    path = record(tmp_path / "a.mcap", ({}, [payload, b'{"x": 1}']))
    for kind in ("string", "int", "array<double>"):
        got = columns(path, f"x {kind} as a")
        assert (got["a"][0] is None) == (got["error"][0] is not None)
        assert got["data"][0] == payload


# -- what cannot be decoded ---------------------------------------------------------------------

IMU = ros_channel("sensor_msgs/msg/Imu")


@pytest.mark.parametrize(
    ("channel", "reason"),
    [
        ({"encoding": "cbor"}, "payloads of encoding 'cbor'; known are cdr, ros1, protobuf, json"),
        ({"encoding": "cdr"}, "payloads of encoding 'cdr' without a schema"),
        ({**IMU, "schema_data": b"float64 not/a/name"}, "the definition of sensor_msgs/msg/Imu: "),
        ({**IMU, "schema_data": b"Nothing x"}, "sensor_msgs/msg/Nothing is nowhere defined"),
        ({**IMU, "schema_data": b"sensor_msgs/Imu x"}, "sensor_msgs/msg/Imu contains itself"),
        ({**IMU, "schema_data": b"float64[999999999999] x"}, "x has 7999999999992 bytes"),
        ({**IMU, "schema_data": b"#" * 2**21}, "the definition of sensor_msgs/msg/Imu: too large"),
        (
            {
                **IMU,
                "schema_encoding": "ros2idl",
                "schema_data": b"const long X = 1 << 999999999999;",
            },
            "the definition of sensor_msgs/msg/Imu: too large, or with shifts",
        ),
        ({**IMU, "encoding": "protobuf"}, "the protobuf schema sensor_msgs/msg/Imu: "),
    ],
)
def test_channels_that_cannot_be_decoded(
    tmp_path: Path, channel: dict[str, Any], reason: str
) -> None:
    path = record(tmp_path / "a.mcap", (channel, [b"\0\1\0\0"] * 3))
    got = columns(path, "*, x double")
    assert [said.startswith(reason) for said in got["error"]] == [True] * 3, got["error"][0]
    assert got["decoded"] == got["x"] == got["log_time_ns"] == [None] * 3
    assert got["data"] == [b"\0\1\0\0"] * 3


def test_a_definition_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    levels = [f"pkg/L{n + 1} a\npkg/L{n + 1} b\n" for n in range(30)] + ["float64 x\nstring y\n"]
    text = levels[0] + "".join(
        f"{'=' * 80}\nMSG: pkg/L{n}\n{level}" for n, level in enumerate(levels) if n
    )
    channel = {**IMU, "schema": "pkg/msg/L0", "schema_data": text.encode()}
    got = columns(record(tmp_path / "a.mcap", (channel, [b"\0\1\0\0"])), "*")
    assert got["error"] == ["a message of more than 20000 fields"]


def test_a_payload_that_is_cut_or_too_long_or_no_cdr(tmp_path: Path) -> None:
    whole = ros.serialised(ros.any_message("sensor_msgs/msg/Imu", random.Random(1)))
    payloads = [whole[:-1], whole + bytes(4), b"\0\7" + whole[2:], whole[:4], b"", whole]
    got = columns(record(tmp_path / "a.mcap", (IMU, payloads)), "orientation.x, header.frame_id")
    name = "sensor_msgs/msg/Imu cannot be decoded: "
    assert got["error"] == [
        f"{name}the payload ends inside orientation.y to linear_acceleration_covariance",
        f"{name}4 bytes are left over",
        f"{name}the payload does not begin as plain CDR",
        f"{name}the payload ends inside header.stamp.sec to header.stamp.nanosec",
        f"{name}the payload does not begin as plain CDR",
        None,
    ]
    assert [value is None for value in got["orientation_x"]] == [True] * 5 + [False]


# -- what is asked for --------------------------------------------------------------------------


def test_types_are_widened_over_topics_and_told_where_they_clash(tmp_path: Path) -> None:
    text = b'{"x": 5}'
    path = record(
        tmp_path / "a.mcap",
        ({**IMU, "schema": "p/msg/A", "schema_data": b"int32 x"}, [b"\0\1\0\0\5\0\0\0"]),
        ({**IMU, "schema": "p/msg/B", "schema_data": b"float32 x"}, [b"\0\1\0\0\0\0\x80\x3f"]),
        ({**IMU, "schema": "p/msg/C", "schema_data": b"string x"}, [b"\0\1\0\0\2\0\0\0a\0"]),
        ({}, [text]),
    )
    got = as_table(mcap.read(path, ["/0", "/1", "/3"], decode="x"))
    assert got["x"].type == pa.float64()
    assert got["x"].to_pylist() == [5.0, 1.0, 5.0]
    with pytest.raises(ConfigError, match="is int32 in one topic and string in another"):
        columns(path, "x", topics=["/0", "/2"])
    got = as_table(mcap.read(path, decode="x int"))
    assert got["x"].to_pylist() == [5, 1, None, 5]
    assert got["error"].to_pylist()[2] == "x is 'a', which is not a int32"


def test_one_path_to_several_columns(tmp_path: Path) -> None:
    """The compiled walk has a place per path: asked twice, both columns were empty texts."""
    sent = [ros.any_message("sensor_msgs/msg/Imu", random.Random(n)) for n in range(3)]
    path = record(tmp_path / "a.mcap", (IMU, [ros.serialised(one) for one in sent]))
    decode = "orientation.x as a, orientation.x as b, orientation.x float as c, orientation"
    got = columns(path, decode)
    assert got["a"] == got["b"] == [one.orientation.x for one in sent]
    assert got["c"] == pytest.approx(got["a"])
    assert [json.loads(text)["x"] for text in got["orientation"]] == got["a"]
    assert got["error"] == [None] * 3


def test_a_field_of_one_topic(tmp_path: Path) -> None:
    """`data` is bytes in images and text in `std_msgs/String`: each topic has a column of its own,
    and what is not of a topic is that of all others."""
    image = ros.any_message("sensor_msgs/msg/CompressedImage", random.Random(1))
    text = ros.store().types["std_msgs/msg/String"]("idle")
    path = record(
        tmp_path / "a.mcap",
        (ros_channel("sensor_msgs/msg/CompressedImage"), [ros.serialised(image)]),
        (ros_channel("std_msgs/msg/String"), [ros.serialised(text)]),
    )
    with pytest.raises(ConfigError, match=r"say which topic is meant, as in `/topic:data as data`"):
        columns(path, "data")
    got = columns(path, "/1:data as mode, data as image")
    assert got["mode"] == [None, "idle"]
    assert got["image"] == [image.data.tobytes(), None]
    assert got["error"] == [None, None]


def test_messages_without_a_header_take_the_log_time(tmp_path: Path) -> None:
    image = ros.any_message("sensor_msgs/msg/CompressedImage", random.Random(1))
    image.header.stamp = ros.store().types["builtin_interfaces/msg/Time"](sec=5, nanosec=7)
    text = ros.store().types["std_msgs/msg/String"]("idle")
    path = record(
        tmp_path / "a.mcap",
        (ros_channel("sensor_msgs/msg/CompressedImage"), [ros.serialised(image)]),
        (ros_channel("std_msgs/msg/String"), [ros.serialised(text)] * 2),
    )
    by_header = as_table(mcap.read(path, clock="header"))
    assert by_header["header_stamp_ns"].to_pylist() == [5_000_000_007, None, None]
    both = as_table(mcap.read(path, clock="header_or_log"))
    assert both["header_stamp_ns"].to_pylist() == [5_000_000_007, 1, 11]
    some = as_table(mcap.read(path, clock="header_or_log", start_ns=2, end_ns=12))
    assert some["topic"].to_pylist() == ["/1"]


@pytest.mark.parametrize("indexed", [True, False])
def test_types_are_found_in_files_without_an_index(tmp_path: Path, indexed: bool) -> None:
    sent = [ros.any_message("sensor_msgs/msg/Imu", random.Random(n)) for n in range(3)]
    path = record(tmp_path / "a.mcap", (IMU, [ros.serialised(one) for one in sent]))
    if not indexed:
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rindex(b"\x0f\4\0\0\0\0\0\0\0")])
    got = columns(path, "orientation.x")
    assert got["orientation_x"][:3] == [one.orientation.x for one in sent]
    assert len(got["error"]) == (3 if indexed else 4)


@pytest.mark.parametrize(
    ("decode", "sentence"),
    [
        ("pose..x", "decode: got 'pose..x', must be a field"),
        ("x as", "decode: got 'x as', must be a field"),
        ("x text", "decode: got 'text', must be one of boolean, int"),
        ("x array<map>", "must be one of boolean"),
        ("orientation.x, orientation.x", "names the column orientation_x twice"),
        ("orientation.x as topic", "topic is a column already"),
        ("orientation.q", "no message there has this field; give one: 'orientation.q double'"),
        ("* double", "the whole message is JSON text"),
        (" , ", "must name fields"),
    ],
)
def test_wrong_fields(tmp_path: Path, decode: str, sentence: str) -> None:
    payload = ros.serialised(ros.any_message("sensor_msgs/msg/Imu", random.Random(1)))
    path = record(tmp_path / "a.mcap", (IMU, [payload]))
    with pytest.raises(ConfigError) as error:
        columns(path, decode)
    assert sentence in str(error.value)


def test_the_fields_of_a_schema_are_listed() -> None:
    """As far as a path can lead: into single messages, not into lists and times."""
    kind = "nav_msgs/msg/Odometry"
    _, described = track_class()
    told = {"properties": {"v": {"type": "number"}, "at": {"properties": {"x": {}}}}}
    schemas = {
        "cdr": Schema(1, kind, "ros2msg", ros.definition(kind)),
        "protobuf": Schema(1, "pkg.Track", "protobuf", described),
        "json": Schema(1, "any", "jsonschema", json.dumps(told).encode()),
    }
    found = {name: codec_of(Channel(1, 1, "t", name), one) for name, one in schemas.items()}
    ros_names = found["cdr"].names_in
    assert ros_names(()) == ("header", "child_frame_id", "pose", "twist")
    assert ros_names(("pose", "pose", "orientation")) == ("x", "y", "z", "w")
    for path in (("header", "stamp"), ("pose", "covariance"), ("child_frame_id",), ("none", "x")):
        assert ros_names(path) == (), path
    assert found["json"].names_in(()) == ("v", "at")
    assert found["json"].names_in(("at",)) == ("x",)
    assert found["json"].names_in(("v",)) == ()
    assert found["protobuf"].names_in(()) == tuple(
        field.name for field in track_class()[0].DESCRIPTOR.fields
    )
    assert found["protobuf"].names_in(("at",)) == ("x",)
    for path in (("path",), ("speeds",), ("none",)):
        assert found["protobuf"].names_in(path) == (), path
