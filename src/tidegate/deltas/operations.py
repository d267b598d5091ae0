"""What a delta says: the operations on a vector, and the delta that carries one.

Create, Dense    x := vector          (Create also ends a tombstone)
Sparse           x[i] := v
Add              x += v               (all dimensions, or the named ones)
Scale, Offset    x := factor·x, x := x + amount
Delete           a tombstone until the next Create
Affine           x := a·x + b         what a run of the others folds into
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Add",
    "Affine",
    "Create",
    "Delete",
    "Dense",
    "Offset",
    "Operation",
    "Scale",
    "Sparse",
    "Unknown",
    "VectorDelta",
]

Numbers = Sequence[float] | NDArray[Any]
Places = Sequence[int] | NDArray[Any]


class Operation:
    """One change of a vector. Equal if they say the same."""

    op: ClassVar[str]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(np.asarray(mine), np.asarray(theirs))
            for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.op, *(np.asarray(part).tobytes() for part in vars(self).values())))


@dataclass(frozen=True, eq=False)
class Create(Operation):
    """x := vector; the vector exists (again)."""

    vector: Numbers
    op: ClassVar[str] = "create"


@dataclass(frozen=True, eq=False)
class Dense(Operation):
    """x := vector, if the vector is not deleted."""

    vector: Numbers
    op: ClassVar[str] = "dense"


@dataclass(frozen=True, eq=False)
class Sparse(Operation):
    """x[i] := v for the named dimensions."""

    indices: Places
    values: Numbers
    op: ClassVar[str] = "sparse"


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """x += values; only the named dimensions if there are indices."""

    values: Numbers
    indices: Places | None = None
    op: ClassVar[str] = "add"


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """x := factor·x. A factor of 0 is refused: it would forget the vector silently."""

    factor: float
    op: ClassVar[str] = "scale"


@dataclass(frozen=True, eq=False)
class Offset(Operation):
    """x := x + amount."""

    amount: float
    op: ClassVar[str] = "offset"


@dataclass(frozen=True, eq=False)
class Delete(Operation):
    """A tombstone: nothing but a Create brings the vector back."""

    op: ClassVar[str] = "delete"


@dataclass(frozen=True, eq=False)
class Affine(Operation):
    """x := factor·x + amount, and factors[k]·x[i] + values[k] for the named dimensions."""

    factor: float
    amount: float
    indices: Places = ()
    factors: Numbers = ()
    values: Numbers = ()
    op: ClassVar[str] = "affine"


@dataclass(frozen=True, eq=False)
class Unknown(Operation):
    """What a row called an operation and is none: never applied, only handed back."""

    said: str | None
    op: ClassVar[str] = "unknown"


@dataclass(frozen=True)
class VectorDelta:
    """One change to one vector.

    `delta_id` is what deduplicates it. A delta that stands for several (after a compaction) bears
    the id and time of the last of them, names all of them in `covers`, and begins at `first_ns`.

    >>> VectorDelta("d1", "vec-1", Sparse([0], [1.0]), time_ns=5).operation.op
    'sparse'
    """

    delta_id: str
    vector_id: str
    operation: Operation
    time_ns: int = 0
    parent: str | None = None
    origin: str = ""
    metadata: str | None = None
    first_ns: int | None = None
    covers: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all deltas this one stands for, in order."""
        return self.covers or (self.delta_id,)
