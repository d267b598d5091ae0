"""The arithmetic of deltas, over many vectors and many deltas at once.

Theory of operation. Every operation but a deletion acts on each dimension as x -> a*x + b:

    set v     (0, v)          add v     (a, b + v)
    scale f   (f*a, f*b)      offset c  (a, b + c)

So a run of deltas folds into ONE pair for the dimensions nobody named plus overrides for those
somebody did, without knowing the vector it will be applied to. Folding is associative, not
commutative. Assignments are kept apart (a = 0 means exactly b, whatever x is, also infinity), so
folding them is exact to the last bit.

Rounding. `apply_rows` does what the deltas say, one after the other. `merge_runs` rounds in other
places wherever a run both scales and adds: a1*(a0*x + b0) + b1 becomes (a1*a0)*x + (a1*b0 + b1).
Where no step rounds (whole numbers, powers of two, their sums), and for assignments, the two agree
bit for bit. Elsewhere they differ in a dimension by at most

    MERGE_ROUNDING * n * 2**-52 * M

where n is the number of deltas applied and M what the same deltas give with the absolute values of
all numbers in them and in the vector. `tests/laws/test_deltas_rounding.py` tests both statements.

Deltas come as ragged arrays (`DeltaArrays`), so one call handles all vectors of a shard. Only rows
that passed `check_rows` may be applied or merged: an index is used as it stands.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s

__all__ = [
    "MERGE_ROUNDING",
    "DeltaArrays",
    "DeltaVerdict",
    "KernelOp",
    "apply_rows",
    "check_rows",
    "finite_rows",
    "in_memory_order",
    "merge_runs",
]

MERGE_ROUNDING = 3
"""The factor in the bound above. Applying n deltas rounds each term of the result at most 2*n times
on its way, applying what they merge into at most 2*n + 2 times, each time by at most half of 2**-52
of its size: together (2*n + 1) * 2**-52 * M, which is at most 3*n * 2**-52 * M. Smaller, and the
statement is wrong for a single delta; larger, and it says less than is true."""

SMALLEST_NORMAL = 2.2250738585072014e-308
"""A merged factor below this has lost bits, or is 0, which would turn it into an assignment. Runs
that come this low are left as they are."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int8s = NDArray[np.int8]


class KernelOp(IntEnum):
    """What the kernels can do to a vector. An operation names one of these (see operations.py)."""

    CREATE = 0
    """x := values, and the vector exists again."""
    DENSE = 1
    """x := values."""
    SPARSE = 2
    """x[indices] := values."""
    ADD = 3
    """x[indices] += values."""
    ADD_DENSE = 4
    """x += values."""
    SCALE = 5
    """x := factor * x."""
    OFFSET = 6
    """x := x + amount."""
    DELETE = 7
    """A tombstone: only CREATE has an effect behind it."""
    AFFINE = 8
    """x := factor * x + amount; x[indices] := factors * x[indices] + values."""


class DeltaVerdict(IntEnum):
    """What became of a delta: the one list of decisions and reasons, with their sentences.

    The first ones are decided by admission, those from `NO_ID` on by looking at the row alone
    (`check_rows`): such a row can never be used.
    """

    OPEN = 0
    """Usable, and not decided yet."""
    ACCEPTED = 1
    """It joined its chain."""
    DUPLICATE = 2
    """Its id is pending, waiting, or folded and remembered."""
    LATE = 3
    """It belongs before the seal of its chain."""
    WAITING = 4
    """Its parent has not come yet."""
    ORPHAN = 5
    """It waited for its parent beyond the limit."""
    CROWDED = 6
    """Its parent is missing, and as many deltas as allowed wait already."""
    NO_ID = 7
    """The id of the delta or of the vector is null."""
    UNKNOWN_OPERATION = 8
    """The column `op` names no operation."""
    OWN_PARENT = 9
    """It names itself as its parent."""
    NO_TIME = 10
    """Its time is null."""
    BAD_NUMBER = 11
    """Its factor or amount is missing or not finite."""
    ZERO_FACTOR = 12
    """A scale by 0, which would be an assignment in disguise."""
    WRONG_LENGTH = 13
    """A value for every dimension is needed, and there are fewer or more."""
    LENGTHS_DIFFER = 14
    """Indices, values and factors are not of one length."""
    OUT_OF_RANGE = 15
    """An index is negative or beyond the last dimension."""
    DUPLICATE_INDEX = 16
    """An index occurs twice."""
    NOT_FINITE = 17
    """A value or factor is NaN or infinite (or null)."""

    def sentence(self, *, where: int = 0, dims: int = 0, parent: str = "", limit: int = 0) -> str:
        """Why the delta was not admitted, in words.

        Args:
            where: the offending index, length or position.
            dims: the length of the vector.
            parent: the id the delta waited for.
            limit: how many deltas of a vector may wait.

        Example:
            >>> DeltaVerdict.OUT_OF_RANGE.sentence(where=9, dims=2)
            'index 9 out of range for 2 dims'
        """
        return _SENTENCES[self].format(where=where, dims=dims, parent=parent, limit=limit)


