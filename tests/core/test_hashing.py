"""The hash of rows: frozen, alike for equal values of other types, and evenly spread."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidegate.core.hashing import hash_rows


def test_it_is_frozen() -> None:
    """States on disk depend on these numbers: they may never change."""
    text = hash_rows([pa.array(["", "car-1", "a longer name than eight bytes"])])
    numbers = hash_rows([pa.array([0, 1, -1])])
    both = hash_rows([pa.array(["car-1"]), pa.array([7])])
    assert text.tolist() == [17665956581633026203, 6068601586117600902, 7859997199361766870]
    assert numbers.tolist() == [0, 6238072747940578789, 13029008266876403067]
    assert both.tolist() == [748249780445330043]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, None], pa.int8()), pa.array([1, None], pa.int64())),
        (pa.array(["a", None, "b"]), pa.array(["a", None, "b"]).dictionary_encode()),
        (pa.array(["a", None]), pa.array(["a", None], pa.large_string())),
        (pa.array([b"ab", b""]), pa.array([b"ab", b""], pa.large_binary())),
        (pa.array([0.0, float("nan")]), pa.array([-0.0, -float("nan")])),
        (pa.array([1.5], pa.float32()), pa.array([1.5])),
        (pa.array(["x", "ab", "c"]).slice(1), pa.array(["ab", "c"])),
        (pa.array([True, False]), pa.array([1, 0])),
    ],
)
def test_equal_values_hash_alike(one: pa.Array, other: pa.Array) -> None:
    assert hash_rows([one]).tolist() == hash_rows([other]).tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None, ""]),
        pa.array([Decimal("1.50"), Decimal("1.51"), None]),
        pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]),
        pa.array([dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2), None]),
        pa.array([{"a": 1}, {"a": 2}, None]),
        pa.array([0, 2**63 - 1, -(2**63), None]),
        pa.array([0, 2**64 - 1], pa.uint64()),
    ],
)
def test_different_values_hash_apart(column: pa.Array) -> None:
    assert len(set(hash_rows([column]).tolist())) == len(column)


def test_order_of_columns_counts() -> None:
    a, b = pa.array([1]), pa.array([2])
    assert hash_rows([a, b])[0] != hash_rows([b, a])[0]


@pytest.mark.parametrize("column", [pa.array(range(20_000)),
                                    pa.array([f"car-{n}" for n in range(20_000)])])  # fmt: skip
def test_shards_are_even(column: pa.Array) -> None:
    counts = np.bincount((hash_rows([column]) % np.uint64(16)).astype(np.int64), minlength=16)
    assert counts.min() > 1_000
    assert counts.max() < 1_500
