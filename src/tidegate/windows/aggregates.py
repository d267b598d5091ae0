"""What is worked out per window and group, and the accumulators it is worked out with.

`count sum mean min max first last` of numbers, booleans and times are kept up to date as rows
arrive; no row is buffered for them. So are `approx_quantile` and a `Fold` of your own. `quantile`,
`top`, every further
aggregation that Arrow knows (`stddev`, `count_distinct`, ...) and plain functions see the rows of a
window when it emits, which are kept until then.

How to read this file: `Aggregate` is what users write; an `AggregateFunction` is what a function
name stands for (a new one is one class with `@aggregate_function("its_name")`); `SlotPlan` says
which columns a set of aggregates needs; `Accumulators` holds the numbers of all slots of one call.

A slot is one (pane, group). Only numbers enter the kernels; key, group, first and last columns
follow by row number: numbers below `shift` are slots that the state held, the rest are rows of the
collection. Rows reach their slots in one of two ways, and `Accumulators.add` takes either: as
`Steps` (runs of rows) or as `RowSlots` (the slot of every row).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.checks import column_name, int_in, number_in
from tidegate.core.columns import LANE, SERIAL
from tidegate.core.numba import as_readonly
from tidegate.core.outcomes import Int32s, Int64s
from tidegate.core.parallel import MANY, each
from tidegate.errors import ConfigError
from tidegate.windows.held import HeldSlots
from tidegate.windows.kernels.aggregate_rows import scatter_floats, scatter_ints, scatter_rows
from tidegate.windows.kernels.aggregate_runs import (
    SlotRows,
    Sums,
    Values,
    fold_floats,
    fold_ints,
    fold_rows,
    quantiles,
)
from tidegate.windows.kernels.layout import Step, Steps

__all__ = [
    "AGGREGATE_FUNCTIONS",
    "Aggregate",
    "AggregateFunction",
    "Fold",
    "QuantileSketch",
    "aggregate_function",
    "parse_aggregates",
]

_MAX, _MIN = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_NO_NULLS = as_readonly(np.zeros(0, np.bool_))


# -- what users write -----------------------------------------------------------------------------


class Fold:
    """An aggregate of your own that is kept up to date without buffering rows. Subclass it.

    The states of panes that are put together (sliding windows, sessions that merge) are merged, so
    `merge(add(init(), a), add(init(), b))` must mean the same as `add(add(init(), a), b)`.

    >>> class SumOfSquares(Fold):
    ...     type = state_type = pa.float64()
    ...     def init(self): return 0.0
    ...     def add(self, state, values): return state + sum(v * v for v in values.to_pylist())
    ...     def merge(self, left, right): return left + right
    >>> Aggregate(SumOfSquares(), "v").name
    'SumOfSquares'
    """

    type: pa.DataType
    """The Arrow type of the result."""
    state_type: pa.DataType
    """The Arrow type of a state: it is part of snapshots, so it must be plain data."""

    def init(self) -> Any:
        """The state of a window without rows."""
        raise NotImplementedError

    def add(self, state: Any, values: pa.Array) -> Any:
        """The state after further values, in the order of arrival.

        Args:
            state: made by `init`, `add` or `merge`.
            values: a run of values of the column, nulls included.
        """
        raise NotImplementedError

    def merge(self, left: Any, right: Any) -> Any:
        """The state of two sets of rows together; those of `left` came first.

        Args:
            left: a state.
            right: another one.
        """
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        """The result, of the Arrow type `type`. By default the state itself.

        Args:
            state: of a whole pane and group.
        """
        return state

    def is_state(self, state: Any) -> bool:
        """Whether the other methods can go on with a state out of a snapshot. Called once for each
        when one is restored; False refuses the snapshot with a StateError. By default every value
        of the type is taken, null included.

        Args:
            state: a value of `state_type`, or None.
        """
        return True


@dataclass(frozen=True)
class Aggregate:
    """One column of the result: a function of one input column, by name or your own.

    >>> Aggregate("quantile", "speed", q=0.99).column
    'speed'
    """

    function: str | Fold | Callable[[pa.Array], Any] = field(repr=False)
    """`count`, `sum`, `mean`, `min`, `max`, `first`, `last`, `quantile` and `approx_quantile` (with
    `q`), `top` (with `n`), any other name
    of an Arrow group aggregation; a `Fold`; or a function from an Arrow array (the values of one
    window and group, sorted by time) to one value of the Arrow type `type`."""
    column: str | None = None
    """The input column. None is for `count` only: it then counts rows, not values."""
    q: float | None = None
    """The quantile, from 0 to 1; for `quantile` and `approx_quantile` only."""
    type: pa.DataType | None = None
    """The Arrow type of the result; for a function of your own only, and necessary there."""
    name: str = ""
    """How settings and snapshots call it; the function's name by default."""
    n: int | None = field(default=None, repr=False)
    """How many values; for `top` only, at least 1."""
    by: str | None = field(default=None, repr=False)
    """For `top`: the column that decides which rows are greatest. None: `column` itself."""

    def __post_init__(self) -> None:
        what = self.function
        label = what if isinstance(what, str) else getattr(what, "__qualname__", "")
        if isinstance(what, Fold):
            label = what.__class__.__name__ + getattr(what, "variant", "")
            object.__setattr__(self, "type", self.type or getattr(what, "type", None))
        if what == "top":  # settings and snapshots show the name, so it says everything
            label = f"top({self.n})" if self.by is None else f"top({self.n}, by {self.by})"
        object.__setattr__(self, "name", self.name or label or "function")
        if not isinstance(what, str):
            if not isinstance(what, Fold) and not callable(what):
                raise ConfigError("function", what, "must be a name or a function")
            if self.type is None:
                raise ConfigError("type", None, "must be given for a function of your own")
            if isinstance(what, Fold) and not hasattr(what, "state_type"):
                raise ConfigError("state_type", None, f"must be given by {label}")
        if isinstance(what, str) and what != "approx_quantile" and not _is_known(what):
            known = sorted((*AGGREGATE_FUNCTIONS, "approx_quantile"))
            text = f"must be one of {', '.join(known)}, or an aggregation of Arrow's"
            raise ConfigError("function", what, text)
        if not isinstance(self.type, pa.DataType | None):
            raise ConfigError("type", self.type, "must be a type of Arrow, such as pa.float64()")
        column_name("column", self.column)
        column_name("by", self.by)
        if self.column is None and what != "count":
            raise ConfigError("column", None, f"must be given for {label}")
        if what in ("quantile", "approx_quantile"):
            number_in("q", self.q, 0, 1)
        elif self.q is not None:
            raise ConfigError("q", self.q, "is only for a quantile")
        if what == "top":
            int_in("n", self.n, 1)
        elif self.n is not None or self.by is not None:
            raise ConfigError("n" if self.by is None else "by", self.n or self.by, "is for top")

    @property
    def implementation(self) -> AggregateFunction:
        """What carries it out."""
        if isinstance(self.function, Fold):
            return UserFold(self.function)
        if self.function == "approx_quantile":
            assert self.q is not None
            return UserFold(QuantileSketch(self.q))
        if not isinstance(self.function, str):
            return UserFunction(self.function, self.type)
        return AGGREGATE_FUNCTIONS.get(self.function) or ArrowFunction(self.function)

    def is_incremental(self, rows: pa.Schema) -> bool:
        """Whether it is kept up to date without the rows.

        Args:
            rows: the schema of the rows.
        """
        kind = None if self.column is None else column_type(rows, self.column)
        return self.implementation.is_incremental(kind)

    def result_type(self, rows: pa.Schema) -> pa.DataType:
        """The exact type of the result column.

        Args:
            rows: the schema of the rows.

        Raises:
            ConfigError: there is no such column, or the function has no meaning for its type.
        """
        kind = None if self.column is None else column_type(rows, self.column)
        if self.by is not None:
            column_type(rows, self.by)
        if self.function == "approx_quantile" and not is_number(kind):
            text = f"must be of numbers, not {kind}"
            raise ConfigError("aggregates", f"approx_quantile({self.column})", text)
        return self.implementation.result_type(kind, self.column)


