"""Broken files are read as far as they go, say where they broke, and never raise."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType

from mcap_files import by_stock_reader, messages_in, recording, unindexed, write
from tidegate import mcap
from tidegate.mcap.chunks import LARGEST_CHUNK

ZSTD = recording(200)
PLAIN = recording(200, compression=CompressionType.NONE)
LZ4 = unindexed(200, compression=CompressionType.LZ4)
LOOSE = recording(200, use_chunking=False)
FILES = {"zstd": ZSTD, "plain": PLAIN, "lz4 without index": LZ4, "loose": LOOSE}
WANTED = by_stock_reader(PLAIN)


def data_end(file: bytes) -> int:
    """Where the data section ends: the record with opcode 15 and length 4."""
    return file.rindex(b"\x0f" + struct.pack("<Q", 4))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("step", range(24))
def test_cut_off_anywhere(tmp_path: Path, name: str, step: int) -> None:
    file = FILES[name]
    end = data_end(file)
    size = end * step // 24
    good, errors = messages_in(mcap.read(write(tmp_path, file[:size])))
    assert good == WANTED[: len(good)]
    assert len(errors) == 1
    assert errors[0]["file"].endswith("log.mcap")
    assert 0 <= errors[0]["offset"] <= size
    # Nothing that lies whole before the cut may be missing: at most the chunk being cut, and of a
    # chunk that is not compressed at most the message being cut.
    if name in ("plain", "loose") and size > 300:
        whole = sum(1 for row in WANTED if 0 <= file.find(row[-1]) < size - len(row[-1]) + 1)
        assert len(good) == whole


def test_a_compressed_chunk_that_is_cut_gives_its_first_messages(tmp_path: Path) -> None:
    file = recording(3_000, chunk_size=10_000_000, compression=CompressionType.LZ4)
    with mcap.McapFile(write(tmp_path, file)) as whole:
        (piece,) = whole.index.pieces
    cut = (piece.start + piece.end) // 2
    good, errors = messages_in(mcap.read(write(tmp_path, file[:cut])))
    assert 200 < len(good) < 3_000
    assert good == by_stock_reader(file)[: len(good)]
    assert len(errors) == 1


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
    st.sampled_from(mcap.CLOCKS),
)
def test_any_bytes_changed(tmp_path_factory, name, changes, clock) -> None:  # type: ignore[no-untyped-def]
    file = bytearray(FILES[name])
    for place, value in changes:
        file[place % len(file)] = value
    path = write(tmp_path_factory.mktemp("x"), bytes(file))
    for batch in mcap.read(path, clock=clock, crc=True):
        batch.validate(full=True)
        assert batch.schema == mcap.schema(clock)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_behind_the_magic(tmp_path_factory, rest: bytes) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path_factory.mktemp("x"), b"\x89MCAP0\r\n" + rest)
    for batch in mcap.read(path):
        batch.validate(full=True)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04 a zip file", "the file does not start as an MCAP file"),
        (b"\x89MCAP0\r\n", "the file ends without its footer"),
        (b"\x89MCAP0\r\n" + b"\x05" + b"\xff" * 8, "the file ends inside a record"),
        (b"\x89MCAP0\r\n" + bytes(40), "a record with opcode 0"),
    ],
)
def test_files_of_nothing(tmp_path: Path, file: bytes, reason: str) -> None:
    good, errors = messages_in(mcap.read(write(tmp_path, file)))
    assert good == []
    assert len(errors) == 1
    assert errors[0]["error"].startswith(reason)


def chunk(size: int, codec: bytes, packed: bytes) -> bytes:
    content = struct.pack("<QQQI", 0, 9, size, 0) + struct.pack("<I", len(codec)) + codec
    content += struct.pack("<Q", len(packed)) + packed
    record = b"\x06" + struct.pack("<Q", len(content)) + content
    end = b"\x0f" + struct.pack("<QI", 4, 0) + b"\x02" + struct.pack("<QQQI", 20, 0, 0, 0)
    return b"\x89MCAP0\r\n" + record + end + b"\x89MCAP0\r\n"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (chunk(2**60, b"zstd", b"x"), f"a chunk of {2**60} bytes; {LARGEST_CHUNK} are allowed"),
        (
            chunk(2**31 - 1, b"zstd", b"tiny"),
            "4 bytes that decompress to 2147483647, which is not read",
        ),
        (chunk(100, b"zstd", b"not zstd at all"), "a chunk that does not decompress"),
        (chunk(100, b"lz4", b"not lz4 at all!"), "a chunk that does not decompress"),
        (chunk(100, b"brotli", b"x" * 50), "a chunk compressed with 'brotli'"),
    ],
)
def test_chunks_that_lie(tmp_path: Path, file: bytes, reason: str) -> None:
    good, errors = messages_in(mcap.read(write(tmp_path, file)))
    assert good == []
    assert len(errors) == 1
    assert errors[0]["error"].startswith(reason)
    assert errors[0]["offset"] == 8


def test_one_broken_chunk_does_not_take_the_others(tmp_path: Path) -> None:
    with mcap.McapFile(write(tmp_path, ZSTD)) as file:
        pieces = file.index.pieces
    broken = bytearray(ZSTD)
    broken[pieces[3].start + 60 : pieces[3].end] = bytes(pieces[3].end - pieces[3].start - 60)
    good, errors = messages_in(mcap.read(write(tmp_path, bytes(broken))))
    assert [row["offset"] for row in errors] == [pieces[3].start]
    assert 0 < 200 - len(good) < 60
    assert set(good) < set(WANTED)


def test_a_message_of_no_channel_is_an_error_with_its_data(tmp_path: Path) -> None:
    path = tmp_path / "log.mcap"
    with mcap.McapWriter(path) as log:
        log.message(log.channel("/a"), 1, b"known")
        log.message(9, 2, b"unknown")
    good, errors = messages_in(mcap.read(path, topics=["/a"]))
    assert [row[-1] for row in good] == [b"known"]
    assert [(row["error"], row["data"]) for row in errors] == [
        ("a message of channel 9, which is nowhere defined", b"unknown")
    ]


def test_times_beyond_int64_are_errors_not_negative_times(tmp_path: Path) -> None:
    path = tmp_path / "log.mcap"
    with mcap.McapWriter(path, compression="none") as log:
        log.message(log.channel("/a"), 2**62, b"far")
    file = path.read_bytes().replace(struct.pack("<QQ", 2**62, 2**62), struct.pack("<QQ", 2**63, 5))
    good, errors = messages_in(mcap.read(write(tmp_path, file)))
    assert good == []
    assert [(r["log_time_ns"], r["publish_time_ns"], r["data"]) for r in errors] == [
        (None, None, b"far")
    ]


def test_an_index_that_lies_is_not_followed(tmp_path: Path) -> None:
    """Chunk offsets changed in the summary: the file is walked instead, and nothing is lost."""
    with mcap.McapFile(write(tmp_path, PLAIN)) as file:
        second = file.index.pieces[1].start
    summary = PLAIN.rindex(struct.pack("<Q", second))
    broken = PLAIN[:summary] + struct.pack("<Q", second + 1) + PLAIN[summary + 8 :]
    good, errors = messages_in(mcap.read(write(tmp_path, broken)))
    assert good == WANTED
    assert errors == []


def test_every_row_with_an_error_has_no_times(tmp_path: Path) -> None:
    """Else a pipeline whose event time is one of them would take the row for a message."""
    path = tmp_path / "log.mcap"
    with mcap.McapWriter(path) as log:
        log.message(9, 2, b"of no channel")
        log.message(log.channel("/a"), 3, b"no JSON")
    _, errors = messages_in(mcap.read(path, decode="*", clock="header"))
    assert len(errors) == 2
    for name in ("log_time_ns", "publish_time_ns", "header_stamp_ns"):
        assert [row[name] for row in errors] == [None, None]
