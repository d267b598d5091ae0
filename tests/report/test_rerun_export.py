"""A run as a Rerun recording, read back by Rerun itself (`pip install 'tidegate[rerun]'`)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import store

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.report.rerun import export_rerun
from tidegate.sync.stage import Synchronize
from tidegate.testing.fleet import fleet


def recording() -> pa.Table:
    made = fleet(2, 8, seed=5, late_share=0.02)
    speed = pa.array(np.arange(made.num_rows) / 4)
    return made.append_column("speed", speed)


def in_order() -> EventtimeWatermark:
    return EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("plain"), [in_order()], recording())


def read_back(file: Path) -> dict[str, pa.Table]:
    """The rows of every entity, by its path, as Rerun's own reader gives them."""
    chunk = pytest.importorskip("rerun.chunk")
    parts: dict[str, list[pa.RecordBatch]] = {}
    for found in chunk.RrdReader(str(file)).stream().to_chunks():
        rows = found.to_record_batch()
        parts.setdefault(found.entity_path, []).append(pa.record_batch(rows))
    return {path: pa.concat_tables([pa.Table.from_batches([b]) for b in batches],
                                   promote_options="default")
            for path, batches in parts.items()}  # fmt: skip


def times(table: pa.Table, name: str) -> list[int]:
    return [int(t) for t in table[name].cast(pa.int64()).to_pylist()]


def test_every_row_is_in_the_recording_at_its_own_time(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    done = export_rerun(str(plain), str(tmp_path / "run.rrd"))
    found = read_back(tmp_path / "run.rrd")
    data = pq.read_table(plain / "data", partitioning=None)
    cars, topics = data["vehicle"].to_pylist(), data["topic"].to_pylist()
    for (car, topic), count in Counter(zip(cars, topics, strict=True)).items():
        series = found[f"/{car}/{topic}/speed"]
        assert series.num_rows == count
        own = data.filter(
            (pa.compute.field("vehicle") == car) & (pa.compute.field("topic") == topic)
        )
        wanted = sorted(zip(own["time_ns"].to_pylist(), own["log_time"].to_pylist(),
                            own["speed"].to_pylist(), strict=True))  # fmt: skip
        values = [value[0] for value in series["Scalars:scalars"].to_pylist()]
        got = zip(times(series, "event_time"), times(series, "arrival"), values, strict=True)
        assert sorted(got) == wanted
    late = pq.read_table(plain / "late", partitioning=None)
    lines = [line for car in ("car-00000", "car-00001")
             for line in found[f"/{car}/late"]["TextLog:text"].to_pylist()]  # fmt: skip
    assert len(lines) == late.num_rows > 0
    assert all("late by" in line[0] for line in lines)
    errors = pq.read_table(plain / "error", partitioning=None)
    said = [found[path]["TextLog:level"].to_pylist() for path in found if path.endswith("/error")]
    assert sum(map(len, said)) == errors.num_rows > 0
    assert {level[0] for levels in said for level in levels} == {"ERROR"}
    assert done.rows == data.num_rows + late.num_rows + errors.num_rows
    assert "payload" in done.left_out


def test_sets_can_be_stepped_through(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    stage = Synchronize(("camera", "lidar"), queue_size=10, keys=("vehicle",))
    store(tmp_path / "out", [in_order(), stage], recording())
    export_rerun(str(tmp_path / "out"), str(tmp_path / "run.rrd"), kinds=["data"])
    found = read_back(tmp_path / "run.rrd")
    sets = pq.read_table(tmp_path / "out" / "data", partitioning=None).to_pylist()
    spread: list[Any] = []
    for car in ("car-00000", "car-00001"):
        camera, lidar = (found[f"/{car}/{topic}/speed"] for topic in ("camera", "lidar"))
        own = found[f"/{car}/sets/spread_ms"]
        numbers = [sorted(each["set"].to_pylist()) for each in (own, camera, lidar)]
        assert numbers[0] == numbers[1] == numbers[2]
        spread += zip(own["set"].to_pylist(), own["Scalars:scalars"].to_pylist(), strict=True)
        for number, time_ns in zip(camera["set"].to_pylist(), times(camera, "event_time"),
                                   strict=True):  # fmt: skip
            assert sets[number]["camera"]["time_ns"] == time_ns
    assert sorted(spread) == [(n, [row["spread_ns"] / 1e6]) for n, row in enumerate(sets)]
    assert not [path for path in found if path.endswith("/dropped")]


def test_the_command_and_what_it_refuses(plain: Path, tmp_path: Path) -> None:
    def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "tidegate", "export", *arguments],
                              capture_output=True, text=True, timeout=100)  # fmt: skip

    wrong = tidegate(str(plain), str(tmp_path / "x"), "--to", "stone")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "to: got 'stone', must be mcap or rerun" in wrong.stderr
    for arguments, words in (
        (["table.csv"], "file: got 'table.csv', must end in .mcap or .rrd"),
        (["noname"], "must end in .mcap or .rrd, or say --to mcap or --to rerun"),
        (["run.rrd", "--to", "mcap"], "to: got 'mcap', does not fit run.rrd"),
    ):
        wrong = tidegate(str(plain), *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert words in wrong.stderr
        assert not Path(arguments[0]).exists()
    pytest.importorskip("rerun")
    done = tidegate(str(plain), str(tmp_path / "run.rrd"))
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    assert "payload" in done.stderr
    assert read_back(tmp_path / "run.rrd")
    refused = tidegate(str(plain), str(tmp_path / "run.rrd"), "--kind", "stone")
    assert refused.returncode == 2
    assert (
        "kind: got 'stone', must be one of those the run has: data, late, error" in refused.stderr
    )
    nowhere = tidegate(str(plain), str(tmp_path / "no" / "where" / "run.rrd"))
    assert nowhere.returncode == 2
    assert "cannot be written" in nowhere.stderr


def test_without_the_package_it_says_how_to_get_it(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)  # what Python has for a module it cannot find
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[rerun\]'"):
        export_rerun(str(plain), str(tmp_path / "run.rrd"))
    assert not (tmp_path / "run.rrd").exists()
