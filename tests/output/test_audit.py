"""`tidegate audit`: what adds up, and the first batch that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from faults.outcomes import Outcomes
from faults.simulation import SCHEMAS, SHARDS, Checkpoint, Store, input_rows
from tidegate.cli import app
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.errors import StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.audit import audit_run
from tidegate.output.reader import open_run
from tidegate.output.savepoint import Savepoint, write_beginning
from tidegate.output.summary import Summary
from tidegate.output.tally import Tally, audited_columns, tally_of
from tidegate.output.upkeep import maintain
from tidegate.spark.arrival import Packed
from tidegate.spark.pack import to_blob
from tidegate.spark.sinks.delta import DeltaSink
from tidegate.spark.sinks.parquet import ParquetSink
from tidegate.spark.sinks.registry import SinkRequest
from tidegate.spark.stateful_step import FlowRecipe, RunningStep, StepSettings
from tidegate.windows import Tumbling, Window

BATCHES = 3


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run of the step of the simulation, on a real disk."""
    checkpoint = Checkpoint()
    sink = ParquetSink(SinkRequest(str(tmp_path), SCHEMAS))
    for batch in range(BATCHES):
        sink.write(checkpoint.outcomes(batch), batch, "q")
    return tmp_path


def test_a_run_adds_up(out: Path) -> None:
    report = audit_run(str(out))
    assert report.passed, report.failures
    assert report.tallies["in"].rows == 36
    assert report.tallies["data"].rows + report.tallies["late"].rows + report.held == 36
    assert report.files == 6
    assert report.lines() == [
        "3 batches and 6 files add up",
        f"rows in 36 = data 24, late 8, held {report.held}",
    ]


@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink])
def test_a_run_that_was_maintained_adds_up(tmp_path: Path, sink: type[ParquetSink]) -> None:
    checkpoint = Checkpoint()
    made = sink(SinkRequest(str(tmp_path), SCHEMAS))
    for batch in range(6):
        made.write(checkpoint.outcomes(batch), batch, "q")
    maintain(str(tmp_path), retain_s=0)
    report = audit_run(str(tmp_path))
    assert report.passed, report.failures
    assert report.files < 12
    made = sink(SinkRequest(str(tmp_path), SCHEMAS))
    made.write(checkpoint.outcomes(6), 6, "q")
    assert audit_run(str(tmp_path)).passed


def change(out: Path, batch: int, how: Callable[[dict[str, Any]], object]) -> None:
    file = out / "_commits" / f"{batch:08d}.json"
    record = json.loads(file.read_text())
    how(record)
    file.write_text(json.dumps(record))


def rewrite(out: Path, batch: int, kind: str, how: Callable[[pa.Table], pa.Table]) -> None:
    (file,) = (out / kind / f"batch={batch:08d}").iterdir()
    pq.write_table(how(pq.ParquetFile(file).read()), file)


def swapped(table: pa.Table) -> pa.Table:
    other = pc.add(table.column("n"), 1)
    return table.set_column(table.schema.get_field_index("n"), "n", other)


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def miscount(record: dict[str, Any]) -> None:
    record["audit"]["0"]["in"][0] -= 1


@pytest.mark.parametrize(
    ("batch", "harm", "says"),
    [
        (1, lambda out: rewrite(out, 1, "data", lambda t: t.slice(1)), "its files hold 7 rows"),
        (1, lambda out: rewrite(out, 1, "late", swapped), "other rows than shards let out"),
        (2, lambda out: rewrite(out, 2, "data", doubled), "its files hold 20 rows"),
        (2, lambda out: (out / "_commits" / "00000001.json").unlink(), "+6 rows are not accounted"),
        (1, lambda out: change(out, 1, miscount), "+1 row is not accounted"),
        (0, lambda out: change(out, 0, lambda r: r["shards"]["1"].update(
            {"eventtime_watermark.rows_held": 9})), "are too many"),
        (2, lambda out: next((out / "late" / "batch=00000002").iterdir()).unlink(), "unreadable"),
    ],
)  # fmt: skip
def test_the_first_batch_that_does_not_add_up(
    out: Path, batch: int, harm: Callable[[Path], object], says: str
) -> None:
    harm(out)
    report = audit_run(str(out))
    assert report.failed_batch == batch, report.failures
    assert any(says in line for line in report.failures), report.failures


def test_rows_swapped_between_batches_are_seen_by_their_hash(tmp_path: Path) -> None:
    """Nothing is held and all counts agree, yet other rows went out than came in."""
    checkpoint = Checkpoint()
    sink = ParquetSink(SinkRequest(str(tmp_path), SCHEMAS))
    for batch in range(BATCHES):
        sink.write(checkpoint.outcomes(batch), batch, "q")

    def pretend(record: dict[str, Any]) -> None:
        for shard in record["shards"].values():
            shard["eventtime_watermark.rows_held"] = 0
        for tallies in record["audit"].values():
            tallies["in"][0] = tallies["data"][0] + tallies["late"][0]
        for shard, metrics in record["shards"].items():
            metrics["rows_in"] = record["audit"][shard]["in"][0]

    change(tmp_path, 0, pretend)
    report = audit_run(str(tmp_path))
    assert report.failed_batch == 0
    assert report.failures == ["the rows that went out are not those that came in"]


