"""Which columns can be read as event time, how, and how sure that is.

Every guess is checked by reading the column with the event-time type itself, so a suggested type
reads exactly what a run will read.

    high     the values and the name leave no other reading
    medium   the most likely reading; it is used, and said to be checked
    low      two readings are equally good, or something is missing (a year, a unit): it is told,
             and never used unless the user names the column and its type

Numbers are times if their name says so, or if they fall between 1990 and 2100 in exactly one unit
and their name does not speak of an identifier: a ten-digit customer number is no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.outcomes import Int64s
from tidegate.eventtime import Decoder, EventtimeTypes, TimeColumn, TimeOptions
from tidegate.profile.time_formats import DateLayout, layouts_of, time_of_day, without_year

__all__ = [
    "Confidence",
    "TimeCandidate",
    "clocks_agree",
    "name_words",
    "read_times",
    "recording_clocks",
    "time_candidates",
    "word_set",
]

Confidence = Literal["high", "medium", "low"]
"""How sure a guess is; see the head of this module."""

EARLIEST_NS = 631_152_000 * 10**9
"""1990-01-01. A number that would be a time before this needs a name that says it is a time."""
LATEST_NS = 4_102_444_800 * 10**9
"""2100-01-01. A number that would be a time after this is in another unit."""
FAR_AHEAD_NS = 2_524_608_000 * 10**9
"""2050-01-01. Years of two digits that would be after this are of the last century."""
OLDEST_NS = -2_208_988_800 * 10**9
"""1900-01-01. Counts in a column named like a time may go back this far."""

FROM_A_START_NS = 10**8 * 10**9
"""About three years. A count that stays below it was counted from a start of its own."""

SAMPLE_ROWS = 20_000
"""Rows, from all over the table, that candidates are judged by. Fewer may miss the one value that
tells day and month apart; more take time on wide tables."""

UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds per unit of a count."""

