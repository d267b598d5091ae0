"""Deltas of vectors, their chains, and compaction that never changes what a chain composes to."""

from tidegate.deltas.compactor import CompactionResult, Compactor, Urgency
from tidegate.deltas.delta_chain import Checkpoint, DeltaChain, Refusal, affine, merge
from tidegate.deltas.neighbours import Neighbour, nearest
from tidegate.deltas.operations import (
    DELTAS,
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
    deltas_of,
    rows_from,
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
    "DELTAS",
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
    "Neighbour",
    "Offset",
    "Operation",
    "Refusal",
    "Scale",
    "Sparse",
    "Strategy",
    "TieredMerge",
    "TimeBoundary",
    "Urgency",
    "VectorDelta",
    "affine",
    "deltas_of",
    "merge",
    "nearest",
    "rows_from",
]
