"""Blocks with references: rows as the plain reader gives them, once bytes are attached."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mcap.writer import CompressionType

import mcap_files as files
from tidegate.errors import StateError
from tidegate.mcap import McapFile, McapWriter, Selection, blocks
from tidegate.mcap.blocks import BlockReader
from tidegate.mcap.payload import parse_fields, resolve_fields
from tidegate.mcap.spans import REFERENCE


def both(path: Path, selection: Selection, referred: list[str]) -> tuple[list[Any], list[Any]]:
    """The rows of the plain reader, and those of blocks with their bytes attached at the end."""
    names = selection.schema.names
    with McapFile(path) as file:
        plain = [row for batch in file.batches(selection) for row in batch.to_pylist()]
    reader = BlockReader(selection, names, referred)
    batches = list(reader.batches(path))
    for batch in batches:
        assert batch.schema == reader.schema
        assert all(batch.schema.field(name).type == REFERENCE for name in referred)
    made = [row for batch in batches for row in reader.attach(batch).to_pylist()]
    return plain, made


def in_order(rows: list[Any]) -> list[Any]:
    """Faults may stand behind the block instead of behind their piece."""
    return sorted(rows, key=lambda row: (row["offset"], row["position"], row["error"] or ""))


@pytest.fixture(params=["one block", "many blocks that are let go of"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "one block":
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 5_000)
        monkeypatch.setattr(blocks, "KEPT_BYTES", 6_000)


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize(
    "content",
    [
        files.recording(),
        files.recording(compression=CompressionType.NONE),
        files.recording(use_chunking=False),
        files.unindexed(),
        files.recording()[:-3000],
        files.recording()[:5000] + b"\xff" * 50 + files.recording()[5050:],
        b"no file of ours",
        b"",
    ],
    ids=["zstd", "plain", "no chunks", "no index", "cut off", "damaged", "foreign", "empty"],
)
def test_payloads_of_any_file(tmp_path: Path, content: bytes) -> None:
    path = files.write(tmp_path, content)
    for chosen in (Selection(), Selection(("/imu",), 100_000, 300_000), Selection(("none",))):
        plain, made = both(path, chosen, ["data"])
        assert in_order(made) == in_order(plain)


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_fields_of_every_encoding(tmp_path: Path, compression: str) -> None:
    """ROS fields are referred to where they are; JSON's base64 is decoded, and decoded again."""
    pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
    import ros_messages as ros
    from dataset.recordings import KINDS, messages, payload

    path = tmp_path / "log.mcap"
    with McapWriter(path, chunk_bytes=3_000, compression=compression) as log:
        ids = {
            topic: log.channel(
                topic=topic, schema=kind, schema_encoding="ros2msg",
                schema_data=ros.definition(kind), encoding="cdr",
            )
            for topic, kind in KINDS.items()
        }  # fmt: skip
        other = log.channel(
            topic="web", schema="web", schema_encoding="jsonschema", schema_data=b"{}",
            encoding="json",
        )  # fmt: skip
        for n, one in enumerate(messages(1)):
            data = payload(one) if n % 17 else b"\x00\x01\x00\x00broken"
            log.message(ids[one.topic], n, data)
            image = base64.b64encode(bytes([n % 256]) * (n % 40)).decode()
            log.message(other, n, json.dumps({"data": image}).encode() if n % 13 else b"{")
    with McapFile(path) as file:
        asked = parse_fields("data binary as image, position as q, format")
        fields = resolve_fields(asked, file.definitions())
    for span in ((None, None), (20, 90)):
        plain, made = both(path, Selection(None, *span, decode=fields), ["image", "data"])
        assert made == plain
        assert any(row["image"] for row in made if row["topic"] == "web")
        assert any(row["error"] for row in made)


def test_structs_nulls_and_slices(tmp_path: Path) -> None:
    path = files.write(tmp_path, files.recording(50))
    reader = BlockReader(Selection(), ["topic", "data"], ["data"])
    rows = pa.concat_batches(list(reader.batches(path)))
    places = rows.column("data").take(pa.array([4, None, 0, 4]))
    inside = pa.StructArray.from_arrays(
        [places], names=["data"], mask=pa.array([False, False, True, False])
    )
    nested = pa.StructArray.from_arrays([inside, places], names=["deep", "flat"])
    some = pa.record_batch({"a": nested, "b": places, "c": [1, 2, 3, 4]}).slice(1)
    found = reader.attach(some).to_pylist()
    four, zero = (b'{"n": %d, "fill": "%s"}' % (n, b"x" * n) for n in (4, 0))
    assert found == [
        {"a": {"deep": {"data": None}, "flat": None}, "b": None, "c": 2},
        {"a": {"deep": None, "flat": zero}, "b": zero, "c": 3},
        {"a": {"deep": {"data": four}, "flat": four}, "b": four, "c": 4},
    ]


def test_a_file_that_changed_is_an_error_not_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(blocks, "KEPT_BYTES", 6_000)
    path = files.write(tmp_path, files.recording())
    reader = BlockReader(Selection(), ["data"], ["data"])
    batches = list(reader.batches(path))
    with path.open("r+b") as file:
        file.seek(500)
        file.write(np.full(1500, 7, np.uint8).tobytes())
    with pytest.raises(StateError, match="changed"):
        reader.attach(batches[0])
