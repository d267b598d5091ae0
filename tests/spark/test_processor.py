"""What the start of a stream costs: the processor is opened in a new Python before every query."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.errors import ContractError
from tidegate.eventtime import EventtimeWatermark
from tidegate.spark.environment import python
from tidegate.spark.processor import ShardProcessor
from tidegate.spark.stateful_step import FlowRecipe, StepSettings, run_piece

OPENS = """
import pickle, sys
processor = pickle.loads(sys.stdin.buffer.read())
class Handle:
    def getMapState(self, *names):
        return names
processor.init(Handle())
heavy = [name for name in sys.modules if name.split(".")[0] in ("numba", "pyarrow", "tidegate")]
print(processor.pages[0], sorted(heavy))
"""


def make() -> Flow:
    return Flow((EventtimeWatermark("200 ms"),), key=("car",), timed=True)


def test_the_driver_asks_for_the_state_without_loading_the_operators() -> None:
    processor = ShardProcessor(StepSettings(FlowRecipe(make), "q", timers=False, shards=2))
    sent = cloudpickle.dumps(processor)
    told = subprocess.run([sys.executable, "-c", OPENS], input=sent, capture_output=True)
    assert told.stdout.decode().strip() == "pages []", told.stderr.decode()


def test_stages_that_hold_more_than_a_column_can_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make()

    def full(collection: object) -> list[object]:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(flow, "accept", full)
    rows = pa.record_batch({"car": ["a"], TIME: [1]})
    with pytest.raises(ContractError, match=r"more than 2 GiB of rows.*payload: addressed"):
        list(run_piece(FlowRecipe(make), flow, rows, 0))


# -- the Python of workers -----------------------------------------------------------------------


COLLECTS = """
import gc, sys
sys.argv = ["", "pyspark.worker"]
import tidegate.spark.environment.daemon as ours
import pyspark.daemon
print(len(gc.get_objects()) < 1000 < gc.get_freeze_count())
kept = []
for _ in range(ours.FREEZES + 2):  # what pyspark calls after every task
    kept.append([[] for _ in range(1000)])
    before = gc.get_freeze_count()
    pyspark.daemon.gc.collect()
    print(gc.get_freeze_count() - before >= 1000)
"""


def test_the_collector_of_workers_does_not_visit_what_is_loaded() -> None:
    told = subprocess.run([sys.executable, "-c", COLLECTS], capture_output=True, text=True)
    assert told.stdout.split() == ["True"] * 9 + ["False"] * 2, told.stderr


def test_workers_import_the_pyspark_that_is_installed(tmp_path: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    zips = [str(file) for file in sorted((home / "python" / "lib").glob("*.zip"))]
    assert zips, "Spark no longer brings its Python as a zip: the launcher has nothing to do"
    mine = tmp_path / "with space"
    mine.mkdir()
    (mine / "only_here.py").write_text("")
    asked = "import only_here, pyspark, sys; print(pyspark.__file__); print(sys.argv[1:])"
    command = [python.worker_python(tmp_path), "-c", asked, "a b", "*"]
    path = os.pathsep.join([*zips, str(mine)])
    told = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert told.stdout.splitlines() == [pyspark.__file__, "['a b', '*']"], told.stderr


def test_pythons_that_plan_a_data_source_fork_from_our_daemon(tmp_path: Path) -> None:
    """The installed Python is replaced by one that prints its arguments."""
    own = python.worker_python(tmp_path)
    text = Path(own).read_text().replace(f'exec "{sys.executable}"', "exec echo")
    Path(own).write_text(text)

    def told(*arguments: str) -> str:
        return subprocess.run([own, *arguments], capture_output=True, text=True).stdout.strip()

    planner = "pyspark.sql.worker.create_data_source"
    assert told("-m", "pyspark.daemon", planner) == f"-m {python.DAEMON} {planner}"
    assert told("-m", "pyspark.daemon", "pyspark.worker") == "-m pyspark.daemon pyspark.worker"
    assert told("-m", planner) == f"-m {planner}"


def test_the_source_of_a_stream_loads_no_operators() -> None:
    """Spark starts a Python for it, which imports what the source names."""
    asked = (
        "import sys, tidegate.spark.columnar.source, tidegate.spark.columnar.parquet; "
        "print([m for m in sys.modules if m.split('.')[0] in ('pandas', 'pydantic', 'typer') or "
        "m in ('tidegate.sync', 'tidegate.windows', 'tidegate.align', 'tidegate.pipeline.stages')])"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert told.stdout.strip() == "[]", told.stdout + told.stderr


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert python.worker_python(tmp_path / "file") == sys.executable


def test_which_python_workers_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    python.use_python(local=True)
    assert os.environ["PYSPARK_PYTHON"].startswith(str(tmp_path))
    python.use_python(local=False)  # what lies at that path on a cluster nobody knows
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/theirs/bin/python")
    python.use_python(local=True)
    assert os.environ["PYSPARK_PYTHON"] == "/opt/theirs/bin/python"
