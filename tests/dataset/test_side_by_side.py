"""Files read side by side give the rows in the order that a run on Spark has, whatever the batches
and the names; oracles in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.recordings import START_NS, messages, pipeline, record
from tidegate.dataset import write_dataset
from tidegate.dataset.side_by_side import FileReader, rows_side_by_side
from tidegate.eventtime import Decoder, TimeColumn
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.pipeline import PipelineDefinition

Row = dict[str, Any]

recordings = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 9)), max_size=12),
    min_size=1,
    max_size=4,
)


def reader(files: dict[str, list[Row]], size: int) -> FileReader:
    """Files that are lists, read in batches of some size, and looked at in batches of another."""

    def cut(rows: list[Row], size: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(rows), size):
            yield pa.RecordBatch.from_pylist(rows[first : first + size])

    def glance(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in cut(files[file.name], size % 3 + 1):
            yield batch.select(list(columns))

    return FileReader(lambda file: cut(files[file.name], size), glance)


def side_by_side(files: dict[str, list[Row]], keys: tuple[str, ...]) -> list[Row]:
    """The rule: how far time has come in the file for the key, the key's first time there, the name
    of the file, the position."""
    out = []
    for name, rows in files.items():
        newest: dict[Any, int] = {}
        first: dict[Any, int] = {}
        for position, row in enumerate(rows):
            key = tuple(row[each] for each in keys)
            newest[key] = max(newest.get(key, row["t"]), row["t"])
            first.setdefault(key, row["t"])
            out.append(((newest[key], first[key], name, position), row))
    return [row for _, row in sorted(out, key=lambda each: each[0])]


def by_arrival(files: dict[str, list[Row]]) -> list[Row]:
    """The arrival column, the name of the file, the position."""
    out = [
        ((row["at"], name, position), row)
        for name, rows in files.items()
        for position, row in enumerate(rows)
    ]
    return [row for _, row in sorted(out, key=lambda each: each[0])]


@settings(deadline=None)
@given(recordings, st.integers(1, 5), st.sampled_from(["one key", "keys", "arrival"]))
def test_rows_come_in_the_order_of_arrival(
    found: list[list[tuple[str, int, int]]], size: int, rule: str
) -> None:
    number = iter(range(1000))
    files = {
        f"log_{11 - place}": [
            {"k": key, "t": time, "at": at, "n": next(number)} for key, time, at in rows
        ]
        for place, rows in enumerate(found)
    }
    keys = ("k",) if rule == "keys" else ()
    order = ArrivalOrder(("at",) if rule == "arrival" else (), True, keys, -1, 1)
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    paths = [Path("/logs") / name for name in files]
    made = [
        row
        for batch in rows_side_by_side(paths, reader(files, size), order, decoder)
        for row in batch.to_pylist()
    ]
    expected = by_arrival(files) if rule == "arrival" else side_by_side(files, keys)
    for key in "ab" if rule == "keys" else [None]:  # rows of two keys do not meet
        some = [[r for r in rows if key in (None, r["k"])] for rows in (made, expected)]
        assert some[0] == some[1]


def test_a_time_that_cannot_be_read_is_handed_on() -> None:
    files = {"a": [{"t": "5"}, {"t": "soon"}, {"t": "9"}], "b": [{"t": "no"}, {"t": "7"}]}
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    order = ArrivalOrder(recorded=True)
    batches = rows_side_by_side([Path("b"), Path("a")], reader(files, 2), order, decoder)
    made = [row["t"] for batch in batches for row in batch.to_pylist()]
    assert [t for t in made if t.isdigit()] == ["5", "7", "9"]
    assert sorted(t for t in made if not t.isdigit()) == ["no", "soon"]


@pytest.mark.parametrize("arrival", [[], ["log_time_ns"]])
def test_a_file_per_topic_is_the_whole_recording(tmp_path: Path, arrival: list[str]) -> None:
    """Also where the clock of one recorder is a minute ahead: stamps decide, not log times."""
    pytest.importorskip("rosbags", reason="pip install 'tidegate[rosbag]'")
    sent = messages(2)
    record(tmp_path / "one" / "all.mcap", sent)
    for number, topic in enumerate(("imu", "joint", "camera")):
        record(tmp_path / "many" / f"{number}.mcap", [one for one in sent if one.topic == topic])
    tables = []
    for way in ("one", "many"):
        made = pipeline(tmp_path / way, {"format": "parquet", "columns": ["joint.q", "imu.az"]})
        made["streams"]["arm"]["arrival"] = arrival
        summary = write_dataset(PipelineDefinition.of(made), to=tmp_path / f"{way}-out")
        assert "late" not in summary.outcomes
        tables.append(pa.parquet.read_table(tmp_path / f"{way}-out").to_pylist())
    assert len(tables[0]) > 15
    assert tables[0] == tables[1]
    assert np.all(np.diff([row["time_ns"] for row in tables[0]]) > 0)
    assert tables[0][0]["time_ns"] >= START_NS
