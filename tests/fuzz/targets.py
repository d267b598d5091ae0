"""What reads bytes of strangers, one target each: seeds, how a user reads them, what may be raised.

Recordings never raise: what cannot be read is an error row. Pipeline files raise ConfigError, state
StateError, the output of a run either.
"""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from mcap.writer import CompressionType

from fuzz.engine import Target, mutated
from golden.cases import CASES
from golden.record import FOLDER as GOLDEN
from golden.record import second_half
from mcap_files import recording, unindexed
from tidegate import mcap
from tidegate.core.chain import Chain
from tidegate.core.columns import TIME
from tidegate.errors import ConfigError, StateError, TidegateError
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.eventtime.slices import Bound, Slices
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import PayloadDecoder, parse_fields, resolve_fields
from tidegate.mcap.records import Channel, Schema
from tidegate.output.commit import Commit, CommitLog, FoldHeader, RunTotals
from tidegate.output.savepoint import Savepoint
from tidegate.pipeline import PipelineDefinition, explain, plan
from tidegate.pipeline.run_record import RunRecord, record_text
from tidegate.pipeline.secrets import show_text
from tidegate.pipeline.security import expand, resolve_path
from tidegate.pipeline.text_files import check_lines, read_header
from tidegate.profile.inspect import inspect
from tidegate.spark.columnar.csv_lines import CsvColumns
from tidegate.spark.columnar.format import ColumnarFormat
from tidegate.spark.columnar.json_lines import JsonColumns
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.columnar.payload import PayloadAttacher
from tidegate.spark.columnar.pieces import PieceLog
from tidegate.spark.columnar.source import (
    GateInput,
    GatePlan,
    GateStreamReader,
    GateTask,
    read_task,
)
from tidegate.spark.dataflow import ERROR_FIELDS
from tidegate.spark.pack import Packer, from_blob
from tidegate.spark.sources.recording import RecordingSettings
from tidegate.spool import Landed, Spool
from tidegate.spool import read as read_spool
from tidegate.testing.snapshots import crafted

try:
    from rosbags import rosbag1, rosbag2

    import ros_messages as ros
except ImportError:  # pip install 'tidegate[rosbag]'
    ros = None


@cache
def folder() -> Path:
    """A folder for inputs that are read as files; one per process."""
    return Path(tempfile.mkdtemp(prefix="tidegate-fuzz-"))


def validate(batches: Any) -> None:
    """Every batch is sound; whatever is wrong is in its column `error`."""
    for batch in batches:
        batch.validate(full=True)


# -- state ---------------------------------------------------------------------------------------


def snapshot_seeds() -> list[bytes]:
    """Golden snapshots of every operator, with the name of their case and the
    number of the stage in front."""
    newest = max(GOLDEN.iterdir())
    return [
        f"{file.stem}\0".encode() + file.read_bytes() for file in sorted(newest.glob("*.snapshot"))
    ]


def change_snapshot(data: bytes, rng: Random) -> bytes:
    """Most often change the form of the snapshot, with checksums that are right."""
    name, _, blob = data.partition(b"\0")
    if rng.random() < 0.8:
        seed = rng.choice(snapshot_seeds())
        name, _, blob = seed.partition(b"\0")
        return name + b"\0" + crafted(blob, rng.randrange(2**32))[0]
    if len(blob) > 14:
        blob = blob[:6] + struct.pack("<I", zlib.crc32(blob[10:])) + blob[10:]
    return name + b"\0" + blob


def use_snapshot(data: bytes) -> None:
    """Restore one stage of a case and go on with all of them."""
    name, _, blob = data.partition(b"\0")
    case, _, number = name.decode(errors="replace").rpartition(".")
    if case not in CASES or not number.isascii() or not number.isdigit():
        return
    stages = Chain(CASES[case][0]()).stages
    states = [stage.open(2) for stage in stages]
    if int(number) < len(stages):
        states[int(number)] = stages[int(number)].restore(blob)
        states[int(number)].grow(2)
        Chain(CASES[case][0]()).check_held(states)
    second_half(case, states)


