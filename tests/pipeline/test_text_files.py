"""Headers and lines of text that a stranger made: refused in a sentence, in no time."""

from __future__ import annotations

import bz2
import gzip
import time
from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline import text_files
from tidegate.pipeline.text_files import check_lines, column_names, read_header


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 20)


LIMIT = 1 << 20


def content(longest: int, end: bytes = b"\n") -> bytes:
    """Short lines, one of `longest` bytes, short lines."""
    return (b"x" * 99 + end) * 30_000 + b"y" * longest + end + (b"z" * 49 + end) * 40_000


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("longest", [0, 5, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 70_000, 3 * LIMIT])
def test_a_line_is_too_long_or_it_is_not(tmp_path: Path, longest: int, end: bytes) -> None:
    made = content(longest, end)
    files = [tmp_path / "a.csv", tmp_path / "b.csv.gz", tmp_path / "c.csv.bz2"]
    for file, pack in zip(files, (bytes, gzip.compress, bz2.compress), strict=True):
        file.write_bytes(pack(made))
        if longest <= LIMIT:
            check_lines([str(file)])
            continue
        begins = (99 + len(end)) * 30_000
        with pytest.raises(ConfigError, match=rf"{file.name}.* begins at byte {begins:,}"):
            check_lines([str(file)])


def test_the_last_line_needs_no_end_and_a_separator_can_be_another(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"a\n" + b"y" * (LIMIT + 1))
    with pytest.raises(ConfigError, match="begins at byte 2;"):
        check_lines([str(file)])
    file.write_bytes(b"a;" * LIMIT)
    check_lines([str(file)], ";")
    with pytest.raises(ConfigError, match="begins at byte 0;"):
        check_lines([str(file)])
    check_lines([str(tmp_path / "none.csv")])


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path: Path) -> None:
    """A gigabyte in five megabytes: known for what it is after a megabyte."""
    file = tmp_path / "a.csv.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        for _ in range(256):
            out.write(b"z" * (1 << 20))
    begun = time.process_time()
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        check_lines([str(file)])
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            ",".join(f"c{n}" for n in range(30_000)),
            "too many columns: 30,000; maxColumns is 20,480",
        ),
        (",".join(f"c{n}" for n in range(1_000_000)), "a first line of more than"),
        ('"' + "x" * 200_000 + '"', "cannot be read: field larger than"),
    ],
)
def test_headers_of_strangers(tmp_path: Path, header: str, says: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"{header}\n1\n")
    with pytest.raises(ConfigError, match=says):
        read_header(str(file), {})


def test_headers_of_many_equal_names_and_long_separators(tmp_path: Path) -> None:
    begun = time.process_time()
    assert column_names(["a"] * 100_000)[-1] == "a_100000"
    assert time.process_time() - begun < 5
    assert column_names(["a", "a_2", "a", "A"]) == ("a", "a_2", "a_3", "A_4")
    file = tmp_path / "a.csv"
    file.write_text('k||"t"||x\n1||2||3\n')
    assert read_header(str(file), {"sep": "||"}) == ("k", "t", "x")
    file.write_text(",".join(f"c{n}" for n in range(30_000)) + "\n1\n")
    assert len(read_header(str(file), {"maxcolumns": "40000"})) == 30_000
