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
from tidegate.spark.columnar.lines import MARK, Lines, TextColumns, decoded
from tidegate.spark.columnar.text_values import column_of, is_utf8, parse_text, text_to_column

__all__ = ["JsonColumns", "JsonScanner", "is_readable_json"]

DEEPEST = 1000
"""Levels of objects and arrays in a line. Spark's parser (Jackson) refuses a line with more."""

_ARROW_ONLY = re.compile(rb"[\[:,]\s*(?:-NaN|-?Inf)")
"""Numbers that Arrow's reader takes and Spark's does not; `-Infinity` is one for both."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


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
        if b"\0" in data or not is_utf8(data) or _ARROW_ONLY.search(data) or _is_deep(lines):
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
        wanted = json_shape(pa.struct(list(schema)))
        for number in range(len(lines.starts)):
            raw = lines.text(number)
            text = decoded(raw)
            try:
                rows = JsonScanner(_line_text(raw)).rows(wanted)
            except ValueError:  # no JSON, or not of objects
                rows = [Converted({}, False)]
            fits = all(row.fits for row in rows)
            for place, row in enumerate(rows):
                for column, name in zip(values, schema.names, strict=True):
                    column.append(row.value.get(name))
                unparsed.append(None if fits else text)
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


def _is_deep(lines: Lines) -> bool:
    """Whether a line has more levels than Spark's parser takes; Arrow's has no limit."""
    for line in np.flatnonzero(lines.ends - lines.starts > 2 * DEEPEST).tolist():
        text = lines.text(line)
        if text.count(b"[") + text.count(b"{") > DEEPEST:
            signs = np.frombuffer(_TEXT.sub(b"", text), np.uint8) | 32  # [ and { differ in one bit
            levels = np.cumsum((signs == ord("{")).astype(np.int64) - (signs == ord("}")))
            if levels.max() > DEEPEST:
                return True
    return False


def _line_text(line: bytes) -> str:
    """Return the text of a line up to what is not UTF-8: what stands behind the value is not looked
    at. Spark's parser takes a byte order mark before it for nothing, in every line."""
    line = line.removeprefix(MARK)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        return line[: error.start].decode("utf-8")


# -- one line --------------------------------------------------------------------------------------


class JsonShape(NamedTuple):
    """What is read of a value.

    - `kind`: the type of the column, of a field or of an element.
    - `shape`: text, object, array or value.
    - `fields`: of an object, what is read of its fields, by name. Others are skipped.
    - `element`: of an array, what is read of its elements.
    """

    kind: pa.DataType
    shape: str
    fields: dict[str, JsonShape]
    element: JsonShape | None


def json_shape(kind: pa.DataType) -> JsonShape:
    """Return what is read of a value for a type."""
    if pa.types.is_struct(kind):
        return JsonShape(kind, "object", {each.name: json_shape(each.type) for each in kind}, None)
    if pa.types.is_list(kind):
        return JsonShape(kind, "array", {}, json_shape(kind.value_type))
    return JsonShape(kind, "text" if pa.types.is_string(kind) else "value", {}, None)


class Converted(NamedTuple):
    """A value of a column, and whether all of it is of its type. One that is not has the value None
    unless it is an object: that keeps the fields that are."""

    value: Any
    fits: bool


_NOT_NUMBERS = {
    "NaN": "NaN", "+INF": "Infinity", "-INF": "-Infinity",
    "Infinity": "Infinity", "+Infinity": "Infinity", "-Infinity": "-Infinity",
}  # fmt: skip


def _convert(token: str, text: str, kind: pa.DataType) -> Converted:
    """Return a text, a number, true or false as a value that Arrow takes for a type; `text` is what
    is written, of a text without its quotes and escapes."""
    types = pa.types
    found: Any = None
    if types.is_boolean(kind):
        found = {"true": True, "false": False}.get(token)
    elif types.is_integer(kind) and token == "number" and _INTEGER.fullmatch(text):
        found = parse_text(text, pa.int16() if types.is_int8(kind) else kind)
        if found is not None and types.is_int8(kind):  # Java takes bytes without a sign, too
            found = (found + 128) % 256 - 128 if -128 <= found <= 255 else None
    elif types.is_floating(kind):
        if token == "number":
            found = float(_NOT_NUMBERS.get(text, text))
            if _INTEGER.fullmatch(text):
                found += 0.0  # a whole number has no negative zero
        elif token == "text" and text in _NOT_NUMBERS:
            found = float(_NOT_NUMBERS[text])
    elif types.is_timestamp(kind):
        if token == "text" and text:
            found = parse_text(text, kind)
        elif token == "number" and kind.tz is not None and _INTEGER.fullmatch(text):
            seconds = parse_text(text, pa.int64())
            found = None if seconds is None else _wrapped(seconds * 1_000_000)
    return Converted(found, found is not None)


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
_CLOSING = {"{": "}", "[": "]"}


