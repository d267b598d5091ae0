"""CSV for gate 1, read as Spark reads it.

    lines ─┬─ as many fields as columns, quotes only around whole fields ─► Arrow's reader ─┐
           └─ all others ─► `fields_of`, character by character ──► texts ─► types ◄────────┘

Spark's rules differ from those of others: a backslash escapes a quote, two quotes do not; a quote
inside a field without quotes is a character; a field that goes on behind its closing quote keeps
its quotes; every line is read on its own, so a quoted newline ends a line (`multiLine` is Spark's
to read). With `escape: '"'` Spark loses some NUL characters in quoted fields; here they stay.

A line with too few or too many fields, or with one that is not of its type, keeps what fits and has
its text in `line_unparsed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tidegate.pipeline.text_files import MOST_COLUMNS, read_header, rows_above, rows_below
from tidegate.spark.columnar.format import Int64s
from tidegate.spark.columnar.lines import Lines, TextColumns, decoded
from tidegate.spark.columnar.text_values import is_utf8, rows_together, text_to_column

__all__ = ["CsvColumns", "fields_of"]


class CsvFile(NamedTuple):
    """How the columns of one file are found.

    - `fields`: per field of a line the column it is; None: one that the schema does not have.
    """

    fields: tuple[str | None, ...]


@dataclass(frozen=True)
class CsvColumns(TextColumns):
    """CSV files below a path; see `TextColumns` for the other arguments.

    Args:
        separator: The character between fields.
        escape: The character that makes a quote in a quoted field a character.
        header: Whether the first line of a file, behind rows that are skipped, names its columns.
        reference: The header of the files that were there when the schema was made; None: unknown.
        by_name: Whether columns are found by their names in the header; else by position, in files
            that have the reference header.
        options: Options of the CSV source for `read_header`, and which rows are skipped; names in
            lower case.
    """

    separator: str = ","
    escape: str = "\\"
    header: bool = False
    reference: tuple[str, ...] | None = None
    by_name: bool = False
    options: tuple[tuple[str, str], ...] = ()

    name = "csv"

    def prepare(self, path: str) -> CsvFile:
        if not self.header:
            return CsvFile(self.names)
        found = read_header(path, dict(self.options))
        if not found or (found == self.reference and not self.by_name):
            return CsvFile(self.names)
        named = set(self.names) & set(found)
        if not self.by_name and self.reference is None and not set(self.names) <= set(found):
            return CsvFile(self.names)  # the schema has names of its own
        if not named or (not self.by_name and not set(self.names) <= set(self.reference or found)):
            raise pa.ArrowInvalid(
                f"its header ({', '.join(found)[:200]}) is another than that of the other files, "
                "and does not name the columns of the schema"
            )
        return CsvFile(tuple(name if name in named else None for name in found))

    def heading(self, about: CsvFile) -> int:
        told = dict(self.options)
        return rows_above(told) + int(self.header) + rows_below(told)

    def rows_of(
        self, lines: Lines, columns: Sequence[str], about: CsvFile
    ) -> tuple[pa.RecordBatch, Int64s, Int64s]:
        count = len(lines.starts)
        places = {name: place for place, name in enumerate(about.fields) if name is not None}
        judged = self.unparsed in columns
        wanted = [name for name in (self.names if judged else columns) if name in places]
        texts, fits = self._texts(lines, [places[name] for name in wanted], len(about.fields))
        bad = ~fits
        made: dict[str, pa.Array] = {}
        for name, text in zip(wanted, texts, strict=True):
            column, wrong = text_to_column(text, self.whole_type(name))
            if wrong is not None:
                bad |= wrong
            if name in columns:
                made[name] = column
        if judged:
            told = np.flatnonzero(bad)
            words = pa.array([decoded(lines.text(n)) for n in told.tolist()], pa.string())
            back = np.full(count, -1, np.int64)
            back[told] = np.arange(len(told))
            made[self.unparsed] = words.take(pa.array(back, mask=back < 0))
        for name in columns:
            if name not in made:
                made[name] = pa.nulls(count, self.whole.field(name).type)
        rows = pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))
        if not columns:
            rows = pa.RecordBatch.from_arrays([pa.nulls(count)], names=["nothing"])
        return rows, np.arange(count, dtype=np.int64), np.zeros(count, np.int64)

    def whole_type(self, name: str) -> pa.DataType:
        """Return the type of a column, also of one that `narrowed` left out."""
        return self.whole.field(name).type

    # -- fields ---------------------------------------------------------------------------------

    def _texts(
        self, lines: Lines, places: Sequence[int], expected: int
    ) -> tuple[list[pa.StringArray], np.ndarray]:
        """Return the fields at these places as text, null where empty, and which lines have as many
        fields as expected.
        """
        count = len(lines.starts)
        plain = self._is_plain(lines, expected)
        parts: list[pa.RecordBatch] = []
        at: list[Int64s] = []
        names = [str(place) for place in places]
        quick = np.flatnonzero(plain)
        if len(quick):
            read = self._by_arrow(lines.some(quick), places, expected)
            if read is None:
                plain[:] = False
            else:
                parts.append(read)
                at.append(quick)
        fits = np.ones(count, np.bool_)
        slow = np.flatnonzero(~plain)
        if len(slow):
            found = []
            for line in slow.tolist():
                text = decoded(lines.text(line))
                fields = fields_of(text, self.separator, self.escape)
                fits[line] = len(fields) == expected and expected <= MOST_COLUMNS
                found.append(fields)
            parts.append(
                pa.RecordBatch.from_arrays(
                    [
                        pa.array([f[p] if p < len(f) else None for f in found], pa.string())
                        for p in places
                    ],
                    names=names,
                )
            )
            at.append(slow)
        if not places:
            return [], fits
        joined = parts[0] if len(parts) == 1 else rows_together(parts, np.concatenate(at))
        return [
            pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            for column in joined.columns
        ], fits

    def _is_plain(self, lines: Lines, expected: int) -> np.ndarray:
        """Return which lines have as many fields as expected, quotes only around whole fields, no
        escape beside quotes, and only text."""
        data, starts, ends = lines.data, lines.starts, lines.ends
        view = np.frombuffer(data, np.uint8)
        plain = np.ones(len(starts), np.bool_)
        if not data.isascii():
            try:
                data.decode("utf-8")
            except UnicodeDecodeError:
                for each in range(len(starts)):
                    plain[each] = is_utf8(lines.text(each))
        separators = np.flatnonzero(view == ord(self.separator))
        quotes = np.flatnonzero(view == ord('"')) if b'"' in data else np.zeros(0, np.int64)
        if len(quotes):
            line = np.searchsorted(starts, quotes, "right") - 1
            inside = (line >= 0) & (quotes < ends[np.maximum(line, 0)])
            quotes, line = quotes[inside], line[inside]
            number = np.arange(len(quotes)) - np.searchsorted(line, line, "left")
            opening = number % 2 == 0
            before = np.where(quotes > starts[line], view[np.maximum(quotes - 1, 0)], 0)
            sep = ord(self.separator)
            good_open = (quotes == starts[line]) | (before == sep)
            last = quotes == ends[line] - 1
            after = view[np.minimum(quotes + 1, len(view) - 1)]
            good_close = last | (after == sep)
            plain[line[opening & ~good_open]] = False
            plain[line[~opening & ~good_close]] = False
            odd = np.bincount(line, minlength=len(starts)) % 2 == 1
            plain &= ~odd
            quoted = np.zeros(len(starts), np.bool_)
            quoted[line] = True
            if self.escape != '"' and self.escape.encode() in data:
                for each in np.flatnonzero(quoted & plain).tolist():
                    plain[each] = self.escape.encode() not in lines.text(each)
            # Separators inside quotes are no separators.
            behind = np.searchsorted(quotes, separators)
            of = np.searchsorted(starts, separators, "right") - 1
            opened = behind - np.searchsorted(line, of, "left")
            separators = separators[opened % 2 == 0]
        of = np.searchsorted(starts, separators, "right") - 1
        inside = (of >= 0) & (separators < ends[np.maximum(of, 0)])
        fields = np.bincount(of[inside], minlength=len(starts)) + 1
        return np.asarray(plain & (fields == expected), np.bool_)

    def _by_arrow(
        self, lines: Lines, places: Sequence[int], expected: int
    ) -> pa.RecordBatch | None:
        """Return fields of plain lines as Arrow reads them; None if it does not."""
        count = len(lines.starts)
        names = [str(place) for place in range(expected)]
        wanted = [names[place] for place in places]
        if not wanted:
            return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["nothing"])
        data = lines.joined()
        types = dict.fromkeys(names, pa.string())
        try:
            read = pa_csv.read_csv(
                pa.BufferReader(data),
                read_options=pa_csv.ReadOptions(
                    use_threads=False, block_size=len(data) + 1, column_names=names
                ),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self.separator, quote_char='"' if b'"' in data else False,
                    double_quote=False, escape_char=False, newlines_in_values=False,
                    ignore_empty_lines=False,
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=types, include_columns=wanted, strings_can_be_null=False,
                    check_utf8=False,
                ),
            )  # fmt: skip
        except pa.ArrowInvalid:
            return None
        if read.num_rows != count:
            return None
        return read.combine_chunks().to_batches()[0]


# -- one line --------------------------------------------------------------------------------------


def fields_of(line: str, separator: str = ",", escape: str = "\\") -> list[str]:
    r"""Return the fields of a line as Spark's CSV reader finds them.

    >>> fields_of('a,"b,c",d')
    ['a', 'b,c', 'd']
    >>> fields_of('"a""b",c')  # a quote that is not escaped: the field keeps all of them
    ['"a""b"', 'c']
    >>> fields_of(r'"a\"b",c"d')
    ['a"b', 'c"d']
    """
    return _LineScanner(line, separator, escape).fields()


class _EndError(Exception):
    """The line is over, in the middle of a field."""


class _LineScanner:
    """Reads a line field by field, as the parser that Spark uses (univocity) does, by its states.

    `sign` is the current character, `last` the one before as far as it matters (empty: it does
    not), `odd` whether a quote was found inside a quoted field that does not end it.
    """

    def __init__(self, line: str, separator: str, escape: str) -> None:
        self.line, self.separator, self.escape = line, separator, escape
        self.escape_of_escape = "" if escape == '"' else escape
        self.separators = re.compile(re.escape(separator))
        self.quotes_and_escapes = re.compile(f'["{re.escape(escape)}]')
        self.at = 0
        self.sign: str = ""
        self.last: str = ""
        self.made: list[str] = []
        self.odd = False

    def fields(self) -> list[str]:
        """Return all fields."""
        found: list[str] = []
        try:
            self._next()
            while True:
                self.last, self.odd = "", False
                if self.sign == '"':
                    self._quoted()
                elif self.sign != self.separator:
                    start = self.at - 1
                    end = self.line.find(self.separator, start)
                    if end < 0:
                        return [*found, self.line[start:]]
                    self.made = [self.line[start:end]]
                    self.sign, self.at = self.separator, end + 1
                found.append("".join(self.made))
                self.made = []
                self._next()
        except _EndError:
            if self.sign == '"' and self.last != '"' and not self.odd:
                self.made.append('"')
            return [*found, "".join(self.made)]

    def _next(self) -> None:
        """Go to the next character. Raises _EndError, and stays, if there is none."""
        if self.at >= len(self.line):
            raise _EndError
        self.sign = self.line[self.at]
        self.at += 1

    def _take_until(self, stops: re.Pattern[str]) -> None:
        """Add characters to the field up to one of `stops`, which becomes the current one."""
        begin = self.at - 1
        found = stops.search(self.line, begin)
        if found is None:
            self.made.append(self.line[begin:])
            self.at = len(self.line)
            raise _EndError
        self.made.append(self.line[begin : found.start()])
        self.sign, self.at = found[0], found.end()

    def _quoted(self) -> None:
        """Read a field that begins with a quote, up to the separator behind it."""
        if self.last:  # it goes on behind its closing quote: quotes are characters in it
            self.made.insert(0, '"')
            self._next()
            self._take_until(self.separators)
        else:
            self._next()
            self._rest_of_quoted()

    def _rest_of_quoted(self) -> None:
        """Read a quoted field from the character behind its opening quote on."""
        while not (self.last == '"' and (self.sign <= " " or self.sign == self.separator)):
            if self.sign not in ('"', self.escape):
                if self.last == '"':
                    self.odd = True
                    self.made += ['"', self.sign]
                    self.last = self.sign
                    self._quoted()
                    return
                if self.last == self.escape:
                    self.made.append(self.escape)
                self._take_until(self.quotes_and_escapes)
                self.last = self.sign
                self._next()
            else:
                if self._escaped():
                    self._unquoted()
                self.last = self.sign
                self._next()
                if self.odd and self.sign == self.separator:
                    return
        if self.sign == self.separator:
            return
        spaces = []
        while self.sign <= " " and self.sign != self.separator:
            spaces.append(self.sign)
            self._next()
        if self.sign != self.separator:
            self.made += ['"', *spaces, self.sign]
            self.last = self.sign
            self._quoted()

    def _escaped(self) -> bool:
        """Look at a quote or an escape in the light of the character before. Returns whether that
        was a quote which turns out to be a character."""
        if self.sign == self.escape and self.last == self.escape_of_escape != "":
            self.made.append(self.escape)
            self.sign = ""
        elif self.last == self.escape:
            if self.sign == '"':
                self.made.append('"')
                self.sign = ""
            else:
                self.made.append(self.last)
        elif self.sign == '"' and self.last == '"':
            self.made.append('"')
        elif self.last == '"':
            self.made.append('"')
            self.last = self.sign
            return True
        return False

    def _unquoted(self) -> None:
        """Read the rest of a field in which a quote turned out to be a character.

        In the parser that Spark uses this calls itself for every further such quote, and each call
        swallows a separator; here they are counted, as a line may have thousands.
        """
        swallowed = 0
        while self.sign != self.separator or swallowed:
            if self.sign == self.separator:
                swallowed -= 1
            elif self.sign not in ('"', self.escape):
                if self.last == '"':
                    self.made.append('"')
                    self.last = self.sign
                    continue
                self.made.append(self.sign)
            elif self._escaped():
                swallowed += 1
                continue
            self.last = self.sign
            self._next()