def savepoint_seeds() -> list[bytes]:
    """A savepoint of two shards: its header, and its pages behind a NUL."""
    place = folder() / "seed-savepoint"
    shutil.rmtree(place, ignore_errors=True)
    pages = {0: {0: b"page of a shard" * 9, 1: b"another"}, 1: {0: b"page"}}
    Savepoint(2, ("k",), ({"name": "window"},), pages).write(str(place))
    header, content = (place / "savepoint.json", place / "pages-00000.arrow")
    return [header.read_bytes() + b"\0" + content.read_bytes()]


def use_savepoint(data: bytes) -> None:
    """Read a savepoint."""
    header, _, content = data.partition(b"\0")
    place = folder() / "savepoint"
    place.mkdir(exist_ok=True)
    (place / "savepoint.json").write_bytes(header)
    (place / "pages-00000.arrow").write_bytes(content)
    Savepoint.read(str(place))


# -- pipeline files, addresses -------------------------------------------------------------------


def yaml_seeds() -> list[bytes]:
    """The pipelines of the examples, and one with aliases and merge keys."""
    root = Path(__file__).parents[2] / "examples"
    tricky = b"a: &a {x: [1, 2]}\nb: &b {<<: *a, y: *a}\nstreams: {s: {<<: *b}}\n"
    return [file.read_bytes() for file in sorted(root.rglob("*.yaml"))] + [tricky]


