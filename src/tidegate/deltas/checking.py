"""The kernel that says which deltas can be used, before any other kernel trusts them."""

from __future__ import annotations

import numpy as np

from tidegate.core.numba import kernel
from tidegate.deltas.kernels import (
    ADD,
    ADD_DENSE,
    AFFINE,
    CREATE,
    DENSE,
    OFFSET,
    SCALE,
    SPARSE,
    Codes,
    Floats,
    Int32s,
    Ints,
)

__all__ = ["check_rows"]


@kernel
def check_rows(
    dims: int,
    op: Codes,
    factor: Floats,
    amount: Floats,
    istart: Ints,
    indices: Int32s,
    vstart: Ints,
    values: Floats,
    astart: Ints,
    factors: Floats,
    reason: Codes,
    where: Ints,
) -> None:
    """Fill `reason` (0 = usable, see rows.REASONS) and `where` (the offending index or length)."""
    seen = np.full(dims, -1, np.int64)
    for r in range(len(op)):
        if reason[r] != 0:
            continue
        code = op[r]
        wide = vstart[r + 1] - vstart[r]
        if code == SCALE:
            if not np.isfinite(factor[r]):
                reason[r] = 4
            elif factor[r] == 0.0:
                reason[r] = 5
        elif code == OFFSET:
            if not np.isfinite(amount[r]):
                reason[r] = 4
        elif code in (CREATE, DENSE, ADD_DENSE):
            if wide != dims:
                reason[r] = 6
                where[r] = wide
        elif code in (SPARSE, ADD, AFFINE):
            named = istart[r + 1] - istart[r]
            if named != wide or (code == AFFINE and astart[r + 1] - astart[r] != wide):
                reason[r] = 7
                where[r] = named
            if code == AFFINE and not (
                np.isfinite(factor[r]) and np.isfinite(amount[r]) and factor[r] != 0.0
            ):
                reason[r] = 4
            for k in range(istart[r], istart[r + 1]):
                if reason[r] != 0:
                    break
                i = indices[k]
                if i < 0 or i >= dims:
                    reason[r] = 8
                    where[r] = i
                elif seen[i] == r:
                    reason[r] = 9
                    where[r] = i
                else:
                    seen[i] = r
        if reason[r] == 0:
            for k in range(vstart[r], vstart[r + 1]):
                if not np.isfinite(values[k]):
                    reason[r] = 10
                    where[r] = k - vstart[r]
                    break
            for k in range(astart[r], astart[r + 1]):
                if not np.isfinite(factors[k]):
                    reason[r] = 10
                    where[r] = k - astart[r]
                    break
