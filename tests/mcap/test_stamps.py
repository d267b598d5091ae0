"""Header stamps, each against the value that was put in by the encoding's own tools."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from tidegate import mcap
from tidegate.mcap.stamps import NONE, _json_stamp, _json_stamps

HEADER = b"std_msgs/Header header\nfloat64 x\n" + b"=" * 80 + b"\nMSG: std_msgs/Header\n"
STAMP = (1_700_000_000, 123_456_789)
STAMP_NS = STAMP[0] * 10**9 + STAMP[1]


def stamps(tmp_path: Path, encoding: str, schema: dict[str, object], *data: bytes) -> list[object]:
    path = tmp_path / "log.mcap"
    with mcap.McapWriter(path) as log:
        channel = log.channel("/t", encoding=encoding, **schema)  # type: ignore[arg-type]
        for n, one in enumerate(data):
            log.message(channel, n, one)
    table = pa.Table.from_batches(list(mcap.read(path, clock="header")))
    return table["header_stamp_ns"].to_pylist()


def cdr(sec: int, nano: int, order: str = "<", tail: bytes = b"rest") -> bytes:
    return bytes([0, order == "<", 0, 0]) + struct.pack(order + "iI", sec, nano) + tail


def ros(text: bytes, kind: str = "ros2msg") -> dict[str, object]:
    return {"schema": "pkg/msg/T", "schema_encoding": kind, "schema_data": text}


def test_ros2(tmp_path: Path) -> None:
    data = (cdr(*STAMP), cdr(*STAMP, ">"), cdr(-1, 5), b"\0\1", cdr(1, 2 * 10**9))
    wanted = [STAMP_NS, STAMP_NS, -(10**9) + 5, None, None]
    assert stamps(tmp_path, "cdr", ros(HEADER), *data) == wanted


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (b"# a comment\n\nint32 KIND=3\nstd_msgs/msg/Header header # first\n", True),
        (b"Header header", True),
        (b"builtin_interfaces/Time stamp\nint32 x", True),
        (b"float64 x\nstd_msgs/Header header", False),
        (b"std_msgs/Header[] headers", False),
        (b"HeaderLike header", False),
        (b"", False),
    ],
)
def test_ros2_only_if_the_first_field_is_one(tmp_path: Path, text: bytes, has: bool) -> None:
    assert stamps(tmp_path, "cdr", ros(text), cdr(*STAMP)) == [STAMP_NS if has else None]


def test_ros2_idl(tmp_path: Path) -> None:
    head = b"module std_msgs { module msg { struct Header { builtin_interfaces::msg::Time stamp;"
    text = head + b" }; }; };\nmodule p { module msg { struct T { std_msgs::msg::Header header; "
    assert stamps(tmp_path, "cdr", ros(text + b"}; }; };", "ros2idl"), cdr(*STAMP)) == [STAMP_NS]


def test_ros1(tmp_path: Path) -> None:
    data = struct.pack("<III", 77, *STAMP) + b"rest"
    assert stamps(tmp_path, "ros1", ros(HEADER, "ros1msg"), data) == [STAMP_NS]


def test_json(tmp_path: Path) -> None:
    stamp = {"sec": STAMP[0], "nanosec": STAMP[1]}
    messages: list[tuple[object, object]] = [
        ({"header": {"stamp": stamp, "frame_id": "a"}, "x": 1}, STAMP_NS),
        ({"timestamp": {"sec": 1, "nsec": 2}}, 10**9 + 2),
        ({"x": {"deep": 1}, "header": {"stamp": stamp}}, STAMP_NS),
        ({"x": {"stamp": {"sec": 9, "nsec": 9}}}, None),
        ({"note": '"stamp": {"sec": 9, "nsec": 9}', "header": {"stamp": stamp}}, STAMP_NS),
        ({"header": {"stamp": {"nanosec": STAMP[1], "sec": STAMP[0]}}}, STAMP_NS),
        ({"x": 1}, None),
        ({"stamp": 12}, None),
        ([1, 2], None),
        ({"stamp": {"sec": 10**18, "nsec": 0}}, None),
        ({"stamp": {"sec": 9_999_999_999, "nsec": 0}}, None),
    ]
    data = [json.dumps(message).encode() for message, _ in messages]
    wanted = [value for _, value in messages]
    assert stamps(tmp_path, "json", {}, *data, b"not json", b"") == [*wanted, None, None]


keys = st.sampled_from(["header", "stamp", "timestamp", "sec", "nsec", "nanosec", "x", '"stamp"'])
values = st.recursive(
    st.integers(0, 2000) | st.text(alphabet='{}":, stamp\\', max_size=12) | st.none(),
    lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(keys, values, max_size=4), min_size=1, max_size=5))
def test_the_fast_way_for_json_never_disagrees_with_the_slow_one(messages: list[object]) -> None:
    data = [json.dumps(message).encode() for message in messages]
    assert _json_stamps(pa.array(data, pa.binary())).tolist() == [_json_stamp(d) for d in data]


def proto_schema() -> tuple[dict[str, object], type]:
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="t.proto", package="pkg", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, inner in (("Header", ".google.protobuf.Timestamp"), ("T", ".pkg.Header")):
        message = file.message_type.add(name=name)
        message.field.add(name="x", number=1, type=kinds.TYPE_DOUBLE, label=1)
        message.field.add(name="note", number=2, type=kinds.TYPE_STRING, label=1)
        field = "stamp" if name == "Header" else "header"
        message.field.add(name=field, number=40, type=kinds.TYPE_MESSAGE, label=1, type_name=inner)
        message.field.add(name="n", number=41, type=kinds.TYPE_SINT64, label=1)
    time_file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time_file)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(time_file)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("pkg.T"))
    files = descriptor_pb2.FileDescriptorSet(file=[time_file, file])
    given_schema = {"schema": "pkg.T", "schema_encoding": "protobuf"}
    return {**given_schema, "schema_data": files.SerializeToString()}, made


def test_protobuf(tmp_path: Path) -> None:
    schema, kind = proto_schema()
    one = kind(x=1.5, note="before", n=-3)
    one.header.stamp.seconds, one.header.stamp.nanos = STAMP
    one.header.note = "inside"
    none = kind(x=2.0)
    before = kind()
    before.header.stamp.seconds = -5
    zero = kind()
    zero.header.stamp.seconds = 0
    data = [message.SerializeToString() for message in (one, none, before, zero)]
    assert stamps(tmp_path, "protobuf", schema, *data, data[0][:-4], b"\xff" * 20) == [
        STAMP_NS, None, None, 0, None, None,
    ]  # fmt: skip


def test_topics_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log.mcap"
    with mcap.McapWriter(path) as log:
        a = log.channel("/a", encoding="cdr", **ros(HEADER))  # type: ignore[arg-type]
        b = log.channel("/b", encoding="json")
        for n in range(10):
            log.message(a, n, cdr(n, 1))
            log.message(b, n, b'{"stamp":{"sec":%d,"nsec":2}}' % n)
    table = pa.Table.from_batches(list(mcap.read(path, clock="header")))
    wanted = [n * 10**9 + 1 + k for n in range(10) for k in (0, 1)]
    assert table["header_stamp_ns"].to_pylist() == wanted
    span = mcap.read(path, start_ns=4 * 10**9, end_ns=5 * 10**9, clock="header")
    assert sum(batch.num_rows for batch in span) == 2


def test_none_is_no_time() -> None:
    assert NONE == -(2**63)