def use_yaml(data: bytes) -> None:
    """Read, plan and show a pipeline file."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    made = PipelineDefinition.from_yaml(text)
    record_text(made)
    explain(plan(made))


ADDRESSES = (
    b"file:///data/in/../../etc", b"/data/in/{a,b}*/[x]?.csv", b"s3a://ada:hunter2@bucket/in?sig=abc#x",
    b"jdbc:postgresql://h/db?user=a&password=b", b"Server=db;Pwd='x y'", b"FILE://localhost//etc/%2e%2e",
)  # fmt: skip


def use_address(data: bytes) -> None:
    """Resolve a path against roots and show an address."""
    text = data.decode(errors="replace")
    show_text(text)
    roots = {"TIDEGATE_ROOTS": str(folder())}
    place = resolve_path(text, "path", roots, pattern=True)
    assert place.startswith(str(folder().resolve())), place
    expand(place)


# -- recordings ----------------------------------------------------------------------------------


def mcap_seeds() -> list[bytes]:
    """Small files with every compression, with and without an index."""
    return [
        recording(60), recording(60, compression=CompressionType.NONE),
        unindexed(60, compression=CompressionType.LZ4), recording(60, use_chunking=False),
    ]  # fmt: skip


def use_mcap(data: bytes) -> None:
    """Read a file with both clocks and its payloads; by its index, as gate 1 does."""
    file = folder() / "log.mcap"
    file.write_bytes(data)
    validate(mcap.read(file, crc=bool(len(data) % 2)))
    validate(mcap.read(file, clock="header", decode="n long, *"))
    settings = RecordingSettings.of({"path": str(file)})
    through_gate(McapColumns(settings, settings.schema), ("topic", "log_time_ns"), "log_time_ns")


def through_gate(of: ColumnarFormat, columns: tuple[str, ...], time: str) -> None:
    """Find the pieces of a file, read the columns of a decision, fetch everything else."""
    decoder = Decoder((TimeColumn(time, "unixtimestamp_ns"),))
    given = GateInput(of, columns, True, Packer(decoder, (0, 1)), (time,))
    plan_ = GatePlan((given,), (0, 1), recorded=True, arrival=False)
    log = PieceLog(None)
    plan_.look(log)
    schema = of.schema
    error = pa.schema([*schema, *((name, pa.string()) for name in ERROR_FIELDS)])
    exit_ = PayloadAttacher(
        (of,), {"data": schema, "error": error}, None, tuple(log.files), "error"
    )
    tasks = tuple((piece, log.files[piece.file]) for piece in log.pieces)
    for packed in read_task(plan_, GateTask(tasks)):
        for row in packed.to_pylist():
            if row["kind"] == "data":
                made = exit_.attach("data", from_blob(row["blob"]))
                validate(rows for _, rows in made)


@cache
def parquet_seeds() -> list[bytes]:
    """Files of a few row groups: plain, compressed, with dictionaries, structs and lists, and with
    pages of every encoding that Arrow writes."""
    rows = pa.table({
        "key": ["a", "b"] * 40, "t": range(80), "f": [n / 3 for n in range(80)],
        "payload": [f"row {n}" for n in range(80)],
        "s": [{"x": n, "l": [n, None]} for n in range(80)],
        "when": pa.array(range(80), pa.timestamp("us")),
    })  # fmt: skip
    made = []
    delta = {
        "key": "DELTA_BYTE_ARRAY", "payload": "DELTA_LENGTH_BYTE_ARRAY", "f": "BYTE_STREAM_SPLIT",
        "t": "DELTA_BINARY_PACKED", "when": "DELTA_BINARY_PACKED", "s.x": "BYTE_STREAM_SPLIT",
        "s.l.list.element": "DELTA_BINARY_PACKED",
    }  # fmt: skip
    many: list[dict[str, Any]] = [
        {"compression": "none", "use_dictionary": False}, {"compression": "zstd"},
        {"compression": "snappy", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False, "column_encoding": delta},
        {"compression": "lz4", "use_dictionary": False, "column_encoding": delta,
         "data_page_version": "2.0", "data_page_size": 64, "write_page_index": True},
        {"compression": "gzip", "write_page_checksum": True},
    ]  # fmt: skip
    for options in many:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=30, **options)
        made.append(sink.getvalue().to_pybytes())
    return made


def change_footer(data: bytes, rng: Random) -> bytes:
    """Half of the time, mend the length of the footer, and change the footer alone: most changes
    of the whole file fall on pages."""
    if len(data) < 12 or rng.random() < 0.5:
        return data
    whole = rng.choice(parquet_seeds())
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = mutated([whole[end:-8]], Target("footer", list, bool), rng)
    return whole[:end] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def use_parquet(data: bytes) -> None:
    """Read a Parquet file through gate 1, and inspect it. A file that Arrow only finds damaged when
    its pages are read ends the run: StateError."""
    file = folder() / "a.parquet"
    file.write_bytes(data)
    schema = pa.schema([
        ("key", pa.string()), ("t", pa.int64()), ("f", pa.float64()), ("payload", pa.string()),
        ("s", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])),
        ("when", pa.timestamp("us")),
    ])  # fmt: skip
    of = ParquetColumns(str(file), schema)
    of.bytes_per_row(["payload"])
    through_gate(of, ("key", "t"), "t")
    with suppress(TidegateError):
        inspect(str(file))


# -- what gate 1 keeps in a checkpoint -------------------------------------------------------------


def gate_seeds() -> list[bytes]:
    """The log of pieces with an offset, and the page of rows that wait."""
    files = [[0, "/in/a.parquet", 5], [0, "/in/b.parquet", 6]]
    pieces = [[0, 0, 1, 100, 1000, 5, ""], [1, 0, 2, 100, 1000, 9, ""], [0, 1, 2, 9, 90, 20, "x"]]
    content = json.dumps({"files": files, "pieces": pieces}).encode()
    offset = json.dumps({"piece": 2, "bound": 20, "end": False}).encode()
    slices = Slices(ArrivalOrder(recorded=True, keys=("k",)))
    rows = pa.record_batch({"k": ["a", "b"], "x": [1.5, 2], TIME: [3, 4]})
    list(slices.admit([rows], ["0 a"], Bound(4, frozenset({"0 a"}))))
    return [b"log\0" + content + b"\0" + offset, b"page\0" + slices.page()]


def use_gate(data: bytes) -> None:
    """Go on from a log and an offset, or from a page."""
    what, _, rest = data.partition(b"\0")
    if what == b"page":
        slices = Slices(ArrivalOrder(recorded=True, keys=("k",)))
        slices.load(rest)
        rows = pa.record_batch({"k": ["a"], "x": [1.5], TIME: [7]})
        validate(slices.admit([rows], ["0 a"], Bound(9, frozenset())))
        return
    content, _, offset = rest.partition(b"\0")
    place = folder() / "pieces"
    place.mkdir(exist_ok=True)
    (place / "00000000.json").write_bytes(content)
    try:
        end = json.loads(offset)  # Spark hands over what is JSON
    except (ValueError, RecursionError):
        end = None
    if not isinstance(end, dict):
        return
    given = GateInput(ParquetColumns(str(folder() / "none"), pa.schema([])), (), False,
                      Packer(Decoder(), (0,)), ())  # fmt: skip
    plan_ = GatePlan((given,), (0,), recorded=True, arrival=False, log=str(place))
    reader = GateStreamReader(plan_)
    reader.partitions(reader.initialOffset(), end)


# -- text that is inspected ------------------------------------------------------------------------


def text_seeds() -> list[bytes]:
    """CSV, JSON lines and gzip, each behind the ending of its name."""
    lines = "".join(f"{n},car-{n % 2},2026-01-01T00:00:{n:02d}Z,{n / 3}\n" for n in range(30))
    csv = f"n,vehicle,stamp,speed\n{lines}".encode()
    records = "".join(
        json.dumps({"n": n, "stamp": n * 10**9, "o": {"x": [n]}}) + "\n" for n in range(30)
    )
    document = json.dumps({"rows": [{"a": 1, "t": n} for n in range(9)]})
    return [b"csv\0" + csv, b"json\0" + records.encode(), b"csv.gz\0" + gzip.compress(csv),
            b"json\0" + document.encode()]  # fmt: skip


def use_text(data: bytes) -> None:
    """Read headers and lines as the Spark source does, and inspect the file."""
    ending, _, content = data.partition(b"\0")
    if ending not in (b"csv", b"json", b"csv.gz"):
        return
    file = folder() / f"a.{ending.decode()}"
    file.write_bytes(content)
    check_lines([str(file)])
    with suppress(OSError, pa.ArrowException):  # Spark is asked to open such a file, and says so
        read_header(str(file), {})
    inspect(str(file))


LINE_COLUMNS = pa.schema([
    ("key", pa.string()), ("t", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(10, 2)),
    ("on", pa.bool_()), ("day", pa.date32()), ("when", pa.timestamp("us", "UTC")),
    ("line_unparsed", pa.string()), ("line_file", pa.string()),
])  # fmt: skip
"""Columns of lines that gate 1 reads, one of every kind; `d` and `day` are none of JSON's."""


