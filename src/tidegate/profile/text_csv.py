"""Read CSV of any dialect, and find out how Spark must be told to read it the same way.

In this order: encoding and byte order mark, comment lines, the delimiter, where the table begins
(`table_begin`: lines above the header, units below it); then every file is read by Arrow with all
columns as text, and only after that the type of each column is decided, over all rows that were
read: a column is a number only if every value of it is one, so that no value of a run becomes null
without a word.

A number with a leading zero (`007`) stays text: it is an identifier. A number with a decimal comma
stays text too, because Spark cannot read it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from tidegate.core.text import plural
from tidegate.errors import DataError
from tidegate.pipeline.text_files import column_names
from tidegate.profile.rows import LoadedRows, joined_rows
from tidegate.profile.table_begin import NULL_WORDS, VALUE, TableBegin, find_table, is_data

__all__ = ["SKIPPED", "CsvLayout", "load_csv", "sniff_csv", "text_column_type"]

HEAD_BYTES = 1 << 18
"""Bytes from which the layout of a file is guessed: some thousand lines."""

MOST_BYTES = 1 << 30
"""Bytes of text kept in memory. Rows beyond are counted, not looked at."""

SEPARATORS = ("\t", ";", "|", ",")
"""Delimiters that are tried. Of several that cut all lines into the same number of fields the first
one counts: a comma may be a decimal comma or part of a text, the others hardly."""

_INTEGER = r"^-?(0|[1-9][0-9]{0,17}|[1-8][0-9]{18})$"
_DIGITS = r"^-?[0-9]+$"
_NUMBER = r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^NaN$|^-?Inf$"
_NUMBER_AND_COMMA = r"^[+-]?[0-9]{1,3}(\.?[0-9]{3})*,[0-9]+$"


@dataclass(frozen=True)
class CsvLayout:
    """How the lines of a CSV file are to be read.

    Attributes:
        sep: The delimiter.
        encoding: As Spark and Python name it.
        header: Whether the first line names the columns.
        names: The names of the columns: of the header, or made up.
        skipped: Lines before the first row that are not comments, blank ones included.
        above: Lines above the header, or above the data, that are no part of the table.
        below: Lines between header and data that are no data.
        units: Names of columns with the text that stands below them.
        short: Whether the header has one name less than the rows have fields.
        cut_header: Whether a name in the header has line ends between quotes.
        escape: The sign before a quote inside quotes: `"` if quotes are doubled.
        comment: The sign that comment lines begin with.
        trim: Whether blanks around values are not part of them.
    """

    sep: str
    encoding: str
    header: bool
    names: tuple[str, ...]
    skipped: int = 0
    escape: str | None = None
    comment: str | None = None
    trim: bool = False
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    short: bool = False
    cut_header: bool = False

    def options(self) -> dict[str, Any]:
        """Return the options of a source that reads such files."""
        made: dict[str, Any] = {"header": self.header}
        if self.sep != ",":
            made["sep"] = self.sep
        if self.encoding != "UTF-8":
            made["encoding"] = self.encoding
        if self.escape == '"':
            made["escape"] = '"'
        if self.comment:
            made["comment"] = self.comment
        if self.above:
            made["skipRows"] = len(self.above)
        if self.below:
            made["skipRowsAfterHeader"] = len(self.below)
        if self.trim:
            made |= {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
        if self.cut_header or self.encoding.startswith("UTF-16"):
            made["multiLine"] = True  # else Spark cuts lines between the two bytes of a sign
        return made


def sniff_csv(path: Path) -> CsvLayout:
    """Guess the layout of a CSV file from its beginning.

    Raises:
        DataError: The file is not text.
    """
    with pa.input_stream(str(path), compression="detect") as opened:
        head = opened.read(HEAD_BYTES)
    encoding = _encoding(head)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    text = decoder.decode(head, final=False).removeprefix("\ufeff")
    if text.count("\0") > len(text) // 1000:
        raise DataError(f"{path.name} is not text")
    if text[:200].lstrip().lower().startswith(("<!doctype html", "<html")):
        raise DataError(f"{path.name} is a page of the web, not a table")
    if re.match(r"\s*(\[\s*)?\{\s*\"", text):
        raise DataError(f"{path.name} holds JSON, not a table: give it a name that ends in .json")
    if len(head) == HEAD_BYTES and not re.search(r"[\r\n]", text):
        raise DataError(f"{path.name} has no line end in its first {HEAD_BYTES:,} bytes: no table")
    whole = len(head) < HEAD_BYTES
    lines = _LINE.findall(text)
    if not whole and len(lines) > 1:
        lines = lines[:-1]  # cut off in the middle
    every, lines = lines, [line for line in lines if not _is_blank(line)]
    sign = _comment_sign(lines)
    hashes = 0
    while hashes < len(lines) and lines[hashes].startswith(sign):
        hashes += 1
    plain = [line for line in lines[hashes:] if not line.startswith(sign)]
    escape = None
    if '"' in text:
        escape = None if '\\"' in text else '"'
    told = re.fullmatch(r'"?sep=(.)"?\s*', plain[0]) if plain else None
    sep = told[1] if told else _separator(plain or lines, escape)
    if sep == "," and _aligned_by_blanks(plain):
        raise DataError(
            f"{path.name} has columns that are aligned by blanks, which Spark does not cut: make "
            f"one tab of them with: sed -E 's/^ +//; s/ +/\\t/g' {path.name} > table.tsv"
        )
    excel = 1 if told else 0  # Excel reads that line and does not show it
    rows = _fields(plain[excel : SNIFFED_LINES + excel], sep, escape)
    begin = find_table(rows) if rows else TableBegin()
    body = rows[begin.above :]
    comment = sign if len(plain) < len(lines) else None
    if hashes and not begin.above and not excel:
        named = _names_in_comment(lines[:hashes], body, sep, escape, sign)
        if named is not None:
            header = hashes == 1 and sep != " " and not _FIELDS_LABEL.match(lines[0])
            after = 0 if not header else every.index(lines[0]) + 1
            return CsvLayout(sep, encoding, header, named, after, escape, None if header else sign)
    if not body:
        return CsvLayout(sep, encoding, True, (), escape=escape, comment=comment)
    trim = _has_blanks(body)
    first = [name.strip() for name in body[0]] if trim else body[0]
    above = begin.above + excel
    until = above + begin.header + begin.below
    broken = sum(_line_ends(row) for row in rows[: until - excel])
    numbers = [n for n, line in enumerate(every, 1)
               if not _is_blank(line) and not line.startswith(sign)]  # fmt: skip
    _check_begin(path, plain[excel:], numbers[excel:], rows, begin)
    ends = set(re.findall(r"\r\n|\r|\n", re.sub(r'"[^"]*"', "", "".join(every))))
    if encoding.startswith("UTF-16") and len(ends) > 1:
        # Spark takes the first line end for all of them where it may not cut lines itself.
        raise DataError(
            f"{path.name} is {encoding} and its lines end in different ways, which Spark does not "
            f"read: write it anew with: iconv -f {encoding} -t UTF-8 {path.name} | tr -d '\\r' > "
            "table.csv"
        )
    layout = CsvLayout(
        sep, encoding, begin.header, (), _lines_until(every, until, comment) + broken, escape,
        comment, trim, above=tuple(map(str.strip, plain[:above])),
        below=tuple(map(str.strip, plain[above + 1 : until])) if begin.below else (),
        short=begin.short, cut_header=broken > 0,
    )  # fmt: skip
    if not begin.header:
        counts = [len(row) for row in body]
        width = max(sorted(set(counts), reverse=True), key=counts.count)
        return replace(layout, names=tuple(f"column_{n}" for n in range(1, width + 1)))
    if begin.short:  # a blank field at the end of all rows, or a name for each row in front of it
        at_end = all(not row[-1].strip() for row in body[1 + begin.below :] if row)
        first = [*first, ""] if at_end else ["", *first]
    names = column_names(first)
    found = dict.fromkeys(names, "")
    for row in body[1 : 1 + begin.below]:
        for name, field in zip(names, row, strict=False):
            found[name] = found[name] or field.strip()
    return replace(layout, names=names, units=tuple((n, u) for n, u in found.items() if u))


SKIPPED = "skipped"
"""The word in notes about lines that are no data."""

SNIFFED_LINES = 1000
"""Lines by which it is decided where a table begins."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Spark cuts it; Python's `splitlines` knows further signs that end one."""


