"""How the value of a topic at a moment t is found: one small value per method.

    latest            the newest message at or before t
    next              the first message at or after t
    nearest           whichever of the two is closer; the earlier one if both are equally close
    linear            between the two, by the share of time that has passed
    slerp             the same for unit quaternions, along the shorter arc
    mean, min, max    over the messages in (t - span, t]

`latest` and the aggregates are decided when the watermark reaches t. The others are decided when
the message after t is in, or when the watermark passes t + tolerance; `nearest` also as soon as no
message still to come can be closer.

A tolerance is inclusive: a message exactly `tolerance` away still counts. `linear` and `slerp` need
a message within the tolerance on both sides, or one at t itself. Of several messages of a topic
with the same stamp, `latest` and `nearest` take the one that arrived last at or before t, and the
one that arrived first after it; `next` takes the one that arrived first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.core.checks import duration, names
from tidegate.core.time import MAX_NS, Duration, format_duration
from tidegate.errors import ConfigError

__all__ = [
    "METHODS",
    "Latest",
    "Linear",
    "Max",
    "Mean",
    "Method",
    "Min",
    "Nearest",
    "Next",
    "Slerp",
    "latest",
    "linear",
    "max",
    "mean",
    "min",
    "nearest",
    "next",
    "parse_method",
    "slerp",
]


@dataclass(frozen=True)
class Method:
    """How the value of a topic at a moment is found. Use `latest(...)`, `linear(...)` and so on."""

    tolerance: Duration | None = None
    """How far from t a message may be, inclusive; None: any distance. In a stream the methods that
    look ahead need one: without it a silent topic would hold every row back for ever."""
    columns: Sequence[str] | None = None
    """The columns to deliver; None: all but key and topic."""

    name: ClassVar[str]
    """The word for this method in a pipeline file."""
    before: ClassVar[bool] = True
    """Whether messages at or before t are looked at."""
    after: ClassVar[bool] = False
    """Whether messages at or after t are looked at: decisions then wait for them."""
    blends: ClassVar[bool] = False
    """Whether the value is computed from two messages."""
    aggregates: ClassVar[bool] = False
    """Whether the value is computed from all messages of the span before t."""

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            limit = duration("tolerance", self.tolerance, 1 if self.aggregates else 0)
            object.__setattr__(self, "tolerance", limit)
        elif self.aggregates:
            raise ConfigError(
                "span", None, f'{self.name} needs a span, such as {self.name}("100 ms")'
            )
        if self.columns is not None:
            object.__setattr__(self, "columns", names("columns", self.columns, empty=False))

    @property
    def reach_ns(self) -> int:
        """The tolerance or span in nanoseconds; the largest int64 if there is none."""
        return MAX_NS if self.tolerance is None else duration("tolerance", self.tolerance)

    def missing(self) -> str:
        """Why there is no value, as a sentence for the row."""
        where = {
            (True, False): "at or before",
            (False, True): "at or after",
            (True, True): "around",
        }
        if self.blends:
            text = "no messages on both sides"
        else:
            text = f"no message {where[self.before, self.after]}"
        return text if self.tolerance is None else f"{text} within {format_duration(self.reach_ns)}"

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for `explain()` and snapshots."""
        return {
            "tolerance": self.tolerance,
            "columns": None if self.columns is None else list(self.columns),
        }


@dataclass(frozen=True)
class Latest(Method):
    """The newest message at or before t."""

    name: ClassVar[str] = "latest"


@dataclass(frozen=True)
class Next(Method):
    """The first message at or after t."""

    name: ClassVar[str] = "next"
    before: ClassVar[bool] = False
    after: ClassVar[bool] = True


@dataclass(frozen=True)
class Nearest(Method):
    """The message closest to t; the earlier one if two are equally close."""

    name: ClassVar[str] = "nearest"
    after: ClassVar[bool] = True


@dataclass(frozen=True)
class Linear(Method):
    """Numbers, lists of numbers and structs of numbers interpolated between two messages.

    Integers become float64. What is not a number (text, booleans, lists of different lengths) is
    taken from the message at or before t.
    """

    name: ClassVar[str] = "linear"
    after: ClassVar[bool] = True
    blends: ClassVar[bool] = True


@dataclass(frozen=True)
class Slerp(Method):
    """Unit quaternions interpolated along the shorter arc; other columns as `linear` does.

    A quaternion is a struct with the fields x, y, z and w, or a list of four numbers (x, y, z, w).
    """

    name: ClassVar[str] = "slerp"
    after: ClassVar[bool] = True
    blends: ClassVar[bool] = True