_SENTENCES = {
    DeltaVerdict.OPEN: "the chain is full and cannot be compacted",
    DeltaVerdict.ACCEPTED: "accepted",
    DeltaVerdict.DUPLICATE: "duplicate delta id",
    DeltaVerdict.LATE: "late: belongs before deltas that are already folded",
    DeltaVerdict.WAITING: "waits for its parent {parent}",
    DeltaVerdict.ORPHAN: "unknown parent {parent}, waited beyond the limit",
    DeltaVerdict.CROWDED: "unknown parent {parent}, and {limit} deltas of this vector wait already",
    DeltaVerdict.NO_ID: "delta_id or vector_id is missing",
    DeltaVerdict.UNKNOWN_OPERATION: "unknown operation",
    DeltaVerdict.OWN_PARENT: "a delta cannot be its own parent",
    DeltaVerdict.NO_TIME: "time is missing",
    DeltaVerdict.BAD_NUMBER: "factor or amount is missing, NaN or infinite",
    DeltaVerdict.ZERO_FACTOR: "factor 0",
    DeltaVerdict.WRONG_LENGTH: "{where} values for {dims} dims",
    DeltaVerdict.LENGTHS_DIFFER: "{where} indices do not match the number of values or factors",
    DeltaVerdict.OUT_OF_RANGE: "index {where} out of range for {dims} dims",
    DeltaVerdict.DUPLICATE_INDEX: "duplicate index {where}",
    DeltaVerdict.NOT_FINITE: "NaN or infinity at position {where}",
}
"""The sentence of each verdict. Users see these as the reason of a refused row; the reference page
lists them."""


class DeltaArrays(NamedTuple):
    """Deltas as the kernels take them, one entry per row; all arrays are read-only.

    A ragged column is two arrays: row r has the items [start[r], start[r + 1]) of the flat one.
    """

    op: Int8s
    """`KernelOp` of each row."""
    factor: Floats
    """For SCALE and AFFINE; NaN where missing."""
    amount: Floats
    """For OFFSET and AFFINE; NaN where missing."""
    index_start: Int64s
    """Offsets into `indices`, one more than rows."""
    indices: Int32s
    """Named dimensions; -1 for a null item."""
    value_start: Int64s
    """Offsets into `values`, one more than rows."""
    values: Floats
    """Values to set or add; NaN for a null item."""
    factor_start: Int64s
    """Offsets into `factors`, one more than rows."""
    factors: Floats
    """Factors of named dimensions, for AFFINE; NaN for a null item."""