def _is_blank(line: str) -> bool:
    """Return whether Spark takes a line for blank: it holds nothing above a space."""
    return not line or max(line) <= " "


def _lines_until(lines: list[str], count: int, comment: str | None) -> int:
    """Return after how many lines, comments left out, `count` of them were not blank."""
    kept = [line for line in lines if comment is None or not line.startswith(comment)]
    if count == 0:
        return 0
    full = [number for number, line in enumerate(kept, 1) if not _is_blank(line)]
    return full[count - 1]


def _names_in_comment(
    comments: list[str], body: list[list[str]], sep: str, escape: str | None, sign: str
) -> tuple[str, ...] | None:
    """Return the names of the columns if the comments above the data hold them; else None."""
    if not body or not is_data(body):
        return None
    labelled = [line for line in comments if _FIELDS_LABEL.match(line)]
    if labelled:
        named = _fields([_FIELDS_LABEL.sub("", labelled[-1])], sep, escape)[0]
        if len(named) == len(body[0]):
            return column_names(named)
    above = _fields([_bare_comment(comments[-1], sep, sign)], sep, escape)
    if not above or len(above[0]) != len(body[0]) or len(body[0]) < 2:
        return None
    if len(comments) == 1 and sep != " ":
        return column_names(above[0])
    first_name = above[0][0].lstrip(f"{sign} ")
    return column_names([first_name, *(name.strip() for name in above[0][1:])])


