"""What a run has written, per kind and vehicle in order, and how two runs differ."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.output.commit import CommitLog

KINDS = ("data", "late", "error", "dropped")

Rows = dict[str, dict[str, list[str]]]
"""Per kind, per vehicle: its rows as text, in the order in which they came out."""


def arranged(tables: Iterable[tuple[str, Iterable[dict[str, Any]]]]) -> Rows:
    """Rows by kind and vehicle. Errors have no order of their own: those found before the shuffle
    are reported before those of a stage behind it."""
    out: dict[str, dict[str, list[str]]] = {}
    for kind, rows in tables:
        of_kind = out.setdefault(kind, collections.defaultdict(list))
        for row in rows:
            row.pop("batch", None)
            of_kind[str(row.get("vehicle"))].append(json.dumps(row, default=str, sort_keys=True))
    for rows_of in out.get("error", {}).values():
        rows_of.sort()
    return {kind: dict(found) for kind, found in out.items()}


def read_parquet(out: Path) -> Rows:
    """The rows of the Parquet files that commits list."""
    return _listed(out, "parquet", _rows)


def read_mcap(out: Path) -> Rows:
    """The messages of the logs that commits list, as the format's own reader gives them."""
    return _listed(out, "mcap", _messages)


def _listed(out: Path, suffix: str, read: Callable[[Path], list[dict[str, Any]]]) -> Rows:
    """What stands in the files that commits list. One that no commit lists is an error."""
    listed = [file for commit in CommitLog.at(str(out)) for file in commit.files]
    tables = [folder for folder in out.iterdir() if not folder.name.startswith("_")]
    there = {str(f.relative_to(out)) for folder in tables for f in folder.rglob(f"*.{suffix}")}
    if there != set(listed) or len(listed) != len(there):
        odd = sorted(there.symmetric_difference(listed))
        raise AssertionError(f"files and commits disagree: {odd or 'one is listed twice'}")
    return arranged((name.split("/")[0], read(out / name)) for name in listed)


def read_delta(out: Path) -> Rows:
    """The files that the newest version of each Delta table holds."""
    import deltalake

    tables: list[tuple[str, list[dict[str, Any]]]] = []
    for kind in KINDS:
        if (out / kind / "_delta_log").exists():
            files = sorted(deltalake.DeltaTable(out / kind).file_uris())
            tables += [(kind, _rows(Path(unquote(urlsplit(file).path)))) for file in files]
    return arranged(tables)


def read_kafka(servers: str, topic: str) -> Rows:
    """The committed messages of each topic, from its first on."""
    import confluent_kafka as ck

    settings = {
        "bootstrap.servers": servers, "group.id": "faults", "enable.partition.eof": True,
        "isolation.level": "read_committed", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = ck.Consumer(settings)
    known = consumer.list_topics(timeout=30).topics
    tables = []
    for kind in KINDS:
        name = f"{topic}.{kind}"
        if name not in known:
            continue
        consumer.assign([ck.TopicPartition(name, part, 0) for part in known[name].partitions])
        rows, ended = [], 0
        while ended < len(known[name].partitions):
            message: Any = consumer.poll(60)
            if message is None:
                raise AssertionError(f"{name} did not answer within a minute")
            if message.error() is None:
                rows.append(json.loads(message.value()))
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                ended += 1
        tables.append((kind, rows))
    consumer.close()
    return arranged(tables)


def _rows(file: Path) -> list[dict[str, Any]]:
    table: pa.Table = pq.ParquetFile(file).read()
    return list(table.to_pylist())


def _messages(file: Path) -> list[dict[str, Any]]:
    from mcap.reader import make_reader

    with open(file, "rb") as log:
        return [
            {
                "vehicle": channel.topic.strip("/").split("/")[0],
                "topic": channel.topic,
                "log_time": message.log_time,
                "publish_time": message.publish_time,
                "data": message.data,
            }
            for _, channel, message in make_reader(log).iter_messages(log_time_order=False)
        ]


def count(rows: Rows) -> int:
    return sum(len(found) for kind in rows.values() for found in kind.values())


def differences(found: Rows, wanted: Rows) -> list[str]:
    """A line per kind and vehicle that differs: what is lost, what is too much, or the order."""
    out = []
    for kind in sorted({*found, *wanted}):
        ours, theirs = found.get(kind, {}), wanted.get(kind, {})
        for vehicle in sorted({*ours, *theirs}):
            one, two = ours.get(vehicle, []), theirs.get(vehicle, [])
            if one == two:
                continue
            lost = collections.Counter(two) - collections.Counter(one)
            extra = collections.Counter(one) - collections.Counter(two)
            said = f"{lost.total()} rows lost, {extra.total()} too many"
            out.append(f"{kind} {vehicle}: {said if lost or extra else 'rows in another order'}")
    return out