@kernel
def check_rows(
    deltas: DeltaArrays, first: int, last: int, dims: int, verdict: Int8s, where: Int64s
) -> None:
    """Decide which rows can be applied to vectors of length `dims`.

    Args:
        deltas: the rows.
        first: the first row to look at.
        last: one behind the last; threads share the arrays and take separate ranges.
        dims: the length of the vectors.
        verdict: read and written: rows that already have a verdict keep it, others get one (OPEN:
            usable).
        where: written with the offending index, length or position.
    """
    index_start, indices = deltas.index_start, deltas.indices
    value_start, values = deltas.value_start, deltas.values
    factor_start, factors = deltas.factor_start, deltas.factors
    # The last row that named each dimension: finds an index that occurs twice without clearing a
    # table for every row.
    seen = np.full(dims, -1, np.int64)
    for r in range(first, last):
        if verdict[r] != DeltaVerdict.OPEN:
            continue
        code = deltas.op[r]
        wide = value_start[r + 1] - value_start[r]
        if code == KernelOp.SCALE:
            if not np.isfinite(deltas.factor[r]):
                verdict[r] = DeltaVerdict.BAD_NUMBER
            elif deltas.factor[r] == 0.0:
                verdict[r] = DeltaVerdict.ZERO_FACTOR
        elif code == KernelOp.OFFSET:
            if not np.isfinite(deltas.amount[r]):
                verdict[r] = DeltaVerdict.BAD_NUMBER
        elif code in (KernelOp.CREATE, KernelOp.DENSE, KernelOp.ADD_DENSE):
            if wide != dims:
                verdict[r] = DeltaVerdict.WRONG_LENGTH
                where[r] = wide
        elif code in (KernelOp.SPARSE, KernelOp.ADD, KernelOp.AFFINE):
            affine = code == KernelOp.AFFINE
            named = index_start[r + 1] - index_start[r]
            # An affine row needs one factor per index as well; the others have none.
            if named != wide or (affine and factor_start[r + 1] - factor_start[r] != wide):
                verdict[r] = DeltaVerdict.LENGTHS_DIFFER
                where[r] = named
            if affine and not (
                np.isfinite(deltas.factor[r])
                and np.isfinite(deltas.amount[r])
                and deltas.factor[r] != 0.0
            ):
                verdict[r] = DeltaVerdict.BAD_NUMBER
            for k in range(index_start[r], index_start[r + 1]):
                if verdict[r] != DeltaVerdict.OPEN:
                    break
                i = indices[k]
                if i < 0 or i >= dims:
                    verdict[r] = DeltaVerdict.OUT_OF_RANGE
                    where[r] = i
                elif seen[i] == r:
                    verdict[r] = DeltaVerdict.DUPLICATE_INDEX
                    where[r] = i
                else:
                    seen[i] = r
        if verdict[r] == DeltaVerdict.OPEN:
            for k in range(value_start[r], value_start[r + 1]):
                if not np.isfinite(values[k]):
                    verdict[r] = DeltaVerdict.NOT_FINITE
                    where[r] = k - value_start[r]
                    break
            for k in range(factor_start[r], factor_start[r + 1]):
                if not np.isfinite(factors[k]):
                    verdict[r] = DeltaVerdict.NOT_FINITE
                    where[r] = k - factor_start[r]
                    break


@kernel
def apply_rows(
    deltas: DeltaArrays, rows: Int64s, slot: Int64s, out: Floats, deleted: Bools
) -> None:
    """Apply rows to vectors, in place and in the order given.

    Args:
        deltas: all rows; those applied must have passed `check_rows` for this number of dimensions.
        rows: the rows to apply.
        slot: the row of `out` each is applied to.
        out: a matrix, one vector per row.
        deleted: the tombstone of each vector. DELETE sets it, CREATE clears it, and under it every
            other operation is skipped.
    """
    index_start, indices = deltas.index_start, deltas.indices
    value_start, values = deltas.value_start, deltas.values
    factor_start, factors = deltas.factor_start, deltas.factors
    dims = out.shape[1]
    named = np.full(dims, -1, np.int64)
    for k in range(len(rows)):
        r = rows[k]
        s = slot[k]
        code = deltas.op[r]
        if code == KernelOp.CREATE:
            deleted[s] = False
        if code == KernelOp.DELETE:
            deleted[s] = True
            continue
        if deleted[s]:
            continue
        x = out[s]
        v = value_start[r]
        if code == KernelOp.SPARSE:
            for j in range(index_start[r], index_start[r + 1]):
                x[indices[j]] = values[v]
                v += 1
        elif code in (KernelOp.CREATE, KernelOp.DENSE):
            for i in range(dims):
                x[i] = values[v + i]
        elif code == KernelOp.ADD:
            for j in range(index_start[r], index_start[r + 1]):
                x[indices[j]] += values[v]
                v += 1
        elif code == KernelOp.ADD_DENSE:
            for i in range(dims):
                x[i] += values[v + i]
        elif code == KernelOp.SCALE:
            f = deltas.factor[r]
            for i in range(dims):
                x[i] *= f
        elif code == KernelOp.OFFSET:
            c = deltas.amount[r]
            for i in range(dims):
                x[i] += c
        else:
            f = deltas.factor[r]
            c = deltas.amount[r]
            a = factor_start[r]
            for j in range(index_start[r], index_start[r + 1]):
                i = indices[j]
                named[i] = k
                if factors[a] == 0.0:
                    x[i] = values[v]
                else:
                    x[i] = factors[a] * x[i] + values[v]
                a += 1
                v += 1
            # A run that mixed sets and adds is the identity on the rest: then only the named
            # dimensions are touched.
            if f != 1.0 or c != 0.0:
                for i in range(dims):
                    if named[i] != k:
                        x[i] = f * x[i] + c


