"""Features: which columns of the rows become which inputs and outputs of a policy.

A feature is a *vector* (numbers, or lists of numbers of one length, of one or several columns) or
an *image* (the bytes of a JPEG or PNG, or a struct with `height`, `width`, `encoding` and `data` as
ROS images have it, see `images.pixels`). Columns are named by paths: `joint.position` is the field
`position` of the struct `joint`, which `align` makes of the topic of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.arrow import column_of_path, type_of_path
from tidegate.core.checks import names
from tidegate.errors import ConfigError

__all__ = ["Feature", "features_of", "holds_bytes"]


@dataclass(frozen=True)
class Feature:
    """One feature of a dataset.

    Example:
        >>> rows = pa.record_batch({"joint": [{"position": [0.5, 1.0]}], "gripper": [3]})
        >>> state = Feature("observation.state", ("joint.position", "gripper"))
        >>> values, reason = state.vectors(rows)
        >>> values.tolist(), reason
        ([[0.5, 1.0, 3.0]], [None])
    """

    name: str
    """The name in the dataset, such as `observation.state` or `observation.images.front`."""
    paths: tuple[str, ...]
    """The columns it is made of; a vector may have several, which are put behind each other."""
    image: bool = False
    """Whether it is an image."""

    def vectors(self, rows: pa.RecordBatch) -> tuple[NDArray[np.float32], list[str | None]]:
        """The values as an array of (rows, length), and why a row has none.

        Args:
            rows: The rows.

        Returns:
            float32 values (0 where there is none), and per row None or the reason: a null, or a
            list of another length than that of the first row.
        """
        parts: list[NDArray[np.float32]] = []
        reasons: list[str | None] = [None] * rows.num_rows
        for path in self.paths:
            column = column_of_path(rows, path)
            made, wrong = _numbers(column)
            for row in np.flatnonzero(wrong).tolist():
                reasons[row] = reasons[row] or f"{path} is {_said(column[row].as_py())}"
            parts.append(made)
        return np.concatenate(parts, axis=1), reasons


def _said(value: Any) -> str:
    """A value that does not fit, in a few words."""
    if value is None:
        return "null"
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)


def _numbers(column: pa.Array) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A column of numbers or lists of numbers as (rows, length), and which rows do not fit."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
        kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        null = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        values = column.cast(pa.float32(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(values, np.float32)[:, None], null
    lengths = np.asarray(pc.list_value_length(column).fill_null(-1).to_numpy(), np.int64)
    there = lengths[lengths > 0]
    length = int(there[0]) if len(there) else 0
    inside = column.filter(pa.array(lengths == length)).flatten()
    wrong = lengths != length if length else np.ones(len(lengths), np.bool_)
    out = np.zeros((len(lengths), length), np.float32)
    flat = inside.cast(pa.float32(), safe=False)
    null = np.asarray(flat.is_null().to_numpy(zero_copy_only=False), np.bool_)
    out[~wrong] = (
        flat.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, max(length, 1))[:, :length]
    )
    if null.any():
        wrong[np.flatnonzero(~wrong)[null.reshape(-1, length).any(axis=1)]] = True
    return out, wrong


def features_of(given: Mapping[str, str | Sequence[str]], rows: pa.Schema) -> tuple[Feature, ...]:
    """The features of a dataset, checked against the columns of its rows.

    Args:
        given: Per feature its column, or several: `{"observation.state": "joint.position"}`.
        rows: The schema of the rows.

    Raises:
        ConfigError: There is none, a name has a slash (LeRobot makes paths of names), a column is
            missing, or it is neither a number, a list of numbers, nor an image.

    Example:
        >>> rows = pa.schema({"q": pa.list_(pa.float64()), "camera": pa.binary()})
        >>> [f.image for f in features_of({"observation.state": "q", "image": "camera"}, rows)]
        [False, True]
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError("features", given, 'must map names: {"observation.state": "joint.q"}')
    out = []
    for name, columns in given.items():
        field = f"features[{name!r}]"
        paths = names(field, columns, empty=False)
        if "/" in name:
            raise ConfigError(field, name, "must not contain a slash")
        kinds = []
        for path in paths:
            kind = type_of_path(rows, path)
            if kind is None:
                have = ", ".join(rows.names)
                raise ConfigError(field, path, f"must be a column of the rows: {have}")
            kinds.append(_kind_of(field, path, kind))
        if "image" in kinds and len(kinds) > 1:
            raise ConfigError(field, list(paths), "an image is a single column")
        out.append(Feature(str(name), paths, kinds[0] == "image"))
    return tuple(out)


def _kind_of(field: str, path: str, kind: pa.DataType) -> str:
    """`vector` or `image`; a ConfigError for anything else."""
    has = {f.name for f in kind} if pa.types.is_struct(kind) else set()
    if holds_bytes(kind) or {"data", "image"} & has:
        return "image"
    inside = kind.value_type if _holds_list(kind) else kind
    if pa.types.is_integer(inside) or pa.types.is_floating(inside) or pa.types.is_boolean(inside):
        return "vector"
    raise ConfigError(field, path, f"must be numbers, lists of numbers or an image, and is {kind}")


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether the values of a type are bytes.

    >>> holds_bytes(pa.binary_view()), holds_bytes(pa.string())
    (True, False)
    """
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _holds_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any kind."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
