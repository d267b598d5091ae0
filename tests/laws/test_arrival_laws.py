"""The order law without Spark: however a recording is cut into files, blocks and blobs, listed and
delivered, rows come in one order, and none is late because of a cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.columns import TIME
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Late
from tidegate.eventtime import EventtimeWatermark
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.spark.arrival import PARTS, Packed, by_origin

Row = tuple[str, int, int]
"""Key, time, number: the number is the place of the row in the recording."""

recordings = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.just(0)), min_size=1, max_size=40
).map(lambda rows: [(key, time, number) for number, (key, time, _) in enumerate(rows)])


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    keys, times, numbers = zip(*rows, strict=True)
    return pa.record_batch({"k": list(keys), "n": list(numbers), TIME: pa.array(times, pa.int64())})


def packed(files: dict[str, list[Row]], seed: int) -> list[Packed]:
    """The blobs of these files as Spark might deliver them: cut anywhere, in any order."""
    rng = random.Random(seed)
    blobs, seqs = [], dict.fromkeys(range(3), 0)
    for name in rng.sample(sorted(files), len(files)):
        part, at = rng.randrange(3), 0
        while at < len(files[name]):
            size = rng.randint(1, len(files[name]))
            rows = batch(files[name][at : at + size])
            blobs.append(Packed("data", part, seqs[part], rng.randrange(9), name, 0, rows))
            seqs[part] += 1
            at += size
    rng.shuffle(blobs)
    return blobs


def ordered(order: ArrivalOrder, blobs: list[Packed]) -> list[Row]:
    parts = order.sorted(blobs)
    files = [(one.part // PARTS, one.file) for one in parts]
    out: list[Row] = []
    for piece in order.pieces([one.blob for one in parts], files):
        columns = (piece.column(name).to_pylist() for name in ("k", TIME, "n"))
        out += list(zip(*columns, strict=True))
    return out


def late(rows: list[Row], tolerance: int) -> set[int]:
    stage = EventtimeWatermark(tolerance, watermark_per="tuple")
    flow = Flow([stage], key="k", timed=True)
    collection = batch(rows)
    times = collection.column(TIME).to_numpy()
    found = flow.accept(Collection.of(collection, times))
    return {n for o in found if isinstance(o, Late) for n in o.rows.column("n").to_pylist()}


@settings(deadline=None)
@given(recordings, st.integers(1, 5), st.integers(1, 12), st.data())
def test_a_row_is_late_only_within_its_own_file(
    rows: list[Row], tolerance: int, count: int, data: st.DataObject
) -> None:
    files: dict[str, list[Row]] = {}
    for row in rows:
        files.setdefault(f"f{data.draw(st.integers(0, count - 1))}", []).append(row)
    alone = set().union(*(late(own, tolerance) for own in files.values()))
    order = ArrivalOrder(recorded=True, keys=("k",))
    once = ordered(order, packed(files, data.draw(st.integers())))
    assert late(once, tolerance) == alone
    assert sorted(n for _, _, n in once) == list(range(len(rows))), "every row once"
    again = ordered(order, packed(files, data.draw(st.integers())))
    assert once == again, "not by how Spark splits and lists them"


@settings(deadline=None)
@given(recordings, st.integers(1, 6), st.data())
def test_no_cut_makes_a_row_late(rows: list[Row], tolerance: int, data: st.DataObject) -> None:
    """Disorder within the tolerance: nothing is late in one file, so nothing in any cut."""
    newest: dict[str, int] = {}
    kept: list[Row] = []
    for key, time, number in rows:
        newest[key] = max(newest.get(key, time), time)
        kept.append((key, max(time, newest[key] - tolerance + 1), number))
    assert late(kept, tolerance) == set()
    files: dict[str, list[Row]] = {}
    for row in kept:
        files.setdefault(f"f{data.draw(st.integers(0, 5))}", []).append(row)
    order = ArrivalOrder(recorded=True, keys=("k",))
    assert late(ordered(order, packed(files, data.draw(st.integers()))), tolerance) == set()


@settings(deadline=None)
@given(recordings, st.integers())
def test_a_live_run_takes_files_by_their_age(rows: list[Row], seed: int) -> None:
    """Files by modification time and name, rows by position: of any delivery the same."""
    blobs = [
        Packed("data", 0, place, place // 3, f"z{9 - place}", 0, batch([row]))
        for place, row in enumerate(rows[:9])
    ]
    shuffled = random.Random(seed).sample(blobs, len(blobs))
    assert ordered(ArrivalOrder(), shuffled) == ordered(ArrivalOrder(), blobs)
    ages = [place // 3 for place in range(len(blobs))]
    found = [ages[n] for _, _, n in ordered(ArrivalOrder(), shuffled)]
    assert found == sorted(ages)


@settings(deadline=None)
@given(recordings, st.integers(), st.integers())
def test_equal_arrival_is_decided_by_file_and_position(
    rows: list[Row], one: int, other: int
) -> None:
    files = {"a": rows[::2], "b": rows[1::2]}
    files = {name: own for name, own in files.items() if own}
    order = ArrivalOrder((TIME,))
    assert ordered(order, packed(files, one)) == ordered(order, packed(files, other))


def test_a_clock_that_runs_wild_does_not_hold_up_its_file() -> None:
    year = 365 * 86_400
    wild = [("a", 1, 0), ("a", year, 1), ("a", 2, 2), ("a", 3, 3)]
    files = {"wild": wild, "tame": [("a", 2, 4), ("a", 50, 5)]}
    order = ArrivalOrder(recorded=True, keys=("k",), skew_ns=100, skew_confirm=10)
    assert [n for _, _, n in ordered(order, packed(files, 0))] == [0, 1, 2, 4, 3, 5]


def test_of_slices_with_equal_times_the_earlier_one_comes_first() -> None:
    """Recorders count slices without leading zeros: by name the tenth would be before the ninth."""
    files = {"log_9": [("a", 1, 0), ("a", 3, 1)], "log_10": [("a", 3, 2), ("a", 4, 3)]}
    order = ArrivalOrder(recorded=True, keys=("k",))
    assert [n for _, _, n in ordered(order, packed(files, 0))] == [0, 1, 2, 3]


def test_rows_are_split_where_their_file_changes() -> None:
    from tidegate.core.columns import FILE

    told = pa.array(
        [{"name": name, "id": hash_, "block": block, "changed": 5}
         for name, hash_, block in (("x", 1, 0), ("x", 1, 0), ("x", 1, 64), ("y", -2, 0))],
    )  # fmt: skip
    rows = pa.record_batch({"n": np.arange(4), FILE: told})
    found = [(tuple(origin), part.column("n").to_pylist()) for origin, part in by_origin(rows)]
    assert found == [((5, "x 1", 0), [0, 1]), ((5, "x 1", 64), [2]), ((5, "y -2", 0), [3])]


def test_text_that_is_a_number_is_sorted_by_its_value() -> None:
    """A sequence number in a CSV file is text, and "10" stands before "9" in a dictionary."""
    texts = ["10", "9", "-3", "2026-01-01", "9.5", None, "b", "007", "1" * 21, "8\n"]
    order = ArrivalOrder(("n",))
    for column in (pa.array(texts), pa.array(texts).dictionary_encode()):
        found = order.rows(pa.record_batch({"n": column})).column("n").to_pylist()
        assert found == ["-3", "007", "9", "9.5", "10", "1" * 21, "2026-01-01", "8\n", "b", None]
