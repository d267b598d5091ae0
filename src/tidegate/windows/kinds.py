"""Which window a row belongs to: the kinds of window, as frozen values.

Clock policy: a row is placed by its own event time, never by "now". `Fixed` is the one kind that
lives in processing time: there a row's own time is the wall time of its collection.

    Tumbling, Sliding, Cumulate, Fixed
                                aligned: spans [start, end) counted from the epoch (plus offset)
    Calendar                    aligned to the calendar of a time zone
    Session                     grown: [first row, last row + gap], merged when they touch
    LookBack                    one window per row: [t - back, t + ahead], both ends inclusive
    CountWindow, StateWindow, Everything, Adaptive
                                sequential: one open window per key, in the order of arrival

A kind carries its own behaviour: which kernel assigns its rows (`family`), with which numbers
(`kernel_settings`), how near to the ends of int64 time it may come (`reach_ns`), and what it rules
out. A new kind is one class here with `@window_kind("its_name")`, the name it has in YAML; a kind
that no kernel can assign yet brings a kernel as well (`kernels/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.checks import duration, int_in, names
from tidegate.core.outcomes import Int64s
from tidegate.core.time import Duration, format_duration
from tidegate.errors import ConfigError
from tidegate.windows.calendar import CALENDAR_UNITS, calendar_edges, check_zone, start_of_date
from tidegate.windows.kernels.layout import Family
from tidegate.windows.rate import fitting_duration

__all__ = [
    "WINDOW_KINDS",
    "Adaptive",
    "Calendar",
    "CountWindow",
    "Cumulate",
    "Everything",
    "Fixed",
    "LookBack",
    "Session",
    "Sliding",
    "StateWindow",
    "Tumbling",
    "When",
    "WindowKind",
    "window_kind",
]


class WindowKind:
    """What all kinds of window have in common. Subclass it to add one."""

    name: ClassVar[str] = ""
    """Its name in a definition (YAML); set by `window_kind`."""
    family: ClassVar[Family]
    """Which kernel assigns its rows."""
    emits_once: ClassVar[bool] = False
    """A window is emitted exactly once: there is never a second pane, and so no accumulation. Its
    identifier then contains a serial number, because start and end may repeat."""
    inclusive_end: ClassVar[bool] = False
    """The end is a time at which a row may still belong to the window."""
    nested: ClassVar[dict[str, type[Any]]] = {}
    """Settings that a definition may write as a mapping, and the class they become."""

    def kernel_settings(self) -> dict[str, Any]:
        """Fields of `kernels.layout.Settings` that this kind decides."""
        return {}

    def edges(self, times: Sequence[Int64s]) -> Int64s | None:
        """For aligned windows whose lengths differ: where they begin, ascending, so that each of
        these times lies between two neighbours. None, the default: `kernel_settings` says it.

        Called once per collection.

        Args:
            times: arrays of the times that matter: of rows, and of watermarks.
        """
        return None

    @property
    def reach_ns(self) -> int:
        """The longest span of a window around one row, in ns."""
        return 0

    @property
    def closes_by_watermark(self) -> bool:
        """Whether the watermark completes its windows. Otherwise only rows, triggers, the wall
        clock or the end of the stream do."""
        return self.family in (Family.ALIGNED, Family.SESSION, Family.ADAPTIVE)

    @property
    def wall_deadline_ns(self) -> int:
        """Wall time after its first row at which a window is emitted in any case; 0: never."""
        return 0


WINDOW_KINDS: dict[str, type[WindowKind]] = {}
"""Every kind by its name in a definition."""

K = TypeVar("K", bound=type[WindowKind])


def window_kind(name: str) -> Callable[[K], K]:
    """Register a kind of window under the name it has in a definition (YAML).

    Args:
        name: the key of the `window` stage that chooses this kind, in snake case.

    Returns:
        A decorator for a frozen dataclass derived from `WindowKind`.
    """

    def register(kind: K) -> K:
        kind.name = name
        WINDOW_KINDS[name] = kind
        return kind

    return register


def in_ns(parsed: Duration) -> int:
    """A setting that `__post_init__` has parsed already, as the number it is."""
    assert isinstance(parsed, int)
    return parsed


@window_kind("tumbling")
@dataclass(frozen=True)
class Tumbling(WindowKind):
    """Spans of one size that touch and do not overlap, aligned to the epoch (plus `offset`).

    A row at t is in the one window [start, start + size) that contains t.

    >>> Tumbling("1 s")
    Tumbling(size=1000000000, offset=0)
    """

    size: Duration
    """Length: ns, a text such as "10 s", or a timedelta. At least 1 ns."""
    offset: Duration = 0
    """Shifts every start; may be negative. 0: windows start at multiples of `size` since 1970."""

    family = Family.ALIGNED

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", duration("size", self.size, 1))
        object.__setattr__(self, "offset", duration("offset", self.offset, None))

    def kernel_settings(self) -> dict[str, Any]:
        size = in_ns(self.size)
        return {"size": size, "step": size, "offset": in_ns(self.offset) % size}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.size)


@window_kind("sliding")
@dataclass(frozen=True)
class Sliding(WindowKind):
    """Spans of `size` that start every `step`: a row is in about size / step of them.

    >>> Sliding("1 min", "10 s").step
    10000000000
    """

    size: Duration
    """Length: ns, text or timedelta. At least 1 ns."""
    step: Duration
    """Distance between starts. At least 1 ns and at most `size`, or rows would be left out."""
    offset: Duration = 0
    """Shifts every start; may be negative."""

    family = Family.ALIGNED

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", duration("size", self.size, 1))
        object.__setattr__(self, "step", duration("step", self.step, 1))
        object.__setattr__(self, "offset", duration("offset", self.offset, None))
        if in_ns(self.step) > in_ns(self.size):
            raise ConfigError("step", self.step, "must not exceed size: rows would be left out")

    def kernel_settings(self) -> dict[str, Any]:
        size, step = in_ns(self.size), in_ns(self.step)
        return {"size": size, "step": step, "offset": in_ns(self.offset) % step}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.size)


@window_kind("cumulate")
@dataclass(frozen=True)
class Cumulate(WindowKind):
    """Growing spans that start anew every `size`: [start, start + step), [start, start + 2 step),
    up to the whole [start, start + size). A running total of the day, told every hour.

    Each window is emitted by the watermark, once; so early triggers and late policies that change
    windows are refused.

    >>> Cumulate("1 day", "1 h").step
    3600000000000
    """

    size: Duration
    """Length of the longest window, and the distance from one start to the next: ns, text or
    timedelta. At least 1 ns."""
    step: Duration
    """By how much a window is longer than the one before it. Must divide `size`."""
    offset: Duration = 0
    """Shifts every start; may be negative."""

    family = Family.ALIGNED

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", duration("size", self.size, 1))
        object.__setattr__(self, "step", duration("step", self.step, 1))
        object.__setattr__(self, "offset", duration("offset", self.offset, None))
        if in_ns(self.size) % in_ns(self.step):
            size = format_duration(in_ns(self.size))
            raise ConfigError(
                "step", format_duration(in_ns(self.step)), f"must divide size ({size})"
            )

    def kernel_settings(self) -> dict[str, Any]:
        size, step = in_ns(self.size), in_ns(self.step)
        start = {"span": size, "stride": size, "offset": in_ns(self.offset) % size}
        return {"size": step, "step": step, "cumulate": True, **start}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.size)


@window_kind("calendar")
@dataclass(frozen=True)
class Calendar(WindowKind):
    """Days, weeks, months, quarters or years of a time zone, right across daylight saving: a day
    has 23 or 25 hours where the clocks change, and starts where the zone says it does.

    A window begins with the first moment of its first local date and ends where the next begins.

    >>> berlin = Calendar("day", "Europe/Berlin")
    >>> [berlin.hours(2026, 3, 28), berlin.hours(2026, 3, 29), berlin.hours(2026, 10, 25)]
    [24.0, 23.0, 25.0]
    """

    unit: str = "day"
    """`day`, `week` (from Monday), `month`, `quarter` or `year`."""
    zone: str = "UTC"
    """An IANA name such as `Europe/Berlin`. UTC by default: the zone of a machine is no part of a
    result. An unknown one is a ConfigError."""

    family = Family.ALIGNED

    def __post_init__(self) -> None:
        if self.unit not in CALENDAR_UNITS:
            raise ConfigError("unit", self.unit, f"must be one of {', '.join(CALENDAR_UNITS)}")
        check_zone(self.zone)

    def kernel_settings(self) -> dict[str, Any]:
        return {"size": 1, "step": 1}

    @property
    def reach_ns(self) -> int:
        return 370 * 86_400 * 10**9

    def edges(self, times: Sequence[Int64s]) -> Int64s | None:
        return calendar_edges(self.unit, self.zone, times)

    def hours(self, year: int, month: int, day: int) -> float:
        """The length of the window that contains this local date, in hours.

        Args:
            year: of the date.
            month: from 1.
            day: from 1.
        """
        first = start_of_date(date(year, month, day), self.zone)
        edges = calendar_edges(self.unit, self.zone, [np.array([first])])
        at = int(np.searchsorted(edges, first, "right"))
        return float(edges[at] - edges[at - 1]) / 3.6e12


@window_kind("fixed")
@dataclass(frozen=True)
class Fixed(WindowKind):
    """Spans of processing time, aligned to the epoch; closed by the wall clock.

    A row belongs to the wall time of its collection, so no row is ever late here.

    >>> Fixed("100 ms")
    Fixed(interval=100000000)
    """

    interval: Duration
    """Length in wall time: ns, text or timedelta. At least 1 ns."""

    family = Family.ALIGNED

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", duration("interval", self.interval, 1))

    def kernel_settings(self) -> dict[str, Any]:
        return {"size": in_ns(self.interval), "step": in_ns(self.interval)}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.interval)


@window_kind("session")
@dataclass(frozen=True)
class Session(WindowKind):
    """Rows whose times are at most `gap` apart. The gap is inclusive, as in Spark's
    `session_window`: a row exactly `gap` after the last one still belongs to the session.

    Two sessions that a row connects become one, also through late data.

    >>> Session("5 s")
    Session(gap=5000000000)
    """

    gap: Duration
    """The longest silence within a session: ns, text or timedelta. At least 1 ns."""

    family = Family.SESSION
    inclusive_end = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", duration("gap", self.gap, 1))

    def kernel_settings(self) -> dict[str, Any]:
        return {"size": in_ns(self.gap)}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.gap)


@window_kind("look_back")
@dataclass(frozen=True)
class LookBack(WindowKind):
    """A window per row: what happened from `back` before it to `ahead` after it, ends included.

    Without `ahead` it is emitted at once and sees what arrived before its row; with `ahead` it
    waits until the watermark reaches its end.

    >>> LookBack("1 min")
    LookBack(back=60000000000, ahead=0)
    """

    back: Duration
    """How far back from the row: ns, text or timedelta, 0 included."""
    ahead: Duration = 0
    """How far ahead of it. 0, the default, waits for nothing."""

    family = Family.LOOK_BACK
    emits_once = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", duration("back", self.back))
        object.__setattr__(self, "ahead", duration("ahead", self.ahead))

    @property
    def reach_ns(self) -> int:
        return in_ns(self.back) + in_ns(self.ahead)


@window_kind("count")
@dataclass(frozen=True)
class CountWindow(WindowKind):
    """Every `rows` rows of a key, closed by arrivals only; start and end are its first and last
    row times. (`AfterCount` is the trigger that fires after a number of rows in any kind of
    window.)

    >>> CountWindow(100)
    CountWindow(rows=100)
    """

    rows: int
    """Rows per window, at least 1."""

    family = Family.COUNT
    emits_once = True
    inclusive_end = True

    def __post_init__(self) -> None:
        int_in("rows", self.rows, 1)

    def kernel_settings(self) -> dict[str, Any]:
        return {"target": self.rows}


@window_kind("everything")
@dataclass(frozen=True)
class Everything(WindowKind):
    """One window that takes every row until a trigger fires; then the next one begins.

    >>> Everything()
    Everything()
    """

    family = Family.EVERYTHING
    emits_once = True
    inclusive_end = True


@window_kind("adaptive")
@dataclass(frozen=True)
class Adaptive(WindowKind):
    """Windows whose length follows the load: `target` rows at the present rate, within bounds.

    The rate is measured in event time over the open window and the one before it, after every row,
    and is applied to the open window as well: a jump inside a long window ends it early.

    >>> Adaptive().duration_ns(20.0), Adaptive().duration_ns(1000.0), Adaptive().duration_ns(0.0)
    (5000000000, 100000000, 5000000000)
    """

    min: Duration = "10 ms"
    """The shortest window. Below, each row of a busy stream would be a window of its own."""
    max: Duration = "5 s"
    """The longest window, and the wall time after which an open one is emitted in any case."""
    target: int = 100
    """Rows a window should have, at least 1."""

    family = Family.ADAPTIVE
    emits_once = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", duration("min", self.min, 1))
        object.__setattr__(self, "max", duration("max", self.max, 1))
        if in_ns(self.min) > in_ns(self.max):
            longest = format_duration(in_ns(self.max))
            raise ConfigError(
                "min", format_duration(in_ns(self.min)), f"must not exceed max ({longest})"
            )
        int_in("target", self.target, 1)

    def kernel_settings(self) -> dict[str, Any]:
        shortest, longest = in_ns(self.min), in_ns(self.max)
        return {"target": self.target, "shortest": shortest, "longest": longest}

    @property
    def reach_ns(self) -> int:
        return in_ns(self.max)

    @property
    def wall_deadline_ns(self) -> int:
        return in_ns(self.max)

    def duration_ns(self, rate_hz: float) -> int:
        """The length that holds `target` rows at this rate, within `min` and `max`.

        Args:
            rate_hz: rows per second; 0 gives `max`.
        """
        return int(fitting_duration(rate_hz, self.target, in_ns(self.min), in_ns(self.max)))


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
    """The column to look at."""
    compare: str
    """One of == != < <= > >=."""
    value: Any
    """What to compare with; of a type Arrow can compare with the column."""

    def __post_init__(self) -> None:
        if self.compare not in _COMPARE:
            raise ConfigError("compare", self.compare, f"must be one of {', '.join(_COMPARE)}")

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        return _COMPARE[self.compare](rows.column(self.column), self.value)


Condition = bool | When | Callable[[pa.RecordBatch], Any]


@window_kind("state")
@dataclass(frozen=True)
class StateWindow(WindowKind):
    """Opens on a row for which `open` holds, closes with a row for which `emit` holds.

    The opening row never closes it. Rows outside any window are delivered as dropped. Conditions
    are `True`, `False`, a `When`, or a function from rows to a boolean column.

    >>> StateWindow(When("doors", "==", "open"), When("doors", "==", "closed")).partition_by
    ()
    """

    open: Condition
    """Which rows open a window."""
    emit: Condition
    """Which rows close it; they are its last row."""
    partition_by: tuple[str, ...] = ()
    """Columns by whose values the windows of one key are kept apart. None by default."""

    family = Family.STATE
    emits_once = True
    inclusive_end = True
    nested: ClassVar[dict[str, type[Any]]] = {"open": When, "emit": When}

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_by", names("partition_by", self.partition_by))
        for field in ("open", "emit"):
            value = getattr(self, field)
            if not (isinstance(value, bool) or callable(value)):
                raise ConfigError(field, value, "must be True, False, a When or a function")


def condition_holds(condition: Condition, rows: pa.RecordBatch, field: str) -> NDArray[np.bool_]:
    """The condition for every row; null counts as false.

    Args:
        condition: True, False, a `When` or a function from rows to booleans.
        rows: the rows.
        field: the setting to name where the function returns something else.

    Raises:
        ConfigError: not one boolean for every row.
    """
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