def parse_aggregates(given: object) -> tuple[tuple[str, Aggregate], ...]:
    """Names and aggregates, from a mapping such as `{"n": "count", "mean_v": ("mean", "v")}`.

    Args:
        given: a mapping or pairs of a name and a function name, a tuple of the arguments of
            `Aggregate`, or an `Aggregate`.

    Raises:
        ConfigError: anything else, or a name that is given twice.

    >>> parse_aggregates({"n": "count"})[0][0]
    'n'
    """
    if given is None:
        return ()
    items = given.items() if isinstance(given, Mapping) else given
    if not isinstance(items, tuple) and not hasattr(items, "__iter__"):
        raise ConfigError("aggregates", given, 'must be like {"n": "count", "m": ("mean", "v")}')
    out = []
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2:
            raise ConfigError("aggregates", item, 'must be like {"m": ("mean", "v")}')
        name, what = item
        if not isinstance(name, str) or not name:
            raise ConfigError("aggregates", name, "must be a name for the result, as text")
        if isinstance(what, Aggregate):
            made = what
        elif isinstance(what, str):
            made = Aggregate(what)
        elif isinstance(what, tuple) and len(what) == 3 and what[0] == "top":
            made = Aggregate(what[0], what[1], n=what[2])
        elif isinstance(what, tuple) and 2 <= len(what) <= 3:
            made = Aggregate(what[0], what[1], *(what[2:]))
        else:
            raise ConfigError(f"aggregates.{name}", what, 'must be like ("mean", "v")')
        out.append((name, made))
    if len({name for name, _ in out}) != len(out):
        raise ConfigError("aggregates", given, "must have different names")
    return tuple(out)