UNIT_WORDS = {
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "ms": "ms", "msec": "ms",
    "milli": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "us": "us",
    "usec": "us", "micros": "us", "microsecond": "us", "microseconds": "us", "ns": "ns",
    "nsec": "ns", "nanos": "ns", "nanosecond": "ns", "nanoseconds": "ns",
}  # fmt: skip
"""Words in the name of a column that tell the unit of its numbers."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


TIME_WORDS = word_set(
    "time times timestamp timestamps ts t datetime date dates day stamp epoch utc when at "
    "eventtime zeit datum uhrzeit zeitstempel fecha hora heure horodatage clock created occurred "
    "observed recorded measured posix unixtime unix period month year sec secs seconds boottime "
    "uptime elapsed dt dttm"
)
"""Words in a name that say: this is a time."""

EVENT_WORDS = word_set(
    "event occurred occurrence observed observation measured measurement recorded sample sampled "
    "created creation start started begin began origin pickup departure header trade"
)
"""Words that say: this is when it happened."""

AFTER_WORDS = word_set(
    "updated update modified closed close resolved resolution due end ended finish finished stop "
    "expiry expires expiration birth born dob received receive recv arrival arrived logged log "
    "ingest ingested ingestion processed server publish published deleted last dropoff generated "
    "indexed inserted loaded settlement action next offset zone tz timezone boot response until "
    "bis ende fin"
)
"""Words that say: this is when something else happened, mostly later."""

ID_WORDS = word_set(
    "id ids key uid uuid guid code number num no phone zip postal account ean isbn barcode mmsi "
    "imo imei serial seq sequence index count size bytes total sum amount price volume cost "
    "lat lon long lng latitude longitude position hash version offset population value values"
)
"""Words that say: this number is no time."""


@dataclass(frozen=True)
class TimeCandidate:
    """A column, or several that are joined, that can be read as a time.

    Attributes:
        columns: The columns; several are a date and a time of day, or year, month and day.
        type: The event-time type that reads it.
        readable: Share of the sampled rows that it reads.
        first_ns, last_ns: The earliest and latest of these times.
        format: For type `date_time`.
        zone: The zone of values without one; None: UTC.
        confidence: How sure the reading is.
        reason: Why it is read so, or why it is not sure, as a half sentence.
        has_time: Whether there is a time of day, not only a date.
        coarse: How far from a day the reading is: 0 for days and finer, 1 for months, 2 for years.
        as_text: Columns that the schema of a text format must leave as text.
        choices: For a reading that is not sure: options that would settle it, each a name and a
            value, as ("format", "%d/%m/%Y").
        zoned: Whether every value says its zone, or counts from a moment that is the same
            everywhere.
    """

    columns: tuple[str, ...]
    type: str
    readable: float
    first_ns: int
    last_ns: int
    format: str | None = None
    zone: str | None = None
    confidence: Confidence = "high"
    reason: str = ""
    has_time: bool = True
    coarse: int = 0
    as_text: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    zoned: bool = True

    @property
    def settled_by(self) -> str:
        """The options of the command line that settle what is not sure; empty if none does.

        >>> doubt = TimeCandidate(("a day",), "date", 1.0, 0, 0, choices=(("format", "%d/%m"),))
        >>> print(doubt.settled_by)
        --time "a day" --format "%d/%m"
        """
        named = " ".join(f"--time {_shell_word(name)}" for name in self.columns)
        choices = " or ".join(f"--{name} {_shell_word(value)}" for name, value in self.choices)
        return f"{named} {choices}" if choices else ""

    @property
    def column(self) -> str:
        """The column; several with a plus between them."""
        return " + ".join(self.columns)

    @property
    def declaration(self) -> TimeColumn:
        """The declaration of event time that a pipeline needs."""
        return TimeColumn(self.columns, self.type, zone=self.zone, format=self.format)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "column": self.columns[0] if len(self.columns) == 1 else list(self.columns),
            "type": self.type, "format": self.format, "zone": self.zone,
            "readable": round(self.readable, 6), "confidence": self.confidence,
            "reason": self.reason, "first_ns": self.first_ns, "last_ns": self.last_ns,
        }  # fmt: skip


def _shell_word(text: str) -> str:
    """Return text as one word of a command line."""
    plain = text.replace("_", "").replace("/", "").replace(".", "").replace("-", "")
    return text if plain.isalnum() else json.dumps(text, ensure_ascii=False)


def time_candidates(
    rows: pa.Table,
    text: Mapping[str, pa.ChunkedArray] | None = None,
    units: Mapping[str, str] | None = None,
) -> list[TimeCandidate]:
    """Return the columns that may be the event time, the most likely first.

    Args:
        rows: The data.
        text: Columns of numbers as the text they were, where a file is text.
        units: Units of columns, where they do not stand in their names.

    >>> from tidegate.core.time import format_time
    >>> sample = pa.table({"n": [1, 2], "at": [1_767_225_600_000, 1_767_225_600_100]})
    >>> [(c.column, c.type, format_time(c.first_ns)) for c in time_candidates(sample)]
    [('at', 'unixtimestamp_ms', '2026-01-01T00:00:00.000000000Z')]
    """
    at = pa.array(np.linspace(0, rows.num_rows - 1, min(rows.num_rows, SAMPLE_ROWS)).astype(int))
    if rows.num_rows == 0:
        return []
    sample = rows.take(at)
    written = {name: column.take(at) for name, column in (text or {}).items()}
    found: list[TimeCandidate] = []
    clocks: list[tuple[str, str]] = []
    for name, column in _plain_columns(sample):
        one = written.get(name)
        told = _with_unit(name, (units or {}).get(name, ""))
        made = _candidates_of(told, column, None if one is None else _flat(one))
        if told != name:
            made = [_renamed(each, name) for each in made]
        found += made
        unsure = all(each.confidence == "low" for each in made)
        if unsure and (format := _clock_format(name, column)) is not None:
            clocks.append((name, format))
    stamps = _stamp_pairs(sample) + _log_pairs(sample)
    parts = {name for each in stamps for name in each.columns}
    found = [each for each in found if each.column not in parts] + stamps
    found += _split_candidates(sample, found, clocks) + _calendar_parts(sample)
    if not found:
        found = [_clock_alone(name) for name, format in clocks[:1] if ":" in format or
                 (format != "%H" and _own_words(name) & TIME_WORDS)]  # fmt: skip
    unread = {name for name in sample.column_names if _own_words(name) & BELOW_A_YEAR}
    loose = {name for name in sample.column_names if _loose_clock(name, sample[name])}
    return _doubted(sorted(found, key=_likelihood), unread, loose)


def _with_unit(name: str, unit: str) -> str:
    """Return the name of a column with its unit, if that is one of time.

    >>> _with_unit("Time", "[ms]"), _with_unit("Temp", "C")
    ('Time ms', 'Temp')
    """
    words = name_words(unit)
    return f"{name} {words[0]}" if len(words) == 1 and words[0] in UNIT_WORDS else name


def _renamed(candidate: TimeCandidate, name: str) -> TimeCandidate:
    """Return a candidate of one column under the name of that column."""
    return replace(
        candidate, columns=(name,), as_text=tuple(name for _ in candidate.as_text)
    )  # fmt: skip


BELOW_A_YEAR = word_set("month quarter qtr week wk doy season")
"""Words in the names of columns that say more than a year does, and that no type reads."""


def _loose_clock(name: str, column: Any) -> bool:
    """Return whether a column of numbers may be times of day without leading zeros (815), which no
    format reads."""
    words = name_words(name)
    if not pa.types.is_integer(column.type) or not words or words[-1] not in ("time", "hhmm"):
        return False
    values = column.drop_null().to_numpy()
    if len(values) == 0 or values.min() < 0 or values.max() > 2359:
        return False
    return bool((values % 100 < 60).all()) and bool((values >= 100).any())


def _doubted(found: list[TimeCandidate], unread: set[str], loose: set[str]) -> list[TimeCandidate]:
    """Lower the confidence of the first candidate if a second one is just as likely and reads other
    times, as `creationDate` beside `startDate`, or if it is a year beside a quarter.

    Args:
        found: The candidates, the most likely first.
        unread: Columns that tell the time within a year, and are not read.
        loose: Columns that may be times of day, and are not read.
    """
    if not found or found[0].confidence != "high":
        return found
    first = found[0]
    if first.coarse == 2 and unread:
        reason = f"{first.reason}; {', '.join(sorted(unread))} is not read"
        return [replace(first, confidence="medium", reason=reason), *found[1:]]
    if not first.has_time and not first.coarse and (left := loose - set(first.columns)):
        reason = (
            f"{first.reason}; {', '.join(sorted(left))} may be the time of day, and is not read"
        )
        return [replace(first, confidence="medium", reason=reason), *found[1:]]
    if len(found) < 2:
        return found
    second = found[1]
    other = (first.first_ns, first.last_ns) != (second.first_ns, second.last_ns)
    if other and _likelihood(first) == _likelihood(second):
        reason = f"{first.reason}; {second.column} may be meant as well"
        return [replace(first, confidence="medium", reason=reason), *found[1:]]
    return found


def read_times(time: TimeCandidate | TimeColumn, rows: pa.Table) -> tuple[Int64s, Any]:
    """Return the time in ns of every row, and which rows have one."""
    declared = time.declaration if isinstance(time, TimeCandidate) else time
    decoder = Decoder((declared,))
    parts = [decoder.read_times(batch) for batch in rows.combine_chunks().to_batches()]
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    times = np.concatenate([part.time_ns for part in parts])
    return times, np.concatenate([part.ok for part in parts])


def recording_clocks(sample: pa.Table) -> list[TimeCandidate]:
    """Return the clocks of an MCAP recording or a bag, best first. They are always nanoseconds;
    their values are not checked, because simulated time may begin at zero."""
    what = {
        "header_stamp_ns": "the stamp in the header of the messages",
        "publish_time_ns": "when messages were published",
        "log_time_ns": "when messages were recorded",
    }
    found = []
    for column, reason in what.items():
        times = sample[column].drop_null().to_numpy()
        share = len(times) / max(sample.num_rows, 1)
        if share > 0.5:
            low, high = int(times.min()), int(times.max())
            found.append(TimeCandidate((column,), "unixtimestamp_ns", share, low, high,
                                       reason=reason))  # fmt: skip
    return found


CLOCKS_AGREE_NS = 10**9
"""Median of the time from stamp to log below which both clocks count as one: networks and drivers
take less than a second, and clocks that are not set to each other are mostly further apart."""


def clocks_agree(stamps: Any, logged: Any) -> bool:
    """Return whether stamps of headers and log times are of clocks that are set to each other."""
    apart = pc.drop_null(pc.abs(pc.subtract(stamps, logged)))
    return len(apart) > 0 and float(np.median(apart.to_numpy())) < CLOCKS_AGREE_NS


# -- columns and names ----------------------------------------------------------------------------


def name_words(name: str) -> list[str]:
    """Return the words of a column name, in lower case.

    >>> name_words("properties.eventTime_UTC")
    ['properties', 'event', 'time', 'utc']
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^a-z0-9à-ÿ]+", spaced.lower()) if word]