def line_seeds() -> list[bytes]:
    """CSV and JSON lines, plain and compressed, with what differs between readers: quotes, escapes,
    line ends, numbers and times in several spellings."""
    csv = (
        b'key,t,f,d,on,day,when\r\na,1,1.5,12.345,true,2026-01-01,2026-01-01 00:00:00\n"b, c",2,'
        b'+1e3,1e-3,FALSE,2026-1-1,2026-01-01T00:00:00.123Z\n\n"q\\"x" y,3,NaN,-0,,,\rshort,4\n'
        b'd,5,0x1p3,"1,000",no,2026-02-30,2026-01-01 00:00:00 Europe/Berlin\n'
    )
    lines = (
        b'{"key": "a", "t": 1, "f": 1.5, "on": true, "when": "2026-01-01 00:00:00", "z": {"x": []}}'
        b'\n[{"key": "b", "t": 2}, {"t": 3, "f": NaN, "key": {"x": [1]}}]\r\n{"t": "x"}\n'
        b'{"key": "\\ud83d\\ude00", "t": 4, "f": "INF", "when": 5, "z": -Infinity}\n{"t": 1'
    )
    return [b"csv\0" + csv, b"json\0" + lines, b"csv.gz\0" + gzip.compress(csv),
            b"json.gz\0" + gzip.compress(lines)]  # fmt: skip


