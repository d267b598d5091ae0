"""The numbers of the health page, against the run they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import Browser
from runs import store

from tidegate.batching.stage import Batch
from tidegate.deltas import Compact, VectorDelta
from tidegate.deltas.operations import Offset, rows_from
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.profile.roles import Roles
from tidegate.report.health import health_of
from tidegate.report.page import write_page
from tidegate.report.rows import gather_messages
from tidegate.testing.fleet import fleet

VECTORS, DELTAS = 20, 4000


def health(out: Path) -> dict[str, Any]:
    run = open_run(str(out))
    return health_of(run, gather_messages(run, Roles()))


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    deltas = [VectorDelta(f"d{n}", f"v{n * 7 % VECTORS}", Offset(float(n)), n * 10**6)
              for n in range(DELTAS)]  # fmt: skip
    rows = pa.Table.from_batches([rows_from(deltas)])
    rows = rows.append_column("shard", pa.array(["s"] * DELTAS))
    stage = Compact(1, "tiered_merge", delta_threshold=30, keys=("shard",))
    rows = rows.append_column("stamp", rows["time_ns"])
    return store(tmp_path_factory.mktemp("out"), [stage], rows, key="shard", cuts=8)


def test_chains_and_compactions(compacted: Path) -> None:
    found = health(compacted)
    table = pq.read_table(compacted / "compactions", partitioning=None).to_pydict()
    compaction = found["compaction"]
    assert compaction["count"] == len(table["deltas_before"]) > 100
    assert compaction["before"]["max"] == max(table["deltas_before"]) == 30
    assert compaction["bytes_before"] == sum(table["bytes_before"])
    assert sum(b["count"] for b in compaction["by_batch"].values()) == compaction["count"]
    levels = [commit["chains"] for commit in found["commits"]]
    assert [level["chains"] for level in levels[:-1]] == [VECTORS] * 7
    for number, level in enumerate(levels[:-1]):
        # what came less what was folded away is what the chains hold
        came = (number + 1) * DELTAS // 8
        assert level["deltas"] == came - _folded_until(compacted, number)
        assert level["length"] == level["deltas"] / VECTORS


def test_the_history_of_chains(compacted: Path) -> None:
    chains = health(compacted)["chains"]
    assert chains["count"] == VECTORS == len(chains["rows"])
    table = pq.read_table(compacted / "compactions", partitioning=None)
    first = min(table["time_ns"].to_pylist())
    for row in chains["rows"]:
        shard, vector = row["chain"].split(" / ")
        own = [each for each in table.to_pylist() if each["vector_id"] == vector]
        own.sort(key=lambda each: each["time_ns"])
        assert shard == "s"
        assert row["compactions"] == len(own)
        assert row["before"] == [each["deltas_before"] for each in own]
        assert row["after"] == [each["deltas_after"] for each in own]
        assert row["at_s"] == [round((each["time_ns"] - first) / 1e9, 6) for each in own]
        assert row["folded"] == sum(row["before"]) - sum(row["after"])
        assert row["bytes_saved"] == sum(e["bytes_before"] - e["bytes_after"] for e in own)


def _folded_until(out: Path, number: int) -> int:
    """Deltas that the compactions of all micro-batches up to this one took away."""
    folders = [out / "compactions" / f"batch={n:08d}" for n in range(number + 1)]
    tables = [pq.read_table(folder, partitioning=None) for folder in folders if folder.exists()]
    return sum(
        sum(table["deltas_before"].to_pylist()) - sum(table["deltas_after"].to_pylist())
        for table in tables
    )


def test_they_are_drawn(compacted: Path, browser: Browser, screenshots: Path) -> None:
    write_page(str(compacted), str(compacted / "page.html"), Roles())
    browser.problems.clear()
    browser.open(compacted / "page.html")
    browser.evaluate("document.getElementById('tab-health').click()")
    text = browser.evaluate("document.getElementById('health').innerText")
    assert "Chain length" in text
    assert "longest 30" in text
    assert f"{VECTORS} chains were compacted" in text
    last = "[...document.querySelectorAll('.card button')].at(-1)"
    browser.evaluate(f"{last}.click()")
    assert browser.evaluate(f"{last}.getAttribute('aria-pressed')") == "true"
    charts = "document.querySelectorAll('[aria-label=\"Chain history\"] .uplot').length"
    assert browser.evaluate(charts) == 1
    browser.screenshot(screenshots / "compaction-health.png")
    assert browser.problems == []


def test_a_run_without_chains_says_nothing_of_them(tmp_path: Path) -> None:
    store(tmp_path, [EventtimeWatermark("200 ms")], fleet(1, 4, seed=1))
    found = health(tmp_path)
    assert found["compaction"] is None
    assert found["chains"] is None
    assert {commit["chains"] for commit in found["commits"]} == {None}


def test_when_batches_were_delivered(tmp_path: Path) -> None:
    """Once per batch: the last arrival of its micro-batch less its end."""
    stages = [EventtimeWatermark("200 ms", max_future_skew="1 h"),
              Batch("1 s", keys=("vehicle",), gated=("camera",))]  # fmt: skip
    store(tmp_path, stages, fleet(1, 12, seed=6), cuts=6)
    decision = health(tmp_path)["decision"]
    assert decision["what"] == "batch"
    delays = {}
    for number in range(6):
        folder = tmp_path / "data" / f"batch={number:08d}"
        if folder.exists():
            rows = pq.read_table(folder, partitioning=None)
            newest = max(rows["log_time"].to_pylist())
            for batch, end in zip(rows["batch_id"].to_pylist(), rows["batch_end_ns"].to_pylist(),
                                  strict=True):  # fmt: skip
                delays.setdefault(batch, newest - end)
    wanted = [delay for delay in delays.values() if delay >= 0]
    assert sum(decision["counts"]) == len(wanted) > 5
    assert decision["quantiles"]["max"] == max(wanted)
    assert decision["quantiles"]["p50"] == int(np.quantile(wanted, 0.5, method="higher"))
