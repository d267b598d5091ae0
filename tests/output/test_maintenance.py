"""Folded records and merged files: the same run, in fewer files."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from faults.outcomes import Outcomes
from tidegate.cli import app
from tidegate.core.columns import MICRO_BATCH
from tidegate.errors import ConfigError, StateError
from tidegate.output.commit import Commit, CommitLog
from tidegate.output.epochs import Epochs
from tidegate.output.maintenance import BATCHES, Maintenance, batches_of_file
from tidegate.output.reader import open_run, run_totals
from tidegate.output.summary import Summary
from tidegate.output.upkeep import maintain
from tidegate.spark.pack import to_blob
from tidegate.spark.sinks.delta import DeltaSink
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest

SCHEMAS = {"data": pa.schema([("n", pa.int64())])}


def outcomes(batch: int) -> Any:
    rows = pa.record_batch({"n": pa.array([2 * batch, 2 * batch + 1], pa.int64())})
    made = [
        {"shard": 0, "kind": "data", "rows": 2, "watermark_ns": None, "metrics": None,
         "blob": to_blob(rows)},
        {"shard": 0, "kind": "metric", "rows": 0, "watermark_ns": batch,
         "metrics": {"rows_in": 2 * batch + 2}, "blob": None},
    ]  # fmt: skip
    return Outcomes(lambda: made)


def write(out: Path, batches: range, fold: int = 1000, sink: Any = ParquetSink) -> None:
    made = sink(SinkRequest(str(out), SCHEMAS))
    made.fold = fold
    for batch in batches:
        made.write(outcomes(batch), batch, "q")


def shown(out: Path) -> tuple[list[int], list[int]]:
    """Rows, and the batch of each."""
    table = open_run(str(out)).table("data", ["n"])
    return table.column("n").to_pylist(), table.column(MICRO_BATCH).to_pylist()


@pytest.mark.parametrize("batches", [3, 8, 47, 230])
def test_a_run_that_was_folded_is_the_same_run(tmp_path: Path, batches: int) -> None:
    write(tmp_path / "plain", range(batches))
    write(tmp_path / "folded", range(batches), fold=3)
    assert shown(tmp_path / "folded") == shown(tmp_path / "plain")
    one, two = (open_run(str(tmp_path / name)) for name in ("plain", "folded"))
    assert [c.batch for c in one.commits] == [c.batch for c in two.commits]
    assert one.counts == two.counts
    logs = [CommitLog.at(str(tmp_path / name)) for name in ("plain", "folded")]
    assert logs[0].numbers() == logs[1].numbers() == list(range(batches))
    for batch in (0, batches // 2, batches - 1):
        assert (logs[1].read(batch) or Commit(-1, "")).rows == {"data": 2}
    assert run_totals(str(tmp_path / "plain")) == run_totals(str(tmp_path / "folded"))
    made = run_totals(str(tmp_path / "folded"))
    whole = Summary.of("", two.commits)
    assert made is not None
    assert (made.batches, made.rows, made.shards) == (batches, whole.rows, whole.shards)
    files = list((tmp_path / "folded" / "_commits").iterdir())
    assert len(files) <= 6 + 9 * 3
    by_batch = [(c.batch, len(rows)) for c, rows in two.rows_by_batch("data")]
    assert by_batch == [(batch, 2) for batch in range(batches)]


def test_a_reader_sees_the_run_as_it_was_when_it_looked(tmp_path: Path) -> None:
    write(tmp_path, range(6))
    before = open_run(str(tmp_path))
    maintain(str(tmp_path))
    write(tmp_path, range(6, 8))
    assert before.table("data", ["n"]).column("n").to_pylist() == list(range(12))
    assert shown(tmp_path)[0] == list(range(16))
    maintain(str(tmp_path), retain_s=0)
    assert shown(tmp_path)[0] == list(range(16))
    with pytest.raises(StateError, match="is committed but unreadable"):
        before.table("data", ["n"])


def test_retired_files_live_by_the_clock_of_their_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by that of the driver, which may be two hours ahead."""
    ahead = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: ahead)
    write(tmp_path, range(6))
    before = open_run(str(tmp_path))
    maintain(str(tmp_path))
    maintain(str(tmp_path))
    assert before.table("data", ["n"]).column("n").to_pylist() == list(range(12))
    for folder in (tmp_path / "_retired").iterdir():
        os.utime(folder, (folder.stat().st_mtime - 3601,) * 2)
    assert maintain(str(tmp_path)).removed == 5
    assert [one.name for one in (tmp_path / "_retired").iterdir()] == []


