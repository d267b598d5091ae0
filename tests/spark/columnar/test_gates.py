"""Gate 1 against gate 2 on Spark: the same rows, whatever travels, however the recording is sliced;
files that change or go, and a backfill that is cut off."""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidegate.align import latest, linear
from tidegate.errors import ConfigError, RunError, StateError
from tidegate.mcap import McapWriter
from tidegate.output.commit import Commit
from tidegate.spark import Frames, Recording, blob_files, frames, read
from tidegate.spark import query as running
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.pack import from_blob
from tidegate.spark.read_limits import IN_STEPS

ROWS = 1500
KINDS = ("data", "late", "error", "dropped")


def payload_of(key: str, topic: str, t: int) -> str:
    """A payload that says whose it is."""
    return hashlib.sha256(f"{key} {topic} {t}".encode()).hexdigest() * 2


def recorded(seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(10**9, 60 * 10**9, ROWS)) + rng.integers(-(10**8), 10**8, ROWS)
    key = [f"car-{n}" for n in rng.integers(0, 5, ROWS)]
    topic = [f"{'abc'[n]}" for n in rng.integers(0, 3, ROWS)]
    stamps = [None if n % 251 == 7 else int(x) for n, x in enumerate(t)]
    body = [payload_of(k, s, 0 if x is None else x)
            for k, s, x in zip(key, topic, stamps, strict=True)]  # fmt: skip
    return pa.table({"key": key, "topic": topic, "t": stamps, "payload": body})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file per topic, in small row groups."""
    place = tmp_path_factory.mktemp("recording")
    rows = recorded()
    for topic in "abc":
        mine = rows.filter(pc.equal(rows["topic"], topic))
        pq.write_table(mine, place / f"{topic}.parquet", row_group_size=150)
    return place


def pipeline(rows: Any, **options: Any) -> Frames:
    made = frames(rows, key="key", time="t", topic="topic", **options)
    return made.event_time("unixtimestamp_ns", "50 ms").synchronize(["a", "b", "c"])


def written(out: Path) -> dict[str, list[str]]:
    return {
        kind: sorted(str(row) for row in pq.read_table(out / kind, partitioning=None).to_pylist())
        for kind in KINDS
        if (out / kind).exists()
    }


@pytest.fixture(scope="module")
def expected(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What comes out of gate 2, read as one batch."""
    out = tmp_path_factory.mktemp("gate2") / "out"
    rows = pipeline(spark.read.parquet(str(folder)))
    assert rows.gate().startswith("rows come through Spark")
    rows.write(str(out))
    found = written(out)
    assert all(found[kind] for kind in KINDS), "every kind of outcome is compared"
    return found


