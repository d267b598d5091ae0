"""Differences of stamps and their product with the age factor, exact to the nanosecond.

Two int64 stamps lie up to 2**64 - 1 apart, and that times a 53-bit numerator needs 117 bits. Both
are done in uint64 without ever overflowing one, so the compiled and the interpreted kernel agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.core.numba import lean_kernel as kernel

__all__ = ["apart", "factor_of", "later", "scaled"]

_TOP = np.uint64(1 << 63)
_HALF = np.uint64(32)
_WORD = np.uint64(64)
_LOW = np.uint64((1 << 32) - 1)
_FULL = np.uint64((1 << 64) - 1)
_NONE = np.uint64(0)


def factor_of(age_penalty: float) -> tuple[int, int]:
    """`1 + age_penalty` as (numerator, shift): a float is a whole number over a power of two.

    >>> factor_of(0.5), factor_of(0.0)
    ((3, 1), (1, 0))
    """
    numerator, denominator = (1.0 + age_penalty).as_integer_ratio()
    return numerator, denominator.bit_length() - 1


@kernel
def apart(later_ns: Any, earlier_ns: Any) -> Any:
    """`later - earlier` as uint64; the caller knows which one is later."""
    return (np.uint64(later_ns) ^ _TOP) - (np.uint64(earlier_ns) ^ _TOP)


@kernel
def later(time_ns: Any, by: Any) -> Any:
    """`time + by` for a uint64 distance that is known to fit."""
    return np.int64(((np.uint64(time_ns) ^ _TOP) + by) ^ _TOP)


@kernel
def scaled(distance: Any, numerator: Any, shift: Any) -> Any:
    """`distance * numerator / 2**shift`, cut off to whole nanoseconds; at most 2**64 - 1."""
    if distance == _NONE:
        return _NONE
    n = np.uint64(numerator)
    s = np.uint64(shift)
    d_high = distance >> _HALF
    d_low = distance & _LOW
    n_high = n >> _HALF
    n_low = n & _LOW
    low_low = d_low * n_low
    cross = d_high * n_low
    other = d_low * n_high
    middle = (low_low >> _HALF) + (cross & _LOW) + (other & _LOW)
    high = d_high * n_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    low = ((middle & _LOW) << _HALF) | (low_low & _LOW)
    if high >> s != _NONE:
        return _FULL
    if s == _NONE:
        return low
    return (high << (_WORD - s)) | (low >> s)
