"""Files that are no recordings: exit code 1 and one sentence, from every command that reads one.

A file of which a part can be read is told in full, and `inspect` ends with exit code 1 all the
same. What is odd but readable (a line of 5 MB, an empty file beside a full one) is read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tidegate import cli
from tidegate.mcap import McapWriter

Run = Callable[..., tuple[int, str, str]]
"""Runs a command: its exit code, output and errors, the errors in one line."""

NOISE = random.Random(7).randbytes(5_000)
"""Bytes that are of no format."""

ROWS = "time,value\n" + "".join(
    f"2024-03-01T00:{n // 60:02d}:{n % 60:02d}Z,{random.Random(n).random()}\n" for n in range(900)
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capfd.readouterr()
        return int(stopped.value.code or 0), said.out, " ".join(said.err.split())

    return command


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"time": [1_709_251_200_000 + n for n in range(2000)]}), out)
    return out.getvalue()


BAD: dict[str, tuple[str, bytes, str]] = {
    "empty CSV": ("a.csv", b"", "a.csv is empty"),
    "blank CSV": ("a.csv", b"\n \n", "a.csv is empty"),
    "empty JSON": ("a.jsonl", b"", "a.jsonl is empty"),
    "empty Parquet": ("a.parquet", b"", "a.parquet is empty"),
    "empty MCAP": ("a.mcap", b"", "the file is empty"),
    "empty bag": ("a.bag", b"", "the file is empty"),
    "header only": ("a.csv", b"time,value\n", "has columns, but no rows"),
    "header without a line end": ("a.csv", b"time,value", "has columns, but no rows"),
    "noise as CSV": ("a.csv", NOISE, "a.csv is not text"),
    "noise as JSON": ("a.json", NOISE, "a.json is not text"),
    "noise as Parquet": ("a.parquet", NOISE, "no Parquet file"),
    "noise as MCAP": ("a.mcap", NOISE, "does not start as an MCAP file"),
    "noise as a bag": ("a.bag", NOISE, "does not start as a bag"),
    "noise as gzip": ("a.csv.gz", NOISE, "not compressed in the way its name says"),
    "a program as CSV": ("a.csv", b"\x7fELF\x02\x01\x01" + bytes(4_000), "a.csv is not text"),
    "Parquet as CSV": ("a.csv", _parquet(), "a.csv is not text"),
    "a web page as CSV": ("a.csv", b"<!DOCTYPE html>\n<html>404</html>", "a page of the web"),
    "JSON as CSV": ("a.csv", b'[{"t": 1}, {"t": 2}]', "holds JSON"),
    "a line end in text above a table": (
        "a.csv", b'"Log\nof today"\n' + ROWS.encode(), "with: tail -n +3 a.csv > table.csv"),
    "too few names above data": (
        "a.csv", b"Log\ntime,v\n" + ROWS.split("\n", 1)[1].replace("Z,", "Z,1,2,").encode(),
        "name all columns in line 2, or take what is above the data out with: tail -n +3 a.csv"),
    "UTF-16 with two kinds of line ends": (
        "a.csv", ROWS.replace("\n", "\r\n", 1).encode("utf-16"), "iconv -f UTF-16 -t UTF-8 a.csv"),
    "cut gzip": ("a.csv.gz", _half(gzip.compress(ROWS.encode())), "is cut off"),
    "cut zstandard": ("a.csv.zst", _half(zstandard.compress(ROWS.encode())), "is cut off"),
    "cut bzip2": ("a.csv.bz2", _half(bz2.compress(ROWS.encode())), "is cut off"),
    "cut JSON of gzip": ("a.json.gz", gzip.compress(b'{"t": 1}\n' * 99)[:30], "is cut off"),
    "cut Parquet": ("a.parquet", _half(_parquet()), "is cut off"),
    "cut bag": ("a.bag", b"#ROSBAG V2.0\n and then nothing", "no message can be read"),
    "cut lines of JSON": ("a.json", b'{"a": 1}\n{"a": ', "is no JSON"),
    "cut array of JSON": ("a.json", b'[{"a": 1}, {"a": ', "is no JSON"),
    "a number as JSON": ("a.json", b"42", "is no JSON of records"),
    "JSON in Latin-1": ("a.json", '{"n": "Größe"}\n'.encode("latin-1") * 9, "is not UTF-8"),
    "JSON in UTF-16": ("a.json", '{"n": 1}\n'.encode("utf-16"), "is UTF-16"),
    "CSV in UTF-32": ("a.csv", ROWS.encode("utf-32"), "a.csv is not text"),
    "one endless line": ("a.csv", b"x" * 5_000_000, "has no line end"),
    "a spreadsheet": ("a.xlsx", b"PK\x03\x04" + NOISE, "is a file of another kind"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["inspect", "init", "look"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_and_exit_code_1(
    tmp_path: Path, run: Run, command: str, case: str
) -> None:
    name, content, words = BAD[case]
    (tmp_path / name).write_bytes(content)
    code, out, said = run(command, name)
    assert (code, out) == (1, "")
    assert words in said
    assert said.startswith("tidegate: ")
    assert name in said
    assert "Traceback" not in said
    assert "--debug" not in said
    assert len(said) < 300


@pytest.mark.parametrize("command", ["inspect", "init", "look"])
def test_what_is_not_there_or_no_recording(tmp_path: Path, run: Run, command: str) -> None:
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/a.csv").write_text(ROWS)
    (tmp_path / "mixed/b.json").write_text('{"time": 1}\n')
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/README.md").write_text("nothing here")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere.csv")
    for path, words in (
        ("missing.csv", "missing.csv: there is no such file or folder"),
        ("gone.csv", "gone.csv: there is no such file or folder"),
        ("", "there is no such file or folder"),
        ("mixed", "mixed holds several kinds of files (1 × csv, 1 × json)"),
        ("notes", "notes is a folder without recordings"),
    ):
        code, out, said = run(command, path)
        assert (code, out) == (1, ""), path
        assert words in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    (tmp_path / "a.csv").chmod(0)
    code, _, said = run("inspect", "a.csv")
    assert code == 1
    assert "may not be read by this user" in said


def test_a_recording_that_was_cut_is_told_in_full_and_is_damaged(tmp_path: Path, run: Run) -> None:
    with McapWriter(tmp_path / "whole.mcap", chunk_bytes=2_000) as log:
        channel = log.channel("/imu", schema="R", encoding="json")
        for n in range(400):
            log.message(channel, log_time_ns=10**18 + n * 10**7, data=b'{"x": 12345}')
    (tmp_path / "cut.mcap").write_bytes(_half((tmp_path / "whole.mcap").read_bytes()))
    code, out, said = run("inspect", "cut.mcap")
    assert code == 1
    assert "/imu" in out
    assert "cut.mcap is damaged: the file ends" in said
    # the messages before the cut make a pipeline and a page
    assert run("init", "cut.mcap")[0] == 0
    assert run("look", "cut.mcap", "--no-open")[0] == 0


def test_odd_files_are_read(tmp_path: Path, run: Run) -> None:
    (tmp_path / "long.csv").write_text(ROWS + f"2024-03-01T00:20:00Z,{'x' * 5_000_000}\n")
    (tmp_path / "some").mkdir()
    (tmp_path / "some/a.csv").write_text(ROWS)
    (tmp_path / "some/b.csv").write_text("")
    (tmp_path / "latin.csv").write_bytes(ROWS.replace("value", "Größe").encode("latin-1"))
    for path, rows in (("long.csv", 901), ("some", 900), ("latin.csv", 900)):
        code, out, _ = run("inspect", path)
        assert code == 0
        assert f"{path}: {rows} rows" in out
    assert "the text is read as ISO-8859-1" in run("inspect", "latin.csv")[1]


def test_what_a_stranger_types_first(tmp_path: Path, run: Run) -> None:
    """A recording where a pipeline is wanted, and pages that cannot be written."""
    (tmp_path / "a.csv").write_text(ROWS)
    for command in ("run", "dry-run"):
        for name in ("a.csv", "."):
            code, _, said = run(command, name)
            assert code == 2
            assert f"not a pipeline file: write one with: tidegate init {name}" in said
    for page in ("nowhere/p.html", "."):
        code, _, said = run("look", "a.csv", "--no-open", "--page", page)
        assert code == 2
        assert "cannot be written" in said
        assert "--debug" not in said
