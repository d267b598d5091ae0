"""Calendar windows against zoneinfo: every zone whose clocks change from 2025 to 2027."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.outcomes import Collection
from tidegate.errors import ConfigError
from tidegate.testing.laws import assert_cut_law, assert_restart_law, cut
from tidegate.windows import Calendar, NextWindow, Reemit, Window, outputs
from tidegate.windows.calendar import CALENDAR_UNITS, calendar_edges

HOUR = 3600 * 10**9
FIRST, LAST = date(2025, 1, 1), date(2027, 12, 31)


def ns(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)) * 10**9


@cache
def shifting_zones() -> list[str]:
    """Zones with more than one offset from UTC in 2025 to 2027, one of each set of equals."""
    found: dict[tuple[timedelta | None, ...], str] = {}
    days = [datetime(2025, 1, 1, 12, tzinfo=UTC) + timedelta(days=n) for n in range(1095)]
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        offsets = tuple(day.astimezone(zone).utcoffset() for day in days)
        if len(set(offsets)) > 1:
            found.setdefault(offsets, name)
    return list(found.values())


def local(at_ns: int, zone: ZoneInfo) -> datetime:
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_ns // 10**9)
    return whole.astimezone(zone)


def test_every_day_of_every_zone_with_a_shift() -> None:
    """An edge is the first nanosecond of its date: one earlier it is still the day before."""
    assert len(shifting_zones()) > 20
    times = np.array([ns(datetime(year, 6, 1, tzinfo=UTC)) for year in (2025, 2026, 2027)])
    for name in shifting_zones():
        zone = ZoneInfo(name)
        edges = calendar_edges("day", name, [times]).tolist()
        seen = {}
        for edge in edges:
            day = local(edge, zone).date()
            if FIRST <= day <= LAST:
                assert local(edge - 1, zone).date() == day - timedelta(days=1), (name, day)
                assert day not in seen
                seen[day] = edge
        assert len(seen) == 1095, name
        lengths = {(b - a) // HOUR for a, b in pairwise(edges)}
        assert len(lengths) > 1, f"{name}: no day of another length, so nothing was proved"


def test_every_hour_belongs_to_its_local_date() -> None:
    """Rows an hour apart, through the stage, in every zone: the window of a row is its date."""
    for name in shifting_zones():
        zone = ZoneInfo(name)
        start = ns(datetime(2026, 1, 1, tzinfo=UTC))
        times = start + np.arange(0, 365 * 24) * HOUR
        stage = Window(Calendar("day", name), aggregates={"n": "count", "a": ("min", "t")})
        state = stage.open()
        out = stage.process(state, Collection.of(pa.record_batch({"t": times}), times))
        out += stage.flush(state)
        expected: dict[date, int] = {}
        for at in times.tolist():
            day = local(at, zone).date()
            expected[day] = expected.get(day, 0) + 1
        got = {
            local(one.start_ns, zone).date(): one.rows.column("n")[0].as_py()
            for one in outputs(out)
        }
        assert got == expected, name


@pytest.mark.parametrize("unit", CALENDAR_UNITS)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Havana", "Africa/Cairo"])
def test_units_begin_where_their_first_date_does(unit: str, zone: str) -> None:
    info = ZoneInfo(zone)
    times = np.arange(ns(datetime(2025, 1, 1, tzinfo=UTC)), ns(datetime(2028, 1, 1, tzinfo=UTC)),
                      7 * HOUR)  # fmt: skip
    edges = calendar_edges(unit, zone, [times])
    at = np.searchsorted(edges, times, "right")
    assert at.min() > 0
    assert at.max() < len(edges)
    for t, first, last in zip(times.tolist(), edges[at - 1], edges[at], strict=True):
        day, begin, end = (local(int(x), info).date() for x in (t, first, last))
        if unit == "week":
            assert begin == day - timedelta(days=day.weekday())
            assert end == begin + timedelta(days=7)
        else:
            months = {"day": 0, "month": 1, "quarter": 3, "year": 12}[unit]
            if months:
                month = (day.month - 1) // months * months + 1
                assert begin == date(day.year, month, 1)
                after = day.year * 12 + month - 1 + months
                assert end == date(after // 12, after % 12 + 1, 1)
            else:
                assert (begin, end) == (day, day + timedelta(days=1))


@pytest.mark.parametrize("late", [None, NextWindow(), Reemit("6 h")])
def test_laws_across_a_shift(late: object) -> None:
    rng = np.random.default_rng(5)
    n = 120
    start = ns(datetime(2026, 3, 27, tzinfo=UTC))
    times = start + rng.integers(0, 96, n) * HOUR
    rows = pa.record_batch({"v": rng.normal(size=n), "g": rng.integers(0, 2, n)})
    collection = Collection(rows, times, rng.integers(0, 3, n).astype(np.int32))
    settings = {} if late is None else {"late": late}
    stage = Window(
        Calendar("day", "Europe/Berlin"), aggregates={"n": "count"}, group_by="g", **settings
    )
    for at in ([10], [3, 60, 61], list(range(0, 120, 7))):
        assert_cut_law(stage, collection, at, lanes=3)
        assert_restart_law(stage, cut(collection, at), lanes=3)


def test_a_skipped_date_has_no_window() -> None:
    """Samoa went from 29 to 31 December 2011."""
    when = np.array([ns(datetime(2011, 12, 29, tzinfo=UTC))])
    edges = calendar_edges("day", "Pacific/Apia", [when]).tolist()
    days = [local(edge, ZoneInfo("Pacific/Apia")).date() for edge in edges]
    assert date(2011, 12, 29) in days
    assert date(2011, 12, 31) in days
    assert date(2011, 12, 30) not in days


@pytest.mark.parametrize(
    ("settings", "field"), [({"unit": "hour"}, "unit"), ({"zone": "Mars/Olympus"}, "zone")]
)
def test_bad_settings(settings: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        Calendar(**settings)
    assert error.value.field == field
