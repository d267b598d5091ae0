"""Fold deltas into one without a base, as objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate.deltas import kernels
from tidegate.deltas.delta_chain import DeltaChain
from tidegate.deltas.folding import Plan, fold
from tidegate.deltas.objects import rows_from
from tidegate.deltas.operations import Operation, VectorDelta
from tidegate.deltas.rows import Block
from tidegate.errors import ConfigError

__all__ = ["affine", "merge"]


def merge(deltas: Sequence[VectorDelta], dims: int) -> VectorDelta:
    """One delta that does to any vector what these do one after the other, in chain order.

    >>> from tidegate.deltas import Offset, Scale, Sparse
    >>> run = [Scale(2.0), Sparse([0], [5.0]), Offset(1.0)]
    >>> one = merge([VectorDelta(f"d{n}", "v", op, n) for n, op in enumerate(run)], dims=2)
    >>> [part.tolist() for part in affine(one.operation, 2)], one.ids
    ([[0.0, 2.0], [6.0, 1.0]], ('d0', 'd1', 'd2'))
    """
    if len({delta.vector_id for delta in deltas}) != 1:
        raise ConfigError("deltas", len(deltas), "must be deltas of one vector, at least one")
    chain = DeltaChain.stored(deltas[0].vector_id, deltas, dims)
    assert chain.chains is not None
    one_run = Plan(np.zeros(1, np.int64), np.zeros(len(deltas), np.int64))
    folded = fold(chain.chains, one_run)
    if folded.errors:
        raise ConfigError("deltas", len(deltas), folded.errors[0])
    chain._chains = folded.chains
    if len(chain) != 1:
        raise ConfigError("deltas", len(deltas), "their factors leave the range of floats")
    return chain.pending[0]


def affine(operation: Operation, dims: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pair (a, b) per dimension: what the operation does is x → a·x + b.

    A Create or Dense is a = 0; a Delete has no such form and is a ConfigError.
    """
    if operation.op == "delete":
        raise ConfigError("operation", "delete", "a tombstone is not an affine map")
    block = Block.of(rows_from([VectorDelta("d", "v", operation)]))
    reason, _ = block.check(dims)
    if reason.any():
        raise ConfigError("operation", operation, f"must be valid for {dims} dims")
    run = block.merge(np.array([0]), np.array([1]), dims)
    a, b = np.full(dims, run.factor[0]), np.full(dims, run.amount[0])
    wide = len(run.values)
    places = run.indices if len(run.indices) == wide else np.arange(dims)
    if wide:
        b[places] = run.values
        adds = run.op[0] in (kernels.ADD, kernels.ADD_DENSE)
        a[places] = run.factors if len(run.factors) else float(adds)
    return a, b
