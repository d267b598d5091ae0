"""Where days, weeks, months, quarters and years of a time zone begin, in nanoseconds of UTC.

A window begins with the first moment whose local date is its first date:

- where midnight is skipped (clocks go from 23:59 to 01:00), that is the moment of the change;
- where midnight comes twice, it is the first of the two;
- a date that a zone left out (Samoa, 2011-12-30) has no window.

The edges of a year are worked out once, with `zoneinfo`, and kept; a call asks only for the years
its rows are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import ConfigError

__all__ = ["CALENDAR_UNITS", "calendar_edges", "check_zone", "start_of_date"]

CALENDAR_UNITS = ("day", "week", "month", "quarter", "year")
"""What a calendar window may be."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_YEAR_NS = 365 * 86_400 * 10**9


def check_zone(zone: str) -> None:
    """Refuse a zone that is not known here with a ConfigError."""
    try:
        ZoneInfo(zone)
    except Exception as error:  # of several types, by what is wrong with the name
        text = f"must be an IANA time zone such as Europe/Berlin: {error}"
        raise ConfigError("zone", zone, text) from error


def start_of_date(day: date, zone: str) -> int:
    """The first moment of a local date, in ns since the epoch.

    Args:
        day: the date.
        zone: an IANA name.

    >>> start_of_date(date(1970, 1, 2), "Europe/Berlin") // 10**9
    82800
    """
    info = ZoneInfo(zone)
    moment = datetime(day.year, day.month, day.day, tzinfo=info).astimezone(UTC)
    if (moment - timedelta(microseconds=1)).astimezone(info).date() >= day:
        # Clocks were put forward over midnight from before it: the date begins with the change.
        low, high = moment - _DAY, moment
        while high - low > timedelta(microseconds=1):
            middle = low + (high - low) / 2
            low, high = (low, middle) if middle.astimezone(info).date() >= day else (middle, high)
        moment = high
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _first_dates(unit: str, year: int) -> Iterator[date]:
    """The first dates of the windows that touch a year, and of one more on either side."""
    if unit == "day":
        for number in range(-3, 370):
            yield date(year, 1, 1) + number * _DAY
    elif unit == "week":
        monday = date(year, 1, 1) - timedelta(days=date(year, 1, 1).weekday())
        for number in range(-1, 55):
            yield monday + 7 * number * _DAY
    else:
        months = {"month": 1, "quarter": 3, "year": 12}[unit]
        for number in range(-months, 12 + 2 * months, months):
            yield date(year + number // 12, number % 12 + 1, 1)


@lru_cache(maxsize=4096)
def _edges_of_year(unit: str, zone: str, year: int) -> tuple[int, ...]:
    """The edges around a year, ascending; those outside 64 bits are left out."""
    if year < 1677 or year > 2263:
        return ()
    edges = {start_of_date(day, zone) for day in _first_dates(unit, year)}
    return tuple(sorted(edge for edge in edges if MIN_NS < edge <= MAX_NS))


@lru_cache(maxsize=1024)
def _edges_of_years(unit: str, zone: str, years: tuple[int, ...]) -> Int64s:
    found = sorted({edge for year in years for edge in _edges_of_year(unit, zone, year)})
    return as_readonly(np.array(found, np.int64))


def calendar_edges(unit: str, zone: str, times: Sequence[Int64s]) -> Int64s:
    """Edges of windows such that each of these times lies between two neighbours.

    Args:
        unit: one of `CALENDAR_UNITS`.
        zone: an IANA name.
        times: arrays of times in ns; those too near to the ends of int64 may lie outside.

    >>> edges = calendar_edges("day", "Europe/Berlin", [np.array([0])])
    >>> int(np.diff(edges).min()) // 10**9
    86400
    """
    years: set[int] = set()
    for some in times:
        if len(some) == 0:
            continue
        low, high = int(some.min()), int(some.max())
        if high - low < _YEAR_NS:
            found = np.array([low, high])
        else:
            found = some
        whole = found.astype("datetime64[ns]").astype("datetime64[Y]").astype(np.int64)
        years.update((np.unique(whole) + 1970).tolist())
    # Neighbouring years beside those of the times, so that no edge is missing at a turn of year.
    return _edges_of_years(unit, zone, tuple(sorted(years)))
