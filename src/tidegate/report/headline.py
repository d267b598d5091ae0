"""The first glance at a run: one sentence about it, and the moment that is most worth a look.

The sentence names at most three things, the most surprising first: clocks that jumped, rows with a
time that cannot be read, late rows, topics whose clocks or transports are behind others, batches
that closed by timeout, dropped rows. If there is none of them it says so.

The moment is about as long as 30 messages of each topic of one key: the key with the most
exceptions, and of its time the part where most of them come together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.core.text import plural
from tidegate.core.time import format_duration
from tidegate.report.columns import NONE
from tidegate.report.rows import KINDS, RunMessages

__all__ = ["Opening", "headline", "opening"]

DATA, LATE, DROPPED, ERROR = (KINDS.index(kind) for kind in ("data", "late", "dropped", "error"))
"""Numbers of the kinds, as `RunMessages.kind` holds them."""

WEIGHT = {ERROR: 3.0, LATE: 2.0, DROPPED: 0.2}
"""How much an exception of each kind draws the view. Rows without a partner are ordinary where
topics have different rates, so dropped rows only decide where there is nothing else."""

ENOUGH = 5
"""Exceptions of one kind that count in one view: a hundred of one kind are not worth more than a
few of two."""

CANDIDATES = 2_000
"""Moments compared; more do not change what is found, and a page must be made in a second."""

FULL = 0.8
"""Share of the messages of the fullest view that another one must have to be about full."""

PER_TOPIC = 30
"""Messages of each topic in the first view: few enough to be told apart."""

UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9,
           "h": 3600 * 10**9, "d": 86_400 * 10**9, "years": 31_557_600 * 10**9}  # fmt: skip
"""Units that the event-time stage uses in its reasons, in ns."""

NOTABLE_SKEW_NS = 20_000_000
"""Median delays of two topics that differ by less than this (20 ms) are not worth a sentence."""


class Opening(NamedTuple):
    """What the page shows first.

    Args:
        key: Index into `RunMessages.keys`.
        start_ns: Start of the view, in event time.
        end_ns: End of the view.
    """

    key: int
    start_ns: int
    end_ns: int


def opening(messages: RunMessages, fit_ns: tuple[int, int]) -> Opening:
    """Choose the key and the moment to open on.

    Every error and late row of the key is a candidate (dropped rows if there are none of those), at
    most `CANDIDATES`. A candidate scores by the exceptions in the 70 % of a view that follow it,
    each kind up to `ENOUGH`; the view then begins a fifth of its length before the best one, so
    that the reader sees what came before.

    Args:
        messages: The messages of the page.
        fit_ns: Start and end of the whole run, which is also the longest view.

    Returns:
        The view. Without any exception, of the first key, the nearest to the middle of the run that
        is about full.
    """
    known = messages.time_ns != NONE
    weights = np.array([WEIGHT.get(kind, 0.0) for kind in range(len(KINDS))])
    trouble = np.bincount(messages.key, weights[messages.kind] * known, len(messages.keys) or 1)
    key = int(np.argmax(trouble))
    own = known & (messages.key == key)
    low, high = fit_ns
    length = min(_view_length(messages, own), high - low)
    times = {kind: np.sort(messages.time_ns[own & (messages.kind == kind)]) for kind in WEIGHT}
    times = {kind: found[(found >= low) & (found <= high)] for kind, found in times.items()}
    moments = np.concatenate([*(times[kind] for kind in (ERROR, LATE) if len(times[kind]))]
                             or [times[DROPPED]])  # fmt: skip
    if len(moments) == 0:
        return Opening(key, *_busy(np.sort(messages.time_ns[own]), low, high, length))
    moments = np.sort(moments)[:: -(-len(moments) // CANDIDATES)]
    score = np.zeros(len(moments))
    for kind, found in times.items():
        count = np.searchsorted(found, moments + length * 7 // 10) - np.searchsorted(found, moments)
        score += WEIGHT[kind] * np.minimum(count, ENOUGH)
    start = int(moments[int(np.argmax(score))]) - length // 5
    return Opening(key, start, start + length)


def _busy(times: Int64s, low: int, high: int, length: int) -> tuple[int, int]:
    """Return start and end of a view in which there is something: a recording may pause for most
    of its time.

    Args:
        times: Of the messages, sorted.
        low, high: Start and end of the whole run.
        length: Of the view.
    """
    middle = (low + high) // 2
    starts = np.concatenate([[middle - length // 2], times[:: -(-len(times) // CANDIDATES) or 1]])
    starts = np.clip(starts, low, max(high - length, low))
    count = np.searchsorted(times, starts + length) - np.searchsorted(times, starts)
    full = starts[count >= FULL * count.max()]
    start = int(full[np.argmin(np.abs(full + length // 2 - middle))])
    return start, start + length


def _view_length(messages: RunMessages, own: NDArray[np.bool_]) -> int:
    """Return the length of a view with about `PER_TOPIC` messages per topic of this key, in ns.

    One second if there are fewer than two messages; never below 1 µs. The outermost messages are
    left out, because one wrong clock would stretch the run to years.
    """
    times = messages.time_ns[own & (messages.kind != ERROR)]
    if len(times) < 2:
        return 10**9
    low, high = (int(q) for q in np.quantile(times, (0.0005, 0.9995), method="nearest"))
    topics = len(np.unique(messages.topic[own]))
    return max((high - low) * PER_TOPIC * topics // len(times), 1_000)


def headline(messages: RunMessages, counts: dict[str, int]) -> str:
    """Return one sentence about a run.

    Args:
        messages: The messages of the page; they may be a sample.
        counts: Rows of every kind of the whole run, so that totals are right for a sample too.

    Returns:
        At most three facts, in the order of the module's first paragraph.
    """
    facts = [
        *_clock_fact(messages), *_unreadable_fact(messages, counts), *_late_fact(messages, counts),
        *_skew_fact(messages), *_timeout_fact(messages), *_dropped_fact(messages, counts),
    ]  # fmt: skip
    if not facts:
        total = sum(counts.get(kind, 0) for kind in KINDS)
        if total == 1:
            return "The one row comes out in order."
        return f"All {total:,} rows come out in order: none is late, dropped or unreadable."
    words = "; ".join(facts[:3])
    return f"{words[0].upper()}{words[1:]}."


class _Errors(NamedTuple):
    """The error rows of a run: their keys, and how far ahead each clock was in ns (0: not)."""

    key: Int64s
    ahead_ns: Int64s


def _errors(messages: RunMessages) -> _Errors:
    """Return the error rows. How far ahead a clock was is in their reasons: it has no column."""
    at = np.flatnonzero(messages.kind == ERROR)
    ahead = np.array([_ahead_ns(reason) for reason in messages.reasons], np.int64)
    return _Errors(messages.key[at], ahead[messages.reason[at]])


def _ahead_ns(reason: str) -> int:
    """Return how far ahead a row was, from the reason the event-time stage gives; 0 for other
    reasons.

    Held to 2**62 ns (146 years), so that any number in a reason fits an int64.
    """
    found = re.search(
        r"(\d+(?:\.\d+)?) ?(ns|us|µs|ms|s|min|h|d|years) ahead", reason.rsplit("\x1f", 1)[-1]
    )
    return min(int(float(found[1]) * UNIT_NS[found[2]]), 2**62) if found else 0


def _clock_fact(messages: RunMessages) -> list[str]:
    """Say whose clock jumped ahead, by how much in the median, and how many rows that cost."""
    errors = _errors(messages)
    keys, rows = np.unique(errors.key[errors.ahead_ns > 0], return_counts=True)
    if len(keys) == 0:
        return []
    total = int(rows.sum())
    if len(keys) == 1 and messages.keys[int(keys[0])]:
        who = f"the clock of {_short_name(messages.keys[int(keys[0])])} jumped"
    elif len(keys) == 1:
        who = "the clock jumped"
    else:
        who = f"the clocks of {len(keys):,} keys jumped"
    by = _rough_duration(int(np.median(errors.ahead_ns[errors.ahead_ns > 0])))
    return [f"{who} {by} ahead, {_row_count(total)} set aside"]


def _unreadable_fact(messages: RunMessages, counts: dict[str, int]) -> list[str]:
    """Say how many rows could not be used, without those whose clock is ahead.

    The page may hold a sample of the errors: its share is applied to the total.
    """
    errors = _errors(messages)
    shown = len(errors.key)
    if shown == 0 or (errors.ahead_ns > 0).all():
        return []
    share = 1 - float((errors.ahead_ns > 0).mean())
    total = max(round(counts.get("error", shown) * share), 1)
    return [f"{_row_count(total)} could not be used"]


def _late_fact(messages: RunMessages, counts: dict[str, int]) -> list[str]:
    """Say how many rows were late, by how much at most, and of which key most of them are."""
    own = messages.kind == LATE
    total = counts.get("late", 0)
    if not total or not own.any():
        return []
    by = _rough_duration(int(messages.lateness_ns[own].max()))
    if total == 1:
        return [f"1 row late by {by}"]
    words = f"{_row_count(total)} late by up to {by}"
    keys, rows = np.unique(messages.key[own], return_counts=True)
    most = int(np.argmax(rows))
    if len(messages.keys) > 1 and rows[most] > own.sum() / 2:
        words += f", most of them of {_short_name(messages.keys[int(keys[most])])}"
    return [words]


def _skew_fact(messages: RunMessages) -> list[str]:
    """Say which topic arrives later than another, by the medians of their delays.

    Topics with fewer than 10 messages with a known arrival are left out, because their median says
    little.
    """
    own = (messages.kind == DATA) & (messages.arrival_ns != NONE) & (messages.time_ns != NONE)
    delay = messages.arrival_ns - messages.time_ns
    medians = {}
    for number, name in enumerate(messages.topics):
        found = delay[own & (messages.topic == number)]
        if len(found) >= 10:
            medians[name] = float(np.median(found))
    if len(medians) < 2:
        return []
    slow, quick = max(medians, key=medians.__getitem__), min(medians, key=medians.__getitem__)
    behind = medians[slow] - medians[quick]
    if behind < NOTABLE_SKEW_NS:
        return []
    return [f"{_short_name(slow)} is {_rough_duration(int(behind))} behind {_short_name(quick)}"]


def _timeout_fact(messages: RunMessages) -> list[str]:
    """Say how many batches closed by timeout; a single one is not worth a sentence."""
    groups = messages.groups
    if groups is None or "reason" not in groups.columns:
        return []
    reasons = groups.columns["reason"]
    found = sum(reason == "timeout" for reason in reasons)
    return [f"{found:,} of {len(reasons):,} batches closed by timeout"] if found > 1 else []


def _dropped_fact(messages: RunMessages, counts: dict[str, int]) -> list[str]:
    """Say how many rows were dropped, and the most frequent reason."""
    total = counts.get("dropped", 0)
    own = messages.reason[messages.kind == DROPPED]
    if not total or len(own) == 0:
        return []
    codes, rows = np.unique(own, return_counts=True)
    reason = messages.reasons[int(codes[int(np.argmax(rows))])]
    return [
        f"{_row_count(total)} dropped"
        + (f", most of them: {_short_name(reason)}" if reason else "")
    ]


def _row_count(count: int) -> str:
    """Return a number of rows as words: "1 row", "2,000 rows"."""
    return plural(count, "row")


def _short_name(text: str) -> str:
    """Return a name of at most 40 characters, cut in the middle: names differ at their ends."""
    return text if len(text) <= 40 else f"{text[:20]}…{text[-19:]}"


def _rough_duration(ns: int) -> str:
    """A duration in three digits, in the largest unit that fits.

    >>> [_rough_duration(ns) for ns in (80 * 10**6, 31_536_000 * 10**9, 43 * 31_536_000 * 10**9)]
    ['80 ms', 'a year', '43 years']
    """
    years = ns / (365.25 * 86_400e9)
    if years > 0.9:
        return "a year" if years < 1.5 else f"{years:.0f} years"
    for unit, size in (("d", 86_400e9), ("h", 3_600e9), ("min", 60e9), ("s", 1e9), ("ms", 1e6),
                       ("µs", 1e3)):  # fmt: skip
        if ns >= (2 * size if unit in ("d", "h", "min") else size):
            return f"{ns / size:.3g} {unit}"
    return format_duration(ns)