def use_lines(data: bytes) -> None:
    """Read lines of text through gate 1, with and without a header."""
    ending, _, content = data.partition(b"\0")
    if ending not in (b"csv", b"json", b"csv.gz", b"json.gz"):
        return
    file = folder() / f"lines.{ending.decode()}"
    file.write_bytes(content)
    names = tuple(LINE_COLUMNS.names[:-2])
    about = ("line_unparsed", "line_file")
    of: ColumnarFormat
    if ending.startswith(b"csv"):
        header = len(content) % 2 == 0
        of = CsvColumns(str(file), LINE_COLUMNS, names, *about, header=header, reference=names)
    else:
        names = tuple(name for name in names if name not in ("d", "day"))
        schema = pa.schema([LINE_COLUMNS.field(name) for name in (*names, *about)])
        of = JsonColumns(str(file), schema, names, *about)
    of.bytes_per_row(["key"])
    through_gate(of, ("key", "t"), "t")


def bag_seeds() -> list[bytes]:
    """ROS 1 bags: plain, bzip2, LZ4."""
    made = []
    for codec in (None, rosbag1.Writer.CompressionFormat.BZ2, rosbag1.Writer.CompressionFormat.LZ4):
        file = folder() / "seed.bag"
        file.unlink(missing_ok=True)
        writer = rosbag1.Writer(file)
        if codec is not None:
            writer.set_compression(codec)
        with writer as bag:
            kind = "std_msgs/msg/Bool"
            channel = bag.add_connection("/a", kind, typestore=ros.store(True))
            for n in range(20):
                bag.write(channel, 1000 + n, bytes([n % 2]))
        made.append(file.read_bytes())
    return made


def use_bag(data: bytes) -> None:
    """Read a ROS 1 bag, its definitions first."""
    from tidegate.recordings.bags import bag_definitions, is_whole, read_bag

    file = folder() / "a.bag"
    file.write_bytes(data)
    is_whole(str(file))
    bag_definitions(str(file))
    validate(read_bag(str(file), mcap.Selection(clock="header")))


def bag2_seeds() -> list[bytes]:
    """ROS 2 bags as one input: the metadata, a NUL, the database."""
    made = []
    for mode in (None, "message", "file"):
        place = folder() / "seed2"
        shutil.rmtree(place, ignore_errors=True)
        writer = rosbag2.Writer(place, version=9)
        if mode is not None:
            formats, modes = rosbag2.CompressionFormat, rosbag2.CompressionMode
            writer.set_compression(modes[mode.upper()], formats.ZSTD)
        with writer as bag:
            kind = "std_msgs/msg/Bool"
            channel = bag.add_connection("/a", kind, typestore=ros.store())
            for n in range(5):
                bag.write(channel, 1000 + n, b"\0\1\0\0" + bytes([n % 2]))
        meta = place / "metadata.yaml"
        (data,) = [file for file in place.iterdir() if file != meta]
        made.append(meta.read_bytes() + b"\0" + data.name.encode() + b"\0" + data.read_bytes())
    return made


def use_bag2(data: bytes) -> None:
    """Read a ROS 2 bag, its definitions first."""
    from tidegate.recordings.bags import bag_definitions, is_whole, read_bag

    meta, _, rest = data.partition(b"\0")
    name, _, content = rest.partition(b"\0")
    place = folder() / "two"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "metadata.yaml").write_bytes(meta)
    plain = "".join(c for c in name.decode(errors="ignore") if c.isalnum() or c in "._")[:80]
    (place / (plain.strip(".") or "x.db3")).write_bytes(content)
    is_whole(str(place))
    bag_definitions(str(place))
    validate(read_bag(str(place), mcap.Selection(clock="header")))


