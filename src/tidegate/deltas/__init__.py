"""Deltas of vectors, their chains, and compaction that never changes what a chain composes to."""

from tidegate.deltas.compaction import CompactionResult, Compactor, Level
from tidegate.deltas.delta_chain import Checkpoint, DeltaChain, Refusal
from tidegate.deltas.merging import affine, merge
from tidegate.deltas.operations import (
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
from tidegate.deltas.stage import Compact
from tidegate.deltas.strategies import (
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
