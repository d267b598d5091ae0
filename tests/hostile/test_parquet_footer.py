"""Parquet footers that end the process that reads them, and text that is none: a sentence each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fuzz.targets import TARGETS
from tidegate.dataset.in_process import _rows_at_once
from tidegate.errors import StateError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.reader import open_run
from tidegate.profile.files import find_recording
from tidegate.recordings import parquet_footer
from tidegate.recordings.parquet_footer import open_checked
from tidegate.spark.columnar.parquet import ParquetColumns

CRAFTED = TARGETS["parquet"].corpus()[0]
"""Found by the fuzzer: pyarrow 26 aborts when it looks at a column of it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.parquet").write_bytes(CRAFTED)
    pq.write_table(pa.table({"t": [3, 1, 2]}), tmp_path / "b.parquet")
    return tmp_path


def test_arrow_alone_dies_of_it(folder: Path) -> None:
    """If this fails, pyarrow has been mended: the other tests then need another file."""
    code = (
        "import pyarrow.parquet as pq, sys; m = pq.read_metadata(sys.argv[1])\n"
        "for g in range(m.num_row_groups):\n"
        "  for c in range(m.num_columns): m.row_group(g).column(c)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "a.parquet")], capture_output=True, check=False
    )
    assert done.returncode < 0


def test_the_file_is_refused_and_the_next_one_read(folder: Path) -> None:
    for _ in range(2):  # the second answer is remembered
        with pytest.raises(pa.ArrowInvalid, match=r"dies \(SIGABRT\): the file is damaged or craf"):
            open_checked(str(folder / "a.parquet"))
        with open_checked(str(folder / "b.parquet")) as file:
            assert file.read().to_pydict() == {"t": [3, 1, 2]}


def test_gate_1_says_why(folder: Path) -> None:
    of = ParquetColumns(str(folder), pa.schema([("t", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid, match="SIGABRT"):
        of.parts(str(folder / "a.parquet"), ("t",), ("t",), lambda _: (0, True))
    assert of.bytes_per_row(["t"]) == 0.0
    (part,) = of.parts(str(folder / "b.parquet"), ("t",), (), lambda _: (0, True))
    assert part.rows == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a Parquet file"),
        (b"PAR1PAR1", "not a Parquet file"),
        (b"PAR1" + b"\xff\xff\xff\xffPAR1", "claims 4,294,967,295 bytes"),
        (b"PAR1" + b"\xff" * 30 + b"\x1e\0\0\0PAR1", "deserialize|thrift|OSError"),
    ],
)
def test_what_is_not_parquet(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(pa.ArrowInvalid, match=says):
        open_checked(str(tmp_path / "a"))


def test_a_child_that_takes_too_long_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = parquet_footer._Checker()
    monkeypatch.setattr(parquet_footer, "_checker", lambda pid: checker)
    with open_checked(str(folder / "b.parquet")):
        pass
    assert checker._child is not None
    os.kill(checker._child.pid, signal.SIGSTOP)  # it does not answer
    checker._verdicts.clear()
    monkeypatch.setattr(parquet_footer, "SECONDS", 0.2)
    with pytest.raises(pa.ArrowInvalid, match="not read within"):
        open_checked(str(folder / "b.parquet"))
    checker._verdicts.clear()
    monkeypatch.setattr(parquet_footer, "SECONDS", 60.0)
    with open_checked(str(folder / "b.parquet")) as file:  # by a new child
        assert file.metadata.num_rows == 3


def test_ctrl_c_does_not_make_a_good_file_a_crafted_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal sends SIGINT to the child, too."""
    checker = parquet_footer._Checker()
    monkeypatch.setattr(parquet_footer, "_checker", lambda pid: checker)
    open_checked(str(folder / "b.parquet")).close()
    child = checker._child
    assert child is not None
    os.kill(child.pid, signal.SIGINT)
    checker._verdicts.clear()
    open_checked(str(folder / "b.parquet")).close()
    assert checker._child is child
    assert child.poll() is None


def test_many_files_share_one_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = parquet_footer._started
    monkeypatch.setattr(parquet_footer, "_started", lambda: started.append(0) or start())
    checker = parquet_footer._Checker()
    monkeypatch.setattr(parquet_footer, "_checker", lambda pid: checker)
    for n in range(50):
        pq.write_table(pa.table({f"t{n}": [n]}), tmp_path / f"{n}.parquet")
        open_checked(str(tmp_path / f"{n}.parquet")).close()
    assert len(started) == 1


def test_footers_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good ones, one that is not Parquet and one that is not there; then none is asked for again,
    and a child that dies in the middle leaves the rest to be asked for one by one."""
    checker = parquet_footer._Checker()
    monkeypatch.setattr(parquet_footer, "_checker", lambda pid: checker)
    paths = [str(tmp_path / f"{n}.parquet") for n in range(parquet_footer.FOOTERS_AHEAD)]
    for n, path in enumerate(paths[:-1]):
        pq.write_table(pa.table({f"t{n}": [n]}), path)
    (tmp_path / "3.parquet").write_bytes(b"no Parquet")
    parquet_footer.check_ahead(paths)
    assert set(checker._verdicts.values()) == {""}
    assert len(checker._verdicts) == len(paths) - 2
    with monkeypatch.context() as silent:
        silent.setattr(checker, "_ask", lambda footer: pytest.fail("it was asked for again"))
        for n in (0, 50, 98):
            open_checked(paths[n]).close()
    checker._verdicts.clear()
    answers = iter([b'""', b'"broken"', b""])
    monkeypatch.setattr(checker, "_answer", lambda: next(answers))
    parquet_footer.check_ahead(paths)
    assert list(checker._verdicts.values()) == ["", "broken"]
    assert checker._child is None
    monkeypatch.undo()


def test_without_a_child_files_are_read_and_somebody_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = parquet_footer._Checker()
    monkeypatch.setattr(parquet_footer, "_checker", lambda pid: checker)
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with (
        pytest.warns(UserWarning, match="a crafted file may end this one"),
        open_checked(str(folder / "b.parquet")) as file,
    ):
        assert file.metadata.num_rows == 3


def test_inspect_counts_text_that_is_none(tmp_path: Path) -> None:
    """A run makes an error row of each; inspect ended with a stack."""
    names = pa.array([b"car", b"caf\xe9", b"bus"]).view(pa.string())
    pq.write_table(pa.table({"name": names, "stamp": [1, 2, 3]}), tmp_path / "a.parquet")
    loaded = find_recording(str(tmp_path / "a.parquet")).load(100)
    assert loaded.table["name"].to_pylist() == ["car", "bus"]
    assert loaded.unreadable == {"is not text: bytes that are not UTF-8": 1}


def test_the_output_of_a_stranger_does_not_end_the_process_that_shows_it(tmp_path: Path) -> None:
    """`tidegate view` looks at columns of row groups to show images; the file is also the table
    inside a log of the MCAP sink."""
    out = tmp_path / "out"
    (out / "data").mkdir(parents=True)
    (out / "data" / "a.parquet").write_bytes(CRAFTED)
    CommitLog.at(str(out)).write(Commit(0, "q", {"data": 80}, files=["data/a.parquet"]))
    run = open_run(str(out))
    with pytest.raises(StateError, match=r"committed but unreadable: .* dies \(SIGABRT\)"):
        list(run.payloads("data", ["payload"], np.array([0])))
    with pytest.raises(pa.ArrowInvalid, match="SIGABRT"):
        open_checked(CRAFTED)


def test_a_dataset_of_a_stranger_does_not_end_the_process(folder: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="SIGABRT"):
        _rows_at_once(folder / "a.parquet", ["t"])