def spool_seeds() -> list[bytes]:
    """A segment of a few records."""
    place = folder() / "seed-spool"
    shutil.rmtree(place, ignore_errors=True)
    with Spool(place) as spool:
        spool.append([Landed(f"car/{n}", n, bytes(n), n % 2) for n in range(20)])
    (segment,) = place.glob("*.spool")
    return [(place / "durable").read_bytes() + segment.read_bytes()]


def repair_spool(data: bytes, rng: Random) -> bytes:
    """Mend the mark, and sometimes the checksum of the first record."""
    body = bytearray(data[12:])
    if len(body) > 19 and rng.random() < 0.5:
        length = min(struct.unpack_from("<I", body)[0], len(body) - 19)
        struct.pack_into("<I", body, 4, zlib.crc32(bytes(body[8 : 19 + length])))
    end = struct.pack("<Q", len(body) if rng.random() < 0.8 else rng.randrange(2**64))
    return end + struct.pack("<I", zlib.crc32(end)) + bytes(body)


def use_spool(data: bytes) -> None:
    """Read a spool, open it for writing, read it again."""
    place = folder() / "spool"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "durable").write_bytes(data[:12])
    (place / f"{0:020d}.spool").write_bytes(data[12:])
    with suppress(StateError):
        validate(read_spool(place))
    with Spool(place) as spool:
        spool.append([Landed("a", 1, b"x")])
    validate(read_spool(place))


# -- payloads ------------------------------------------------------------------------------------

KINDS = ("sensor_msgs/msg/JointState", "diagnostic_msgs/msg/DiagnosticArray")


def decode(channel: Channel, schema: Schema, fields: str, payload: bytes) -> None:
    """Decode a payload with a schema, neither of them trusted, and tell the types first."""
    channels = Channels({1: channel}, {1: schema})
    asked = resolve_fields(parse_fields(fields), [channels])
    decoder = PayloadDecoder(asked, channels)
    data = pa.array([payload, payload], pa.binary())
    made, _ = decoder.columns(data, np.ones(2, np.int64), np.zeros(2, bool))
    validate(made)


def halves(data: bytes) -> tuple[bytes, bytes]:
    """The schema and the payload of an input: the schema has its length in front."""
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size], data[4 + size :]


def joined(schema: bytes, payload: bytes) -> bytes:
    """The reverse of `halves`."""
    return len(schema).to_bytes(4, "little") + schema + payload


def ros_seeds() -> list[bytes]:
    """Messages of ROS 1 and ROS 2 behind their definitions; the first byte says which."""
    return [
        bytes([ros1, number]) + joined(
            ros.definition(kind, bool(ros1)),
            ros.serialised(ros.any_message(kind, Random(number), bool(ros1)), bool(ros1)),
        )
        for ros1 in (0, 1)
        for number, kind in enumerate(KINDS)
    ]  # fmt: skip


def use_ros(data: bytes) -> None:
    """Decode some fields and the whole message."""
    if len(data) < 2:
        return
    kind = KINDS[data[1] % 2]
    schema, payload = halves(data[2:])
    ros1 = bool(data[0] % 2)
    channel = Channel(1, 1, "/a", "ros1" if ros1 else "cdr")
    told = Schema(1, kind, "ros1msg" if ros1 else "ros2msg", schema)
    decode(channel, told, "header.stamp long, header.frame_id string, name string, *", payload)


def json_seeds() -> list[bytes]:
    """A JSON Schema and a payload."""
    schema = {"type": "object", "properties": {"x": {"type": "number"}, "l": {
        "type": "array", "items": {"type": "integer"}}, "o": {"type": "object"}}}  # fmt: skip
    payload = {"x": 1.5, "l": [1, 2, 3], "o": {"y": [True, None, "é"]}}
    return [joined(json.dumps(schema).encode(), json.dumps(payload).encode())]


def use_json(data: bytes) -> None:
    """Decode some fields and the whole message."""
    schema, payload = halves(data)
    told = Schema(1, "Reading", "jsonschema", schema)
    decode(Channel(1, 1, "/a", "json"), told, "x double, l string, o.y string, *", payload)