@kernel
def in_memory_order(rows: Int64s, slot: Int64s, total: int) -> tuple[Int64s, Int64s]:
    """Reorder rows so that memory is read forwards, without changing what applying them does.

    Reading rows in order and vectors here and there is several times as fast as the other way
    round: a vector is one place in memory, a row is many.

    Args:
        rows: rows to apply; those of one slot must be neighbours, and keep their order.
        slot: the slot of each.
        total: how many rows the source has; every entry of `rows` is below it.

    Returns:
        `rows` and `slot`, rearranged alike.
    """
    # A row that must wait for one that lies behind it comes directly after that one.
    head = np.full(total, -1, np.int32)
    top = 0
    for k in range(len(rows)):
        if k == 0 or slot[k] != slot[k - 1] or rows[k] > top:
            top = rows[k]
            head[top] = k
    new_rows, new_slot = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    n = 0
    for r in range(total):
        k = head[r]
        if k < 0:
            continue
        s = slot[k]
        while True:
            new_rows[n] = rows[k]
            new_slot[n] = s
            n += 1
            k += 1
            if k == len(rows) or slot[k] != s or rows[k] > r:
                break
    return new_rows, new_slot


@kernel
def finite_rows(vectors: Floats) -> Bools:
    """Per vector: whether every value is finite. Stops at the first that is not."""
    good = np.ones(vectors.shape[0], np.bool_)
    for s in range(vectors.shape[0]):
        for i in range(vectors.shape[1]):
            if not np.isfinite(vectors[s, i]):
                good[s] = False
                break
    return good


@kernel
def _scaled(f: float, a: float) -> tuple[float, bool]:
    """f*a, and whether the product kept its meaning.

    It has not where it under- or overflowed: a factor of 0 would turn a scale into an assignment.
    An `a` of 0 stays an assignment whatever `f` is.
    """
    product = f * a
    size = abs(product)
    return product, a == 0.0 or (np.isfinite(size) and size >= SMALLEST_NORMAL)


