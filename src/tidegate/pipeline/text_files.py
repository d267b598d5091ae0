"""CSV headers: the names of the columns of one file, as every reader of it must agree on them; and
the limits of text that Spark reads.

Headers are used by the Spark source, which matches columns by name, and by `tidegate inspect`,
which writes the schema: a name that the two spelled differently would be a column of nulls.

Spark holds a whole line in memory, twice, and of a compressed file nobody sees from outside how
long its lines are: a line of a gigabyte ends the JVM. So lines are measured before Spark is given a
file. In a plain file that costs next to nothing: a newline in every stretch of half the limit
proves that no line is longer. A compressed one must be decompressed for it.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from tidegate.errors import ConfigError

__all__ = [
    "LONGEST_LINE", "MOST_SKIPPED", "check_lines", "column_names", "open_text", "read_header",
    "rows_above", "rows_below",
]  # fmt: skip

HEADER_BYTES = 1 << 20
"""Characters of a header. No real one has more; reading whole files for it would take minutes."""

MOST_COLUMNS = 20_480
"""Columns of a CSV file, unless the option `maxColumns` says otherwise: Spark's own limit."""

LONGEST_LINE = 64 << 20
"""Bytes of a line of text. A row with an image as base64 has a few of them. Much more, and the line
with its copies does not fit into the memory of an executor."""

MOST_SKIPPED = 10_000
"""Rows above a header, at most: longer ones are tables of their own, and all are counted one by
one."""

_BLOCK = 1 << 16
_GZIP_RATIO = 1_100
"""Gzip never makes less than a thousandth of anything: a smaller file needs no look."""


def column_names(header: Sequence[str]) -> tuple[str, ...]:
    """Return usable names for the fields of a header: none empty, no two alike.

    Spark compares names without regard to case, so `Time` and `time` are alike too. A field without
    a name is called by its number, from 1; a repeated one gets `_2`, `_3`, ... behind it.

    >>> column_names(["t", "", "T", "t"])
    ('t', 'column_2', 'T_2', 't_3')
    """
    made: list[str] = []
    taken: set[str] = set()
    tried: dict[str, int] = {}  # or a header of one name, again and again, would take days
    for number, name in enumerate(header, 1):
        plain = name or f"column_{number}"
        unique, again = plain, tried.get(plain.lower(), 2)
        while unique.lower() in taken:
            unique, again = f"{plain}_{again}", again + 1
        taken.add(unique.lower())
        tried[plain.lower()] = again
        made.append(unique)
    return tuple(made)


def rows_above(options: Mapping[str, str]) -> int:
    """Return how many rows stand above the header of each file, or above the data without one:
    the option `skiprows`, names in lower case. Blank lines and comments are not counted."""
    return int(options.get("skiprows", "0"))


def rows_below(options: Mapping[str, str]) -> int:
    """Return how many rows below the header are no data (units): `skiprowsafterheader`.

    >>> rows_below({"skiprowsafterheader": "2"})
    2
    """
    return int(options.get("skiprowsafterheader", "0"))


def open_text(path: str, encoding: str = "utf-8") -> io.TextIOBase:
    """Open a file as text, decompressed by its ending (.gz, .bz2, .zst, .lz4), without its byte
    order mark. Bytes that are not in the encoding are replaced.

    Raises OSError or ArrowInvalid if the file cannot be read, LookupError for an unknown encoding.
    """
    name = encoding.lower().replace("_", "-")
    raw = pa.input_stream(path, compression="detect")
    plain = "utf-8-sig" if name in ("utf-8", "utf8") else encoding
    return io.TextIOWrapper(raw, encoding=plain, errors="replace", newline="")


