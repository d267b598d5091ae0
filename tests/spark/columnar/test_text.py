"""CSV and JSON lines through gate 1: the values that Spark reads, rows by their position, the same
outcomes as gate 2 however files are cut, and a sentence where Spark has to read them."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from spark.columnar.test_formats import fetched, low
from spark.columnar.test_gates import payload_of, pipeline, recorded, written
from tidegate.errors import ConfigError
from tidegate.spark import Recording, frames, read
from tidegate.spark.columnar import lines as lines_module
from tidegate.spark.columnar.csv_lines import CsvColumns
from tidegate.spark.columnar.format import ColumnarFormat, ColumnarInput
from tidegate.spark.columnar.json_lines import JsonColumns
from tidegate.spark.columnar.lines import split_lines
from tidegate.spark.columnar.text_values import parse_text
from tidegate.windows import Tumbling

# -- the values that Spark reads ------------------------------------------------------------------

CSV_SIGNS = [
    "a", "b1", '"', '""', "\\", '\\"', ",", ",", ",", " ", "\t", "é", "1", "-3", "2.5", "\0", "'",
    "\x85", "\u2028", "٣",
]  # fmt: skip
CSV_VALUES = [
    "1", "-3", "+4", "1e3", "NaN", "Inf", "-Inf", "true", "TRUE", "0x1p3", "1d", "5.", ".5", "-0",
    "2024-01-02", "2024-1-2", "2024", "2024-02-30", "2024-01-02 03:04:05", "20240102", " 1", "1 ",
    "2024-01-02T03:04:05.123456Z", "2024-01-02 03:04:05.1234567", "2024-01-02 03:04:05+02:00",
    "2024-01-02 03:04:05 Europe/Berlin", "2024-01-02T03:04Z", "2024-01-02 24:00:00", "9999999999",
    "99999999999999999999", "1e400", "1e-400", "12.345", "127", "128", '"5"', '"5" ', "", '""', "٣",
    "1_0", "010", "nan", "falſe", "2024-01-02 03:04:05 localtime",
]  # fmt: skip
JSON_VALUES = [
    "1", "-3", "0", "-0", "01", "1.0", "1e3", "1e400", "123456789012345678901", "NaN", "-Infinity",
    "+INF", "true", "null", '"a"', '"é"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d"', '""',
    '"NaN"', '"INF"', '"5"', "'single'", '"a\\"b"', '"a\\/b"', "[1,2]", "[]", "{}", '{"x": 1}',
    '{"x":1,"y":"bad"}', '[1,"a",null]', '"2024-01-02 03:04:05"', '"2024-01-02T03:04:05.123456Z"',
    '"2024-13-02"', "1700000000", "9223372036854775808", "128", "256", "2147483648", "  7 ",
]  # fmt: skip
JSON_LINES = [
    "[]", "null", "1", '[{"a":1},{"a":2}]', '[{"a":1},3]', "{}", '[{"a":"x"},{"a":2}]', "", "  ",
    '{"a":1}{"a":2}', '{"a":1} x', '{"a":1', '{"a":1,}', '{"a" 1}', "{a:1}", '{"A":1}',
    ' {"a":1} ', '\ufeff{"a":1}', '{"a":"q","a":2}', '{"a":1,"a":"q"}',
]  # fmt: skip


def csv_line(rng: random.Random, wild: bool) -> str:
    if wild:
        return "".join(rng.choice(CSV_SIGNS) for _ in range(rng.randint(0, 9)))
    return ",".join(rng.choice(CSV_VALUES) for _ in range(rng.choice([4, 4, 4, 3, 5])))


def json_line(rng: random.Random, wild: bool) -> str:
    if wild and rng.random() < 0.1:
        return rng.choice(JSON_LINES)
    names = rng.sample("abcde", rng.randint(0, 5))
    values = JSON_VALUES if wild else ["1", "0", "null"]
    return "{" + ", ".join(f'"{name}": {rng.choice(values)}' for name in names) + "}"


def compared(table: pa.Table) -> Counter[str]:
    """Rows as text that can be compared; times as numbers, for Python's dates have an end."""
    for place, field in enumerate(table.schema):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            whole = pa.int32() if pa.types.is_date(field.type) else pa.int64()
            table = table.set_column(place, field.name, table.column(place).cast(whole))
    return Counter(map(str, table.to_pylist()))


