"""Numbers of (vector, id) pairs, and rows in the order they lie: against the plain way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.numba import as_readonly
from tidegate.deltas import id_table
from tidegate.deltas.id_table import IdTable
from tidegate.deltas.kernels import in_memory_order

names = st.one_of(st.none(), st.text("ab\x00é", max_size=20))
pairs = st.lists(st.tuples(st.integers(0, 3), names, names), max_size=40)


@settings(deadline=None)
@given(pairs, pairs, st.integers(0, 3))
def test_pairs_have_one_number_if_and_only_if_they_are_the_same(
    rows: list[tuple[int, str | None, str | None]],
    asked: list[tuple[int, str | None, str | None]],
    skipped: int,
) -> None:
    def columns(given: list[tuple[int, str | None, str | None]]) -> tuple[np.ndarray, ...]:
        vec = np.array([v for v, _, _ in given], np.int64)
        ids, parents = (pa.array([row[k] for row in given], pa.string()) for k in (1, 2))
        return vec[skipped:], ids[skipped:], parents[skipped:]  # with an offset, as slices have

    vec, ids, parents = columns(rows)
    known = IdTable(vec, ids, parents)
    ident, parent = known.numbers, known.parent_numbers
    number: dict[tuple[int, str], int] = {}
    named = [(ids, ident), (parents, parent)] if len(parent) else [(ids, ident)]
    for texts, found in named:
        for v, text, at in zip(vec.tolist(), texts.to_pylist(), found.tolist(), strict=True):
            if text is None:
                assert at == -1
            else:
                assert number.setdefault((v, text), at) == at
    assert len(set(number.values())) == len(number)
    assert all(0 <= at < known.size for at in number.values())
    other, texts, _ = columns(asked)
    wanted = zip(other.tolist(), texts.to_pylist(), strict=True)
    expected = [-1 if text is None else number.get((v, text), -1) for v, text in wanted]
    assert known.find(other, texts).tolist() == expected


def test_texts_with_the_same_hash_are_told_apart() -> None:
    texts = pa.array(["a", "b", "c", "b"])
    pairs = id_table._pairs(np.zeros(4, np.int64), texts)
    slots = np.full(8, id_table._EMPTY, np.uint64)
    numbers = np.empty(4, np.int32)
    id_table._insert(pairs, as_readonly(np.zeros(4, np.uint64)), slots, numbers)
    assert numbers.tolist() == [0, 1, 2, 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.randoms(use_true_random=False))
def test_rows_as_they_lie_keep_the_order_of_every_vector(slots: list[int], rng: object) -> None:
    places = list(range(len(slots) + 5))
    rng.shuffle(places)  # type: ignore[attr-defined]
    slot = np.sort(np.array(slots, np.int64))
    rows = np.array(places[: len(slots)], np.int64)
    given = [as_readonly(a) for a in (rows, slot)]
    new_rows, new_slot = in_memory_order(*given, len(places))
    for s in range(4):
        assert new_rows[new_slot == s].tolist() == rows[slot == s].tolist()
    if all((np.diff(rows[slot == s]) > 0).all() for s in range(4)):
        assert (np.diff(new_rows) > 0).all()
