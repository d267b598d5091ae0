"""Recorded cases: members and the input that decides, through every way in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cases import load
from sync_model import Model
from tidegate.core.outcomes import Collection
from tidegate.sync import ApproximateTime, ExactTime, Synchronize

CASES = load("sync/*.json")


def synchronizer(case: Any) -> ApproximateTime | ExactTime:
    topics = [f"topic {k}" for k in range(case["topics"])]
    if case["policy"] == "exact_time":
        return ExactTime(topics, queue_size=case["queue_size"])
    return ApproximateTime(
        topics,
        queue_size=case["queue_size"],
        age_penalty=case["age_penalty"],
        max_interval=case["max_interval_ns"],
        lower_bounds=case["lower_bounds_ns"],
    )


@pytest.mark.parametrize("case", CASES)
def test_arrays(case: Any) -> None:
    sync = synchronizer(case)
    topics, times = np.array(case["input"]).T
    result = sync.process(topics, times)
    assert result.rows.tolist() == case["expected_input_index"]
    assert result.times_ns.tolist() == case["expected"]
    assert result.decided_at.tolist() == case["expected_after_input_index"]
    if "oracle_pending_at_end" in case:
        assert list(sync.held.values()) == case["oracle_pending_at_end"]
    if "expected_drops" in case:
        wanted = [(row, at) for at, rows in case["expected_drops"] for row in rows]
        got = zip(result.unmatched_rows.tolist(), result.unmatched_decided_at.tolist(), strict=True)
        assert list(got) == [(row, at) for row, at in wanted if row is not None]


@pytest.mark.parametrize("case", CASES)
def test_one_at_a_time(case: Any) -> None:
    sync = synchronizer(case)
    got = []
    for number, (topic, time_ns) in enumerate(case["input"]):
        for s in sync.push(sync.topics[topic], time_ns, f"message {number}"):
            assert s.payloads == tuple(f"message {row}" for row in s.rows)
            got.append((list(s.rows), number))
            assert s.decided_at == number
    wanted = zip(case["expected_input_index"], case["expected_after_input_index"], strict=True)
    assert got == list(wanted)


@pytest.mark.parametrize("case", CASES)
def test_as_a_stage(case: Any) -> None:
    settings = synchronizer(case).settings
    policy = case["policy"].removesuffix("_time")
    stage = Synchronize(
        settings.topics,
        queue_size=settings.queue_size,
        age_penalty=settings.age_penalty,
        max_interval=settings.max_interval,
        lower_bounds=settings.lower_bounds,
        policy=policy,
    )
    topics, times = np.array(case["input"]).T
    names = [settings.topics[k] for k in topics]
    rows = pa.record_batch({"topic": names, "number": np.arange(len(names))})
    out = stage.process(stage.open(), Collection.of(rows, times))
    sets = [row for o in out if o.kind == "data" for row in o.table().to_pylist()]
    members = [[s[name]["number"] for name in settings.topics] for s in sets]
    assert members == case["expected_input_index"]
    decided = [times[k] for k in case["expected_after_input_index"]]
    assert [s["decided_at_ns"] for s in sets] == decided


@pytest.mark.parametrize("case", load("sync/approximate_*.json"))
def test_the_model_the_other_tests_rely_on(case: Any) -> None:
    model = Model(
        case["topics"],
        case["queue_size"],
        case["age_penalty"],
        case["max_interval_ns"],
        case["lower_bounds_ns"],
    ).play(case["input"])
    wanted = zip(case["expected_input_index"], case["expected_after_input_index"], strict=True)
    assert model.sets == [(tuple(rows), at) for rows, at in wanted]
