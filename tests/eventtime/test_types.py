"""The registry, the built-in parsers and the decoder."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.time import MAX_NS
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, EventtimeTypes, Parsed, TimeColumn, TimeOptions
from tidegate.eventtime.types import _iso_by_expression

TYPES = EventtimeTypes()
FACTORS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


# -- the registry ---------------------------------------------------------------------------------


def test_names_are_sorted_and_an_unknown_one_lists_them() -> None:
    assert TYPES.list() == sorted(TYPES.list())
    with pytest.raises(
        ConfigError,
        match=r"`x` not registered \(available: date, date_time, iso8601, timestamp, un",
    ):
        TYPES.resolve("x")


def test_a_registry_refuses_to_replace_unless_told() -> None:
    types = EventtimeTypes()
    types.register("mine", lambda column: column)
    with pytest.raises(ConfigError, match="is registered already; pass replace=True"):
        types.register("mine", lambda column: column)
    with pytest.raises(ConfigError, match="unixtimestamp_s"):
        types.register("unixtimestamp_s", lambda column: column)
    types.register("mine", lambda column: pc.add(column, 1), replace=True)
    assert types.parse("mine", pa.array([1])).time_ns.tolist() == [2]
    assert "mine" not in EventtimeTypes().list()


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_name_must_be_one(name: object) -> None:
    with pytest.raises(ConfigError, match=r"eventtime\.type"):
        EventtimeTypes().register(name, lambda column: column)  # type: ignore[arg-type]


def test_a_parser_must_be_callable() -> None:
    with pytest.raises(ConfigError, match="parser of mine"):
        EventtimeTypes().register("mine", 5)  # type: ignore[arg-type]


def test_a_parser_of_ones_own_returns_times_with_nulls_or_reasons() -> None:
    types = EventtimeTypes()
    types.register("plain", lambda column: column)
    parsed = types.parse("plain", pa.array([5, None, 7], pa.int64()))
    assert parsed.time_ns[parsed.ok].tolist() == [5, 7]
    assert parsed.reason.to_pylist() == [None, "not a plain", None]
    types.register("chunked", lambda column: pa.chunked_array([column]))
    assert types.parse("chunked", pa.array([5])).time_ns.tolist() == [5]
    own = Parsed(np.array([1, 0]), pa.array([None, "because"]))
    types.register("full", lambda column: own)
    assert types.parse("full", pa.array([1, 2])) is own


# -- the built-in types ---------------------------------------------------------------------------


@pytest.mark.parametrize("unit", FACTORS)
@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.string(),
             pa.large_string()],
)  # fmt: skip
def test_integers_and_digits_of_every_width(unit: str, kind: pa.DataType) -> None:
    values = [0, 1, 127]
    column = pa.array([str(v) for v in values] if "string" in str(kind) else values, kind)
    parsed = TYPES.parse(f"unixtimestamp_{unit}", column)
    assert parsed.ok.all()
    assert parsed.time_ns.tolist() == [value * FACTORS[unit] for value in values]


@given(unit=st.sampled_from(sorted(FACTORS)), data=st.data())
def test_the_last_time_of_each_unit_and_the_first_beyond(unit: str, data: st.DataObject) -> None:
    last = MAX_NS // FACTORS[unit]
    value = data.draw(st.integers(0, last))
    column = pa.array([value, last, last + 1], pa.uint64())
    for each in (column, column.cast(pa.string())):
        parsed = TYPES.parse(f"unixtimestamp_{unit}", each)
        assert parsed.ok.tolist() == [True, True, False]
        assert parsed.time_ns[:2].tolist() == [value * FACTORS[unit], last * FACTORS[unit]]
        assert "overflow" in parsed.reason[2].as_py()


def test_digits_may_have_a_plus_and_zeros() -> None:
    parsed = TYPES.parse("unixtimestamp_ns", pa.array(["+5", "005", "0" * 30 + "7", "-0"]))
    assert parsed.time_ns.tolist() == [5, 5, 7, 0]
    assert parsed.ok.all()


def test_dictionaries_and_slices() -> None:
    encoded = pa.array(["5", "x", None, "5"]).dictionary_encode()
    parsed = TYPES.parse("unixtimestamp_ns", encoded)
    assert parsed.ok.tolist() == [True, False, False, True]
    parsed = TYPES.parse("unixtimestamp_ns", pa.array([9, 1, None, 3]).slice(1))
    assert parsed.ok.tolist() == [True, False, True]
    assert parsed.time_ns[[0, 2]].tolist() == [1, 3]


@given(st.datetimes(datetime(1678, 1, 1), datetime(2262, 4, 11)), st.integers(0, 999))
def test_iso_times_to_the_nanosecond(moment: datetime, nanos: int) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}{nanos:03d}Z"
    text = text.rjust(30, "0")
    expected = int(np.datetime64(moment, "us").astype(np.int64)) * 1000 + nanos
    parsed = TYPES.parse("iso8601", pa.array([text]))
    assert parsed.ok.all(), parsed.reason
    assert parsed.time_ns.tolist() == [expected]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01", 0), ("1970-01-01T00:00Z", 0), ("1970-01-01 00:00:01", 10**9),
        ("1970-01-01t00:00:00z", 0), ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T01:30:00+0130", 0), ("1969-12-31T19:00:00-05", 0),
        ("1970-01-01T00:00:00.1Z", 10**8), ("1970-01-01T00:00:00,000000001Z", 1),
        ("2000-02-29T00:00:00Z", 951782400 * 10**9),
        ("1970-01-01T24:00:00Z", 86400 * 10**9), ("1970-12-31 24:00", 365 * 86400 * 10**9),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2262-04-11T23:47:16.854775807Z", MAX_NS),
        ("1677-09-21T00:12:43.145224193Z", -MAX_NS),
    ],
)  # fmt: skip
def test_iso_forms(text: str, ns: int) -> None:
    parsed = TYPES.parse("iso8601", pa.array([text]))
    assert parsed.reason.to_pylist() == [None]
    assert parsed.time_ns.tolist() == [ns]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1970-13-01", "not a date"), ("1970-02-30", "not a date"), ("1970-01-00", "not a date"),
        ("1900-02-29", "not a date"), ("1970-01-01T24:00:01Z", "not a date"),
        ("1970-01-01T25:00", "not a date"),
        ("1970-01-01T00:60:00Z", "not a date"), ("1970-01-01T00:00:60Z", "not a date"),
        ("70-01-01", "not ISO 8601"), ("1970-1-1", "not ISO 8601"), ("now", "not ISO 8601"),
        ("1970-01-01T00:00:00.1234567890Z", "not ISO 8601"), ("1970-01-01T00:00:00Z ", "not ISO"),
        ("2262-04-11T23:47:16.854775808Z", "overflow"), ("2600-01-01", "overflow"),
        ("1677-09-21T00:12:43.145224192Z", "overflow"), ("0001-01-01", "overflow"),
        ("2262-04-11T23:47:17-00:01", "overflow"),
    ],
)  # fmt: skip
def test_what_is_not_iso(text: str, reason: str) -> None:
    parsed = TYPES.parse("iso8601", pa.array([text, "1970-01-01"]))
    assert parsed.ok.tolist() == [False, True]
    assert reason in parsed.reason[0].as_py()


@pytest.mark.parametrize("unit", FACTORS)
def test_timestamp_columns_of_every_unit(unit: str) -> None:
    for zone in (None, "UTC", "Europe/Berlin"):
        column = pa.array([0, 5, -5, None], pa.timestamp(unit, zone))
        parsed = TYPES.parse("timestamp", column)
        assert parsed.ok.tolist() == [True, True, True, False]
        assert parsed.time_ns[:3].tolist() == [0, 5 * FACTORS[unit], -5 * FACTORS[unit]]


def test_dates_are_midnight() -> None:
    parsed = TYPES.parse("timestamp", pa.array([date(1970, 1, 2)]))
    assert parsed.time_ns.tolist() == [86400 * 10**9]
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    parsed = TYPES.parse("timestamp", pa.array([moment]))
    assert parsed.time_ns.tolist() == [int(moment.timestamp()) * 10**9]


# -- rules 17, 18, 20 and 22 ----------------------------------------------------------------------


pieces = st.sampled_from(["2026-01-01", "1969-12-31", "2026-02-30", "2300-01-01", "x", ""])
clocks = st.sampled_from(["", "T00", "T23:59", " 12:30:15", "T12:30:15.5", "t01:02:03,000000001",
                          "T12:30:15.123456789", "T24:00", "T12:30:15.1234567890"])  # fmt: skip
offsets = st.sampled_from(["", "Z", "z", "+01:00", "-0530", "+14", "+99:99"])


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.none() | st.tuples(pieces, clocks, offsets).map("".join), max_size=200),
    zone=st.none() | st.just("Europe/Berlin"),
)
def test_arrow_and_the_expression_read_the_same(values: list[str | None], zone: str | None) -> None:
    """The fast way reads a part of what the slow one does, and reads it alike."""
    column = pa.array(values, pa.string())
    fast = TYPES.parse("iso8601", column, TimeOptions(zone))
    slow = _iso_by_expression(column, zone)
    assert fast.reason.to_pylist() == slow.reason.to_pylist()
    assert fast.time_ns[fast.ok].tolist() == slow.time_ns[slow.ok].tolist()


@given(st.integers(-MAX_NS, MAX_NS))
def test_seconds_with_a_fraction_are_exact_in_text_and_decimals(ns: int) -> None:
    exact = Decimal(ns) / 10**9
    for column in (pa.array([f"{exact:f}", None, "1e3"]), pa.array([exact, None, Decimal(1000)])):
        parsed = TYPES.parse("unixtimestamp_s_float", column)
        assert parsed.ok.tolist() == [True, False, True]
        assert parsed.time_ns[[0, 2]].tolist() == [ns, 10**12]


def test_seconds_with_a_fraction_that_are_none() -> None:
    bad = ["nan", "inf", "abc", "", "1.1234567891", "99999999999", "0x10"]
    parsed = TYPES.parse("unixtimestamp_s_float", pa.array([*bad, "-1.5"]))
    assert parsed.ok.tolist() == [False] * len(bad) + [True]
    assert parsed.time_ns[-1] == -1_500_000_000
    assert parsed.reason[4].as_py() == "has digits below the nanosecond"


@given(st.floats(-9e9, 9e9))
def test_a_float_column_is_rounded_to_the_nanosecond(seconds: float) -> None:
    parsed = TYPES.parse("unixtimestamp_s_float", pa.array([seconds, float("nan"), None, 1e300]))
    assert parsed.ok.tolist() == [True, False, False, False]
    assert abs(int(parsed.time_ns[0]) - Fraction(seconds) * 10**9) <= Fraction(1, 2) + Fraction(
        1, 10**3
    )


def test_dates_and_times_in_a_format_of_ones_own() -> None:
    parsed = TYPES.parse("date", pa.array(["1970-01-02", "1970-01-02T00:00", None, "1970-02-30"]))
    assert parsed.ok.tolist() == [True, False, False, False]
    assert parsed.time_ns[0] == 86400 * 10**9
    day = TYPES.parse("date", pa.array([date(1950, 1, 1)]))
    assert day.time_ns.tolist() == [-631_152_000 * 10**9]
    german = TimeOptions(None, "%d.%m.%Y %H:%M:%S")
    parsed = TYPES.parse("date_time", pa.array(["02.01.1970 00:00:01", "1970"]), german)
    assert parsed.ok.tolist() == [True, False]
    assert parsed.time_ns[0] == 86401 * 10**9
    exact = TimeOptions("Europe/Berlin", "%Y/%m/%d %H:%M:%S.%f")
    parsed = TYPES.parse("date_time", pa.array(["1970/01/01 01:00:00.000001", None, "x"]), exact)
    assert parsed.ok.tolist() == [True, False, False]
    assert parsed.time_ns[0] == 1000


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        ("31.12.2024 24:00", "%d.%m.%Y %H:%M", "2025-01-01"),
        ("20240229 2400", "%Y%m%d %H%M", "2024-03-01"),
        ("2024 60 24", "%Y %j %H", "2024-03-01"),
        ("31.12.2024 24:01", "%d.%m.%Y %H:%M", None),
        ("24.12.2024 24:00 x", "%d.%m.%Y %H:%M", None),
    ],
)
def test_midnight_that_ends_a_day(text: str, format: str, expected: str | None) -> None:
    """Exports of hours write 24:00 for the last one: 1 row in 24 was refused."""
    parsed = TYPES.parse("date_time", pa.array([text, None]), TimeOptions(None, format))
    if expected is None:
        assert not parsed.ok.any()
    else:
        assert np.datetime64(int(parsed.time_ns[0]), "ns") == np.datetime64(expected)


def test_a_day_that_does_not_exist_is_no_day_of_the_next_month() -> None:
    options = TimeOptions(None, "%m/%d/%Y")
    parsed = TYPES.parse("date_time", pa.array(["2/30/2025", "2/28/2025", "3/2/2025"]), options)
    assert parsed.ok.tolist() == [False, True, True]


@given(st.integers(0, 2**32), st.integers(0, 10**9 - 1), st.sampled_from([-330, 0, 60, 765]))
def test_fractions_and_zones_of_a_format_are_exact(seconds: int, nanos: int, east: int) -> None:
    local = datetime.fromtimestamp(seconds, UTC) + timedelta(minutes=east)
    zone = f"{'-' if east < 0 else '+'}{abs(east) // 60:02d}{abs(east) % 60:02d}"
    text = f"{local:%d/%b/%Y:%H:%M:%S}.{nanos:09d} {zone}"
    options = TimeOptions("Asia/Tokyo", "%d/%b/%Y:%H:%M:%S.%f %z")
    parsed = TYPES.parse("date_time", pa.array([text, "x", f"{text} "]), options)
    assert parsed.ok.tolist() == [True, False, False]
    assert parsed.time_ns[0] == seconds * 10**9 + nanos


@given(unit=st.sampled_from(["s", "ms", "us"]), value=st.integers(-(2**32), 2**32))
def test_counts_of_either_sign_in_integers_text_and_floats(unit: str, value: int) -> None:
    name = f"unixtimestamp_{unit}_float"
    for column in (pa.array([value]), pa.array([str(value)]), pa.array([float(value)])):
        assert TYPES.parse(name, column).time_ns.tolist() == [value * FACTORS[unit]]
    half = TYPES.parse(name, pa.array([f"{value}.5" if value >= 0 else f"{value - 1}.5"]))
    assert abs(int(half.time_ns[0])) == (abs(value) + (value < 0)) * FACTORS[unit] + (
        FACTORS[unit] // 2
    )


def test_years_months_and_days() -> None:
    text = ["1958", "1958-03", "1958/3/1", "195803", "19580301", "19583", "1958-13", "58", None]
    parsed = TYPES.parse("year_month_day", pa.array(text))
    assert parsed.ok.tolist() == [True] * 5 + [False] * 4
    assert parsed.time_ns[0] == -4383 * 86400 * 10**9
    assert len(set(parsed.time_ns[1:5].tolist())) == 1
    numbers = TYPES.parse("year_month_day", pa.array([1958, 195803, 19580301, 7]))
    assert numbers.ok.tolist() == [True, True, True, False]
    assert numbers.time_ns[1] == parsed.time_ns[1]


def test_seconds_and_what_is_above_them_in_two_columns() -> None:
    rows = pa.record_batch({
        "s": [1_709_251_200, 0, 9_300_000_000, -1, None, 5], "f": [7, 999_999, 0, 0, 0, 10**6],
    })  # fmt: skip
    nanos = Decoder((TimeColumn(("s", "f"), "unixtimestamp_s_ns"),)).read_times(rows)
    micros = Decoder((TimeColumn(("s", "f"), "unixtimestamp_s_us"),)).read_times(rows)
    assert nanos.ok.tolist() == [True, True, False, False, False, True]
    assert micros.ok.tolist() == [True, True, False, False, False, False]
    assert nanos.time_ns[[0, 1, 5]].tolist() == [1_709_251_200 * 10**9 + 7, 999_999, 5_001_000_000]
    assert micros.time_ns[:2].tolist() == [1_709_251_200 * 10**9 + 7000, 999_999_000]
    assert nanos.reason[2].as_py() == "overflow"


def test_a_zone_in_the_middle_of_a_format() -> None:
    format = "[%d/%b/%Y:%H:%M:%S %z]"
    text = ["[01/Mar/2024:01:00:00 +0100]", "[01/Mar/2024:01:00:00 +0100", "[]", None]
    parsed = TYPES.parse("date_time", pa.array(text), TimeOptions(None, format))
    assert parsed.ok.tolist() == [True, False, False, False]
    assert parsed.time_ns[0] == 1_709_251_200 * 10**9


def test_a_date_and_a_time_of_day_in_two_columns_are_one_time() -> None:
    rows = pa.record_batch({
        "day": ["01.02.2024", "02.02.2024", None, "x"], "clock": [" 12:30", "0:05", "1:00", "1:00"],
    })  # fmt: skip
    time = TimeColumn(("day", "clock"), "date_time", format="%d.%m.%Y %H:%M")
    decoder = Decoder((time,))
    decoder.check_schema(rows.schema)
    collection, errors = decoder.decode(rows)
    assert collection.time_ns.tolist() == [1706790600 * 10**9, 1706832300 * 10**9]
    assert errors is not None
    assert errors.table().column("error_column").to_pylist() == ["day + clock"] * 2
    with pytest.raises(ConfigError, match=r"day \+ hour"):
        Decoder((TimeColumn(("day", "hour"), "iso8601"),)).check_schema(rows.schema)
    parts = pa.record_batch({"y": [2024], "m": [2], "d": [1], "h": [7]})
    time = TimeColumn(("y", "m", "d", "h"), "date_time", format="%Y %m %d %H")
    assert Decoder((time,)).decode(parts)[0].time_ns.tolist() == [1706770800 * 10**9]


def test_values_without_a_zone_are_utc_unless_one_is_declared() -> None:
    berlin = TimeOptions("Europe/Berlin")
    naive = pa.array([datetime(2026, 7, 1, 12)], pa.timestamp("us"))
    utc = TYPES.parse("timestamp", naive).time_ns[0]
    assert TYPES.parse("timestamp", naive, berlin).time_ns[0] == utc - 2 * 3600 * 10**9
    zoned = naive.cast(pa.timestamp("us", "UTC"))
    assert TYPES.parse("timestamp", zoned, berlin).time_ns[0] == utc
    text = pa.array(["2026-07-01T12:00", "2026-07-01T12:00Z"])
    assert TYPES.parse("iso8601", text, berlin).time_ns.tolist() == [utc - 2 * 3600 * 10**9, utc]
    with pytest.raises(ConfigError, match=r"eventtime\.zone: got 'Mars/Base'"):
        TimeColumn("t", "iso8601", zone="Mars/Base")
    with pytest.raises(ConfigError, match=r"eventtime\.format"):
        TimeColumn("t", "date_time")
    with pytest.raises(ConfigError, match=r"eventtime\.format"):
        TimeColumn("t", "iso8601", format="%Y")


@pytest.mark.parametrize("unit", FACTORS)
def test_a_parser_may_return_timestamps_of_any_unit(unit: str) -> None:
    types = EventtimeTypes()
    types.register("mine", lambda column: column.cast(pa.timestamp(unit)))
    parsed = types.parse("mine", pa.array([5, None]))
    assert parsed.time_ns[0] == 5 * FACTORS[unit]
    assert parsed.reason.to_pylist() == [None, "not a mine"]


@pytest.mark.parametrize("made", [pa.array([1], pa.int32()), pa.array([1.0]), pa.array(["1"])])
def test_a_parser_that_returns_anything_else_is_refused(made: pa.Array) -> None:
    types = EventtimeTypes()
    types.register("mine", lambda column: made)
    with pytest.raises(ConfigError, match=r"parser of `mine` must return int64 \(nanoseconds"):
        types.parse("mine", pa.array([1]))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_a_parser_that_raises_loses_only_the_rows_it_raises_on(values: list[int]) -> None:
    def parser(column: pa.Array) -> pa.Array:
        if 7 in column.to_pylist():
            raise ZeroDivisionError("seven")
        return column

    types = EventtimeTypes()
    types.register("mine", parser)
    parsed = types.parse("mine", pa.array(values, pa.int64()))
    assert parsed.ok.tolist() == [value != 7 for value in values]
    assert parsed.time_ns[parsed.ok].tolist() == [value for value in values if value != 7]
    reasons = set(parsed.reason.to_pylist()) - {None}
    assert reasons <= {"parser of `mine` raised ZeroDivisionError: seven"}


def test_a_nested_time_column_and_plan_time_checks() -> None:
    decoder = Decoder((TimeColumn("header.stamp.sec", "unixtimestamp_s"),))
    rows = pa.record_batch({"header": [{"stamp": {"sec": 5}}, {"stamp": None}, None]})
    collection, errors = decoder.decode(rows)
    assert collection.time_ns.tolist() == [5 * 10**9]
    assert errors is not None
    assert errors.column.to_pylist() == ["header.stamp.sec"] * 2
    dotted = pa.record_batch({"header.stamp.sec": [7]})
    assert decoder.decode(dotted)[0].time_ns.tolist() == [7 * 10**9]
    decoder.check_schema(rows.schema)
    decoder.check_schema(dotted.schema)
    with pytest.raises(ConfigError, match=r"header\.stamp\.sec.*is not among the columns: v"):
        decoder.check_schema(pa.schema([("v", pa.int64())]))
    with pytest.raises(ConfigError, match="is int64, and eventtime type `iso8601` reads"):
        Decoder((TimeColumn("t", "iso8601"),)).check_schema(pa.schema([("t", pa.int64())]))
    with pytest.raises(ConfigError, match="no type reads it"):
        Decoder((TimeColumn("t", "date"),)).check_schema(pa.schema([("t", pa.binary())]))


# -- the decoder ----------------------------------------------------------------------------------


def test_without_a_declaration_it_is_processing_time() -> None:
    collection, errors = Decoder().decode(pa.record_batch({"v": [1, 2]}), wall_ns=7)
    assert errors is None
    assert collection.time_ns.tolist() == [7, 7]
    assert collection.wall_ns == 7


def test_lanes_go_with_their_rows() -> None:
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    rows = pa.record_batch({"t": ["1", "x", "3"]})
    collection, errors = decoder.decode(rows, np.array([4, 5, 6], np.int32))
    assert collection.lane.tolist() == [4, 6]
    assert errors is not None
    assert errors.lane.tolist() == [5]
    assert errors.table().to_pylist() == [
        {"t": "x", "error_column": "t", "error_value": "x", "error_reason": "not an integer"}
    ]


def test_a_good_collection_is_not_copied() -> None:
    rows = pa.record_batch({"t": [1, 2]})
    collection, _ = Decoder((TimeColumn("t", "unixtimestamp_ns"),)).decode(rows)
    assert collection.rows is rows


def test_a_decoder_knows_its_types_at_once() -> None:
    with pytest.raises(ConfigError, match="`nope` not registered"):
        Decoder((TimeColumn("t", "nope"),))
    with pytest.raises(ConfigError, match="must name the message"):
        Decoder((TimeColumn("t", "iso8601"), TimeColumn("u", "iso8601", "m")))
