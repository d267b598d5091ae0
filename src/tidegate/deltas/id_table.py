"""Small numbers for (vector, delta id) pairs, by a hash table over Arrow's text buffers.

Arrow's dictionary of a million different texts takes longer than everything else that happens to
them, and knows nothing of vectors. Here a pair is hashed once; two pairs are the same only if
vector and text are, whatever their hashes say.

Layout: open addressing with linear probing in one array of uint64 slots, at most half full. A slot
holds the high 32 bits of the hash (so that most strangers are told apart without reading their
text) and, in the low 32, the row in which the pair stands first: that row is its number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.numba import lean_kernel
from tidegate.core.outcomes import Int64s

__all__ = ["IdTable"]

_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: odd, and with bits everywhere."""
_MIX = np.uint64(0xFF51AFD7ED558CCD)
"""The multiplier of MurmurHash3's finaliser, which spreads every bit to the low ones."""
_HALF = np.uint64(32)
"""Bits of half a slot."""
_LOW = np.uint64(0xFFFFFFFF)
"""Masks the row number in a slot."""
_HIGH = np.uint64(0xFFFFFFFF00000000)
"""Masks the part of the hash in a slot."""
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Marks an empty slot. Never a valid entry: the low 32 bits would be row 2**32 - 1, and Arrow's
text columns end at 2**31 rows."""

Int32s = NDArray[np.int32]
Uint64s = NDArray[np.uint64]


class Pairs(NamedTuple):
    """(vector, text) pairs as the kernels take them; all arrays are read-only."""

    vec: Int64s
    """The vector of each pair."""
    ends: Int32s
    """Text r is bytes [ends[r], ends[r + 1])."""
    text: NDArray[np.uint8]
    """The bytes of all texts (UTF-8)."""
    null: NDArray[np.bool_]
    """Empty if no text is null."""


@lean_kernel
def _hash(vec: int, text: NDArray[np.uint8], first: int, last: int) -> np.uint64:
    """Hash a vector number and the bytes [first, last) of `text`, eight bytes at a time.

    The last step spreads every bit to the low half (which slot) and to the high half (kept in the
    slot).
    """
    h = (np.uint64(vec) + np.uint64(last - first)) * _MIX
    h ^= h >> _HALF
    k = first
    while k + 8 <= last:
        word = (
            np.uint64(text[k])
            | np.uint64(text[k + 1]) << np.uint64(8)
            | np.uint64(text[k + 2]) << np.uint64(16)
            | np.uint64(text[k + 3]) << np.uint64(24)
            | np.uint64(text[k + 4]) << np.uint64(32)
            | np.uint64(text[k + 5]) << np.uint64(40)
            | np.uint64(text[k + 6]) << np.uint64(48)
            | np.uint64(text[k + 7]) << np.uint64(56)
        )
        h = (h ^ word) * _MULTIPLY
        h ^= h >> _HALF
        k += 8
    word = np.uint64(0)
    while k < last:
        word = word << np.uint64(8) | np.uint64(text[k])
        k += 1
    h = (h ^ word) * _MULTIPLY
    h = (h ^ (h >> _HALF)) * _MIX
    return h ^ (h >> _HALF)


@lean_kernel
def _same(a: Pairs, r: Any, b: Pairs, s: Any) -> bool:
    """Whether pair r of `a` is pair s of `b`."""
    first, start = a.ends[r], b.ends[s]
    size = a.ends[r + 1] - first
    if a.vec[r] != b.vec[s] or size != b.ends[s + 1] - start:
        return False
    for k in range(size):  # noqa: SIM110 (numba knows no all() of a generator)
        if a.text[first + k] != b.text[start + k]:
            return False
    return True


@lean_kernel
def _hash_all(pairs: Pairs, out: Uint64s) -> None:
    """Hash every pair into `out`."""
    for r in range(len(out)):
        out[r] = _hash(pairs.vec[r], pairs.text, pairs.ends[r], pairs.ends[r + 1])


@lean_kernel
def _insert(pairs: Pairs, hashes: Uint64s, slots: Uint64s, out: Int32s) -> None:
    """Number every pair: the row it stands in first, -1 for a null text.

    A loop of its own, apart from the hashing, so that the processor can wait for many slots at
    once: together the two take three times as long.
    """
    mask = np.uint64(len(slots) - 1)
    for r in range(len(out)):
        if len(pairs.null) and pairs.null[r]:
            out[r] = -1
            continue
        h = hashes[r]
        at = h & mask
        while True:
            slot = slots[at]
            if slot == _EMPTY:
                slots[at] = (h & _HIGH) | np.uint64(r)
                out[r] = r
                break
            if (slot ^ h) & _HIGH == 0:
                s = np.int64(slot & _LOW)
                if _same(pairs, s, pairs, r):
                    out[r] = s
                    break
            at = (at + np.uint64(1)) & mask


@lean_kernel
def _find_pairs(pairs: Pairs, slots: Uint64s, wanted: Pairs, hashes: Uint64s, out: Int32s) -> None:
    """Look up pairs.

    Args:
        pairs: the pairs that have numbers.
        slots: the hash table over them.
        wanted: the pairs to look up.
        hashes: their hashes.
        out: written: the number of each, -1 for one that has none or whose text is null.
    """
    mask = np.uint64(len(slots) - 1)
    for r in range(len(out)):
        out[r] = -1
        if len(wanted.null) and wanted.null[r]:
            continue
        h = hashes[r]
        at = h & mask
        while slots[at] != _EMPTY:
            if (slots[at] ^ h) & _HIGH == 0:
                s = np.int64(slots[at] & _LOW)
                if _same(pairs, s, wanted, r):
                    out[r] = s
                    break
            at = (at + np.uint64(1)) & mask


class IdTable:
    """Numbers for (vector, delta id) pairs. Equal pairs have equal numbers, all below `size`.

    Args:
        vec: the vector of each row, for its id and its parent alike.
        ids: delta ids.
        parents: ids of parents, null where a row has none.

    Attributes: `numbers` has one entry per id and `parent_numbers` one per parent, -1 where the
    text is null; `parent_numbers` is empty if no row has a parent.

    Example:
        >>> ids, parents = pa.array(["a", "b", "a"]), pa.array([None, "a", None])
        >>> table = IdTable(np.array([0, 0, 1]), ids, parents)
        >>> table.numbers.tolist(), table.parent_numbers.tolist()
        ([0, 1, 2], [-1, 0, -1])
        >>> table.find(np.array([0, 1]), pa.array(["b", "b"])).tolist()
        [1, -1]
    """

    def __init__(self, vec: Int64s, ids: pa.Array, parents: pa.Array) -> None:
        """Hash all ids and parents into a table that is at most half full."""
        texts = ids
        if parents.null_count < len(parents):
            texts, vec = pa.concat_arrays([ids, parents]), np.concatenate([vec, vec])
        self.size = len(texts)
        self._pairs = _pairs(vec, texts)
        self._slots = np.full(max(8, 1 << (2 * self.size - 1).bit_length()), _EMPTY, np.uint64)
        numbers = np.empty(self.size, np.int32)
        _insert(self._pairs, _hashes(self._pairs, self.size), self._slots, numbers)
        self._slots.setflags(write=False)
        numbers.setflags(write=False)
        self.numbers, self.parent_numbers = numbers[: len(ids)], numbers[len(ids) :]

    def find(self, vec: Int64s, ids: pa.Array) -> Int32s:
        """The numbers of these pairs, -1 for those that have none."""
        wanted = _pairs(vec, ids)
        found = np.empty(len(vec), np.int32)
        _find_pairs(self._pairs, self._slots, wanted, _hashes(wanted, len(vec)), found)
        return found


def _hashes(pairs: Pairs, size: int) -> Uint64s:
    """The hashes of all `size` pairs, read-only."""
    out = np.empty(size, np.uint64)
    with np.errstate(over="ignore"):  # a hash wraps around; only seen without the JIT
        _hash_all(pairs, out)
    out.setflags(write=False)
    return out


def _pairs(vec: Int64s, texts: pa.Array) -> Pairs:
    """The buffers of a text column, read-only so that every kernel is compiled once."""
    ends, text, null = np.zeros(1, np.int32), np.empty(0, np.uint8), np.empty(0, np.bool_)
    if len(texts):
        _, offsets, letters = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        text = text if letters is None else np.frombuffer(letters, np.uint8)
        null = texts.is_null().to_numpy(zero_copy_only=False) if texts.null_count else null
    pairs = Pairs(vec.view(), ends.view(), text.view(), null.view())
    for array in pairs:
        array.setflags(write=False)
    return pairs