_FIELDS_LABEL = re.compile(r"#\s*fields:?\s+", re.IGNORECASE)
"""The beginning of the comment in which logs in the form of W3C or Zeek name their columns."""


def _line_ends(row: list[str]) -> int:
    """Return how many line ends there are inside the fields of a row."""
    return sum(len(re.findall(r"\r\n|\r|\n", field)) for field in row)


def _check_begin(
    path: Path, plain: list[str], numbers: list[int], rows: list[list[str]], begin: TableBegin
) -> None:
    """Raise DataError if it cannot be told by counting lines where the data begins.

    Args:
        path: The file.
        plain: Its lines that are neither blank nor comments.
        numbers: The numbers of these lines in the file, from 1.
        rows: The fields of these lines.
        begin: Where the table begins.
    """
    until = begin.above + begin.header + begin.below
    place = begin.above + sum(_line_ends(row) for row in rows[: begin.above])
    cut = f"tail -n +{numbers[place]} {path.name} > table.csv"
    if begin.above + begin.below and any(_line_ends(row) for row in rows[:until]):
        what = "take what is above the table out" if begin.above else "write its header in one line"
        raise DataError(
            f"{path.name} has line ends inside quotes above its data, which cannot be counted: "
            f"{what}{f' with: {cut}' if begin.above else ''}"
        )
    if begin.doubt:
        first = begin.above + begin.short
        raise DataError(
            f"{path.name} has {plural(first, 'line')} above its data "
            f"({plain[first - 1].strip()[:60]!r}) with another number of fields: give line "
            f"{numbers[first - 1]} a name for each column, or take what is no data out with: "
            f"tail -n +{numbers[first]} {path.name} > table.csv"
        )
    above = rows[begin.above - 1] if begin.above and not begin.header else []
    if len(above) > 1 and not any(VALUE.fullmatch(field.strip()) for field in above):
        raise DataError(
            f"{path.name} has {plural(len(above), 'name')} above its data "
            f"({plain[begin.above - 1].strip()[:60]!r}), and rows of "
            f"{plural(len(rows[begin.above]), 'field')}: name all columns in line "
            f"{numbers[begin.above - 1]}, or take what is above the data out with: {cut}"
        )


def _comment_sign(lines: list[str]) -> str:
    """Return the sign that lines above the table begin with: `#`, or another one that comments
    begin with in other programs and that no line below them begins with."""
    for sign in "%!":
        count = 0
        while count < len(lines) and lines[count].startswith(sign):
            count += 1
        if 0 < count < len(lines) and not any(line.startswith(sign) for line in lines[count:]):
            return sign
    return "#"


def _bare_comment(line: str, sep: str, sign: str) -> str:
    """Return a comment line whose fields are counted: a blank behind its sign is no delimiter."""
    return line.lstrip(f"{sign} ") if sep == " " else line


