"""The arithmetic of deltas, over many vectors and many deltas at once.

Deltas come as ragged columns (op code, global pair, slices of indices, values and factors), so one
call handles all vectors of a shard: apply rows to vectors, and fold runs of rows into one affine
row each without knowing what they will be applied to. The rows have passed `check_rows`.

Every operation but Delete acts on each dimension as x → a·x + b. A run therefore folds into one
global pair (a, b) for the dimensions nobody named, plus overrides for those somebody did. Pure
assignments are kept apart (a = 0 means exactly b), so folding them is exact to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel

__all__ = ["apply_rows", "as_they_lie", "finite_rows", "gather", "merge_runs"]

CREATE, DENSE, SPARSE, ADD, ADD_DENSE, SCALE, OFFSET, DELETE, AFFINE = range(9)

SMALLEST_NORMAL = 2.2250738585072014e-308
"""A folded factor below this has lost bits (or is 0, which would turn it into an assignment)."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
Codes = NDArray[np.int8]


@kernel
def apply_rows(
    out: Floats,
    dead: NDArray[np.bool_],
    rows: Ints,
    slot: Ints,
    op: Codes,
    factor: Floats,
    amount: Floats,
    istart: Ints,
    indices: Int32s,
    vstart: Ints,
    values: Floats,
    astart: Ints,
    factors: Floats,
) -> None:
    """Apply these rows, in this order, each to the vector `out[slot]`. `dead` is the tombstone.

    The rows must have passed `check_rows`: an index is used as it stands.
    """
    dims = out.shape[1]
    named = np.full(dims, -1, np.int64)
    for k in range(len(rows)):
        r = rows[k]
        s = slot[k]
        code = op[r]
        if code == CREATE:
            dead[s] = False
        if code == DELETE:
            dead[s] = True
            continue
        if dead[s]:
            continue
        x = out[s]
        v = vstart[r]
        if code == SPARSE:
            for j in range(istart[r], istart[r + 1]):
                x[indices[j]] = values[v]
                v += 1
        elif code in (CREATE, DENSE):
            for i in range(dims):
                x[i] = values[v + i]
        elif code == ADD:
            for j in range(istart[r], istart[r + 1]):
                x[indices[j]] += values[v]
                v += 1
        elif code == ADD_DENSE:
            for i in range(dims):
                x[i] += values[v + i]
        elif code == SCALE:
            f = factor[r]
            for i in range(dims):
                x[i] *= f
        elif code == OFFSET:
            c = amount[r]
            for i in range(dims):
                x[i] += c
        else:
            f = factor[r]
            c = amount[r]
            a = astart[r]
            for j in range(istart[r], istart[r + 1]):
                i = indices[j]
                named[i] = k
                if factors[a] == 0.0:
                    x[i] = values[v]
                else:
                    x[i] = factors[a] * x[i] + values[v]
                a += 1
                v += 1
            if f != 1.0 or c != 0.0:
                for i in range(dims):
                    if named[i] != k:
                        x[i] = f * x[i] + c


@kernel
def as_they_lie(rows: Ints, slot: Ints, total: int) -> tuple[Ints, Ints]:
    """The same rows (of so many) in another order that applies them the same: those of a vector as
    they came, which must be next to each other; otherwise as they lie in memory.

    Reading rows one after the other and vectors here and there is several times as fast as the
    other way round: a vector is one place, a row is many.
    """
    # A row that must wait for one that lies behind it comes directly after that one.
    head = np.full(total, -1, np.int32)
    top = 0
    for k in range(len(rows)):
        if k == 0 or slot[k] != slot[k - 1] or rows[k] > top:
            top = rows[k]
            head[top] = k
    new_rows, new_slot = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    place = 0
    for r in range(total):
        k = head[r]
        if k < 0:
            continue
        s = slot[k]
        while True:
            new_rows[place] = rows[k]
            new_slot[place] = s
            place += 1
            k += 1
            if k == len(rows) or slot[k] != s or rows[k] > r:
                break
    return new_rows, new_slot


@kernel
def gather(start: Ints, flat: NDArray[Any], rows: Ints) -> tuple[Ints, NDArray[Any]]:
    """Offsets and items of the lists of these rows."""
    ends = np.zeros(len(rows) + 1, np.int64)
    for k in range(len(rows)):
        ends[k + 1] = ends[k] + start[rows[k] + 1] - start[rows[k]]
    out = np.empty(ends[len(rows)], flat.dtype)
    for k in range(len(rows)):
        first = start[rows[k]]
        for j in range(ends[k + 1] - ends[k]):
            out[ends[k] + j] = flat[first + j]
    return ends, out


@kernel
def finite_rows(out: Floats) -> NDArray[np.bool_]:
    """Per vector: is every value of it finite?"""
    good = np.ones(out.shape[0], np.bool_)
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            if not np.isfinite(out[s, i]):
                good[s] = False
                break
    return good


@kernel
def _scaled(f: float, a: float) -> tuple[float, bool]:
    """f·a, and whether it kept its meaning: a factor that under- or overflows did not."""
    product = f * a
    size = abs(product)
    return product, a == 0.0 or (np.isfinite(size) and size >= SMALLEST_NORMAL)