def through_gate(recording: Recording) -> pa.Table:
    """All rows as gate 1 reads them; each is fetched again by its position."""
    assert isinstance(recording.columnar, ColumnarInput), recording.columnar
    of = recording.columnar.format
    columns = list(of.schema.names)
    found = []
    for path in of.files():
        for part in of.parts(path, columns, (), low):
            for rows, positions in of.read(path, part.start, part.stop, columns):
                found.append(rows)
                back = [(at, one) for one, at in of.fetch(path, positions[::-1], columns)]
                order = np.concatenate([at for at, _ in back])
                again = pa.Table.from_batches([one for _, one in back])
                again = again.take(pa.array(np.argsort(order)[::-1]))
                assert compared(again) == compared(pa.Table.from_batches([rows]))
    return pa.Table.from_batches(found, schema=of.schema)


@pytest.mark.parametrize(
    ("schema", "wild", "options"),
    [
        ("a string, b string, c string", True, {}),
        ("a string, b string, c string", True, {"escape": '"'}),
        ("a int, b bigint, c double, d decimal(10,2)", False, {}),
        ("a date, b timestamp, c timestamp_ntz, d string", False, {}),
        ("a tinyint, b float, c boolean, d string", False, {}),
    ],
)
def test_csv_as_spark_reads_it(
    spark: SparkSession, tmp_path: Path, schema: str, wild: bool, options: dict[str, str]
) -> None:
    rng = random.Random(f"{schema} {options}")
    for name, end in (("a.csv", "\n"), ("b c.csv", "\r\n"), ("c.csv", "\r")):
        text = end.join(csv_line(rng, wild) for _ in range(250))
        if options:  # Spark loses some of them there
            text = text.replace("\0", "")
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf1,2,3,4\n\n5,6\n\xff,7,8,9\n"))
    opened = read(str(tmp_path), "csv", schema=schema, options=options, spark=spark)
    assert compared(through_gate(opened)) == compared(opened.df.toArrow())


@pytest.mark.parametrize("wild", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        "a int, b string, c double, d boolean",
        "a bigint, b timestamp, c timestamp_ntz, d tinyint",
        "a struct<x:int,y:bigint>, b array<int>, c string, d array<struct<x:int>>",
    ],
)
def test_json_lines_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, schema: str, wild: bool
) -> None:
    rng = random.Random(f"{schema} {wild}")
    for name, end in (("a.json", "\n"), ("b.json", "\r\n")):
        (tmp_path / name).write_text(end.join(json_line(rng, wild) for _ in range(300)))
    opened = read(str(tmp_path), "json", schema=schema, spark=spark)
    kept, found = compared(opened.df.toArrow()), compared(through_gate(opened))
    differ = {row for row in (kept - found) + (found - kept) if not is_no_json(row)}
    assert not differ


def is_no_json(row: str) -> bool:
    """Whether the text of a bad line is not JSON: of such a line Spark may keep some fields."""
    text = eval(row, {"nan": float("nan"), "inf": float("inf")})["line_unparsed"]
    return text is not None and any(sign in text for sign in ("01", ",}", '" 1', "{a", '{"a":1'))