def _encoding(head: bytes) -> str:
    """Guess the encoding of text from its first bytes."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if len(head) > 3 and head[1::2].count(0) > len(head) // 3:
        return "UTF-16LE"
    if len(head) > 3 and head[0::2].count(0) > len(head) // 3:
        return "UTF-16BE"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
        return "UTF-8"
    except UnicodeDecodeError:
        if _is_shift_jis(head):
            return "Shift_JIS"
        # The range that ISO 8859-1 leaves to control signs holds quotes and the euro in Windows.
        return "windows-1252" if re.search(rb"[\x80-\x9f]", head) else "ISO-8859-1"


def _is_shift_jis(head: bytes) -> bool:
    """Return whether bytes are Japanese text: readable as that, and with many bytes that are quotes
    and dashes in Windows, where they are rare."""
    high = len(re.findall(rb"[\x80-\xff]", head))
    if 4 * len(re.findall(rb"[\x80-\x9f]", head)) < high:
        return False
    try:
        codecs.getincrementaldecoder("shift_jis")().decode(head, final=False)
    except UnicodeDecodeError:
        return False
    return True


def _fields(lines: list[str], sep: str, escape: str | None) -> list[list[str]]:
    """Return the fields of some lines."""
    backslash = escape is None and any('\\"' in line for line in lines)
    reader = csv.reader(lines, delimiter=sep, doublequote=True,
                        escapechar="\\" if backslash else None)  # fmt: skip
    try:
        return [row for row in reader if row]
    except csv.Error:  # a NUL, or a field of more than 128 KiB
        return [line.rstrip("\r\n").split(sep) for line in lines]


def _aligned_by_blanks(lines: list[str]) -> bool:
    """Return whether lines are cut into the same number of fields by runs of blanks, and by nothing
    else."""
    lines = lines[:200]
    if not lines or any(sep in line for line in lines for sep in SEPARATORS):
        return False
    counts = [len(line.split()) for line in lines]
    wide = sum("  " in line.strip() for line in lines)
    return min(counts) == max(counts) > 1 and wide > len(lines) // 2


_QUOTED = re.compile(r'(?:(?<=[\s,;|])|^)"(?:[^"]|"")*"(?=[\s,;|]|$)')
"""Text between quotes, in which signs cut nothing."""


def _separator(lines: list[str], escape: str | None) -> str:
    """Guess the delimiter: the one that cuts most lines into the same number of fields."""
    best, found = 0.0, ","
    lines = [_QUOTED.sub('""', line) for line in lines[:200]]  # (X11; Linux) cuts no line
    for sep in SEPARATORS:
        counts = [len(row) for row in _fields(lines[:200], sep, escape)]
        if not counts:
            continue
        usual = max(set(counts), key=counts.count)
        share = counts.count(usual) / len(counts)
        if usual > 1 and share > best + 0.05:
            best, found = share, sep
    if best == 0.0 and not any("  " in line.strip() for line in lines):
        counts = [len(row) for row in _fields(lines[:200], " ", escape)]
        if counts and min(counts) == max(counts) > 2:
            return " "
    return found


def _has_blanks(rows: list[list[str]]) -> bool:
    """Return whether delimiters are followed by blanks that are no part of the values."""
    fields = [field for row in rows for field in row[1:] if field]
    padded = sum(field[0] == " " for field in fields)
    return bool(fields) and padded > len(fields) // 2


# -- reading --------------------------------------------------------------------------------------


def load_csv(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read CSV files; see the head of this module.

    Files with other headers than the first are joined by the names of their columns.

    Raises:
        DataError: A file is not text, or files differ in delimiter, encoding or header line, which
            one pipeline cannot read.
    """
    layouts = [sniff_csv(file) for file in files]
    main = next((each for each in layouts if each.names), layouts[0])
    options = main.options()
    unreadable: dict[str, int] = {}
    tables: list[pa.Table] = []
    total, left, size = 0, limit, 0
    for file, layout in zip(files, layouts, strict=True):
        if not layout.names:
            tables.append(pa.table({}))
            continue
        if layout.options() != options and not _agrees(layout, main):
            raise DataError(
                f"{file.name} is written in another way than {files[0].name} "
                f"({layout.options()} and {options}): inspect them one by one"
            )
        if layout.short and layout.names != main.names:
            raise DataError(
                f"{file.name} has another header than {files[0].name}, with one name less than its "
                "rows have fields: inspect them one by one"
            )
        most = left if size < MOST_BYTES else 0
        table, rows, ragged = _read_text(file, layout, most)
        if ragged:
            reason = f"lines of {file.name} with another number of fields than its header"
            unreadable[reason] = ragged
        tables.append(table)
        total, left, size = total + rows, left - table.num_rows, size + table.nbytes
    options |= {name: True for each in layouts for name, v in each.options().items()
                if name == "multiLine" and v}  # fmt: skip
    if any(each.escape == '"' for each in layouts):
        options["escape"] = '"'
    return _typed(tables, total, options, unreadable, main)


