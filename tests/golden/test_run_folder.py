"""The output of every recorded version is read, audited and continued."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from golden import run_folder
from golden.record import FOLDER
from tidegate.output.audit import audit_run
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Epochs
from tidegate.output.reader import open_run


@pytest.mark.parametrize("version", sorted(folder.name for folder in FOLDER.iterdir()))
def test_a_recorded_run_is_read_and_goes_on(version: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / version / run_folder.ARCHIVE) as archive:
        archive.extractall(tmp_path)
    expected = json.loads((FOLDER / version / run_folder.EXPECTED).read_text())
    out = tmp_path / "out"
    rows: dict[str, list[int]] = {}
    run = open_run(str(out))
    assert any((out / "_commits").glob("*.fold"))
    assert any((out / "_commits").glob("*.json"))
    for kind in run.kinds:
        for commit in run.commits:
            for file in commit.files_of(kind):
                for row in pq.read_table(out / file).to_pylist():
                    rows.setdefault(f"{kind} {row['car']}", []).append(row["n"])
    assert rows == expected["rows"]
    assert audit_run(str(out)).passed
    claim = Epochs.at(str(out)).claim()
    assert claim.epoch == 2
    log = CommitLog.at(str(out))
    last = log.numbers()[-1]
    log.write(Commit(last + 1, "q", epoch=claim.epoch))
    assert log.numbers()[-1] == last + 1
    claim.release()
    after = json.loads(json.dumps(run_folder.after_savepoint(tmp_path / "savepoint")))
    assert after == expected["after_savepoint"]
