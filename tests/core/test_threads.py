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

from tidegate.core import parallel as threads
from tidegate.core.flow import Flow
from tidegate.core.lazy_rows import LazyRows
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection
from tidegate.deltas import Compact
from tidegate.errors import ConfigError, ContractError
from tidegate.eventtime import EventtimeWatermark
from tidegate.sync import Synchronize


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
    code = "from tidegate.core import parallel; print(parallel.count())"
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
        Synchronize(("a", "b", "c"), queue_size=5, keys="k"),
    ]
    flow = Flow(stages, key="k", timed=True)
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


def _compacted(number: int, pieces: int, *, copied: bool) -> tuple[dict[str, Any], bytes]:
    """Many deltas in disorder through event time and compaction, by so many threads."""
    threads.use(number)
    rng = np.random.default_rng(4)
    n, vectors = 2 * threads.MANY, 700
    sent = np.arange(n) - (rng.random(n) < 0.01)  # some come twice
    ends = pa.array(np.arange(0, 2 * n + 1, 2, dtype=np.int32))
    at = rng.integers(0, 7, n).astype(np.int32)
    values = rng.normal(size=2 * n)
    values[rng.integers(0, 2 * n, 50)] = np.inf  # some are refused
    rows = pa.record_batch(
        {
            "delta_id": sent.astype(str),
            "vector_id": (sent * 7919 % vectors).astype(str),
            "op": ["sparse"] * n,
            "indices": pa.ListArray.from_arrays(ends, np.stack([at, at + 1], axis=1).ravel()),
            "values": pa.ListArray.from_arrays(ends, values),
        }
    )
    times = sent * 1000 + rng.integers(0, 5000, n)
    first, second = EventtimeWatermark("10 us"), Compact(8, "full_merge", time_threshold=None)
    states = [first.open(), second.open()]
    out: list[Any] = []
    for part in np.array_split(np.arange(n), pieces):
        given = Collection.of(rows.take(pa.array(part)), times[part])
        made = first.process(states[0], given)
        for item in [o for o in made if isinstance(o, Collection)]:
            plain = Collection(item.rows, item.time_ns, item.lane)
            out += second.process(states[1], plain if copied else item)
    for item in first.flush(states[0]):
        assert isinstance(item, Collection)
        out += second.process(states[1], item)
    kept = second.snapshot(states[1])
    states[1] = second.restore(kept)
    out += second.flush(states[1])
    tables: dict[str, list[Any]] = {}
    for outcome in out:
        tables.setdefault(outcome.kind, []).append(outcome.table())
    return {kind: pa.Table.from_batches(parts) for kind, parts in tables.items()}, kept


def test_compaction_depends_neither_on_threads_nor_on_where_rows_lie() -> None:
    alone, _ = _compacted(1, 2, copied=True)
    assert {"data", "dropped", "compactions"} <= set(alone)
    picked, state = _compacted(1, 2, copied=False)
    several, same = _compacted(3, 2, copied=False)
    for found in (picked, several):
        assert found.keys() == alone.keys()
        assert all(found[kind].equals(alone[kind]) for kind in alone)
    assert same == state  # what waits is stored as it lay, so only by the threads


def test_compaction_of_picked_rows_does_not_depend_on_cuts() -> None:
    whole, _ = _compacted(2, 1, copied=False)
    cut, _ = _compacted(2, 5, copied=False)
    for kind in ("dropped", "compactions"):
        assert cut[kind].equals(whole[kind])
    newest = [
        {row["vector_id"]: (row["vector"], row["delta_count"]) for row in found["data"].to_pylist()}
        for found in (whole, cut)
    ]
    assert newest[0] == newest[1]


def test_picked_rows_are_those_that_were_picked() -> None:
    source = pa.record_batch({"v": np.arange(200_000), "w": np.arange(200_000).astype(str)})
    picks = np.random.default_rng(1).permutation(200_000)[:150_000]
    lane = np.zeros(len(picks), np.int32)
    picked = LazyRows(source, picks, picks * 10, lane, 5)
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
        LazyRows(source, picks, picks[1:], lane)