@dataclass(frozen=True)
class Mean(Method):
    """The mean of each number column over the messages in (t - span, t]; nulls and NaN left out."""

    name: ClassVar[str] = "mean"
    aggregates: ClassVar[bool] = True


@dataclass(frozen=True)
class Min(Method):
    """The smallest value of each number column over the messages in (t - span, t]."""

    name: ClassVar[str] = "min"
    aggregates: ClassVar[bool] = True


@dataclass(frozen=True)
class Max(Method):
    """The largest value of each number column over the messages in (t - span, t]."""

    name: ClassVar[str] = "max"
    aggregates: ClassVar[bool] = True


METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (Latest, Next, Nearest, Linear, Slerp, Mean, Min, Max)
}
"""The methods by the name a pipeline file uses. A new one: its class above, and its name here."""


def latest(tolerance: Duration | None = None, *, columns: Sequence[str] | None = None) -> Latest:
    """The newest message at or before t.

    Args:
        tolerance: How far from t a message may be, inclusive; None: any distance.
        columns: The columns to deliver; None: all but key and topic.
    """
    return Latest(tolerance, columns)


def next(tolerance: Duration | None = None, *, columns: Sequence[str] | None = None) -> Next:
    """The first message at or after t.

    Args:
        tolerance: How far from t a message may be, inclusive; None: any distance.
        columns: The columns to deliver; None: all but key and topic.
    """
    return Next(tolerance, columns)


def nearest(tolerance: Duration | None = None, *, columns: Sequence[str] | None = None) -> Nearest:
    """The message closest to t.

    Args:
        tolerance: How far from t a message may be, inclusive; None: any distance.
        columns: The columns to deliver; None: all but key and topic.
    """
    return Nearest(tolerance, columns)


def linear(tolerance: Duration | None = None, *, columns: Sequence[str] | None = None) -> Linear:
    """Numbers interpolated between two messages.

    Args:
        tolerance: How far from t a message may be, inclusive; None: any distance.
        columns: The columns to deliver; None: all but key and topic.
    """
    return Linear(tolerance, columns)


def slerp(tolerance: Duration | None = None, *, columns: Sequence[str] | None = None) -> Slerp:
    """Quaternions interpolated along the shorter arc.

    Args:
        tolerance: How far from t a message may be, inclusive; None: any distance.
        columns: The columns to deliver; None: all but key and topic.
    """
    return Slerp(tolerance, columns)


def mean(span: Duration, *, columns: Sequence[str] | None = None) -> Mean:
    """The mean over the span before t.

    Args:
        span: How far back from t messages count: (t - span, t].
        columns: The columns to deliver; None: all but key and topic.
    """
    return Mean(span, columns)


def min(span: Duration, *, columns: Sequence[str] | None = None) -> Min:
    """The smallest value over the span before t.

    Args:
        span: How far back from t messages count: (t - span, t].
        columns: The columns to deliver; None: all but key and topic.
    """
    return Min(span, columns)


def max(span: Duration, *, columns: Sequence[str] | None = None) -> Max:
    """The largest value over the span before t.

    Args:
        span: How far back from t messages count: (t - span, t].
        columns: The columns to deliver; None: all but key and topic.
    """
    return Max(span, columns)


def parse_method(topic: str, given: object) -> Method:
    """A method as Python or a pipeline file writes it.

    Args:
        topic: The topic it is for; named in errors.
        given: A `Method`, a name (`"latest"`), or a mapping of one name to a tolerance or to its
            settings: `{"latest": "50 ms"}`, `{"linear": {"tolerance": "1 s", "columns": ["x"]}}`.

    Raises:
        ConfigError: If it is none of these.

    Example:
        >>> parse_method("joint", {"latest": "50 ms"})
        Latest(tolerance=50000000, columns=None)
    """
    field = f"topics[{topic!r}]"
    known = ", ".join(METHODS)
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        given = {given: None}
    if not isinstance(given, Mapping) or len(given) != 1:
        raise ConfigError(field, given, f"must be one method with its tolerance: {known}")
    [(name, value)] = given.items()
    if name not in METHODS:
        raise ConfigError(field, name, f"must be one of {known}")
    settings = dict(value) if isinstance(value, Mapping) else {"tolerance": value}
    if "span" in settings:
        settings["tolerance"] = settings.pop("span")
    unknown = sorted(set(settings) - {"tolerance", "columns"})
    if unknown:
        raise ConfigError(f"{field}.{name}", unknown[0], "may set tolerance (or span) and columns")
    return METHODS[name](**settings)
