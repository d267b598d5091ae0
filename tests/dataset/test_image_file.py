"""Parquet files whose images are not written by Arrow: every reader finds what was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.dataset import ParquetWriter, direct_file, image_file, tables
from tidegate.dataset.direct_file import BLOCK_BYTES, SECTOR, DirectFile
from tidegate.dataset.footer import read_struct, write_struct

IMAGE = b"\xff\xd8\xff" + bytes(range(256)) * 9
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "camera": pa.struct({"image": pa.binary_view(), "height": pa.int32()}),
        "front": pa.binary_view(),
        "state": pa.list_(pa.float64()),
    }
)
IMAGES = st.none() | st.binary(max_size=40) | st.integers(0, len(IMAGE)).map(lambda n: IMAGE[:n])
CAMERAS = st.none() | st.fixed_dictionaries(
    {"image": IMAGES, "height": st.none() | st.integers(0, 9)}
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(0, 99),
            "camera": CAMERAS,
            "front": IMAGES,
            "state": st.none() | st.lists(st.floats(0, 1), max_size=3),
        }
    ),
    max_size=30,
)
FIRST: dict[str, Any] = {
    "n": 0,
    "camera": {"image": IMAGE, "height": 1},
    "front": IMAGE,
    "state": [],
}


def write(path: Path, table: pa.Table, at_once: int) -> None:
    """Write rows, a few at a time."""
    writer = ParquetWriter(path)
    for first in range(0, len(table), at_once):
        writer.write(table.slice(first, at_once))
    assert writer.close()["rows"] == len(table)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 31), st.sampled_from([0, 0.005, 1]), st.sampled_from([1, 5_000]))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    at_once: int,
    group_mb: float,
    page_bytes: int,
) -> None:
    """Nulls, short values that a view holds itself, slices, pages and row groups of any size."""
    path = tmp_path_factory.mktemp("dataset") / "d"
    given_rows = [FIRST, *rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "GROUP_MB", group_mb)
        patch.setattr(image_file, "PAGE_BYTES", page_bytes)
        table = pa.Table.from_pylist([FIRST, *given_rows], SCHEMA).slice(1)
        write(path, table, at_once)
    found = pq.read_table(path)
    found.validate(full=True)
    assert found.to_pylist() == given_rows
    assert found.schema.field("front").type == pa.binary()
    assert not found.schema.field("camera").type.field("image").type.equals(pa.binary_view())


def test_the_footer_is_that_of_a_file_by_arrow(tmp_path: Path) -> None:
    """Row groups, counts and encodings; filters and a read of single columns and groups work."""
    rows = [{**FIRST, "n": n, "front": IMAGE if n % 3 else None} for n in range(40)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "GROUP_MB", 0.02)
        write(tmp_path / "d", table, 40)
    file = pq.ParquetFile(tmp_path / "d/part-00000.parquet")
    known = file.metadata
    assert known.num_rows == 40
    assert known.num_row_groups > 2
    end = 4
    for number in range(known.num_row_groups):
        group = known.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        assert group.total_byte_size == sum(c.total_uncompressed_size for c in columns)
        for column in sorted(columns, key=lambda c: c.data_page_offset):
            first = column.dictionary_page_offset or column.data_page_offset
            assert first >= end
            end = first + column.total_compressed_size
            assert column.num_values >= group.num_rows
        images = [c for c in columns if c.path_in_schema in ("front", "camera.image")]
        assert {c.compression for c in images} == {"UNCOMPRESSED"}
        assert file.read_row_group(number, ["front"]).num_rows == group.num_rows
    some = ds.dataset(tmp_path / "d").to_table(filter=ds.field("n") == 17)
    assert some.to_pylist() == [rows[17]]


def test_a_footer_is_written_as_it_was_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1.5, None], "b": [["x"], []], "c": [True, False]})
    pq.write_table(table, tmp_path / "f", compression="zstd", write_page_index=True)
    data = (tmp_path / "f").read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    assert write_struct(read_struct(footer)) == footer


@pytest.mark.parametrize("size", [0, 1, SECTOR, BLOCK_BYTES - 1, BLOCK_BYTES, 5 * BLOCK_BYTES + 7])
@pytest.mark.parametrize("direct", [True, False])
def test_a_file_has_the_bytes_it_was_given(tmp_path: Path, size: int, direct: bool) -> None:
    data = os.urandom(size)
    file = DirectFile(tmp_path / "f", direct)
    for first in range(0, size, 3_000_001):
        file.append(data[first : first + 3_000_001])
    assert file.size == size
    file.close()
    assert (tmp_path / "f").read_bytes() == data


def test_values_behind_their_lengths(tmp_path: Path) -> None:
    """Also across the edges of blocks, and larger than one."""
    values = [os.urandom(size) for size in (0, 5, BLOCK_BYTES - 13, 3, 2 * BLOCK_BYTES, 9)]
    file = DirectFile(tmp_path / "f")
    file.append_sized([memoryview(value) for value in values])
    file.close()
    expected = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    assert file.size == len(expected)
    assert (tmp_path / "f").read_bytes() == expected


def test_a_slow_disk_is_left_to_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_file, "SLOW", float("inf"))
    monkeypatch.setattr(direct_file, "TRIAL_BYTES", 3 * BLOCK_BYTES)
    data = os.urandom(12 * BLOCK_BYTES + 3)
    file = DirectFile(tmp_path / "f")
    file.append(data)
    file.close()
    assert not file.direct
    assert (tmp_path / "f").read_bytes() == data


def test_a_file_system_that_refuses_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take the flag and refuse the write."""
    import fcntl

    write_at = os.pwrite

    def refused(file: int, data: Any, place: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write_at(file, data, place)

    monkeypatch.setattr(os, "pwrite", refused)
    data = os.urandom(3 * BLOCK_BYTES + 3)
    file = DirectFile(tmp_path / "f")
    file.append(data)
    file.close()
    assert not file.direct
    assert (tmp_path / "f").read_bytes() == data


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: Any, place: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    file = DirectFile(tmp_path / "f")
    with pytest.raises(OSError, match="No space"):
        file.append(bytes(3 * BLOCK_BYTES))
    with pytest.raises(OSError, match="No space"):
        file.close()