@kernel
def merge_runs(
    deltas: DeltaArrays, rows: Int64s, run_start: Int64s, run_stop: Int64s, dims: int, room: int
) -> tuple[DeltaArrays, Bools]:
    """Fold each run of deltas into one delta, without a vector to apply them to.

    Keeps one pair (a, b) per named dimension and one for the rest, see the head of the module, and
    writes the result in the plainest operation that means the same (a run of adds stays an add).

    Args:
        deltas: all rows; those merged must have passed `check_rows`.
        rows: row numbers in chain order.
        run_start: where in `rows` each run begins.
        run_stop: one behind its end; at least one row per run.
        dims: the length of the vectors.
        room: how many entries to reserve for the named dimensions of all runs together. Too small a
            number writes beyond the arrays.

    Returns:
        One delta per run, and whether it may be used: a run whose factors leave the range of normal
        floats, or whose sums are not finite, must be kept unmerged.
    """
    index_start, indices = deltas.index_start, deltas.indices
    value_start, values = deltas.value_start, deltas.values
    factor_start, factors = deltas.factor_start, deltas.factors
    runs = len(run_start)
    out_op = np.zeros(runs, np.int8)
    out_factor = np.ones(runs, np.float64)
    out_amount = np.zeros(runs, np.float64)
    fine = np.ones(runs, np.bool_)
    out_index_start = np.zeros(runs + 1, np.int64)
    out_value_start = np.zeros(runs + 1, np.int64)
    out_factor_start = np.zeros(runs + 1, np.int64)
    out_indices = np.empty(room, np.int32)
    out_values = np.empty(room, np.float64)
    out_factors = np.empty(room, np.float64)
    # The pair of each dimension that was named (`touched`, listed in `order`), and of all others.
    a = np.ones(dims, np.float64)
    b = np.zeros(dims, np.float64)
    touched = np.zeros(dims, np.bool_)
    order = np.empty(dims, np.int64)
    # The last affine delta that named each dimension: its own pair replaces the common one there.
    stamp = np.full(dims, -1, np.int64)
    for k in range(runs):
        rest_a = 1.0
        rest_b = 0.0
        count = 0
        created = False
        deleted = False
        good = True
        for m in range(run_start[k], run_stop[k]):
            r = rows[m]
            code = deltas.op[r]
            v = value_start[r]
            if code == KernelOp.DELETE:
                deleted = True
                created = False
                for j in range(count):
                    touched[order[j]] = False
                count = 0
                continue
            # Behind a tombstone nothing but a create counts.
            if deleted and code != KernelOp.CREATE:
                continue
            if code in (KernelOp.CREATE, KernelOp.DENSE):
                if code == KernelOp.CREATE:
                    created = True
                    deleted = False
                for i in range(dims):
                    touched[i] = True
                    order[i] = i
                    a[i] = 0.0
                    b[i] = values[v + i]
                count = dims
                rest_a = 1.0
                rest_b = 0.0
            elif code in (KernelOp.SPARSE, KernelOp.ADD):
                for j in range(index_start[r], index_start[r + 1]):
                    i = indices[j]
                    if not touched[i]:
                        touched[i] = True
                        order[count] = i
                        count += 1
                        a[i] = rest_a
                        b[i] = rest_b
                    if code == KernelOp.SPARSE:
                        a[i] = 0.0
                        b[i] = values[v]
                    else:
                        b[i] += values[v]
                    v += 1
            elif code == KernelOp.ADD_DENSE:
                for i in range(dims):
                    if not touched[i]:
                        touched[i] = True
                        order[count] = i
                        count += 1
                        a[i] = rest_a
                        b[i] = rest_b
                    b[i] += values[v + i]
            else:
                f = deltas.factor[r] if code != KernelOp.OFFSET else 1.0
                c = deltas.amount[r] if code != KernelOp.SCALE else 0.0
                if code == KernelOp.AFFINE:
                    q = factor_start[r]
                    for j in range(index_start[r], index_start[r + 1]):
                        i = indices[j]
                        stamp[i] = m
                        if not touched[i]:
                            touched[i] = True
                            order[count] = i
                            count += 1
                            a[i] = rest_a
                            b[i] = rest_b
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
                    if code != KernelOp.AFFINE or stamp[i] != m:
                        a[i], kept = _scaled(f, a[i])
                        good = good and kept
                        b[i] = f * b[i] + c
                rest_a, kept = _scaled(f, rest_a)
                good = good and kept
                rest_b = f * rest_b + c
        # Say it in the plainest operation that means the same.
        sets = True
        adds = True
        for j in range(count):
            i = order[j]
            sets = sets and a[i] == 0.0
            adds = adds and a[i] == 1.0
            good = good and np.isfinite(b[i])
        plain = rest_a == 1.0 and rest_b == 0.0
        whole = count == dims
        good = good and (whole or np.isfinite(rest_b))
        if deleted:
            code = np.int8(KernelOp.DELETE)
            good = True
        elif created:
            code = np.int8(KernelOp.CREATE)
        elif whole and sets:
            code = np.int8(KernelOp.DENSE)
        elif whole and adds:
            code = np.int8(KernelOp.ADD_DENSE)
        elif count and plain and sets:
            code = np.int8(KernelOp.SPARSE)
        elif count and plain and adds:
            code = np.int8(KernelOp.ADD)
        elif count == 0 and rest_a == 1.0:
            code = np.int8(KernelOp.OFFSET)
        elif count == 0 and rest_b == 0.0:
            code = np.int8(KernelOp.SCALE)
        else:
            code = np.int8(KernelOp.AFFINE)
        out_op[k] = code
        fine[k] = good
        p = out_index_start[k]
        q = out_value_start[k]
        w = out_factor_start[k]
        if code == KernelOp.AFFINE:
            out_factor[k] = rest_a if not whole else 1.0
            out_amount[k] = rest_b if not whole else 0.0
        elif code == KernelOp.SCALE:
            out_factor[k] = rest_a
        elif code == KernelOp.OFFSET:
            out_amount[k] = rest_b
        if code not in (KernelOp.DELETE, KernelOp.SCALE, KernelOp.OFFSET):
            if count * 8 < dims:  # few: sorting them is less than looking at every dimension
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
            if code in (KernelOp.CREATE, KernelOp.DENSE, KernelOp.ADD_DENSE):
                p = out_index_start[k]
            if code != KernelOp.AFFINE:
                w = out_factor_start[k]
        out_index_start[k + 1] = p
        out_value_start[k + 1] = q
        out_factor_start[k + 1] = w
        for j in range(count):
            touched[order[j]] = False
    merged = DeltaArrays(
        out_op,
        out_factor,
        out_amount,
        out_index_start,
        out_indices[: out_index_start[runs]],
        out_value_start,
        out_values[: out_value_start[runs]],
        out_factor_start,
        out_factors[: out_factor_start[runs]],
    )
    return merged, fine
