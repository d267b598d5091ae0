"""Event-time types: how the time of a row is read from a column.

Rules for every type:

- whole Arrow columns in, int64 nanoseconds since 1970 (UTC) out, and one reason per row that has
  no time; a bad value never touches its neighbours, and never raises;
- integer or decimal arithmetic only, so that all nine digits of a second survive. The one exception
  is `unixtimestamp_s_float` on a float column, which has lost digits already;
- text and timestamps without a zone are UTC, or local to the `zone` of the declaration; never the
  zone of the session or the machine.

To add a type: write a function `(column, options) -> Parsed` below and a line in `BUILT_IN` with
the column types it reads. Users add theirs with `EventtimeTypes.register`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.core.time import MAX_NS, MIN_NS
from tidegate.errors import ConfigError

__all__ = ["BUILT_IN", "EventtimeTypes", "Parsed", "Parser", "TimeOptions"]

NULL = "eventtime value is null"
"""The reason of a row whose value is null."""
_SAFE_DIGITS = 18
"""This many digits always fit into int64; longer ones are read in two parts or one by one."""
_LEAF = 64
"""Rows below which a piece that Arrow cannot cast is read value by value instead of being halved
again: halving costs about as much as reading this many values."""
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds per unit, by the name Arrow gives the unit."""


@dataclass(frozen=True, eq=False)
class Parsed:
    """Times in nanoseconds, and for each row that has none the reason (null where it parsed)."""

    time_ns: Int64s
    """Nanoseconds since 1970 (UTC); meaningless where there is a reason."""
    reason: pa.Array
    """A text column: why the row has no time; null where it has one."""

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which rows have a time."""
        return np.asarray(self.reason.is_null().to_numpy(zero_copy_only=False), np.bool_)


class TimeOptions(NamedTuple):
    """What a declaration says beside the type."""

    zone: str | None = None
    """The IANA zone of values that have none of their own; None: UTC."""
    format: str | None = None
    """The layout of the text, as in Python's `datetime.strptime`; for `date_time` only."""


Parser = Callable[[pa.Array], "Parsed | pa.Array"]
"""A user's parser: a whole Arrow column in; out comes `Parsed`, an int64 column of nanoseconds with
nulls where a value is no time, or an Arrow timestamp column of any unit."""


class _Type(NamedTuple):
    """A type: how it reads a column, and which column types it can read at all."""

    parse: Callable[[pa.Array, TimeOptions], Parsed]
    """Reads a column; never raises for a value."""
    reads: Callable[[pa.DataType], bool]
    """Whether columns of an Arrow type can be read at all; used at plan time."""
    what: str
    """The columns it reads, in words."""


