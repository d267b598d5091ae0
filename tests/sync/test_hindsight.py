"""Hindsight against every possible choice, and against the online synchroniser."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import ConfigError, ContractError
from tidegate.sync import ApproximateTime, hindsight

STAMPS = st.lists(st.integers(0, 60), max_size=8).map(sorted)


def best(left: list[int], right: list[int], width: int) -> tuple[int, int]:
    """Most pairs and least total distance, over all matchings, crossing ones included."""

    @cache
    def of(i: int, used: int) -> tuple[int, int]:
        if i == len(left):
            return 0, 0
        found = of(i + 1, used)
        for j, stamp in enumerate(right):
            if not used >> j & 1 and abs(stamp - left[i]) <= width:
                pairs, total = of(i + 1, used | 1 << j)
                found = max(
                    found, (pairs + 1, total - abs(stamp - left[i])), key=lambda x: (x[0], x[1])
                )
        return found

    pairs, negative = of(0, 0)
    return pairs, -negative


@settings(deadline=None)
@given(left=STAMPS, right=STAMPS, width=st.integers(0, 30))
def test_two_topics_are_exact(left: list[int], right: list[int], width: int) -> None:
    number = [0] * len(left) + [1] * len(right)
    times = np.array([*left, *right], np.int64)
    found = hindsight(2, number, times, max_interval=width)
    assert (len(found), int(found.spread_ns.sum())) == best(left, right, width)
    assert found.at_most == len(found)
    assert (found.spread_ns <= width).all()
    assert len(np.unique(found.rows)) == found.rows.size  # no message is in two sets
    assert (np.asarray(number)[found.rows] == [0, 1]).all()


@settings(deadline=None)
@given(
    messages=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100)), max_size=40),
    width=st.integers(0, 40),
)
def test_more_topics_keep_their_bounds(messages: list[tuple[int, int]], width: int) -> None:
    number, times = np.array(messages, np.int64).reshape(-1, 2).T
    found = hindsight(3, number, times, max_interval=width)
    assert len(found) <= found.at_most <= min(np.bincount(number, minlength=3))
    assert (found.spread_ns <= width).all()
    assert len(np.unique(found.rows)) == found.rows.size
    assert (number[found.rows] == [0, 1, 2]).all()
    assert (times[found.rows] == found.times_ns).all()


@settings(deadline=None)
@given(left=STAMPS, right=STAMPS, width=st.integers(0, 30))
def test_no_online_choice_has_more_sets(left: list[int], right: list[int], width: int) -> None:
    messages = sorted([*((t, 0) for t in left), *((t, 1) for t in right)])
    times, number = np.array(messages, np.int64).reshape(-1, 2).T
    online = ApproximateTime(["a", "b"], queue_size=50, max_interval=width).process(number, times)
    cost = hindsight(2, number, times, max_interval=width).cost(online)
    assert cost["sets"] >= 0
    if cost["sets"] == 0:
        assert cost["spread_ns"] >= 0


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="topics"):
        hindsight(1, [], [], max_interval=1)
    with pytest.raises(ContractError, match="topics must be"):
        hindsight(2, [2], [0], max_interval=1)
    with pytest.raises(ContractError, match="times"):
        hindsight(2, [0, 1], [0], max_interval=1)
    many = np.arange(100_000)
    with pytest.raises(ConfigError, match="smaller"):
        hindsight(2, many % 2, many, max_interval=10**6)
