"""Read JSON: lines, one array, or an array of records inside a document.

    lines            {"t": 1} ⏎ {"t": 2}          format: json
    an array         [{"t": 1}, {"t": 2}]         format: json, options: {multiLine: true}
    inside           {"features": [{"t": 1}]}     format: json, options: {records: features}

Times stay text, as in Spark. A field that has values of several types is text in both.
"""

from __future__ import annotations

import codecs
import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from tidegate.core.text import plural
from tidegate.errors import DataError
from tidegate.profile.rows import LoadedRows, joined_rows

__all__ = ["load_json"]

BLOCK_BYTES = 16 << 20
"""Arrow refuses a line longer than a block."""


def load_json(files: tuple[Path, ...], limit: int) -> LoadedRows:
    """Read JSON files of one layout.

    Raises:
        DataError: A file is no JSON, holds no records, or files differ in their layout.
    """
    tables: list[pa.Table] = []
    layouts: list[dict[str, Any]] = []
    total, left = 0, limit
    for file in files:
        text = _utf8_text(file)
        if not text.strip():
            tables.append(pa.table({}))
            continue
        table, rows, options = _read(file.name, text, left, alone=len(files) == 1)
        layouts.append(options)
        tables.append(table)
        total, left = total + rows, left - table.num_rows
    options = layouts[0] if layouts else {}
    if any(each != options for each in layouts):
        raise DataError("its files are JSON in different layouts: inspect them one by one")
    return joined_rows([_without_nulls(table) for table in tables], total, options)


def _utf8_text(file: Path) -> str:
    """Return the text of a file.

    Raises:
        DataError: It is not UTF-8, which JSON must be: Spark would replace what it cannot read.
    """
    with pa.input_stream(str(file), compression="detect") as opened:
        data: bytes = opened.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{file.name} is UTF-16, and JSON must be UTF-8") from error
        if b"\0" in data[:4096]:
            raise DataError(f"{file.name} is not text") from error
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{file.name} is not UTF-8, which JSON must be: see line {line:,}"
        ) from error


def _read(name: str, text: str, limit: int, *, alone: bool) -> tuple[pa.Table, int, dict[str, Any]]:
    """Return the rows of a document, how many there are, and the options that read it.

    Args:
        name: Of the file.
        text: Its content.
        limit: Most rows returned.
        alone: Whether there is no other file: a folder may hold a record per file.
    """
    start = text.lstrip()[0]
    if start == "[":
        records = _parsed(name, text)
        if not all(isinstance(record, dict) for record in records):
            raise DataError(f"{name} is a JSON array, but not of records")
        return _table(records[:limit]), len(records), {"multiLine": True}
    if start != "{":
        raise DataError(f"{name} is no JSON of records: it begins with {text.lstrip()[:20]!r}")
    lines = [line for line in io.StringIO(text) if line.strip()]
    if len(lines) > 1 and _is_record(lines[0]):
        return _lines_table(name, lines, limit), len(lines), {}
    document = _parsed(name, text)
    lists = {
        key: value
        for key, value in document.items()
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value)
    }
    deep = _deep_records(document)
    if lists:
        inside = max(lists, key=lambda key: len(lists[key]))
        records = lists[inside]
        if deep is not None and deep[1] > 10 * len(records):
            raise _nested(name, deep)
        return _table(records[:limit]), len(records), {"records": inside}
    if any(isinstance(value, list) for value in document.values()):
        raise DataError(
            f"{name} is one JSON document whose columns are arrays; rows are needed: an array of "
            "records, or a record per line"
        )
    if deep is not None and alone:
        raise _nested(name, deep)
    return _table([document]), 1, {} if len(lines) == 1 else {"multiLine": True}


def _deep_records(document: Any) -> tuple[str, int] | None:
    """Return where in a document most records are, as a path of `jq`, and how many; None if there
    is no list of them below its own fields."""
    found: dict[str, int] = {}
    level = [("", document)]
    while level:
        below: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, dict):
                below += [(f"{path}.{_jq_name(key)}", inner) for key, inner in value.items()]
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                if path.count(".") > 1:
                    found[f"{path}[]"] = found.get(f"{path}[]", 0) + len(value)
                below += [(f"{path}[]", inner) for inner in value if isinstance(inner, dict)]
        level = below
    return max(found.items(), key=lambda item: item[1]) if found else None


def _jq_name(name: str) -> str:
    """Return a field in a path of `jq`."""
    return name if name.isidentifier() else json.dumps(name)


def _nested(name: str, deep: tuple[str, int]) -> DataError:
    """Return the error of a document whose records lie deeper than a source reads."""
    path, count = deep
    return DataError(
        f"{name} is one JSON document with {plural(count, 'record')} deep inside: write them out, "
        f"one per line, with: jq -c '{path}' {name} > records.jsonl"
    )


def _parsed(name: str, text: str) -> Any:
    """Return a document; DataError with the place if it is no JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{name} is no JSON: {error}") from error


def _is_record(line: str) -> bool:
    """Return whether a line is an object of its own."""
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def _lines_table(name: str, lines: list[str], limit: int) -> pa.Table:
    """Return lines of JSON as a table: by Arrow, or one by one where it cannot."""
    data = "".join(islice(lines, limit)).encode()
    reading = pajson.ReadOptions(block_size=max(BLOCK_BYTES, max(map(len, lines)) * 4))
    try:
        table = pajson.read_json(pa.BufferReader(data), read_options=reading)
        kept = pa.schema([pa.field(f.name, _times_as_text(f.type)) for f in table.schema])
        if kept.equals(table.schema):
            return table
        parsing = pajson.ParseOptions(explicit_schema=kept)
        return pajson.read_json(pa.BufferReader(data), reading, parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        records = []
        for number, line in enumerate(islice(lines, limit), 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{name}, line {number} is no JSON: {error}") from error
            records.append(record if isinstance(record, dict) else {})
        return _table(records)


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    """Return the type with every timestamp in it replaced by text."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _times_as_text(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    return kind


def _table(records: list[dict[str, Any]]) -> pa.Table:
    """Return records as a table; a field whose values have several types becomes text."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {}
    for name in names:
        values = [record.get(name) for record in records]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = pa.array([
                None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values
            ])  # fmt: skip
    return pa.table(columns)


def _without_nulls(table: pa.Table) -> pa.Table:
    """Return the table with columns of nothing, and records without fields, as text."""
    for place, field in enumerate(table.schema):
        kind = _null_as_text(field.type)
        if not kind.equals(field.type):
            column = table.column(place)
            if pa.types.is_string(kind):
                column = pa.chunked_array([pa.nulls(len(column), pa.string())])
            else:
                column = pa.chunked_array([pa.array(column.to_pylist(), kind)])
            table = table.set_column(place, field.name, column)
    return table


def _null_as_text(kind: pa.DataType) -> pa.DataType:
    """Return the type with every null type and empty struct in it replaced by text."""
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and kind.num_fields == 0):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _null_as_text(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_null_as_text(kind.value_type))
    return kind