def _is_known(function: str) -> bool:
    """Whether there is an aggregate of this name, of ours or of Arrow's."""
    if function in AGGREGATE_FUNCTIONS:
        return True
    try:
        pc.get_function(f"hash_{function}")
    except KeyError:
        return False
    return True


def column_type(rows: pa.Schema, name: str, field: str = "aggregates") -> pa.DataType:
    """The type of a column, or a ConfigError that names the setting and the columns there are."""
    at = rows.get_field_index(name)
    if at < 0:
        raise ConfigError(field, name, f"must be a column of the input: {', '.join(rows.names)}")
    return rows.field(at).type


# -- what a function name stands for --------------------------------------------------------------


class Need(Enum):
    """What an aggregate has to be worked out from."""

    ROWS = "rows"
    """The rows themselves, when the window emits."""
    COUNT = "count"
    """How many values are not null."""
    SUM = "sum"
    """Sum and count of a column."""
    EXTREMES = "extremes"
    """Least and greatest value of a column, besides sum and count."""
    FIRST = "first"
    """The value of the first row by (time, arrival)."""
    LAST = "last"
    """The value of the last row."""
    FOLD = "fold"
    """The state of a user's `Fold`."""


class AggregateFunction:
    """One aggregation. Subclass it, with `@aggregate_function`, to add one.

    An incremental one (`need` other than `ROWS`) reads its accumulators in `finish`; one that needs
    the rows works on the values of all slots at once in `over_rows`.
    """

    need: Need = Need.ROWS
    """What it is worked out from. `ROWS` makes the stage buffer rows."""

    def is_incremental(self, kind: pa.DataType | None) -> bool:
        """Whether it can be kept up to date for a column of this type (None: for whole rows).

        Asked once per input schema; if any aggregate says no, the stage buffers rows for all of
        them.
        """
        if self.need in (Need.SUM, Need.EXTREMES):
            return kind is not None and storage_of(kind) is not None
        return self.need is not Need.ROWS

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        """The type of the result for a column of this type, or a ConfigError."""
        raise NotImplementedError

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        """The results of these slots; null where there is no value. Called when panes emit, if the
        aggregate is incremental.

        Args:
            slots: the accumulators.
            column: the input column; None for `count` of rows.
            which: the slots, none of them without rows.
        """
        raise NotImplementedError

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        """The results of slots `which`; slot s has `values[edges[s]:edges[s + 1]]`, by time. Called
        when panes emit, if the aggregate is not incremental.

        Args:
            values: the column of all rows, those of a slot next to each other.
            edges: where each slot begins, and the end of the last one.
            which: the slots, none of them without rows.
            aggregate: the settings, such as `q`.
            kind: the type the result must have.
        """
        raise NotImplementedError


AGGREGATE_FUNCTIONS: dict[str, AggregateFunction] = {}
"""The aggregations of our own by name; every other name is Arrow's."""

A = TypeVar("A", bound=type[AggregateFunction])


def aggregate_function(name: str) -> Callable[[A], A]:
    """Register an aggregation under the name that `aggregates` calls it by.

    Args:
        name: in snake case; one of Arrow's own is then ours.

    Returns:
        A decorator for a class derived from `AggregateFunction`.
    """

    def register(function: A) -> A:
        AGGREGATE_FUNCTIONS[name] = function()
        return function

    return register


@aggregate_function("count")
class CountValues(AggregateFunction):
    """Rows, or with a column the values that are not null."""

    need = Need.COUNT

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        return pa.int64()

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        if column is None:
            return pa.array(slots.rows.n[which])
        found = slots.counts.get(column)
        return pa.array((slots.sums[column].n if found is None else found)[which])


@aggregate_function("sum")
class SumOfValues(AggregateFunction):
    """Exact for whole numbers: null where 64 bits are not enough."""

    need = Need.SUM

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        if kind is not None and is_number(kind) and storage_of(kind) is not None:
            return pa.float64() if pa.types.is_floating(kind) else pa.int64()
        return ArrowFunction("sum").result_type(kind, column)

    def is_incremental(self, kind: pa.DataType | None) -> bool:
        return kind is not None and is_number(kind) and storage_of(kind) is not None

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        sums = slots.sums[str(column)]
        return pa.array(sums.total[which], mask=_without_sum(sums, which))

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        return ArrowFunction(str(aggregate.function)).over_rows(
            values, edges, which, aggregate, kind
        )


@aggregate_function("mean")
class MeanOfValues(SumOfValues):
    """The sum divided by the count."""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        """float64 for numbers; what Arrow makes of it for other types, or a ConfigError."""
        if kind is not None and is_number(kind) and storage_of(kind) is not None:
            return pa.float64()
        return ArrowFunction("mean").result_type(kind, column)

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        """The means of these slots; null without a value, or where the sum left 64 bits."""
        sums = slots.sums[str(column)]
        mean = sums.total[which] / np.maximum(sums.n[which], 1)
        return pa.array(mean, mask=_without_sum(sums, which))


