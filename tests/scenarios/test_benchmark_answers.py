"""The benchmarks compare right answers: ours equal the plain numpy ones they are checked with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

SUITE = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(SUITE), str(SUITE / "suite" / "contestants")]

import with_tidegate  # noqa: E402  (found through the lines above)
from suite import answers, data  # noqa: E402


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    path = tmp_path_factory.mktemp("suite") / "recording.parquet"
    data.record(path, 30_000, 7)
    table = pq.read_table(path)
    return with_tidegate.prepare(table), {n: table[n].to_numpy() for n in table.column_names}


@pytest.mark.parametrize("job", ["reorder", "tumbling", "sessions"])
def test_jobs_with_one_right_answer(job: str, recording: tuple[Any, dict[str, Any]]) -> None:
    rows, columns = recording
    right = getattr(answers, job)(columns)
    assert len(right[next(iter(right))]) >= 7
    found = with_tidegate.answer(job, with_tidegate.JOBS[job](rows))
    assert answers.same(right, found) == ""
    name = next(iter(right))
    spoilt = {**found, name: np.roll(found[name], 1)}
    assert answers.same(right, spoilt) != ""


def test_sets_use_no_message_twice(recording: tuple[Any, dict[str, Any]]) -> None:
    rows, columns = recording
    found = with_tidegate.answer("sets", with_tidegate.JOBS["sets"](rows))
    judged = answers.judge_sets(columns, found["sets"])
    assert judged["used_twice"] == 0
    assert judged["sets"] > 500


def test_batches_lose_nothing(recording: tuple[Any, dict[str, Any]]) -> None:
    rows, columns = recording
    found = with_tidegate.answer("batches", with_tidegate.JOBS["batches"](rows))
    assert sorted(found["id"]) == sorted(answers.reorder(columns)["id"])