def proto_seeds() -> list[bytes]:
    """Descriptors and a payload with a bit of everything."""
    from google.protobuf import descriptor_pb2 as pb
    from google.protobuf import message_factory
    from google.protobuf.descriptor_pool import DescriptorPool

    file = pb.FileDescriptorProto(name="t.proto", package="pkg", syntax="proto3")
    kind = pb.FieldDescriptorProto
    track = file.message_type.add(name="Track")
    for number, (name, type_, label, inside) in enumerate([
        ("id", kind.TYPE_UINT64, kind.LABEL_OPTIONAL, None),
        ("speeds", kind.TYPE_FLOAT, kind.LABEL_REPEATED, None),
        ("path", kind.TYPE_MESSAGE, kind.LABEL_REPEATED, ".pkg.Track"),
        ("image", kind.TYPE_BYTES, kind.LABEL_OPTIONAL, None),
        ("name", kind.TYPE_STRING, kind.LABEL_OPTIONAL, None),
    ], 1):  # fmt: skip
        track.field.add(name=name, number=number, type=type_, label=label, type_name=inside)
    pool = DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("pkg.Track"))
    message = made(id=7, speeds=[1.5, 2], image=b"\xff", name="é")
    message.path.add(id=1)
    message.path.add(name="x").path.add(id=2)
    descriptors = pb.FileDescriptorSet(file=[file]).SerializeToString()
    return [joined(descriptors, message.SerializeToString())]


def use_proto(data: bytes) -> None:
    """Decode some fields and the whole message."""
    schema, payload = halves(data)
    told = Schema(1, "pkg.Track", "protobuf", schema)
    decode(Channel(1, 1, "/a", "protobuf"), told, "id long, name string, path string, *", payload)


# -- what a page reads ---------------------------------------------------------------------------


def page_seeds() -> list[bytes]:
    """A commit record and a run record."""
    commit: dict[str, Any] = {
        "format": 1, "batch": 0, "query": "q", "rows": {"data": 3}, "watermark_ns": 5,
        "shards": {"0": {"rows_in": 4, "keys": 1}}, "behind": {"0": {"a": 5}},
        "seen": {"topic": ["imu"]}, "files": ["data/batch=00000000/part-0.parquet"],
    }  # fmt: skip
    record = record_text(PipelineDefinition.of({"streams": {"s": {"key": "car"}}}))
    return [json.dumps(commit).encode(), record.encode()]


def use_page(data: bytes) -> None:
    """Read both records, and make the page of a run whose commit this is."""
    from tidegate.profile.roles import Roles
    from tidegate.report.page import write_page

    for read in (Commit.from_json, RunRecord.read):
        with suppress(TidegateError):
            read(data, "x")
    place = folder() / "run"
    (place / "_commits").mkdir(parents=True, exist_ok=True)
    (place / "_commits" / "00000000.json").write_bytes(data)
    write_page(str(place), str(place / "page.html"), Roles())


def fold_seeds() -> list[bytes]:
    """The lines of a fold of three batches."""
    place = folder() / "seed-fold"
    shutil.rmtree(place, ignore_errors=True)
    log = CommitLog.at(str(place))
    commits = [Commit(n, "q", {"data": n}, shards={0: {"rows_in": n}}) for n in range(3)]
    totals = RunTotals.none()
    for commit in commits:
        totals = totals.and_then(commit)
    log.write_fold(FoldHeader(0, 2, [[0, 2]], totals), commits, 1)
    (file,) = (place / "_commits").iterdir()
    return [gzip.decompress(file.read_bytes())]


def use_fold(data: bytes) -> None:
    """Read the records of a fold, and what its first line says of the run."""
    place = folder() / "fold" / "_commits"
    place.mkdir(parents=True, exist_ok=True)
    (place / "00000000-00000002.1.fold").write_bytes(gzip.compress(data, 1))
    log = CommitLog.at(str(place.parent))
    with suppress(StateError):
        list(log)
    log.totals()


