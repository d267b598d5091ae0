"""The layout of dates and times in text, as a format of `datetime.strptime`.

A value is taken apart by one regular expression per way of writing a date, and the parts name the
format. Where two formats would read every value (3/4/2025 is 3 April or 4 March), both are returned
and nobody chooses: a guess that is wrong would be wrong for all rows and look right.

    2015/01/01 13:05      %Y/%m/%d %H:%M          Jan 1 2000          %b %d %Y
    14.3.2025 1:20        %d.%m.%Y %H:%M          01/Jan/2015:13:05:00 +0200
    3/14/2025 1:20 PM     %m/%d/%Y %I:%M %p       %d/%b/%Y:%H:%M:%S %z
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DateLayout", "layouts_of", "time_of_day", "without_year"]

_TIME = (
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})"
    r"(?:(?P<point>[.,])(?P<fraction>[0-9]{1,9}))?)?(?P<noon> ?[AaPp][Mm])?"
)
_COMPACT_TIME = r"(?P<compact>[0-9]{6}|[0-9]{4})"
_ZONE = r"(?P<zone> ?(?:Z|[+-][0-9]{2}:?[0-9]{2}|[A-Z]{3,5}))?"
_BETWEEN = r"(?P<between>T|, | - |:|_| +)"
_WEEKDAY = r"(?P<weekday>(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"

_DATES = (
    r"(?P<Y>[0-9]{4})(?P<s>[-/.])(?P<m>[0-9]{1,2})(?P=s)(?P<d>[0-9]{1,2})",
    r"(?P<a>[0-9]{1,2})(?P<s>[-/.])(?P<b>[0-9]{1,2})(?P=s)(?P<Y>[0-9]{4})",
    r"(?P<a>[0-9]{1,2})(?P<s>[-/.])(?P<b>[0-9]{1,2})(?P=s)(?P<y>[0-9]{2})",
    rf"(?P<d>[0-9]{{1,2}})(?P<s>[-/. ])(?P<B>{_MONTH})(?P=s)(?:(?P<Y>[0-9]{{4}})"
    r"|(?P<y>[0-9]{2}))",
    rf"(?P<B>{_MONTH}) +(?P<d>[0-9]{{1,2}})(?P<comma>,?) +(?P<Y>[0-9]{{4}})",
    rf"(?P<B>{_MONTH})(?P<s>[-/.])(?P<d>[0-9]{{1,2}})(?P=s)(?P<Y>[0-9]{{4}})",
    rf"(?P<Y>[0-9]{{4}})(?P<s>[-/. ])(?P<B>{_MONTH})(?P=s)(?P<d>[0-9]{{1,2}})",
    rf"(?P<Y>[0-9]{{4}})(?P<s>[-/. ])(?P<B>{_MONTH})",
    rf"(?P<B>{_MONTH})(?P<s>[-/ ])(?P<Y>[0-9]{{4}})",
    r"(?P<m>[0-9]{1,2})(?P<s>[-/])(?P<Y>[0-9]{4})",
    r"(?P<Y>[0-9]{4})(?P<m>[0-9]{2})(?P<d>[0-9]{2})",
)
"""Ways of writing a date. `a` and `b` are day and month, in an order that only values can tell."""

_CTIME = re.compile(
    rf"{_WEEKDAY}(?P<B>{_MONTH}) +[0-9]{{1,2}} +{_TIME}{_ZONE} +(?P<Y>[0-9]{{4}})", re.IGNORECASE
)
_NO_YEAR = re.compile(rf"(?:{_MONTH} +[0-9]{{1,2}}|[0-9]{{1,2}}[-/.][0-9]{{1,2}}\.?) +{_TIME}")
_PATTERNS = [
    re.compile(rf"{_WEEKDAY}{date}(?:{_BETWEEN}(?:{_TIME}|{_COMPACT_TIME}){_ZONE})?", re.IGNORECASE)
    for date in _DATES
]
_ALL_DIGITS = re.compile(r"[0-9]{14}")


class DateLayout(NamedTuple):
    """A way to read a column of text."""

    format: str
    """For type `date_time`."""
    has_time: bool
    """Whether there is a time of day, not only a date."""
    zone: str | None = None
    """The abbreviation of a zone that stands in every value, if it is not UTC."""
    doubt: str | None = None
    """Why the values may mean something else; None if they cannot."""
    choices: tuple[tuple[str, str], ...] = ()
    """Options of the command line that would settle the doubt, each a name and a value."""

    @property
    def zoned(self) -> bool:
        """Whether every value says its zone."""
        return bool(re.search(r"%z|(Z|UTC|GMT)( %Y)?$", self.format))


def layouts_of(column: pa.Array) -> list[DateLayout]:
    """Return the layouts that may read a column of text, judged by some of its values.

    Args:
        column: Text without nulls; at least one value.

    Returns:
        No layout if the values are no dates; two if day and month could be either way round. A
        layout says nothing about the values that were not looked at: parse the column to know.

    >>> [found.format for found in layouts_of(pa.array(["3/14/2025 1:20", "3/4/2025 13:00"]))]
    ['%m/%d/%Y %H:%M']
    >>> [found.format for found in layouts_of(pa.array(["3/4/2025"]))]
    ['%d/%m/%Y', '%m/%d/%Y']
    """
    made: dict[str, DateLayout] = {}
    for value in _examples(column):
        for layout in _layouts_of_value(value.strip()):
            made.setdefault(layout.format, layout)
        if made:
            break
    found = list(made.values())
    if len(found) < 2:
        return found
    return _without_impossible(column, found)


def without_year(column: pa.Array) -> bool:
    """Return whether the values are dates without a year, as syslog writes them."""
    return any(_NO_YEAR.fullmatch(value.strip()) for value in _examples(column)[:3])


def _examples(column: pa.Array) -> list[str]:
    """Return a few values from all over the column."""
    step = max(len(column) // 20, 1)
    return [column[place].as_py() for place in range(0, len(column), step)][:20]


def _layouts_of_value(value: str) -> list[DateLayout]:
    """Return the layouts of one value."""
    found = _CTIME.fullmatch(value)
    if found is not None:
        clock, zone = _clock(found), _zone(found)
        named = f" {zone.strip()}" if zone else ""
        return [_layout(f"{_weekday(found)}%b %d {clock}{named} %Y", True, zone)]
    if _ALL_DIGITS.fullmatch(value):
        return [DateLayout("%Y%m%d%H%M%S", True)]
    for pattern in _PATTERNS:
        found = pattern.fullmatch(value)
        if found is None:
            continue
        parts = found.groupdict()
        zone = _zone(found)
        behind = ""
        if parts["between"] is not None:
            between = " " if parts["between"].isspace() else parts["between"]
            behind = f"{between}{_clock(found)}{zone}"
        has_time = parts["between"] is not None
        return [
            _layout(f"{_weekday(found)}{date}{behind}", has_time, zone)
            for date in _dates(parts, value)
        ]
    return []


def _layout(format: str, has_time: bool, zone: str) -> DateLayout:
    """Return a layout with what is to say about the zone in it."""
    name = zone.strip()
    if name in ("", "Z", "UTC", "GMT", "%z"):
        return DateLayout(format, has_time)
    doubt = f"{name} is an abbreviation of a zone, and those are not unique"
    return DateLayout(format, has_time, name, doubt, (("zone", "Europe/Berlin"),))


def _dates(parts: dict[str, str | None], value: str) -> list[str]:
    """Return the formats of the date of a value.

    Args:
        parts: The groups of its pattern.
        value: The value.
    """
    big_end = value[:4].isdigit()
    sep = parts.get("s") or ""
    year = "%Y" if parts.get("Y") else "%y"
    if parts.get("a") is not None:
        order = [f"%d{sep}%m{sep}{year}", f"%m{sep}%d{sep}{year}"]
        # With other signs than a hyphen nobody puts two digits of a year first.
        return [*order, f"%y{sep}%m{sep}%d"] if year == "%y" and sep == "-" else order
    if parts.get("B") is not None:
        if "comma" in parts and parts["comma"] is not None:
            return [f"%b %d{parts['comma']} {year}"]
        if parts.get("d") is None:
            return [f"%Y{sep}%b" if big_end else f"%b{sep}{year}"]
        if big_end:
            return [f"%Y{sep}%b{sep}%d"]
        before = value.lower().find(str(parts["B"]).lower()) < value.find(f"{sep}{parts['d']}{sep}")
        return [f"%b{sep}%d{sep}{year}" if before else f"%d{sep}%b{sep}{year}"]
    if parts.get("d") is None:
        return [f"%m{sep}%Y"]
    return [f"%Y{sep}%m{sep}%d"]


def _weekday(found: re.Match[str]) -> str:
    """Return the format of the weekday in front; empty without one."""
    text = found.groupdict().get("weekday")
    if not text:
        return ""
    return "%a, " if "," in text else "%a "


def _clock(found: re.Match[str]) -> str:
    """Return the format of the time of day of a value."""
    parts = found.groupdict()
    if parts.get("compact"):
        return "%H%M%S" if len(parts["compact"]) == 6 else "%H%M"
    noon = parts["noon"]
    made = "%I:%M" if noon else "%H:%M"
    if parts["second"]:
        made += ":%S"
    if parts["fraction"]:
        made += f"{parts['point']}%f"
    return made + (f"{' ' if noon.startswith(' ') else ''}%p" if noon else "")


def _zone(found: re.Match[str]) -> str:
    """Return the format of the zone of a value, with the blank before it."""
    text = found.groupdict().get("zone") or ""
    if text.strip() and text.strip()[0] in "+-":
        return f"{' ' if text.startswith(' ') else ''}%z"
    return text


def _without_impossible(column: pa.Array, layouts: list[DateLayout]) -> list[DateLayout]:
    """Return the layouts that read more values than the others; all of them, with a doubt, if
    several read as many."""
    shares = []
    for layout in layouts:
        bare = layout.format.replace(".%f", "").replace(",%f", "")
        if bare != layout.format or "%z" in bare:
            head = bare.split("%H")[0].split("%I")[0].rstrip("T ,:_-")
            length = r"^[^ T]+" if " " not in head else r"^[^:]+"
            values = pc.struct_field(pc.extract_regex(column, f"(?P<date>{length})"), "date")
            bare = head
        else:
            values = column
        read = pc.strptime(values, format=bare, unit="s", error_is_null=True)
        shares.append(len(column) - read.null_count)
    best = max(shares)
    found = [each for each, share in zip(layouts, shares, strict=True) if share == best]
    if len(found) < 2:
        return found
    if len(found) == 2 and "." in found[0].format[:4] and found[0].format.startswith("%d"):
        return found[:1]  # nobody writes month.day.year
    choices = tuple(("format", layout.format) for layout in found)
    doubt = "day and month may be either way round"
    return [layout._replace(doubt=doubt, choices=choices) for layout in found]


_TIME_ONLY = re.compile(_TIME)


def time_of_day(column: pa.Array) -> str | None:
    """Return the format of a column of times of day (`13:05:00`, `130500`), or None.

    >>> time_of_day(pa.array(["13:05", "9:00"])), time_of_day(pa.array(["130500"]))
    ('%H:%M', '%H%M%S')
    """
    examples = [value.strip() for value in _examples(column)]
    found = [_TIME_ONLY.fullmatch(value) for value in examples]
    if all(found):
        formats = {_clock(each) for each in found if each is not None}
        return formats.pop() if len(formats) == 1 else None
    if all(re.fullmatch(r"[0-9]{1,2}\.[0-9]{2}\.[0-9]{2}", value) for value in examples):
        return "%H.%M.%S"
    loose = [re.fullmatch(r"[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]+)?", v) for v in examples]
    if all(loose):  # without leading zeros
        return "%H:%M:%S.%f" if all(each and each[1] for each in loose) else "%H:%M:%S"
    if all(re.fullmatch(r"([01][0-9]|2[0-3])([0-5][0-9]){2}\.[0-9]{1,9}", v) for v in examples):
        return "%H%M%S.%f"
    for digits, format in ((6, "%H%M%S"), (4, "%H%M")):
        if all(len(v) == digits and v.isdigit() for v in examples):
            read = pc.strptime(pc.utf8_trim_whitespace(column), format=format, unit="s",
                               error_is_null=True)  # fmt: skip
            return format if read.null_count == 0 else None
    return None
