"""Gate 1 and a checkpoint or a recording that a stranger changed: nothing is read that may not be,
and what comes out is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tidegate.core.columns import ADDRESS
from tidegate.core.time import MIN_NS
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import Decoder
from tidegate.spark.columnar.mcap import McapColumns
from tidegate.spark.columnar.parquet import ParquetColumns
from tidegate.spark.columnar.payload import PayloadAttacher
from tidegate.spark.columnar.pieces import FoundFile, LoggedPiece, PieceLog
from tidegate.spark.columnar.source import (
    GateInput,
    GatePlan,
    GateStreamReader,
    GateTask,
    address_of,
    read_task,
)
from tidegate.spark.pack import Packer
from tidegate.spark.sources.recording import RecordingSettings

ROWS = pa.table({"key": ["a"], "t": [1], "payload": ["secret"]})
START = {"piece": 0, "bound": MIN_NS, "end": False}


def plan(of: Any, log: Path) -> GatePlan:
    given = GateInput(of, ("key", "t"), True, Packer(Decoder(), (0,)), ())
    return GatePlan((given,), (0,), recorded=True, arrival=False, log=str(log))


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        pq.write_table(ROWS, tmp_path / name / "a.parquet")
    return tmp_path / "inside"


def test_a_log_that_names_a_file_outside(roots: Path) -> None:
    """The log lies in the checkpoint, which somebody else may have written."""
    of = ParquetColumns(str(roots), ROWS.schema, roots=(str(roots),))
    outside = FoundFile(0, str(roots.parent / "outside" / "a.parquet"), 0)
    piece = LoggedPiece(0, 0, 1, 1, 10)
    PieceLog(str(roots / "log")).append([outside], [piece])
    reader = GateStreamReader(plan(of, roots / "log"))
    (task,) = reader.partitions(START, {**START, "piece": 1})
    with pytest.raises(ConfigError, match="leads out of"):
        list(reader.read(task))
    rows = pa.record_batch({"key": ["a"], "t": [1], ADDRESS: pa.array([0], pa.int64())})
    attacher = PayloadAttacher((of,), {"data": ROWS.schema}, str(roots / "log"))
    with pytest.raises(ConfigError, match="leads out of"):
        list(attacher.attach("data", rows))


@pytest.mark.parametrize("where", ["the look", "the read", "the exit"])
def test_a_link_that_leads_out(roots: Path, where: str) -> None:
    link = roots / "b.parquet"
    target = roots.parent / "outside" / "a.parquet"
    of = ParquetColumns(str(roots), ROWS.schema, roots=(str(roots),))
    if where == "the look":
        link.symlink_to(target)
        with pytest.raises(ConfigError, match="leads out of"):
            of.files()
        return
    pq.write_table(ROWS, link)
    assert str(link) in of.files()
    link.unlink()
    link.symlink_to(target)
    file = FoundFile(0, str(link), 0)
    if where == "the read":
        task = GateTask(((LoggedPiece(0, 0, 1, 1, 10), file),))
        read: Any = read_task(plan(of, roots / "log"), task)
    else:
        rows = pa.record_batch({"key": ["a"], "t": [1], ADDRESS: pa.array([0], pa.int64())})
        read = PayloadAttacher((of,), {"data": ROWS.schema}, None, (file,)).attach("data", rows)
    with pytest.raises(ConfigError, match="leads out of"):
        list(read)


def test_recordings_have_roots_too(roots: Path) -> None:
    (roots.parent / "outside" / "a.mcap").write_bytes(b"")
    (roots / "b.mcap").symlink_to(roots.parent / "outside" / "a.mcap")
    settings = RecordingSettings.of({"path": str(roots)})
    with pytest.raises(ConfigError, match="leads out of"):
        McapColumns(settings, settings.schema, (str(roots),)).files()


@pytest.mark.parametrize(
    "log",
    [
        b"", b"[", b"[" * 100_000, b"null", b"[]", b"{}", b'{"files": 1, "pieces": 2}',
        b'{"files": [[0, "a", 1]], "pieces": [[1, 0, 1, 1, 1, 0, ""]]}',
        b'{"files": [[0, "a", 1]], "pieces": [[-1, 0, 1, 1, 1, 0, ""]]}',
        b'{"files": [[0, "a", 1]], "pieces": [[0, 0, 1e99, 1, 1, 0, ""]]}',
        b'{"files": [[0, "a", 1]], "pieces": [[0, 5, 1, 1, 1, 0, ""]]}',
        b'{"files": [[0, "a", 1]], "pieces": [[0, 0, 1, 1, 1, 99999999999999999999, ""]]}',
        b'{"files": [[-1, "a", 1]], "pieces": []}', b'{"files": [[0, 5, 1]], "pieces": []}',
        b'{"files": [[0, "a\\u0000b", 1]], "pieces": []}',
        b'{"files": [[true, "a", 1]], "pieces": []}',
        b'{"files": [[0, "a"]], "pieces": []}',
    ],
)  # fmt: skip
def test_a_damaged_log_is_a_state_error(tmp_path: Path, log: bytes) -> None:
    (tmp_path / "00000000.json").write_bytes(log)
    with pytest.raises(StateError, match=r"00000000\.json"):
        PieceLog(str(tmp_path))


@pytest.mark.parametrize(
    "offset",
    [{}, {**START, "piece": -1}, {**START, "piece": "1"}, {**START, "bound": None},
     {**START, "end": 1}, {**START, "piece": 5}, {**START, "bound": 2**80}],
)  # fmt: skip
def test_an_offset_that_is_none_is_a_state_error(roots: Path, offset: dict[str, Any]) -> None:
    reader = GateStreamReader(plan(ParquetColumns(str(roots), ROWS.schema), roots / "log"))
    assert reader.latestOffset(START, ReadAllAvailable())["piece"] == 1
    with pytest.raises(StateError, match=r"the checkpoint has"):
        reader.partitions(START, offset)
    with pytest.raises(StateError, match=r"the checkpoint has"):
        reader.partitions(offset, {**START, "piece": 1})


def test_a_log_of_another_pipeline_is_a_state_error(roots: Path) -> None:
    content = {"files": [[1, "a", 1]], "pieces": []}
    (roots / "log").mkdir()
    (roots / "log" / "00000000.json").write_text(json.dumps(content))
    reader = GateStreamReader(plan(ParquetColumns(str(roots), ROWS.schema), roots / "log"))
    with pytest.raises(StateError, match="names 2 inputs; the pipeline has 1"):
        reader.latestOffset(START, ReadAllAvailable())


@pytest.mark.parametrize("address", [address_of(1, 0), address_of(0, 1), -1, 2**63 - 1])
def test_an_address_that_leads_nowhere(roots: Path, address: int) -> None:
    of = ParquetColumns(str(roots), ROWS.schema)
    PieceLog(str(roots / "log")).append([FoundFile(0, str(roots / "a.parquet"), 0)], [])
    attacher = PayloadAttacher((of,), {"data": ROWS.schema}, str(roots / "log"))
    where = pa.array(np.array([address], np.int64))
    rows = pa.record_batch({"key": ["a"], "t": [1], ADDRESS: where})
    with pytest.raises(StateError, match=r"names file|was changed or removed"):
        list(attacher.attach("data", rows))


def test_a_log_that_was_begun_again_is_read_again(tmp_path: Path) -> None:
    """An output that was deleted and made again has another log in the same place."""
    of = ParquetColumns(str(tmp_path), ROWS.schema)
    rows = pa.record_batch({"key": ["a"], "t": [1], ADDRESS: pa.array([0], pa.int64())})
    for run in ("first", "second"):
        file = tmp_path / f"{run}.parquet"
        pq.write_table(ROWS.set_column(2, "payload", [[run]]), file)
        log = tmp_path / "log" / "00000000.json"
        log.unlink(missing_ok=True)
        PieceLog(str(log.parent)).append([FoundFile(0, str(file), 0)], [])
        attacher = PayloadAttacher((of,), {"data": ROWS.schema}, str(log.parent), run=run)
        ((_, whole),) = attacher.attach("data", rows)
        assert whole.column("payload").to_pylist() == [run]
