"""The benchmarks compare right answers: ours equal the plain numpy ones they are checked with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SUITE = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(SUITE), str(SUITE / "suite" / "contestants")]

import with_tidegate  # noqa: E402  (found through the lines above)
from suite import answers, data, limits, pieces, results, run  # noqa: E402
from suite.drawing import Bar, bars, curves, stack  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("suite") / "recording.parquet"
    data.record(file, 30_000, 7)
    return file


@pytest.fixture(scope="module")
def given(path: Path) -> Any:
    return with_tidegate.prepare(str(path))


@pytest.fixture(scope="module")
def judge(path: Path) -> run.Judge:
    return run.Judge(path)


def found(job: str, given: Any) -> answers.Answer:
    return with_tidegate.answer(job, with_tidegate.JOBS[job](given))


@pytest.mark.parametrize("job", ["reorder", "tumbling", "sessions", "batches", "compaction"])
def test_jobs_with_one_right_answer(job: str, given: Any, judge: run.Judge) -> None:
    answer = found(job, given)
    assert judge.verdict(job, answer) == "right"
    name = {"compaction": "vectors", "batches": "id"}.get(job, next(iter(answer)))
    spoilt = {**answer, name: np.roll(answer[name], 1, axis=0)}
    if job == "batches":  # their order is not judged, so one row twice and one not at all
        spoilt = {"id": np.concatenate([answer["id"][1:], answer["id"][1:2]])}
    assert judge.verdict(job, spoilt) != "right"


def test_the_numbers_are_compared_too(given: Any, judge: run.Judge) -> None:
    answer = found("tumbling", given)
    spoilt = {**answer, "n": answer["n"] + (np.arange(len(answer["n"])) == 3)}
    assert judge.verdict("tumbling", spoilt) == f"n differs in 1 of {len(answer['n'])} rows"


def test_sets_use_no_message_twice(given: Any, judge: run.Judge) -> None:
    sets = found("sets", given)["sets"]
    judged = answers.judge_sets(judge.data, sets)
    assert judged["used_twice"] == 0
    assert judged["sets"] > 500
    twice = answers.judge_sets(judge.data, np.concatenate([sets, sets[:1]]))
    assert twice["used_twice"] == sets.shape[1]


def test_a_stream_need_not_have_let_out_what_is_still_open(given: Any, judge: run.Judge) -> None:
    answer = found("tumbling", given)
    last = answer["start"] < answer["start"].max() - 10**9
    part = {name: values[last] for name, values in answer.items()}
    assert judge.verdict("tumbling", part) != "right"
    assert judge.verdict("stream_tumbling", part) == "right"
    early = answer["start"] > answer["start"].min()
    without = {name: values[early] for name, values in answer.items()}
    assert judge.verdict("stream_tumbling", without) != "right"


def test_every_figure_has_a_limit(path: Path) -> None:
    known = set(limits.limits(path))
    for piece in pieces.PIECES.values():
        assert set(piece.limits) == set(piece.jobs)
        if piece.ours == "tidegate":
            assert set(piece.jobs) == set(with_tidegate.JOBS)
            assert {name for names in piece.limits.values() for name in names} <= known


def test_notes_are_replaced_as_a_whole(tmp_path: Path) -> None:
    for text in ("one\n\n", "two"):
        results.write_note("a", text, tmp_path)
        results.write_note("b", "other", tmp_path)
    assert (tmp_path / "a.md").read_text() == "two\n"
    assert (tmp_path / "b.md").read_text() == "other\n"


def test_pictures_are_well_formed() -> None:
    from xml.etree import ElementTree

    drawn = [
        bars(
            "a < b", [Bar("A & B", "x", 2.0, 1.0, 30.0), Bar("C", "y", 0.5, 0.1, 0.9, wrong=True)]
        ),
        curves("t", {"one": {"1": 3.0, "10": 4.0}, "two": {"x": 0.0}}, "ms"),
        stack("s", {"a": 1.0, "b": 0.0}, "s"),
    ]
    for svg in drawn:
        assert ElementTree.fromstring(svg).tag.endswith("svg")