class EventtimeTypes:
    """Names of event-time types and their parsers. A new one starts with the built-in types.

    | type | columns | times |
    |---|---|---|
    | `unixtimestamp_s`, `_ms`, `_us`, `_ns` | integers, text of digits | since 1970, not negative |
    | `unixtimestamp_s_float`, `_ms_float`, `_us_float` | text, integers, decimals (exact), floats \
(seconds of today to about 200 ns) | since 1970, of either sign, with a fraction |
    | `unixtimestamp_s_us`, `_s_ns` | two columns of integers: `[stamp.sec, stamp.nanosec]` | as \
ROS writes them |
    | `iso8601` | text | `2026-01-01T00:00:00.123456789+01:00` and shorter forms |
    | `timestamp` | Arrow or Spark timestamps, dates | |
    | `date` | dates, text `2026-01-31` | midnight |
    | `date_time` | text in the `format` of the declaration | |
    | `year_month_day` | integers, text: `1958`, `1958-03`, `19580301` | the first moment |

    >>> types = EventtimeTypes()
    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> types.register("gps_seconds", lambda column: pc.multiply(column, 1_000_000_000))
    >>> types.parse("gps_seconds", pa.array([2, None])).time_ns[0]
    np.int64(2000000000)
    >>> types.resolve("gps")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: eventtime type `gps` not registered (available: date, date_time, \
gps_seconds, iso8601, ...
    """

    def __init__(self) -> None:
        self._types: dict[str, _Type] = dict(BUILT_IN)

    def register(self, name: str, parser: Parser, *, replace: bool = False) -> None:
        """Add a type of your own.

        Args:
            name: the name used in declarations.
            parser: gets a whole Arrow column; see `Parser` for what it may return. Where it raises,
                the column is halved until the rows that raise are alone: those become error rows.
            replace: True replaces a type of the same name, also a built-in one.

        Raises:
            ConfigError: the name is empty or taken, or the parser is not callable. Later, when a
                column is parsed: the parser returned something else than one time per row.
        """
        if not name or not isinstance(name, str):
            raise ConfigError("eventtime.type", name, "must be a non-empty name")
        if not callable(parser):
            raise ConfigError(f"parser of {name}", parser, "must be callable with an Arrow column")
        if name in self._types and not replace:
            raise ConfigError(
                "eventtime.type", name, "is registered already; pass replace=True to replace it"
            )
        read = partial(_read_with, name, parser)
        self._types[name] = _Type(read, lambda kind: True, "any column")

    def resolve(self, name: str) -> Callable[[pa.Array, TimeOptions], Parsed]:
        """The parser of a type.

        Raises:
            ConfigError: the name is not registered; the message lists those that are.
        """
        try:
            return self._types[name].parse
        except KeyError:
            known = ", ".join(self.list())
            raise ConfigError(
                "eventtime.type",
                name,
                f"must be one of {known}",
                message=f"eventtime type `{name}` not registered (available: {known})",
            ) from None

    def list(self) -> list[str]:
        """The known names, sorted."""
        return sorted(self._types)

    def parse(self, name: str, column: pa.Array, options: TimeOptions = TimeOptions()) -> Parsed:  # noqa: B008  (immutable)
        """Read a column.

        Args:
            name: the type.
            column: an Arrow array.
            options: zone and format of the declaration.

        Returns:
            A time or a reason for every row.

        Raises:
            ConfigError: the name is not registered, or `date_time` has no format.
        """
        return self.resolve(name)(column, options)

    def check_column(self, name: str, kind: pa.DataType, column: str) -> None:
        """Refuse a column whose type this event-time type can never read, at plan time.

        `kind` is the Arrow type of the column, `column` its name. Null columns and dictionaries are
        taken for what they may hold. Raises `ConfigError` with the types that would do.

        Args:
            name: the event-time type.
            kind: the Arrow type of the column.
            column: its name, for the message.

        >>> EventtimeTypes().check_column("iso8601", pa.int64(), "stamp")
        Traceback (most recent call last):
            ...
        tidegate.errors.ConfigError: column `stamp` is int64, and eventtime type `iso8601` reads \
text; for int64 use one of unixtimestamp_ms, unixtimestamp_ms_float, unixtimestamp_ns, \
unixtimestamp_s, unixtimestamp_s_float, unixtimestamp_us, unixtimestamp_us_float, year_month_day
        """
        self.resolve(name)
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        wanted = self._types[name]
        if pa.types.is_null(kind) or wanted.reads(kind):
            return
        others = [other for other in self.list() if self._types[other].reads(kind)]
        advice = f"for {kind} use one of {', '.join(others)}" if others else "no type reads it"
        raise ConfigError(
            "eventtime.type",
            name,
            f"does not read {kind}; {advice}",
            message=f"column `{column}` is {kind}, and eventtime type `{name}` reads "
            f"{wanted.what}; {advice}",
        )


# -- types of users -------------------------------------------------------------------------------


def _read_with(name: str, parser: Parser, column: pa.Array, options: TimeOptions) -> Parsed:
    """Run a user's parser and check what it returns.

    Where it raises, both halves of the column are tried, down to the rows that raise: with few bad
    values that is a few dozen calls, not one per row.

    Raises:
        ConfigError: it returned something else than one time per row.
    """
    try:
        result = parser(column)
    except ConfigError:
        raise
    except Exception as error:
        if len(column) <= 1:
            reason = f"parser of `{name}` raised {type(error).__name__}: {error}"
            reasons = pa.array([reason] * len(column), pa.string())
            return Parsed(np.zeros(len(column), np.int64), reasons)
        half = len(column) // 2
        return _join_parsed(
            [
                _read_with(name, parser, column.slice(0, half), options),
                _read_with(name, parser, column.slice(half), options),
            ]
        )
    if isinstance(result, Parsed):
        if len(result.time_ns) == len(result.reason) == len(column):
            return result
    elif isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array) or len(result) != len(column):
        raise ConfigError(
            "eventtime.type", name, "must return one time per row",
            message=f"parser of `{name}` must return one time per row, got {result!r:.200}",
        )  # fmt: skip
    if pa.types.is_timestamp(result.type):
        parsed = timestamp(result, options)
        missing = parsed.reason
        found = pc.if_else(pc.equal(missing, NULL), f"not a {name}", missing)
        return Parsed(parsed.time_ns, found)
    if not pa.types.is_int64(result.type):
        raise ConfigError(
            "eventtime.type", name, "must return int64 nanoseconds or a timestamp column",
            message=f"parser of `{name}` must return int64 (nanoseconds since 1970) or an Arrow "
            f"timestamp of any unit, got {result.type}",
        )  # fmt: skip
    reason = pc.if_else(result.is_null(), f"not a {name}", pa.scalar(None, pa.string()))
    return Parsed(result.fill_null(0).to_numpy(), reason)


def _join_parsed(parts: list[Parsed]) -> Parsed:
    """Parts of a column as one."""
    return Parsed(
        np.concatenate([part.time_ns for part in parts]),
        pa.concat_arrays([part.reason for part in parts]),
    )


# -- shared by the built-in types -----------------------------------------------------------------


