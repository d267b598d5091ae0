"""Values between messages: interpolation and aggregates over Arrow columns.

Interpolation works on float64. With share s = (t - t0) / (t1 - t0), a number becomes
v0 + (v1 - v0) * s; where s is 0 it is v0 itself, so that infinities and NaN of the other message do
not reach it. A null on either side gives null. Lists are interpolated element by element where both
have the same length, structs field by field.

Integers above 2**53 lose their low digits by the cast to float64. What cannot be interpolated
(text, booleans, timestamps) is taken from the message before the point, never invented.

Public functions come in pairs: `blend` and `aggregate` compute values, `blend_type` and
`aggregate_type` say which type these will have, before there is any row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s

__all__ = ["aggregate", "aggregate_type", "blend", "blend_type", "value_difference"]

Floats = NDArray[np.float64]


def _is_numeric(kind: pa.DataType) -> bool:
    """Whether a type can be interpolated: integers and floats, but not booleans, decimals or
    times."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list, large list or list of fixed size."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_quaternion(kind: pa.DataType) -> bool:
    """A struct of x, y, z, w, or a list of numbers (whose length is checked value by value)."""
    if pa.types.is_struct(kind):
        return {field.name for field in kind} == {"x", "y", "z", "w"} and all(
            _is_numeric(field.type) for field in kind
        )
    return _is_list(kind) and _is_numeric(kind.value_type)


def blend_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column after interpolation: numbers become float64, also inside.

    Args:
        kind: The type of the input column.

    Example:
        >>> blend_type(pa.int32()), blend_type(pa.string())
        (DataType(double), DataType(string))
    """
    if _is_numeric(kind):
        return pa.float64()
    if _is_list(kind) and _is_numeric(kind.value_type):
        return pa.list_(pa.float64())
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, blend_type(f.type)) for f in kind])
    return kind


def blend(left: pa.Array, right: pa.Array, share: Floats, *, spherical: bool = False) -> pa.Array:
    """The values at `share` of the way from `left` to `right`, row by row.

    Args:
        left: The values at or before each point; null where there is none.
        right: The values after it, of the same type.
        share: How far each point is on the way, from 0 to 1.
        spherical: Interpolate quaternions along the shorter arc.

    Returns:
        An array of `blend_type(left.type)`. What is not a number is taken from `left`.
    """
    kind = left.type
    if spherical and _is_quaternion(kind):
        return _slerp_column(left, right, share)
    if _is_numeric(kind):
        return _masked(
            _lerp(_as_float64(left), _as_float64(right), share), _either_null(left, right)
        )
    if _is_list(kind) and _is_numeric(kind.value_type):
        return _blend_lists(left, right, share)
    if pa.types.is_struct(kind):
        null = _either_null(left, right)
        fields = [
            blend(
                pc.struct_field(left, [n]), pc.struct_field(right, [n]), share, spherical=spherical
            )
            for n in range(kind.num_fields)
        ]
        return pa.StructArray.from_arrays(
            fields, fields=list(blend_type(kind)), mask=pa.array(null) if null.any() else None
        )
    return left


def value_difference(left: pa.Array, right: pa.Array) -> pa.Array:
    """`right` minus `left`, row by row: numbers as float64, lists and structs inside.

    Args:
        left: The values to subtract.
        right: The values to subtract them from, of the same type.

    Returns:
        An array of `blend_type(left.type)`; null where either is, or where lists differ in length.
        What is not a number is taken from `right`.

    Example:
        >>> value_difference(pa.array([[1, 2], [1]]), pa.array([[4, 8], [1, 2]])).to_pylist()
        [[3.0, 6.0], None]
    """
    kind = left.type
    null = _either_null(left, right)
    if _is_numeric(kind):
        with np.errstate(invalid="ignore", over="ignore"):
            return _masked(_as_float64(right) - _as_float64(left), null)
    if _is_list(kind) and _is_numeric(kind.value_type):
        starts, lengths, values = _list_parts(left)
        others, other_lengths, other_values = _list_parts(right)
        null = null | (lengths != other_lengths)
        lengths = np.where(null, 0, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        first = values.take(pa.array(np.repeat(starts, lengths) + inside))
        second = other_values.take(pa.array(np.repeat(others, lengths) + inside))
        made = value_difference(first, second)
        mask = pa.array(null) if null.any() else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, mask=mask)
    if pa.types.is_struct(kind):
        fields = [
            value_difference(pc.struct_field(left, [n]), pc.struct_field(right, [n]))
            for n in range(kind.num_fields)
        ]
        mask = pa.array(null) if null.any() else None
        return pa.StructArray.from_arrays(fields, fields=list(blend_type(kind)), mask=mask)
    return right


def _lerp(left: Floats, right: Floats, share: Floats) -> Floats:
    """Interpolate linearly, element by element; where the share is 0, exactly the left value."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(share == 0, left, left + (right - left) * share)


