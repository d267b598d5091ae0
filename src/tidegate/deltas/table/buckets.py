"""Which bucket of a table a vector belongs to: a hash of its id, the same in every process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.numba import frozen, kernel
from tidegate.core.outcomes import Int64s

__all__ = ["bucket_of"]

_SEED = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0xFF51AFD7ED558CCD)


@kernel
def _hash(offsets: NDArray[np.int32], text: NDArray[np.uint8], buckets: int) -> Int64s:
    """FNV-1a of each text, mod the number of buckets."""
    out = np.empty(len(offsets) - 1, np.int64)
    for k in range(len(out)):
        h = _SEED
        for j in range(offsets[k], offsets[k + 1]):
            h = (h ^ np.uint64(text[j])) * _PRIME
        # FNV leaves the last letter in few bits; ids often differ in nothing else.
        h = (h ^ (h >> np.uint64(33))) * _MIX
        out[k] = np.int64((h ^ (h >> np.uint64(29))) % np.uint64(buckets))
    return out


def bucket_of(ids: pa.Array, buckets: int) -> Int64s:
    """The bucket of each vector id.

    >>> bucket_of(pa.array(["vec-1", "vec-2", "vec-1"]), 16).tolist()
    [8, 7, 8]
    """
    ids = ids.cast(pa.string())
    if not len(ids):
        return np.empty(0, np.int64)
    if ids.offset:
        ids = pa.concat_arrays([ids])
    _, offsets, text = ids.buffers()
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    raw = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
    with np.errstate(over="ignore"):  # the hash wraps around; only seen without the JIT
        return _hash(frozen(ends), frozen(raw), buckets)
