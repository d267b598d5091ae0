"""A corpus of recordings with the roles a person would give their columns.

Made-up files are generated here, in the manner of real exports: markets, weather, seismology,
shipping, telemetry, logs. Real files are read from a folder beside the repository and never copied;
without it their cases are skipped.

`expected` of a case is what a person says who looks at the file. `time=None` means that a person
could not tell either: two readings are equally good, or something is missing.
"""

from __future__ import annotations

import bz2
import gzip
import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tidegate.mcap import McapWriter

__all__ = ["CASES", "REAL", "Case"]

REAL = Path("/work/shared/realdata")
"""Where the real files are; cases of files that are not there are skipped."""

START = datetime(2024, 3, 1, tzinfo=UTC)
ISO = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Case:
    """One file and what is to be found in it.

    Attributes:
        name: Of the case.
        make: Writes the file into a folder and returns its path; for a real file, returns where it
            is.
        time: The columns of the event time; None if nobody can tell.
        type: The event-time type, or several that read the same.
        key, topic, arrival: The other roles.
        format: The layout, for `date_time`.
        first: The earliest time as text, if it is known.
        options: What the source must be told, in part.
        types: Types of some columns as a run gets them.
    """

    name: str
    make: Callable[[Path], Path]
    time: tuple[str, ...] | None
    type: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    topic: str | None = None
    arrival: str | None = None
    format: str | None = None
    first: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    types: tuple[tuple[str, str], ...] = ()


CASES: list[Case] = []


def _add(name: str, make: Callable[[Path], Path], time: Any, type: Any = (), **more: Any) -> None:
    """Add a case; one column or type may be given as text."""
    columns = (time,) if isinstance(time, str) else time
    types = (type,) if isinstance(type, str) else tuple(type)
    for each in ("options", "types"):
        more[each] = tuple(more.get(each, {}).items())
    key = more.pop("key", ())
    key = (key,) if isinstance(key, str) else tuple(key)
    CASES.append(Case(name, make, columns, types, key=key, **more))


def _csv(
    header: str | None,
    rows: Iterable[Sequence[Any]],
    sep: str = ",",
    *,
    file: str = "data.csv",
    encoding: str = "utf-8",
    before: str = "",
) -> Callable[[Path], Path]:
    """Return a writer of a CSV file: names in `header` are divided by commas whatever `sep` is."""
    lines = [] if header is None else [header.replace(",", sep)]
    lines += [sep.join("" if v is None else str(v) for v in row) for row in rows]
    text = before + "\n".join(lines) + "\n"

    def write(folder: Path) -> Path:
        path, data = folder / file, text.encode(encoding)
        if file.endswith(".gz"):
            data = gzip.compress(data)
        elif file.endswith(".zst"):
            data = zstandard.compress(data)
        elif file.endswith(".bz2"):
            data = bz2.compress(data)
        path.write_bytes(data)
        return path

    return write


def _text(name: str, text: str) -> Callable[[Path], Path]:
    """Return a writer of a text file."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def _parquet(**columns: Any) -> Callable[[Path], Path]:
    """Return a writer of a Parquet file."""
    return _parquet_of({}, **columns)


def _parquet_of(settings: dict[str, Any], **columns: Any) -> Callable[[Path], Path]:
    """Return a writer of a Parquet file with settings of Arrow's."""

    def write(folder: Path) -> Path:
        path = folder / "data.parquet"
        pq.write_table(pa.table(columns), path, **settings)
        return path

    return write


def _stamps(count: int, step: float, format: str = ISO, start: datetime = START) -> list[str]:
    """Return `count` times, `step` seconds apart, as text without leading zeros where `format` has
    none (`%-d` is not known everywhere, so `{d}`, `{m}` and `{H}` stand for bare numbers)."""
    made = []
    for n in range(count):
        at = start + timedelta(seconds=step * n)
        text = at.strftime(format)
        made.append(text.replace("{d}", str(at.day)).replace("{m}", str(at.month))
                        .replace("{H}", str(at.hour)))  # fmt: skip
    return made


def _wave(count: int, scale: float = 10.0, seed: int = 0) -> list[float]:
    """Return a noisy wave: measurements."""
    noise = random.Random(seed)
    return [round(scale * math.sin(n / 7) + noise.gauss(20, 1), 2) for n in range(count)]


def _interleaved(things: Sequence[str], stamps: Sequence[str]) -> list[list[Any]]:
    """Return rows of several things at the same times: panel data."""
    values = _wave(len(stamps) * len(things))
    return [[at, thing, values[i * len(things) + j]] for i, at in enumerate(stamps)
            for j, thing in enumerate(things)]  # fmt: skip


SECOND = int(START.timestamp())
N = 120

# -- text times -----------------------------------------------------------------------------------

_add("iso with zone", _csv("timestamp,value", zip(_stamps(N, 1), _wave(N), strict=True)),
     "timestamp", "iso8601", first="2024-03-01T00:00:00", types={"value": "double"})  # fmt: skip
_add("iso with offset",
     _csv("time,value", zip(_stamps(N, 60, "%Y-%m-%dT%H:%M:%S+02:00"), _wave(N), strict=True)),
     "time", "iso8601", first="2024-02-29T22:00:00")  # fmt: skip
_add("iso with blank and milliseconds",
     _csv("Time,Speed", zip(_stamps(N, 0.25, "%Y-%m-%d %H:%M:%S.%f"), _wave(N), strict=True)),
     "Time", "iso8601")  # fmt: skip
_add("slashes, year first",
     _csv("time,count", zip(_stamps(N, 10800, "%Y/%m/%d %H:%M:%S"), range(N), strict=True)),
     "time", "date_time", format="%Y/%m/%d %H:%M:%S", types={"count": "int64"})  # fmt: skip
