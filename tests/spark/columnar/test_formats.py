"""Files as gate 1 reads them, without Spark: every row, its position, and the row at a position."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.time import MAX_NS
from tidegate.mcap import McapFile, McapWriter
from tidegate.mcap.index import Piece
from tidegate.mcap.message_index import IndexedMessages
from tidegate.mcap.spans import PayloadSpans
from tidegate.spark.columnar.format import ColumnarFormat
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.sources.recording import RecordingSettings

SCHEMA = pa.schema([("key", pa.string()), ("t", pa.int64()), ("payload", pa.string())])


def low(rows: pa.RecordBatch) -> tuple[int, bool]:
    column = rows.column(0)
    return (min(column.drop_null().to_pylist(), default=MAX_NS), True)


def all_rows(of: ColumnarFormat, path: str, columns: list[str]) -> tuple[pa.Table, np.ndarray]:
    parts = of.parts(path, columns, (), low)
    read = [each for part in parts for each in of.read(path, part.start, part.stop, columns)]
    table = pa.Table.from_batches([rows for rows, _ in read])
    return table, np.concatenate([positions for _, positions in read])


def fetched(of: ColumnarFormat, path: str, positions: np.ndarray, columns: list[str]) -> list[dict]:
    out: list[dict] = [{}] * len(positions)
    for rows, which in of.fetch(path, positions, columns):
        for row, place in zip(rows.to_pylist(), which.tolist(), strict=True):
            out[place] = row
    return out


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    rows = pa.table(
        {
            "t": pa.array(range(1000), pa.int32()),
            "payload": [f"row {n}" for n in range(1000)],
            "key": [f"k{n % 7}" for n in range(1000)],
        }
    )
    pq.write_table(rows, folder / "b.parquet", row_group_size=130)
    pq.write_table(rows.drop_columns(["payload"]), folder / "a.parquet")
    (folder / "_started").write_text("being written")
    return folder


def test_parquet_rows_by_name_in_the_types_of_the_schema(parquet: Path) -> None:
    of = ParquetColumns(str(parquet), SCHEMA)
    first, second = of.files()
    assert (Path(first).name, Path(second).name) == ("a.parquet", "b.parquet")
    table, positions = all_rows(of, second, ["key", "t", "payload"])
    assert table.schema.names == SCHEMA.names
    assert table.cast(SCHEMA)["key"].to_pylist() == [f"k{n % 7}" for n in range(1000)]
    assert table.schema.field("payload").type == pa.string(), "as many texts as rows: no codes"
    assert positions.tolist() == list(range(1000))
    assert table["payload"].to_pylist() == [f"row {n}" for n in range(1000)]
    lacking, _ = all_rows(of, first, ["payload"])
    assert lacking["payload"].null_count == 1000, "a column that a file lacks is null"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_parquet_text_of_few_values_is_read_as_codes(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [None if n % 11 == 0 else f"k{n % 7}" for n in range(1000)]
    path = str(tmp_path / "a.parquet")
    rows = pa.table({"key": pa.array(texts).cast(kind), "t": range(1000)})
    pq.write_table(rows, path, row_group_size=130)
    table, _ = all_rows(ParquetColumns(path, SCHEMA), path, ["key", "t"])
    assert table["key"].cast(pa.string()).to_pylist() == texts
    if kind == pa.string():
        assert pa.types.is_dictionary(table.schema.field("key").type)


def test_parquet_parts_know_their_smallest_value(parquet: Path) -> None:
    of = ParquetColumns(str(parquet), SCHEMA)
    parts = of.parts(of.files()[1], ["key", "t"], ["t"], low)
    assert [part.low for part in parts] == list(range(0, 1000, 130))
    assert sum(part.rows for part in parts) == 1000


@given(st.lists(st.integers(0, 999), max_size=60))
def test_parquet_rows_by_position(parquet: Path, wanted: list[int]) -> None:
    of = ParquetColumns(str(parquet), SCHEMA)
    rows = fetched(of, of.files()[1], np.array(wanted, np.int64), ["payload", "t"])
    assert rows == [{"payload": f"row {n}", "t": n} for n in wanted]


def test_parquet_position_beyond_the_file(parquet: Path) -> None:
    of = ParquetColumns(str(parquet), SCHEMA)
    with pytest.raises(IndexError, match="1,000 rows"):
        list(of.fetch(of.files()[1], np.array([1000]), ["t"]))


def test_parquet_names_are_matched_as_spark_does(tmp_path: Path) -> None:
    pq.write_table(pa.table({"KEY": ["a"], "T": [5], "Payload": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"key": ["a"], "T": [5], "t": [6]}), tmp_path / "b.parquet")
    of = ParquetColumns(str(tmp_path), SCHEMA)
    first, second = of.files()
    table, positions = all_rows(of, first, ["key", "t", "payload"])
    assert table.to_pylist() == [{"key": "a", "t": 5, "payload": "x"}]
    assert fetched(of, first, positions, ["t", "payload"]) == [{"t": 5, "payload": "x"}]
    with pytest.raises(pa.ArrowInvalid, match="'T' and 't' cannot be told apart"):
        of.parts(second, ["t"], ["t"], low)
    exact = ParquetColumns(str(tmp_path), SCHEMA, by_case=True)
    assert all_rows(exact, second, ["t"])[0]["t"].to_pylist() == [6]
    assert all_rows(exact, first, ["t"])[0]["t"].to_pylist() == [None]


@pytest.mark.parametrize(
    "column",
    [pa.array(["7"]), pa.array([7.5]), pa.array([7], pa.decimal128(9, 2)), pa.array([b"7"]),
     pa.array([True]), pa.array([[7]])],
)  # fmt: skip
def test_parquet_types_that_only_a_guess_could_convert(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"t": column}), tmp_path / "a.parquet")
    of = ParquetColumns(str(tmp_path), SCHEMA)
    with pytest.raises(pa.ArrowInvalid, match=r"column 't' is .* there; int64 is expected"):
        of.parts(of.files()[0], ["key"], (), low)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (pa.timestamp("us"), [-(2**63), 2**63 - 1]),
        (pa.timestamp("us", "UTC"), [-1, 2**62]),
        (pa.date32(), [-(2**31), 2**31 - 1]),
        (pa.int64(), [-(2**63), 2**63 - 1]),
    ],
)
def test_parquet_statistics_that_python_has_no_dates_for(
    tmp_path: Path, kind: pa.DataType, ends: list[int]
) -> None:
    whole = pa.array(ends, pa.int32() if kind == pa.date32() else pa.int64())
    pq.write_table(pa.table({"t": whole.view(kind)}), tmp_path / "a.parquet")
    of = ParquetColumns(str(tmp_path), pa.schema([("t", kind)]))

    def least(rows: pa.RecordBatch) -> tuple[int, bool]:
        return min(rows.column(0).view(whole.type).to_pylist()), True

    (part,) = of.parts(of.files()[0], ["t"], ["t"], least)
    assert part.low == ends[0]


def test_parquet_time_inside_a_struct_beside_columns_with_a_dot(tmp_path: Path) -> None:
    inside = pa.array([{"stamp": 3, "frame": "x"}, {"stamp": 2, "frame": "y"}])
    table = pa.table({"header": inside, "header.stamp": [8, 9], "t": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    of = ParquetColumns(str(tmp_path), table.schema)

    def least(rows: pa.RecordBatch) -> tuple[int, bool]:
        return min(row["header"]["stamp"] for row in rows.to_pylist()), True

    (part,) = of.parts(of.files()[0], ["header"], ["header"], least)
    assert part.low == 2
    for names in (["header"], ["header.stamp"], ["header.stamp", "header"]):
        assert all_rows(of, of.files()[0], names)[0].to_pylist() == table.select(names).to_pylist()


@pytest.mark.parametrize("path", ["{a,b}.parquet", "[ab].parquet", "?.parquet", "*"])
def test_parquet_patterns(parquet: Path, path: str) -> None:
    found = ParquetColumns(str(parquet / path), SCHEMA).files()
    assert [Path(file).name for file in found if "_" not in file] == ["a.parquet", "b.parquet"]


def test_a_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    """A worker outlives a run: the next one must not get rows of a file that is gone."""
    file = tmp_path / "a.parquet"
    of = ParquetColumns(str(tmp_path), SCHEMA)
    for payload in ("first", "other"):
        pq.write_table(pa.table({"key": ["a"], "t": [1], "payload": [payload]}), file)
        assert fetched(of, str(file), np.array([0]), ["payload"]) == [{"payload": payload}]
    recording = tmp_path / "a.mcap"
    for body in (b"first", b"other"):
        with McapWriter(str(recording)) as writer:
            writer.message(writer.channel("/a"), 1, body)
        found = fetched(mcap_columns(recording), str(recording), np.array([0]), ["data"])
        assert found == [{"data": body}]


# -- MCAP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mcap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcap") / "drive.mcap"
    with McapWriter(str(path), compression="zstd", chunk_bytes=4000) as writer:
        channels = [writer.channel(f"/{name}") for name in ("camera", "imu", "gps")]
        for number in range(600):
            body = f'{{"n": {number}}}'.encode() + b" " * (number % 50)
            writer.message(channels[number % 3], number * 1000 + number % 7, body)
    return path


def mcap_columns(path: Path, **options: str) -> McapColumns:
    settings = RecordingSettings.of({"path": str(path), **options})
    return McapColumns(settings, settings.schema)


INDEXED = ["file", "offset", "position", "topic", "log_time_ns", "schema", "encoding"]


@pytest.mark.parametrize("options", [{}, {"topics": "/imu,/gps"}])
def test_mcap_index_says_what_the_chunks_hold(mcap: Path, options: dict[str, str]) -> None:
    of = mcap_columns(mcap, **options)
    path = str(mcap)
    few, positions = all_rows(of, path, INDEXED)
    everything, same = all_rows(of, path, of.schema.names)
    assert few.num_rows == (600 if not options else 400)
    assert few.to_pylist() == everything.select(INDEXED).to_pylist()
    assert positions.tolist() == same.tolist()
    rows = fetched(of, path, positions[::-1], ["log_time_ns", "data"])
    assert rows == everything.select(["log_time_ns", "data"]).to_pylist()[::-1]


def test_mcap_is_not_decompressed_for_a_decision(
    mcap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = mcap_columns(mcap)
    monkeypatch.setattr(McapFile, "raw", lambda *_, **__: pytest.fail("a chunk was read"))
    found = []
    for rows_per_part in (1, 150, 10**6):
        monkeypatch.setattr("tidegate.spark.columnar.mcap.ROWS_PER_PART", rows_per_part)
        parts = of.parts(str(mcap), ["topic", "log_time_ns"], ["log_time_ns"], low)
        assert [part.low for part in parts] == sorted(part.low for part in parts)
        read = [
            (rows.column("topic").cast(pa.string()).to_pylist(), rows["log_time_ns"].to_pylist(),
             positions.tolist())
            for part in parts
            for rows, positions in of.read(
                str(mcap), part.start, part.stop, ["topic", "log_time_ns"])
        ]  # fmt: skip
        assert [part.rows for part in parts] == [len(topics) for topics, _, _ in read]
        found.append((len(parts), [list(chain(*column)) for column in zip(*read, strict=True)]))
    assert [len(positions) for _, (_, _, positions) in found] == [600] * 3
    assert found[0][0] > found[1][0] > found[2][0] == 1, "chunks are joined"
    assert found[0][1] == found[1][1] == found[2][1], "which changes no row, and no address"


def test_mcap_payloads_are_not_copied_for_a_decision(
    mcap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clocks are in the messages: their chunks are read, each once, and only their heads."""
    of = mcap_columns(mcap, clock="publish")
    column = "publish_time_ns"
    parts = of.parts(str(mcap), ["topic", column], (), low)
    chunks: list[int] = []
    raw = McapFile.raw

    def counted(self: McapFile, piece: Piece, *, crc: bool = False) -> Any:
        chunks.append(piece.start)
        return raw(self, piece, crc=crc)

    monkeypatch.setattr(McapFile, "raw", counted)
    monkeypatch.setattr(PayloadSpans, "array", lambda *_: pytest.fail("payloads were copied"))
    read = [of.read(str(mcap), part.start, part.stop, ["topic", column]) for part in parts]
    assert sum(rows.num_rows for each in read for rows, _ in each) == 600
    assert len(chunks) == len(set(chunks)) == len(parts)