def _as_float64(column: pa.Array) -> Floats:
    """A column as float64 for numpy; nulls become NaN, so callers mask them separately."""
    values = column.cast(pa.float64(), safe=False)
    return np.asarray(values.fill_null(float("nan")).to_numpy(zero_copy_only=False), np.float64)


def _either_null(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    """Per row: whether one of the two values is null, so that there is nothing to interpolate."""
    null = pc.or_(left.is_null(), right.is_null())
    return np.asarray(null.to_numpy(zero_copy_only=False), np.bool_)


def _masked(values: Floats, null: NDArray[np.bool_]) -> pa.Array:
    """Floats as an Arrow array, null where `null` is set; no mask is stored where nothing is
    null."""
    return pa.array(values, pa.float64(), mask=null if null.any() else None)


def _list_parts(column: pa.Array) -> tuple[Int64s, Int64s, pa.Array]:
    """Where each list begins, its length (0 for null), and the values of all lists."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lengths = np.asarray(pc.list_value_length(column).fill_null(0).to_numpy(), np.int64)
    starts = np.asarray(column.offsets.to_numpy(), np.int64)[:-1]
    return starts, lengths, column.values


def _blend_lists(left: pa.Array, right: pa.Array, share: Floats) -> pa.Array:
    """Element by element where both lists have the same length, else the left one."""
    starts, lengths, values = _list_parts(left)
    others, other_lengths, other_values = _list_parts(right)
    null = _either_null(left, right)
    lengths = np.where(null, 0, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    first = values.take(pa.array(np.repeat(starts, lengths) + inside))
    alike = np.repeat(lengths == other_lengths, lengths)
    position = np.where(alike, np.repeat(others, lengths) + inside, 0)
    second = other_values.take(pa.array(position, mask=~alike))
    weight = np.where(alike, np.repeat(share, lengths), 0.0)
    empty = np.asarray(first.is_null().to_numpy(zero_copy_only=False), np.bool_)
    gone = np.asarray(second.is_null().to_numpy(zero_copy_only=False), np.bool_) & alike
    made = _masked(_lerp(_as_float64(first), _as_float64(second), weight), empty | gone)
    mask = pa.array(null) if null.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, mask=mask)


def _quaternions(column: pa.Array) -> tuple[Floats, NDArray[np.bool_]]:
    """An array of (n, 4) and which rows are no quaternion of four numbers."""
    if pa.types.is_struct(column.type):
        parts = [_as_float64(pc.struct_field(column, name)) for name in "xyzw"]
        null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        out = np.stack(parts, axis=1)
        return out, null | np.isnan(out).any(axis=1)
    starts, lengths, values = _list_parts(column)
    bad = lengths != 4
    position = np.where(bad[:, None], 0, starts[:, None] + np.arange(4))
    mask = np.repeat(bad, 4)
    taken = values.take(pa.array(position.ravel(), mask=mask))
    out = _as_float64(taken).reshape(-1, 4)
    return out, bad | np.isnan(out).any(axis=1)


def _slerp_column(left: pa.Array, right: pa.Array, share: Floats) -> pa.Array:
    """Interpolate a column of quaternions; the layout of the input (struct or list) is kept.

    A row where either side is not a quaternion of four numbers becomes null. Where the share is 0
    the left value is taken as it is, so that a message exactly at the point is not renormalised.
    """
    first, no_first = _quaternions(left)
    second, no_second = _quaternions(right)
    null = no_first | no_second
    made = _slerp(first, second, share)
    made = np.where((share == 0)[:, None], first, made)
    mask = pa.array(null) if null.any() else None
    if pa.types.is_struct(left.type):
        parts = {name: pa.array(made[:, k], pa.float64()) for k, name in enumerate("xyzw")}
        fields = list(blend_type(left.type))
        return pa.StructArray.from_arrays([parts[f.name] for f in fields], fields=fields, mask=mask)
    offsets = np.concatenate([[0], np.cumsum(np.where(null, 0, 4))])
    flat = pa.array(made[~null].ravel(), pa.float64())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=mask)


NEARLY_PARALLEL = 1 - 1e-9
"""Cosine above which sin(angle) loses digits: a normalised straight line is then exact to 1e-10."""


def _slerp(first: Floats, second: Floats, share: Floats) -> Floats:
    """Spherical interpolation of unit quaternions along the shorter arc.

    q and -q are the same rotation: where the cosine is negative, the second one is negated, which
    makes the arc the shorter one. Nearly parallel ones are interpolated on a straight line and
    normalised.

    Args:
        first: Unit quaternions (x, y, z, w), shape (n, 4).
        second: Likewise.
        share: How far each row is on the way, from 0 to 1.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.einsum("ij,ij->i", first, second)
        second = np.where((cosine < 0)[:, None], -second, second)
        cosine = np.minimum(np.abs(cosine), 1.0)
        angle = np.arccos(cosine)
        near = cosine > NEARLY_PARALLEL
        scale = np.where(near, 1.0, np.sin(angle))
        a = np.where(near, 1 - share, np.sin((1 - share) * angle) / scale)
        b = np.where(near, share, np.sin(share * angle) / scale)
        made = a[:, None] * first + b[:, None] * second
        norm = np.linalg.norm(made, axis=1, keepdims=True)
        return np.asarray(np.where(near[:, None], made / norm, made), np.float64)


def aggregate_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column after an aggregate: numbers become float64; else the newest value."""
    return pa.float64() if _is_numeric(kind) else kind


MEAN, SMALLEST, LARGEST = range(3)
"""The aggregates as `_fold_spans` tells them apart."""
_FUNCTIONS = {"mean": MEAN, "min": SMALLEST, "max": LARGEST}


def aggregate(
    name: str, take: Callable[[Int64s], pa.Array], kind: pa.DataType, spans: tuple[Int64s, Int64s]
) -> pa.Array:
    """One value per span of messages.

    Args:
        name: `mean`, `min` or `max`.
        take: Gives the column at positions.
        kind: The type of the column.
        spans: First position and end of each span; empty spans give null.

    Returns:
        An array of `aggregate_type(kind)`; nulls and NaN in a span are left out.
    """
    begin, end = spans
    if not _is_numeric(kind):
        return take(np.where(end > begin, end - 1, -1))
    low, high = (int(begin.min()), int(end.max())) if len(begin) else (0, 0)
    values = _as_float64(take(np.arange(low, high)))
    out = np.full(len(begin), np.nan)
    _fold_spans(values, begin - low, end - low, _FUNCTIONS[name], out)
    return _masked(out, np.isnan(out))


@kernel
def _fold_spans(values: Floats, begin: Int64s, end: Int64s, function: int, out: Floats) -> None:
    """Fold each span of `values` into `out`; a span without a number leaves its entry unchanged.

    Args:
        values: The numbers, NaN where there is none.
        begin: First position of each span.
        end: Position behind its last value.
        function: `MEAN`, `SMALLEST` or `LARGEST`.
        out: Filled, one entry per span.
    """
    for span in range(len(begin)):
        count = 0
        total = 0.0
        for position in range(begin[span], end[span]):
            value = values[position]
            if np.isnan(value):
                continue
            if count == 0:
                total = value
            elif function == MEAN:
                total += value
            elif function == SMALLEST:
                total = min(total, value)
            else:
                total = max(total, value)
            count += 1
        if count > 0:
            out[span] = total / count if function == MEAN else total
