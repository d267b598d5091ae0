"""The kernels against slow models that follow the page word by word."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync_model import Model, Trace, random_trace
from tidegate.sync import ApproximateTime, ExactTime, SyncResult


def played(trace: Trace) -> SyncResult:
    sync = ApproximateTime(
        [f"t{k}" for k in range(trace.topics)],
        queue_size=trace.queue_size,
        age_penalty=trace.age_penalty,
        max_interval=trace.max_interval,
        lower_bounds=trace.bounds,
    )
    topics, times = np.array(trace.messages, np.int64).reshape(-1, 2).T
    return sync.process(topics, times)


def agree(trace: Trace) -> int:
    model, result = trace.model(), played(trace)
    sets = list(zip(map(tuple, result.rows.tolist()), result.decided_at.tolist(), strict=True))
    assert sets == model.sets
    gone = zip(
        result.unmatched_rows.tolist(),
        [result.reasons[k] for k in result.unmatched_reasons],
        result.unmatched_decided_at.tolist(),
        strict=True,
    )
    assert sorted(gone) == sorted(model.gone)
    return len(sets)


@pytest.mark.parametrize("seed", range(8))
def test_thousands_of_random_traces(seed: int) -> None:
    rnd = Random(seed)
    made = sum(agree(random_trace(rnd)) for _ in range(400))
    assert made > 1000  # the traces are worth their time only if sets come of them


stamps = st.integers(0, 12)
traces = st.integers(2, 4).flatmap(
    lambda n: st.builds(
        Trace,
        topics=st.just(n),
        queue_size=st.integers(1, 4),
        age_penalty=st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.5, 2.0]),
        max_interval=st.none() | st.integers(0, 8),
        bounds=st.lists(st.integers(0, 6), min_size=n, max_size=n),
        messages=st.lists(st.tuples(st.integers(0, n - 1), stamps), max_size=40),
    )
)


@given(traces)
@settings(max_examples=600, deadline=None)
def test_small_traces_in_any_order(trace: Trace) -> None:
    agree(trace)


@given(traces, st.integers(-(2**62), 2**62), st.sampled_from([1, 7 * 10**6, 2**52 + 1, 2**58]))
@settings(max_examples=300, deadline=None)
def test_the_arithmetic_is_exact_at_any_scale(trace: Trace, origin: int, unit: int) -> None:
    """Stamps up to the ends of int64: products need 117 bits, differences 64."""
    top = 2**63 - 1
    messages = [(k, max(-top, min(top, origin + t * unit))) for k, t in trace.messages]
    bounds = [min(top, b * unit) for b in trace.bounds]
    interval = None if trace.max_interval is None else min(top, trace.max_interval * unit)
    penalty = trace.age_penalty
    agree(Trace(trace.topics, trace.queue_size, penalty, interval, bounds, messages))


def test_a_tie_that_floats_get_wrong() -> None:
    """1.2 as a float lies below 1.2, so 5 ms of age weigh 5,999,999 ns and not 6 ms."""
    ms = 10**6
    messages = [(0, 0), (1, 10 * ms), (0, 6 * ms), (1, 15 * ms), (0, 30 * ms), (1, 31 * ms)]
    for penalty in (0.2, 0.19999999999999996, 0.20000000000000018):
        agree(Trace(2, 10, penalty, None, [0, 0], messages))


@given(
    st.integers(2, 3).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), min_size=n, max_size=n),
            st.sampled_from([0.0, 0.5, 1.0, 3.0]),
            st.randoms(use_true_random=False),
        )
    )
)
@settings(max_examples=400, deadline=None)
def test_no_other_choice_with_the_same_pivot_is_better(case: tuple) -> None:
    """Brute force over all messages, those that came after the decision included.

    Stamps are multiples of 4, so that the products are whole and the order of sets is total.
    """
    n, given_times, penalty, rnd = case
    queues = [sorted(4 * t for t in times) for times in given_times]
    arrival = [k for k, times in enumerate(queues) for _ in times]
    rnd.shuffle(arrival)
    ahead = [iter(times) for times in queues]
    messages = [(k, next(ahead[k])) for k in arrival]
    result = played(Trace(n, 100, penalty, None, [0] * n, messages))

    def cost(chosen: tuple[int, ...]) -> float:
        return (max(chosen)) * (1 + penalty) - min(chosen)

    # Position of every message within its topic: what lies before a used one is used up.
    position = {row: sum(k == m for m in arrival[:row]) for row, k in enumerate(arrival)}
    first = [0] * n
    for rows, times in zip(result.rows.tolist(), result.times_ns.tolist(), strict=True):
        fronts = [queues[k][first[k]] for k in range(n)]
        pivot = max(range(n), key=lambda k: (fronts[k], k))
        assert position[rows[pivot]] == first[pivot]
        others = [queues[k][first[k] :] if k != pivot else [fronts[k]] for k in range(n)]
        best = min(map(cost, itertools.product(*others)))
        assert cost(tuple(times)) == best
        first = [position[row] + 1 for row in rows]


@given(
    st.integers(2, 4).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.integers(1, 4),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 9)), max_size=60),
        )
    )
)
@settings(max_examples=400, deadline=None)
def test_exact_time_against_a_dictionary(case: tuple) -> None:
    n, queue_size, messages = case
    open_sets: dict[int, dict[int, int]] = {}
    sets, gone = [], []
    for number, (topic, t) in enumerate(messages):
        members = open_sets.setdefault(t, {})
        if topic in members:
            gone.append((members[topic], "replaced", number))
        members[topic] = number
        if len(members) == n:
            sets.append(([members[k] for k in range(n)], number))
            del open_sets[t]
            for old in sorted(o for o in open_sets if o < t):
                gone += [(row, "too_old", number) for row in open_sets.pop(old).values()]
        if len(open_sets) > queue_size:
            oldest = open_sets.pop(min(open_sets))
            gone += [(row, "overflow", number) for row in oldest.values()]
    sync = ExactTime([f"t{k}" for k in range(n)], queue_size=queue_size)
    topics, times = np.array(messages, np.int64).reshape(-1, 2).T
    result = sync.process(topics, times)
    assert list(zip(result.rows.tolist(), result.decided_at.tolist(), strict=True)) == sets
    got = zip(
        result.unmatched_rows.tolist(),
        [result.reasons[k] for k in result.unmatched_reasons],
        result.unmatched_decided_at.tolist(),
        strict=True,
    )
    assert sorted(got) == sorted(gone)
    assert sum(sync.held.values()) == sum(map(len, open_sets.values()))


WITHOUT_THE_JIT = """
import json, sys
from random import Random
import numpy as np
from sync_model import random_trace
from tidegate.sync import ApproximateTime, ExactTime
from tidegate.sync.approximate import run_approximate
rnd, out = Random(11), []
for _ in range(40):
    trace = random_trace(rnd, 60)
    topics, times = np.array(trace.messages, np.int64).T
    names = [f"t{k}" for k in range(trace.topics)]
    extras = dict(learn_bounds=True, optional=names[:1], timeout=40, max_jump_back=25)
    extras |= dict(overflow_patience=2)
    size, penalty = trace.queue_size, trace.age_penalty
    for sync in (
        ApproximateTime(
            names, queue_size=size, age_penalty=penalty, max_interval=trace.max_interval,
            lower_bounds=trace.bounds,
        ),
        ApproximateTime(names, queue_size=size, age_penalty=penalty, **extras),
        ExactTime(names, queue_size=trace.queue_size),
    ):
        result = sync.process(topics, times * 2**40)
        end = [s.rows for s in sync.flush()], [u.row for u in sync.unmatched]
        out.append([result.rows.tolist(), result.decided_at.tolist(), *end, sync.counters])
print(json.dumps([hasattr(run_approximate, "py_func"), out]))
"""


def test_the_kernels_do_the_same_without_the_jit() -> None:
    """And without a warning: nothing in them relies on integers that wrap around."""
    results = []
    for disabled in ("0", "1"):
        env = {**os.environ, "NUMBA_DISABLE_JIT": disabled}
        here = Path(__file__).parents[1]
        env["PYTHONPATH"] = f"{here}{os.pathsep}{here.parent / 'src'}"
        script = [sys.executable, "-W", "error::RuntimeWarning", "-c", WITHOUT_THE_JIT]
        done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    (compiled, first), (interpreted, second) = results
    assert (compiled, interpreted) == (True, False)
    assert first == second


def test_the_model_itself_on_a_drawing() -> None:
    """camera 0 and lidar 1 belong together; camera 2 proves it."""
    model = Model(2, 10).play([(0, 0), (1, 10), (0, 20)])
    assert model.sets == [((0, 1), 2)]