class Reasons:
    """Collects why rows have no time. The first reason of a row counts.

    A dictionary rather than a column, because most columns have no reason at all.

    Args:
        column: the column to be read; its nulls have a reason from the start.
    """

    def __init__(self, column: pa.Array) -> None:
        self.rows = len(column)
        self.texts: dict[int, str] = {}
        if column.null_count:
            self.add(column.is_null().to_numpy(zero_copy_only=False), NULL)

    def add(self, rows: NDArray[np.bool_], text: str) -> None:
        """Give the rows of a mask this reason, unless they have one."""
        for row in np.flatnonzero(rows).tolist():
            self.texts.setdefault(row, text)

    def add_rest(self, text: str) -> None:
        """Give every row without a reason this one."""
        self.add(np.ones(self.rows, np.bool_), text)

    def parsed(self, time_ns: Int64s) -> Parsed:
        """The result: these times with the reasons collected."""
        if not self.texts:
            return Parsed(time_ns, pa.nulls(self.rows, pa.string()))
        reasons = [self.texts.get(row) for row in range(self.rows)]
        return Parsed(time_ns, pa.array(reasons, pa.string()))


def _without_dictionary(column: pa.Array) -> pa.Array:
    """The column with a dictionary encoding, if it has one, undone."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is text of any layout."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _unreadable_column(column: pa.Array) -> Parsed:
    """Every row has the reason that no value of this column type is a time."""
    reasons = Reasons(column)
    reasons.add_rest(f"type not supported: {column.type}")
    return reasons.parsed(np.zeros(len(column), np.int64))


def _by_halves(
    column: pa.Array,
    fast: Callable[[pa.Array], Parsed | None],
    slow: Callable[[pa.Array], Parsed],
) -> Parsed:
    """Read a column by a fast way that fails as a whole, and a slow one for the rows it fails on.

    Args:
        column: the column.
        fast: returns None if any value is not in its form; then both halves are tried, down to
            pieces of `_LEAF` rows. So a few bad values among many cost little.
        slow: reads any piece. Neighbouring pieces that `fast` cannot read are read at once: a
            column with nothing in this form costs one call.
    """
    parts: list[Parsed] = []
    begun = done = 0  # rows from `begun` to `done` wait for `slow`

    def read_waiting() -> None:
        if done > begun:
            parts.append(slow(column.slice(begun, done - begun)))

    ahead = [(0, len(column))]
    while ahead:
        first, end = ahead.pop()
        parsed = fast(column.slice(first, end - first))
        if parsed is not None:
            read_waiting()
            parts.append(parsed)
            begun = done = end
        elif end - first <= _LEAF:
            done = end
        else:
            half = (first + end) // 2
            ahead += [(half, end), (first, half)]
    read_waiting()
    return parts[0] if len(parts) == 1 else _join_parsed(parts)


def _local(time_ns: Int64s, which: NDArray[np.bool_] | None, zone: str | None) -> Int64s:
    """Turn local times of day into UTC.

    Args:
        time_ns: times of day, counted as if they were UTC.
        which: the ones to convert; None: all.
        zone: the IANA zone; None or UTC: nothing to do.

    Returns:
        Times in UTC. In the hour that comes twice in autumn the first one is taken; in the hour
        left out in spring, the moment of the change.
    """
    if zone is None or zone.upper() == "UTC" or len(time_ns) == 0:
        return time_ns
    moments = pa.array(time_ns).cast(pa.timestamp("ns"))
    made = pc.assume_timezone(moments, zone, ambiguous="earliest", nonexistent="latest")
    utc = made.cast(pa.int64()).to_numpy()
    return utc if which is None else np.where(which, utc, time_ns)


# -- counts since 1970 ----------------------------------------------------------------------------


def unix_timestamp(
    column: pa.Array, options: TimeOptions, *, name: str, unit: str, factor: int
) -> Parsed:
    """Read integers, or text of digits, counted since 1970.

    Args:
        column: integers of any width, decimals without a fraction, or text.
        options: not used.
        name: the type, for reasons.
        unit: its unit in words, for reasons.
        factor: nanoseconds per unit.

    Returns:
        Times. Negative counts and ones that do not fit into 64-bit nanoseconds have a reason
        instead.
    """
    column = _without_dictionary(column)
    kind = column.type
    reasons = Reasons(column)
    if _is_text(kind):
        values = _integers_of_text(column, reasons)
    elif pa.types.is_uint64(kind) or _is_whole_decimal(kind):
        limit, zero = (pa.scalar(n).cast(kind) for n in (MAX_NS, 0))
        over = pc.fill_null(pc.greater(column, limit), False)
        if not pa.types.is_uint64(kind):
            below = pc.fill_null(pc.less(column, pa.scalar(-MAX_NS).cast(kind)), False)
            over = pc.or_(over, below)
        reasons.add(over.to_numpy(zero_copy_only=False), "overflow")
        bounded = pc.if_else(over, zero, pc.fill_null(column, zero))
        values = bounded.cast(pa.int64()).to_numpy()
    elif pa.types.is_integer(kind):
        whole = pc.fill_null(column, 0) if column.null_count else column
        values = (whole if pa.types.is_int64(kind) else whole.cast(pa.int64())).to_numpy()
    else:
        return _unreadable_column(column)
    if len(values) and (int(values.min()) < 0 or int(values.max()) > MAX_NS // factor):
        suspect = (values < 0) | (values > MAX_NS // factor)
        for row in np.flatnonzero(suspect).tolist():
            if values[row] < 0:
                text = f"{name} expects non-negative {unit}, got {values[row]}"
            else:
                text = f"overflow: {values[row]} {unit} do not fit into 64-bit nanoseconds"
            reasons.texts.setdefault(row, text)
        values = np.where(suspect, 0, values)
    return reasons.parsed(values if factor == 1 else values * factor)


def _integers_of_text(column: pa.Array, reasons: Reasons) -> Int64s:
    """Read text of digits, with an optional sign, as int64.

    Up to 18 digits are cast by Arrow, 19 in two parts, and what remains (leading zeros, long signed
    numbers) one by one. Rows that are no integer, or too large, get a reason.
    """
    digits = pc.fill_null(pc.match_substring_regex(column, r"^[+-]?[0-9]+$"), False)
    length = pc.fill_null(pc.binary_length(column), 0)
    short = pc.and_(digits, pc.less_equal(length, _SAFE_DIGITS))
    # Arrow reads no leading "+", so it is taken off; "-" stays and is refused by its value.
    text = pc.replace_substring_regex(column, r"^\+", "")
    values = pc.if_else(short, text, "0").cast(pa.int64()).fill_null(0).to_numpy().copy()
    # Nanoseconds of today have 19 digits: read as 18 and one, so that neither part overflows.
    signed = pc.match_substring_regex(column, "^[+-]")
    long = pc.and_(digits, pc.equal(length, _SAFE_DIGITS + 1))
    long = pc.and_(long, pc.invert(pc.fill_null(signed, False)))
    is_long = long.to_numpy(zero_copy_only=False)
    if is_long.any():
        text = pc.if_else(long, column, "0" * (_SAFE_DIGITS + 1))
        high = pc.utf8_slice_codeunits(text, 0, _SAFE_DIGITS).cast(pa.int64())
        low = pc.utf8_slice_codeunits(text, _SAFE_DIGITS, _SAFE_DIGITS + 1).cast(pa.int64())
        tens, ones = high.fill_null(0).to_numpy(), low.fill_null(0).to_numpy()
        over = is_long & ((tens > MAX_NS // 10) | ((tens == MAX_NS // 10) & (ones > MAX_NS % 10)))
        reasons.add(over, "overflow")
        values = np.where(is_long & ~over, np.where(over, 0, tens) * 10 + ones, values)
    is_number = digits.to_numpy(zero_copy_only=False)
    odd = ~(short.to_numpy(zero_copy_only=False) | is_long)
    for row in np.flatnonzero(odd).tolist():
        if row in reasons.texts:
            continue
        if not is_number[row]:
            reasons.texts[row] = "not an integer"
            continue
        number = int(column[row].as_py())
        if -(2**63) <= number <= MAX_NS:
            values[row] = number
        else:
            reasons.texts[row] = "overflow"
    return np.asarray(values, np.int64)


_FRACTION_DIGITS = {"s": 9, "ms": 6, "us": 3}
"""Digits behind the point of a count in this unit that are whole nanoseconds."""


def unix_float(column: pa.Array, options: TimeOptions, *, unit: str = "s") -> Parsed:
    """Read seconds, milliseconds or microseconds since 1970 with a fraction and a sign.

    Text, integers and decimals are exact to the nanosecond; digits beyond are refused, not rounded.
    A float column holds 53 bits: seconds of today are exact to 238 ns, and are rounded to the
    nearest ns of what is there.

    Args:
        column: text, integers, decimals or floats.
        options: not used.
        unit: a key of `_FRACTION_DIGITS`; default seconds.

    Returns:
        Times; negative counts are before 1970. What does not fit into 64-bit nanoseconds has a
        reason instead.
    """
    column = _without_dictionary(column)
    kind = column.type
    if _is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        digits = _FRACTION_DIGITS[unit]
        return _by_halves(
            column, partial(_decimals, digits=digits), partial(_decimals_one_by_one, digits=digits)
        )
    if not pa.types.is_floating(kind):
        return _unreadable_column(column)
    factor = _UNIT_NS[unit]
    reasons = Reasons(column)
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy()
    finite = np.isfinite(values)
    reasons.add(~finite, "not a finite number")
    values = np.where(finite, values, 0.0)
    beyond = np.abs(values) >= MAX_NS / factor
    reasons.add(beyond, "overflow")
    values = np.where(beyond, 0.0, values)
    whole = np.floor(values)
    # The fraction alone has digits to spare: its product is exact to far below a nanosecond.
    nanos = np.rint((values - whole) * factor).astype(np.int64)
    return reasons.parsed(whole.astype(np.int64) * factor + nanos)


def _decimals(column: pa.Array, digits: int) -> Parsed | None:
    """Read text, integers or decimals exactly, through a decimal with `digits` digits behind the
    point; None if Arrow cannot cast all.

    The unscaled 128-bit value is nanoseconds; its high word must be the sign of the low one, or it
    does not fit into 64 bits.
    """
    try:
        exact = column.cast(pa.decimal128(38, digits))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    reasons = Reasons(column)
    words = np.frombuffer(exact.buffers()[1], "<i8")
    words = words[2 * exact.offset : 2 * (exact.offset + len(exact))].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    fits = (high == np.where(low < 0, -1, 0)) & (low >= MIN_NS)
    reasons.add(~fits & exact.is_valid().to_numpy(zero_copy_only=False), "overflow")
    missing = exact.is_null().to_numpy(zero_copy_only=False)
    return reasons.parsed(np.where(fits & ~missing, low, 0))


def _decimals_one_by_one(column: pa.Array, digits: int) -> Parsed:
    """Read the same with Python decimals: slow, but with a reason for each bad row."""
    reasons = Reasons(column)
    out = np.zeros(len(column), np.int64)
    for row, value in enumerate(column.to_pylist()):
        if value is None:
            continue
        try:
            exact = Decimal(value) * 10**digits
            if not exact.is_finite():
                reasons.texts[row] = "not a finite number"
            elif exact != exact.to_integral_value():
                reasons.texts[row] = "has digits below the nanosecond"
            elif not MIN_NS <= exact <= MAX_NS:
                reasons.texts[row] = "overflow"
            else:
                out[row] = int(exact)
        except InvalidOperation:
            reasons.texts[row] = "not a number"
    return reasons.parsed(out)


# -- timestamps and dates -------------------------------------------------------------------------


def timestamp(column: pa.Array, options: TimeOptions) -> Parsed:
    """Read an Arrow or Spark timestamp or date column.

    A timestamp without a zone is UTC, or local to `options.zone`; a date is its midnight.
    """
    column = _without_dictionary(column)
    reasons = Reasons(column)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return _unreadable_column(column)
    factor = _UNIT_NS[kind.unit]
    values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    beyond = (values > MAX_NS // factor) | (values < -(MAX_NS // factor))
    if beyond.any():
        reasons.add(beyond, "overflow")
        values = np.where(beyond, 0, values)
    time_ns = values if factor == 1 else values * factor
    return reasons.parsed(time_ns if kind.tz else _local(time_ns, None, options.zone))


def dates(column: pa.Array, options: TimeOptions) -> Parsed:
    """A date column, or text `YYYY-MM-DD`: midnight in UTC or in `zone`."""
    column = _without_dictionary(column)
    if pa.types.is_date(column.type):
        return timestamp(column, options)
    if not _is_text(column.type):
        return _unreadable_column(column)
    parsed = iso8601(column, options)
    only = pc.fill_null(pc.match_substring_regex(column, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), True)
    return Parsed(parsed.time_ns, pc.if_else(only, parsed.reason, "not a date: YYYY-MM-DD"))


_YEAR_MONTH_DAY = (
    r"^(?P<year>[0-9]{4})(?:[-/.]?(?P<month>[0-9]{1,2})(?:[-/.]?(?P<day>[0-9]{1,2}))?)?$"
)
"""A year, optionally a month, optionally a day; with `-`, `/`, `.` or nothing between them."""


def year_month_day(column: pa.Array, options: TimeOptions) -> Parsed:
    """Read a year, a month or a day, written big end first: its first moment in UTC or in `zone`.

    `1958`, `1958-03`, `1958/3/1`, `195803` and `19580301` are read, as text or as an integer. Text
    without separators needs two digits for month and day, or it could be read in two ways.

    >>> from tidegate.core.time import format_time
    >>> parsed = year_month_day(pa.array(["1958-03", "19580301", "soon"]), TimeOptions())
    >>> format_time(int(parsed.time_ns[0])), parsed.reason[2].as_py()
    ('1958-03-01T00:00:00.000000000Z', 'not a year, month or day: 1958, 1958-03, 1958-03-31')
    """
    column = _without_dictionary(column)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not _is_text(column.type):
        return _unreadable_column(column)
    column = column.cast(pa.string())
    # "19583" would be read as March 1958: without a separator both digits must be there.
    loose = pc.fill_null(pc.match_substring_regex(column, "^([0-9]{5}|[0-9]{7})$"), False)
    parts = pc.extract_regex(pc.if_else(loose, "", column), _YEAR_MONTH_DAY)

    def part(name: str) -> pa.Array:
        found = pc.fill_null(pc.struct_field(parts, name), "")
        return pc.utf8_lpad(pc.if_else(pc.equal(found, ""), "1", found), 2, "0")

    year = pc.struct_field(parts, "year")
    parsed = iso8601(pc.binary_join_element_wise(year, part("month"), part("day"), "-"), options)
    text = "not a year, month or day: 1958, 1958-03, 1958-03-31"
    unread = pc.and_(parts.is_null(), column.is_valid())
    return Parsed(parsed.time_ns, pc.if_else(unread, text, parsed.reason))


def formatted(column: pa.Array, options: TimeOptions) -> Parsed:
    """Read text in the `format` of the declaration, as `datetime.strptime` does.

    Arrow reads whole columns; `%f` (here up to nine digits) and `%z` are taken off before that.
    Only values that Arrow does not read go through `datetime.strptime`, one by one.

    Args:
        column: a text column.
        options: `format` is required; `zone` is that of values without one.

    Raises:
        ConfigError: there is no format.
    """
    if options.format is None:
        raise ConfigError(
            "eventtime.format", None, 'is required for `date_time`, e.g. "%d.%m.%Y %H:%M:%S"'
        )
    column = _without_dictionary(column)
    if not _is_text(column.type):
        return _unreadable_column(column)
    reasons = Reasons(column)
    text = f"does not match the format {options.format!r}"
    seconds, nanos, unread = _strptime_by_arrow(column.cast(pa.string()), options.format)
    beyond = (seconds > MAX_NS // 10**9 - 1) | (seconds < -(MAX_NS // 10**9) + 1)
    out = np.where(beyond, 0, seconds) * 10**9 + np.where(beyond, 0, nanos)
    naive = np.full(len(column), "%z" not in options.format)
    for row in np.flatnonzero(unread | beyond).tolist():
        value = column[row].as_py()
        if value is None:
            continue
        moment = _read_moment(value, options.format)
        if moment is None:
            reasons.texts[row] = text
            continue
        naive[row] = moment.tzinfo is None
        span = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        ns = (span.days * 86400 + span.seconds) * 10**9 + span.microseconds * 1000
        if MIN_NS <= ns <= MAX_NS:
            out[row] = ns
        else:
            reasons.texts[row] = "overflow"
    return reasons.parsed(_local(out, naive, options.zone))


_END_OF_DAY = re.compile(r"(?<![0-9])24(?=[:.]?00(?![0-9])|$)")
"""The hour of `24:00`, as exports of hours that end then write midnight."""


def _read_moment(value: str, format: str) -> datetime | None:
    """Read one value with `datetime.strptime`; `24:00` is the midnight that ends its day. None if
    it does not match.

    >>> _read_moment("31.12.2023 24:00", "%d.%m.%Y %H:%M")
    datetime.datetime(2024, 1, 1, 0, 0)
    """
    try:
        return datetime.strptime(value, format)
    except ValueError:
        begun = _END_OF_DAY.sub("00", value, count=1)
        if begun == value or "%H" not in format:
            return None
    try:
        moment = datetime.strptime(begun, format)
    except ValueError:
        return None
    return moment + timedelta(days=1) if moment.time() == time.min else None


def _strptime_by_arrow(column: pa.Array, format: str) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
    """Read text by Arrow's strptime, with the fraction and the zone taken off by expressions.

    Returns:
        Seconds since 1970 in UTC (in local time for a format without `%z`), the nanoseconds above
        them, and which rows were not read. Rows that Arrow would read as a day of the next month
        (30 February as 2 March) count as not read.
    """
    nanos = np.zeros(len(column), np.int64)
    east = np.zeros(len(column), np.int64)
    bare = format
    head, zone_sign, behind = format.rpartition("%z")
    if zone_sign and behind and "%" not in behind:  # as in [01/Mar/2024:13:05:00 +0100]
        closed = pc.ends_with(column, behind)
        column = pc.if_else(closed, pc.utf8_slice_codeunits(column, 0, -len(behind)), "")
        bare = head + zone_sign
    if bare.endswith("%z"):
        bare = bare.removesuffix("%z")
        zone = pc.extract_regex(column, _HAS_ZONE)
        east, naive = _zone_of(zone)
        # a row without a zone is left as it is: with a blank it never matches the shorter format
        column = pc.if_else(pa.array(naive), "", pc.replace_substring_regex(column, _HAS_ZONE, ""))
    if "%f" in bare:
        found = pc.extract_regex(
            column, r"^(?P<head>.*[0-9])[.,](?P<digits>[0-9]{1,9})(?P<tail>[^0-9].*)?$"
        )
        fraction = pc.fill_null(pc.struct_field(found, "digits"), "")
        nanos = pc.utf8_rpad(fraction, 9, padding="0").cast(pa.int64()).to_numpy()
        column = pc.binary_join_element_wise(
            pc.struct_field(found, "head"), pc.fill_null(pc.struct_field(found, "tail"), ""), ""
        )
        bare = bare.replace(".%f", "").replace(",%f", "")
    nothing = np.zeros(len(column), np.int64)
    if "%f" in bare or "%z" in bare:  # in a place that is not handled here
        return nothing, nothing, np.ones(len(column), np.bool_)
    made = pc.strptime(column, format=bare, unit="s", error_is_null=True)
    unread = made.is_null().to_numpy(zero_copy_only=False)
    if "%d" in bare or "%e" in bare:
        late = pc.fill_null(pc.match_substring_regex(column, "(29|30|31)"), False)
        wrapped = pc.and_(late, pc.less_equal(pc.fill_null(pc.day(made), 31), 3))
        unread = unread.copy()
        for row in np.flatnonzero(wrapped.to_numpy(zero_copy_only=False)).tolist():
            try:
                datetime.strptime(column[row].as_py(), bare)
            except ValueError:
                unread[row] = True
    seconds = made.cast(pa.int64()).fill_null(0).to_numpy()
    return np.where(unread, 0, seconds - east), np.where(unread, 0, nanos), unread


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The zero of nanoseconds."""


