"""How much of a Python source a micro-batch reads: Spark's read limits, and what to do without.

Spark 4.2 asks a source how far the next micro-batch goes from an offset, within a limit, and takes
an available-now run in such steps. Spark 4.1 asks only how far there is something to read, and
reads all of it in one micro-batch:

    Spark 4.2 and later    latestOffset(start, limit), any number of micro-batches
    Spark 4.1              latestOffset(), one micro-batch for all there is

By the cut law the results are the same. Memory is not: on Spark 4.1 a backfill holds the rows of
all its files at once, and limits such as `maxFilesPerTrigger` are told to be of no effect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "IN_STEPS",
    "Asked",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "asked",
    "no_steps",
]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    IN_STEPS = True
    """Whether this Spark takes a Python source in steps."""
except ImportError:  # Spark 4.1 has none of them: stand-ins, which Spark never sees
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """The most that a micro-batch reads."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Everything there is."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most this many rows."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        """At most this many files."""

        max_files: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most about this many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A source that an available-now run takes in steps."""

    IN_STEPS = False


class Asked(NamedTuple):
    """What Spark asks `latestOffset`: from where on, and how much."""

    start: Any
    limit: ReadLimit


def asked(start: Any, limit: ReadLimit | None, beginning: Any) -> Asked:
    """Return what Spark wants from a reader.

    Args:
        start: The offset that Spark gives; None on Spark 4.1, which gives none. The answer is then
            as from the beginning: Spark compares it with the offset it has, and `partitions` leaves
            out what has been read.
        limit: The limit that Spark gives; None on Spark 4.1.
        beginning: The offset of a new stream.

    Example:
        >>> asked(None, None, {"piece": 0}).start
        {'piece': 0}
    """
    if start is None:
        return Asked(beginning, ReadAllAvailable())
    return Asked(start, limit if limit is not None else ReadAllAvailable())


def no_steps(in_steps: bool = IN_STEPS) -> list[str]:
    """Return a warning for a run over files on a Spark that takes them all at once; else nothing.

    >>> no_steps(in_steps=True)
    []
    """
    if in_steps:
        return []
    return [
        "this Spark is older than 4.2 and reads all files of a run in one micro-batch: they must "
        "fit in memory, and maxFilesPerTrigger and the like have no effect"
    ]
