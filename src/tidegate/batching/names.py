"""Numbers for the names of streams: one look per row at a column that repeats itself.

Topics come in the same order again and again. So the name behind each name is remembered, and a row
is compared with the one that followed last time; only where that is another one is it hashed. For
a few names this takes a quarter of the time of Arrow's `dictionary_encode`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batching.layout import FIRST_ROWS
from tidegate.core.arrow import empty
from tidegate.core.numba import as_readonly, interpret_first, lean_inline, lean_inner, lean_kernel
from tidegate.core.outcomes import Int32s

__all__ = ["encode_names"]


class NameTable(NamedTuple):
    """Working memory of `number_names`."""

    firsts: Int32s
    """Per code: the first row with it."""
    follows: Int32s
    """Per code: the code that came behind it last time."""
    slots: Int32s
    """A hash table of codes, twice as large as there are codes; -1 for an empty slot."""
    short: NDArray[np.uint64]
    """Per code: a text of up to seven bytes, with its length in the highest byte; _LONG for a
    longer one."""


MAX_NAMES = 1024
"""Names of one call that are told apart here; a column with more goes to Arrow. Below the streams
of a large fleet (a few hundred), most calls would be encoded twice; above, the table no longer fits
into the first cache."""


def encode_names(column: pa.Array) -> tuple[Int32s, list[str]]:
    """Return a code per row, and the text of each code.

    A dictionary that is larger than its column (a slice of a large one) or holds a null is encoded
    again, so that the work per call does not depend on values that no row has.

    Args:
        column: The names, without nulls, as text, a dictionary of text, or anything that Arrow
            casts to text.

    Example:
        >>> codes, names = encode_names(pa.array(["b", "a", "b"]))
        >>> codes.tolist(), names
        ([0, 1, 0], ['b', 'a'])
    """
    if pa.types.is_string(column.type) and len(column):
        codes = empty(len(column), np.int32)
        names = NameTable(
            firsts=np.empty(MAX_NAMES, np.int32),
            follows=np.zeros(MAX_NAMES, np.int32),
            slots=np.full(2 * MAX_NAMES, -1, np.int32),
            short=np.full(MAX_NAMES, _LONG, np.uint64),
        )
        _, ends, text = column.buffers()
        bounds = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        count = _number_names(as_readonly(bounds), _words_of(text, int(bounds[-1])), codes, names)
        if count >= 0:
            return codes, column.take(pa.array(names.firsts[:count])).to_pylist()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif len(column.dictionary) > len(column) or column.dictionary.null_count:
        column = column.dictionary_decode().dictionary_encode()
    labels = column.dictionary
    if not pa.types.is_string(labels.type):
        labels = labels.cast(pa.string())
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int32), labels.to_pylist()


def _words_of(text: pa.Buffer | None, end: int) -> NDArray[np.uint64]:
    """Return, per byte before `end`, the eight bytes from there on as one word.

    A view with a stride of one byte. Arrow's buffers are mostly longer than what they hold; one
    that is not is copied, so that the last word does not reach behind it.
    """
    if text is None or text.size < end + 8:
        letters = np.zeros(end + 8, np.uint8)
        if text is not None:
            letters[:end] = np.frombuffer(text, np.uint8, end)
    else:
        letters = np.frombuffer(text, np.uint8, end + 8)
    words = np.ndarray((end + 1,), np.uint64, letters, 0, (1,))
    words.flags.writeable = False
    return words


_PATIENCE = 8192
"""Every eighth guess may be wrong, and a thousand at the beginning: enough to learn the order of
MAX_NAMES names. A wrong guess costs about three times what Arrow takes for a row."""

_EIGHT = np.uint64(8)
_TAILS = np.array([(1 << 8 * n) - 1 for n in range(8)], np.uint64)
"""Per number of bytes in the last word of a text: which bits of the word are its own."""

_LONG = np.uint64(2**64 - 1)
"""Stands for a text of more than seven bytes. No short text: its length would be 255."""
_TOP = np.uint64(56)


@lean_kernel
def number_names(bounds: Any, words: Any, codes: Any, names: Any) -> Any:
    """Write a code per row and the first row of each code; codes count up as names come up.

    Args:
        bounds: Where each text begins, and where the last one ends.
        words: Per byte of the texts: the eight bytes from there on.
        codes: One per row; overwritten.
        names: The `NameTable`, empty.

    Returns:
        The number of names; -1 if there are more than the table has room for, or if names come in
        no order: then hashing at once is faster.
    """
    count = 0
    before = 0
    missed = 0
    mask = len(names.slots) - 1
    for i in range(len(codes)):
        begin, length = np.uint64(bounds[i]), np.uint64(bounds[i + 1] - bounds[i])
        guess = names.follows[before]
        short = _LONG
        if length < _EIGHT:
            short = (words[begin] & _TAILS[length]) | (length << _TOP)
            if names.short[guess] == short:  # most rows of most columns
                codes[i] = guess
                before = guess
                continue
        if count == 0 or not same_text(bounds, words, names.firsts[guess], begin, length):
            missed += 1
            if 8 * missed > i + _PATIENCE:
                return -1
            hashed = length
            for j in range(length // _EIGHT):
                hashed = mixed(hashed, words[begin + np.uint64(j) * _EIGHT])
            if length % _EIGHT:
                tail = words[begin + length // _EIGHT * _EIGHT]
                hashed = mixed(hashed, tail & _TAILS[length % _EIGHT])
            at = np.int64(hashed & np.uint64(mask))
            guess = names.slots[at]
            while guess >= 0 and not same_text(bounds, words, names.firsts[guess], begin, length):
                at = (at + 1) & mask
                guess = names.slots[at]
            if guess < 0:
                if count == len(names.firsts):
                    return -1
                guess = count
                names.firsts[guess] = i
                names.short[guess] = short
                names.slots[at] = guess
                count += 1
            names.follows[before] = guess
        codes[i] = guess
        before = guess
    return count


@lean_inner
def mixed(hashed: Any, word: Any) -> Any:
    """Return a hash with one more word in it. Without products: those overflow, which Python's own
    numbers do not."""
    hashed = (hashed ^ word) ^ ((hashed ^ word) >> np.uint64(29))
    return hashed ^ (hashed >> np.uint64(13)) ^ (hashed >> np.uint64(7))


@lean_inline
def same_text(bounds: Any, words: Any, row: Any, begin: Any, length: Any) -> Any:
    """Return whether the text of a row is that of `length` bytes from `begin` on."""
    other = np.uint64(bounds[row])
    if np.uint64(bounds[row + 1]) - other != length:
        return False
    tail = length % _EIGHT
    whole = length - tail
    if tail and (words[other + whole] ^ words[begin + whole]) & _TAILS[tail]:
        return False
    for j in range(whole // _EIGHT):
        step = np.uint64(j) * _EIGHT
        if words[other + step] != words[begin + step]:
            return False
    return True


_number_names = interpret_first(number_names, lambda b, w, codes, *_: len(codes), FIRST_ROWS)