class JsonScanner:
    """Reads the first value of a line as Spark's parser (Jackson) does: quotes may be single ones,
    and numbers may be infinite or not a number. What stands behind it is not looked at. Only what
    is wanted is kept: a line may hold millions of values in fields that nobody reads.

    >>> row = json_shape(pa.struct([("a", pa.string()), ("b", pa.int64())]))
    >>> [one.value for one in JsonScanner("[{'a': [1.50, NaN]}, {'b': 2, 'c': 3}]").rows(row)]
    [{'a': '[1.50, NaN]'}, {'b': 2}]
    """

    def __init__(self, line: str) -> None:
        self.line, self.at, self.depth = line, 0, 0

    def rows(self, wanted: JsonShape) -> list[Converted]:
        """Return the object of the line, or all those in its array. Raises ValueError if the line
        is not JSON, or something else."""
        if self._sign() != "[":
            return [self._row(wanted)]
        return [self._row(wanted) for _ in self._members("]")]

    def _row(self, wanted: JsonShape) -> Converted:
        if self._sign() != "{":
            raise ValueError(f"no object at {self.at}")
        return self._object(wanted)

    def value(self, wanted: JsonShape) -> Converted:
        """Return the value at the current position, and go behind it. Raises ValueError if there is
        none."""
        sign = self._sign()
        if sign == "{" and wanted.shape == "object":
            return self._object(wanted)
        if sign == "[" and wanted.shape == "array":
            return self._array(wanted)
        start = self.at
        token, text = self._any()
        if token == "null":
            return Converted(None, True)
        if wanted.shape == "text":
            return Converted(self.line[start : self.at] if text is None else text, True)
        return Converted(None, False) if text is None else _convert(token, text, wanted.kind)

    def _object(self, wanted: JsonShape) -> Converted:
        made: dict[str, Any] = {}
        fits = True
        for name in self._members("}"):
            inner = wanted.fields.get(name)
            if inner is None:
                self._any()
                continue
            one = self.value(inner)
            fits = fits and one.fits
            if one.fits or one.value is not None:
                made[name] = one.value
        return Converted(made, fits)

    def _array(self, wanted: JsonShape) -> Converted:
        assert wanted.element is not None
        each = [self.value(wanted.element) for _ in self._members("]")]
        if any(one.value is None and not one.fits for one in each):
            return Converted(None, False)
        return Converted([one.value for one in each], all(one.fits for one in each))

    def _members(self, end: str) -> Iterator[str]:
        """Go into an object or an array and yield before each of its members: the name, in an
        array nothing. The member must be read before the next one."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("too deep")
        self.at += 1
        more = self._sign() != end
        if not more:
            self.at += 1
        while more:
            yield self._name() if end == "}" else ""
            more = self._goes_on(end)
        self.depth -= 1

    def _goes_on(self, end: str) -> bool:
        """Whether another member follows; goes behind the comma, or the end."""
        sign = self._sign()
        self.at += 1
        if sign not in (",", end):
            raise ValueError(f"no comma at {self.at - 1}")
        return sign == ","

    def _name(self) -> str:
        """Return the name of a field, and go behind its colon."""
        if self._sign() not in _PLAIN:
            raise ValueError(f"no name at {self.at}")
        name = self._text()
        if self._sign() != ":":
            raise ValueError(f"no colon at {self.at}")
        self.at += 1
        return name

    def _any(self) -> tuple[str, str | None]:
        """Go behind the value at the current position. Returns what it is (text, number, true,
        false, null, nested) and its text; None for objects and arrays, which are `nested`."""
        sign = self._sign()
        if sign in _PLAIN:
            return "text", self._text()
        if sign not in _CLOSING:
            return self._word()
        ends: list[str] = []
        while True:  # without recursion: Python's stack is shorter than what Spark reads
            sign = self._sign()
            if sign in _CLOSING:
                ends.append(_CLOSING[sign])
                if self.depth + len(ends) > DEEPEST:
                    raise ValueError("too deep")
                self.at += 1
                if self._sign() != ends[-1]:
                    if ends[-1] == "}":
                        self._name()
                    continue
            elif sign in _PLAIN:
                self._text()
            else:
                self._word()
            while ends and not self._goes_on(ends[-1]):
                ends.pop()
            if not ends:
                return "nested", None
            if ends[-1] == "}":
                self._name()

    def _word(self) -> tuple[str, str]:
        """Return what a number or a word is, and its text."""
        start = self.at
        found = _NUMBER.match(self.line, start)
        token = "number"
        if found is None:
            found = _WORD.match(self.line, start)
            if found is None:
                raise ValueError(f"no value at {start}")
            token = found[0]
            if token in _NOT_NUMBERS:
                token = "number"
            elif token not in ("true", "false", "null"):
                raise ValueError(f"no value at {start}")
        self.at = found.end()
        if self.at < len(self.line) and self.line[self.at] not in _ENDS:
            raise ValueError(f"no end of a value at {self.at}")
        return token, found[0]

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
