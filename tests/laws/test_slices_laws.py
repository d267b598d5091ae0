"""A recording read in slices gives the rows in the order of one that is read at once, whatever the
slices, the cuts into pieces and the restarts between them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.columns import TIME
from tidegate.core.time import MAX_NS
from tidegate.errors import StateError
from tidegate.eventtime import arrival_order
from tidegate.eventtime.arrival_order import ArrivalOrder
from tidegate.eventtime.slices import Bound, Slices
from tidegate.spark.columnar.pieces import FoundFile, LoggedPiece, PieceLog, in_recorded_order

Row = tuple[str, int, int]
"""Key, time, number."""

files = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), min_size=1, max_size=15),
    min_size=1,
    max_size=4,
)


def batch(rows: list[Row]) -> pa.RecordBatch:
    keys, times, numbers = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "k": list(keys),
            "n": list(numbers),
            "at": pa.array(times, pa.int64()),
            TIME: pa.array(times, pa.int64()),
        }
    )


def numbered(found: list[list[tuple[str, int]]]) -> list[list[Row]]:
    number, out = 0, []
    for file in found:
        out.append([(key, time, number + place) for place, (key, time) in enumerate(file)])
        number += len(file)
    return out


def at_once(order: ArrivalOrder, recording: list[list[Row]]) -> list[int]:
    parts = [batch(rows) for rows in recording]
    names = [(0, f"{number}") for number in range(len(recording))]
    return [n for piece in order.pieces(parts, names) for n in piece.column("n").to_pylist()]


def in_slices(order: ArrivalOrder, recording: list[list[Row]], seed: int) -> list[int]:
    """Cut files into pieces, take them as a source does, restart now and then."""
    rng = random.Random(seed)
    parts: dict[tuple[int, int], list[Row]] = {}
    pieces = []
    for number, rows in enumerate(recording):
        at = 0
        while at < len(rows):
            size = rng.randint(1, len(rows))
            some = rows[at : at + size]
            parts[number, at] = some
            pieces.append(
                LoggedPiece(number, at, at + size, size, 1, min(time for _, time, _ in some))
            )
            at += size
    log = PieceLog(None)
    found = [FoundFile(0, f"/{number}", 0) for number in range(len(recording))]
    log.append(found, in_recorded_order(pieces, found))
    slices, taken, out = Slices(order), 0, []
    while taken < len(log.pieces):
        upto = rng.randint(taken + 1, len(log.pieces))
        chosen = sorted(log.pieces[taken:upto], key=lambda piece: (piece.file, piece.start))
        bound = MAX_NS if upto == len(log.pieces) else log.bound(upto)
        begun = frozenset(f"{file}" for file in log.begun(upto))
        admitted = slices.admit(
            [batch(parts[piece.file, piece.start]) for piece in chosen],
            [f"{piece.file}" for piece in chosen],
            Bound(bound, begun),
        )
        out += [n for rows in admitted for n in rows.column("n").to_pylist()]
        if rng.random() < 0.5:
            page = slices.page()
            slices = Slices(order)
            slices.load(page)
        taken = upto
    assert slices.rows_held == 0
    assert slices.progress is None
    return out


@settings(deadline=None)
@given(files, st.integers(0, 2**32))
def test_side_by_side(found: list[list[tuple[str, int]]], seed: int) -> None:
    recording = numbered(found)
    order = ArrivalOrder(recorded=True, keys=("k",))
    sliced, whole = in_slices(order, recording, seed), at_once(order, recording)
    assert sorted(sliced) == sorted(whole)
    for key in "ab":  # nothing depends on the order of rows of two keys
        own = {number for rows in recording for k, _, number in rows if k == key}
        assert [n for n in sliced if n in own] == [n for n in whole if n in own]


@pytest.mark.parametrize("key", ["newest", "suspects", "source", "order", "n.n"])
def test_no_name_of_a_key_is_special(key: str) -> None:
    slices = Slices(ArrivalOrder(recorded=True, keys=(key,)))
    names = [key, "n", "at", TIME]
    begun = Bound(2, frozenset({"0"}))
    first = list(
        slices.admit([batch([("a", 1, 0), ("b", 5, 1)]).rename_columns(names)], ["0"], begun)
    )
    again = Slices(slices.order)
    again.load(slices.page())
    rest = [batch([("a", 3, 2)]).rename_columns(names)]
    out = [*first, *again.admit(rest, ["0"], Bound(MAX_NS, frozenset()))]
    rows = [row for piece in out for row in piece.to_pylist()]
    assert [(row[key], row["n"]) for row in rows] == [("a", 0), ("a", 2), ("b", 1)]


def test_pages_that_somebody_made_are_a_state_error() -> None:
    """Columns of the right names and wrong types, and none at all."""
    order = ArrivalOrder(recorded=True, keys=("k",))
    rows = [batch([("a", 3, 2)])]
    slices = Slices(order)
    list(slices.admit(rows, ["0"], Bound(2, frozenset({"0"}))))
    assert slices.held is not None
    assert slices.progress is not None
    for name in ("held", "progress"):
        good = getattr(slices, name)
        for place, column in enumerate(good.schema.names):
            other = pa.array(["x"])
            retyped = good.set_column(place, column, other)
            for crafted in (
                good.drop_columns([column]),
                retyped,
                good.append_column(column, other),
            ):
                made = Slices(order)
                setattr(slices, name, crafted)
                page = slices.page()
                setattr(slices, name, good)
                try:
                    made.load(page)
                    list(made.admit(rows, ["0"], Bound(MAX_NS, frozenset())))
                except StateError:
                    continue


@settings(deadline=None)
@given(files, st.integers(0, 2**32))
def test_by_arrival(found: list[list[tuple[str, int]]], seed: int) -> None:
    recording = numbered(found)
    order = ArrivalOrder(("at",), recorded=True, keys=("k",))
    assert in_slices(order, recording, seed) == at_once(order, recording)


@settings(deadline=None)
@given(files, st.integers(0, 2**32))
def test_by_two_arrival_columns(found: list[list[tuple[str, int]]], seed: int) -> None:
    recording = numbered(found)
    order = ArrivalOrder(("at", "k"), recorded=True, keys=("k",))
    assert in_slices(order, recording, seed) == at_once(order, recording)


ORDERS = [
    ArrivalOrder(recorded=True, keys=("k",)),
    ArrivalOrder(("at",), recorded=True, keys=("k",)),
    ArrivalOrder(("at", "k"), recorded=True, keys=("k",)),
]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_that_cannot_be_joined_come_in_the_same_order(
    order: ArrivalOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    for seed in range(40):
        recording = numbered(
            [[(rng.choice("ab"), rng.randrange(30)) for _ in range(rng.randint(1, 15))]
             for _ in range(rng.randint(1, 4))]
        )  # fmt: skip
        joined = at_once(order, recording), in_slices(order, recording, seed)
        with monkeypatch.context() as large:
            large.setattr(arrival_order, "JOINED_BYTES", 0)
            large.setattr(arrival_order, "BYTES_PER_PIECE", 100)
            assert (at_once(order, recording), in_slices(order, recording, seed)) == joined


def test_what_is_held_is_the_disorder_between_files_not_the_recording() -> None:
    """A hundred slices of a recording, each read after the other: hardly a row waits."""
    order = ArrivalOrder(recorded=True, keys=("k",))
    slices, most = Slices(order), 0
    for number in range(100):
        rows = [("a", number * 100 + place, place) for place in range(100)]
        list(slices.admit([batch(rows)], [f"{number:03d}"],
                          Bound((number + 1) * 100 - 5, frozenset())))  # fmt: skip
        most = max(most, slices.rows_held)
    assert most == 5


@pytest.mark.parametrize("page", [b"", b"\xff" * 8, (10**6).to_bytes(8, "little") + b"x",
                                  (1).to_bytes(8, "little") + b"x" * 30])  # fmt: skip
def test_a_damaged_page_is_a_state_error(page: bytes) -> None:
    with pytest.raises(StateError):
        Slices(ArrivalOrder(recorded=True)).load(page)