def _agrees(layout: CsvLayout, main: CsvLayout) -> bool:
    """Return whether one set of options reads both: all but the sign for escapes is the same."""
    first, second = layout.options(), main.options()
    first.pop("escape", None), second.pop("escape", None)
    return first == second


def _read_text(file: Path, layout: CsvLayout, limit: int) -> tuple[pa.Table, int, int]:
    """Read a file with all columns as text.

    Returns:
        Up to `limit` rows, the number of rows there are, and of lines with another number of
        fields.
    """
    names = list(layout.names)
    ragged = 0

    def skip(row: Any) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    schema = pa.schema([(name, pa.string()) for name in names])
    raw = pa.input_stream(str(file), compression="detect")
    encoding = layout.encoding
    if layout.comment or encoding != "UTF-8":
        text = io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="").read()
        lines = text.removeprefix("\ufeff").splitlines(keepends=True)
        kept = (line for line in lines if not (layout.comment and line.startswith(layout.comment)))
        raw = pa.BufferReader("".join(kept).encode())
    backslash = layout.escape is None
    options: dict[str, Any] = {
        "read_options": pacsv.ReadOptions(
            column_names=names, skip_rows=layout.skipped, block_size=8 << 20
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=layout.sep, double_quote=True, escape_char="\\" if backslash else False,
            newlines_in_values=True, invalid_row_handler=skip,
        ),
        "convert_options": pacsv.ConvertOptions(
            column_types={name: pa.string() for name in names}, null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False, check_utf8=False,
        ),
    }  # fmt: skip
    try:
        reader = pacsv.open_csv(raw, **options)
    except pa.ArrowInvalid as error:
        if "Could not skip initial" in str(error):  # there is nothing behind the header
            return schema.empty_table(), 0, 0
        raise
    with reader:
        batches, rows = [], 0
        for batch in reader:
            if rows < limit:
                batches.append(batch.slice(0, limit - rows))
            rows += batch.num_rows
    table = pa.Table.from_batches(batches, schema)
    if layout.trim:
        for place, name in enumerate(names):
            trimmed = pc.utf8_trim_whitespace(table.column(place))
            trimmed = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
            table = table.set_column(place, name, trimmed)
    return table, rows, ragged


def _typed(
    tables: list[pa.Table],
    total: int,
    options: dict[str, Any],
    unreadable: dict[str, int],
    layout: CsvLayout,
) -> LoadedRows:
    """Decide the type of each column over all files, and convert it."""
    table = pa.concat_tables(tables, promote_options="permissive")
    notes: list[str] = []
    word = _null_word(table)
    if word is not None:
        options["nullValue"] = word
        notes.append(f"{word!r} stands for no value")
    text: dict[str, pa.ChunkedArray] = {}
    kinds: dict[str, pa.DataType] = {}
    commas = []
    for name in table.column_names:
        column = _cleared(table[name], word)
        text[name] = column
        kinds[name] = text_column_type(column)
        if _values_match(column, _NUMBER_AND_COMMA):
            commas.append(name)
        if pc.any(pc.match_substring(column, "\n")).as_py():
            options["multiLine"] = True
    if commas:
        listed = ", ".join(commas[:3]) + (", ..." if len(commas) > 3 else "")
        several = plural(len(commas), "column")
        stay = "stays" if len(commas) == 1 else "stay"
        notes.append(f"{several} of numbers with a decimal comma ({listed}) {stay} text")
    typed = []
    for each in tables:
        columns = {n: _convert_text(_cleared(each[n], word), kinds[n]) for n in each.column_names}
        typed.append(pa.table(columns) if columns else each)
    notes += _skipped_notes(layout)
    if layout.encoding != "UTF-8":
        notes.append(f"the text is read as {layout.encoding}")
    if not layout.header and layout.names[:1] == ("column_1",):
        notes.append("the first line is data, so the columns have no names")
    elif not layout.header and layout.names:
        notes.append("the names of the columns stand in a comment")
    made = joined_rows(typed, total, options, unreadable, text=text, notes=tuple(notes))
    return replace(made, units=dict(layout.units))