def test_mcap_index_that_leaves_a_message_out_is_not_used(mcap: Path, tmp_path: Path) -> None:
    """The number of entries of the last index is cut by one; the statistics tell."""
    content = bytearray(mcap.read_bytes())
    with McapFile(mcap) as opened:
        assert IndexedMessages(opened).usable()
        piece = opened.index.pieces[-1]
    at = piece.end + 9 + 2
    size = int.from_bytes(content[at : at + 4], "little")
    content[at : at + 4] = (size - 16).to_bytes(4, "little")
    broken = tmp_path / "broken.mcap"
    broken.write_bytes(content)
    with McapFile(broken) as opened:
        assert not IndexedMessages(opened).usable()
    table, _ = all_rows(mcap_columns(broken), str(broken), ["topic", "log_time_ns"])
    assert table.num_rows == 600, "chunks are read instead, and nothing is lost"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (1, b"\xff\xff\xff\xff\xff\xff\xff\x00"),  # longer than the file
        (1, b"\xff" * 8),  # longer than any file
        (1, b"\x03" + b"\x00" * 7),  # too short for a head
        (9, b"\xfe\xff"),  # a channel that nobody defined
        (11, b"\xff\xff\xff\x7f"),  # entries behind the record
        (11, b"\x11\x00\x00\x00"),  # half an entry
        (15 + 7, b"\x80"),  # a log time of 2^63
        (15 + 15, b"\x80"),  # an offset of 2^63
        (0, b"\x05"),  # no index at all
    ],
)
def test_mcap_indexes_that_cannot_be_true_are_not_used(
    mcap: Path, tmp_path: Path, where: int, value: bytes
) -> None:
    content = bytearray(mcap.read_bytes())
    with McapFile(mcap) as opened:
        for piece in opened.index.pieces[:1], opened.index.pieces[-1:]:
            at = piece[0].end + where
            crafted = bytearray(content)
            crafted[at : at + len(value)] = value
            broken = tmp_path / "broken.mcap"
            broken.write_bytes(crafted)
            with McapFile(broken) as again:
                assert not IndexedMessages(again).usable()
