"""The epsilon policy against its definition in plain Python, and the laws of a stage."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.outcomes import Collection
from tidegate.errors import ConfigError
from tidegate.sync import EpsilonTime, Synchronize
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut

TOPICS = ("a", "b", "c")


def model(messages: list[tuple[int, int]], epsilon: int, queue: int) -> Any:
    """Sets (rows, and the message that decided) and the rows that left without one."""
    queues: list[deque[tuple[int, int]]] = [deque() for _ in TOPICS]
    sets, gone = [], []
    for row, (topic, stamp) in enumerate(messages):
        queues[topic].append((stamp, row))
        while all(queues):
            fronts = [each[0][0] for each in queues]
            if max(fronts) - min(fronts) <= epsilon:
                sets.append(([each.popleft()[1] for each in queues], row))
            else:
                gone.append(queues[fronts.index(min(fronts))].popleft()[1])
        if len(queues[topic]) > queue:
            gone.append(queues[topic].popleft()[1])
    return sets, gone


MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=60).map(
    lambda given: [(topic, 10 * n + late) for n, (topic, late) in enumerate(given)]
)


@settings(deadline=None)
@given(messages=MESSAGES, epsilon=st.integers(0, 60), queue=st.integers(1, 6))
def test_against_the_definition(messages: list[tuple[int, int]], epsilon: int, queue: int) -> None:
    sync = EpsilonTime(TOPICS, max_interval=epsilon, queue_size=queue)
    sets, gone = [], []
    for topic, stamp in messages:
        made = sync.push(TOPICS[topic], stamp)
        sets += [(list(one.rows), one.decided_at) for one in made]
        gone += [left.row for left in sync.unmatched]
    assert (sets, gone) == model(messages, epsilon, queue)
    whole = EpsilonTime(TOPICS, max_interval=epsilon, queue_size=queue).process(
        *zip(*messages, strict=False)
    )
    assert whole.rows.tolist() == [rows for rows, _ in sets]


@settings(deadline=None, max_examples=20)
@given(messages=MESSAGES, at=st.lists(st.integers(0, 60), max_size=4))
def test_laws_of_the_stage(messages: list[tuple[int, int]], at: list[int]) -> None:
    stage = Synchronize(TOPICS, queue_size=3, max_interval=20, policy="epsilon")
    rows = pa.record_batch({"topic": [TOPICS[topic] for topic, _ in messages]})
    times = np.array([stamp for _, stamp in messages])
    lanes = (np.arange(len(times)) % 2).astype(np.int32)
    collection = Collection(rows, times, lanes)
    assert_cut_law(stage, collection, at, lanes=2)
    assert_restart_law(stage, cut(collection, at), lanes=2)


def test_a_snapshot_goes_on_greedily() -> None:
    sync = EpsilonTime(["a", "b"], max_interval=5, queue_size=4)
    sync.push("a", 0)
    back = EpsilonTime.restore(sync.snapshot())
    assert [one.times_ns for one in back.push("b", 5)] == [(0, 5)]


def test_what_it_needs_and_what_means_nothing_to_it() -> None:
    with pytest.raises(ConfigError, match="max_interval"):
        Synchronize(("a", "b"), queue_size=3, policy="epsilon")
    with pytest.raises(ConfigError, match="proves nothing"):
        Synchronize(("a", "b"), max_interval=3, learn_bounds=True, policy="epsilon")
