from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.time import MAX_NS, MIN_NS, UNSET, format_duration, format_time, parse_duration
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (0, 0), (7, 7), ("0 s", 0), ("200 ms", 200_000_000), ("200ms", 200_000_000),
        (" 200  MS ", 200_000_000), ("1.5 s", 1_500_000_000), ("0.000000001 s", 1),
        ("1 µs", 1000), ("1 us", 1000), ("3 ns", 3), ("2 min", 120 * 10**9), ("2 m", 120 * 10**9),
        ("1 h", 3600 * 10**9), ("1 d", 86400 * 10**9), ("+5 s", 5 * 10**9),
        (timedelta(microseconds=1), 1000), (timedelta(days=365), 365 * 86400 * 10**9),
        (np.int64(9), 9), (MAX_NS, MAX_NS),
    ],
)  # fmt: skip
def test_reads(written: object, ns: int) -> None:
    assert parse_duration(written) == ns


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (True, "nanoseconds, a string"), (None, "nanoseconds, a string"), (1.5, "nanoseconds"),
        ("", "a number and a unit"), ("200", "a number and a unit"), ("ms", "a number and a unit"),
        ("1 s 2", "a number and a unit"), ("1e3 ms", "a number and a unit"),
        ("NaN s", "a number and a unit"), ("5 parsecs", "unit must be one of ns, us"),
        ("0.5 ns", "whole number of nanoseconds"), (-1, "at least 0 ns"), ("-1 s", "at least 0 ns"),
        (MAX_NS + 1, "64-bit"), ("1000000 d", "64-bit"), ([1], "nanoseconds, a string"),
        (timedelta(seconds=-1), "at least 0"),
    ],
)  # fmt: skip
def test_refuses(written: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_duration(written, "late_tolerance")
    assert caught.value.field == "late_tolerance"
    assert caught.value.value == written


def test_minimum_is_inclusive_and_can_be_lifted() -> None:
    assert parse_duration("1 ns", minimum=1) == 1
    with pytest.raises(ConfigError):
        parse_duration(0, minimum=1)
    assert parse_duration("-2 s", minimum=None) == -2 * 10**9


@given(st.integers(0, MAX_NS))
def test_what_is_written_is_read_back(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns


@given(st.integers(MIN_NS, MAX_NS))
def test_every_time_can_be_shown_and_read_back(ns: int) -> None:
    text = format_time(ns)
    assert text.endswith("Z")
    seconds = np.datetime64(text[:19], "s").astype(np.int64)
    assert int(seconds) * 10**9 + int(text[20:29]) == ns


def test_no_time_is_a_dash() -> None:
    assert format_time(None) == format_time(UNSET) == "-"
    assert UNSET < MIN_NS < 0 < MAX_NS
