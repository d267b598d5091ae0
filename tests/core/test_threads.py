"""Work side by side: in order, with its errors, in forked processes, and as many as told."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate import threads
from tidegate.core.eventtime import EventtimeWatermark
from tidegate.core.flow import Flow
from tidegate.core.model import Collection
from tidegate.core.operator import Operator
from tidegate.core.picked import Picked
from tidegate.core.sync import Synchronize
from tidegate.errors import ConfigError, ContractError


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was = threads.count()
    yield
    threads.use(was)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_results_come_in_order_of_the_items(number: int) -> None:
    threads.use(number)
    assert threads.each(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    assert threads.each(str, []) == []


def test_the_caller_works_too_and_others_help() -> None:
    threads.use(2)
    both = threading.Barrier(2, timeout=30)  # broken unless two threads meet
    names = threads.each(lambda _: (both.wait(), threading.current_thread().name)[1], [0, 1])
    assert len(set(names)) == 2
    assert threading.current_thread().name in names


def test_an_error_reaches_the_caller_and_the_next_call_works() -> None:
    threads.use(3)
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda n: 1 // n, [1, 0, 2, 0, 3])
    assert threads.each(abs, [-1, -2]) == [1, 2]


def test_work_inside_of_work_ends() -> None:
    threads.use(2)
    inner = threads.each(lambda n: sum(threads.each(abs, [n, -n])), range(20))
    assert inner == [2 * n for n in range(20)]


def _forked(answers: Any) -> None:
    answers.put(threads.each(abs, [-1, -2, -3]))


def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.use(2)
    threads.each(abs, [-1, -2])
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_forked, args=(answers,))
    process.start()
    try:
        assert answers.get(timeout=60) == [1, 2, 3]
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"TIDEGATE_THREADS": "3", "OMP_NUM_THREADS": "1"}, "3"),
        ({"OMP_NUM_THREADS": "7"}, "7"),
        ({"TIDEGATE_THREADS": "none"}, "TIDEGATE_THREADS"),
    ],
)
def test_as_many_as_told(setting: dict[str, str], expected: str) -> None:
    code = "from tidegate import threads; print(threads.count())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=setting, capture_output=True, text=True, check=False
    )
    assert expected in (done.stdout.strip() or done.stderr)
    assert ("ConfigError" in done.stderr) == (setting.get("TIDEGATE_THREADS") == "none")


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_parts_and_whole_runs_are_all_of_it(number: int) -> None:
    threads.use(number)
    many = threads.MANY
    for n in (0, 1, many - 1, many, 3 * many + 1):
        covered = [k for part in threads.parts(n) for k in (part.start, part.stop)]
        assert (covered[0], covered[-1], covered[1:-1:2]) == (0, n, covered[2::2])
    for runs in ([many], [1, 3 * many], [many, many, 5], [1] * (2 * many), [10**5, 1, 10**5]):
        values = np.repeat(np.arange(len(runs)) % 3, runs)
        found = threads.whole_runs(values)
        assert np.array_equal(np.concatenate([values[part] for part in found]), values)
        for before, after in pairwise(found):
            assert before.stop == after.start
            assert values[before.stop - 1] != values[after.start]
    assert threads.whole_runs(np.zeros(0)) == [slice(0, 0)]


def test_fewer_than_one_is_refused() -> None:
    with pytest.raises(ConfigError):
        threads.use(0)


def _sets(number: int, disorder: int) -> tuple[list[Any], bytes]:
    """Many rows of several keys through event time and sets in two pieces, by so many threads."""
    threads.use(number)
    rng = np.random.default_rng(3)
    n = 200_000
    times = np.arange(n) * 1000 + rng.integers(0, disorder, n)
    names = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    rows = pa.record_batch({"k": rng.integers(0, 9, n), "topic": names, "n": np.arange(n)})
    stages: list[Operator] = [
        EventtimeWatermark("10 us"),
        Synchronize(("a", "b", "c"), 5, keys="k"),
    ]
    flow = Flow(stages, key="k")
    out = []
    for first in (0, 120_000):
        part = rows.slice(first, n - 120_000 if first else 120_000)
        out += flow.accept(Collection.of(part, times[first : first + part.num_rows]))
    middle = flow.snapshot()
    out += flow.end()
    tables: dict[str, list[Any]] = {}
    for outcome in out:
        if outcome.kind != "watermark":
            tables.setdefault(outcome.kind, []).append(outcome.table())  # type: ignore[union-attr]
    return [pa.Table.from_batches(tables[kind]) for kind in sorted(tables)], middle


@pytest.mark.parametrize("disorder", [1, 5000])
def test_sets_and_state_do_not_depend_on_the_number_of_threads(disorder: int) -> None:
    alone, state = _sets(1, disorder)
    for number in (2, 3):
        together, same = _sets(number, disorder)
        assert [table.num_rows for table in together] == [table.num_rows for table in alone]
        assert all(a.equals(b) for a, b in zip(alone, together, strict=True))
        assert same == state


def test_picked_rows_are_those_that_were_picked() -> None:
    source = pa.record_batch({"v": np.arange(200_000), "w": np.arange(200_000).astype(str)})
    picks = np.random.default_rng(1).permutation(200_000)[:150_000]
    lane = np.zeros(len(picks), np.int32)
    picked = Picked(source, picks, picks * 10, lane, 5)
    assert picked.rows.equals(source.take(pa.array(picks)))
    assert picked.rows is picked.rows
    assert len(picked) == 150_000
    assert picked.schema == source.schema
    some = picked.take(np.array([3, 1]))
    assert some.rows.column("v").to_pylist() == [picks[3], picks[1]]
    assert (some.time_ns.tolist(), some.wall_ns) == ([picks[3] * 10, picks[1] * 10], 5)
    assert picked.read("v", lambda column: column.to_numpy()).tolist() == picks.tolist()
    assert type(picked.copied()) is Collection
    assert picked.table().column("time_ns").to_numpy().tolist() == (picks * 10).tolist()
    with pytest.raises(ContractError):
        Picked(source, picks, picks[1:], lane)
