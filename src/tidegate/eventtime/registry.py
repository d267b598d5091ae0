"""The registry of event-time types: a name, and a parser for whole columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Int64s
from tidegate.errors import ConfigError, ContractError

__all__ = ["EventtimeTypes", "Parsed", "Parser"]


@dataclass(frozen=True, eq=False)
class Parsed:
    """Times in nanoseconds, and for each row that has none the reason (null where it parsed)."""

    time_ns: Int64s
    reason: pa.Array

    @property
    def ok(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray(self.reason.is_null().to_numpy(zero_copy_only=False), np.bool_)


Parser = Callable[[pa.Array], "Parsed | pa.Array"]
"""A whole Arrow column in; `Parsed` out, or simply an int64 column of nanoseconds with nulls."""


class EventtimeTypes:
    """Names of event-time types and their parsers. A new one starts with the built-in types.

    >>> types = EventtimeTypes()
    >>> types.list()
    ['iso8601', 'timestamp', 'unixtimestamp_ms', 'unixtimestamp_ns', 'unixtimestamp_s', \
'unixtimestamp_us']
    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> types.register("gps_seconds", lambda column: pc.multiply(column, 1_000_000_000))
    >>> types.parse("gps_seconds", pa.array([2, None])).time_ns[0]
    np.int64(2000000000)
    >>> types.resolve("gps")
    Traceback (most recent call last):
        ...
    tidegate.errors.ConfigError: eventtime type `gps` not registered (available: gps_seconds, \
iso8601, timestamp, unixtimestamp_ms, unixtimestamp_ns, unixtimestamp_s, unixtimestamp_us)
    """

    def __init__(self) -> None:
        from tidegate.eventtime.parsers import BUILT_IN

        self._parsers: dict[str, Parser] = dict(BUILT_IN)

    def register(self, name: str, parser: Parser, *, replace: bool = False) -> None:
        """Add a type. Refuses to replace one unless told to."""
        if not name or not isinstance(name, str):
            raise ConfigError("eventtime.type", name, "must be a non-empty name")
        if not callable(parser):
            raise ConfigError(f"parser of {name}", parser, "must be callable with an Arrow column")
        if name in self._parsers and not replace:
            raise ConfigError(
                "eventtime.type", name, "is registered already; pass replace=True to replace it"
            )
        self._parsers[name] = parser

    def resolve(self, name: str) -> Parser:
        """The parser of a type; an unknown name says which are known."""
        try:
            return self._parsers[name]
        except KeyError:
            known = ", ".join(self.list())
            raise ConfigError(
                "eventtime.type",
                name,
                f"must be one of {known}",
                message=f"eventtime type `{name}` not registered (available: {known})",
            ) from None

    def list(self) -> list[str]:
        """The known names, sorted."""
        return sorted(self._parsers)

    def parse(self, name: str, column: pa.Array) -> Parsed:
        """Read a column with the parser of this name."""
        result = self.resolve(name)(column)
        if isinstance(result, Parsed):
            return result
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array) or len(result) != len(column):
            raise ContractError(f"parser of `{name}` must return one time per row, got {result!r}")
        missing = np.asarray(result.is_null().to_numpy(zero_copy_only=False), np.bool_)
        time_ns = result.fill_null(0).cast(pa.int64()).to_numpy()
        reason = pa.array([f"not a {name}" if m else None for m in missing], pa.string())
        return Parsed(time_ns, reason)