def test_plain_readers_find_every_row_once(tmp_path: Path) -> None:
    write(tmp_path, range(10), fold=2)
    import pyarrow.parquet as pq

    files = sorted((tmp_path / "data").rglob("*.parquet"))
    rows = [n for file in files for n in pq.ParquetFile(file).read().column("n").to_pylist()]
    assert sorted(rows) == list(range(20))
    assert len(files) < 10


def test_large_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, range(5))
    done = Maintenance(CommitLog.at(str(tmp_path)), 1, target_bytes=4).run(everything=True)
    assert (done.folded, done.merged) == (4, 0)
    assert shown(tmp_path)[0] == list(range(10))


def test_delta_tables_are_optimized_by_their_library(tmp_path: Path) -> None:
    write(tmp_path, range(7), sink=DeltaSink)
    done = maintain(str(tmp_path), retain_s=0)
    assert done.merged == 7
    assert sorted(shown(tmp_path)[0]) == list(range(14))
    assert len(deltalake.DeltaTable(tmp_path / "data").file_uris()) == 1
    write(tmp_path, range(7, 9), sink=DeltaSink)
    maintain(str(tmp_path), retain_s=0)
    assert sorted(shown(tmp_path)[0]) == list(range(18))
    found = deltalake.DeltaTable(tmp_path / "data").to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == list(range(18))


def test_a_record_of_a_driver_of_the_past_does_not_count_beside_a_fold(tmp_path: Path) -> None:
    """The seal that kept it out was folded away."""
    write(tmp_path, range(6), fold=2)
    log = CommitLog.at(str(tmp_path))
    rogue = Commit(0, "q", {"data": 9}, files=["data/nowhere.parquet"])
    (tmp_path / "_commits" / "00000000.json").write_text(rogue.to_json())
    assert [commit.rows for commit in log] == [{"data": 2}] * 6
    with pytest.raises(StateError, match="another run committed batch 1 and folded it"):
        log.write(Commit(1, "q"))
    Maintenance(log, 1).run()
    assert not (tmp_path / "_commits" / "00000000.json").exists()


def test_maintain_is_refused_while_a_run_writes(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    claim = Epochs.at(str(tmp_path)).claim()
    claim.keep(lambda: not claim.ended)
    with pytest.raises(ConfigError, match="is written to by this process"):
        maintain(str(tmp_path))
    claim.release()
    done = CliRunner().invoke(app, ["maintain", str(tmp_path)])
    assert done.stdout == "folded 2 records, merged 2 files into 1, removed 0\n"


def test_a_damaged_fold_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, range(6), fold=2)
    (fold,) = [f for f in (tmp_path / "_commits").iterdir() if f.suffix == ".fold"][:1]
    whole = fold.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"no gzip"):
        fold.write_bytes(content)
        with pytest.raises(StateError, match=f"{fold.name} is corrupt or newer than this version"):
            open_run(str(tmp_path))


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fold: got 1"):
        Maintenance(CommitLog.at(str(tmp_path)), 1, fold=1)


@pytest.mark.parametrize(
    "lines",
    [
        b"[" * 100_000,
        b'{"first": 0, "last": 3, "ranges": [[0, 999999999999999]], "totals": TOTALS}',
        b'{"first": 0, "last": 3, "ranges": [[3, 0]], "totals": TOTALS}',
        b'{"first": 0, "last": 3, "ranges": [[0, 1], [1, 2]], "totals": TOTALS}',
        b'{"first": 0, "last": 3, "ranges": [[0, "x"]], "totals": TOTALS}',
        b'{"first": 0, "last": 3, "ranges": [[0, 1]], "totals": {"rows": {"data": "<b>"}}}',
        b'{"first": 0, "last": 0, "ranges": [[0, 0]], "totals": TOTALS}\n{"batch": 7, "query": "q",'
        b' "rows": {}, "watermark_ns": null, "shards": {}, "files": []}',
        b" " * (65 << 20),
    ],
)
def test_a_crafted_fold_is_a_sentence_and_takes_no_memory(tmp_path: Path, lines: bytes) -> None:
    totals = b'{"batches": 1, "rows": {}, "watermark_ns": null, "shards": {}, "behind": {}'
    totals += b', "seen": {}}'
    (tmp_path / "_commits").mkdir()
    fold = tmp_path / "_commits" / "00000000-00000003.1.fold"
    fold.write_bytes(gzip.compress(lines.replace(b"TOTALS", totals)))
    with pytest.raises(StateError, match="is corrupt"):
        list(CommitLog.at(str(tmp_path)))


def test_a_merged_file_that_lies_about_its_batches_is_a_state_error() -> None:
    for said in (b"[" * 10**5, b"7", b'[["a", 1]]', b"[[0, -1]]", b"[[0, 1e400]]"):
        with pytest.raises(StateError, match="does not say which batches it holds"):
            batches_of_file(pa.schema([]).with_metadata({BATCHES: said}))