Seeds = Callable[[], Sequence[bytes]]


def _targets() -> list[Target]:
    made: list[tuple[str, Seeds, Callable[[bytes], object], dict[str, Any]]] = [
        ("snapshot", snapshot_seeds, use_snapshot,
         {"promised": (StateError,), "repair": change_snapshot}),
        ("savepoint", savepoint_seeds, use_savepoint, {"promised": (StateError,), "words": (
            b"[" * 400, b"-1", b"1e999", b"null", b"ARROW1\0\0", b"\xff\xff\xff\xff")}),
        ("yaml", yaml_seeds, use_yaml, {"promised": (ConfigError,), "words": (
            b"&a ", b"*a", b"<<: *a\n", b"[" * 50, b"{", b"!!python/object:os.system ", b"? ",
            b"- ", b"2026-99-99", b"${env:HOME}", b"\n  ", b": ", b"'", b"|\n")}),
        ("addresses", lambda: ADDRESSES, use_address, {"promised": (ConfigError,), "words": (
            b"..", b"%2e%2e/", b"file:", b"//", b"{,..}", b"\0", b"@", b"?sig=", b"\\", b"[.]")}),
        ("mcap", mcap_seeds, use_mcap, {"words": (
            b"\x89MCAP0\r\n", b"zstd", b"lz4", b"\x06", b"\x05")}),
        ("parquet", parquet_seeds, use_parquet, {
            "promised": (StateError,), "words": (b"PAR1",), "repair": change_footer}),
        ("gate", gate_seeds, use_gate, {"promised": (StateError,), "words": (
            b"[" * 400, b"null", b"-1", b"1e999", b"true", b'"', b"99999999999999999999", b"{}")}),
        ("text", text_seeds, use_text, {"promised": (TidegateError,), "words": (
            b",", b'"', b"\n", b"\r", b"[" * 400, b'{"a":', b"\0", b"9" * 400, b"\xff\xfe", b";")}),
        ("lines", line_seeds, use_lines, {"promised": (StateError,), "words": (
            b",", b'"', b'""', b'\\"', b"\n", b"\r", b"\xef\xbb\xbf", b"[" * 400, b'{"a":', b"\0",
            b"9" * 400, b"1e" + b"9" * 30, b"-NaN", b"\xed\xa0\x80", b"\\ud800", b"+99:99")}),
        ("spool", spool_seeds, use_spool, {"repair": repair_spool}),
        ("json", json_seeds, use_json, {"promised": (ConfigError,), "words": (
            b"[" * 400, b'{"a":' * 400, b"1e999", b"NaN", b'"items":', b"9" * 5000, b'"\\ud800"')}),
        ("protobuf", proto_seeds, use_proto, {"promised": (ConfigError,)}),
        ("fold", fold_seeds, use_fold, {"promised": (StateError,), "words": (
            b"[" * 400, b"-1", b"1e999", b"null", b"\n", b"99999999999999999999", b"[[0, 2]]")}),
        ("page", page_seeds, use_page, {"promised": (TidegateError,), "words": (
            b"</script><script>", b"../", b'"', b"1e999", b"[" * 400, b"-1", b"null")}),
    ]  # fmt: skip
    if ros is not None:
        made += [
            ("bag", bag_seeds, use_bag, {"words": (b"op=\x05", b"op=\x07", b"compression=bz2")}),
            ("bag2", bag2_seeds, use_bag2, {"words": (
                b"&a ", b"*a ", b"CREATE VIEW ", b"file", b"\0")}),
            ("ros", ros_seeds, use_ros, {"promised": (ConfigError,), "words": (
                b"uint8[]", b"[99999999]", b"string", b"MSG: ", b"\n===", b"[<=3]")}),
        ]  # fmt: skip
    return [Target(name, seeds, use, **more) for name, seeds, use, more in made]


TARGETS = {target.name: target for target in _targets()}