def _without_sum(sums: Sums, which: Int64s) -> NDArray[np.bool_]:
    """Which of these slots have no sum: no value at all, or a sum beyond 64 bits."""
    empty: NDArray[np.bool_] = sums.n[which] == 0
    return empty | sums.overflow[which] if len(sums.overflow) else empty


class Extreme(AggregateFunction):
    """The least or the greatest value; NaN is skipped."""

    need = Need.EXTREMES
    name = ""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        if kind is not None and storage_of(kind) is not None:
            return kind
        return ArrowFunction(self.name).result_type(kind, column)

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        sums = slots.sums[str(column)]
        made = (sums.low if self.name == "min" else sums.high)[which]
        if made.dtype == np.float64:  # values there were, but nothing except NaN
            made = np.where(sums.low[which] > sums.high[which], np.nan, made)
        return pa.array(made, mask=sums.n[which] == 0)

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        return ArrowFunction(self.name).over_rows(values, edges, which, aggregate, kind)


@aggregate_function("min")
class Least(Extreme):
    """The least value."""

    name = "min"


@aggregate_function("max")
class Greatest(Extreme):
    """The greatest value."""

    name = "max"


@aggregate_function("first")
class FirstValue(AggregateFunction):
    """The value of the first row by (time, arrival), null included."""

    need = Need.FIRST

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        return kind

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        return slots.payload(str(column), which)


@aggregate_function("last")
class LastValue(FirstValue):
    """The value of the last row by (time, arrival), null included."""

    need = Need.LAST

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        """The values of the last rows of these slots."""
        return slots.payload(str(column), which, last=True)


@aggregate_function("quantile")
class Quantile(AggregateFunction):
    """Exact, by linear interpolation between the two nearest values."""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        if kind is None or not is_number(kind):
            raise ConfigError(
                "aggregates", f"quantile({column})", f"must be of numbers, not {kind}"
            )
        return pa.float64()

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        floats = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        out, present = np.empty(len(which)), np.empty(len(which), np.bool_)
        assert aggregate.q is not None
        starts, ends = edges[which], edges[which + 1]
        quantiles(as_readonly(floats), starts, ends, float(aggregate.q), out, present)
        return pa.array(out, mask=~present)


@aggregate_function("top")
class TopValues(AggregateFunction):
    """The `n` greatest values, greatest first, as a list; with `by`, the values of the rows in
    which that column is greatest. Of equal ones the earliest comes first; nulls are left out."""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        return pa.list_(kind)

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        assert aggregate.n is not None
        by = values
        if aggregate.by is not None:
            values, by = values.field("value"), values.field("by")
        slot = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        table = pa.table({"slot": slot, "by": by, "row": np.arange(len(slot))})
        keys = [("slot", "ascending"), ("by", "descending"), ("row", "ascending")]
        order = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
        valid = to_numpy(by.is_valid())[order]
        # Nulls are sorted behind the values of their slot, so ranks of values are not cut by them.
        rank = np.arange(len(order)) - edges[:-1][slot]
        chosen = order[valid & (rank < aggregate.n)]
        counts = np.bincount(slot[chosen], minlength=len(edges) - 1)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
        listed = pa.ListArray.from_arrays(pa.array(ends), values.take(pa.array(chosen)))
        return listed.take(pa.array(which)).cast(kind)


SKETCH_ERROR = 0.01
"""Relative error of `approx_quantile`: one per cent needs about 2,100 buckets for values from a
nanosecond to a day. Less needs more of them in proportion."""

_MIDDLE = 1 << 20
"""Bucket numbers are shifted by this, so that those of positive values are positive: the logarithm
of a float64 gives numbers between -75,000 and 71,000 at an error of one per cent."""