def test_records_of_older_versions_are_counted(out: Path) -> None:
    for batch in range(BATCHES):
        change(out, batch, lambda record: [record.pop(name) for name in ("audit", "audited")])
    report = audit_run(str(out))
    assert report.passed, report.failures
    assert report.unaudited == BATCHES


def test_the_command(out: Path) -> None:
    done = CliRunner().invoke(app, ["audit", str(out), "--json"])
    assert json.loads(done.stdout)["passed"] is True
    rewrite(out, 1, "data", lambda table: table.slice(1))
    done = CliRunner().invoke(app, ["audit", str(out)])
    assert done.exit_code == 2
    assert done.stdout.startswith(
        "batch 1 does not add up:\ndata: its files hold 7 rows, the record"
    )
    assert CliRunner().invoke(app, ["audit", str(out), "--no-files"]).exit_code == 0


def test_a_tally_does_not_depend_on_order_or_width() -> None:
    rows = pa.table({"a": [1, 2, None], "t": ["x", None, "z"]})
    other = pa.table({"t": pa.array(["z", "x", None]), "a": pa.array([None, 1, 2], pa.int16())})
    assert tally_of(rows, ["a", "t"]) == tally_of(other, ["a", "t"])
    assert tally_of(rows, ["a", "t"]) != tally_of(rows, ["t", "a"])
    assert tally_of(rows, ["a", "b"]).rows == 3
    whole = tally_of(rows, ["a"])
    parts = [tally_of(rows.slice(at, 1), ["a"]) for at in range(3)]
    assert sum(parts, Tally()) == whole


def test_columns_that_sinks_may_change_are_not_hashed() -> None:
    came = pa.schema([
        ("car", pa.string()), ("at", pa.timestamp("us")), ("image", pa.binary()), ("n", pa.int64()),
        ("m", pa.float64()),
    ])  # fmt: skip
    refused = came.remove(4)
    assert audited_columns(came, {"data": came, "late": refused})["in"] == ("n", "car")


def run_of(
    stages: list[tuple[Operator, ...]], out: Path, pages: dict[int, dict[int, bytes]], first: int
) -> None:
    """Run a batch per list of stages into `out`, from batch `first` of the simulation's input on.

    Args:
        stages: The stages of every batch.
        out: The output.
        pages: The state of each shard before and, changed, after.
        first: The number of the first input.
    """
    for batch, now in enumerate(stages):
        schemas = {**SCHEMAS, "dropped": SCHEMAS["data"].append(pa.field("reason", pa.string()))}
        if len(now) > 1:
            schemas["data"] = pa.schema([("rows", pa.int64())])
        recipe = FlowRecipe(
            lambda now=now: Flow(now, key="car", timed=True),
            audited=audited_columns(SCHEMAS["data"], schemas),
        )
        rows: list[dict[str, Any]] = []
        for shard in SHARDS:
            settings = StepSettings(recipe, f"{out}{batch}", timers=False, shards=len(SHARDS))
            store = Store(pages.setdefault(shard, {}))
            step = RunningStep(settings, cast(Any, None), cast(Any, store))
            blob = to_blob(input_rows(first + batch, shard)).as_py()
            packed = Packed("data", 0, 0, batch, f"{batch}", 0, blob)
            rows += step.rows(shard, iter([packed]), batch)
        sink = ParquetSink(SinkRequest(str(out), schemas))
        sink.write(cast(Any, Outcomes(lambda rows=rows: rows)), batch, "q")


def test_stages_appended_and_removed_add_up(tmp_path: Path) -> None:
    """The rows that a window used are gone; what comes after it must be there, or is missed."""
    head = EventtimeWatermark("2 s")
    window = Window(Tumbling("4 s"), aggregates={"rows": "count"}, keys=("car",))
    run_of([(head,), (head, window), (head, window), (head,), (head,)], tmp_path, {}, 0)
    report = audit_run(str(tmp_path), files=False)
    assert report.passed, report.failures
    assert report.used > 0
    change(tmp_path, 4, lambda record: record["rows"].update(data=record["rows"]["data"] - 1))
    report = audit_run(str(tmp_path), files=False)
    assert report.failed_batch == 4
    assert "1 are missing" in report.failures[0]


def test_an_output_that_began_with_a_savepoint_adds_up(tmp_path: Path) -> None:
    head = EventtimeWatermark("2 s")
    pages: dict[int, dict[int, bytes]] = {}
    run_of([(head,)] * 3, tmp_path / "old", pages, 0)
    own = {shard: {n: b for n, b in found.items() if n >= 0} for shard, found in pages.items()}
    saved = Savepoint(len(SHARDS), ("car",), (), own)
    write_beginning(str(tmp_path / "new"), saved, lambda: Flow((head,), key="car", timed=True))
    run_of([(head,)] * 2, tmp_path / "new", pages, 3)
    report = audit_run(str(tmp_path / "new"))
    assert report.passed, report.failures
    assert report.tallies["in"].rows == 24
    assert report.held_before == 4
    assert "rows in 24 + held before 4 = " in report.lines()[1]
    summary = Summary.of(str(tmp_path / "new"), open_run(str(tmp_path / "new")).commits)
    assert summary.rows_in > 24  # it does not know of the savepoint
    (tmp_path / "new" / "_beginning.json").write_text('{"shards": 3}')
    with pytest.raises(StateError, match=r"_beginning\.json is corrupt"):
        audit_run(str(tmp_path / "new"))