# -- seconds and what is above them ---------------------------------------------------------------


def split_seconds(column: pa.Array, options: TimeOptions, *, digits: int) -> Parsed:
    """Read a stamp in two integers: seconds since 1970, and the micro- or nanoseconds above them.

    Args:
        column: Text, as the declaration of two columns joins them: a blank between the numbers.
        options: Not used.
        digits: 6 for microseconds, 9 for nanoseconds; the most digits of the second number.

    >>> split_seconds(pa.array(["1709251200 5"]), TimeOptions(), digits=9).time_ns
    array([1709251200000000005])
    """
    column = _without_dictionary(column)
    if not _is_text(column.type):
        return _unreadable_column(column)
    reasons = Reasons(column)
    expected = rf"^(?P<seconds>[0-9]{{1,10}}) +(?P<above>[0-9]{{1,{digits}}})$"
    parts = pc.extract_regex(column, expected)
    unread = parts.is_null().to_numpy(zero_copy_only=False)
    reasons.add(unread, f"not seconds, a blank and a number below 10^{digits}")
    seconds, above = (
        pc.fill_null(pc.struct_field(parts, name), "0").cast(pa.int64()).to_numpy()
        for name in ("seconds", "above")
    )
    beyond = seconds >= MAX_NS // 10**9
    reasons.add(beyond, "overflow")
    return reasons.parsed(np.where(beyond, 0, seconds) * 10**9 + above * 10 ** (9 - digits))


