"""JSON lines for gate 1, read as Spark reads them.

    lines ─┬─ objects that fit the schema ─► Arrow's reader ─────────► columns ◄─┐
           └─ blocks with any other line ─► `JsonScanner`, line by line ─► types ─┘

A line is an object, or an array of objects, each of which is a row. Fields are matched by their
exact names; the last of two with one name counts; a field of text keeps what is no text as it is
written. A field that is not of its type is null, and the text of the line is in `line_unparsed`.

A line that is not JSON has no columns at all. Here Spark sometimes keeps fields that stand before
or behind the damage: which ones depends on where its parser happens to go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from tidegate.spark.columnar.format import Int64s
from tidegate.spark.columnar.lines import Lines, TextColumns
from tidegate.spark.columnar.text_values import column_of, is_utf8, parse_text, text_to_column

__all__ = ["JsonColumns", "JsonScanner", "is_readable_json"]

DEEPEST = 100
"""Levels of objects and arrays in a line. No message has more; Python's stack has an end."""


def is_readable_json(kind: pa.DataType) -> bool:
    """Whether JSON can be read as this type here as Spark does it."""
    types = pa.types
    if types.is_struct(kind):
        return all(is_readable_json(inner.type) for inner in kind)
    if types.is_list(kind):
        return is_readable_json(kind.value_type)
    return bool(
        types.is_string(kind)
        or types.is_signed_integer(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or (types.is_timestamp(kind) and kind.tz in (None, "UTC", "Etc/UTC"))
    )


@dataclass(frozen=True)
class JsonColumns(TextColumns):
    """Files of JSON lines below a path; see `TextColumns` for the arguments."""

    name = "json"

    def prepare(self, path: str) -> None:
        return None

    def rows_of(
        self, lines: Lines, columns: Sequence[str], about: None
    ) -> tuple[pa.RecordBatch, Int64s, Int64s]:
        judged = self.unparsed in columns
        wanted = [name for name in self.names if judged or name in columns]
        schema = pa.schema([self.whole.field(name) for name in wanted])
        count = len(lines.starts)
        quick = self._by_arrow(lines, schema)
        if quick is not None:
            made = dict(zip(wanted, quick, strict=True))
            made[self.unparsed] = pa.nulls(count, pa.string())
            line, index = np.arange(count, dtype=np.int64), np.zeros(count, np.int64)
        else:
            made, line, index = self._by_line(lines, schema)
        rows = pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))
        if not columns:
            rows = pa.RecordBatch.from_arrays([pa.nulls(len(line))], names=["nothing"])
        return rows, line, index

    def _by_arrow(self, lines: Lines, schema: pa.Schema) -> list[pa.Array] | None:
        """Return the columns of lines that are one object each and fit; None if some may not.

        Arrow takes line ends for spaces. Where every line begins and ends with a brace, an object
        that went on in the next line would have one brace behind the other, which is no JSON: so if
        there are as many objects as lines, each line is one.
        """
        count = len(lines.starts)
        if not count or any(pa.types.is_nested(field.type) for field in schema):
            return None
        view = np.frombuffer(lines.data, np.uint8)
        if (view[lines.starts] != ord("{")).any() or (view[lines.ends - 1] != ord("}")).any():
            return None
        data = lines.joined()
        if b"\0" in data or not is_utf8(data):
            return None
        # Times are read as text first: Arrow has other rules for them.
        plain = pa.schema([
            field.with_type(pa.string()) if pa.types.is_timestamp(field.type) else field
            for field in schema
        ] or [pa.field("nothing", pa.null())])  # fmt: skip
        try:
            read = pa_json.read_json(
                pa.BufferReader(data),
                read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pa_json.ParseOptions(
                    explicit_schema=plain, unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if read.num_rows != count:
            return None
        found = []
        for field in schema:
            column = read.column(field.name).combine_chunks()
            if pa.types.is_floating(field.type) and _is_odd(column):
                return None
            if pa.types.is_timestamp(field.type):
                column, wrong = text_to_column(column, field.type)
                if wrong is not None:
                    return None
            found.append(column)
        return found

    def _by_line(
        self, lines: Lines, schema: pa.Schema
    ) -> tuple[dict[str, pa.Array], Int64s, Int64s]:
        """Return the columns of lines of any kind, and for each row its line and its number."""
        values: list[list[Any]] = [[] for _ in schema]
        unparsed: list[str | None] = []
        line: list[int] = []
        index: list[int] = []
        for number in range(len(lines.starts)):
            text = lines.text(number).decode("utf-8", "replace")
            rows = _rows_of_line(text, schema, lines.text(number))
            for place, row in enumerate(rows):
                for column, value in zip(values, row.values, strict=True):
                    column.append(value)
                unparsed.append(None if row.fits else text)
                line.append(number)
                index.append(place)
        made = {
            field.name: column_of(column, field.type)
            for field, column in zip(schema, values, strict=True)
        }
        made[self.unparsed] = pa.array(unparsed, pa.string())
        return made, np.array(line, np.int64), np.array(index, np.int64)


def _is_odd(column: pa.DoubleArray) -> bool:
    """Whether numbers are infinite or a negative zero: these are written in more than one way."""
    values = column.fill_null(1.0).to_numpy()
    return bool((np.isinf(values) | ((values == 0) & np.signbit(values))).any())


# -- one line --------------------------------------------------------------------------------------


class _JsonRow(NamedTuple):
    """The fields of a row in the order of the schema, and whether the line fits it."""

    values: list[Any]
    fits: bool


def _rows_of_line(text: str, schema: pa.Schema, raw: bytes) -> Iterator[_JsonRow]:
    """Yield the rows of a line; one without values if it is not JSON, or not of objects."""
    nothing = _JsonRow([None] * len(schema), False)
    if not is_utf8(raw):
        yield nothing
        return
    try:
        found = JsonScanner(text).value()
    except ValueError:
        yield nothing
        return
    members = found.inside if found.kind == "array" else [found]
    if any(one.kind != "object" for one in members):
        yield nothing
        return
    rows = [_convert_json(one, pa.struct(list(schema))) for one in members]
    fits = all(row.fits for row in rows)
    for row in rows:
        yield _JsonRow([row.value.get(name) for name in schema.names], fits)


class JsonValue(NamedTuple):
    """A value as it stands in a line.

    - `kind`: object, array, text, number, true, false or null.
    - `text`: a text without its quotes and escapes; all others as they are written.
    - `inside`: the (name, value) pairs of an object, the values of an array.
    """

    kind: str
    text: str
    inside: list[Any]


class _Converted(NamedTuple):
    """A value of a column, and whether all of it is of its type. One that is not has the value None
    unless it is an object: that keeps the fields that are."""

    value: Any
    fits: bool


_NOT_NUMBERS = {
    "NaN": "NaN", "+INF": "Infinity", "-INF": "-Infinity",
    "Infinity": "Infinity", "+Infinity": "Infinity", "-Infinity": "-Infinity",
}  # fmt: skip


def _convert_json(value: JsonValue, kind: pa.DataType) -> _Converted:
    """Return a JSON value as one that Arrow takes for a type."""
    types = pa.types
    if value.kind == "null":
        return _Converted(None, True)
    if types.is_string(kind):
        return _Converted(value.text, True)
    if types.is_struct(kind) and value.kind == "object":
        made: dict[str, Any] = {}
        fits = True
        for name, inner in value.inside:
            place = kind.get_field_index(name)
            if place >= 0:
                one = _convert_json(inner, kind.field(place).type)
                fits = fits and one.fits
                if one.fits or one.value is not None:
                    made[name] = one.value
        return _Converted(made, fits)
    if types.is_list(kind) and value.kind == "array":
        each = [_convert_json(inner, kind.value_type) for inner in value.inside]
        if any(one.value is None and not one.fits for one in each):
            return _Converted(None, False)
        return _Converted([one.value for one in each], all(one.fits for one in each))
    found: Any = None
    if types.is_boolean(kind):
        found = {"true": True, "false": False}.get(value.kind)
    elif types.is_integer(kind) and value.kind == "number" and _INTEGER.fullmatch(value.text):
        found = parse_text(value.text, pa.int16() if types.is_int8(kind) else kind)
        if found is not None and types.is_int8(kind):  # Java takes bytes without a sign, too
            found = (found + 128) % 256 - 128 if -128 <= found <= 255 else None
    elif types.is_floating(kind):
        if value.kind == "number":
            found = float(_NOT_NUMBERS.get(value.text, value.text))
            if _INTEGER.fullmatch(value.text):
                found += 0.0  # a whole number has no negative zero
        elif value.kind == "text" and value.text in _NOT_NUMBERS:
            found = float(_NOT_NUMBERS[value.text])
    elif types.is_timestamp(kind):
        if value.kind == "text" and value.text:
            found = parse_text(value.text, kind)
        elif value.kind == "number" and kind.tz is not None and _INTEGER.fullmatch(value.text):
            seconds = parse_text(value.text, pa.int64())
            found = None if seconds is None else _wrapped(seconds * 1_000_000)
    return _Converted(found, found is not None)


def _wrapped(value: int) -> int:
    """Return a whole number as it is in 64 bits: Java's multiplication has no end."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_INTEGER = re.compile(r"-?[0-9]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[+-]?[A-Za-z]+")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\"}
_ENDS = frozenset(" \t\r\n,]}")


class JsonScanner:
    """Reads the first value of a line as Spark's parser (Jackson) does: quotes may be single ones,
    and numbers may be infinite or not a number. What stands behind it is not looked at.

    >>> JsonScanner("{'a': [1.50, NaN]}").value().inside[0][1].text
    '[1.50, NaN]'
    """

    def __init__(self, line: str) -> None:
        self.line, self.at = line, 0

    def value(self, depth: int = 0) -> JsonValue:
        """Return the value at the current position. Raises ValueError if there is none."""
        sign = self._sign()
        start = self.at
        if sign in _PLAIN:
            return JsonValue("text", self._text(), [])
        if sign in ("{", "["):
            if depth >= DEEPEST:
                raise ValueError("too deep")
            self.at += 1
            inside = self._inside("}" if sign == "{" else "]", depth)
            kind = "object" if sign == "{" else "array"
            return JsonValue(kind, self.line[start : self.at], inside)
        found = _NUMBER.match(self.line, start)
        kind = "number"
        if found is None:
            found = _WORD.match(self.line, start)
            if found is None:
                raise ValueError(f"no value at {start}")
            kind = found[0]
            if kind in _NOT_NUMBERS:
                kind = "number"
            elif kind not in ("true", "false", "null"):
                raise ValueError(f"no value at {start}")
        self.at = found.end()
        if self.at < len(self.line) and self.line[self.at] not in _ENDS:
            raise ValueError(f"no end of a value at {self.at}")
        return JsonValue(kind, found[0], [])

    def _inside(self, end: str, depth: int) -> list[Any]:
        """Return the members of an object or an array, up to its end."""
        made: list[Any] = []
        if self._sign() == end:
            self.at += 1
            return made
        while True:
            if end == "}":
                if self._sign() not in _PLAIN:
                    raise ValueError(f"no name at {self.at}")
                name = self._text()
                if self._sign() != ":":
                    raise ValueError(f"no colon at {self.at}")
                self.at += 1
                made.append((name, self.value(depth + 1)))
            else:
                made.append(self.value(depth + 1))
            sign = self._sign()
            self.at += 1
            if sign == end:
                return made
            if sign != ",":
                raise ValueError(f"no comma at {self.at - 1}")

    def _sign(self) -> str:
        """Return the next character that is no space, and go there; empty at the end."""
        space = _SPACE.match(self.line, self.at)
        assert space is not None
        self.at = space.end()
        return self.line[self.at : self.at + 1]

    def _text(self) -> str:
        """Return the text whose opening quote is at the current position, and go behind it."""
        closing = self.line[self.at]
        self.at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN[closing].match(self.line, self.at)
            assert plain is not None
            parts.append(plain[0])
            self.at = plain.end()
            sign = self.line[self.at : self.at + 1]
            self.at += 1
            if sign == closing:
                return "".join(parts)
            if sign != "\\":
                raise ValueError(f"no end of a text at {self.at - 1}")
            parts.append(self._escape())

    def _escape(self) -> str:
        """Return the character behind a backslash, and go behind it; two if they are a pair."""
        sign = self.line[self.at : self.at + 1]
        self.at += 1
        if sign != "u":
            if sign == "'":
                return sign
            if sign not in _ESCAPES:
                raise ValueError(f"no escape at {self.at - 1}")
            return _ESCAPES[sign]
        code = _HEX.match(self.line, self.at)
        if code is None:
            raise ValueError(f"no character at {self.at}")
        self.at += 4
        number = int(code[0], 16)
        if 0xD800 <= number < 0xDC00 and self.line[self.at : self.at + 2] == "\\u":
            second = _HEX.match(self.line, self.at + 2)
            if second is not None and 0xDC00 <= int(second[0], 16) < 0xE000:
                self.at += 6
                return str(json.loads(f'"\\u{code[0]}\\u{second[0]}"'))
        return "?" if 0xD800 <= number < 0xE000 else chr(number)
