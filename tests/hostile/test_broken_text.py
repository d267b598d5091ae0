"""Text that is none, as a key in Latin-1, is an error row with its bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.broken_text import rows_with_broken_text, set_broken_text_apart
from tidegate.core.flow import Flow
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.spark.pack import Packer, from_blob
from tidegate.sync import Synchronize

BYTES = (b"caf\xe9", b"ok", b"\xff", b"\xf0\x9f\x98\x80")
SOUND = ("ok", "\U0001f600")


def text(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def rows(role: str) -> pa.RecordBatch:
    plain: dict[str, Any] = {
        "key": text(b"a", b"a", b"a", b"a"), "topic": text(b"a", b"b", b"a", b"b"),
        "t": pa.array([1, 2, 3, 4]), "payload": text(b"x", b"y", b"z", None),
    }  # fmt: skip
    return pa.record_batch({**plain, role: text(*BYTES)})


def flow() -> Flow:
    return Flow(
        [EventtimeWatermark(1), Synchronize(["a", "b"], queue_size=9, keys="key")],
        key="key",
        decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)),
    )


@pytest.mark.parametrize("role", ["key", "topic", "payload"])
def test_a_row_is_an_error_with_its_bytes(role: str) -> None:
    made = flow()
    errors = [one for one in made.process(rows(role)) if one.kind == "error"]
    (table,) = [one.table() for one in errors]
    assert table.column("error_value").to_pylist() == ["caf\\xe9", "\\xff"]
    assert table.column("error_column").to_pylist() == [role, role]
    assert table.column(role).to_pylist() == [None, None]
    assert table.column("t").to_pylist() == [1, 3]
    assert made.counters["parse_error_count"] == 2


def test_payload_that_was_held_could_not_be_restored() -> None:
    made = flow()
    out = made.process(rows("payload"))
    assert [len(one) for one in out if one.kind == "error"] == [2]
    again = flow()
    again.restore(made.snapshot())
    assert again.end()


def test_the_same_on_the_way_to_spark() -> None:
    """Both gates pack rows by `Packer`."""
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ns"),))
    packer = Packer(decoder, (0, 1), (pa.field("key", pa.string()),))
    packed = [row for batch in packer([rows("key")]) for row in batch.to_pylist()]
    found = {kind: [r for row in packed if row["kind"] == kind
                    for r in from_blob(row["blob"]).column("t").to_pylist()]
             for kind in ("error", "data")}  # fmt: skip
    assert {kind: sorted(times) for kind, times in found.items()} == {
        "error": [1, 3],
        "data": [2, 4],
    }


values = st.lists(st.none() | st.text(max_size=3) | st.binary(max_size=3), max_size=20)


@settings(deadline=None)
@given(values, st.booleans(), st.integers(0, 3))
def test_every_row_is_on_one_side(
    found: list[str | bytes | None], coded: bool, skipped: int
) -> None:
    raw = [one.encode() if isinstance(one, str) else one for one in found]
    column = text(*raw)
    batch = pa.record_batch({"n": pa.array(range(len(raw)), pa.int64()), "x": column,
                             "s": pa.StructArray.from_arrays([column], ["x"])})  # fmt: skip
    batch = batch.slice(skipped)
    raw = raw[skipped:]

    def is_text(one: bytes | None) -> bool:
        try:
            return one is None or one.decode() is not None
        except UnicodeDecodeError:
            return False

    want = [n for n, one in enumerate(raw, skipped) if is_text(one)]
    if coded:
        batch = batch.set_column(1, "x", batch.column(1).dictionary_encode())
    for columns in (["n", "x"], ["n", "s"], ["n", "x", "s"]):
        good, errors = set_broken_text_apart(batch.select(columns))
        good.validate(full=True)
        assert good.column("n").to_pylist() == want
        assert len(errors or ()) == len(raw) - len(want)
        if errors is not None:
            errors.table().validate(full=True)
            mask = rows_with_broken_text(batch.select(columns))
            assert mask is not None
            assert errors.rows.column("n").to_pylist() == (mask.nonzero()[0] + skipped).tolist()