def test_csv_columns_by_their_header(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\nt,key,x\n1,a,0.5\n2,b,oops\n")
    (tmp_path / "b.csv").write_text("x,more,key,t\n0.5,m,a,3\n")
    (tmp_path / "c.csv").write_text("t,key\n4,a\n")
    schema = "key string, t bigint, x double"
    opened = read(str(tmp_path), "csv", schema=schema, options={"header": "true"}, spark=spark)
    assert compared(through_gate(opened)) == compared(opened.df.toArrow())
    one = read(str(tmp_path / "a.csv"), "csv", spark=spark,
               options={"header": "true", "inferSchema": "true"})  # fmt: skip
    assert compared(through_gate(one)) == compared(one.df.toArrow())


@pytest.mark.parametrize("value", ["True", True])
def test_a_header_in_any_spelling(spark: SparkSession, tmp_path: Path, value: Any) -> None:
    """`header: "True"` once went by position: the columns of the second file were exchanged."""
    (tmp_path / "a.csv").write_text("t,x\n1,2\n")
    (tmp_path / "b.csv").write_text("x,t\n4,3\n")
    opened = read(tmp_path, "csv", schema="t int, x int", options={"header": value}, spark=spark)
    rows = {(row["t"], row["x"]) for row in opened.df.collect()}
    assert rows == {(1, 2), (3, 4)}
    assert compared(through_gate(opened)) == compared(opened.df.toArrow())


# -- crafted lines, without Spark ------------------------------------------------------------------


def rows_in(of: ColumnarFormat, path: Path) -> list[dict[str, Any]]:
    """The rows of a file as gate 1 reads them."""
    names = list(of.schema.names)
    parts = of.parts(str(path), names, (), low)
    read_ = (of.read(str(path), part.start, part.stop, names) for part in parts)
    return [row for each in read_ for rows, _ in each for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("value", "fits"),
    [("[" * 998 + "]" * 998, True), ("[" * 1000 + "]" * 1000, False),
     (f'"{"[" * 2000}"', True),
     ("-NaN", False), ("Inf", False), ("[-Inf]", False), ("NaN", True), ("-Infinity", True)],
)  # fmt: skip
def test_a_json_line_means_the_same_beside_any_other(
    tmp_path: Path, value: str, fits: bool
) -> None:
    """Arrow's reader takes more than Spark's; a line that it cannot read sends its neighbours to
    the slow one."""
    line = f'{{"key": "a", "t": 1, "z": {value}}}\n'
    found = []
    for neighbour in ("", '{"key": 5}\n'):
        (tmp_path / "a.json").write_text(line + neighbour)
        of = JsonColumns(str(tmp_path), *ABOUT)
        found.append(rows_in(of, tmp_path / "a.json")[0])
    assert found[0] == found[1]
    assert (found[0]["line_unparsed"] is None) == fits
    assert found[0]["t"] == (1 if fits else None)


@pytest.mark.parametrize("escape", ["\\", '"'])
@pytest.mark.parametrize("unit", ['"\\', 'a"\\', '""\\a', '"', '",'])
def test_a_csv_line_of_many_quotes(tmp_path: Path, unit: str, escape: str) -> None:
    """Three of these ended the run with a RecursionError."""
    (tmp_path / "a.csv").write_text('"a' + unit * 5000 + "\nb,2\n")
    of = CsvColumns(str(tmp_path), *ABOUT, escape=escape)
    rows = rows_in(of, tmp_path / "a.csv")
    assert rows[0]["line_unparsed"] is not None
    assert (rows[1]["key"], rows[1]["t"]) == ("b", 2)


@pytest.mark.parametrize(
    "text", ["1e" + "9" * 30, "1e-" + "9" * 30, "0e3000000000", "1e3000000000"]
)
def test_a_decimal_without_end(text: str) -> None:
    """Java has no such number; Python raised."""
    assert parse_text(text, pa.decimal128(10, 2)) is None


@pytest.mark.parametrize("zone", ["localtime", "posix/Europe/Berlin", "Factory", "../etc"])
def test_a_zone_of_this_machine_is_none_of_java(zone: str) -> None:
    """`localtime` would be another time on every machine."""
    kind = pa.timestamp("us", "UTC")
    assert parse_text(f"2024-01-02 03:04:05 {zone}", kind) is None
    assert parse_text("2024-01-02 03:04:05 Europe/Berlin", kind) is not None


# -- positions, without Spark ---------------------------------------------------------------------

SCHEMA = pa.schema([
    ("key", pa.string()), ("t", pa.int64()), ("line_unparsed", pa.string()),
    ("line_file", pa.string()),
])  # fmt: skip
ABOUT = (SCHEMA, ("key", "t"), "line_unparsed", "line_file")


@given(st.text("ab\r\n", max_size=40), st.integers(1, 12))
def test_lines_do_not_depend_on_where_text_is_cut(text: str, size: int) -> None:
    data = text.encode()
    starts, ends, used = split_lines(data, at_end=True)
    found = [data[s:e].decode() for s, e in zip(starts, ends, strict=True)]
    assert found == text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[: len(found)]
    assert used == len(data)
    first, _, upto = split_lines(data[:size], at_end=False)
    assert first.tolist() == [s for s in starts.tolist() if s < upto]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_large_file_is_cut_at_line_ends(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "PIECE_BYTES", 500)
    monkeypatch.setattr(lines_module, "_BLOCK", 300)
    rows = [{"key": f"k{n % 7}", "t": n * (-1) ** n} for n in range(1000)]
    csv = "".join(f"{row['key']},{row['t']}\n" for row in rows)
    text = csv if format == "csv" else "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a").write_text(text)
    kind = CsvColumns if format == "csv" else JsonColumns
    of: ColumnarFormat = kind(str(tmp_path), *ABOUT)
    parts = of.parts(str(tmp_path / "a"), ["key", "t"], ["t"], low)
    assert len(parts) > 10
    assert sum(part.rows for part in parts) == 1000
    assert min(part.low for part in parts) == -999
    read_again = [
        (rows, at)
        for part in parts
        for rows, at in of.read(str(tmp_path / "a"), part.start, part.stop, ["key", "t"])
    ]
    assert [row for batch, _ in read_again for row in batch.to_pylist()] == rows
    positions = np.concatenate([at for _, at in read_again])
    some = np.random.default_rng(1).permutation(1000)[:300]
    assert fetched(of, str(tmp_path / "a"), positions[some], ["t"]) == [
        {"t": rows[n]["t"]} for n in some.tolist()
    ]
    with pytest.raises(IndexError):
        list(of.fetch(str(tmp_path / "a"), np.array([10**9]), ["t"]))


