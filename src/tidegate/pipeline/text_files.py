"""CSV headers: the names of the columns of one file, as every reader of it must agree on them.

Used by the Spark source, which matches columns by name, and by `tidegate inspect`, which writes
the schema: a name that the two spelled differently would be a column of nulls.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import pyarrow as pa

__all__ = ["column_names", "open_text", "read_header"]

HEADER_BYTES = 1 << 20
"""Bytes read to find a header. A header with more is cut off, which no real one is; reading whole
files for it would take minutes."""


def column_names(header: Sequence[str]) -> tuple[str, ...]:
    """Return usable names for the fields of a header: none empty, no two alike.

    Spark compares names without regard to case, so `Time` and `time` are alike too. A field without
    a name is called by its number, from 1; a repeated one gets `_2`, `_3`, ... behind it.

    >>> column_names(["t", "", "T", "t"])
    ('t', 'column_2', 'T_2', 't_3')
    """
    made: list[str] = []
    taken: set[str] = set()
    for number, name in enumerate(header, 1):
        plain = name or f"column_{number}"
        unique, again = plain, 2
        while unique.lower() in taken:
            unique, again = f"{plain}_{again}", again + 1
        taken.add(unique.lower())
        made.append(unique)
    return tuple(made)


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
    """Return the column names in the first line of a CSV file; empty if it has no line.

    Args:
        path: A local file, compressed or not.
        options: Options of Spark's CSV source, names in lower case: `sep` (or `delimiter`),
            `encoding` (or `charset`), `quote`, `escape`, `comment`, and
            `ignoreleadingwhitespace`/`ignoretrailingwhitespace`.
    """
    sep = options.get("sep") or options.get("delimiter") or ","
    encoding = options.get("encoding") or options.get("charset") or "utf-8"
    quote = options.get("quote", '"') or None
    escape = options.get("escape", "\\")
    comment = options.get("comment")
    with open_text(path, encoding) as opened:
        head = io.StringIO(opened.read(HEADER_BYTES), newline="")
    lines = (line for line in head if line.strip() and not (comment and line.startswith(comment)))
    doubled = escape == quote or escape not in ("\\",)
    reader = csv.reader(
        lines,
        delimiter=sep.replace("\\t", "\t"),
        quotechar=quote,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        doublequote=True,
        escapechar=None if doubled else escape,
    )
    first = next(reader, [])
    if options.get("ignoreleadingwhitespace") == "true":
        first = [name.lstrip() for name in first]
    if options.get("ignoretrailingwhitespace") == "true":
        first = [name.rstrip() for name in first]
    return column_names(first)