def _flat(column: Any) -> pa.Array:
    """Return a column as one array without chunks and without a dictionary."""
    made = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(made, pa.ChunkedArray):
        made = made.chunk(0) if made.num_chunks else pa.array([], made.type)
    return made.dictionary_decode() if pa.types.is_dictionary(made.type) else made


def _plain_columns(table: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Yield all columns that hold plain values; fields of structs by their path."""
    for field in table.schema:
        yield from _plain_in(field.name, _flat(table[field.name]))


def _plain_in(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield a column, or the fields of a struct."""
    if pa.types.is_struct(column.type):
        for field in column.type:
            yield from _plain_in(f"{name}.{field.name}", pc.struct_field(column, field.name))
    elif not pa.types.is_nested(column.type):
        yield name, column


def _own_words(name: str) -> set[str]:
    """Return the words of the last part of a path, and its neighbour if that is a stamp's field."""
    *outer, last = name.removesuffix(".$numberLong").split(".")  # as MongoDB writes numbers
    words = set(name_words(last))
    if outer and words <= {*SECOND_WORDS, *ABOVE_WORDS, "value"}:
        last = outer.pop()
        words |= set(name_words(last))
    if outer and words & {"stamp"} and outer[-1].lower() == "header":
        words.add("header")
    if last.lower().endswith(("time", "date", "timestamp")) and not words & TIME_WORDS:
        words.add("time")  # "eventtime", "tradedate"
    return words


def _likelihood(candidate: TimeCandidate) -> tuple[int, int]:
    """The order of candidates: sure ones first, then by what their names say and how fine the
    reading is, in one column rather than in two; else as in the table."""
    rank = {"high": 0, "medium": 1, "low": 2}[candidate.confidence]
    whole = 3 * candidate.has_time - 2 * (len(candidate.columns) > 1) - 3 * candidate.coarse
    if candidate.type.startswith("unix") and 0 <= candidate.last_ns < FROM_A_START_NS:
        whole -= 2
    return rank // 2, 2 * rank - 2 * name_score(candidate.columns) - whole


def name_score(columns: tuple[str, ...]) -> int:
    """Return how much the names of columns speak for the time of the event."""
    best = -9
    for name in columns:
        words = _own_words(name)
        score = 2 * bool(words & TIME_WORDS) + 2 * bool(words & EVENT_WORDS)
        score += len(words) == 1 and bool(words & TIME_WORDS)
        score -= 4 * bool(words & AFTER_WORDS) + bool(words & ID_WORDS)
        best = max(best, score)
    return best


# -- one column -----------------------------------------------------------------------------------


def _candidates_of(name: str, column: pa.Array, written: pa.Array | None) -> list[TimeCandidate]:
    """Return the readings of one column as a time."""
    kind = column.type
    if len(column) == column.null_count:
        return []
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        made = _made(name, column, "timestamp", reason="a column of times")
        clock = pa.types.is_timestamp(kind)
        return [] if made is None else [replace(made, has_time=clock)]
    if pa.types.is_integer(kind):
        if (format := _calendar_digits(column)) is not None:
            return _digits_as_text(name, column if written is None else written, format, written)
        return _integer_times(name, column, column)
    if pa.types.is_decimal(kind) and kind.scale == 0:
        with suppress(pa.ArrowInvalid):  # as Spark reads unsigned integers
            return _integer_times(name, column.cast(pa.int64()), column)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _float_times(name, column, written)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(name, column)
    return []


def _made(
    name: str,
    column: pa.Array,
    type: str,
    *,
    options: TimeOptions = TimeOptions(),  # noqa: B008  (immutable)
    bounds: tuple[int, int] | None = None,
    **more: Any,
) -> TimeCandidate | None:
    """Read a column and return a candidate, or None if it reads less than half of the values.

    Args:
        name: The column.
        column: Its values.
        type: The event-time type.
        options: Format and zone.
        bounds: Earliest and latest time (ns) that counts as read; None: any.
        **more: Further fields of the candidate.
    """
    parsed = EventtimeTypes().parse(type, column, options)
    good = parsed.ok
    if bounds is not None:
        good = good & (parsed.time_ns >= bounds[0]) & (parsed.time_ns < bounds[1])
    there = len(column) - column.null_count
    read = int(np.count_nonzero(good))
    if there == 0 or read <= there / 2:
        return None
    times = parsed.time_ns[good]
    made = TimeCandidate(
        (name,), type, read / len(column), int(times.min()), int(times.max()), options.format,
        options.zone, **more,
    )  # fmt: skip
    if read / there < 0.95 and made.confidence == "high":
        made = replace(made, confidence="medium")
    words = _own_words(name)
    if made.confidence == "high" and words & {"birth", "born", "dob", "expiry", "expires", "due"}:
        made = replace(made, confidence="medium", reason=f"{made.reason}; the name speaks of "
                       "another time than that of the event")  # fmt: skip
    return made


CALENDAR_DIGITS = ((10, "%Y%m%d%H"), (12, "%Y%m%d%H%M"), (14, "%Y%m%d%H%M%S"))
"""Whole numbers that spell a date and a time of day, by their number of digits."""


def _calendar_digits(column: pa.Array) -> str | None:
    """Return the format of numbers such as 2024030112, if every one of them spells a time.

    Years begin with 1850: below that ten digits are seconds since 1970 of this century, which spell
    no date, except by chance.

    >>> [_calendar_digits(pa.array([number])) for number in (2024030123, 1709251200)]
    ['%Y%m%d%H', None]
    """
    values = column.drop_null().to_numpy()
    for digits, format in CALENDAR_DIGITS:
        scale = 10 ** (digits - 4)
        if values.min() < 1850 * scale or values.max() >= 2150 * scale:
            continue
        below = [(1, 12), (1, 31), (0, 23), (0, 59), (0, 59)][: (digits - 4) // 2]
        for place, (low, high) in enumerate(below, 1):
            part = values // 10 ** (digits - 4 - 2 * place) % 100
            if part.min() < low or part.max() > high:
                return None
        return format
    return None


def _digits_as_text(
    name: str, column: pa.Array, format: str, written: pa.Array | None
) -> list[TimeCandidate]:
    """Return the reading of numbers that spell a time; one that cannot be used if a run would get
    them as numbers, which `date_time` does not read."""
    words = _own_words(name)
    if words & ID_WORDS and not words & TIME_WORDS:
        return []
    sure: Confidence = "high" if words & TIME_WORDS else "medium"
    reason = f"written as {format}"
    if written is None:
        sure, reason = "low", f"its numbers are {reason}, which is only read from text"
    made = _made(name, column.cast(pa.string()), "date_time", options=TimeOptions(None, format),
                 confidence=sure, reason=reason)  # fmt: skip
    return [] if made is None else [replace(made, as_text=(name,), zoned=False)]


def _integer_times(name: str, column: pa.Array, as_read: pa.Array) -> list[TimeCandidate]:
    """Return the readings of whole numbers: calendar numbers, counts since 1970, counts since a
    start.

    Args:
        name: The column.
        column: The numbers.
        as_read: What a run reads: the same numbers, or their text.
    """
    words = _own_words(name)
    timely, numbered = bool(words & TIME_WORDS), bool(words & ID_WORDS)
    values = column.drop_null().to_numpy()
    low, high = int(values.min()), int(values.max())
    found = _calendar_number(name, as_read, low, high, words)
    if found:
        return found
    unit = _unit_in(name)
    for each, factor in UNITS.items():
        bounds = (EARLIEST_NS, LATEST_NS)
        share = np.count_nonzero((values >= EARLIEST_NS // factor) & (values < LATEST_NS // factor))
        if share <= len(values) / 2:
            continue
        sure: Confidence = "high" if timely or unit else "medium"
        if numbered and not timely:
            return []
        if sure == "medium" and len(np.unique(values)) < min(len(values), 3):
            return []
        how = "" if sure == "high" else _BY_SIZE
        if sure == "high" and _before_2000(values, factor):
            sure, how = "medium", _OLD
        made = _made(name, as_read, f"unixtimestamp_{each}", bounds=bounds, confidence=sure,
                     reason=f"counts {_UNIT_NAMES[each]} since 1970{how}")  # fmt: skip
        return [] if made is None else [made]
    if not timely or (numbered and not unit):
        return []
    reach = max(abs(low), abs(high))
    for each, factor in UNITS.items():
        if (unit in (None, each) and reach >= 10**8 and low * factor >= OLDEST_NS
                and high * factor < LATEST_NS and not (each == "ns" and low < 0)):  # fmt: skip
            if unit is None and reach * factor < 10**8 * 10**9:
                continue
            type = f"unixtimestamp_{each}_float" if low < 0 else f"unixtimestamp_{each}"
            if unit is None and low >= 0:
                break  # as well microseconds since a boot
            since = " since 1970" if unit else ", if it begins in 1970"
            made = _made(name, as_read, type, confidence="high" if unit else "medium",
                         reason=f"counts {_UNIT_NAMES[each]}{since}")  # fmt: skip
            return [] if made is None else [made]
    return _since_start(name, as_read, values, unit)


_BY_SIZE = ", by the size of its numbers alone"
"""Said of a column whose name does not speak of time."""

_OLD = ", unless it begins in another year: its times are before 2000"
"""Said of counts that would be times of the nineties: rare, while seconds since 2001 or 2000 are
not."""


def _before_2000(values: Any, factor: int) -> bool:
    """Return whether counts since 1970 would all be times before the year 2000."""
    return bool(values.max() < 946_684_800 * 10**9 // factor)


_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _unit_in(name: str) -> str | None:
    """Return the unit that the name of a column tells; a single letter counts at its end only."""
    words = name_words(name.split(".")[-1])
    for word in reversed(words):
        if word in UNIT_WORDS and (len(word) > 1 or (word == words[-1] and len(words) > 1)):
            return UNIT_WORDS[word]
    return None


def _calendar_number(
    name: str, as_read: pa.Array, low: int, high: int, words: set[str]
) -> list[TimeCandidate]:
    """Return the reading of numbers such as 1958, 195803 or 19580301."""
    timely = bool(words & TIME_WORDS)
    type, sure, reason, coarse = "year_month_day", "high", "", 0
    if low >= 1700 and high <= 2200 and timely:
        if not words & {"year", "yr", "jahr"}:
            sure = "medium"
        reason, coarse = "years", 2
        if low == high and len(as_read) > 1:
            sure, reason = "low", "all rows have the same year"
    elif low >= 170_001 and high <= 220_012 and timely:
        reason, coarse = "year and month, as 195803", 1
    elif low >= 17_000_101 and high <= 22_001_231 and not words & ID_WORDS:
        sure = "high" if timely else "medium"
        reason = "year, month and day, as 19580301"
    if not reason:
        return []
    made = _made(name, as_read, type, confidence=sure, reason=reason, has_time=False,
                 coarse=coarse)  # fmt: skip
    return [replace(made, zoned=False)] if made is not None and made.readable > 0.95 else []


def _since_start(
    name: str, as_read: pa.Array, values: Any, unit: str | None
) -> list[TimeCandidate]:
    """Return the reading of numbers that grow, in a column named like a time: counted from a start
    that nobody knows."""
    steps = np.diff(values)
    if len(values) < 3 or np.count_nonzero(steps >= 0) < 0.95 * len(steps):
        return []
    if np.count_nonzero(steps > 0) == 0 or name_words(name)[-1] in ("year", "month", "day"):
        return []
    floats = values.dtype.kind == "f"
    if unit is None and not floats:
        made = _made(name, as_read, "unixtimestamp_ms", confidence="low",
                     reason="it is a count that grows, in a unit that nothing tells")  # fmt: skip
        choices = tuple(("type", f"unixtimestamp_{each}") for each in UNITS)
        return [] if made is None else [replace(made, choices=choices)]
    each = unit or "s"
    signed = floats or float(np.min(values)) < 0
    type = f"unixtimestamp_{each}_float" if signed and each != "ns" else f"unixtimestamp_{each}"
    made = _made(name, as_read, type, confidence="high" if unit else "medium",
                 reason=f"counts {_UNIT_NAMES[each]} from a start of its own, shown as if that "
                 "were 1970")  # fmt: skip
    return [] if made is None else [made]


def _float_times(name: str, column: pa.Array, written: pa.Array | None) -> list[TimeCandidate]:
    """Return the readings of numbers with a fraction."""
    words = _own_words(name)
    timely = bool(words & TIME_WORDS)
    raw = column.drop_null().cast(pa.float64()).to_numpy()
    values = raw[np.isfinite(raw)]
    if len(values) == 0:
        return []
    made: list[TimeCandidate] = []
    unit = _unit_in(name)
    for each in ("s", "ms", "us"):
        low, high = EARLIEST_NS / UNITS[each], LATEST_NS / UNITS[each]
        if np.count_nonzero((values >= low) & (values < high)) <= len(values) / 2:
            continue
        if words & ID_WORDS and not timely:
            return []
        sure: Confidence = "high" if timely or unit else "medium"
        how = "" if sure == "high" else _BY_SIZE
        if sure == "high" and _before_2000(values, UNITS[each]):
            sure, how = "medium", _OLD
        one = _made(name, column, f"unixtimestamp_{each}_float", confidence=sure,
                    bounds=(EARLIEST_NS, LATEST_NS),
                    reason=f"counts {_UNIT_NAMES[each]} since 1970, with a fraction{how}"
                    )  # fmt: skip
        made = [] if one is None else [one]
        break
    else:
        if timely and not words & ID_WORDS:
            years = values.min() > 1700 and values.max() < 2200 and unit is None
            days = words & {"date", "datum", "day"} and values.min() > 20_000
            if years or (days and values.max() < 80_000):
                what = "years with a fraction" if years else "days of a spreadsheet"
                reason = f"may be {what}, which no type reads; add a column that has a date"
                one = _made(name, column, "unixtimestamp_s_float", confidence="low", reason=reason)
                made = [] if one is None else [one]
            else:
                made = _since_start(name, column, values, unit)
    if made and written is not None:
        exact = EventtimeTypes().parse(made[0].type, written)
        if int(np.count_nonzero(exact.ok)) == len(written) - written.null_count:
            made = [replace(made[0], as_text=(name,))]  # text keeps all digits
    return made


def _text(name: str, column: pa.Array) -> list[TimeCandidate]:
    """Return the readings of text."""
    values = pc.utf8_trim_whitespace(column.cast(pa.string())).drop_null()
    first = _typical(values)
    if first is None:
        return []
    digits = values.filter(pc.match_substring_regex(values, r"^-?[0-9]{1,18}$|^[0-8][0-9]{18}$"))
    if len(digits) > len(values) / 2:
        numbers = digits.cast(pa.int64())
        if (format := _calendar_digits(numbers)) is not None:
            return _digits_as_text(name, column, format, column)
        return _integer_times(name, numbers, column)
    if time_of_day(values) is not None:
        return []  # 000219.50 is 2 min 19.5 s past midnight, and no count
    numbers = values.filter(pc.match_substring_regex(values, r"^-?[0-9]+(\.[0-9]+)?$"))
    if len(numbers) > len(values) / 2:
        return _float_times(name, numbers.cast(pa.float64()), column)
    whole = pc.match_substring_regex(values, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    if pc.all(whole).as_py():
        made = _made(name, column, "date", reason="dates", has_time=False)
        return [] if made is None else [replace(made, zoned=False)]
    if re.fullmatch(r"[0-9]{4}[-/][0-9]{1,2}", first):
        made = _made(name, column, "year_month_day", reason="months", has_time=False, coarse=1)
        return [] if made is None else [replace(made, zoned=False)]
    iso = pc.match_substring_regex(values, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ]|$)")
    made = None
    if 2 * pc.sum(iso).as_py() > len(values):  # else much text would be tried in vain
        made = _made(name, column, "iso8601", reason="ISO 8601")
    if made is not None:
        return [replace(made, zoned=pc.all(pc.match_substring_regex(values, _ZONED)).as_py())]
    found = []
    for layout in _order_told(name, layouts_of(values)):
        one = _made(
            name, column, "date_time", options=TimeOptions(None, layout.format),
            confidence="low" if layout.doubt else "high", has_time=layout.has_time,
            reason=layout.doubt or f"written as {layout.format}",
        )  # fmt: skip
        if one is not None:
            if "%y" in layout.format and one.confidence == "high":
                reason = f"{one.reason}, with a year of two digits"
                far = one.last_ns > FAR_AHEAD_NS
                reason = f"{reason}, which would be after 2050" if far else reason
                one = replace(one, confidence="low" if far else "medium", reason=reason)
            months = "%d" not in layout.format
            found.append(replace(one, choices=layout.choices, zoned=layout.zoned, coarse=months))
    if not found and pc.all(pc.match_substring_regex(values, _ISO_WEEK)).as_py():
        reason = "its values are weeks, which no type reads; add a column that has a date"
        return [TimeCandidate((name,), "date", 0.0, 0, 0, None, None, "low", reason)]
    if not found and without_year(values):
        return [TimeCandidate((name,), "date_time", 0.0, 0, 0, "%b %d %H:%M:%S", None, "low",
                              "its dates have no year; add a column that has it")]  # fmt: skip
    return found


def _order_told(name: str, layouts: list[DateLayout]) -> list[DateLayout]:
    """Return the layout that the name of the column tells, as `DATE (MM/DD/YYYY)` does, if values
    leave the order of day and month open; else all."""
    told = re.search(r"(mm?|dd?)[-/.](mm?|dd?)[-/.]y", name.lower())
    if len(layouts) < 2 or told is None or told[1][0] == told[2][0]:
        return layouts
    fit = [each for each in layouts if each.format.startswith(f"%{told[1][0]}")]
    return [each._replace(doubt=None, choices=()) for each in fit] or layouts


_ISO_WEEK = r"^[0-9]{4}[- ]?W[0-9]{2}(-?[1-7])?$"
"""Weeks as ISO 8601 writes them: `2023-W05`."""

_ZONED = r":[0-9]{2}.*(Z|z|[+-][0-9]{2}(:?[0-9]{2})?)$"
"""Text with a time of day and a zone behind it."""


def _typical(values: pa.Array) -> str | None:
    """Return a value that looks like most of the others, if they may be times: short text with
    digits in it."""
    some: list[str] = [
        values[place].as_py() for place in range(0, len(values), max(len(values) // 50, 1))
    ]
    fit = [value for value in some if re.search(r"[0-9]", value) and len(value) <= 40]
    if len(fit) <= len(some) / 2:
        return None
    return sorted(fit, key=len)[len(fit) // 2]


# -- several columns ------------------------------------------------------------------------------


def _clock_format(name: str, column: pa.Array) -> str | None:
    """Return the format of a column of times of day, or None."""
    kind = column.type
    if pa.types.is_time(kind):
        return "iso"
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        return None
    values = column.cast(pa.string()).drop_null()
    if len(values) == 0:
        return None
    if pa.types.is_integer(kind):
        words = name_words(name)
        if words and words[-1] in ("hour", "hr", "hh", "stunde"):
            numbers = column.drop_null().to_numpy()
            return "%H" if numbers.min() >= 0 and numbers.max() <= 24 else None
        if not set(words) & {"time", "hms", "hhmmss", "clock", "uhrzeit", "zeit", "hora"}:
            return None
    return time_of_day(values)


def _split_candidates(
    sample: pa.Table, found: list[TimeCandidate], clocks: list[tuple[str, str]]
) -> list[TimeCandidate]:
    """Return candidates of a date column and a column of times of day."""
    if not clocks:
        return []
    dates = [c for c in found if not c.has_time and len(c.columns) == 1 and "." not in c.column]
    made = []
    names = sample.column_names
    for date in dates:
        pool = [c for c in clocks if "." not in c[0]]
        if not pool:
            continue
        # The nearest column to the right is the time that belongs to a date.
        place = names.index(date.column)
        clock, format = min(pool, key=lambda c: (names.index(c[0]) < place,
                                                 abs(names.index(c[0]) - place)))  # fmt: skip
        joined = _joined_format(date, format)
        if joined is None:
            continue
        type, wanted = joined
        columns = (date.column, clock)
        parts = [pc.utf8_trim_whitespace(_flat(sample[n]).cast(pa.string())) for n in columns]
        both = pc.binary_join_element_wise(*parts, " ")
        one = _made(date.column, both, type, options=TimeOptions(None, wanted),
                    confidence=date.confidence, reason="a date and a time of day in two columns"
                    if date.confidence != "low" else date.reason)  # fmt: skip
        if one is not None:
            text = tuple(n for n in columns if pa.types.is_integer(sample.schema.field(n).type))
            choices = tuple((option, f"{value} {format}") for option, value in date.choices)
            made.append(replace(one, columns=columns, as_text=text, choices=choices, zoned=False))
    return made


def _joined_format(date: TimeCandidate, clock: str) -> tuple[str, str | None] | None:
    """Return type and format of a date and a time of day with a blank between them."""
    iso = clock in ("iso", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%S,%f")
    if date.type in ("date", "timestamp") and iso:
        return "iso8601", None
    if clock == "iso":
        clock = "%H:%M:%S"
    if date.type in ("date", "timestamp"):
        return "date_time", f"%Y-%m-%d {clock}"
    if date.type == "year_month_day" and date.reason.startswith("year, month and day"):
        return "date_time", f"%Y%m%d {clock}"
    return ("date_time", f"{date.format} {clock}") if date.format else None


DAY_OF_YEAR = ("doy", "dayofyear", "day_of_year", "jday", "julian_day", "yday", "jul_day")
"""Names of columns that hold the day of the year."""

PARTS = (
    ("%Y", ("year", "yr", "yyyy", "jahr")), ("%m", ("month", "mon", "mo", "mm", "monat")),
    ("%d", ("day", "dd", "dy", "tag")), ("%H", ("hour", "hr", "hh", "stunde")),
    ("%M", ("minute", "min", "mn")), ("%S", ("second", "sec", "ss")),
)  # fmt: skip
"""Names of columns that hold a part of a date, from the year down."""


def _calendar_parts(sample: pa.Table) -> list[TimeCandidate]:
    """Return the candidate of columns year, month, day, hour, ...: as many as follow each other."""
    lower = {name.lower().lstrip("#").strip(): name for name in reversed(sample.column_names)}
    names, formats = [], []
    order: tuple[tuple[str, tuple[str, ...]], ...] = PARTS
    if any(name in lower for name in DAY_OF_YEAR):
        order = (PARTS[0], ("%j", DAY_OF_YEAR), *PARTS[3:])
    for format, spellings in order:
        name = next((lower[s] for s in spellings if s in lower), None)
        if name is None:
            break
        if format == "%m" and _names_months(sample[name]):
            format = "%b"
        elif not pa.types.is_integer(sample.schema.field(name).type):
            break
        names.append(name)
        formats.append(format)
    if len(names) < 2:
        return []
    both = pc.binary_join_element_wise(*(_flat(sample[n]).cast(pa.string()) for n in names), " ")
    one = _made(names[0], both, "date_time", options=TimeOptions(None, " ".join(formats)),
                reason="the parts of a date in several columns",
                has_time="%H" in formats, coarse=int(formats in (["%Y", "%m"], ["%Y", "%b"]))
                )  # fmt: skip
    return [] if one is None else [replace(one, columns=tuple(names), zoned=False)]


def _names_months(column: Any) -> bool:
    """Return whether a column holds the English names of months."""
    if not pa.types.is_string(column.type):
        return False
    pattern = r"^(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*$"
    return bool(pc.all(pc.match_substring_regex(column, pattern)).as_py())


SECOND_WORDS = ("sec", "secs", "second", "seconds")
ABOVE_WORDS = {
    **dict.fromkeys(("usec", "usecs", "micros", "microsec", "microseconds", "us"), "us"),
    **dict.fromkeys(("nsec", "nsecs", "nanosec", "nanosecs", "nanos", "nanoseconds", "ns"), "ns"),
}
"""Last words of the names of the two integers of a stamp; those of the second with its unit."""


def _stamp_pairs(sample: pa.Table) -> list[TimeCandidate]:
    """Return the candidates of stamps in two integers, as ROS writes them: seconds, and the
    nanoseconds above them, under the same name but for the last word."""
    columns = dict(_plain_columns(sample))
    halves: dict[tuple[str, ...], dict[str, str]] = {}
    for name, column in columns.items():
        words = name_words(name)
        half = words[-1] if words else ""
        part = "s" if half in SECOND_WORDS else ABOVE_WORDS.get(half)
        if pa.types.is_integer(column.type) and part is not None:
            halves.setdefault(tuple(words[:-1]), {}).setdefault(part, name)
    found = []
    for pair in halves.values():
        unit = "ns" if "ns" in pair else "us"
        if "s" not in pair or unit not in pair:
            continue
        names = (pair["s"], pair[unit])
        above = columns[pair[unit]].drop_null().to_numpy()
        if len(above) == 0 or above.min() < 0 or above.max() >= 10**9 // UNITS[unit]:
            continue
        both = pc.binary_join_element_wise(*(columns[n].cast(pa.string()) for n in names), " ")
        what = f"seconds and the {_UNIT_NAMES[unit]} above them in two columns"
        one = _made(names[0], both, f"unixtimestamp_s_{unit}", reason=what)
        if one is not None:
            if one.first_ns < EARLIEST_NS:
                reason = f"{what}, from a start of its own, shown as if that were 1970"
                one = replace(one, confidence="medium", reason=reason)
            found.append(replace(one, columns=names))
    return found


def _log_pairs(sample: pa.Table) -> list[TimeCandidate]:
    """Return the candidates of web server logs, whose `[01/Mar/2024:13:05:00 +0100]` is cut into
    two columns at its blank."""
    found = []
    for left, right in pairwise(sample.column_names):
        kinds = [sample.schema.field(name).type for name in (left, right)]
        if not all(pa.types.is_string(kind) for kind in kinds):
            continue
        opened = pc.match_substring_regex(sample[left], r"^\[[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:")
        closed = pc.match_substring_regex(sample[right], r"^[+-][0-9]{4}\]$")
        if not pc.all(pc.and_(opened, closed)).as_py():
            continue
        both = pc.binary_join_element_wise(_flat(sample[left]), _flat(sample[right]), " ")
        one = _made(left, both, "date_time", options=TimeOptions(None, "[%d/%b/%Y:%H:%M:%S %z]"),
                    reason="the time of a web server log")  # fmt: skip
        if one is not None:
            found.append(replace(one, columns=(left, right)))
    return found


def _clock_alone(name: str) -> TimeCandidate:
    """Return the candidate of a time of day without a date, which cannot be used."""
    reason = "it is a time of day without a date; add a column that has it"
    return TimeCandidate((name,), "date_time", 0.0, 0, 0, "%H:%M:%S", None, "low", reason)
