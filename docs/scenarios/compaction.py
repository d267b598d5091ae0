"""Compaction: each line is a chain, before and after; the vector it composes to is the same."""

from __future__ import annotations

import numpy as np

from scenarios.gallery import scenario
from tidegate.deltas import (
    Adaptive,
    Add,
    Affine,
    Compactor,
    DeltaChain,
    Dense,
    FullMerge,
    Operation,
    Scale,
    Strategy,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
)
from tidegate.report.picture import Picture

SECOND = 10**9


def run(operations: list[tuple[int, Operation]], strategy: Strategy, end: int) -> Picture:
    """Deltas at these seconds, in this order of arrival; then one compaction."""
    chain = DeltaChain("vec-1", dims=2)
    chain.process(
        VectorDelta(f"d{n}", "vec-1", operation, time_ns=at * SECOND)
        for n, (at, operation) in enumerate(operations)
    )
    picture = Picture(["before", "after"], 0, end * SECOND, lane_height=44)
    before = chain.compose()
    _draw(picture, 0, chain)
    result = Compactor(strategy).compact(chain)
    _draw(picture, 1, chain)
    after = chain.compose()
    picture.note(0, 0, f"composes to {_text(before)}, {result.bytes_before} bytes")
    picture.note(1, 0, f"composes to {_text(after)}, {result.bytes_after} bytes")
    picture.explain_used({
        ("data", "dot"): "delta", ("mark", "diamond"): "checkpoint: deltas folded into one entry",
    })  # fmt: skip
    picture.facts = {
        "before": result.deltas_before,
        "after": result.deltas_after,
        "same": before is not None and after is not None and bool(np.allclose(before, after)),
        "vector": None if after is None else [round(float(v), 9) for v in after],
        "checkpoint": chain.checkpoint is not None,
        "pending": [d.delta_id for d in chain.pending],
    }
    return picture


def _draw(picture: Picture, lane: int, chain: DeltaChain) -> None:
    if chain.checkpoint is not None:
        picture.dot(lane, chain.checkpoint.timestamp_ns, "mark", "diamond", "checkpoint")
    for delta in chain.pending:
        picture.dot(lane, delta.time_ns, "data", "dot", f"{delta.delta_id}: {delta.operation}")


def _text(vector: object) -> str:
    return "nothing" if vector is None else f"({', '.join(f'{v:g}' for v in np.asarray(vector))})"


ADDS: list[tuple[int, Operation]] = [(n, Add([1.0, 0.5])) for n in range(1, 16)]


@scenario("compaction", "Full merge")
def full() -> Picture:
    """The whole chain becomes one entry; what it composes to does not change."""
    return run(ADDS, FullMerge(), 16)


@scenario("compaction", "The recent stay")
def tiered() -> Picture:
    """TieredMerge folds the old part and keeps the newest deltas as they are, so that late ones can
    still be put between them."""
    return run(ADDS, TieredMerge(keep_recent=5), 16)


@scenario("compaction", "By time")
def by_time() -> Picture:
    """TimeBoundary folds each span of time into one entry: the vector can still be composed as of
    the end of any of them."""
    return run(ADDS, TimeBoundary("5 s"), 16)


@scenario("compaction", "Only what gains")
def adaptive() -> Picture:
    """Adaptive measures what each way would leave and takes the smallest: with this chain of short
    deltas and no reads that is one entry. A chain that would not get smaller is left alone."""
    return run(ADDS, Adaptive(keep_recent=5), 16)


@scenario("compaction", "A dense write replaces what was before")
def dense() -> Picture:
    """Operations do not commute: a full write in the middle makes everything before it vanish, and
    a scale after it applies to its result."""
    operations: list[tuple[int, Operation]] = [(1, Add([1.0, 1.0])), (3, Scale(2.0)),
        (5, Dense([10.0, 20.0])), (7, Scale(0.5)), (9, Add([1.0, 0.0]))]  # fmt: skip
    return run(operations, FullMerge(), 12)


@scenario("compaction", "Out of order")
def disorder() -> Picture:
    """Deltas compose in order of event time, however they arrive."""
    operations: list[tuple[int, Operation]] = [(5, Scale(3.0)), (1, Add([1.0, 2.0])),
        (9, Add([0.5, 0.5])), (3, Affine(2.0, 1.0))]  # fmt: skip
    return run(operations, FullMerge(), 12)
