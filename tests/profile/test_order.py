"""Settings from measured order: wrong clocks, gaps, tolerances, and the proof that raises them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.text import span
from tidegate.core.time import parse_duration
from tidegate.profile.inspect import inspect_rows
from tidegate.profile.order import forward_skew, round_span, rows_held, suggest_tolerance
from tidegate.profile.spans import setting
from tidegate.profile.starter import prove

SECOND = 10**9


def _groups(times: np.ndarray) -> np.ndarray:
    return np.zeros(len(times), np.int64)


def test_a_wrong_clock_is_found_and_a_gap_is_none() -> None:
    times = np.arange(200) * SECOND
    times[100:] += 3600 * SECOND  # a pause of an hour
    found = forward_skew(times, _groups(times))
    assert not found.wrong.any()
    assert found.furthest_ns == 3601 * SECOND
    assert found.limit_ns >= 2 * 3601 * SECOND
    wrong = np.arange(200) * SECOND
    wrong[[50, 120]] += 365 * 86_400 * SECOND
    found = forward_skew(wrong, _groups(wrong))
    assert np.flatnonzero(found.wrong).tolist() == [50, 120]
    assert 2 * SECOND <= found.limit_ns < 365 * 86_400 * SECOND


def test_in_a_list_without_order_no_clock_is_wrong() -> None:
    day = 86_400 * 10**9
    days = [1, 2, 24, 1, 4, 1, 3, 231, 1, 2, 0, 105, 1, 4, 21, 4, 2, 1, 574, 0, 3, 0, 1, 0]
    skew = forward_skew(np.array(days) * day, np.zeros(len(days), np.int64))
    assert not skew.wrong.any()
    assert skew.limit_ns > 574 * day


def test_clocks_that_were_never_set_do_not_stretch_the_tolerance(tmp_path: Path) -> None:
    rows = [f"{0 if n % 40 == 9 else 1_709_251_200_000 + n * 100},{n}" for n in range(200)]
    path = tmp_path / "unset.csv"
    path.write_text("ts_ms,x\n" + "\n".join(rows) + "\n")
    proof = prove(*inspect_rows(str(path)))
    assert (proof.in_order, proof.late, proof.profile.late_tolerance_ns) == (195, 5, 10**8)
    assert "5 rows with a time on 1 January 1970" in proof.profile.notes[0]


def test_a_last_row_far_ahead_has_a_wrong_clock() -> None:
    times = np.arange(50) * SECOND
    times[-1] += 365 * 86_400 * SECOND
    assert np.flatnonzero(forward_skew(times, _groups(times)).wrong).tolist() == [49]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=200), st.integers(1, 1000))
def test_the_limit_is_beyond_every_good_row(steps: list[int], unit: int) -> None:
    times = np.cumsum(np.array(steps, np.int64)) * unit
    found = forward_skew(times, _groups(times))
    ahead = np.diff(times)[~found.wrong[1:]]
    assert found.limit_ns > ahead.max(initial=0)


@given(st.lists(st.integers(1, 10**9), max_size=300), st.integers(0, 5000))
def test_a_tolerance_keeps_99_percent(behind: list[int], more: int) -> None:
    rows = len(behind) + more + 1
    tolerance, shares = suggest_tolerance(np.array(behind, np.int64), rows, 1000)
    assert tolerance > 0
    assert dict(shares)[tolerance] <= 0.011 + 1 / rows


@given(st.integers(1, 10**19 // 2))
def test_spans_are_exact_in_a_file_and_short_for_people(ns: int) -> None:
    assert parse_duration(setting(min(ns, 2**62))) == min(ns, 2**62)
    assert len(span(ns)) < 14
    assert round_span(min(ns, 10**17)) >= min(ns, 10**17)


def test_rows_held_are_those_within_the_tolerance() -> None:
    times = np.array([0, 1, 2, 3, 100, 101], np.int64)
    key = np.array([0, 0, 0, 0, 1, 1], np.int64)
    assert rows_held(times, key, 2) == 3 + 2
    assert rows_held(times, key, 0) == 1 + 1


def _disordered(folder: Path) -> Path:
    """A file whose rows come in blocks of ten, each block backwards."""
    lines = ["time,value"]
    lines += [f"{1_700_000_000 + n - n % 10 + 9 - n % 10},{n}" for n in range(1000)]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder / "a.csv"


@pytest.mark.parametrize(
    ("field", "wrong", "sentence"),
    [("late_tolerance_ns", 1, "lateTolerance raised from 1 ns to"),
     ("max_future_skew_ns", 1, "maxFutureSkew raised from 1 ns to")],
)  # fmt: skip
def test_a_setting_that_loses_rows_is_raised(
    tmp_path: Path, field: str, wrong: int, sentence: str
) -> None:
    profile, loaded = inspect_rows(str(_disordered(tmp_path)))
    assert prove(profile, loaded).changes == ()
    proof = prove(replace(profile, **{field: wrong}), loaded)  # type: ignore[arg-type]
    assert sentence in proof.changes[0]
    assert proof.in_order >= 0.99 * proof.rows
    assert proof.profile.late_tolerance_ns == profile.late_tolerance_ns or field != (
        "late_tolerance_ns"
    )