def test_a_file_that_got_shorter(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a,1\nb,2\n")
    of = CsvColumns(str(tmp_path), *ABOUT)
    (part,) = of.parts(str(file), ["t"], (), low)
    file.write_text("a,1\n")
    with pytest.raises(pa.ArrowInvalid, match="shorter now"):
        list(of.read(str(file), part.start, part.stop, ["t"]))


# -- the same outcomes as gate 2 ------------------------------------------------------------------

DDL = "key string, topic string, t bigint, payload string"


def put(folder: Path, rows: pa.Table, format: str, cut: str) -> Path:
    """Write a recording: one file, one per topic, slices, or compressed."""
    folder.mkdir()
    parts = {"one": rows}
    if cut == "topics":
        parts = {topic: rows.filter(pc.equal(rows["topic"], topic)) for topic in "abc"}
    elif cut == "slices":
        parts = {f"{9 - n}": rows.slice(n * 200, 200) for n in range(8)}
    for name, part in parts.items():
        if format == "csv":
            made = "".join(
                f'{r["key"]},"{r["topic"]}",{"" if r["t"] is None else r["t"]},{r["payload"]}\n'
                for r in part.to_pylist()
            )
        else:
            made = "".join(json.dumps(row) + "\n" for row in part.to_pylist())
        if cut == "packed":
            (folder / f"{name}.{format}.gz").write_bytes(gzip.compress(made.encode()))
        else:
            (folder / f"{name}.{format}").write_text(made)
    return folder


@pytest.mark.parametrize(
    ("format", "cut", "payload"),
    [("csv", "slices", "addressed"), ("csv", "packed", "carried"), ("json", "topics", "addressed"),
     ("json", "one", "carried")],
)  # fmt: skip
def test_a_backfill_equals_gate_2(
    spark: SparkSession, tmp_path: Path, format: str, cut: str, payload: Any
) -> None:
    place = put(tmp_path / "in", recorded(), format, cut)
    options = {} if cut == "packed" else {"maxBytesPerTrigger": "60000"}
    opened = read(str(place), format, schema=DDL, options=options, spark=spark)
    pipeline(opened.df).write(str(tmp_path / "rows"))
    made = pipeline(opened, payload=payload)
    assert f"columns are read by Arrow ({format}); payload {payload}" in made.gate()
    made.write(str(tmp_path / "out"))
    expected = written(tmp_path / "rows")
    assert written(tmp_path / "out") == expected
    assert all(expected[kind] for kind in ("data", "error", "dropped"))
    if payload == "addressed":
        for row in made.data.collect():
            assert all(row[s]["payload"] == payload_of(row["key"], s, row[s]["t"]) for s in "abc")


def test_the_cut_of_a_recording_does_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    """Rows in order: in one file, a file per topic, or slices whose names are backwards."""
    rows = recorded().sort_by("t")
    found = []
    for format, cut in (("csv", "one"), ("csv", "slices"), ("json", "topics")):
        place = put(tmp_path / cut, rows, format, cut)
        options = {"maxBytesPerTrigger": "100000"}
        made = pipeline(read(str(place), format, schema=DDL, options=options, spark=spark))
        made.write(str(tmp_path / f"{cut} out"))
        found.append(written(tmp_path / f"{cut} out"))
    assert found[0]["data"]
    assert found[0] == found[1] == found[2]


def test_a_stream_and_lines_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    place = put(tmp_path / "in", recorded().slice(0, 300), "json", "one")
    (place / "two.json").write_text('{"key": "car-1", "topic": "a", "t": "x"}\n{"key": "car-\n')
    stream = read(str(place), "json", schema=DDL, streaming=True, spark=spark)
    made = frames(stream, key="key", time="t", topic="topic").event_time("unixtimestamp_ns", "1 s")
    made.write(str(tmp_path / "out")).awaitTermination()
    errors = spark.read.parquet(str(tmp_path / "out" / "error")).collect()
    texts = {row["line_unparsed"] for row in errors} - {None}
    assert texts == set((place / "two.json").read_text().splitlines())
    assert {row["line_file"] for row in errors if row["line_unparsed"]} == {
        f"file:{place / 'two.json'}"
    }


@pytest.mark.parametrize(
    ("format", "schema", "options", "why"),
    [
        ("csv", "t bigint", {"multiLine": "true"}, "only Spark's reader has the option multiLine"),
        ("csv", "t bigint", {"encoding": "latin1"}, "text in latin1 is decoded by Spark"),
        ("csv", "t bigint", {"sep": "||"}, r"the separator '\|\|' is one that only Spark reads"),
        ("json", "t map<string,int>", {}, "column 't' has a type"),
    ],
)
def test_why_spark_reads_them(
    spark: SparkSession, tmp_path: Path, format: str, schema: str, options: dict[str, str], why: str
) -> None:
    (tmp_path / "a").write_text("1\n")
    opened = read(str(tmp_path), format, schema=schema, options=options, spark=spark)
    assert isinstance(opened.columnar, str)
    assert frames(opened, time="t").gate().startswith("rows come through Spark: ")
    assert re.search(why, opened.columnar)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_times_without_a_zone_are_utc_in_a_session_of_any_zone(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    stamp = "2026-01-01 00:00:00"
    line = stamp if format == "csv" else json.dumps({"stamp": stamp})
    (tmp_path / "a").write_text(line + "\n")
    before = spark.conf.get("spark.sql.session.timeZone") or ""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        opened = read(str(tmp_path), format, schema="stamp timestamp", spark=spark)
        made = frames(opened, time="stamp").event_time("timestamp")
        assert [row["time_ns"] for row in made.data.collect()] == [1_767_225_600 * 10**9]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(("name", "meant"), [("a.csv", "csv"), ("a.jsonl", "json")])
def test_a_file_of_another_format_is_told(
    spark: SparkSession, tmp_path: Path, name: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=f"must be the format of {name}: read"):
        read(str(tmp_path / name), spark=spark)
    assert meant


def test_the_greatest_of_a_text_column_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,9\n2,10\n")
    opened = read(str(tmp_path), "csv", schema="t bigint, speed string", spark=spark)
    made = frames(opened, time="t").event_time("unixtimestamp_s")
    made = made.window(Tumbling("10 s"), aggregates={"m": ("max", "speed"), "n": "count"})
    (note,) = [each for each in made.notes() if each.startswith("window m")]
    assert "max of the text column speed compares letter by letter" in note
    with pytest.warns(UserWarning, match="letter by letter"):
        assert made.data.count() == 1


# -- rows that are no data ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("before", "options"),
    [
        (
            "Logger 7, x{end} {end}more{end}{head}s,V{end}",
            {"skipRows": "2", "skipRowsAfterHeader": "1"},
        ),
        ("{end}{head}{end}s,V{end}-,-{end}", {"skipRowsAfterHeader": "2"}),
        ("Logger{end}{head}", {"skipRows": "1"}),
        ("a,b{end}c,d{end}{end}", {"skipRows": "2", "header": "false"}),
    ],
)
def test_rows_are_skipped_in_both_gates(
    spark: SparkSession, tmp_path: Path, before: str, options: dict[str, str], end: str
) -> None:
    told = {"header": "true", **options}
    wanted: Counter[str] = Counter()
    for number in range(5):  # Spark reads several files in one task
        head = "" if told["header"] == "false" else f"t,v{end}"
        lines = [f"{n},{number}.5" for n in range(number)] + ["s,V", "7,oops"]
        wanted.update(lines)
        text = before.format(end=end, head=head) + end.join(lines)
        if number % 2:
            (tmp_path / f"{number}.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (tmp_path / f"{number}.csv").write_bytes(text.encode())
    (tmp_path / "short.csv").write_bytes(
        f"Logger{end}t,v"[: 6 if "skipRows" in told else 0].encode()
    )
    (tmp_path / "empty.csv").write_bytes(b"")
    opened = read(str(tmp_path), "csv", schema="t bigint, v double", options=told, spark=spark)
    rows = opened.df.toArrow()
    assert compared(through_gate(opened)) == compared(rows)
    made = [row["line_unparsed"] or f"{row['t']},{row['v']}" for row in rows.to_pylist()]
    assert Counter(made) == wanted


def test_skipped_rows_with_options_that_only_spark_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("#1\nLog\n#2\nv;t\n#3\nV;s\n1;2\n#4\nNA;3\n", "utf-16")
    (tmp_path / "b.csv").write_text("Log\nt;more\n\ns;-\n5;x\n", "utf-16")
    options = {
        "header": "true", "sep": ";", "comment": "#", "nullValue": "NA", "encoding": "UTF-16",
        "multiLine": "true", "skipRows": "1", "skipRowsAfterHeader": "1",
    }  # fmt: skip
    for schema in ("t bigint, v double", None):
        opened = read(str(tmp_path), "csv", schema=schema, options=options, spark=spark)
        assert isinstance(opened.columnar, str)
        rows = [(row["t"], row["v"]) for row in opened.df.toArrow().to_pylist()]
        found = {(int(t), None if v is None else float(v)) for t, v in rows}
        assert found == {(2, 1.0), (3, None), (5, None)}


def test_rows_are_skipped_in_the_first_block_of_a_file_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ["t,v"] * 3 + [f"{n},{n}.5" for n in range(3000)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    kept = {name: spark.conf.get(name) for name in BLOCK_SETTINGS}
    options = {"header": "true", "skipRows": "1", "skipRowsAfterHeader": "1"}
    try:
        for name in BLOCK_SETTINGS:
            spark.conf.set(name, "4096")
        opened = read(
            str(tmp_path), "csv", schema="t bigint, v double", options=options, spark=spark
        )
        assert opened.df.rdd.getNumPartitions() > 5
        assert sorted(row.t for row in opened.df.collect()) == list(range(3000))
        options["skipRowsAfterHeader"] = "2000"
        cut = read(str(tmp_path), "csv", schema="t bigint, v double", options=options, spark=spark)
        with pytest.raises(PythonException, match="is cut within the 2,002 rows"):
            cut.df.collect()
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)


def test_rows_are_skipped_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        lines = [f"{number * 10 + n},1.5" for n in range(10)]
        text = "Log\n\nt,v\ns,V\n" + "\n".join(lines)
        (tmp_path / f"{number}.csv").write_text(text)
    options = {"header": "true", "skipRows": 1, "skipRowsAfterHeader": 1, "maxFilesPerTrigger": 1}
    opened = read(str(tmp_path), "csv", schema="t bigint, v double", options=options,
                  streaming=True, spark=spark)  # fmt: skip
    query = opened.df.writeStream.format("memory").queryName("skipped")
    query.trigger(availableNow=True).start().awaitTermination()
    rows = spark.table("skipped").collect()
    assert sorted(row.t for row in rows) == list(range(40))
    assert {row.line_unparsed for row in rows} == {None}


BLOCK_SETTINGS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"skipRows": "-1"}, "t int", "whole number from 0 to 10,000"),
        ({"skipRows": "two"}, "t int", "whole number from 0 to 10,000"),
        ({"skipRows": "1"}, None, "needs a schema, or header: true"),
        ({"skipRowsAfterHeader": "1"}, "t int", "needs header: true"),
        ({"skipRows": "1", "header": "true", "inferSchema": "true"}, None, "needs a schema"),
        ({"skipRows": "1", "mode": "DROPMALFORMED"}, "t int", "does not go with the option mode"),
    ],
)
def test_wrong_rows_to_skip(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], schema: str | None, words: str
) -> None:
    (tmp_path / "a.csv").write_text("t\n1\n")
    with pytest.raises(ConfigError, match=words):
        read(str(tmp_path / "a.csv"), "csv", schema=schema, options=options, spark=spark)
    if "mode" not in options and "header" not in options and schema is not None:
        with pytest.raises(ConfigError, match=r"is an option of the format csv|whole number"):
            read(str(tmp_path / "a.csv"), "json", schema=schema, options=options, spark=spark)
