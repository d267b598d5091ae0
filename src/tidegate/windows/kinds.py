"""Which window a row belongs to: the kinds of window, as frozen values.

Clock policy: a row is placed by its own event time, never by "now". `Fixed` is the one kind that
lives in processing time: there a row's own time is the wall time of its collection.

    Tumbling, Sliding, Fixed    aligned: spans [start, end) counted from the epoch (plus offset)
    Session                     grown: [first row, last row + gap], merged when they touch
    LookBack                    one window per row: [t - back, t + ahead], both ends inclusive
    CountWindow, StateWindow, Everything, Adaptive
                                sequential: one open window per key, in the order of arrival
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.time import Duration, parse_duration
from tidegate.errors import ConfigError

__all__ = [
    "Adaptive",
    "CountWindow",
    "Everything",
    "Fixed",
    "LookBack",
    "Session",
    "Sliding",
    "StateWindow",
    "Tumbling",
    "When",
    "WindowKind",
]


def ns(parsed: Duration) -> int:
    """A duration that has been parsed already, as the number it is."""
    assert isinstance(parsed, int)
    return parsed


@dataclass(frozen=True)
class Tumbling:
    """Spans of one size that touch and do not overlap, aligned to the epoch (plus `offset`).

    >>> Tumbling("1 s")
    Tumbling(size=1000000000, offset=0)
    """

    size: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_duration(self.size, "size", minimum=1))
        object.__setattr__(self, "offset", parse_duration(self.offset, "offset", minimum=None))


@dataclass(frozen=True)
class Sliding:
    """Spans of `size` that start every `step`: a row is in about size / step of them."""

    size: Duration
    step: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_duration(self.size, "size", minimum=1))
        object.__setattr__(self, "step", parse_duration(self.step, "step", minimum=1))
        object.__setattr__(self, "offset", parse_duration(self.offset, "offset", minimum=None))
        if ns(self.step) > ns(self.size):
            raise ConfigError("step", self.step, "must not exceed size: rows would be left out")


@dataclass(frozen=True)
class Fixed:
    """Spans of processing time, aligned to the epoch; closed by the wall clock."""

    interval: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", parse_duration(self.interval, "interval", minimum=1))


@dataclass(frozen=True)
class Session:
    """Rows whose times are at most `gap` apart. The gap is inclusive, as in Spark's
    `session_window`: a row exactly `gap` after the last one still belongs to the session."""

    gap: Duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", parse_duration(self.gap, "gap", minimum=1))


@dataclass(frozen=True)
class LookBack:
    """A window per row: what happened from `back` before it to `ahead` after it, ends included.

    Without `ahead` it is emitted at once and sees what arrived before its row; with `ahead` it
    waits until the watermark reaches its end.
    """

    back: Duration
    ahead: Duration = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", parse_duration(self.back, "back"))
        object.__setattr__(self, "ahead", parse_duration(self.ahead, "ahead"))


@dataclass(frozen=True)
class CountWindow:
    """Every `rows` rows of a key, closed by arrivals only; start and end are its first and last
    row times. (`Count` is the trigger of that name.)"""

    rows: int

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise ConfigError("rows", self.rows, "must be a whole number of at least 1")


@dataclass(frozen=True)
class Everything:
    """One window that takes every row until a trigger fires; then the next one begins."""


@dataclass(frozen=True)
class Adaptive:
    """Windows whose length follows the load: `target` rows at the present rate, within bounds.

    The rate is measured in event time over the open window and the one before it, after every row,
    and is applied to the open window as well: a jump inside a long window ends it early.

    >>> Adaptive().duration_ns(20.0), Adaptive().duration_ns(1000.0), Adaptive().duration_ns(0.0)
    (5000000000, 100000000, 5000000000)
    """

    min: Duration = "10 ms"
    max: Duration = "5 s"
    target: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", parse_duration(self.min, "min", minimum=1))
        object.__setattr__(self, "max", parse_duration(self.max, "max", minimum=1))
        if ns(self.min) > ns(self.max):
            raise ConfigError("min", self.min, f"must not exceed max ({self.max} ns)")
        if isinstance(self.target, bool) or not isinstance(self.target, int) or self.target < 1:
            raise ConfigError("target", self.target, "must be a whole number of at least 1")

    def duration_ns(self, rate_hz: float) -> int:
        """The length that holds `target` rows at this rate; clamped before it becomes an int."""
        from tidegate.windows.rate import fitting_duration

        return int(fitting_duration(rate_hz, self.target, ns(self.min), ns(self.max)))


_COMPARE: dict[str, Callable[..., Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class When:
    """A condition on a row: one column compared with a value. Null is never true.

    >>> When("speed", ">", 3)
    When(column='speed', compare='>', value=3)
    """

    column: str
    compare: str
    value: Any

    def __post_init__(self) -> None:
        if self.compare not in _COMPARE:
            raise ConfigError("compare", self.compare, f"must be one of {', '.join(_COMPARE)}")

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        return _COMPARE[self.compare](rows.column(self.column), self.value)


Condition = bool | When | Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class StateWindow:
    """Opens on a row for which `open` holds, closes with a row for which `emit` holds.

    The opening row never closes it. Rows outside any window are delivered as dropped. Conditions
    are `True`, `False`, a `When`, or a function from rows to a boolean column.
    """

    open: Condition
    emit: Condition
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        for field in ("open", "emit"):
            value = getattr(self, field)
            if not (isinstance(value, bool) or callable(value)):
                raise ConfigError(field, value, "must be True, False, a When or a function")


WindowKind = (
    Tumbling
    | Sliding
    | Fixed
    | Session
    | LookBack
    | CountWindow
    | StateWindow
    | Everything
    | Adaptive
)


def holds(condition: Condition, rows: pa.RecordBatch, field: str) -> NDArray[np.bool_]:
    """The condition for every row; null counts as false."""
    if isinstance(condition, bool):
        return np.full(rows.num_rows, condition, np.bool_)
    made = condition(rows)
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if isinstance(made, pa.Array):
        made = pc.fill_null(made, False).to_numpy(zero_copy_only=False)
    mask = np.asarray(made, np.bool_)
    if mask.shape != (rows.num_rows,):
        raise ConfigError(field, condition, "must return one boolean for every row")
    return mask
