"""Which shard a key belongs to, and shard labels that spread evenly over Spark's partitions.

Spark puts group `label` into partition murmur3(label) mod n. Labels 0, 1, 2 … fall where they fall:
with two partitions, 0 and 1 fall into the same one and half the machine is idle. So we choose
labels whose hashes go round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.hashing import hash_rows

__all__ = ["labels", "partition_of", "shard_of"]


def shard_of(keys: Sequence[pa.Array], rows: int, shards: int) -> NDArray[np.uint16]:
    """Return the shard of each row by its key.

    Args:
        keys: The key columns, in the types that all inputs agree on (see `hash_rows`). Without
            one, all rows go to shard 0.
        rows: How many rows there are.
        shards: How many shards there are, at most 65,535.

    Example:
        >>> shard_of([pa.array(["car-1", "car-2", "car-1"])], 3, 4).tolist()
        [2, 3, 2]
    """
    if not keys or shards == 1:
        return np.zeros(rows, np.uint16)
    return (hash_rows(keys) % np.uint64(shards)).astype(np.uint16)


def labels(count: int, partitions: int) -> tuple[int, ...]:
    """Return `count` distinct labels, the i-th of which goes to partition i mod `partitions`.

    >>> [partition_of(label, 2) for label in labels(4, 2)]
    [0, 1, 0, 1]
    """
    waiting: dict[int, list[int]] = {}
    chosen: list[int] = []
    candidate = 0
    for shard in range(count):
        wanted = shard % partitions
        while not waiting.get(wanted):
            waiting.setdefault(partition_of(candidate, partitions), []).append(candidate)
            candidate += 1
        chosen.append(waiting[wanted].pop(0))
    return tuple(chosen)


def partition_of(label: int, partitions: int) -> int:
    """Return the partition Spark puts this int into: its Murmur3 hash with seed 42, modulo the
    number of partitions.

    >>> partition_of(0, 2), partition_of(1, 2)
    (1, 1)
    """
    mask = 0xFFFFFFFF

    def rotate(value: int, by: int) -> int:
        return ((value << by) | (value >> (32 - by))) & mask

    k = rotate(label * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h = (rotate(42 ^ k, 13) * 5 + 0xE6546B64) & mask
    h ^= 4  # the length of an int in bytes
    h = (h ^ (h >> 16)) * 0x85EBCA6B & mask
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & mask
    h ^= h >> 16
    signed = h - 2**32 if h >= 2**31 else h
    return signed % partitions
