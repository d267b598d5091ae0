"""Small inputs that stand for much: `python -m fuzz.bombs` writes them into the corpus.

Each is at most a few hundred kB and claims gigabytes, billions of values, or work without an end.
"""

from __future__ import annotations

import bz2
import json
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fuzz.engine import CORPUS
from fuzz.targets import bag2_seeds, bag_seeds, joined
from golden.cases import CASES
from tidegate.core import snapshot

GIB = 1 << 30


def zeros_zstd(size: int) -> bytes:
    """`size` zeros, compressed: about 1/30,000 of it."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        for _ in range(size >> 20):
            out.write(bytes(1 << 20))
    return sink.getvalue().to_pybytes()


def zeros_bz2(size: int) -> bytes:
    """`size` zeros, compressed: less than a millionth of it."""
    made = bz2.BZ2Compressor()
    return b"".join([*(made.compress(bytes(1 << 20)) for _ in range(size >> 20)), made.flush()])


def mcap_chunk(size: int, codec: bytes, packed: bytes) -> bytes:
    """A file of one chunk that claims `size` bytes."""
    content = struct.pack("<QQQI", 0, 9, size, 0) + struct.pack("<I", len(codec)) + codec
    content += struct.pack("<Q", len(packed)) + packed
    record = b"\x06" + struct.pack("<Q", len(content)) + content
    end = b"\x0f" + struct.pack("<QI", 4, 0) + b"\x02" + struct.pack("<QQQI", 20, 0, 0, 0)
    return b"\x89MCAP0\r\n" + record + end + b"\x89MCAP0\r\n"


def mcap_bombs() -> Iterator[tuple[str, bytes]]:
    """Chunks that claim 10 GB, and chunks that really hold much."""
    yield "claims-10-gb", mcap_chunk(10 * GIB, b"zstd", b"x" * 1000)
    yield "claims-2-gb", mcap_chunk(2**31 - 1, b"lz4", b"x" * 200_000)
    packed = zeros_zstd(GIB)
    yield "zstd-holds-1-gb", mcap_chunk(GIB, b"zstd", packed)
    yield "zstd-cut-off", mcap_chunk(GIB, b"zstd", packed)[:-2000]


def bag_bombs() -> Iterator[tuple[str, bytes]]:
    """A ROS 1 bag whose only chunk is replaced by one that holds a gigabyte."""
    good, packed = bag_seeds()[1], zeros_bz2(GIB)
    place = _data_of_chunk(good)
    (length,) = struct.unpack_from("<I", good, place)
    made = good[:place] + struct.pack("<I", len(packed)) + packed + good[place + 4 + length :]
    at = made.index(b"index_pos=") + len("index_pos=")
    (index,) = struct.unpack_from("<Q", made, at)
    moved = struct.pack("<Q", index + len(packed) - length)
    yield "bz2-holds-1-gb", made[:at] + moved + made[at + 8 :]


def _data_of_chunk(bag: bytes) -> int:
    """Where the length of the data of the first chunk record stands."""
    at = bag.index(b"\n") + 1
    while True:
        (size,) = struct.unpack_from("<I", bag, at)
        header = bag[at + 4 : at + 4 + size]
        at += 4 + size
        if b"op=\x05" in header:
            return at
        at += 4 + struct.unpack_from("<I", bag, at)[0]


def bag2_bombs() -> Iterator[tuple[str, bytes]]:
    """Databases that compute, compressed ones that hold much, metadata that stands for much."""
    plain, _, file = bag2_seeds()
    meta, name, database = plain.split(b"\0", 2)
    for what, statements in {
        "endless-view": [
            "CREATE VIEW schema AS WITH RECURSIVE n(schema_version, ros_distro) AS (SELECT 4, 'x'"
            " UNION ALL SELECT schema_version, ros_distro FROM n) SELECT * FROM n ORDER BY 1",
        ],
        "computed-column": [
            "CREATE TABLE more (id INTEGER, topic_id INTEGER, timestamp INTEGER,"
            " data BLOB AS (zeroblob(1000000000)))",
            "INSERT INTO more (id, topic_id, timestamp) SELECT id, topic_id, timestamp"
            " FROM messages",
        ],
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "x.db3"
            place.write_bytes(database)
            with sqlite3.connect(place) as made:
                if what == "endless-view":
                    made.execute("DROP TABLE schema")
                for statement in statements:
                    made.execute(statement)
                if what == "computed-column":
                    made.execute("DROP TABLE messages")
                    made.execute("ALTER TABLE more RENAME TO messages")
            yield what, b"\0".join((meta, name, place.read_bytes()))
    meta_file, name_file, _ = file.split(b"\0", 2)
    yield "file-holds-4-gb", b"\0".join((meta_file, name_file, zeros_zstd(4 * GIB)))
    aliases = "".join(
        f"a{n}: &a{n} {{{', '.join(f'<<: *a{n - 1}' if n else f'k{i}: 1' for i in range(9))}}}\n"
        for n in range(9)
    )
    lists = "b0: &b0 [1, 1]\n" + "".join(
        f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    yield "aliases", b"\0".join((lists.encode() + meta, name, database))
    yield "merge-keys", b"\0".join((aliases.encode() + meta, name, database))


def protobuf_bombs() -> Iterator[tuple[str, bytes]]:
    """A type of 5,000 fields, and a payload of empty messages of it."""
    from google.protobuf import descriptor_pb2 as pb

    file = pb.FileDescriptorProto(name="t.proto", package="pkg", syntax="proto3")
    kind = pb.FieldDescriptorProto
    track = file.message_type.add(name="Track")
    track.field.add(
        name="path", number=1, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED,
        type_name=".pkg.Track",
    )  # fmt: skip
    for number in range(2, 5_000):
        track.field.add(
            name=f"f{number}", number=number, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL
        )
    descriptors = pb.FileDescriptorSet(file=[file]).SerializeToString()
    yield "many-fields-parsed", joined(descriptors, b"\x0a\x00" * 100_000)
    yield "many-fields-shown", joined(descriptors, b"\x0a\x00" * 5_000)


def json_bombs() -> Iterator[tuple[str, bytes]]:
    """Depth in the payload and in the schema; a number without an end."""
    yield "deep", joined(b"{}", b"[" * 100_000 + b"]" * 100_000)
    inner: object = {"type": "integer"}
    for _ in range(240):
        inner = {"type": "array", "items": inner}
    yield "deep-schema", joined(json.dumps({"properties": {"l": inner}}).encode(), b"{}")
    deep = b'{"properties":{"l":' + b'{"type":"array","items":' * 900 + b"1" + b"}" * 900 + b"}}"
    yield "deeper-schema", joined(deep, b'{"l": 1}')
    yield "long-number", joined(b"{}", b'{"x": ' + b"9" * 200_000 + b"}")


def snapshot_bombs() -> Iterator[tuple[str, bytes]]:
    """A table that is compressed: four kilobytes stand for gigabytes."""
    stage = CASES["eventtime"][0]()[0]
    header, buffers = snapshot.unpack(stage.snapshot(stage.open(2)))
    many = pa.record_batch({"x": pa.array([0] * (1 << 22), pa.int64())})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, many.schema, options=options) as writer:
        writer.write_batch(many)
    header.pop("sizes")
    for table in header["stages"][0]["tables"]:
        table[1] = True
    arrays = len(header["stages"][0]["arrays"])
    body = [bytes(b) for b in buffers[:arrays]]
    body += [sink.getvalue().to_pybytes()] * len(header["stages"][0]["tables"])
    yield "compressed-table", b"eventtime.0\0" + snapshot.pack(header, body)


def spool_bombs() -> Iterator[tuple[str, bytes]]:
    """A record that claims 4 GB."""
    body = struct.pack("<IIqBH", 2**32 - 1, 0, 0, 0, 1) + b"x" * 100
    end = struct.pack("<Q", len(body))
    yield "claims-4-gb", end + struct.pack("<I", zlib.crc32(end)) + body


def yaml_bombs() -> Iterator[tuple[str, bytes]]:
    """Aliases of aliases, merge keys of merge keys, depth."""
    lists = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    yield "aliases", lists.encode()
    merged = "a0: &a0 {k: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
    )
    yield "merge-keys", merged.encode()
    yield "depth", b"a: " + b"[" * 50_000
    yield "date", b"streams: {s: {key: 2026-99-99}}\n"


BOMBS = {
    "bag": bag_bombs, "bag2": bag2_bombs, "json": json_bombs, "mcap": mcap_bombs,
    "protobuf": protobuf_bombs, "snapshot": snapshot_bombs, "spool": spool_bombs,
    "yaml": yaml_bombs,
}  # fmt: skip

if __name__ == "__main__":
    for target, make in BOMBS.items():
        for name, data in make():
            (CORPUS / target).mkdir(parents=True, exist_ok=True)
            (CORPUS / target / name).write_bytes(data)
            print(f"{target}/{name}: {len(data):,} bytes")
