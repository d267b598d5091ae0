"""Small inputs that stand for much are refused in a sentence, before they cost anything.

They are kept in tests/fuzz/corpus and made by tests/fuzz/bombs.py. That each of them needs little
memory and little time is checked in tests/fuzz; here, what is said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fuzz.engine import CORPUS
from fuzz.targets import halves
from golden.cases import CASES
from tidegate import mcap
from tidegate.errors import StateError
from tidegate.mcap.index import Channels
from tidegate.mcap.payload import PayloadDecoder, parse_fields, resolve_fields
from tidegate.mcap.payload import values as payload_values
from tidegate.mcap.records import Channel, Schema

pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")

from tidegate.recordings.bags import read_bag


def kept(name: str) -> bytes:
    return (CORPUS / name).read_bytes()


def only_error(batches: Any) -> str:
    (row,) = [row for batch in batches for row in batch.to_pylist()]
    return str(row["error"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("claims-10-gb", "a chunk of 10737418240 bytes; 2147483647 are allowed"),
        ("claims-2-gb", "200000 bytes that decompress to 2147483647, which is not read"),
        ("zstd-holds-1-gb", "bytes that decompress to 1073741824, which is not read"),
    ],
)
def test_mcap(tmp_path: Path, name: str, says: str) -> None:
    file = tmp_path / "a.mcap"
    file.write_bytes(kept(f"mcap/{name}"))
    assert says in only_error(mcap.read(file))


def test_bags(tmp_path: Path) -> None:
    file = tmp_path / "a.bag"
    file.write_bytes(kept("bag/bz2-holds-1-gb"))
    said = only_error(read_bag(str(file), mcap.Selection()))
    assert "decompress to more than 268,435,456, which is not read" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("endless-view", "'schema' in the database is not a plain table"),
        ("computed-column", "'messages' in the database has columns that are computed"),
        ("file-holds-4-gb", "a file decompresses to more than 268,435,456 bytes"),
        ("aliases", "more than 50,000 values, with aliases expanded"),
        ("merge-keys", "more than 50,000 values, with aliases expanded"),
    ],
)
def test_ros_2_bags(tmp_path: Path, name: str, says: str) -> None:
    meta, file, content = kept(f"bag2/{name}").split(b"\0", 2)
    (tmp_path / "metadata.yaml").write_bytes(meta)
    (tmp_path / file.decode()).write_bytes(content)
    assert says in only_error(read_bag(str(tmp_path), mcap.Selection()))


def decoded(encoding: str, schema: Schema, fields: str, payload: bytes) -> dict[int, str]:
    channels = Channels({1: Channel(1, 1, "/a", encoding)}, {1: schema})
    decoder = PayloadDecoder(resolve_fields(parse_fields(fields), [channels]), channels)
    data = pa.array([payload], pa.binary())
    made, reasons = decoder.columns(data, np.ones(1, np.int64), np.zeros(1, bool))
    assert all(column.null_count == 1 for column in made) or not reasons
    return reasons


def test_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, payload = halves(kept("protobuf/many-fields-parsed"))
    told = Schema(1, "pkg.Track", "protobuf", schema)
    assert "it holds more than 26,806 messages" in decoded("protobuf", told, "*", payload)[0]
    # Counting to five million takes ten seconds; tests/fuzz does, in make test-long.
    monkeypatch.setattr(payload_values, "MOST_VALUES", 100_000)
    schema, payload = halves(kept("protobuf/many-fields-shown"))
    assert "more than 100,000 values" in decoded("protobuf", told, "*", payload)[0]
    assert decoded("protobuf", told, "f2", payload) == {}  # a single field costs little


def test_a_payload_with_one_large_field_is_no_bomb() -> None:
    """An image of 30 MB: as many bytes as could be 15 million messages, and holds none."""
    from google.protobuf import descriptor_pb2 as pb

    kind = pb.FieldDescriptorProto
    file = pb.FileDescriptorProto(name="i.proto", package="pkg", syntax="proto3")
    image = file.message_type.add(name="Image")
    image.field.add(name="data", number=1, type=kind.TYPE_BYTES, label=kind.LABEL_OPTIONAL)
    image.field.add(name="width", number=2, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
    told = Schema(1, "pkg.Image", "protobuf", pb.FileDescriptorSet(file=[file]).SerializeToString())
    size = 30_000_000
    payload = b"\x0a\x80\x87\xa7\x0e" + bytes(size) + b"\x10\x07"
    assert decoded("protobuf", told, "width", payload) == {}


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Schema(1, "Reading", "jsonschema", b"{}")
    _, payload = halves(kept("json/deep"))
    assert decoded("json", told, "*", payload)[0].startswith("not JSON: ")
    monkeypatch.setattr(payload_values, "LARGEST_PAYLOAD", 10)
    said = decoded("json", told, "*", b'{"x": "longer than that"}')[0]
    assert said == "JSON that is too large: it has 25 bytes, of 10 at most"


def test_a_compressed_table_in_a_snapshot() -> None:
    blob = kept("snapshot/compressed-table").partition(b"\0")[2]
    with pytest.raises(StateError, match="it is compressed"):
        CASES["eventtime"][0]()[0].restore(blob)
