"""Blobs that stay in files of the machine: what comes back, and what is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.spark import blob_files
from tidegate.spark.blob_files import BlobFiles, blob_size
from tidegate.spark.pack import from_blob, to_blobs

PIECES = [pa.record_batch({"n": range(first, first + 9_000)}) for first in (0, 9_000, 18_000)]


def in_batch(monkeypatch: pytest.MonkeyPatch, number: int | None, query: str = "q") -> None:
    """Pretend to be in a task of this micro-batch; None: outside one."""
    found = None if number is None else (query, number)
    monkeypatch.setattr(blob_files, "_micro_batch", lambda: found)


def buffers(column: pa.BinaryArray) -> list[pa.Buffer]:
    return [blob.as_buffer() for blob in column]


def test_blobs_come_back_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_batch(monkeypatch, 3)
    staying = buffers(to_blobs(PIECES, BlobFiles(str(tmp_path))))
    carried = buffers(to_blobs(PIECES))
    assert all(blob.size < 1000 for blob in staying)
    assert [blob_size(blob) for blob in staying] == [blob.size for blob in carried]
    for blob, piece in zip(staying, PIECES, strict=True):
        assert from_blob(blob).equals(piece)
        assert from_blob(blob.to_pybytes()).equals(piece), "a Row hands over bytes"
    (file,) = (tmp_path / "q" / "3").iterdir()
    kept = from_blob(staying[1])
    file.unlink()
    assert kept.equals(PIECES[1]), "what is open stays readable"
    with pytest.raises(FileNotFoundError):
        from_blob(staying[1])


def test_few_bytes_and_batches_outside_a_stream_are_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BlobFiles(str(tmp_path))
    in_batch(monkeypatch, None)
    assert to_blobs(PIECES, files).equals(to_blobs(PIECES))
    in_batch(monkeypatch, 0)
    few = [PIECES[0].slice(0, 10)]
    assert to_blobs(few, files).equals(to_blobs(few))
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_carries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch(monkeypatch, 0)
    (tmp_path / "q").write_text("in the way")
    assert to_blobs(PIECES, BlobFiles(str(tmp_path))).equals(to_blobs(PIECES))

    def full(path: str, mode: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blob_files.pa, "OSFile", full)
    assert to_blobs(PIECES, BlobFiles(str(tmp_path / "other"))).equals(to_blobs(PIECES))


def test_a_later_micro_batch_removes_earlier_ones_of_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BlobFiles(str(tmp_path))
    for number in (8, 9):
        in_batch(monkeypatch, number)
        to_blobs(PIECES, files)
        to_blobs(PIECES, files)
    in_batch(monkeypatch, 0, "other")
    to_blobs(PIECES, files)
    in_batch(monkeypatch, 10)
    to_blobs(PIECES, files)
    assert sorted(str(f.relative_to(tmp_path).parent) for f in tmp_path.glob("*/*/*")) == [
        "other/0",
        "q/10",
    ]
