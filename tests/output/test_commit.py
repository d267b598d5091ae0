"""The commit record: one reader for all who look at a run's output."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import mcap
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.filesystem import filesystem, read_bytes, write_whole
from tidegate.output.maintenance import remove_batch
from tidegate.output.reader import open_run

counts = st.dictionaries(st.sampled_from(["data", "late", "error"]), st.integers(0, 2**40))
metrics = st.dictionaries(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), max_size=3)


@given(
    st.builds(
        Commit,
        batch=st.integers(0, 10**8 - 1),
        query=st.text(max_size=10),
        rows=counts,
        watermark_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
        shards=st.dictionaries(st.integers(0, 2**31), metrics, max_size=3),
        files=st.lists(st.from_regex(r"[a-z]{1,5}/[a-z0-9_-]{1,8}", fullmatch=True), max_size=3),
    )
)
def test_a_record_is_read_back_as_it_was_written(commit: Commit) -> None:
    assert Commit.from_json(commit.to_json(), "here") == commit


WHOLE = json.loads(Commit(0, "q").to_json())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is not a JSON object"),
        ("{}", "it lacks batch, files, query, rows, shards, watermark_ns"),
        ({**WHOLE, "tomorrow": 1}, "it has unknown tomorrow"),
        ({**WHOLE, "files": None}, "it has malformed files"),
        ({**WHOLE, "shards": {"one": {}}}, "invalid literal"),
    ],
)
def test_a_damaged_record_is_one_sentence_everywhere(
    tmp_path: Path, said: object, why: str
) -> None:
    (tmp_path / "_commits").mkdir()
    text = said if isinstance(said, str) else json.dumps(said)
    (tmp_path / "_commits" / "00000000.json").write_text(text)
    message = f"{tmp_path}/_commits/00000000.json is corrupt or newer than this version: {why}"
    readers = [
        lambda: CommitLog.at(str(tmp_path)).read(0),
        lambda: open_run(str(tmp_path)),
        lambda: mcap.export(tmp_path, tmp_path / "log.mcap"),
    ]
    for read in readers:
        with pytest.raises(StateError) as caught:
            read()
        assert str(caught.value).startswith(message)


def test_a_record_under_another_number_is_refused(tmp_path: Path) -> None:
    log = CommitLog.at(str(tmp_path))
    log.write(Commit(0, "q"))
    (tmp_path / "_commits" / "00000000.json").rename(tmp_path / "_commits" / "00000001.json")
    with pytest.raises(StateError, match="is the record of batch 0"):
        log.read(1)


def test_what_was_half_written_is_not_there(tmp_path: Path) -> None:
    log = CommitLog.at(str(tmp_path))
    (tmp_path / "_commits").mkdir()
    (tmp_path / "_commits" / ".00000000.tmp").write_text('{"half')
    assert log.numbers() == []
    log.write(Commit(0, "q", {"data": 1}))
    assert [path.name for path in (tmp_path / "_commits").iterdir()] == ["00000000.json"]
    assert list(log) == [Commit(0, "q", {"data": 1})]


def test_files_that_no_record_names_are_no_rows(tmp_path: Path) -> None:
    log = CommitLog.at(str(tmp_path))
    for batch in range(3):
        file = f"data/batch={batch:08d}/part-00000-0.parquet"
        (tmp_path / file).parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [batch]}), tmp_path / file)
        if batch != 1:
            log.write(Commit(batch, "q", {"data": 1}, files=[file]))
    run = open_run(str(tmp_path))
    assert run.table("data", ["n"]).column("n").to_pylist() == [0, 2]
    assert run.rows("data") == 2
    remove_batch(log.fs, log.root, ["data"], 1, epoch=1)
    assert not (tmp_path / "data" / "batch=00000001").exists()
    assert (tmp_path / "data" / "batch=00000002").exists()


def test_paths_and_uris_are_the_same_place(tmp_path: Path) -> None:
    fs, root = filesystem(f"file://{tmp_path}/")
    write_whole(fs, f"{root}/a/b.json", b"1")
    assert read_bytes(*(filesystem(str(tmp_path))[0], f"{tmp_path}/a/b.json")) == b"1"
    with pytest.raises(ConfigError, match=r"sink\.path: got 'ftp://x/y', cannot be opened"):
        filesystem("ftp://x/y", "sink.path")
