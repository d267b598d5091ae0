"""The laws, as functions that a test calls with any operator and any input.

Cut: the same input, cut into collections in any way, gives the same outcomes. Restart: a snapshot
and restore at any point changes nothing. Both compare what comes out per lane and kind, row by row,
in order.

They need no Hypothesis, but are made for it: let it draw the input and the cuts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tidegate.core.chain import Chain
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome, Watermark

__all__ = ["Rows", "assert_cut_law", "assert_restart_law", "cut", "play", "rows_of"]

Rows = dict[tuple[int, str], list[dict[str, Any]]]
"""What came out: the rows per (lane, kind), in order."""


def cut(collection: Collection, at: Iterable[int]) -> list[Collection]:
    """Cut a collection into pieces. No piece is empty.

    Args:
        collection: What to cut.
        at: Row numbers before which to cut, in any order. Taken modulo the length plus one, so that
            any integers will do.
    """
    edges = sorted({0, len(collection), *(int(a) % (len(collection) + 1) for a in at)})
    return [
        collection.take(np.arange(first, last)) for first, last in pairwise(edges) if last > first
    ]


def rows_of(outcomes: Iterable[Outcome], *, watermarks: bool = False) -> Rows:
    """Collect outcomes as rows per lane and kind.

    Args:
        outcomes: What a chain returned, in order.
        watermarks: Whether to include watermarks. How many there are depends on the cuts, so only
            the last one per lane is kept.
    """
    out: Rows = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome, Watermark):
            if watermarks:
                for lane, time_ns in zip(outcome.lane, outcome.time_ns, strict=True):
                    out[int(lane), "watermark"] = [{"time_ns": int(time_ns)}]
            continue
        for lane, row in zip(outcome.lane.tolist(), outcome.table().to_pylist(), strict=True):
            out[lane, outcome.kind].append(row)
    return dict(out)


def play(
    operators: Operator | Sequence[Operator],
    collections: Iterable[Collection],
    *,
    restart: bool = False,
    flush: bool = True,
    lanes: int = 1,
) -> list[Outcome]:
    """Run collections through a new chain.

    Args:
        operators: One stage, or several in order.
        collections: The input.
        restart: Whether to go through a snapshot of every stage after every collection.
        flush: Whether to end the stream after the last one.
        lanes: Number of lanes to open.

    Returns:
        All outcomes, in order.
    """
    stages = (operators,) if isinstance(operators, Operator) else tuple(operators)
    chain = Chain(stages)
    states = chain.open(lanes)
    out: list[Outcome] = []
    for collection in collections:
        out += chain.process(states, collection)
        if restart:
            states = [
                stage.restore(stage.snapshot(state))
                for stage, state in zip(stages, states, strict=True)
            ]
    if flush:
        out += chain.flush(states)
    return out


def assert_cut_law(
    operators: Operator | Sequence[Operator],
    collection: Collection,
    at: Iterable[int],
    *,
    lanes: int = 1,
) -> None:
    """Assert that the whole and the pieces give the same outcomes and the same last watermark.

    Args:
        operators: One stage, or several in order.
        collection: The input.
        at: Where to cut it; see `cut`.
        lanes: Number of lanes of the input.

    Raises:
        AssertionError: the outcomes differ.
    """
    whole = play(operators, [collection], lanes=lanes)
    pieces = play(operators, cut(collection, at), lanes=lanes)
    assert rows_of(whole, watermarks=True) == rows_of(pieces, watermarks=True)


def assert_restart_law(
    operators: Operator | Sequence[Operator], collections: Sequence[Collection], *, lanes: int = 1
) -> None:
    """Assert that going through a snapshot after every collection gives the same outcomes.

    Args:
        operators: One stage, or several in order.
        collections: The input.
        lanes: Number of lanes of the input.

    Raises:
        AssertionError: the outcomes differ.
    """
    straight = play(operators, collections, lanes=lanes)
    restarted = play(operators, collections, restart=True, lanes=lanes)
    assert rows_of(straight, watermarks=True) == rows_of(restarted, watermarks=True)
