"""Where the table begins in a text file: lines of text above it, its header, units below that.

    Logger 7, firmware 2.1        above
    Started 2024-03-01
    time,temperature              header
    s,degC                        below: units
    0.0,21.5

Columns that hold values (numbers, dates, times of day) further down tell it. The first row that has
values in all of them is data. The header is a row above it that has as many fields, and a name in
each of these columns; what is above the header is no part of the table, and rows between header and
data are skipped if they hold units, types or dashes. A row with values in such a column is never
skipped: it may be a broken measurement, and is left to the run, which says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.profile.time_columns import TIME_WORDS, name_words, word_set

__all__ = ["NULL_WORDS", "VALUE", "TableBegin", "find_table", "is_data"]

MOST_ABOVE = 200
"""Rows above a header. Further down it would be a second table in the same file."""

MOST_BELOW = 5
"""Rows between header and data. More of them are data that look otherwise."""

LEAST_ROWS = 3
"""Rows of data that must follow where several rows could be the header."""

NULL_WORDS = ("NA", "N/A", "n/a", "NULL", "null", "None", "none", "nan", "-", "--", "\\N", "?",
              "#N/A", "missing")  # fmt: skip
"""Words that stand for no value, if a column holds nothing else that is not a number or a time."""

VALUE = re.compile(
    r"[+-]?[0-9.,]+([eE][+-]?[0-9]+)?|[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9].*|[0-9]{1,2}:[0-9]{2}.*"
    r"|[0-9]{4}[-/][0-9]{2}|[0-9]{8}T.*"
)
"""What is surely no name of a column: a number, a date or a time."""

_UNIT_WORDS = word_set(
    "s sec secs second seconds ms msec us µs usec ns min mins minute minutes h hr hrs hour "
    "hours d day days date time datetime timestamp utc gmt iso local unix epoch hz khz mhz ghz "
    "v mv uv µv kv volt volts a ma ua µa amp amps w mw kw kwh wh mwh var va ohm ohms ω c degc "
    "°c celsius f degf °f fahrenheit k kelvin % %rh rh percent pct pa hpa kpa mpa bar mbar psi "
    "atm m mm cm km µm um nm in inch inches ft feet mi miles m/s mps km/h kmh kph mph kn kt kts "
    "knots m/s2 m/s^2 m/s² g gee mg kg t lb lbs n rad rads rad/s mrad deg ° degree degrees °/s "
    "deg/s dps rpm l ml l/min l/h m3 m³ m3/h m³/h gal ppm ppb ppt pphm ph db dba dbm lux lx lm "
    "cd ut µt mt gauss tesla counts count ct cts unit units unitless none n/a na - -- . bool "
    "boolean int integer int32 int64 long float float32 float64 double number numeric decimal "
    "string str text char varchar object enum flag state ts rn smp avg max std tot wvc mol mmol "
    "µmol ug/m3 µg/m3 µg/m³ w/m2 w/m² j kj nt px pixel pixels bit bits byte bytes kb mb gb b/s "
    "bps kbps mbps #"
)
"""Units, types and the like, in lower case, that stand below the names of columns."""

_BRACKETED = re.compile(r"\(.*\)|\[.*\]|\{.*\}|<.*>")
_RULE = re.compile(r"[-=_+|:. ]*")
"""A line that is drawn below a header."""

_WIDE = 3
"""From this many columns on, the first of several rows of names is the header: lines about a
device, which stand above it, have one or two fields."""


@dataclass(frozen=True)
class TableBegin:
    """The rows of a text file before its data. Blank lines and comments are not counted.

    Attributes:
        above: Rows above the header; without a header, above the data.
        header: Whether there is a header.
        below: Rows between header and data that are no data.
        short: Whether the header has one name less than rows have fields.
        doubt: Whether it cannot be told what the lines above the data are.
    """

    above: int = 0
    header: bool = True
    below: int = 0
    short: bool = False
    doubt: bool = False


def is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Guess whether the first row is data and not the names of the columns.

    A date or a number with a point is no name. Whole numbers may be names (years, in a pivot
    table), unless every field is one or the other fields come again further down.
    """
    first = [field.strip() for field in rows[0]]
    values = [field for field in first if VALUE.fullmatch(field)]
    if not values:
        return False
    if len(values) == len([field for field in first if field]):
        return True
    if any(re.search(r"[:/.-]", value.lstrip("+-")) for value in values):
        return True
    words = [(place, f) for place, f in enumerate(first) if f and not VALUE.fullmatch(f)]
    return all(any(len(r) > p and r[p].strip() == f for r in rows[1:]) for p, f in words)