def _skipped_notes(layout: CsvLayout) -> list[str]:
    """Return sentences about the lines above the data that are skipped, and about a short header.

    >>> _skipped_notes(CsvLayout(",", "UTF-8", True, ("t",), above=("Logger 7", "2024")))
    ["2 lines above the header are skipped ('Logger 7', ...)"]
    """
    made = []
    what = "header" if layout.header else "data"
    for lines, where in ((layout.above, f"above the {what}"), (layout.below, "below the header")):
        if lines:
            shown = ", ".join(repr(line[:40]) for line in lines[:1])
            shown += ", ..." if len(lines) > 1 else ""
            are = "is" if len(lines) == 1 else "are"
            made.append(f"{plural(len(lines), 'line')} {where} {are} {SKIPPED} ({shown})")
    if layout.short:
        made.append("the header has one name less than rows have fields")
    return made


def _cleared(column: pa.ChunkedArray, word: str | None) -> pa.ChunkedArray:
    """Return the column with the word for no value replaced by null."""
    if word is None:
        return column
    return pc.if_else(pc.equal(column, word), pa.scalar(None, pa.string()), column)


def _null_word(table: pa.Table) -> str | None:
    """Return the one word that stands for no value in columns of numbers or times.

    Spark knows one such word per source, and takes it for null in all columns. So there is none if
    a column of other text holds it too.
    """
    found: dict[str, int] = {}
    spoiled: set[str] = set()
    for name in table.column_names:
        column = table[name].drop_null()
        words = [w for w in NULL_WORDS if pc.any(pc.equal(column, w)).as_py()]
        for word in words:
            rest = column.filter(pc.not_equal(column, word))
            if len(rest) and (_values_match(rest, _NUMBER) or _values_match(rest, VALUE.pattern)):
                found[word] = found.get(word, 0) + len(column) - len(rest)
            elif len(rest):
                spoiled.add(word)
    usable = {word: count for word, count in found.items() if word not in spoiled}
    return max(usable, key=lambda word: usable[word]) if usable else None


def text_column_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the type that all values of a text column have: integer, float, bool or text.

    >>> columns = (["1", None], ["1", "2.5"], ["01"], [""])
    >>> [str(text_column_type(pa.chunked_array([c]))) for c in columns]
    ['int64', 'double', 'string', 'string']
    """
    values = column.drop_null()
    if len(values) == 0:
        return pa.string()
    first = values[0].as_py()
    if re.fullmatch(r"(?i)true|false", first) and _values_match(values, "(?i)^(true|false)$"):
        return pa.bool_()
    if not re.fullmatch(r"[-+.0-9NI].*", first, re.DOTALL):
        return pa.string()
    if _values_match(values, _INTEGER):
        return pa.int64()
    if _values_match(values, _DIGITS):
        return pa.string()  # too long for an integer, and a float would lose digits
    return pa.float64() if _values_match(values, _NUMBER) else pa.string()


def _values_match(values: pa.ChunkedArray, pattern: str) -> bool:
    """Return whether all values that are not null match a pattern; False if there are none."""
    if len(values) == values.null_count:
        return False
    whole = pattern if pattern.startswith(("^", "(?i)^")) else f"^({pattern})$"
    return bool(pc.all(pc.match_substring_regex(values, whole)).as_py())


def _convert_text(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert text to the type that all its values have."""
    if pa.types.is_string(kind):
        return column
    if pa.types.is_boolean(kind):
        return pc.equal(pc.utf8_lower(column), "true")
    if pa.types.is_floating(kind):
        column = pc.replace_substring(column, "Inf", "inf")
    return column.cast(kind)
