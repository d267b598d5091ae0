"""Rows to blobs and back: how many in one, and that none gets lost on the way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.arrow import conform
from tidegate.core.columns import TIME, TIME_NS
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.spark import pack
from tidegate.spark.arrival import Origin
from tidegate.spark.pack import Packer, Unpacker, from_blob, to_blob, to_blobs
from tidegate.spark.shards import shard_of


def one_key_per_shard() -> list[str]:
    """Three keys, one in each of three shards."""
    names = pa.array([f"key-{n}" for n in range(50)])
    shards = shard_of([names], 50, 3).tolist()
    return [names[shards.index(shard)].as_py() for shard in range(3)]


KEYS = one_key_per_shard()


def rows(first: int, count: int, size: int = 1) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "payload": pa.array([b"x" * size] * count),
            "key": pa.array([KEYS[n % 3] for n in numbers]),
        }
    )


def packed(batches: list[pa.RecordBatch], labels: tuple[int, ...] = (7, 8, 9)) -> list[pa.Table]:
    decoder = Decoder((TimeColumn("n", "unixtimestamp_s"),))
    return [
        pa.Table.from_batches([made])
        for made in Packer(decoder, labels, (pa.field("key", pa.string()),), 2)(batches)
    ]


def test_every_row_goes_to_the_label_of_its_shard_in_order() -> None:
    (table,) = packed([rows(0, 5), rows(5, 0), rows(5, 4)])
    assert table["part"].unique().to_pylist() == [2_000_000], "the third input, partition 0"
    assert table["seq"].to_pylist() == [0, 1, 2]
    found = {}
    for made in table.to_pylist():
        batch = from_blob(made["blob"])
        assert batch.num_rows == made["rows"]
        found[made["shard"]] = batch.column("n").to_pylist()
        assert batch.column(TIME).to_pylist() == [n * 10**9 for n in found[made["shard"]]]
    assert found == {7: [0, 3, 6], 8: [1, 4, 7], 9: [2, 5, 8]}


def test_blobs_end_at_so_many_rows_and_at_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ROWS_PER_BLOB", 10)
    small = packed([rows(n * 4, 4) for n in range(6)])
    assert [sum(table["rows"].to_pylist()) for table in small] == [12, 12]
    monkeypatch.setattr(pack, "BYTES_PER_BLOB", 1000)
    large = packed([rows(n, 1, size=600) for n in range(5)])
    assert [sum(table["rows"].to_pylist()) for table in large] == [2, 2, 1]
    assert [seq for table in large for seq in table["seq"].to_pylist()] == [0, 1, 2, 3, 4]


def test_blobs_of_any_columns_come_back_equal() -> None:
    batch = pa.record_batch(
        {
            "text": pa.array(["a", None, ""]),
            "nested": pa.array([{"a": [1]}, None, {"a": None}]),
            "named": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "none": pa.nulls(3),
        }
    )
    pieces = [batch, batch.slice(1, 1), batch.slice(0, 0)]
    blobs = to_blobs(pieces)
    for blob, piece in zip(blobs, pieces, strict=True):
        assert from_blob(blob.as_buffer()).equals(piece)
    assert from_blob(to_blob(batch).as_buffer()).equals(batch)


def test_a_time_that_is_a_column_travels_once() -> None:
    stamp = np.arange(1000) * 1_000_000
    value = pa.array(range(1000), pa.int32())
    for named in (TIME, TIME_NS):
        for order in (["t", "v", named], [named, "v", "t"]):
            batch = pa.record_batch({"t": stamp, "v": value, named: stamp}).select(order)
            blob = to_blob(batch).as_buffer()
            assert from_blob(blob).equals(batch)
            assert len(blob) < 8 * 1000 + 4 * 1000 + 2000
    almost = stamp.copy()
    almost[-1] += 1
    holes = pa.array(stamp, mask=stamp == 5_000_000)
    for twin in (almost, holes, value):
        batch = pa.record_batch({"t": twin, TIME: stamp})
        assert from_blob(to_blob(batch).as_buffer()).equals(batch)
    nothing = batch.slice(0, 0)
    assert from_blob(to_blob(nothing).as_buffer()).equals(nothing)


@pytest.mark.parametrize("count", [3, 300, 40_000])
def test_codes_travel_and_text_comes_out(count: int) -> None:
    names = [None if n == 1 else f"name {n}" for n in range(count)]
    plain = pa.record_batch({"key": pa.array(names), "t": pa.array(range(count), pa.int64())})
    coded = plain.set_column(0, "key", plain.column(0).dictionary_encode())
    assert from_blob(to_blob(coded).as_buffer()).equals(plain)
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    packer = Packer(decoder, (7, 8, 9), (plain.schema.field("key"),))
    of_text, of_codes = (packer.blobs(rows, Origin(), 0, 0) for rows in (plain, coded))
    assert of_text.column("shard").equals(of_codes.column("shard"))
    for one, other in zip(of_text.column("blob"), of_codes.column("blob"), strict=True):
        assert from_blob(one.as_buffer()).equals(from_blob(other.as_buffer()))


def test_unpacked_rows_have_exactly_the_promised_columns() -> None:
    schema = pa.schema([("b", pa.int64()), ("new", pa.string()), ("a", pa.string())])
    batch = pa.record_batch({"a": ["x"], "b": pa.array([1], pa.int32()), "gone": [1.0]})
    assert conform(batch, schema).to_pylist() == [{"b": 1, "new": None, "a": "x"}]
    outcomes = pa.record_batch({"kind": ["data", "data"], "blob": [to_blob(batch).as_py()] * 2})
    made = list(Unpacker(schema)([outcomes]))
    assert [part.schema for part in made] == [schema, schema]


def test_blobs_in_a_column_give_their_memory_back() -> None:
    """A worker makes them in every micro-batch, for as long as the stream runs."""
    batch = pa.record_batch({"v": np.zeros(100_000)})

    def column() -> None:
        pa.RecordBatch.from_pylist([{"blob": to_blob(batch)}], pa.schema([("blob", pa.binary())]))

    column()
    before = pa.total_allocated_bytes()
    for _ in range(5):
        column()
    assert pa.total_allocated_bytes() == before
