"""Nearest neighbours straight from the chains, now or as of any time they can still tell.

Exact: every vector is composed and compared, nothing is indexed. A vector store (`LanceVectors`)
answers the same question about the newest vectors, faster for very many; it knows nothing of the
past.

The cost is one composition of every chain, and one pass over the vectors (8 bytes a dimension).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidegate.core.checks import int_in, one_of
from tidegate.deltas.columns import Chains, join_chains
from tidegate.deltas.delta_chain import DeltaChain
from tidegate.errors import ConfigError

__all__ = ["METRICS", "NearestSearch", "Neighbour", "nearest"]

Floats = NDArray[np.float64]


def _squared_l2(vectors: Floats, query: Floats) -> Floats:
    difference = vectors - query
    squares: Floats = np.einsum("ij,ij->i", difference, difference)
    return squares


def _cosine(vectors: Floats, query: Floats) -> Floats:
    size = np.sqrt(np.einsum("ij,ij->i", vectors, vectors) * (query @ query))
    # A vector of zeros has no direction: as far as one at a right angle.
    cosine: Floats = np.divide(vectors @ query, size, out=np.zeros(len(vectors)), where=size > 0)
    return 1.0 - cosine


def _negative_dot(vectors: Floats, query: Floats) -> Floats:
    return -(vectors @ query)


METRICS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "l2": _squared_l2,
    "cosine": _cosine,
    "dot": _negative_dot,
}
"""Distances by name, smaller is nearer: `l2` the squared Euclidean distance (as LanceDB gives it),
`cosine` one minus the cosine, `dot` the dot product negated."""


@dataclass(frozen=True)
class Neighbour:
    """A vector near the one asked for."""

    vector_id: str
    """Its id."""
    distance: float
    """How far it is, by the metric asked for."""
    vector: Floats = field(repr=False, compare=False)
    """The vector itself, as of the time asked for."""


class NearestSearch:
    """The nearest vectors among chains that come part by part.

    Args:
        query: the vector to be near to.
        limit: how many to find (at least 1).
        at_ns: compose the vectors as of this event time; None: now.
        metric: one of `METRICS`.

    Raises:
        ConfigError: a setting is out of range, or the query is not a finite vector.
    """

    def __init__(
        self, query: ArrayLike, limit: int = 10, *, at_ns: int | None = None, metric: str = "l2"
    ) -> None:
        self.query = np.asarray(query, np.float64)
        if self.query.ndim != 1 or not np.isfinite(self.query).all():
            raise ConfigError("query", query, "must be one vector of finite numbers")
        self.limit = int_in("limit", limit, 1)
        self.at_ns = at_ns
        self._distance = METRICS[one_of("metric", metric, tuple(METRICS))]
        self.found: list[Neighbour] = []
        """The nearest so far, nearest first; equally near ones by id."""

    def add(self, chains: Chains) -> None:
        """Look at the vectors of these chains, too.

        Args:
            chains: chains of vectors that were not added before.

        Raises:
            ConfigError: they have another length than the query, or one of them no longer knows
                what it was at that time (folded or merged since).
        """
        if chains.dims != len(self.query):
            raise ConfigError("query", self.query.shape, f"must have {chains.dims} dims")
        composed = chains.compose(at_ns=self.at_ns)
        there = np.flatnonzero(composed.exists)
        if not len(there):
            return
        distance = self._distance(composed.vectors[there], self.query)
        # All that are as near as the last one that counts: ties are decided by id.
        last = np.partition(distance, min(self.limit, len(distance)) - 1)[
            min(self.limit, len(distance)) - 1
        ]
        for k in np.flatnonzero(distance <= last).tolist():
            v = int(there[k])
            name = chains.ids[v].as_py()
            self.found.append(Neighbour(name, float(distance[k]), composed.vectors[v]))
        self.found.sort(key=lambda near: (near.distance, near.vector_id))
        del self.found[self.limit :]


def nearest(
    chains: Iterable[DeltaChain],
    query: ArrayLike,
    limit: int = 10,
    *,
    at_ns: int | None = None,
    metric: str = "l2",
) -> list[Neighbour]:
    """The nearest vectors among chains, now or as of a time. Deleted vectors and those that did not
    exist then are left out.

    Args:
        chains: chains of vectors of one length; those whose length is not known yet are left out.
        query: the vector to be near to.
        limit: how many to find (at least 1).
        at_ns: event time, nanoseconds since the epoch; None: now.
        metric: `l2` (squared Euclidean distance), `cosine` or `dot` (negated).

    Returns:
        At most `limit` neighbours, nearest first, equally near ones by id.

    Raises:
        ConfigError: a setting is out of range, or that time lies before a checkpoint or inside
            merged deltas: keep a `retention` as long as the past you want to ask about.

    Example:
        >>> from tidegate.deltas import Create, Offset, VectorDelta
        >>> a, b = DeltaChain("a", dims=1), DeltaChain("b", dims=1)
        >>> a.process([VectorDelta("a1", "a", Create([1.0]), 1)])
        []
        >>> b.process([VectorDelta("b1", "b", Create([2.0]), 1),
        ...            VectorDelta("b2", "b", Offset(7.0), 5)])
        []
        >>> [near.vector_id for near in nearest([a, b], [9.0], 1)]
        ['b']
        >>> nearest([a, b], [0.0], at_ns=4)
        [Neighbour(vector_id='a', distance=1.0), Neighbour(vector_id='b', distance=4.0)]
    """
    search = NearestSearch(query, limit, at_ns=at_ns, metric=metric)
    known = [chain.chains for chain in chains if chain.chains is not None]
    if known:
        for other in known:
            if other.dims != known[0].dims:
                raise ConfigError("chains", other.dims, f"must all have {known[0].dims} dims")
        search.add(join_chains([(np.array([k]), one) for k, one in enumerate(known)]))
    return search.found