@pytest.mark.parametrize("payload", ["carried", "addressed"])
@pytest.mark.parametrize("nbytes", [None, 3_000])
def test_a_backfill_equals_gate_2(
    spark: SparkSession, folder: Path, tmp_path: Path, expected: Any, payload: Any, nbytes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if nbytes is not None:
        monkeypatch.setattr(blob_files, "LEAST_BYTES", 1)
    options = {} if nbytes is None else {"maxBytesPerTrigger": str(nbytes)}
    made = pipeline(read(str(folder), options=options, spark=spark), payload=payload)
    assert f"payload {payload}" in made.gate()
    commit = made.write(str(tmp_path / "out"))
    assert written(tmp_path / "out") == expected
    assert not isinstance(commit, pa.Table)
    assert sum(commit.rows.values()) == sum(len(rows) for rows in expected.values())
    if nbytes is not None and IN_STEPS:
        assert commit.batch > 3, "the recording was sliced"
    with pytest.raises(ConfigError, match="must be empty"):
        made.write(str(tmp_path / "out"))


def test_blobs_stay_in_files_for_as_long_as_their_micro_batch(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any stream, here through Spark's own reader; the same rows as with blobs that are carried."""
    place = Path(spark.sparkContext._temp_dir) / blob_files.FOLDER  # type: ignore[attr-defined]

    def run(name: str, least: int) -> list[Path]:
        monkeypatch.setattr(blob_files, "LEAST_BYTES", least)
        rows = spark.readStream.schema("key string, topic string, t long, payload string")
        stream = rows.option("maxFilesPerTrigger", 1).parquet(str(folder))
        query = pipeline(stream, arrival="t").write(str(tmp_path / name))
        assert not isinstance(query, Commit)
        query.awaitTermination()
        return [file for file in place.rglob("*") if file.is_file()]

    left = run("files", 1)
    assert left
    assert {file.parent.name for file in left} == {"2"}, "those of the last micro-batch"
    blob_files.blob_files(spark.newSession())
    assert all(file.exists() for file in left), "another session removes none of them"
    assert run("carried", 10**9) == [], "a new query removes what others have left"
    assert written(tmp_path / "files") == written(tmp_path / "carried")


def test_every_payload_is_that_of_its_row(spark: SparkSession, folder: Path) -> None:
    made = pipeline(read(str(folder), spark=spark), payload="addressed")
    for row in made.data.collect():
        for topic in "abc":
            one = row[topic]
            assert one["payload"] == payload_of(row["key"], topic, one["t"])
    for row in made.dropped.collect():
        assert row["payload"] == payload_of(row["key"], row["topic"], row["t"])
    assert made.errors.count() == sum(n % 251 == 7 for n in range(ROWS))


def test_available_now_in_a_stream(
    spark: SparkSession, folder: Path, tmp_path: Path, expected: Any
) -> None:
    """A stream over the same files: everything but the flush at its end."""
    options = {"maxFilesPerTrigger": "1"}
    stream = read(str(folder), streaming=True, options=options, spark=spark)
    query = pipeline(stream).write(str(tmp_path / "out"))
    query.awaitTermination()
    found = written(tmp_path / "out")
    for kind in ("late", "error"):
        assert found[kind] == expected[kind], "no row is late because of a slice"
    assert set(found["data"]) <= set(expected["data"])


class _KilledError(Exception):
    pass


@pytest.mark.skipif(not IN_STEPS, reason="one micro-batch on Spark 4.1: there is no middle")
def test_a_backfill_that_is_cut_off_goes_on(
    spark: SparkSession, folder: Path, tmp_path: Path, expected: Any
) -> None:
    options = {"maxBytesPerTrigger": "6000"}
    made = pipeline(read(str(folder), options=options, spark=spark), payload="addressed")
    seen: list[int] = []

    def stop_in_the_middle(commit: Any) -> None:
        seen.append(commit.batch)
        if len(seen) == 3:
            raise _KilledError

    with pytest.raises(RunError):
        running.run_batch_job(made, str(tmp_path / "out"), None, stop_in_the_middle)
    assert len(seen) == 3
    running.run_batch_job(made, str(tmp_path / "out"))
    assert written(tmp_path / "out") == expected


def copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for file in folder.iterdir():
        pq.write_table(pq.read_table(file), place / file.name, row_group_size=60)
    return place


def changed_after_planning(made: Frames, file: Path) -> Frames:
    """Another file in its place, after decisions were planned on the first: same size of rows."""
    _ = made.outcomes
    rows = pq.read_table(file)
    other = rows.set_column(2, "t", pc.add(rows["t"], 1))
    pq.write_table(other, file, row_group_size=60)
    return made


def test_aligned_rows_get_their_payload(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """A value that is one message has its address; what is interpolated is carried."""
    made = frames(read(str(folder), spark=spark), key="key", time="t", topic="topic",
                  payload="addressed")  # fmt: skip
    methods = {"b": latest("10 s", columns=["payload"]), "c": linear("20 s", columns=["t"])}
    made = made.event_time("unixtimestamp_ns", "50 ms").align(methods, reference="a")
    assert "payload addressed" in made.gate()
    made.write(str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "data", partitioning=None).to_pylist()
    assert len(rows) > 300
    for row in rows:
        assert row["a"]["payload"] == payload_of(row["key"], "a", row["a"]["t"])
        one, other = row["b"], row["c"]
        assert (one["payload"] is None) == (one["missing"] is not None)
        if one["payload"] is not None:
            assert one["payload"] == payload_of(row["key"], "b", one["time_ns"])
        if other["t"] is not None:
            assert other["t"] == pytest.approx(row["time_ns"], abs=1000)
        assert not any(name.startswith("__") for name in (*row["a"], *one, *other))
    gone = pq.read_table(tmp_path / "out" / "dropped", partitioning=None).to_pylist()
    for row in gone:
        assert row["payload"] == payload_of(row["key"], row["topic"], row["t"])


@pytest.mark.parametrize("what", ["changed", "gone", "half"])
def test_a_file_that_is_not_the_same_any_more(
    spark: SparkSession, folder: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copied(folder, tmp_path / "in")
    made = pipeline(read(str(place), spark=spark), payload="addressed")
    blobs = made.outcomes.toArrow()  # the decisions; payload is attached afterwards
    attacher = made.attacher
    assert attacher is not None
    file = place / "b.parquet"
    if what == "changed":
        changed_after_planning(made, file)
    elif what == "gone":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2)

    def outcomes() -> Iterator[tuple[str, pa.RecordBatch]]:
        for row in blobs.to_pylist():
            if row["blob"] is not None:
                yield row["kind"], from_blob(row["blob"])

    monkeypatch.setattr("tidegate.spark.columnar.parquet._OPEN", OrderedDict())
    with pytest.raises(StateError, match=r"b\.parquet was changed or removed"):
        [made for kind, rows in outcomes() for made in attacher.attach(kind, rows)]
    lenient = type(attacher)(**{**vars(attacher), "missing": "error"})
    counts: dict[str, int] = {}
    for kind, rows in outcomes():
        for got, whole in lenient.attach(kind, rows):
            counts[got] = counts.get(got, 0) + whole.num_rows
            if got == "data":
                assert not whole.num_rows, "every set needs a message of b"
    messages = {"data": 0, **counts}
    assert messages["error"] + messages["late"] + messages["dropped"] == ROWS, "nothing is lost"


def test_a_file_that_cannot_be_read_is_an_error_row(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    place = copied(folder, tmp_path / "in")
    (place / "d.parquet").write_bytes(b"PAR1 and nothing else")
    known = read(str(folder), spark=spark)
    assert isinstance(known.columnar, ColumnarInput)
    format = replace(known.columnar.format, path=str(place))
    made = pipeline(Recording(known.df, known.columnar._replace(format=format)))
    commit = made.write(str(tmp_path / "out"))
    errors = pq.read_table(tmp_path / "out" / "error", partitioning=None).to_pylist()
    (one,) = [row for row in errors if "cannot be read" in row["error_reason"]]
    assert one["error_value"].endswith("d.parquet")
    assert commit.rows["error"] == len(errors)


Sent = list[tuple[str, int, float]]
"""Messages: topic, time in ns, value."""


def put_mcap(sent: Sent, path: Path) -> None:
    with McapWriter(f"{path}.mcap", chunk_bytes=800) as writer:
        for topic, time_ns, x in sent:
            writer.message(writer.channel(topic), time_ns, json.dumps({"x": x}).encode())


def put_bag(sent: Sent, path: Path) -> None:
    rosbag2 = pytest.importorskip("rosbags.rosbag2", reason="pip install 'tidegate[rosbag]'")
    from rosbags.typesys import Stores, get_typestore

    store, kind = get_typestore(Stores.LATEST), "std_msgs/msg/Float64"
    with rosbag2.Writer(path, version=9) as bag:
        topics = dict.fromkeys(topic for topic, _, _ in sent)
        channels = {topic: bag.add_connection(topic, kind, typestore=store) for topic in topics}
        for topic, time_ns, x in sent:
            body = store.serialize_cdr(store.types[kind](data=x), kind)
            bag.write(channels[topic], time_ns, body)


@pytest.mark.long
@pytest.mark.parametrize(
    ("format", "put", "decode"),
    [("mcap", put_mcap, "x double"), ("rosbag", put_bag, "data as x")],
    ids=["mcap", "rosbag"],
)
def test_the_cut_of_recordings_does_not_matter(
    spark: SparkSession,
    tmp_path: Path,
    format: str,
    put: Callable[[Sent, Path], None],
    decode: str,
) -> None:
    """In one file, a file per topic, or slices whose names are backwards; in micro-batches."""
    rng = np.random.default_rng(4)
    sent = [
        (f"/{'ab'[n % 2]}", n * 10**7 + int(rng.integers(0, 9 * 10**6)), n + 0.5)
        for n in range(300)
    ]
    cuts = {
        "one": {"x": sent},
        "topics": {
            topic[1:]: [each for each in sent if each[0] == topic] for topic in ("/a", "/b")
        },
        "slices": {f"{90 - n}": sent[n * 30 : n * 30 + 30] for n in range(10)},
    }
    found = []
    for name, parts in cuts.items():
        place = tmp_path / name
        place.mkdir()
        for file, messages in parts.items():
            put(messages, place / file)
        options = {"decode": decode, "maxBytesPerTrigger": "3000"}
        opened = read(str(place), format, options=options, spark=spark)
        made = frames(opened, time="log_time_ns", topic="topic", file="file")
        made = made.event_time("unixtimestamp_ns", "5 ms").synchronize(["/a", "/b"])
        made.write(str(tmp_path / f"{name} out"))
        assert not (tmp_path / f"{name} out" / "late").exists(), name
        sets = pq.read_table(tmp_path / f"{name} out" / "data", partitioning=None).to_pylist()
        found.append(sorted((row["/a"]["x"], row["/b"]["x"], row["spread_ns"]) for row in sets))
    assert len(found[0]) > 100
    assert found[0] == found[1] == found[2]


def test_mcap_recordings(spark: SparkSession, tmp_path: Path) -> None:
    """Sets of a recording, by its index and by its messages, are the same."""
    place = tmp_path / "in"
    place.mkdir()
    rng = np.random.default_rng(3)
    for car in ("car-1", "car-2"):
        with McapWriter(str(place / f"{car}.mcap"), chunk_bytes=3000) as writer:
            channels = [writer.channel(f"/{name}") for name in ("camera", "lidar")]
            for number in range(400):
                jitter = int(rng.integers(0, 3 * 10**6))
                body = f'{{"car": "{car}", "n": {number}}}'.encode()
                writer.message(channels[number % 2], number * 10**7 + jitter, body)

    def run(name: str, **options: Any) -> dict[str, list[str]]:
        opened = read(str(place), "mcap", spark=spark,
                      options={"columnsFromPath": r"(?P<car>car-\d)"})  # fmt: skip
        rows = opened.df if name == "rows" else opened
        made = frames(rows, key="car", time="log_time_ns", topic="topic", file="file", **options)
        made = made.event_time("unixtimestamp_ns", "5 ms").synchronize(["/camera", "/lidar"])
        made.write(str(tmp_path / name))
        return written(tmp_path / name)

    by_rows = run("rows")
    assert len(by_rows["data"]) > 300
    assert run("carried", payload="carried") == by_rows
    assert run("addressed", payload="addressed") == by_rows


def test_a_checkpoint_of_the_other_gate_is_refused(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    stream = read(str(folder), streaming=True, spark=spark)
    pipeline(stream).write(str(tmp_path / "out")).awaitTermination()
    with pytest.raises(StateError, match="were read by Arrow, and now they would be read by Spark"):
        pipeline(stream.df).write(str(tmp_path / "out"))
