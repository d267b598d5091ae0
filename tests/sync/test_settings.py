"""A wrong setting names the field, the value and what is allowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tidegate.errors import ConfigError
from tidegate.sync import ApproximateTime, ExactTime, Synchronize, SyncSettings


@pytest.mark.parametrize(
    ("field", "change", "text"),
    [
        ("queue_size", {"queue_size": 0}, "queue_size: got 0"),
        ("queue_size", {"queue_size": True}, "queue_size: got True"),
        ("queue_size", {"queue_size": 2.5}, "queue_size: got 2.5"),
        ("age_penalty", {"age_penalty": -0.1}, "age_penalty: got -0.1"),
        ("age_penalty", {"age_penalty": float("nan")}, "age_penalty: got nan"),
        ("age_penalty", {"age_penalty": float("inf")}, "age_penalty: got inf"),
        ("age_penalty", {"age_penalty": "much"}, "age_penalty: got 'much'"),
        ("topics", {"topics": ["a"]}, "topics: got ['a']"),
        ("topics", {"topics": "ab"}, "topics: got 'ab'"),
        ("topics", {"topics": ["a", "b", "a"]}, "names 'a' twice"),
        ("topics", {"topics": ["a", ""]}, "topics: got ['a', '']"),
        ("topics", {"topics": {"a", "b"}}, "must be a name or a list of names"),
        ("topics", {"topics": ["a", 3]}, "topics: got ['a', 3]"),
        ("max_interval", {"max_interval": -1}, "max_interval: got -1"),
        ("lower_bounds['b']", {"lower_bounds": {"b": -5}}, "lower_bounds['b']: got -5"),
        ("lower_bounds['x']", {"lower_bounds": {"x": 5}}, "may name only a, b"),
        ("lower_bounds", {"lower_bounds": [1]}, "lower_bounds: got [1]"),
        ("lower_bounds", {"lower_bounds": 7}, "lower_bounds: got 7"),
        ("timeout", {"timeout": "1 s"}, "together with `optional`"),
        ("timeout", {"optional": ["b"]}, "together with `optional`"),
        ("optional", {"optional": ["x"], "timeout": 1}, "optional: got 'x'"),
        ("optional", {"optional": ["a", "b"], "timeout": 1}, "at least one topic"),
        ("max_jump_back", {"max_jump_back": "soon"}, "max_jump_back: got 'soon'"),
        ("on_jump", {"on_jump": "nothing"}, "on_jump: got 'nothing'"),
        ("overflow_patience", {"overflow_patience": 0}, "overflow_patience: got 0"),
        ("offsets['a']", {"offsets": {"a": "1 parsec"}}, "offsets['a']: got '1 parsec'"),
    ],
)
def test_refused(field: str, change: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"topics": ["a", "b"], "queue_size": 5, **change}
    with pytest.raises(ConfigError) as caught:
        ApproximateTime(**given)
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("topic", {"topic": ""}),
        ("policy", {"policy": "greedy"}),
        ("topics", {"topics": ("a", "spread_ns")}),
        ("topics", {"topics": ("a", "car"), "keys": ("car",)}),
        ("max_interval", {"policy": "exact", "max_interval": 5}),
        ("optional", {"policy": "exact", "optional": ("b",), "timeout": 5}),
        ("lower_bounds", {"policy": "exact", "learn_bounds": True}),
    ],
)
def test_refused_as_a_stage(field: str, change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"topics": ("a", "b"), "queue_size": 5, **change}
    with pytest.raises(ConfigError) as caught:
        Synchronize(**given)
    assert caught.value.field == field


def test_durations_in_every_form_mean_the_same() -> None:
    forms = ["50 ms", 50_000_000, timedelta(milliseconds=50)]
    made = {
        SyncSettings(("a", "b"), queue_size=5, max_interval=form, lower_bounds={"b": form})
        for form in forms
    }
    assert len(made) == 1
    assert made.pop().lower_bounds == (0, 50_000_000)


def test_topics_may_come_from_any_iterable() -> None:
    assert ApproximateTime((name for name in "abc"), queue_size=1).topics == ("a", "b", "c")
    assert ExactTime(["a", "b"], queue_size=1).topics == ("a", "b")


def test_two_stages_with_the_same_settings_are_equal() -> None:
    assert Synchronize(("a", "b"), queue_size=5) == Synchronize(["a", "b"], queue_size=5)
    assert Synchronize(("a", "b"), queue_size=5) != Synchronize(("a", "b"), queue_size=6)
