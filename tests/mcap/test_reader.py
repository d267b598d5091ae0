"""Our MCAP reader finds what the format's own reader finds, and skips what it may skip."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from mcap.writer import CompressionType

from mcap_files import by_stock_reader, messages_in, recording, unindexed, write
from tidegate import mcap
from tidegate.errors import ConfigError
from tidegate.mcap import chunks, reader

CODECS = [CompressionType.ZSTD, CompressionType.LZ4, CompressionType.NONE]


@pytest.mark.parametrize("compression", CODECS, ids=lambda c: c.name)
@pytest.mark.parametrize("make", [recording, unindexed], ids=["indexed", "unindexed"])
def test_same_messages_as_the_stock_reader(tmp_path: Path, make, compression) -> None:  # type: ignore[no-untyped-def]
    file = make(compression=compression)
    good, errors = messages_in(mcap.read(write(tmp_path, file), crc=True))
    assert good == by_stock_reader(recording(compression=compression))
    assert errors == []


def test_messages_outside_chunks(tmp_path: Path) -> None:
    file = recording(use_chunking=False)
    good, errors = messages_in(mcap.read(write(tmp_path, file)))
    assert good == by_stock_reader(file)
    assert errors == []


def test_a_message_that_the_index_leaves_out_is_found(tmp_path: Path) -> None:
    """Between two chunks an indexed file may hold loose messages: the index says nothing of them,
    and a reader that trusts it alone loses them."""
    path = tmp_path / "mixed.mcap"
    with mcap.McapWriter(path) as log:
        channel = log.channel("/a")
        log.message(channel, 1, b"in a chunk")
        log._flush()
        loose = (channel).to_bytes(2, "little") + bytes(4) + (2).to_bytes(8, "little") * 2 + b"out"
        log._write(b"\x05" + len(loose).to_bytes(8, "little") + loose)
        log.message(channel, 3, b"in a chunk too")
    with mcap.McapFile(path) as file:
        assert file.index.indexed
    good, errors = messages_in(mcap.read(path))
    assert [row[-1] for row in good] == [b"in a chunk", b"out", b"in a chunk too"]
    assert errors == []


@pytest.mark.parametrize("make", [recording, unindexed], ids=["indexed", "unindexed"])
@pytest.mark.parametrize(
    ("topics", "start", "end"),
    [
        (["/imu"], None, None), (None, 100_007, 200_007), (["/imu", "/camera"], 100_000, None),
        ([], None, None), (["/none"], None, None), (None, None, 0), (None, 499_007, None),
    ],
)  # fmt: skip
def test_selection(tmp_path: Path, make, topics, start, end) -> None:  # type: ignore[no-untyped-def]
    file = make()
    good, errors = messages_in(mcap.read(write(tmp_path, file), topics, start, end))
    wanted = [
        row
        for row in by_stock_reader(recording())
        if (topics is None or row[0] in topics)
        and (start is None or row[1] >= start)
        and (end is None or row[1] < end)
    ]
    assert good == wanted
    assert errors == []


def test_chunks_out_of_the_span_are_not_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, recording(chunk_size=1_000))
    opened = []
    real = chunks.chunk_bytes

    def counted(buf, piece, *, crc):  # type: ignore[no-untyped-def]
        opened.append(piece.start)
        return real(buf, piece, crc=crc)

    monkeypatch.setattr(reader, "chunk_bytes", counted)
    list(mcap.read(path))
    everything = len(opened)
    opened.clear()
    good, _ = messages_in(mcap.read(path, start_ns=250_007, end_ns=251_007))
    assert len(good) == 1
    assert everything > 20
    assert len(opened) == 1
    opened.clear()
    assert list(mcap.read(path, topics=["/none"])) == []
    assert opened == []


def test_the_clock_decides_what_a_span_means(tmp_path: Path) -> None:
    path = write(tmp_path, recording())
    by_log, _ = messages_in(mcap.read(path, start_ns=1_000, end_ns=2_000, clock="log"))
    by_publish, _ = messages_in(mcap.read(path, start_ns=1_000, end_ns=2_000, clock="publish"))
    assert [row[3] for row in by_log] == [1]
    assert [row[3] for row in by_publish] == [1]
    assert [r[3] for r in messages_in(mcap.read(path, None, 1_001, 2_001, "publish"))[0]] == [2]
    assert [r[3] for r in messages_in(mcap.read(path, None, 1_001, 2_001, "log"))[0]] == [1]
    with pytest.raises(ConfigError, match="clock: got 'sun', must be one of log, publish, header"):
        list(mcap.read(path, clock="sun"))  # type: ignore[arg-type]


def test_a_wrong_checksum_is_an_error_row_when_asked_for(tmp_path: Path) -> None:
    file = bytearray(recording(compression=CompressionType.NONE))
    place = bytes(file).index(b'{"n": 100,')
    file[place + 6] = ord("9")
    path = write(tmp_path, bytes(file))
    assert messages_in(mcap.read(path))[1] == []
    good, errors = messages_in(mcap.read(path, crc=True))
    assert [row["error"] for row in errors] == ["a chunk whose checksum is wrong"]
    assert 0 < 500 - len(good) < 40
    with mcap.McapFile(path) as opened:
        assert errors[0]["offset"] in [piece.start for piece in opened.index.pieces]


def test_order_columns_are_the_order_of_the_file(tmp_path: Path) -> None:
    for file in (recording(), unindexed(), recording(use_chunking=False)):
        table = pa.Table.from_batches(list(mcap.read(write(tmp_path, file))))
        places = list(zip(*(table[n].to_pylist() for n in ("offset", "position")), strict=True))
        assert places == sorted(places)
        assert len(set(places)) == 500


def test_the_schema_is_what_is_declared(tmp_path: Path) -> None:
    path = write(tmp_path, recording())
    for clock in mcap.CLOCKS:
        assert all(b.schema == mcap.schema(clock) for b in mcap.read(path, clock=clock))


def test_one_open_file_is_read_for_one_topic_after_the_other(tmp_path: Path) -> None:
    """The tables of wanted channels were kept between calls: the second topic got the first's."""
    path = tmp_path / "two.mcap"
    with mcap.McapWriter(path) as log:
        for topic in ("/a", "/b"):
            log.message(log.channel(topic), 1, b"x")
    with reader.McapFile(path) as file:
        for topic in ("/a", "/b", "/a"):
            found = [t for b in file.batches(reader.Selection(topics=(topic,))) for t in b["topic"]]
            assert [value.as_py() for value in found] == [topic]