def read_header(path: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the column names in the first line of a CSV file, or in the one behind the rows that
    are skipped; empty if it has no such line.

    Args:
        path: A local file, compressed or not.
        options: Options of Spark's CSV source, names in lower case: `sep` (or `delimiter`),
            `encoding` (or `charset`), `quote`, `escape`, `comment`, `maxcolumns`,
            `skiprows`, and `ignoreleadingwhitespace`/`ignoretrailingwhitespace`.

    Raises:
        ConfigError: The line is longer than `HEADER_BYTES`, or has more than `MOST_COLUMNS`
            columns.
    """
    sep = options.get("sep") or options.get("delimiter") or ","
    encoding = options.get("encoding") or options.get("charset") or "utf-8"
    quote = options.get("quote", '"') or None
    escape = options.get("escape", "\\")
    comment = options.get("comment")
    with open_text(path, encoding) as opened:
        found = opened.read(HEADER_BYTES)
    if len(found) == HEADER_BYTES and not any(end in found.lstrip() for end in "\r\n"):
        raise ConfigError("header", path, f"has a first line of more than {HEADER_BYTES:,} signs")
    head = io.StringIO(found, newline="")
    lines = (line for line in head if line.strip() and not (comment and line.startswith(comment)))
    for _ in range(rows_above(options)):
        next(lines, "")
    sep = sep.replace("\\t", "\t")
    first = _header_fields(lines, sep, quote, escape, path)
    if options.get("ignoreleadingwhitespace", "").lower() == "true":
        first = [name.lstrip() for name in first]
    if options.get("ignoretrailingwhitespace", "").lower() == "true":
        first = [name.rstrip() for name in first]
    told = options.get("maxcolumns", "")
    most = int(told) if told.isdecimal() else MOST_COLUMNS
    if len(first) > most:
        raise ConfigError(
            "header", path, f"has too many columns: {len(first):,}; maxColumns is {most:,}"
        )
    return column_names(first)


def _header_fields(
    lines: Iterable[str], sep: str, quote: str | None, escape: str, path: str
) -> list[str]:
    """Return the fields of the first line; none if there is no line."""
    if len(sep) > 1:  # Spark takes separators of any length, Python's reader of one character
        line = next(iter(lines), "").rstrip("\r\n")
        return [name.strip(quote) if quote else name for name in line.split(sep)] if line else []
    doubled = escape == quote or escape not in ("\\",)
    reader = csv.reader(
        lines,
        delimiter=sep,
        quotechar=quote,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        doublequote=True,
        escapechar=None if doubled else escape,
    )
    try:
        return next(reader, [])
    except csv.Error as error:
        raise ConfigError("header", path, f"cannot be read: {error}") from error


# -- how long lines are ----------------------------------------------------------------------------


def check_lines(files: Iterable[str], separator: str | None = None) -> None:
    """Raise ConfigError for the first file with a line of more than `LONGEST_LINE` bytes.

    Args:
        files: Local files, compressed or not. One that cannot be read is left to whoever reads it.
        separator: What ends a line; None: a newline or a carriage return.
    """
    ends = (b"\n", b"\r") if separator is None else (separator.encode(),)
    for file in files:
        try:
            packed = file.endswith((".gz", ".bz2", ".zst", ".lz4"))
            at = _long_line_packed(file, ends) if packed else _long_line(file, ends)
        except (OSError, pa.ArrowException):
            continue
        if at is not None:
            raise ConfigError(
                "source", file,
                f"has a line of more than {LONGEST_LINE >> 20} MiB, which begins at byte {at:,}"
                f"{' of what it holds' if packed else ''}; it would not fit into Spark's memory",
            )  # fmt: skip


def _long_line(file: str, ends: Sequence[bytes]) -> int | None:
    """Return where a line that is too long begins in a plain file; None if there is none."""
    size, begins = os.path.getsize(file), 0
    with open(file, "rb") as opened:
        while size - begins > LONGEST_LINE:
            # Of all lines that end within the limit only the last one's end is looked for: those
            # before it are shorter.
            end = _last_end(opened, begins, begins + LONGEST_LINE + 1, ends)
            if end is None:
                return begins
            begins = end
    return None


def _last_end(
    opened: io.BufferedReader, first: int, before: int, ends: Sequence[bytes]
) -> int | None:
    """Return the position behind the last end of a line between two positions; None if none."""
    while before > first:
        start = max(first, before - _BLOCK)
        opened.seek(start)
        block = opened.read(before - start)
        found = max(block.rfind(end) for end in ends)
        if found >= 0:
            return start + found + 1
        before = start
    return None


def _long_line_packed(file: str, ends: Sequence[bytes]) -> int | None:
    """Return where a line that is too long begins in a compressed file; None if there is none."""
    if file.endswith(".gz") and os.path.getsize(file) * _GZIP_RATIO <= LONGEST_LINE:
        return None
    begins, at = 0, 0
    with pa.input_stream(file, compression="detect") as opened:
        while block := opened.read(_BLOCK * 16):
            first = min((p for end in ends if (p := block.find(end)) >= 0), default=len(block))
            if at + first - begins > LONGEST_LINE:
                return begins
            last = max(block.rfind(end) for end in ends)
            begins = at + last + 1 if last >= 0 else begins
            at += len(block)
    return None