# -- ISO 8601 -------------------------------------------------------------------------------------

_ISO = (
    r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2})(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
    r"(?:[.,](?P<fraction>[0-9]{1,9}))?)?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2})?)?$"
)
"""A date, optionally a time of day (from hours alone down to nine digits of a second), optionally a
zone."""
_HAS_ZONE = r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2})$"
"""A zone at the end of a value."""
_LAST = divmod(MAX_NS, 10**9)
_FIRST = divmod(MIN_NS, 10**9)
"""The ends of 64-bit nanoseconds as whole seconds and the nanoseconds above them."""


def iso8601(column: pa.Array, options: TimeOptions) -> Parsed:
    """`2026-01-01T00:00:00.123456789+01:00` and its shorter forms; without a zone it is UTC or
    local to `zone`.

    Arrow's own cast is tried first: it is many times as fast, and reads a part of what is allowed
    here. What it does not read goes through the regular expression.
    """
    column = _without_dictionary(column)
    if not _is_text(column.type):
        return _unreadable_column(column)
    return _by_halves(
        column,
        partial(_iso_by_arrow, zone=options.zone),
        partial(_iso_by_expression, zone=options.zone),
    )


def _iso_by_arrow(column: pa.Array, zone: str | None) -> Parsed | None:
    """Read ISO 8601 with Arrow's cast; None if any value is not in the form of the first one.

    Arrow needs to be told whether values have a zone; the first value that is not null decides.
    """
    first = next((value.as_py() for value in column if value.is_valid), None)
    if first is None:
        return Reasons(column).parsed(np.zeros(len(column), np.int64))
    # A zone begins behind the time of day, so the hyphens of a date are none.
    zoned = len(first) > 10 and any(sign in first[10:] for sign in "Zz+-")
    try:
        made = column.cast(pa.timestamp("ns", "UTC" if zoned else None))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    time_ns = made.cast(pa.int64()).fill_null(0).to_numpy()
    if len(time_ns) and int(time_ns.min()) < MIN_NS:
        return None  # the lowest int64 means "unset" here
    return Reasons(column).parsed(time_ns if zoned else _local(time_ns, None, zone))