class QuantileSketch(Fold):
    """A quantile without keeping the values, within a stated relative error.

    Values are counted in buckets whose bounds grow by a constant factor, so that any value of a
    bucket is within `error` of the one it is reported as. The result r for the value v at rank
    ceil(q * n), counted from 1, is `abs(r - v) <= error * abs(v)`; NaN is left out like null.
    Counts are whole numbers: sketches merge exactly, in any order.

    >>> sketch = QuantileSketch(0.5)
    >>> state = sketch.add(sketch.init(), pa.array([1.0, 100.0, 10_000.0]))
    >>> 99 <= sketch.finish(state) <= 101
    True
    """

    type = pa.float64()
    state_type = pa.struct([("bucket", pa.list_(pa.int64())), ("count", pa.list_(pa.int64()))])

    def __init__(self, q: float, error: float = SKETCH_ERROR) -> None:
        """Make a sketch for one quantile.

        Args:
            q: from 0 to 1.
            error: relative, above 0.0001 and below 1; `SKETCH_ERROR` by default.

        Raises:
            ConfigError: either is out of range.
        """
        if not 0 <= q <= 1:
            raise ConfigError("q", q, "must be between 0 and 1")
        if not 0.0001 < error < 1:
            raise ConfigError("error", error, "must be above 0.0001 and below 1")
        self.q, self.error = q, error
        self.variant = f"[{error}]"
        self._base = np.log1p(error) - np.log1p(-error)

    def init(self) -> dict[str, list[int]]:
        """No buckets."""
        return {"bucket": [], "count": []}

    def add(self, state: dict[str, list[int]], values: pa.Array) -> dict[str, list[int]]:
        """Count the values in their buckets.

        Args:
            state: the buckets so far.
            values: numbers, nulls included.
        """
        found = to_numpy(values.drop_null().cast(pa.float64()))
        found = found[~np.isnan(found)]
        with np.errstate(divide="ignore"):
            index = np.ceil(np.log(np.abs(found)) / self._base)
        bucket = np.clip(index, -_MIDDLE + 1, _MIDDLE).astype(np.int64) + _MIDDLE
        bucket = np.where(found == 0, 0, np.where(found < 0, -bucket, bucket))
        numbers, counts = np.unique(bucket, return_counts=True)
        return self.merge(state, {"bucket": numbers.tolist(), "count": counts.tolist()})

    def merge(
        self, left: dict[str, list[int]], right: dict[str, list[int]]
    ) -> dict[str, list[int]]:
        """The buckets of both.

        Args:
            left: buckets and counts.
            right: the same.
        """
        both = dict(zip(left["bucket"], left["count"], strict=True))
        for bucket, count in zip(right["bucket"], right["count"], strict=True):
            both[bucket] = both.get(bucket, 0) + count
        order = sorted(both)
        return {"bucket": order, "count": [both[bucket] for bucket in order]}

    def is_state(self, state: Any) -> bool:
        """Whether these are buckets in order, each with a count.

        Args:
            state: a struct, with nulls anywhere.
        """
        if state is None or None in (state["bucket"], state["count"]):
            return False
        buckets, counts = state["bucket"], state["count"]
        if len(buckets) != len(counts) or None in buckets or None in counts:
            return False
        return (
            all(-2 * _MIDDLE <= bucket <= 2 * _MIDDLE for bucket in buckets)
            and all(left < right for left, right in pairwise(buckets))
            and all(count >= 1 for count in counts)
            and sum(counts) < 2**62
        )

    def finish(self, state: dict[str, list[int]]) -> float | None:
        """The value of the bucket in which the rank falls; None without values.

        Args:
            state: the buckets.
        """
        total = sum(state["count"])
        if total == 0:
            return None
        rank = max(1, int(np.ceil(self.q * total)))
        found = state["bucket"][int(np.searchsorted(np.cumsum(state["count"]), rank))]
        if found == 0:
            return 0.0
        if abs(found) == 2 * _MIDDLE:
            return float(np.copysign(np.inf, found))
        # The middle of a bucket, in the sense that both of its ends are within the error.
        with np.errstate(over="ignore", under="ignore"):
            size = np.exp((abs(found) - _MIDDLE) * self._base) * (1 - self.error)
        return float(np.copysign(min(size, np.finfo(np.float64).max), found))


