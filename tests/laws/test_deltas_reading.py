"""What is known of rows is carried along and never differs from reading them again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.arrow import take
from tidegate.deltas import (
    Add,
    Create,
    Delete,
    DeltaChain,
    Operation,
    Scale,
    Sparse,
    VectorDelta,
)
from tidegate.deltas.columns import DeltaRows
from tidegate.deltas.operations import rows_from

DIMS = 3
OPERATIONS: st.SearchStrategy[Operation] = st.sampled_from(
    [
        Create([1.0, 2.0, 3.0]),
        Sparse([2], [5.0]),
        Sparse([1, 0], [4.0, -1.0]),
        Sparse([], []),
        Sparse([7], [1.0]),  # out of range: refused
        Add([1.0, 1.0, 1.0]),
        Add([2.0], [1]),
        Scale(2.0),
        Delete(),
    ]
)
PIECES = st.lists(
    st.lists(st.tuples(OPERATIONS, st.integers(0, 9)), min_size=1, max_size=4), max_size=6
)


def made(pieces: list[list[tuple[Operation, int]]]) -> list[list[VectorDelta]]:
    """Deltas that mostly come in time order, so that most pieces go to the end of the chain."""
    out: list[list[VectorDelta]] = []
    number = 0
    for piece in pieces:
        out.append([])
        for operation, back in piece:
            number += 1
            when = 10 * number - (40 if back == 9 else 0)
            out[-1].append(VectorDelta(f"d{number}", "v", operation, when))
    return out


@settings(deadline=None)
@given(PIECES, st.booleans())
def test_a_chain_read_after_every_append_is_the_chain_read_once(
    pieces: list[list[tuple[Operation, int]]], late: bool
) -> None:
    chain = DeltaChain("v", DIMS)
    if late:  # a chain that was restored has nothing to carry along at first
        chain = DeltaChain.restore(chain.snapshot())
    for piece in made(pieces):
        chain.process(piece)
        found = chain.compose()
        chains = chain.chains
        assert chains is not None
        again = DeltaRows(chains.source.rows)
        for name, carried in chains.source.arrays._asdict().items():
            assert np.array_equal(carried, getattr(again.arrays, name), equal_nan=True), name
        assert chains.source.time_ns.tolist() == again.time_ns.tolist()
        for carried, read in zip(chains.source.verdicts(DIMS), again.verdicts(DIMS), strict=True):
            assert carried.tolist() == read.tolist()
        fresh = DeltaChain.restore(chain.snapshot()).compose()
        assert (found is None) == (fresh is None)
        assert found is None or fresh is None or found.tolist() == fresh.tolist()


@settings(deadline=None)
@given(
    st.lists(OPERATIONS, min_size=1, max_size=8),
    st.lists(st.integers(0, 7), max_size=12),
    st.integers(0, 7),
)
def test_rows_are_taken_as_arrow_takes_them(
    operations: list[Operation], which: list[int], first: int
) -> None:
    deltas = [VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(operations)]
    rows = rows_from(deltas).slice(min(first, len(deltas) - 1))
    chosen = np.array([n % rows.num_rows for n in which], np.int64)
    assert take(rows, chosen).equals(rows.take(pa.array(chosen)))