def _iso_by_expression(column: pa.Array, zone: str | None) -> Parsed:
    """Read ISO 8601 with a regular expression and calendar arithmetic; every bad row gets its
    reason.
    Days of a month are checked by the distance to the next month, so that leap years need no rule
    of their own."""
    rows = len(column)
    reason = np.full(rows, None, object)
    reason[column.is_null().to_numpy(zero_copy_only=False)] = NULL
    parts = pc.extract_regex(column, _ISO)
    unread = parts.is_null().to_numpy(zero_copy_only=False)
    reason[unread & (reason == None)] = "not ISO 8601"  # noqa: E711  (elementwise)

    def number(name: str, otherwise: str = "0") -> NDArray[Any]:
        text = pc.fill_null(pc.struct_field(parts, name), otherwise)
        text = pc.if_else(pc.equal(text, ""), otherwise, text)
        return np.asarray(text.cast(pa.int64()).to_numpy())

    year, month, day = number("year", "1970"), number("month", "1"), number("day", "1")
    hour, minute, second = number("hour"), number("minute"), number("second")
    fraction = pc.fill_null(pc.struct_field(parts, "fraction"), "")
    nanos = pc.utf8_rpad(fraction, 9, padding="0").cast(pa.int64()).to_numpy()
    east, naive = _zone_of(parts)

    midnight = (hour == 24) & (minute == 0) & (second == 0) & (nanos == 0)  # that ends the day
    wrong = (month < 1) | (month > 12) | (day < 1) | (minute > 59) | (second > 59)
    wrong |= (hour > 23) & ~midnight
    month_index = (year - 1970) * 12 + np.where(wrong, 1, month) - 1
    first = month_index.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    following = (month_index + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    wrong |= day > following - first
    reason[wrong & (reason == None)] = "not a date or time of day"  # noqa: E711  (elementwise)

    days = np.where(wrong, 0, first + day - 1)
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - east
    beyond = (seconds > _LAST[0]) | ((seconds == _LAST[0]) & (nanos > _LAST[1]))
    beyond |= (seconds < _FIRST[0]) | ((seconds == _FIRST[0]) & (nanos < _FIRST[1]))
    reason[beyond & (reason == None)] = "overflow"  # noqa: E711  (elementwise)
    time_ns = np.where(beyond, 0, seconds) * 10**9 + nanos
    return Parsed(_local(time_ns, naive, zone), pa.array(reason, pa.string()))


def _zone_of(parts: pa.StructArray) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Seconds east of UTC, and which rows name no zone."""
    zone = pc.fill_null(pc.struct_field(parts, "zone"), "")
    digits = pc.replace_substring_regex(zone, "[^0-9]", "")
    digits = pc.utf8_rpad(digits, 4, padding="0").cast(pa.int64()).to_numpy()
    sign = np.where(pc.starts_with(zone, "-").to_numpy(zero_copy_only=False), -1, 1)
    naive = pc.equal(zone, "").to_numpy(zero_copy_only=False)
    return np.asarray(sign * (digits // 100 * 3600 + digits % 100 * 60)), naive


# -- the table ------------------------------------------------------------------------------------


def _unix(unit: str, word: str) -> tuple[str, _Type]:
    """A line of the table for a count since 1970."""
    name = f"unixtimestamp_{unit}"
    parse = partial(unix_timestamp, name=name, unit=word, factor=_UNIT_NS[unit])
    return name, _Type(
        parse, lambda k: pa.types.is_integer(k) or _is_whole_decimal(k) or _is_text(k), _WHOLE
    )


def _is_whole_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a decimal without a fraction, as Spark reads unsigned 64-bit integers;
    shorter ones are 32-bit integers at most."""
    return bool(pa.types.is_decimal(kind) and kind.scale == 0 and kind.precision >= 19)


def _reads_numbers(kind: pa.DataType) -> bool:
    """Whether a column type holds numbers, or text that may."""
    return bool(
        pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_integer(kind)
        or _is_text(kind)
    )


_WHOLE = "integers and text of digits"

BUILT_IN: dict[str, _Type] = dict(
    [
        _unix("s", "seconds"),
        _unix("ms", "milliseconds"),
        _unix("us", "microseconds"),
        _unix("ns", "nanoseconds"),
        *(
            (
                f"unixtimestamp_{unit}_float",
                _Type(partial(unix_float, unit=unit), _reads_numbers, "numbers and text"),
            )
            for unit in ("s", "ms", "us")
        ),
        *(
            (name, _Type(partial(split_seconds, digits=digits), _is_text, "two integer columns"))
            for name, digits in (("unixtimestamp_s_us", 6), ("unixtimestamp_s_ns", 9))
        ),
        ("iso8601", _Type(iso8601, _is_text, "text")),
        (
            "timestamp",
            _Type(
                timestamp,
                lambda k: pa.types.is_timestamp(k) or pa.types.is_date(k),
                "timestamps and dates",
            ),
        ),
        ("date", _Type(dates, lambda k: pa.types.is_date(k) or _is_text(k), "dates and text")),
        ("date_time", _Type(formatted, _is_text, "text in the given format")),
        (
            "year_month_day",
            _Type(
                year_month_day, lambda k: pa.types.is_integer(k) or _is_text(k), "integers and text"
            ),
        ),
    ]
)
"""The types there are: name, parser, and the column types it reads."""
