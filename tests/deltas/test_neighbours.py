"""Nearest neighbours from chains: against composing every vector and sorting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegate.deltas import (
    Add,
    Compactor,
    Create,
    Delete,
    DeltaChain,
    FullMerge,
    TieredMerge,
    TimeBoundary,
    VectorDelta,
    nearest,
)
from tidegate.deltas.table import DeltaTable, compact_table
from tidegate.errors import ConfigError

RNG = np.random.default_rng(3)
DIMS, VECTORS = 5, 40


def some_deltas() -> list[VectorDelta]:
    out = [
        VectorDelta(f"c{v}", f"v{v:02}", Create(RNG.standard_normal(DIMS)), v)
        for v in range(VECTORS)
    ]
    for n in range(300):
        change = Delete() if n % 50 == 49 else Add(RNG.standard_normal(DIMS) / 4)
        out.append(VectorDelta(f"d{n}", f"v{RNG.integers(VECTORS):02}", change, 100 + n))
    return out


def chains_of(deltas: list[VectorDelta]) -> list[DeltaChain]:
    chains = {name: DeltaChain(name, DIMS) for name in sorted({d.vector_id for d in deltas})}
    for delta in deltas:
        assert chains[delta.vector_id].push(delta) == []
    return list(chains.values())


def plainly(chains: list[DeltaChain], query: np.ndarray, at_ns: int | None) -> list[str]:
    found = []
    for chain in chains:
        vector = chain.compose(at_ns)
        if vector is not None:
            found.append((float(((vector - query) ** 2).sum()), chain.vector_id))
    return [name for _, name in sorted(found)]


@pytest.mark.parametrize("at_ns", [None, 20, 150, 333])
def test_neighbours_are_those_of_a_plain_search(at_ns: int | None, tmp_path: Path) -> None:
    deltas = some_deltas()
    chains = chains_of(deltas)
    table = DeltaTable.create(tmp_path / "t", DIMS, buckets=3)
    table.append(deltas)
    for _ in range(5):
        query = RNG.standard_normal(DIMS)
        expected = plainly(chains, query, at_ns)
        found = nearest(chains, query, 7, at_ns=at_ns)
        assert [near.vector_id for near in found] == expected[:7]
        assert found == table.nearest(query, 7, at_ns=at_ns)
        assert len(nearest(chains, query, 1000, at_ns=at_ns)) == len(expected)


def test_the_past_inside_the_retention_survives_compaction(tmp_path: Path) -> None:
    deltas = some_deltas()
    table = DeltaTable.create(tmp_path / "t", DIMS, buckets=3)
    table.append(deltas)
    query = RNG.standard_normal(DIMS)
    at = 395
    before = [near.vector_id for near in table.nearest(query, 5, at_ns=at)]
    compact_table(
        table.root, Compactor(TieredMerge(0), delta_threshold=1, retention=10), everything=True
    )
    assert [near.vector_id for near in table.nearest(query, 5, at_ns=at)] == before
    with pytest.raises(ConfigError, match="checkpoint"):
        table.nearest(query, 5, at_ns=50)


def test_metrics_ties_and_bad_questions() -> None:
    names = ("b", "a", "z")
    chains = [DeltaChain(name, 2) for name in names]
    for chain, vector in zip(chains, ([1.0, 0.0], [1.0, 0.0], [0.0, 0.0]), strict=True):
        chain.push(VectorDelta("c", chain.vector_id, Create(vector), 0))
    assert [near.vector_id for near in nearest(chains, [1.0, 0.0], 1)] == ["a"]
    cosine = nearest(chains, [2.0, 0.0], metric="cosine")
    assert [(near.vector_id, near.distance) for near in cosine] == [
        ("a", 0.0),
        ("b", 0.0),
        ("z", 1.0),
    ]
    assert nearest(chains, [2.0, 0.0], metric="dot")[0].distance == -2.0
    assert nearest([], [1.0]) == []
    for wrong in ({"limit": 0}, {"metric": "far"}, {"query": [1.0]}, {"query": [np.nan, 0.0]}):
        with pytest.raises(ConfigError):
            nearest(chains, **{"query": [1.0, 0.0], **wrong})  # type: ignore[arg-type]


def test_the_history_of_a_chain_adds_up() -> None:
    chain = DeltaChain("v", 2)
    chain.process(VectorDelta(f"d{n}", "v", Add([1.0, 0.0]), n) for n in range(10))
    Compactor(FullMerge(), retention=5).compact(chain)
    Compactor(TimeBoundary(2)).compact(chain)
    rows = chain.history().to_pylist()
    assert [row["kind"] for row in rows] == ["checkpoint", "delta", "merged", "merged"]
    assert sum(row["deltas"] for row in rows) == 10
    assert sum(row["bytes"] for row in rows) == chain.nbytes
    assert [row["time_ns"] for row in rows] == [4, 5, 7, 9]
    assert rows[2]["first_ns"] == 6
    assert DeltaChain("empty").history().num_rows == 0
