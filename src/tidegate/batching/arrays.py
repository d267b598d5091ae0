"""Everything a decision reads and writes, as one value that kernels hand to each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s

__all__ = ["World"]


class World(NamedTuple):
    """Rows that wait or came, the state of all lanes, and room for what is decided."""

    rows: Int64s
    lists: Int64s
    lanes: Int64s
    streams: Int64s
    rings: Int64s
    numbers: Int64s
    """Row numbers in the order they leave; behind that, free to use."""
    spare: Int64s
    batches: Int64s
    parts: Int64s
    floats: NDArray[np.float64]
    work: Int64s
    scratch: NDArray[np.float64]