def find_table(rows: Sequence[Sequence[str]]) -> TableBegin:
    """Find header and data.

    Args:
        rows: The fields of the first lines of a file; at least one row.

    >>> find_table([["Logger 7"], ["t", "v"], ["s", "V"], ["1", "2"], ["2", "3"], ["3", "5"]])
    TableBegin(above=1, header=True, below=1, short=False, doubt=False)
    """
    plain = TableBegin(header=not is_data(rows))
    counts = [len(row) for row in rows]
    rest = counts[len(rows) // 2 :]
    usual = max(sorted(set(rest), reverse=True), key=rest.count)
    if usual < 2:
        return plain
    valued = _columns_of_values(rows, usual)
    fits = [_may_be_data(row, usual, valued) for row in rows]
    first = _first_of_most(fits, rows, usual)
    if first is None or first == 0:
        return plain
    if rows[0][0].strip() == "TOA5" and first > 1:  # loggers of Campbell Scientific
        return TableBegin(1, True, first - 2)
    known = _Known([row for row, good in zip(rows[first:], fits[first:], strict=True) if good],
                   valued)  # fmt: skip
    if not valued:
        prose = all(len(row) == 1 for row in rows[:first])
        sure = prose and not _Known(rows[first + 1 :], []).has_part_of(rows[first])
        return TableBegin(first, header=not is_data(rows[first:]), doubt=not sure)
    once = [row for row in rows[:first] if rows[:first].count(row) == 1]
    named = [n for n in range(first) if rows[n] in once and _is_header(rows[n], usual, valued)
             and not known.has_part_of(rows[n])]  # fmt: skip
    if not named:
        return _without_names(rows, first, usual, plain)
    header = _header_among(rows, named)
    if rows[header] == rows[0] or any(fits[:header]):
        header = 0  # a header that comes again, or a second one
        if 0 not in named:
            return plain
    if header + 1 < first <= header + 1 + MOST_BELOW and _names_index(rows[header + 1 : first]):
        return TableBegin(header, True, first - header - 1)
    below = 0
    for number in range(header + 1, first):
        units = _holds_units(rows[number], valued) and not known.has_part_of(rows[number])
        described = number in named and _is_distinct(rows[number])
        if any(VALUE.fullmatch(field.strip()) for field in rows[number]):
            break
        if not described and not units:
            break
        below += 1
    return TableBegin(header, True, below if below <= MOST_BELOW else 0)


class _Known:
    """What the columns of data hold that are not values: words, and times in words.

    Args:
        rows: Rows of data.
        valued: Columns of values, which are left out.
    """

    def __init__(self, rows: Sequence[Sequence[str]], valued: Sequence[int]) -> None:
        self.valued = frozenset(valued)
        self.fields = {(column, self._shape(field)) for row in rows for column, field in
                       enumerate(row) if column not in self.valued}  # fmt: skip

    def has_part_of(self, row: Sequence[str]) -> bool:
        """Return whether a row has a field as data have it in that column: the same word, or the
        same but for its digits (`Mar 3 10:05`)."""
        return any(
            (column, self._shape(field)) in self.fields
            for column, field in enumerate(row)
            if column not in self.valued and field.strip() and field.strip() not in NULL_WORDS
        )

    @staticmethod
    def _shape(field: str) -> str:
        return re.sub("[0-9]+", "9", field.strip())


def _columns_of_values(rows: Sequence[Sequence[str]], usual: int) -> list[int]:
    """Return the columns whose fields are values in most rows further down."""
    begin = len(rows) // 2 if len(rows) > 2 * LEAST_ROWS else -1
    tail = [row for row in rows[begin:] if len(row) == usual]
    found = []
    for column in range(usual):
        fields = [row[column].strip() for row in tail]
        there = [field for field in fields if field and field not in NULL_WORDS]
        values = sum(VALUE.fullmatch(field) is not None for field in there)
        if there and values >= 0.9 * len(there):
            found.append(column)
    return found


def _may_be_data(row: Sequence[str], usual: int, valued: Sequence[int]) -> bool:
    """Return whether a row may be data: as many fields as usual, and no other text in a column of
    values. Rows that are empty there may be anything."""
    if len(row) != usual:
        return False
    fields = [row[column].strip() for column in valued]
    there = [field for field in fields if field and field not in NULL_WORDS]
    return not valued or (bool(there) and all(map(VALUE.fullmatch, there)))


def _first_of_most(fits: Sequence[bool], rows: Sequence[Sequence[str]], usual: int) -> int | None:
    """Return the first row that fits and is followed by rows that mostly do; None if there is
    none. A few rows suffice where only one above them can be a header."""
    left, headers = sum(fits), 0
    for number, good in enumerate(fits[: MOST_ABOVE + 1]):
        rest = len(fits) - number
        if good and (rest >= LEAST_ROWS or headers < 2) and left >= 0.8 * rest:
            return number
        units = headers > 0 and _holds_units(rows[number], range(len(rows[number])))
        headers += len(rows[number]) == usual and not units
        left -= good
    return None


def _is_header(row: Sequence[str], usual: int, valued: Sequence[int]) -> bool:
    """Return whether a row has names in the columns of values; one of many may have none."""
    if len(row) != usual:
        return False
    there = [row[column].strip() for column in valued if row[column].strip()]
    if any(VALUE.fullmatch(field) or _RULE.fullmatch(field) for field in there):
        return False
    return len(there) >= len(valued) - (len(valued) > 2)


def _header_among(rows: Sequence[Sequence[str]], named: Sequence[int]) -> int:
    """Return which of some rows with names is the header. Units are none; of those without a
    repeated name it is the first, as what follows describes its names. What describes a device
    stands in rows of two fields: of these, the last one that speaks of time."""
    last = named[-1]
    block = [last]
    while block[0] - 1 in named:
        block.insert(0, block[0] - 1)
    timed = {number for number in block if any(
        set(name_words(field)) & TIME_WORDS for field in rows[number])}  # fmt: skip
    while len(block) > 1 and _holds_units(rows[block[-1]], range(len(rows[block[-1]]))):
        if block[-1] in timed and block[-2] not in timed:
            break  # names that are words for units, too: Time, Count
        block.pop()
    distinct = [number for number in block if _is_distinct(rows[number])]
    if not distinct:
        return block[0] if len(block) > 1 else last
    speaking = [number for number in distinct if number in timed]
    return speaking[-1] if speaking and len(rows[last]) < _WIDE else distinct[0]


def _names_index(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether rows below a header are the further levels of names that pandas writes: the
    last one has nothing but the name of the index, and none has a value."""
    first, *rest = (field.strip() for field in rows[-1])
    if not re.fullmatch(r"[A-Za-z_]\w*", first) or not rest or any(rest):
        return False
    return not any(VALUE.fullmatch(field.strip()) for row in rows for field in row)


def _is_distinct(row: Sequence[str]) -> bool:
    """Return whether no field comes twice."""
    return len({field.strip() for field in row}) == len(row)


def _holds_units(row: Sequence[str], valued: Sequence[int]) -> bool:
    """Return whether a row below a header holds units, types or a drawn line, or nothing."""
    if all(_RULE.fullmatch(field.strip()) for field in row):
        return True
    fields = [field.strip() for field in row if field.strip()]
    units = sum(_is_unit(field) for field in fields)
    if all(field in NULL_WORDS for field in fields):
        return False
    within = [row[column].strip() for column in valued if column < len(row)]
    return all(_is_unit(field) for field in within if field) and 2 * units >= len(fields)


def _is_unit(field: str) -> bool:
    """Return whether a field is a unit or a type."""
    bare = field.lower().strip("()[]{}<>")
    return bool(_BRACKETED.fullmatch(field)) or bare in _UNIT_WORDS


def _without_names(
    rows: Sequence[Sequence[str]], first: int, usual: int, plain: TableBegin
) -> TableBegin:
    """Return where a table begins that has no row of names above its data."""
    above = rows[first - 1]
    if len(above) == usual - 1 and not any(VALUE.fullmatch(f.strip()) or not f for f in above):
        return TableBegin(first - 1, True, 0, True, doubt=not _is_short(above, rows[first:], usual))
    if len(rows[0]) == usual and first == 1:
        return plain
    for number, row in enumerate(rows[:first]):
        fields = [field.strip() for field in row if field.strip()]
        values = sum(VALUE.fullmatch(field) is not None for field in fields)
        if values > 1 or 2 * values > len(fields):
            return plain if number == 0 else TableBegin(number, header=False)
    return TableBegin(first, header=not is_data(rows[first:]))


def _is_short(header: Sequence[str], rows: Sequence[Sequence[str]], usual: int) -> bool:
    """Return whether a header that has one name less than rows have fields goes with them: all rows
    end with a delimiter, or begin with their name, as R writes them. Where the first field is a
    time and a column is called one, a text with a delimiter in it is as likely."""
    full = [row for row in rows if len(row) == usual]
    if len(full) < 0.98 * len(rows):
        return False
    if all(not row[-1].strip() for row in full):
        return True
    times = any(re.search("[:/-]", row[0].strip().lstrip("+-")) for row in full)
    return not (times and any(set(name_words(name)) & TIME_WORDS for name in header))
