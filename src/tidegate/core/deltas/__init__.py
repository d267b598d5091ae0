"""Deltas of vectors, their chains, and compaction that never changes what a chain composes to."""

from tidegate.core.deltas.chain import Checkpoint, DeltaChain, Refusal
from tidegate.core.deltas.compaction import CompactionResult, Compactor, Level
from tidegate.core.deltas.merging import affine, merge
from tidegate.core.deltas.operations import (
    Add,
    Affine,
    Create,
    Delete,
    Dense,
    Offset,
    Operation,
    Scale,
    Sparse,
    VectorDelta,
)
from tidegate.core.deltas.operator import Compact
from tidegate.core.deltas.strategies import (
    Adaptive,
    FullMerge,
    Strategy,
    TieredMerge,
    TimeBoundary,
)

__all__ = [
    "Adaptive",
    "Add",
    "Affine",
    "Checkpoint",
    "Compact",
    "CompactionResult",
    "Compactor",
    "Create",
    "Delete",
    "DeltaChain",
    "Dense",
    "FullMerge",
    "Level",
    "Offset",
    "Operation",
    "Refusal",
    "Scale",
    "Sparse",
    "Strategy",
    "TieredMerge",
    "TimeBoundary",
    "VectorDelta",
    "affine",
    "merge",
]