_add("US dates with a 14th",
     _csv("Created Date,Agency", zip(_stamps(N, 43200, "{m}/{d}/%Y {H}:%M"),
                                     ["NYPD", "DSNY", "NYPD"] * (N // 3), strict=True)),
     "Created Date", "date_time", format="%m/%d/%Y %H:%M", first="2024-03-01T00:00:00")  # fmt: skip
_add("US dates with AM and PM",
     _csv("Date,Close", zip(_stamps(N, 3600 * 7, "%m/%d/%Y %I:%M:%S %p"), _wave(N), strict=True)),
     "Date", "date_time", format="%m/%d/%Y %I:%M:%S %p")  # fmt: skip
_add("European dates with slashes",
     _csv("Datum,Wert", zip(_stamps(N, 86400, "%d/%m/%Y"), _wave(N), strict=True)),
     "Datum", "date_time", format="%d/%m/%Y", first="2024-03-01T00:00:00")  # fmt: skip
_add("ambiguous dates", _csv("date,value", [[f"{m:02d}/0{d}/2024", 3] for m in range(1, 13)
                                            for d in (1, 2, 3)]), None)  # fmt: skip
_add("ambiguous dates with times",
     _csv("when,load", [[f"{d}/{d}/2023 10:0{d}", d] for d in range(1, 9)]), None)  # fmt: skip
_add("German dates, semicolons, decimal commas",
     _csv("Zeitpunkt,Temperatur,Station",
          [[at, f"{v:.2f}".replace(".", ","), "Hof"] for at, v in
           zip(_stamps(N, 600, "%d.%m.%Y %H:%M"), _wave(N), strict=True)], ";"),
     "Zeitpunkt", "date_time", format="%d.%m.%Y %H:%M", options={"sep": ";"},
     types={"Temperatur": "string"})  # fmt: skip
_add("German dates of one day",
     _csv("Zeit,kW", zip(_stamps(N, 60, "%d.%m.%Y %H:%M:%S", datetime(2024, 5, 4)), _wave(N),
                         strict=True), ";"),
     "Zeit", "date_time", format="%d.%m.%Y %H:%M:%S", first="2024-05-04T00:00:00")  # fmt: skip
_add("month names", _csv("symbol,date,price", [
        [s, f"{datetime(2000 + n // 12, n % 12 + 1, 1):%b} 1 {2000 + n // 12}", 30 + n]
        for s in ("MSFT", "AMZN", "IBM") for n in range(40)]),
     "date", "date_time", format="%b %d %Y", key="symbol", first="2000-01-01T00:00:00")  # fmt: skip
_add("month names in full",
     _csv("Day,Visits", [[f'"{at}"', n] for n, at in enumerate(_stamps(N, 86400, "%B %d, %Y"))]),
     "Day", "date_time", format="%b %d, %Y")  # fmt: skip
_add("day-month-year of Oracle",
     _csv("TRADE_DATE,QTY", zip(_stamps(N, 86400, "%d-%b-%Y"), range(N), strict=True)),
     "TRADE_DATE", "date_time", format="%d-%b-%Y", types={"QTY": "int64"})  # fmt: skip
_add("two-digit years",
     _csv("date,level", zip(_stamps(N, 86400, "%d/%m/%y"), _wave(N), strict=True)),
     "date", "date_time", format="%d/%m/%y", first="2024-03-01T00:00:00")  # fmt: skip
_add("mail dates",
     _csv("Date,Size", [[f'"{at}"', n * 10] for n, at in
                        enumerate(_stamps(N, 4000, "%a, %d %b %Y %H:%M:%S +0000"))]),
     "Date", "date_time", format="%a, %d %b %Y %H:%M:%S %z")  # fmt: skip
_add("ctime", _csv("logged_event,at", zip(["start", "stop"] * (N // 2),
                                          _stamps(N, 5, "%a %b %d %H:%M:%S %Y"), strict=True)),
     "at", "date_time", format="%a %b %d %H:%M:%S %Y")  # fmt: skip
_add("web server log as CSV",
     _csv("host,time,status,bytes", [[f"10.0.0.{n % 5}", at, 200, 512 + n] for n, at in
                                     enumerate(_stamps(N, 2, "%d/%b/%Y:%H:%M:%S +0100"))]),
     "time", "date_time", key="host", format="%d/%b/%Y:%H:%M:%S %z",
     first="2024-02-29T23:00:00")  # fmt: skip
_add("compact ISO", _csv("utc,x", zip(_stamps(N, 1, "%Y%m%dT%H%M%SZ"), _wave(N), strict=True)),
     "utc", "date_time", format="%Y%m%dT%H%M%SZ")  # fmt: skip
_add("digits of a second", _csv("ts,x", zip(_stamps(N, 60, "%Y%m%d%H%M%S"), _wave(N), strict=True)),
     "ts", "date_time", format="%Y%m%d%H%M%S", types={"ts": "string"})  # fmt: skip
_add("UTC behind the time",
     _csv("event_time,v", zip(_stamps(N, 30, "%Y-%m-%d %H:%M:%S UTC"), _wave(N), strict=True)),
     "event_time", "date_time", format="%Y-%m-%d %H:%M:%S UTC")  # fmt: skip
_add("a zone that cannot be looked up",
     _csv("time,v", zip(_stamps(N, 30, "%Y-%m-%d %H:%M:%S CEST"), _wave(N), strict=True)),
     None)  # fmt: skip
_add("syslog without a year",
     _csv("stamp,host,msg", [[at, "web1", "ok"] for at in _stamps(N, 9, "%b %d %H:%M:%S")]),
     None)  # fmt: skip
_add("dates from 1958", _csv("Date,CO2", [[f"{1958 + n // 12}-{n % 12 + 1:02d}-01", 315 + n / 10]
                                          for n in range(N)]),
     "Date", ("date", "iso8601"), first="1958-01-01T00:00:00", types={"CO2": "double"})  # fmt: skip
_add("years alone", _csv("year,co2", [[1900 + n, 290 + n / 2] for n in range(N)]),
     "year", "year_month_day", first="1900-01-01T00:00:00")  # fmt: skip
_add("months alone", _csv("month,passengers", [[f"{1949 + n // 12}-{n % 12 + 1:02d}", 100 + n]
                                               for n in range(N)]),
     "month", "year_month_day", first="1949-01-01T00:00:00")  # fmt: skip
_add("year and month as a number", _csv("yyyymm_date,rate", [[195001 + n // 12 * 100 + n % 12, n]
                                                             for n in range(N)]),
     "yyyymm_date", "year_month_day", first="1950-01-01T00:00:00")  # fmt: skip
_add("day as a number", _csv("DATE,PRCP", zip(_stamps(N, 86400, "%Y%m%d"), _wave(N), strict=True)),
     "DATE", "year_month_day", first="2024-03-01T00:00:00")  # fmt: skip
_add("month and year", _csv("period,sales", [[f"{n % 12 + 1:02d}/{2010 + n // 12}", n]
                                             for n in range(N)]),
     "period", "date_time", format="%m/%Y", first="2010-01-01T00:00:00")  # fmt: skip

# -- numbers --------------------------------------------------------------------------------------

for _unit, _factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
    _add(f"epoch in {_unit}",
         _csv("ts,value", [[(SECOND + n) * _factor, n] for n in range(N)]),
         "ts", f"unixtimestamp_{_unit}", first="2024-03-01T00:00:00")  # fmt: skip
_add("epoch in a column without a telling name",
     _csv("a,b", [[(SECOND + n * 60) * 1000, n % 7] for n in range(N)]),
     "a", "unixtimestamp_ms")  # fmt: skip
_add("float seconds", _csv("time,acc_x,acc_y", [[f"{SECOND + n / 100:.6f}", n, -n]
                                                for n in range(N)]),
     "time", "unixtimestamp_s_float", first="2024-03-01T00:00:00",
     types={"time": "string"})  # fmt: skip
_add("float milliseconds", _csv("timestamp,v", [[f"{SECOND * 1000 + n * 10.5:.3f}", n]
                                                for n in range(N)]),
     "timestamp", "unixtimestamp_ms_float", first="2024-03-01T00:00:00")  # fmt: skip
_add("seconds before 1970", _csv("time,temp", [[-300_000_000 + n * 86400 * 30, n]
                                               for n in range(N)]),
     "time", "unixtimestamp_s_float", first="1960-06-29T18:40:00")  # fmt: skip
_add("seconds of the eighties", _csv("epoch_seconds,flux", [[400_000_000 + n * 3600, n]
                                                            for n in range(N)]),
     "epoch_seconds", "unixtimestamp_s", first="1982-09-04T15:06:40")  # fmt: skip
_add("seconds since launch",
     _csv("state_letter,timestamp_seconds,altitude",
          [["SMCF"[n // 30], f"{129.01 + n * 0.011:.8f}", n] for n in range(N)]),
     "timestamp_seconds", "unixtimestamp_s_float", types={"altitude": "int64"})  # fmt: skip
_add("milliseconds since boot", _csv("time_boot_ms,roll,pitch", [[1000 + n * 20, n / 9, n / 7]
                                                                 for n in range(N)]),
     "time_boot_ms", "unixtimestamp_ms")  # fmt: skip
_add("simulation time", _csv("t,x,v", [[f"{n * 0.001:.3f}", n * n, 2 * n] for n in range(N)]),
     "t", "unixtimestamp_s_float")  # fmt: skip
_add("a count without a unit", _csv("time,x", [[n * 5, n] for n in range(N)]), None)
_add("no time at all", _csv("id,name,amount", [[n, f"item {n}", n * 3] for n in range(N)]), None)
_add("ten-digit identifiers", _csv("customer_id,phone_number,amount",
     [[1_500_000_000 + n * 17, 1_600_000_000 + n * 31, n] for n in range(N)]), None)  # fmt: skip

# -- several columns ------------------------------------------------------------------------------

_add("ISO date and time in two columns",
     _csv("date,time,value", zip(_stamps(N, 60, "%Y-%m-%d"), _stamps(N, 60, "%H:%M:%S"), _wave(N),
                                 strict=True)),
     ("date", "time"), "iso8601", first="2024-03-01T00:00:00")  # fmt: skip
_add("German date and time in two columns",
     _csv("Datum,Uhrzeit,kW", zip(_stamps(N, 900, "%d.%m.%Y"), _stamps(N, 900, "%H:%M"), range(N),
                                  strict=True), ";"),
     ("Datum", "Uhrzeit"), "date_time", format="%d.%m.%Y %H:%M")  # fmt: skip
_add("market data of MetaTrader",
     _csv("<DATE>,<TIME>,<OPEN>,<VOL>", [[d, t, 1.1, 100 + n] for n, (d, t) in enumerate(
         zip(_stamps(N, 3600, "%Y.%m.%d"), _stamps(N, 3600, "%H:%M"), strict=True))], "\t"),
     ("<DATE>", "<TIME>"), "date_time", format="%Y.%m.%d %H:%M", options={"sep": "\t"})  # fmt: skip
_add("numbers for date and time",
     _csv("date,time,last", [[d, t, 9.5] for d, t in
                             zip(_stamps(N, 660, "%Y%m%d"), _stamps(N, 660, "%H%M%S"),
                                 strict=True)]),
     ("date", "time"), "date_time", format="%Y%m%d %H%M%S", first="2024-03-01T00:00:00",
     types={"date": "string"})  # fmt: skip
_add("year, month, day and hour",
     _csv("year,month,day,hour,pm25", [[at.year, at.month, at.day, at.hour, 30] for at in
                                       (START + timedelta(hours=n) for n in range(N))]),
     ("year", "month", "day", "hour"), "date_time", format="%Y %m %d %H",
     first="2024-03-01T00:00:00")  # fmt: skip
_add("pickup and dropoff", _csv("pickup_datetime,dropoff_datetime,fare", [
        [a, b, 9.5] for a, b in zip(_stamps(N, 60, "%Y-%m-%d %H:%M:%S"),
                                    _stamps(N, 60, "%Y-%m-%d %H:%M:%S", START + timedelta(hours=1)),
                                    strict=True)]),
     "pickup_datetime", "iso8601")  # fmt: skip
_add("created, updated, closed", _csv("closed_at,updated_at,created_at,number", [
        [c, b, a, n] for n, (a, b, c) in enumerate(zip(
            _stamps(N, 60), _stamps(N, 61), _stamps(N, 62), strict=True))]),
     "created_at", "iso8601")  # fmt: skip
_add("event time and arrival", _csv("event_time,received_at,device,reading", [
        [_stamps(1, 0, start=START + timedelta(seconds=n - n % 3))[0],
         _stamps(1, 0, start=START + timedelta(seconds=n + 5))[0], f"d{n % 4}", n]
        for n in range(N)]),
     "event_time", "iso8601", key="device", arrival="received_at")  # fmt: skip

# -- keys and topics ------------------------------------------------------------------------------

_add("weather stations", _csv("time,station,temperature",
                              _interleaved(["KLAX", "KSFO", "KJFK", "EDDM"], _stamps(40, 3600))),
     "time", "iso8601", key="station")  # fmt: skip
_add("shipping", _csv("BaseDateTime,MMSI,LAT,LON,SOG", [
        [at, 366_000_000 + n % 9 * 1711, 29.1, -94.2, n % 20]
        for n, at in enumerate(_stamps(N * 2, 4, "%Y-%m-%dT%H:%M:%S"))]),
     "BaseDateTime", "iso8601", key="MMSI")  # fmt: skip
_add("telemetry in long form", _csv("ts,device_id,sensor,value", [
        [(SECOND + n // 6) * 1000, f"dev-{n % 2}", ("temp", "hum", "co2")[n % 3], n]
        for n in range(N * 2)]),
     "ts", "unixtimestamp_ms", key="device_id", topic="sensor")  # fmt: skip
_add("ticks", _csv("timestamp,symbol,bid,ask", [
        [(SECOND * 10**9) + n * 7_000_123, ("EURUSD", "GBPUSD")[n % 2], 1.1, 1.2]
        for n in range(N * 2)]),
     "timestamp", "unixtimestamp_ns", key="symbol")  # fmt: skip
_add("a state is not a topic", _csv("time,state,altitude", [
        [at, ("idle", "boost", "coast", "descent")[n // 30], n]
        for n, at in enumerate(_stamps(N, 0.1, "%Y-%m-%dT%H:%M:%S.%fZ"))]),
     "time", "iso8601")  # fmt: skip
_add("categories are not keys", _csv("occurred,category,severity,city", [
        [at, random.Random(n).choice("abcd"), random.Random(n + 1).choice(["low", "high"]),
         random.Random(n + 2).choice(["Bonn", "Ulm"])]
        for n, at in enumerate(_stamps(N, 86400, "%Y-%m-%d"))]),
     "occurred", ("date", "iso8601"))  # fmt: skip
_add("robots with topics in Parquet", _parquet(
        stamp=pa.array([SECOND * 10**9 + n * 10**7 for n in range(N * 2)]),
        robot=[f"r{n % 3}" for n in range(N * 2)],
        topic=[("imu", "odom")[n % 2] for n in range(N * 2)],
        log_time=pa.array([SECOND * 10**9 + n * 10**7 + 10**6 for n in range(N * 2)])),
     "stamp", "unixtimestamp_ns", key="robot", topic="topic", arrival="log_time")  # fmt: skip
_add("sorted by host, then by time", _csv("host,time,cpu", [
        [f"web-{h}", at, 3] for h in range(6) for at in _stamps(30, 60)]),
     "time", "iso8601", key="host")  # fmt: skip
_add("newest first", _csv("time,magnitude,place", [
        [at, 2.5, "CA"] for at in reversed(_stamps(N, 333, "%Y-%m-%dT%H:%M:%S.000Z"))]),
     "time", "iso8601", arrival="time")  # fmt: skip

# -- files ----------------------------------------------------------------------------------------

_PLAIN = list(zip(_stamps(N, 1), _wave(N), strict=True))
_add("tabs", _csv("time,value", _PLAIN, "\t", file="data.tsv"), "time", "iso8601",
     options={"sep": "\t"})  # fmt: skip
_add("pipes", _csv("time,value", _PLAIN, "|"), "time", "iso8601", options={"sep": "|"})
_add("byte order mark", _csv("time,value", _PLAIN, encoding="utf-8-sig"), "time", "iso8601")
_add("UTF-16", _csv("time,value", _PLAIN, encoding="utf-16"), "time", "iso8601",
     options={"encoding": "UTF-16", "multiLine": True})  # fmt: skip
_add("Latin-1", _csv("time,Größe", _PLAIN, encoding="latin-1"), "time", "iso8601",
     options={"encoding": "ISO-8859-1"}, types={"Größe": "double"})  # fmt: skip
_add("gzip", _csv("time,value", _PLAIN, file="data.csv.gz"), "time", "iso8601")
_add("zstandard", _csv("time,value", _PLAIN, file="data.csv.zst"), "time", "iso8601")
_add("bzip2", _csv("time,value", _PLAIN, file="data.csv.bz2"), "time", "iso8601")
_add("no header", _csv(None, _PLAIN), "column_1", "iso8601", options={"header": False})
_add("comments above the header", _csv("time,value", _PLAIN, before="# made by X\n# unit: K\n"),
     "time", "iso8601", options={"comment": "#"})  # fmt: skip
_add("header in the last comment", _csv(None, _PLAIN, before="# station 4\n# time, value\n"),
     "time", "iso8601", options={"comment": "#", "header": False})  # fmt: skip
_add("blanks behind commas", _csv("time, value", _PLAIN, ", "), "time", "iso8601",
     types={"value": "double"})  # fmt: skip
_add("words for no value", _csv("time,value", [[at, v if n % 5 else "NA"] for n, (at, v) in
                                               enumerate(_PLAIN)]),
     "time", "iso8601", options={"nullValue": "NA"}, types={"value": "double"})  # fmt: skip
_add("an empty column", _csv("time,nothing,value", [[at, None, v] for at, v in _PLAIN]),
     "time", "iso8601", types={"nothing": "string"})  # fmt: skip
_add("leading zeros", _csv("time,zip", [[at, f"{n:05d}"] for n, (at, _) in enumerate(_PLAIN)]),
     "time", "iso8601", types={"zip": "string"})  # fmt: skip
_add("names twice", _csv("time,value,value", [[at, v, v] for at, v in _PLAIN]),
     "time", "iso8601", types={"value_2": "double"})  # fmt: skip
_add("quotes and line ends in values", _csv("time,note", [
        [at, f'"said ""no""\n{n}"'] for n, (at, _) in enumerate(_PLAIN)]),
     "time", "iso8601", options={"multiLine": True, "escape": '"'})  # fmt: skip


def _two_headers(folder: Path) -> Path:
    """Two files whose columns are in another order."""
    (folder / "a.csv").write_text("time,x,y\n" + "".join(f"{t},{v},1\n" for t, v in _PLAIN[:60]))
    (folder / "b.csv").write_text("y,z,time\n" + "".join(f"2,q,{t}\n" for t, _ in _PLAIN[60:]))
    return folder


_add("headers that differ", _two_headers, "time", "iso8601",
     types={"x": "double", "y": "int64", "z": "string"})  # fmt: skip

_EVENTS = [{"id": str(n), "type": ("PushEvent", "WatchEvent")[n % 3 == 0], "actor": {"id": n % 7},
            "created_at": at} for n, at in enumerate(_stamps(N, 3))]  # fmt: skip
_add("GitHub events", _text("events.json", "".join(json.dumps(e) + "\n" for e in _EVENTS)),
     "created_at", "iso8601")  # fmt: skip
_add("GitHub events as an array", _text("events.json", json.dumps(_EVENTS, indent=1)),
     "created_at", "iso8601", options={"multiLine": True})  # fmt: skip
_add("GeoJSON", _text("quakes.geojson", json.dumps({"type": "FeatureCollection", "features": [
        {"type": "Feature", "id": f"ci{n}", "properties": {
            "mag": 1.5, "time": (SECOND + n * 9) * 1000, "updated": (SECOND + n * 9 + 99) * 1000}}
        for n in range(N)]})),
     "properties.time", "unixtimestamp_ms", options={"records": "features"})  # fmt: skip
_add("nested stamps", _text("odom.jsonl", "".join(json.dumps(
        {"header": {"stamp": f"{SECOND + n / 10:.9f}", "frame_id": "map"}, "x": n}) + "\n"
        for n in range(N))),
     "header.stamp", "unixtimestamp_s_float")  # fmt: skip
_add("JSON with mixed types", _text("mixed.jsonl", "".join(json.dumps(
        {"time": SECOND + n, "value": n if n % 2 else "none"}) + "\n" for n in range(N))),
     "time", "unixtimestamp_s", types={"value": "string"})  # fmt: skip
_add("timestamps of pandas", _parquet(
        time=pa.array([SECOND * 10**9 + n * 10**9 for n in range(N)], pa.timestamp("ns")),
        value=_wave(N)),
     "time", "unixtimestamp_ns", first="2024-03-01T00:00:00")  # fmt: skip
_add("timestamps with a zone", _parquet(
        at=pa.array([SECOND * 10**6 + n * 10**6 for n in range(N)], pa.timestamp("us", "UTC")),
        value=_wave(N)),
     "at", "timestamp")  # fmt: skip
_add("days in Parquet", _parquet(day=pa.array(list(range(19000, 19000 + N)), pa.date32()),
                                 value=_wave(N)),
     "day", "timestamp")  # fmt: skip


def _mcap(files: int) -> Callable[[Path], Path]:
    """Return a writer of a recording, in one file or split into several."""

    def write(folder: Path) -> Path:
        for part in range(files):
            with McapWriter(folder / f"log_{part}.mcap") as log:
                channels = [log.channel(t, schema="R", encoding="json") for t in ("/imu", "/gps")]
                for n in range(part * 200, part * 200 + 200):
                    at = (SECOND * 100 + n) * 10**7
                    log.message(channels[n % 4 == 0], log_time_ns=at + 3_000_000,
                                publish_time_ns=at, data=b"{}")  # fmt: skip
        return folder if files > 1 else folder / "log_0.mcap"

    return write


def _some_stamps(folder: Path) -> Path:
    """A recording whose texts have no header, as those of `std_msgs/String`."""
    path = folder / "log.mcap"
    with McapWriter(path) as log:
        imu, mode = (log.channel(t, schema="R", encoding="json") for t in ("/imu", "/mode"))
        for n in range(200):
            at = (SECOND * 100 + n) * 10**7
            stamp = f'{{"header": {{"stamp": {{"sec": {at // 10**9}, "nanosec": {at % 10**9}}}}}}}'
            log.message(imu, log_time_ns=at + 3_000_000, data=stamp.encode())
            if n % 40 == 0:
                log.message(mode, log_time_ns=at + 3_000_001, data=b'{"data": "idle"}')
    return path


_add("a recording with a topic without stamps", _some_stamps, "header_stamp_ns",
     "unixtimestamp_ns", topic="topic", arrival="log_time_ns",
     options={"clock": "header_or_log"})  # fmt: skip
_add("a recording", _mcap(1), "publish_time_ns", "unixtimestamp_ns", topic="topic",
     arrival="log_time_ns")  # fmt: skip
_add("a recording in three files", _mcap(3), "publish_time_ns", "unixtimestamp_ns", topic="topic",
     arrival="log_time_ns")  # fmt: skip

# -- in the manner of well-known data sets --------------------------------------------------------

_add("IMU of EuRoC", _csv("#timestamp [ns],w_x [rad s^-1],a_x [m s^-2]", [
        [1_403_636_579_758_555_392 + n * 5_000_000, 0.01 * n, 9.8] for n in range(N)]),
     "#timestamp [ns]", "unixtimestamp_ns", first="2014-06-24T19:02:59")  # fmt: skip
_add("trajectory of TUM", _csv(None, [[f"{1_305_031_098 + n / 30:.4f}", 1.3, 0.6, 1.6]
                                      for n in range(N)], " ",
                               file="groundtruth.txt",
                               before="# ground truth\n# timestamp tx ty tz\n"),
     "timestamp", "unixtimestamp_s_float", options={"sep": " ", "comment": "#"})  # fmt: skip
_add("air quality of UCI", _csv("Date,Time,CO(GT),T,,", [
        [at.strftime("%d/%m/%Y"), at.strftime("%H.%M.%S"), "2,6", "13,6", None, None]
        for at in (datetime(2004, 3, 10, 18) + timedelta(hours=n) for n in range(N))], ";"),
     ("Date", "Time"), "date_time", format="%d/%m/%Y %H.%M.%S",
     first="2004-03-10T18:00:00")  # fmt: skip
_add("household power of UCI", _csv("Date,Time,Global_active_power,Voltage", [
        [at.strftime("{d}/{m}/%Y").replace("{d}", str(at.day)).replace("{m}", str(at.month)),
         at.strftime("%H:%M:%S"), "?" if n == 7 else 4.216, 234.84]
        for n, at in enumerate(datetime(2006, 12, 16, 17, 24) + timedelta(minutes=n)
                               for n in range(N))], ";"),
     ("Date", "Time"), "date_time", format="%d/%m/%Y %H:%M:%S", options={"nullValue": "?"},
     first="2006-12-16T17:24:00")  # fmt: skip
_add("a day of Danish AIS", _csv("# Timestamp,Type of mobile,MMSI,SOG", [
        [f"03/01/2024 00:00:{n // 2:02d}", "Class A", 219_000_000 + n % 7, 3.5]
        for n in range(100)]), None)  # fmt: skip
_add("unemployment by series", _text("u.json", json.dumps([
        {"series": s, "year": 2000 + n // 12, "month": n % 12 + 1, "count": n, "rate": 2.3,
         "date": f"{2000 + n // 12}-{n % 12 + 1:02d}-01T08:00:00.000Z"}
        for s in ("Mining", "Retail", "Finance") for n in range(60)])),
     "date", "iso8601", key="series")  # fmt: skip
_add("countries and years", _csv("country,year,life_expect", [
        [c, 1955 + 5 * n, 60 + n] for c in ("Chad", "Peru", "Fiji", "Oman") for n in range(11)]),
     "year", "year_month_day", key="country")  # fmt: skip
_add("taxi rides of April", _csv("Date/Time,Lat,Lon,Base", [
        [at.strftime("{m}/{d}/%Y {H}:%M:00").replace("{m}", str(at.month)).replace(
            "{d}", str(at.day)).replace("{H}", str(at.hour)), 40.7, -74.0, "B02512"]
        for at in (datetime(2014, 4, 1) + timedelta(hours=7 * n) for n in range(90))]),
     "Date/Time", "date_time", format="%m/%d/%Y %H:%M:%S")  # fmt: skip
_add("spikes of Numenta", _csv("timestamp,value", zip(
        _stamps(N, 300, "%Y-%m-%d %H:%M:%S"), _wave(N), strict=True)),
     "timestamp", "iso8601")  # fmt: skip
_add("cars and their years", _text("cars.json", json.dumps([
        {"Name": f"car {n}", "Horsepower": None if n % 9 == 4 else 100 + n,
         "Year": f"{1970 + n // 12}-01-01", "Origin": ("USA", "Japan")[n % 5 == 0]}
        for n in range(N)])),
     "Year", ("date", "iso8601"))  # fmt: skip

_add("a signal is a property", _text("ohlc.json", json.dumps([
        {"date": at, "open": 30, "close": 29, "signal": random.Random(n).choice(["long", "short"])}
        for n, at in enumerate(_stamps(44, 86400, "%Y-%m-%d"))])),
     "date", ("date", "iso8601"))  # fmt: skip
_add("ranges as names", _csv("time,0-1,1-50 deaths,51-100", [[at, 1, 2, 3] for at, _ in _PLAIN]),
     "time", "iso8601", types={"0-1": "int64"})  # fmt: skip

# -- in the manner of loggers, web servers and robots --------------------------------------------

_add("hours as digits, by a weather service", _csv("STATIONS_ID,MESS_DATUM,TT_TU", [
        [44, at, v] for at, v in zip(_stamps(N, 3600, "%Y%m%d%H"), _wave(N), strict=True)], ";"),
     "MESS_DATUM", "date_time", format="%Y%m%d%H", first="2024-03-01T00:00:00",
     types={"MESS_DATUM": "string"})  # fmt: skip
_add("minutes as digits", _csv("yyyymmddhhmm_time,x", zip(_stamps(N, 60, "%Y%m%d%H%M"), _wave(N),
                                                          strict=True)),
     "yyyymmddhhmm_time", "date_time", format="%Y%m%d%H%M")  # fmt: skip
_add("a stamp of ROS in two columns", _csv("sec,nanosec,frame_id,x", [
        [SECOND + n // 50, n % 50 * 20_000_000, "base", n] for n in range(N)]),
     ("sec", "nanosec"), "unixtimestamp_s_ns", first="2024-03-01T00:00:00")  # fmt: skip
_add("a stamp of ROS in nested fields", _text("imu.jsonl", "".join(json.dumps(
        {"header": {"stamp": {"sec": SECOND + n // 50, "nanosec": n % 50 * 20_000_000},
                    "frame_id": "imu"}, "x": n}) + "\n" for n in range(N))),
     ("header.stamp.sec", "header.stamp.nanosec"), "unixtimestamp_s_ns")  # fmt: skip
_add("a time of C in two columns", _csv("tv_sec,tv_usec,len", [
        [SECOND + n // 50, n % 50 * 20_000, 60] for n in range(N)]),
     ("tv_sec", "tv_usec"), "unixtimestamp_s_us")  # fmt: skip
_add("a topic printed by ROS", _csv("%time,field.header.seq,field.header.stamp,field.x", [
        [SECOND * 10**9 + n * 5_000_000 + 1_200_000, n, SECOND * 10**9 + n * 5_000_000, n]
        for n in range(N)]),
     "field.header.stamp", "unixtimestamp_ns")  # fmt: skip
_add("microseconds since boot, without a unit", _csv("timestamp,x,y", [
        [193_000_000 + n * 4000, n, n] for n in range(N)]), None)  # fmt: skip
_add("years with a fraction", _csv("time,deaths", [[f"{1974 + n / 12:.3f}", n] for n in range(N)]),
     None)  # fmt: skip
_add("a time of day alone", _csv("time,x", zip(_stamps(N, 1, "%H:%M:%S"), _wave(N), strict=True)),
     None)  # fmt: skip
_add("year, day of the year and hour", _csv("Year,DOY,Hour,TA", [
        [2024, 61 + n // 24, n % 24, 4.5] for n in range(N)]),
     ("Year", "DOY", "Hour"), "date_time", format="%Y %j %H",
     first="2024-03-01T00:00:00")  # fmt: skip
_add("year and month beside years with a fraction", _csv("year,month,decimal_date,average", [
        [1974 + n // 12, n % 12 + 1, f"{1974 + n / 12:.4f}", 330] for n in range(N)]),
     ("year", "month"), "date_time", format="%Y %m", first="1974-01-01T00:00:00")  # fmt: skip
_add("a date beside its parts", _csv("dateRep,day,month,year,cases,geoId", [
        [at.strftime("%d/%m/%Y"), at.day, at.month, at.year, n, g] for g in ("AT", "DE")
        for n, at in enumerate(START + timedelta(days=n) for n in range(60))]),
     "dateRep", "date_time", format="%d/%m/%Y", key="geoId")  # fmt: skip
_add("the order of day and month in the name", _csv("DATE (MM/DD/YYYY),MST,W", [
        [at, clock, 3] for at, clock in zip(_stamps(N, 3600, "{m}/{d}/%Y"),
                                            _stamps(N, 3600, "%H:%M"), strict=True)]),
     ("DATE (MM/DD/YYYY)", "MST"), "date_time", format="%m/%d/%Y %H:%M")  # fmt: skip
_add("times without leading zeros", _csv("Date,Time,CPU", [
        [f"{at.day}.{at.month}.{at.year}", f"{at.hour}:{at.minute}:{at.second}.{n}", 50]
        for n, at in enumerate(START + timedelta(seconds=2 * n) for n in range(N))]),
     ("Date", "Time"), "date_time", format="%d.%m.%Y %H:%M:%S.%f")  # fmt: skip
_add("a web server's log", _text("access.log", "".join(
        f'10.0.0.{n % 9} - - [{at}] "GET /p{n % 20} HTTP/1.1" 200 {512 + n}\n'
        for n, at in enumerate(_stamps(N, 3, "%d/%b/%Y:%H:%M:%S +0100")))),
     ("column_4", "column_5"), "date_time", format="[%d/%b/%Y:%H:%M:%S %z]",
     first="2024-02-29T23:00:00")  # fmt: skip
_add("a log of the W3C", _text("iis.log", "#Version: 1.0\n#Fields: date time cs-method sc-status\n"
     + "".join(f"{at} GET 200\n" for at in _stamps(N, 3, "%Y-%m-%d %H:%M:%S"))),
     ("date", "time"), "iso8601", options={"comment": "#", "sep": " "})  # fmt: skip
_add("a log of Zeek", _text("conn.log", "#separator \\x09\n#fields\tts\tuid\tduration\n"
     "#types\ttime\tstring\tinterval\n"
     + "".join(f"{SECOND + n * 0.37:.6f}\tC{n}\t{'-' if n % 6 == 0 else n}\n" for n in range(N))),
     "ts", "unixtimestamp_s_float", options={"nullValue": "-"})  # fmt: skip
_add("summer and winter time in a column", _csv("time,tz,kWh", [
        [at, "CEST" if n < 60 else "CET", 3] for n, at in
        enumerate(_stamps(60, 900, "%Y-%m-%d %H:%M:%S") + _stamps(60, 900, "%Y-%m-%d %H:%M:%S",
                  START + timedelta(hours=14)))]),
     "time", "iso8601")  # fmt: skip
_add("elapsed time beside the date", _csv("epoch (ms),elapsed (s),x-axis (g)", [
        [SECOND * 1000 + n * 10, f"{n / 100:.3f}", n] for n in range(N)]),
     "epoch (ms)", "unixtimestamp_ms")  # fmt: skip
_add("from and to", _csv("Datum von,Datum bis,MWh", zip(
        _stamps(N, 3600, "%d.%m.%Y %H:%M"), _stamps(N, 3600, "%d.%m.%Y %H:%M",
                                                    START + timedelta(hours=1)), range(N),
        strict=True), ";"),
     "Datum von", "date_time", format="%d.%m.%Y %H:%M")  # fmt: skip
_add("month first, with hyphens", _csv("DATE,index", [
        [f"{datetime(1995 + n // 12, n % 12 + 1, 1):%b}-1-{1995 + n // 12}", n] for n in range(N)]),
     "DATE", "date_time", format="%b-%d-%Y", first="1995-01-01T00:00:00")  # fmt: skip
_add("year and name of the month", _csv("Month,Scripts", [
        [f"{datetime(1991 + n // 12, n % 12 + 1, 1):%Y %b}", n] for n in range(N)]),
     "Month", "date_time", format="%Y %b", first="1991-01-01T00:00:00")  # fmt: skip
_add("quarters are no keys", _csv("year,quarter,gdp", [[1959 + n // 4, n % 4 + 1, 2710 + n]
                                                       for n in range(N)]),
     "year", "year_month_day")  # fmt: skip
_add("states of a country", _csv("state,year,gsp", [[s, 1970 + n, 28418] for s in
                                                    ("ALABAMA", "ARIZONA", "IOWA", "UTAH")
                                                    for n in range(17)]),
     "year", "year_month_day", key="state")  # fmt: skip
_add("a list sorted by name", _csv("name,death_date,age", [
        [f"{n:03d}", (START + timedelta(days=(574 if n == 55 else 105 if n == 38 else n * 7 % 24)))
         .strftime("%Y-%m-%d"), 30] for n in range(63)]),
     "death_date", ("date", "iso8601"))  # fmt: skip
_add("positions of a bicycle computer", _csv("position_lat,position_long,power", [
        [-138_827_872 + n, 1_992_059_008 + n * 90, 68] for n in range(N)]), None)  # fmt: skip

# -- in the manner of exports, services and instruments ------------------------------------------

_add("units below the header", _csv("Time (ms),Channel A", [["(ms)", "(V)"]] + [
        [f"{n * 0.02:.8f}", n] for n in range(N)]),
     "Time (ms)", "unixtimestamp_ms_float", options={"skipRowsAfterHeader": 1},
     types={"Channel A": "int64"})  # fmt: skip
_add("hours that end at 24:00", _csv("Date,Hour Ending,MW", [
        [at.strftime("%m/%d/%Y"), f"{n % 24 + 1:02d}:00", n] for n, at in enumerate(
            START + timedelta(hours=n) for n in range(24 * 30))]),
     ("Date", "Hour Ending"), "date_time", format="%m/%d/%Y %H:%M",
     first="2024-03-01T01:00:00")  # fmt: skip
_add("hours from 1 to 24", _csv("Year,DOY,Hour,TA", [[2024, 61 + n // 24, n % 24 + 1, 4.5]
                                                     for n in range(N)]),
     ("Year", "DOY", "Hour"), "date_time", format="%Y %j %H",
     first="2024-03-01T01:00:00")  # fmt: skip
_add("percent signs before comments", _csv("time,value", _PLAIN, before="% made by X\n% K\n"),
     "time", "iso8601", options={"comment": "%"})  # fmt: skip
_add("a browser in a web server's log", _text("access_log.txt", "".join(
        f'10.0.{n % 3}.{n % 11} - frank [{at}] "GET /a{n}.gif HTTP/1.0" 200 {n} "http://x.y/" '
        f'"Mozilla/5.0 (X11; Linux x86_64)"\n'
        for n, at in enumerate(_stamps(N, 3, "%d/%b/%Y:%H:%M:%S +0000")))),
     ("column_4", "column_5"), "date_time", format="[%d/%b/%Y:%H:%M:%S %z]",
     options={"sep": " "})  # fmt: skip
_add("JSON in a log", _text("dns.log", "".join(json.dumps(
        {"ts": SECOND + n * 0.31, "uid": f"C{n}", "id.orig_h": f"10.0.0.{n % 7}"}) + "\n"
        for n in range(N))), "ts", "unixtimestamp_s_float")  # fmt: skip
_add("Japanese of Windows", _csv("日時,温度", zip(_stamps(N, 600, "%Y/%m/%d %H:%M:%S"), _wave(N),
                                                   strict=True), encoding="shift_jis"),
     "日時", "date_time", format="%Y/%m/%d %H:%M:%S", options={"encoding": "Shift_JIS"},
     types={"温度": "double"})  # fmt: skip
_add("a query of InfluxDB", _csv(",result,table,_start,_time,_value,_field,_measurement,host", [
        [None, None, t, ISO, at, 20 + n, ("user", "system")[t], "cpu", "h1"] for t in range(2)
        for n, at in enumerate(_stamps(N, 10))], before="#group,false,false\n#default,_result,\n"),
     "_time", "iso8601", key="table", topic="_field", options={"comment": "#"})  # fmt: skip
_add("two flights in one file", _csv("elapsed_s,alt", [[f"{n * 0.1:.2f}", n] for _ in range(2)
                                                       for n in range(N)]),
     "elapsed_s", "unixtimestamp_s_float")  # fmt: skip
_add("a zone in a column beside the times", _csv("datetime,tz_cd,flow", [[at, "EST", n] for n, at in
     enumerate(_stamps(N, 900, "%Y-%m-%d %H:%M"))]), "datetime", "iso8601")  # fmt: skip
_add("trades by root of the symbol", _csv("DATE,TIME_M,EX,SYM_ROOT,PRICE", [
        [f"{at:%Y%m%d}", f"{at.hour}:{at:%M:%S.%f}000", "NQP"[n % 3], ("AAPL", "MSFT")[n % 2], 9.5]
        for n, at in enumerate(START + timedelta(seconds=0.7 * n) for n in range(N))]),
     ("DATE", "TIME_M"), "date_time", format="%Y%m%d %H:%M:%S.%f", key="SYM_ROOT")  # fmt: skip
_add("seconds as decimals", _parquet(
        epoch=pa.array([Decimal(f"{SECOND + n}.250000") for n in range(N)], pa.decimal128(18, 6)),
        value=_wave(N)),
     "epoch", "unixtimestamp_s_float", first="2024-03-01T00:00:00")  # fmt: skip
_add("times of Impala", _parquet_of({"use_deprecated_int96_timestamps": True},
        event_time=pa.array([SECOND * 10**9 + n * 10**9 for n in range(N)], pa.timestamp("ns")),
        value=_wave(N)),
     "event_time", "timestamp", first="2024-03-01T00:00:00",
     types={"event_time": "timestamp[us, tz=UTC]"})  # fmt: skip
_add("unsigned integers and milliseconds", _parquet(
        ts_ns=pa.array([(SECOND + n) * 10**9 for n in range(N)], pa.uint64()),
        sent=pa.array([(SECOND + n) * 1000 for n in range(N)], pa.timestamp("ms", "Europe/Berlin")),
        count=pa.array(list(range(N)), pa.uint16()), text=pa.array(["a"] * N,
                                                                          pa.large_string())),
     "ts_ns", "unixtimestamp_ns",
     types={"ts_ns": "decimal128(20, 0)", "sent": "timestamp[us, tz=UTC]", "count": "int32",
            "text": "string"})  # fmt: skip
_add("a time of day that Spark does not read", _parquet(
        day=pa.array([19_800 + n // 40 for n in range(N)], pa.date32()),
        clock=pa.array([n % 40 for n in range(N)], pa.time32("s")), value=_wave(N)),
     "day", "timestamp", types={"value": "double"})  # fmt: skip
_add("quotes of Windows", _csv("time,note", [[at, "“high”"] for at, _ in _PLAIN],
                               encoding="windows-1252"),
     "time", "iso8601", options={"encoding": "windows-1252"})  # fmt: skip
_add("year and name of the month in two columns", _csv("year,month,passengers", [
        [1949 + n // 12, f"{datetime(2000, n % 12 + 1, 1):%B}", 100 + n] for n in range(N)]),
     ("year", "month"), "date_time", format="%Y %b", first="1949-01-01T00:00:00")  # fmt: skip
_add("times of day without leading zeros", _csv("latitude,acq_date,acq_time,frp", [
        [1.5, f"{at:%Y-%m-%d}", int(f"{at:%H%M}"), 3.5] for at in
        (START + timedelta(minutes=10 * n) for n in range(N))]),
     "acq_date", ("date", "iso8601"))  # fmt: skip
_add("history of a house", _csv("entity_id,state,last_changed", [
        [f"sensor.t{n % 3}", n, at] for n, at in enumerate(_stamps(N, 7))]),
     "last_changed", "iso8601", key="entity_id")  # fmt: skip
_add("numbers of MongoDB", _text("m.json", "".join(json.dumps(
        {"_id": {"$oid": f"{n:024x}"}, "at": {"$date": {"$numberLong": str((SECOND + n) * 1000)}}})
        + "\n" for n in range(N))), "at.$date.$numberLong", "unixtimestamp_ms")  # fmt: skip
_add("delays of flights are no arrival", _csv("time_hour,carrier,arrival_delay,distance", [
        [at, "UA", random.Random(n).randint(-20, 90), 1400] for n, at in
        enumerate(_stamps(N, 600, "%Y-%m-%d %H:%M:%S"))]), "time_hour", "iso8601")  # fmt: skip
_add("weeks alone", _csv("week,sales", [[f"2024-W{n:02d}", n] for n in range(1, 53)]), None)
_add("seconds of a watch in generic columns", _csv("Type,Message,Field 1,Value 1,Units 1", [
        ["Data", "record", "timestamp", SECOND - 631_065_600 + n, "s"] for n in range(N)]),
     None)  # fmt: skip


def _folders_with_columns(folder: Path) -> Path:
    """Parquet in folders whose names are columns, as Hive and Spark write it."""
    for device in ("a", "b"):
        for day in (1, 2):
            place = folder / f"device={device}" / f"day=2024-03-{day:02d}"
            place.mkdir(parents=True)
            stamps = [(SECOND + 86_400 * (day - 1) + n) * 1000 for n in range(N)]
            pq.write_table(pa.table({"ts": stamps, "v": range(N)}), place / "part-0.parquet")
    return folder


_add("folders whose names are columns", _folders_with_columns, "ts", "unixtimestamp_ms",
     key="device", types={"device": "string", "day": "date32[day]"})  # fmt: skip

# -- real files -----------------------------------------------------------------------------------


def _real(name: str) -> Callable[[Path], Path]:
    """Return where a real file is."""
    return lambda folder: REAL / name


_add("real: stocks", _real("stocks.csv"), "date", "date_time", format="%b %d %Y", key="symbol")
_add("real: co2", _real("co2-concentration.csv"), "Date", ("date", "iso8601"))
_add("real: github", _real("github.csv"), "time", "date_time", format="%Y/%m/%d %H:%M:%S")
_add("real: birdstrikes", _real("birdstrikes.csv"), "Flight Date", ("date", "iso8601"))
_add("real: animals", _real("animals311.csv"), "Created Date", "date_time", format="%m/%d/%Y %H:%M",
     types={"Due Date": "string"})  # fmt: skip
_add("real: quakes", _real("quake/earthquakes.json"), "properties.time", "unixtimestamp_ms")
_add("real: launches", _real("launches"), "timestamp_seconds", "unixtimestamp_s_float")
_add("real: bag", _real("bags/example.bag"), "log_time_ns", "unixtimestamp_ns", topic="topic")
_add("real: bag with lz4", _real("bags/example-lz4.bag"), "log_time_ns", "unixtimestamp_ns",
     topic="topic")  # fmt: skip
_add("real: AIS recording", _real("keelson/big.mcap"), "header_stamp_ns", "unixtimestamp_ns",
     topic="topic", arrival="log_time_ns")  # fmt: skip
_add("real: split recording", _real("wbag"), "publish_time_ns", "unixtimestamp_ns", topic="topic",
     arrival="log_time_ns")  # fmt: skip

# -- lines above the table, units below its header -------------------------------------------------

_ABOVE = "Logger 7, firmware 2.1\nStarted by: Miller\n\n"
_READINGS = [[at, n % 7 + 0.5, n] for n, at in enumerate(_stamps(N, 1, "%Y-%m-%d %H:%M:%S"))]
_ELAPSED = [[f"{n * 0.02:.2f}", n % 7 + 0.5, n] for n in range(N)]
_NUMBERS = {"temp": "double", "n": "int64"}

_add("prose above the header", _csv("time,temp,n", _READINGS, before=_ABOVE), "time", "iso8601",
     options={"skipRows": 2}, types=_NUMBERS, first="2024-03-01T00:00:00")  # fmt: skip
_add("prose above the header, packed", _csv("time,temp,n", _READINGS, before=_ABOVE,
                                            file="data.csv.gz"),
     "time", "iso8601", options={"skipRows": 2}, types=_NUMBERS)  # fmt: skip
_add("prose of Latin-1 and semicolons", _csv("time,temp,n", _READINGS, ";", encoding="latin-1",
                                             before="Gerät im Flur\n"),
     "time", "iso8601", options={"skipRows": 1, "encoding": "ISO-8859-1"},
     types=_NUMBERS)  # fmt: skip
_add("prose and units in UTF-16", _csv("time,temp,n", [["s", "°C", "-"], *_ELAPSED], "\t",
                                       encoding="utf-16", before="Export\n\n"),
     "time", "unixtimestamp_s_float", types=_NUMBERS,
     options={"skipRows": 1, "skipRowsAfterHeader": 1})  # fmt: skip
_add("units that tell the unit of the time", _csv("time,temp,n", [["[ms]", "[C]", ""], *_ELAPSED]),
     "time", "unixtimestamp_ms_float", types=_NUMBERS,
     options={"skipRowsAfterHeader": 1})  # fmt: skip
_add("what describes a device, in two columns", _csv("Time,Temp", [row[:2] for row in _READINGS],
                                                     before="Device,ABC\nSerial,123\n"),
     "Time", "iso8601", options={"skipRows": 2}, types={"Temp": "double"})  # fmt: skip
_add("a title as a spreadsheet pads it", _csv("Date,Value,n", _READINGS, before="Report,,\n,,\n"),
     "Date", "iso8601", options={"skipRows": 2})  # fmt: skip
_add("TOA5 of a data logger", _csv("TIMESTAMP,RECORD,BattV_Min,AirTC_Avg", [
        ["TS", "RN", "Volts", "Deg C"], ["", "", "Min", "Avg"],
        *([f'"{at}"', n, 12.6, 4.5] for n, at in enumerate(_stamps(N, 60, "%Y-%m-%d %H:%M:%S")))],
        file="data.dat", before='"TOA5","CR1000","CR1000","1234","Std.27","CPU:p","2","T"\n'),
     "TIMESTAMP", "iso8601", options={"skipRows": 1, "skipRowsAfterHeader": 2},
     types={"BattV_Min": "double", "RECORD": "int64"})  # fmt: skip
_add("the delimiter for Excel", _csv("time,temp,n", _READINGS, ";", before="sep=;\n"),
     "time", "iso8601", options={"skipRows": 1, "sep": ";"}, types=_NUMBERS)  # fmt: skip
_add("a rule below the header", _csv("time,temp,n", [["---", "---", "---"], *_READINGS], "|"),
     "time", "iso8601", options={"skipRowsAfterHeader": 1}, types=_NUMBERS)  # fmt: skip
_add("types below the header", _csv("time,temp,n", [["datetime", "float", "int"], *_READINGS]),
     "time", "iso8601", options={"skipRowsAfterHeader": 1}, types=_NUMBERS)  # fmt: skip
_add("lines above data without a header", _csv(None, _READINGS, before="Log of today\nstarted\n"),
     "column_1", "iso8601", options={"skipRows": 2, "header": False})  # fmt: skip
_add("prose, a word for no value, comments", _csv("time,temp,n", [
        [at, "NA" if n % 5 == 0 else temp, n] for at, temp, n in _READINGS],
        before="# a\nLogger\n# b\n"),
     "time", "iso8601", options={"skipRows": 1, "comment": "#", "nullValue": "NA"},
     types=_NUMBERS)  # fmt: skip
_add("a table of R", _csv("time,temp,n", [[n, *row] for n, row in enumerate(_READINGS, 1)]),
     "time", "iso8601", types=_NUMBERS)  # fmt: skip
_add("a delimiter at the end of all rows", _csv("time,temp,n", [[*row, None] for row in _READINGS]),
     "time", "iso8601", types=_NUMBERS)  # fmt: skip
_add("a line end in the header", _csv('time,"temp\n(degC)",n', _READINGS),
     "time", "iso8601", options={"multiLine": True}, types={"temp\n(degC)": "double"})  # fmt: skip
_add("blank lines above the header", _csv("time,temp,n", _READINGS, before="\n \n\n"),
     "time", "iso8601", types=_NUMBERS)  # fmt: skip
_add("words of a sensor that warms up", _csv("time,temp,n", [
        [at, "warming up" if n < 4 else temp, n] for at, temp, n in _READINGS]),
     "time", "iso8601", types={"temp": "string", "n": "int64"})  # fmt: skip
_add("names that are pictures", _csv("\U0001f552,\U0001f321", [row[:2] for row in _READINGS]),
     "\U0001f552", "iso8601")  # fmt: skip
_add("levels of names, as pandas writes them", _csv("Price,Close,High", [
        ["Ticker", "AAPL", "AAPL"], ["Date", None, None],
        *([f"2024-03-{day:02d}", 100 + day / 4, 101 + day] for day in range(1, 30))]),
     "Price", "date", options={"skipRowsAfterHeader": 2},
     types={"Close": "double", "High": "int64"})  # fmt: skip