@dataclass(frozen=True)
class ArrowFunction(AggregateFunction):
    """An aggregation that Arrow brings, such as `stddev` or `count_distinct`."""

    name: str
    """As in `pyarrow.TableGroupBy.aggregate`."""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        try:
            empty = pa.table({"slot": pa.array([], pa.int64()), "v": pa.array([], kind)})
            made = empty.group_by("slot").aggregate([("v", self.name)])
            return made.schema.field(f"v_{self.name}").type
        except (pa.ArrowKeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigError(
                "aggregates",
                f"{self.name}({column})",
                f"must be an aggregation Arrow knows for {kind}: {error}",
            ) from error

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        slot = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        table = pa.table({"slot": slot, "v": values})
        # One thread, so that the order of sums, and so the floats, are the same in every run.
        made = table.group_by("slot", use_threads=False).aggregate([("v", self.name)])
        at = np.empty(len(edges) - 1, np.int64)
        at[made.column("slot").to_numpy()] = np.arange(made.num_rows)
        result = made.column(f"v_{self.name}").combine_chunks()
        if isinstance(result, pa.ChunkedArray):
            result = pa.concat_arrays(result.chunks)
        return result.take(pa.array(at[which])).cast(kind)


@dataclass(frozen=True)
class UserFunction(AggregateFunction):
    """A plain function of the user's: one call per window and group, never per row."""

    function: Callable[[pa.Array], Any]
    """Called with the values of one window and group, sorted by time."""
    type: pa.DataType
    """The Arrow type of what it returns."""

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        return self.type

    def over_rows(
        self,
        values: pa.Array,
        edges: Int64s,
        which: Int64s,
        aggregate: Aggregate,
        kind: pa.DataType,
    ) -> pa.Array:
        made = [
            self.function(values.slice(a, b - a))
            for a, b in zip(edges[which].tolist(), edges[which + 1].tolist(), strict=True)
        ]
        return pa.array([v.as_py() if isinstance(v, pa.Scalar) else v for v in made], kind)


@dataclass(frozen=True)
class UserFold(AggregateFunction):
    """A `Fold` of the user's."""

    fold: Fold
    """The user's object; its states are kept in the accumulators."""
    need = Need.FOLD

    def result_type(self, kind: pa.DataType | None, column: str | None) -> pa.DataType:
        return self.fold.type

    def finish(self, slots: Accumulators, column: str | None, which: Int64s) -> pa.Array:
        states = slots.folds[fold_key(self.fold, str(column))]
        return pa.array([self.fold.finish(states[s]) for s in which.tolist()], self.fold.type)


def fold_key(fold: Fold, column: str) -> str:
    """The name under which the states of a fold are kept."""
    return f"{type(fold).__qualname__}{getattr(fold, 'variant', '')}:{column}"


def is_number(kind: pa.DataType) -> bool:
    """Whole numbers, floats and booleans."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind))


def storage_of(kind: pa.DataType) -> str | None:
    """How a column is accumulated: as `int` or `float` (64 bits), or not at all (None).

    Args:
        kind: the type of the column. Times and dates count as whole numbers; decimals, texts and
            nested types are left to Arrow.
    """
    types = pa.types
    if types.is_floating(kind):
        return "float"
    if types.is_uint64(kind):
        return None  # beyond int64: left to Arrow, which is exact there
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind):
        return None if types.is_interval(kind) else "int"
    return None


# -- which columns are needed ---------------------------------------------------------------------


class SlotColumn(NamedTuple):
    """A column that is accumulated as a number."""

    name: str
    storage: str
    """`int` or `float`."""
    extremes: bool
    """Whether min or max is wanted."""


@dataclass(frozen=True)
class SlotPlan:
    """What a set of aggregates needs, from the schema of the rows."""

    first: tuple[str, ...]
    """Columns of which the first value is kept: keys, groups, `first`."""
    last: tuple[str, ...]
    """Columns of which the last value is kept."""
    sums: tuple[SlotColumn, ...]
    """Columns of numbers with sum, count and perhaps extremes."""
    counted: tuple[str, ...]
    """Columns of which only the values that are not null are counted."""
    folds: tuple[tuple[str, Fold, str], ...]
    """Folds of the user's: their key, themselves, their column."""
    counts_only: bool
    """No column needs the first or last row by time, so times need not be compared."""


def plan_slots(
    rows: pa.Schema,
    carried: Sequence[str],
    aggregates: Sequence[tuple[str, Aggregate]],
    timed: bool = False,
) -> SlotPlan:
    """What these aggregates need, besides the columns whose first value is carried along.

    Args:
        rows: the schema of the rows.
        carried: keys and groups, which are constant within a slot.
        aggregates: output names and aggregates; those that are not incremental need nothing here.
        timed: the times of the first and last row are wanted.
    """
    first, last = list(carried), []
    sums: dict[str, SlotColumn] = {}
    counted, folds = [], {}
    for _, aggregate in aggregates:
        name, does = aggregate.column, aggregate.implementation
        if name is None or not aggregate.is_incremental(rows):
            continue
        storage = storage_of(column_type(rows, name))
        if does.need is Need.FIRST:
            first.append(name)
        elif does.need is Need.LAST:
            last.append(name)
        elif isinstance(does, UserFold):
            folds[fold_key(does.fold, name)] = does.fold, name
        elif does.need is Need.COUNT and storage is None:
            counted.append(name)
        else:
            assert storage is not None
            extremes = does.need is Need.EXTREMES or (name in sums and sums[name].extremes)
            sums[name] = SlotColumn(name, storage, extremes)
    return SlotPlan(
        tuple(dict.fromkeys(first)),
        tuple(dict.fromkeys(last)),
        tuple(sums.values()),
        tuple(dict.fromkeys(counted)),
        tuple((key, *what) for key, what in folds.items()),
        not last and len(first) == len(carried) and not timed,
    )


# -- the accumulators -----------------------------------------------------------------------------


class RowSlots(NamedTuple):
    """The slot of every row from number `first` on, or -1: see `kernels/any_order.py`."""

    slot: Int32s
    """One entry per row; -1: the row joins none."""
    first: int
    """The number of the row that entry 0 stands for."""


@dataclass
class Accumulators:
    """The accumulators of all slots of one call."""

    plan: SlotPlan
    """What has to be held."""
    size: int
    """How many slots there are."""
    held: HeldSlots | None = None
    """The slots of the state; None: it held none."""
    held_at: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """For each of the first slots: its number among those the state held, or -1."""

    def __post_init__(self) -> None:
        n = self.size
        self.rows = SlotRows(*np.zeros((len(SlotRows._fields), n), np.int64))
        self.counts = {name: np.zeros(n, np.int64) for name in self.plan.counted}
        self.sums = {column.name: _empty_sums(n, column.storage) for column in self.plan.sums}
        self.folds: dict[str, list[Any]] = {
            key: [fold.init() for _ in range(n)] for key, fold, _ in self.plan.folds
        }
        self.batch: pa.RecordBatch | None = None
        self.shift = 0 if self.held is None else len(self.held)
        if self.held is None or len(self.held_at) == 0:
            return
        slot = np.flatnonzero(self.held_at >= 0)
        row = self.held_at[slot]
        self.rows.first_row[slot] = self.rows.last_row[slot] = row
        for column, array in self._kept().items():
            array[slot] = self.held.numbers[column][row]
        for key, states in self.folds.items():
            found = self.held.values[f"fold:{key}"].to_pylist()
            for s, r in zip(slot.tolist(), row.tolist(), strict=True):
                states[s] = found[r]

    def _kept(self) -> dict[str, NDArray[Any]]:
        """Every array that is kept in the state, by its column there."""
        out: dict[str, NDArray[Any]] = {
            "n": self.rows.n,
            "first_time": self.rows.first_time,
            "last_time": self.rows.last_time,
        }
        for name, count in self.counts.items():
            out[f"count:{name}"] = count
        for name, v in self.sums.items():
            out[f"count:{name}"] = v.n
            out[f"sum:{name}"] = v.total
            out[f"min:{name}"] = v.low
            out[f"max:{name}"] = v.high
            if len(v.overflow):
                out[f"over:{name}"] = v.overflow
        return out

    def add(self, moves: Steps | RowSlots, batch: pa.RecordBatch | None, times: Int64s) -> None:
        """Move rows into slots: the one front of the two aggregation kernels.

        Args:
            moves: runs of rows, copies and merges (`Steps`), or the slot of every row.
            batch: the rows; None where the steps only copy and merge.
            times: their times.
        """
        self.batch = batch
        many = batch is not None and batch.num_rows >= MANY
        work: list[Callable[[], None]] = [partial(self._add_rows, moves, as_readonly(times))]
        for piece in _apart(moves) if many else [moves]:
            work += [partial(self._add_values, piece, column) for column in self.plan.sums]
        work += [partial(self._add_counts, moves, name) for name in self.plan.counted]
        if many:
            each(lambda do: do(), work)
        else:
            for do in work:
                do()
        for key, fold, name in self.plan.folds:
            assert isinstance(moves, Steps)  # a fold does not take rows in any order
            column = None if batch is None else batch.column(name)
            _add_fold(fold, self.folds[key], moves, column)

    def _add_rows(self, moves: Steps | RowSlots, times: Int64s) -> None:
        """Count the rows of every slot and find its first and last one."""
        plan = self.plan
        if isinstance(moves, Steps):
            fold_rows(moves, times, plan.counts_only, self.shift, self.rows)
        else:
            part = times[moves.first : moves.first + len(moves.slot)]
            number = self.shift + moves.first
            scatter_rows(moves.slot, part, plan.counts_only, number, self.rows)

    def _add_values(self, moves: Steps | RowSlots, column: SlotColumn) -> None:
        """Add the values of one column to the sums of every slot."""
        values, sums = (
            _column_values(self.batch, column.name, column.storage),
            self.sums[column.name],
        )
        whole = column.storage == "int"
        if isinstance(moves, Steps):
            (fold_ints if whole else fold_floats)(moves, values, column.extremes, sums)
            return
        part = slice(moves.first, moves.first + len(moves.slot))
        values = Values(values.values[part], values.valid[part])
        (scatter_ints if whole else scatter_floats)(moves.slot, values, column.extremes, sums)

    def _add_counts(self, moves: Steps | RowSlots, name: str) -> None:
        """Count the values that are not null, of a column that is not a number."""
        size = 0 if self.batch is None else self.batch.num_rows
        valid = np.zeros(0, np.bool_)
        if self.batch is not None:
            valid = to_numpy(self.batch.column(name).is_valid())
        if isinstance(moves, RowSlots):
            part = valid[moves.first : moves.first + len(moves.slot)]
            there = moves.slot[part & (moves.slot >= 0)]
            self.counts[name] += np.bincount(there, minlength=self.size)
            return
        zeros = Values(as_readonly(np.zeros(size, np.int64)), as_readonly(valid))
        spare = _empty_sums(self.size, "int")._replace(n=self.counts[name])
        fold_ints(moves, zeros, False, spare)

    def payload(self, name: str, which: Int64s, *, last: bool = False) -> pa.Array:
        """The first (or last) value of a column, for these slots.

        Args:
            name: a column of `plan.first` (or `plan.last`).
            which: the slots, none of them without rows.
            last: the value of the last row instead of the first.
        """
        row = (self.rows.last_row if last else self.rows.first_row)[which]
        held = None
        if self.held is not None:
            held = self.held.values[f"{'last' if last else 'first'}:{name}"]
        if self.batch is None:
            assert held is not None
            return held.take(pa.array(row))
        column = self.batch.column(name)
        if held is None:
            return column.take(pa.array(row))
        # Take from each side by itself: a collection is not copied to be appended.
        old = row < self.shift
        if not old.any():
            return column.take(pa.array(row - self.shift))
        if old.all():
            return held.take(pa.array(row))
        both = [held.take(pa.array(row[old])), column.take(pa.array(row[~old] - self.shift))]
        back = np.empty(len(row), np.int64)
        back[np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])] = np.arange(len(row))
        return pa.concat_arrays(both).take(pa.array(back))

    def result(self, aggregate: Aggregate, kind: pa.DataType, which: Int64s) -> pa.Array:
        """An incremental aggregate for these slots, of exactly this type."""
        made = aggregate.implementation.finish(self, aggregate.column, which)
        return from_storage(made, kind)

    def store(self, which: Int64s, keys: Int64s) -> HeldSlots:
        """These slots as the state keeps them.

        Args:
            which: the slots.
            keys: (lane, serial) of the window of each, as one number.
        """
        numbers = {column: array[which] for column, array in self._kept().items()}
        values = {f"first:{name}": self.payload(name, which) for name in self.plan.first}
        for name in self.plan.last:
            values[f"last:{name}"] = self.payload(name, which, last=True)
        for key, fold, _ in self.plan.folds:
            states = [self.folds[key][s] for s in which.tolist()]
            values[f"fold:{key}"] = pa.array(states, fold.state_type)
        return HeldSlots(keys, numbers, values)

    def blank(self, lane: pa.Array, serial: pa.Array, rows: pa.Schema) -> pa.RecordBatch:
        """All slots as a table of the state, without a value in any: for aggregates that are
        adopted by slots that exist.

        Args:
            lane: the lane of each slot.
            serial: the number of the window of each.
            rows: the schema of the rows.
        """
        columns: dict[str, Any] = {LANE: lane, SERIAL: serial}
        columns |= {column: pa.array(array) for column, array in self._kept().items()}
        for kept, names in (("first", self.plan.first), ("last", self.plan.last)):
            columns |= {f"{kept}:{n}": pa.nulls(self.size, rows.field(n).type) for n in names}
        for key, fold, _ in self.plan.folds:
            columns[f"fold:{key}"] = pa.array(self.folds[key], fold.state_type)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _apart(moves: Steps | RowSlots) -> list[Steps | RowSlots]:
    """The moves in two parts that touch different slots, for two threads; in one where they cannot
    be cut. Each slot adds its values in the order of the rows either way."""
    if isinstance(moves, RowSlots) or len(moves.what) < 2:
        return [moves]
    middle = len(moves.what) // 2
    left, right = (
        Steps(*(column[part] for column in moves))
        for part in (slice(0, middle), slice(middle, None))
    )
    if left.pane.max() >= right.pane.min() or (moves.what != Step.ROWS).any():
        return [moves]
    return [left, right]


