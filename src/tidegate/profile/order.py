"""How far rows are out of order, and which settings that asks for.

    forward_skew        how far ahead a good row gets, and rows whose clock must be wrong
    suggest_tolerance   the smallest late tolerance that keeps the rows in order
    recorded_order      the order in which a run over files takes the rows
    rows_held           how many rows wait while a tolerance is kept

A row has a wrong clock if it is far ahead of the rows before it and of the three rows after it. A
gap is no wrong clock: after a gap the rows stay where they are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s

__all__ = [
    "DAY_NS",
    "UNORDERED",
    "Skewed",
    "forward_skew",
    "late_share",
    "recorded_order",
    "round_digits",
    "round_span",
    "rows_held",
    "running_max",
    "suggest_tolerance",
    "unset_clocks",
]

FOLLOWERS = 3
"""Rows after a row that are compared with it. With one, two wrong clocks in a row would confirm
each other; with many, a short burst at the end of a file would count as wrong."""

FAR = 20
"""A row is far ahead if it is this many times as far as the ordinary gap or disorder (99 % of
them). Below ten, ordinary pauses count; above a hundred, a clock that is an hour ahead passes."""

UNORDERED = 0.2
"""Share of rows behind a newer one above which rows may come in no order of their time at all (a
list sorted by name). Then no clock can be told to be wrong."""

LEAST_SKEW_NS = 60 * 10**9
"""A limit for wrong clocks is not below a minute, unless a wrong clock is nearer: the next
recording may pause for some seconds, and wrong clocks are wrong by minutes, hours or years."""

KEEP_SHARE = 0.999
"""Share of the rows that a suggested late tolerance keeps in order where disorder has no clear
end."""

JUMP_FLOOR_NS = 1_000_000
"""Jumps below a millisecond are ignored: tolerating that much costs nothing."""

STEPS_NS = tuple(
    n * unit
    for unit, counts in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (10**3, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (10**6, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (10**9, (1, 2, 5, 10, 20, 30)),
        (60 * 10**9, (1, 2, 5, 10, 20, 30)),
        (3600 * 10**9, (1, 2, 4, 8, 12)),
        (86_400 * 10**9, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000,
                          50_000)),
    )
    for n in counts
)  # fmt: skip
"""Round spans of time, as people write them, up to 137 years."""


def round_span(ns: int) -> int:
    """Return the smallest round span that is at least `ns`.

    >>> round_span(170_000_000), round_span(3 * 3600 * 10**9) // (3600 * 10**9)
    (200000000, 4)
    """
    return next((step for step in STEPS_NS if step >= ns), STEPS_NS[-1])


class Skewed(NamedTuple):
    """Rows ahead of their time."""

    limit_ns: int
    """A future-skew limit that no good row reaches."""
    wrong: NDArray[np.bool_]
    """Rows whose clock is wrong."""
    furthest_ns: int
    """How far ahead of the rows before it a good row gets: the longest gap."""


def forward_skew(time_ns: Int64s, group: Int64s) -> Skewed:
    """Find how far ahead good rows get, and the rows whose clock must be wrong.

    Args:
        time_ns: Times, in order of arrival.
        group: The number of each row's stream: one key of one file.

    Returns:
        The limit is twice what a good row needs, rounded up, but below the wrong rows.
    """
    rows = len(time_ns)
    nobody = np.zeros(rows, np.bool_)
    if rows < 2:
        return Skewed(round_span(60 * 10**9), nobody, 0)
    order = np.argsort(group, kind="stable")
    times, owner = time_ns[order], group[order]
    lowest, followers = times.copy(), np.zeros(rows, np.int64)
    for step in range(1, FOLLOWERS + 1):
        same = owner[step:] == owner[:-step]
        later = np.where(same, times[step:], np.iinfo(np.int64).max)
        lowest[:-step] = np.minimum(lowest[:-step], later)
        followers[:-step] += same
    newest = running_max(lowest, owner)
    before = np.r_[newest[:1], newest[:-1]]
    first = np.r_[True, owner[1:] != owner[:-1]]
    before = np.where(first, lowest, before)
    ahead, gap = times - before, lowest - before
    behind = before - times
    usual = max(_quantile(gap[gap > 0]), _quantile(behind[behind > 0]), 1)
    wrong = (times - lowest > FAR * usual) & (ahead > FAR * usual)
    alone = (followers == 0) & ~first & (ahead > FAR * usual)
    longest = int(gap[~alone & ~wrong].max(initial=0))
    wrong |= alone & (ahead > 10 * max(longest, 1))
    if wrong.any() and _in_no_order(times[~wrong], owner[~wrong]):
        wrong[:] = False  # a row far from its neighbours is as good as they are
    need = int(ahead[~wrong].max(initial=0))
    limit = max(round_span(2 * max(need, usual, 1)), LEAST_SKEW_NS)
    if wrong.any():
        nearest = int(ahead[wrong].min())
        if limit >= nearest:
            limit = need + (nearest - need) // 2
    out = nobody.copy()
    out[order] = wrong
    return Skewed(limit, out, need)


def _in_no_order(times: Int64s, owner: Int64s) -> bool:
    """Return whether rows do not come in order of their time: many are behind by much of the whole
    span, as in a list sorted by name."""
    behind = running_max(times, owner) - times
    behind = behind[behind > 0]
    if len(behind) <= UNORDERED * len(times):
        return False
    return bool(10 * np.median(behind) > times.max() - times.min())


DAY_NS = 86_400 * 10**9
"""A day. Clocks that were never set count from 1970; within a day of it, no more is recorded."""
NINETIES_NS = 631_152_000 * 10**9
"""1990-01-01. A recording whose times are mostly older may well begin in 1970."""


def unset_clocks(time_ns: Int64s, key: Int64s) -> NDArray[np.bool_]:
    """Return which rows have a clock that was never set: a time on the first day of 1970, in a
    recording of today.

    None, if a key begins with such a row: then its clock was set during the recording, and the step
    from 1970 to today is what a limit for wrong clocks must admit.

    Args:
        time_ns: Times, in order of arrival.
        key: The number of each row's key.

    >>> today = 1_709_251_200 * 10**9
    >>> unset_clocks(np.array([today, 0, today + 1]), np.array([0, 0, 0])).tolist()
    [False, True, False]
    """
    unset = (time_ns >= 0) & (time_ns < DAY_NS)
    if not unset.any() or float(np.median(time_ns)) < NINETIES_NS:
        return np.zeros(len(time_ns), np.bool_)
    _, first = np.unique(key, return_index=True)
    return unset if not unset[first].any() else np.zeros(len(time_ns), np.bool_)


def _quantile(values: Int64s) -> int:
    """Return the 99 % quantile; 0 if there are no values."""
    return int(np.quantile(values, 0.99, method="lower")) if len(values) else 0


def running_max(values: Int64s, owner: Int64s) -> Int64s:
    """Return the highest value so far within each run of equal owners."""
    import pandas as pd

    return np.asarray(pd.Series(values).groupby(owner, sort=False).cummax(), np.int64)


def recorded_order(time_ns: Int64s, file: Int64s, key: Int64s, wrong: NDArray[np.bool_]) -> Int64s:
    """Return the order in which a run over recorded files takes the rows: side by side, by how far
    event time has come in their file for their key. See `tidegate.spark.arrival`, rule 2.

    Args:
        time_ns: Times of the rows, in the order of the files.
        file: Number of the file of each row.
        key: Number of the key of each row.
        wrong: Rows whose clock is wrong; they do not move the time of their file.
    """
    if len(file) == 0 or (file[0] == file[-1] and not np.any(np.diff(file))):
        return np.arange(len(file))
    group = file * (int(key.max(initial=0)) + 1) + key
    moved = np.where(wrong, np.iinfo(np.int64).min, time_ns)
    order = np.argsort(group, kind="stable")
    progress = np.empty(len(time_ns), np.int64)
    progress[order] = running_max(moved[order], group[order])
    return np.argsort(progress, kind="stable")


def suggest_tolerance(
    behind: Int64s, rows: int, period_ns: int
) -> tuple[int, list[tuple[int, float]]]:
    """Return a round tolerance, and the share of rows that some tolerances would make late.

    Ordinary disorder and rows that are really late are usually far apart: the tolerance ends where,
    among the last percent of rows, the distance more than doubles from one row to the next. Where
    there is no such jump, it keeps KEEP_SHARE of the rows in order. Rows that are all in order get
    one period, so that two rows that change places in the next recording are not late.

    Args:
        behind: Disorder in ns of the rows that arrive after a newer one of their key.
        rows: Number of all rows, those in order included.
        period_ns: The usual time between two rows of the fastest stream; 0 if there is none.
    """
    behind = np.sort(behind)
    few = behind[max(len(behind) - rows // 100 - 1, 0) :]
    jumps = np.flatnonzero(few[1:] > np.maximum(2 * few[:-1], JUMP_FLOOR_NS))
    allowed = int(rows * (1 - KEEP_SHARE))
    needed = -1
    if len(jumps):
        needed = int(few[jumps[0]])
    elif len(behind) > allowed:
        needed = int(behind[-1 - allowed])
    elif len(behind):
        needed = int(behind[-1])
    suggested = round_digits(needed + 1 if needed >= 0 else period_ns or 10**9)
    tried = sorted({0, suggested // 4, suggested // 2, suggested, suggested * 2})
    return suggested, [(each, late_share(behind, rows, each)) for each in tried]


def late_share(behind: Int64s, rows: int, tolerance: int) -> float:
    """Return the share of rows that a tolerance makes late. A row exactly as far behind as the
    tolerance is late; with a tolerance of 0, every row that is behind.

    Args:
        behind: Disorder in ns, sorted.
        rows: Number of all rows.
        tolerance: In ns.
    """
    late = len(behind) - int(np.searchsorted(behind, tolerance, side="left"))
    return late / max(rows, 1)


def round_digits(ns: int) -> int:
    """Round up to two significant digits of the unit in which a span is read.

    >>> round_digits(171_234_567), round_digits(3_000_000_001)
    (180000000, 3100000000)
    """
    for unit in (86_400 * 10**9, 3600 * 10**9, 60 * 10**9, 10**9):
        if ns >= 10 * unit:
            step: int = 10 ** max(len(str(ns // unit)) - 2, 0) * unit
            return -(-ns // step) * step
    step = 10 ** max(len(str(ns)) - 2, 0)
    return -(-ns // step) * step


def rows_held(time_ns: Int64s, key: Int64s, tolerance_ns: int) -> int:
    """Return the most rows that wait at one moment while a tolerance is kept, over all keys.

    A row waits until its key has come `tolerance_ns` further. The sum over keys of the most rows
    within such a span is an upper bound, and exact for one key.
    """
    if len(time_ns) == 0:
        return 0
    order = np.lexsort((time_ns, key))
    times, owner = time_ns[order], key[order]
    total = 0
    edges = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1], True])
    for low, high in pairwise(edges):
        own = times[low:high]
        start = np.searchsorted(own, own - tolerance_ns, side="left")
        total += int((np.arange(len(own)) - start + 1).max())
    return total
