"""Small numbers for (vector, id) pairs, by a hash table of our own.

Arrow's dictionary of a million different texts takes longer than everything else that happens to
them, and knows nothing of vectors. Here a pair is hashed once; two pairs are the same only if
vector and text are, whatever their hashes say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.numba import frozen, lean_kernel
from tidegate.core.outcomes import Int64s

__all__ = ["Ids"]

_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A seat nobody has taken: the low half of a taken one is a number, and there are never so many."""

Bytes = NDArray[np.uint8]
Ends = NDArray[np.int32]
Seats = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.int32]


@lean_kernel
def _hash(owner: int, text: Bytes, first: int, last: int) -> np.uint64:
    """Eight letters at a time. The last step spreads every bit to the low ones (the seat) and to
    the high ones (kept in the seat, so that strangers are told apart without reading them)."""
    h = (np.uint64(owner) + np.uint64(last - first)) * _MIX
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
def _same(a: Bytes, a_first: int, a_last: int, b: Bytes, b_first: int, b_last: int) -> bool:
    if a_last - a_first != b_last - b_first:
        return False
    for k in range(a_last - a_first):  # noqa: SIM110 (numba knows no all() of a generator)
        if a[a_first + k] != b[b_first + k]:
            return False
    return True


@lean_kernel
def _hashes(owner: Int64s, ends: Ends, text: Bytes, out: Seats) -> None:
    for r in range(len(out)):
        out[r] = _hash(owner[r], text, ends[r], ends[r + 1])


@lean_kernel
def _number(
    hashes: Seats,
    owner: Int64s,
    ends: Ends,
    text: Bytes,
    null: Bools,
    seats: Seats,
    out: Numbers,
) -> None:
    """The number of every pair: the row it stands in first.

    Apart from the hashing, so that the processor can wait for many seats at once: together they
    take three times as long.
    """
    mask = np.uint64(len(seats) - 1)
    for r in range(len(out)):
        if len(null) and null[r]:
            out[r] = -1
            continue
        h = hashes[r]
        at = h & mask
        while True:
            seat = seats[at]
            if seat == _EMPTY:
                seats[at] = (h & _HIGH) | np.uint64(r)
                out[r] = r
                break
            if (seat ^ h) & _HIGH == 0:
                s = np.int64(seat & _LOW)
                if owner[s] == owner[r] and _same(
                    text, ends[s], ends[s + 1], text, ends[r], ends[r + 1]
                ):
                    out[r] = s
                    break
            at = (at + np.uint64(1)) & mask


@lean_kernel
def _find(
    owner: Int64s,
    ends: Ends,
    text: Bytes,
    seats: Seats,
    hashes: Seats,
    asked_owner: Int64s,
    asked_ends: Ends,
    asked: Bytes,
    null: Bools,
    out: Numbers,
) -> None:
    """The numbers of other pairs, -1 for those that have none."""
    mask = np.uint64(len(seats) - 1)
    for r in range(len(out)):
        out[r] = -1
        if len(null) and null[r]:
            continue
        h = hashes[r]
        at = h & mask
        while seats[at] != _EMPTY:
            if (seats[at] ^ h) & _HIGH == 0:
                s = np.int64(seats[at] & _LOW)
                if owner[s] == asked_owner[r] and _same(
                    text, ends[s], ends[s + 1], asked, asked_ends[r], asked_ends[r + 1]
                ):
                    out[r] = s
                    break
            at = (at + np.uint64(1)) & mask


@dataclass(frozen=True)
class Ids:
    """The pairs that have numbers."""

    owner: Int64s
    ends: Ends
    text: Bytes
    seats: Seats

    @classmethod
    def of(cls, vec: Int64s, ids: pa.Array, parents: pa.Array) -> tuple[Numbers, Numbers, Ids]:
        """Numbers for these ids and parents (-1: none; empty: nobody has one), and the numbering.

        >>> ids, parents = pa.array(["a", "b", "a"]), pa.array([None, "a", None])
        >>> [n.tolist() for n in Ids.of(np.array([0, 0, 1]), ids, parents)[:2]]
        [[0, 1, 2], [-1, 0, -1]]
        """
        both, owner = ids, frozen(vec)
        if parents.null_count < len(parents):
            both, owner = pa.concat_arrays([ids, parents]), frozen(np.concatenate([vec, vec]))
        ends, text, null = _letters(both)
        seats = np.full(max(8, 1 << (2 * len(both) - 1).bit_length()), _EMPTY, np.uint64)
        numbers = np.empty(len(both), np.int32)
        hashes = _hashed(owner, ends, text)
        _number(hashes, owner, ends, text, null, seats, numbers)
        return numbers[: len(ids)], numbers[len(ids) :], cls(owner, ends, text, frozen(seats))

    def __len__(self) -> int:
        """Above every number."""
        return len(self.owner)

    def find(self, vec: Int64s, ids: pa.Array) -> Numbers:
        """The numbers of these pairs, -1 for those that have none."""
        ends, text, null = _letters(ids)
        found = np.empty(len(vec), np.int32)
        known = self.owner, self.ends, self.text, self.seats
        hashes = _hashed(frozen(vec), ends, text)
        _find(*known, hashes, frozen(vec), ends, text, null, found)
        return found


def _hashed(owner: Int64s, ends: Ends, text: Bytes) -> Seats:
    out = np.empty(len(owner), np.uint64)
    with np.errstate(over="ignore"):  # a hash wraps around; only seen without the JIT
        _hashes(owner, ends, text, out)
    return frozen(out)


def _letters(texts: pa.Array) -> tuple[Ends, Bytes, Bools]:
    """Where each text ends in the letters of all, the letters, and which are null (if any is)."""
    if not len(texts):
        nothing = np.zeros(1, np.int32), np.empty(0, np.uint8), np.empty(0, np.bool_)
        return frozen(nothing[0]), frozen(nothing[1]), frozen(nothing[2])
    _, offsets, letters = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.empty(0, np.uint8) if letters is None else np.frombuffer(letters, np.uint8)
    null = np.empty(0, np.bool_)
    if texts.null_count:
        null = texts.is_null().to_numpy(zero_copy_only=False)
    return frozen(ends), frozen(text), frozen(null)