def _empty_sums(n: int, storage: str) -> Sums:
    """Accumulators of `n` slots without values: sums 0, extremes at the far ends."""
    dtype: Any = np.int64 if storage == "int" else np.float64
    low, high = (_MAX, _MIN) if storage == "int" else (np.inf, -np.inf)
    return Sums(
        np.zeros(n, np.int64),
        np.zeros(n, dtype),
        np.full(n, low, dtype),
        np.full(n, high, dtype),
        np.zeros(n if storage == "int" else 0, np.bool_),
    )


def _add_fold(fold: Fold, states: list[Any], steps: Steps, column: pa.Array | None) -> None:
    """Follow the steps with a user's fold: one call per run of rows."""
    for what, slot, first, last in zip(*(array.tolist() for array in steps), strict=True):
        if what == Step.ROWS:
            assert column is not None
            states[slot] = fold.add(states[slot], column.slice(first, last - first))
        elif what == Step.COPY:
            # Merged into a new state rather than shared: a fold may change its state in place.
            states[slot] = fold.merge(fold.init(), states[first])
        else:
            states[slot] = fold.merge(states[slot], states[first])


def to_numpy(column: pa.Array) -> NDArray[Any]:
    """The values of a column, copied only where Arrow's layout differs."""
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_storage(column: pa.Array, storage: str) -> pa.Array:
    """A column as int64 or float64, which is what the accumulators hold."""
    wanted = pa.int64() if storage == "int" else pa.float64()
    if column.type.equals(wanted):
        return column
    if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
        column = column.cast(pa.int32())
    return column.cast(wanted)


def from_storage(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The reverse of `to_storage`."""
    if column.type.equals(kind):
        return column
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    return column.cast(kind)


def _column_values(rows: pa.RecordBatch | None, name: str, storage: str) -> Values:
    """A column as the kernels read it; empty where there are no rows.

    Nulls are filled with 0 and marked in `valid`, which is empty where there is none.
    """
    if rows is None:
        dtype: Any = np.int64 if storage == "int" else np.float64
        return Values(as_readonly(np.zeros(0, dtype)), _NO_NULLS)
    column = to_storage(rows.column(name), storage)
    if column.null_count == 0:
        return Values(as_readonly(to_numpy(column)), _NO_NULLS)
    valid = as_readonly(to_numpy(column.is_valid()))
    return Values(as_readonly(to_numpy(pc.fill_null(column, 0))), valid)
