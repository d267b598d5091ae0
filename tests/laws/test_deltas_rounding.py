"""What merging may change: nothing where no step rounds, else no more than the stated bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.deltas import (
    Add,
    Compactor,
    Create,
    DeltaChain,
    Dense,
    Offset,
    Operation,
    Scale,
    Sparse,
    TimeBoundary,
    VectorDelta,
)
from tidegate.deltas.kernels import MERGE_ROUNDING

DIMS = 3


def operations(
    numbers: st.SearchStrategy[float], factors: st.SearchStrategy[float]
) -> st.SearchStrategy[Operation]:
    vector = st.lists(numbers, min_size=DIMS, max_size=DIMS)
    named = st.integers(0, DIMS - 1)
    return st.one_of(
        st.builds(Create, vector),
        st.builds(Dense, vector),
        st.builds(lambda i, v: Sparse([i], [v]), named, numbers),
        st.builds(Add, vector),
        st.builds(lambda i, v: Add([v], [i]), named, numbers),
        st.builds(Scale, factors),
        st.builds(Offset, numbers),
    )


EXACT = operations(
    st.integers(-64, 64).map(float), st.sampled_from([0.5, 2.0, -1.0, -2.0, 0.25, 4.0])
)
"""Whole numbers and powers of two: with at most 20 of them no step rounds."""

SIZES = st.floats(-1e6, 1e6, allow_subnormal=False)
ROUNDING = operations(
    SIZES, st.floats(-8, 8, allow_subnormal=False).filter(lambda f: abs(f) > 0.01)
)


def chain_of(run: list[Operation], times: list[int]) -> DeltaChain:
    chain = DeltaChain("v", DIMS)
    start = VectorDelta("start", "v", Create([0.1, -7.3, 1e5]), -1)
    deltas = [
        VectorDelta(f"d{n:02}", "v", op, t)
        for n, (op, t) in enumerate(zip(run, times, strict=True))
    ]
    assert chain.process([start, *deltas]) == []
    return chain


def magnitude(run: list[Operation]) -> np.ndarray:
    """The deltas in exact arithmetic, with the absolute value of every number."""
    x = [abs(Fraction(v)) for v in (0.1, -7.3, 1e5)]
    for op in run:
        match op:
            case Create(vector) | Dense(vector):
                x = [abs(Fraction(v)) for v in vector]
            case Sparse(indices, values):
                for i, v in zip(indices, values, strict=True):
                    x[i] = abs(Fraction(v))
            case Add(values, indices):
                named = range(DIMS) if indices is None else indices
                for i, v in zip(named, values, strict=True):
                    x[i] += abs(Fraction(v))
            case Scale(factor):
                x = [abs(Fraction(factor)) * v for v in x]
            case Offset(amount):
                x = [v + abs(Fraction(amount)) for v in x]
    return np.array([float(v) for v in x])


@settings(deadline=None)
@given(st.lists(EXACT, min_size=1, max_size=20), st.integers(1, 9), st.data())
def test_merging_by_time_is_exact_to_the_bit_where_no_step_rounds(
    run: list[Operation], interval: int, data: st.DataObject
) -> None:
    times = sorted(data.draw(st.lists(st.integers(0, 30), min_size=len(run), max_size=len(run))))
    chain = DeltaChain("v", DIMS)
    start = VectorDelta("start", "v", Create([0.5, -7.0, 1024.0]), -1)
    deltas = [
        VectorDelta(f"d{n:02}", "v", op, t)
        for n, (op, t) in enumerate(zip(run, times, strict=True))
    ]
    assert chain.process([start, *deltas]) == []
    before = chain.compose()
    Compactor(TimeBoundary(interval)).compact(chain)
    assert before is not None
    assert np.array_equal(before, chain.compose())  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(ROUNDING, min_size=1, max_size=20), st.integers(1, 40), st.data())
def test_merging_by_time_keeps_to_the_stated_bound(
    run: list[Operation], interval: int, data: st.DataObject
) -> None:
    times = sorted(data.draw(st.lists(st.integers(0, 30), min_size=len(run), max_size=len(run))))
    chain = chain_of(run, times)
    before = chain.compose()
    Compactor(TimeBoundary(interval)).compact(chain)
    after = chain.compose()
    assert before is not None
    assert after is not None
    bound = MERGE_ROUNDING * (len(run) + 1) * 2.0**-52 * magnitude(run)
    assert (np.abs(before - after) <= bound).all()