@kernel
def merge_runs(
    dims: int,
    room: int,
    run_start: Ints,
    run_stop: Ints,
    op: Codes,
    factor: Floats,
    amount: Floats,
    istart: Ints,
    indices: Int32s,
    vstart: Ints,
    values: Floats,
    astart: Ints,
    factors: Floats,
) -> tuple[Any, ...]:
    """Fold the rows of each run [run_start[k], run_stop[k]) into one row, without a base.

    Gives op, factor, amount, fine, and the three ragged columns (offsets first). A run whose pairs
    leave the range of normal floats is not `fine`: it must be kept as it is. `room` bounds the
    overrides of all runs together.
    """
    runs = len(run_start)
    out_op = np.zeros(runs, np.int8)
    out_factor = np.ones(runs, np.float64)
    out_amount = np.zeros(runs, np.float64)
    fine = np.ones(runs, np.bool_)
    out_istart = np.zeros(runs + 1, np.int64)
    out_vstart = np.zeros(runs + 1, np.int64)
    out_astart = np.zeros(runs + 1, np.int64)
    out_indices = np.empty(room, np.int32)
    out_values = np.empty(room, np.float64)
    out_factors = np.empty(room, np.float64)
    a = np.ones(dims, np.float64)
    b = np.zeros(dims, np.float64)
    touched = np.zeros(dims, np.bool_)
    order = np.empty(dims, np.int64)
    stamp = np.full(dims, -1, np.int64)
    for k in range(runs):
        ga = 1.0
        gb = 0.0
        count = 0
        created = False
        deleted = False
        good = True
        for r in range(run_start[k], run_stop[k]):
            code = op[r]
            v = vstart[r]
            if code == DELETE:
                deleted = True
                created = False
                for j in range(count):
                    touched[order[j]] = False
                count = 0
                continue
            if deleted and code != CREATE:
                continue
            if code in (CREATE, DENSE):
                if code == CREATE:
                    created = True
                    deleted = False
                for i in range(dims):
                    touched[i] = True
                    order[i] = i
                    a[i] = 0.0
                    b[i] = values[v + i]
                count = dims
                ga = 1.0
                gb = 0.0
            elif code in (SPARSE, ADD):
                for j in range(istart[r], istart[r + 1]):
                    i = indices[j]
                    if not touched[i]:
                        touched[i] = True
                        order[count] = i
                        count += 1
                        a[i] = ga
                        b[i] = gb
                    if code == SPARSE:
                        a[i] = 0.0
                        b[i] = values[v]
                    else:
                        b[i] += values[v]
                    v += 1
            elif code == ADD_DENSE:
                for i in range(dims):
                    if not touched[i]:
                        touched[i] = True
                        order[count] = i
                        count += 1
                        a[i] = ga
                        b[i] = gb
                    b[i] += values[v + i]
            else:
                f = factor[r] if code != OFFSET else 1.0
                c = amount[r] if code != SCALE else 0.0
                if code == AFFINE:
                    q = astart[r]
                    for j in range(istart[r], istart[r + 1]):
                        i = indices[j]
                        stamp[i] = r
                        if not touched[i]:
                            touched[i] = True
                            order[count] = i
                            count += 1
                            a[i] = ga
                            b[i] = gb
                        if factors[q] == 0.0:
                            a[i] = 0.0
                            b[i] = values[v]
                        else:
                            a[i], kept = _scaled(factors[q], a[i])
                            good = good and kept
                            b[i] = factors[q] * b[i] + values[v]
                        q += 1
                        v += 1
                for j in range(count):
                    i = order[j]
                    if code != AFFINE or stamp[i] != r:
                        a[i], kept = _scaled(f, a[i])
                        good = good and kept
                        b[i] = f * b[i] + c
                ga, kept = _scaled(f, ga)
                good = good and kept
                gb = f * gb + c
        # Say it in the plainest operation that means the same.
        sets = True
        adds = True
        for j in range(count):
            i = order[j]
            sets = sets and a[i] == 0.0
            adds = adds and a[i] == 1.0
            good = good and np.isfinite(b[i])
        plain = ga == 1.0 and gb == 0.0
        good = good and (count == dims or np.isfinite(gb))
        whole = count == dims
        if deleted:
            code = DELETE
            good = True
        elif created:
            code = CREATE
        elif whole and sets:
            code = DENSE
        elif whole and adds:
            code = ADD_DENSE
        elif count and plain and sets:
            code = SPARSE
        elif count and plain and adds:
            code = ADD
        elif count == 0 and ga == 1.0:
            code = OFFSET
        elif count == 0 and gb == 0.0:
            code = SCALE
        else:
            code = AFFINE
        out_op[k] = code
        fine[k] = good
        p = out_istart[k]
        q = out_vstart[k]
        w = out_astart[k]
        if code == AFFINE:
            out_factor[k] = ga if not whole else 1.0
            out_amount[k] = gb if not whole else 0.0
        elif code == SCALE:
            out_factor[k] = ga
        elif code == OFFSET:
            out_amount[k] = gb
        if code != DELETE and code != SCALE and code != OFFSET:
            if count * 8 < dims:
                order[:count].sort()
                for j in range(count):
                    i = order[j]
                    out_indices[p] = i
                    out_values[q] = b[i]
                    out_factors[w] = a[i]
                    p += 1
                    q += 1
                    w += 1
            else:
                for i in range(dims):
                    if touched[i]:
                        out_indices[p] = i
                        out_values[q] = b[i]
                        out_factors[w] = a[i]
                        p += 1
                        q += 1
                        w += 1
            if code in (CREATE, DENSE, ADD_DENSE):
                p = out_istart[k]
            if code != AFFINE:
                w = out_astart[k]
        out_istart[k + 1] = p
        out_vstart[k + 1] = q
        out_astart[k + 1] = w
        for j in range(count):
            touched[order[j]] = False
    return (
        out_op,
        out_factor,
        out_amount,
        fine,
        out_istart,
        out_indices[: out_istart[runs]],
        out_vstart,
        out_values[: out_vstart[runs]],
        out_astart,
        out_factors[: out_astart[runs]],
    )
