"""Text to values as Spark reads them from CSV and JSON: the same text must give the same value
through both gates.

A whole column is cast by Arrow if it holds nothing that Arrow and Java read differently. Otherwise
every distinct text is read on its own, by Java's rules: `+5`, `1d` and `0x1p3` are numbers there.

Times of day without a date (`10:11:12`) are today's, as Spark has it: the only place where a clock
is read.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.arrow import concat

__all__ = ["column_of", "is_supported", "is_utf8", "parse_text", "rows_together", "text_to_column"]


def is_supported(kind: pa.DataType) -> bool:
    """Whether text can be read as this type here as Spark does it."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_signed_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_decimal128(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.tz in (None, "UTC", "Etc/UTC"))
    )


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text in UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def text_to_column(texts: pa.StringArray, kind: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
    """Return texts as values of a type, null where one does not fit, and which do not; None if all
    do. Null stays null.

    >>> text_to_column(pa.array(["1", "+2", "x", None]), pa.int32())[0].to_pylist()
    [1, 2, None, None]
    """
    if pa.types.is_string(kind):
        return texts, None
    quick = _cast_by_arrow(texts, kind)
    if quick is not None:
        return quick, None
    encoded = texts.dictionary_encode()
    values = [parse_text(text, kind) for text in encoded.dictionary.to_pylist()]
    column = column_of(values, kind).take(encoded.indices)
    bad = pc.and_(texts.is_valid(), column.is_null()).to_numpy(zero_copy_only=False)
    return column, bad if bad.any() else None


def parse_text(text: str, kind: pa.DataType) -> Any:
    """Return one text as a value that Arrow takes for this type; None if it is none.

    >>> parse_text("0x1p3", pa.float64()), parse_text("1e3", pa.int64())
    (8.0, None)
    """
    types = pa.types
    if types.is_string(kind):
        return text
    if types.is_integer(kind):
        return _integer(text, kind.bit_width)
    if types.is_floating(kind):
        return _float(text)
    if types.is_boolean(kind):
        return {"TRUE": True, "FALSE": False}.get(text.upper())
    if types.is_decimal(kind):
        return _decimal(text.replace(",", ""), kind)
    if types.is_date(kind):
        return _date(text)
    return _timestamp(text, kind.tz is not None)


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values of `parse_text` as a column; of lists and dicts of them for nested types."""
    if pa.types.is_nested(kind):
        return pa.array(values, _whole_numbers(kind)).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_float32(kind):
        with np.errstate(over="ignore"):
            return pa.array(
                [None if value is None else np.float32(value) for value in values], kind
            )
    return pa.array(values, kind)


def _whole_numbers(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with whole numbers in place of times."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_whole_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_whole_numbers(kind.value_type)))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


# -- whole columns ---------------------------------------------------------------------------------


def _signs(allowed: str) -> np.ndarray:
    """Return a table of bytes: true for those that are not allowed."""
    table = np.ones(256, np.bool_)
    table[list(allowed.encode())] = False
    return table


_NOT_IN_INTEGERS = _signs("0123456789-")
_NOT_IN_FLOATS = _signs("0123456789-.eE")
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_PLAIN_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def _cast_by_arrow(texts: pa.StringArray, kind: pa.DataType) -> pa.Array | None:
    """Return texts as values by Arrow's own cast; None if some may mean something else in Java."""
    types = pa.types
    try:
        if types.is_integer(kind):
            return None if _has_any(texts, _NOT_IN_INTEGERS) else texts.cast(kind)
        if types.is_floating(kind):
            return None if _has_any(texts, _NOT_IN_FLOATS) else texts.cast(kind)
        if types.is_date32(kind) and _all_match(texts, _PLAIN_DATE):
            return texts.cast(kind)
        if types.is_timestamp(kind):
            if _all_match(texts, _PLAIN_TIME + "$"):
                return texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
            if kind.tz is not None and _all_match(texts, _PLAIN_TIME + "Z$"):
                return texts.cast(pa.timestamp("us", "UTC")).cast(kind)
    except pa.ArrowInvalid:
        pass
    return None


def _has_any(texts: pa.StringArray, signs: np.ndarray) -> bool:
    """Whether a column has one of these bytes anywhere."""
    buffers = texts.buffers()
    if len(texts) == 0 or buffers[2] is None:
        return False
    offsets = np.frombuffer(buffers[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return bool(signs[np.frombuffer(buffers[2], np.uint8)[offsets[0] : offsets[-1]]].any())


def _all_match(texts: pa.StringArray, pattern: str) -> bool:
    """Whether every text that is not null matches a pattern."""
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


# -- one text --------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ANY_DIGITS = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
"""A decimal number: Java takes the digits of any script in them, but not in floating numbers."""
_HEX = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_MOST_SCALE = 2**31 - 1
"""The largest exponent of a decimal number in Java."""
_SPACES = "".join(map(chr, range(33)))
_NAMED = {
    "NaN": float("nan"), "+NaN": float("nan"), "-NaN": float("nan"),
    "Infinity": float("inf"), "+Infinity": float("inf"), "-Infinity": float("-inf"),
}  # fmt: skip


def _integer(text: str, bits: int) -> int | None:
    if not _INTEGER.fullmatch(text) or len(text) > 1000 or max(text) > "\uffff":
        return None
    value = int(text)
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def _float(text: str) -> float | None:
    if text in ("Inf", "-Inf"):
        return float(text)
    plain = text.strip(_SPACES)
    if plain in _NAMED:
        return _NAMED[plain]
    if _HEX.fullmatch(plain):
        try:
            return float.fromhex(plain.rstrip("fFdD") if plain[-1] in "fFdD" else plain)
        except OverflowError:
            return float("-inf" if plain[0] == "-" else "inf")
    if plain[-1:] in tuple("fFdD"):
        plain = plain[:-1]
    return float(plain) if _NUMBER.fullmatch(plain) else None


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    if not _ANY_DIGITS.fullmatch(text) or len(text) > 1000 or max(text) > "\uffff":
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None  # an exponent that Python does not take
    if not -_MOST_SCALE <= value.as_tuple().exponent <= _MOST_SCALE:  # type: ignore[operator]
        return None
    if value.adjusted() > kind.precision:
        return None if value else Decimal(0)
    if value.adjusted() < -2 * 38:
        return Decimal(0).scaleb(-kind.scale)
    with localcontext() as context:
        context.prec = 1200
        value = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
        return value if abs(value).scaleb(kind.scale) < Decimal(10) ** kind.precision else None


# -- dates and times -------------------------------------------------------------------------------

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MOST_DAYS = 2**31 - 1


def _epoch_day(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of any year of the Gregorian calendar; None if there is none."""
    cycles, inside = divmod(year - 2000, 400)
    try:
        return date(2000 + inside, month, day).toordinal() - _EPOCH_DAY + cycles * 146_097
    except ValueError:
        return None


def _trimmed(text: str) -> str:
    """Return a text without white space and control characters at its ends."""
    return text.strip(_SPACES + "\x7f")


_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)


def _date(text: str) -> int | None:
    found = _DATE.fullmatch(_trimmed(text))
    if found is None:
        return None
    sign, year, month, day = found.groups()
    days = _epoch_day(-int(year) if sign == "-" else int(year), int(month or 1), int(day or 1))
    return days if days is not None and abs(days) <= _MOST_DAYS else None


_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(\.[0-9]*)?([^0-9.].*|\..+)?)?)?"
_STAMP = re.compile(
    rf"([+-]?)([0-9]{{4,7}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.DOTALL
)
_TIME = re.compile(
    r"T?([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(\.[0-9]*)?([^0-9.].*|\..+)?)?", re.DOTALL
)


def _timestamp(text: str, zoned: bool) -> int | None:
    """Return microseconds since 1970, UTC where the text names no zone."""
    plain = _trimmed(text)
    found = _STAMP.fullmatch(plain)
    if found is not None:
        sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
        years = -int(year) if sign == "-" else int(year)
        days = _epoch_day(years, int(month or 1), int(day or 1))
    else:
        found = _TIME.fullmatch(plain) if zoned else None
        if found is None:
            return None
        hour, minute, second, fraction, zone = found.groups()
        days = datetime.now(UTC).date().toordinal() - _EPOCH_DAY
        years = 2000
    clock = [int(part or 0) for part in (hour, minute, second)]
    if days is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    micros = int(f"{(fraction or '.')[1:7]:0<6}")
    total = ((days * 24 + clock[0]) * 60 + clock[1]) * 60 + clock[2]
    if zone:
        if not zoned:
            return None
        offset = _offset(zone.strip(" "), total, years)
        if offset is None:
            return None
        total -= offset
    value = total * 1_000_000 + micros
    return value if -(2**63) <= value < 2**63 else None


_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?|:([0-9]))?")
_SHORT = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""What Java takes three letters for."""


_NOT_JAVA = re.compile(r"(?:localtime|posixrules|Factory|ROC)$|(?:posix|right)/")
"""Names of files beside the time zones of this machine that Java has no zones for."""


def _offset(zone: str, local: int, year: int) -> int | None:
    """Return the seconds that a zone is ahead of UTC at a local time; None if there is none."""
    zone = _SHORT.get(zone, zone)
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    fixed = _FIXED.fullmatch(zone)
    if fixed is not None:
        sign, hours, minutes, seconds, one = fixed.groups()
        parts = int(hours), int(minutes or one or 0), int(seconds or 0)
        ahead = parts[0] * 3600 + parts[1] * 60 + parts[2]
        if parts[1] > 59 or parts[2] > 59 or ahead > 18 * 3600:
            return None
        return -ahead if sign == "-" else ahead
    if _NOT_JAVA.match(zone):
        return None
    try:
        named = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return None
    if not 2 <= year <= 9998:
        return None
    when = datetime(1970, 1, 1) + timedelta(seconds=local)
    ahead_by = when.replace(tzinfo=named).utcoffset()
    return None if ahead_by is None else int(ahead_by.total_seconds())


def rows_together(parts: list[pa.RecordBatch], at: np.ndarray) -> pa.RecordBatch:
    """Return rows of several batches as one, in the order that `at` says: the place of each."""
    joined = concat(parts)
    assert joined is not None
    return joined.take(pa.array(np.argsort(at, kind="stable")))
