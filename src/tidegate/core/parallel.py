"""Threads for bulk work, where a process has more than one core.

Arrow and the kernels release Python's lock, so threads are enough. The number of threads is the one
given to `use`, else TIDEGATE_THREADS, else OMP_NUM_THREADS (which Spark sets to the cores of a
task), else the number of cores this process may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

from numpy.typing import NDArray

from tidegate.errors import ConfigError

__all__ = ["MANY", "count", "each", "parts", "use", "whole_runs"]

T = TypeVar("T")
R = TypeVar("R")

MANY = 1 << 16
"""Below this many rows, threads cost more than they save."""

_count: int | None = None
_pool: ThreadPoolExecutor | None = None


def count() -> int:
    """The number of threads that work at the same time, the caller's included."""
    global _count
    if _count is None:
        _count = _told("TIDEGATE_THREADS") or _told("OMP_NUM_THREADS") or _cores()
    return _count


def use(threads: int) -> None:
    """Set the number of worker threads, at least 1. Raises `ConfigError` for less."""
    global _count
    if threads < 1:
        raise ConfigError("threads", threads, "must be at least 1")
    _count = threads
    _close()


def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call `work` with every item, by several threads; the results in order of the items.

    The caller's thread works too. If a call raises, no further item is begun, and the first error
    is raised once those under way have ended.

    >>> each(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    global _pool
    if count() == 1 or len(items) < 2:
        return [work(item) for item in items]
    if _pool is None:
        _pool = ThreadPoolExecutor(count() - 1, thread_name_prefix="tidegate")
    left = list(range(len(items)))[::-1]
    out: dict[int, R] = {}

    def share() -> None:
        while left:
            try:
                number = left.pop()
            except IndexError:  # another thread took the last one
                return
            out[number] = work(items[number])

    helpers = [_pool.submit(share) for _ in range(min(count(), len(items)) - 1)]
    try:
        share()
    finally:
        left.clear()
        for helper in helpers:
            if not helper.cancel():  # one that has not begun is not waited for
                helper.result()
    return [out[number] for number in range(len(items))]


def parts(rows: int) -> list[slice]:
    """Slices that cut `rows` rows into one part of equal size per thread; below `MANY`, one part.

    >>> parts(10)
    [slice(0, 10, None)]
    """
    some = count() if rows >= MANY else 1
    edges = [rows * part // some for part in range(some + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


def whole_runs(values: NDArray[Any]) -> list[slice]:
    """`parts` of an array in which equal values are adjacent: no run of equal values is cut.

    >>> import numpy as np
    >>> whole_runs(np.array([3, 3, 1]))
    [slice(0, 3, None)]
    """
    edges = {0, len(values)}
    for part in parts(len(values))[1:]:
        other = values[part.start :] != values[part.start - 1]
        edges.add(part.start + int(other.argmax()) if other.any() else len(values))
    return [slice(first, last) for first, last in pairwise(sorted(edges))] or [slice(0, 0)]


def _told(variable: str) -> int:
    """The number of threads that a variable asks for; 0 if it says nothing usable."""
    said = os.environ.get(variable, "")
    if said and not (said.isdecimal() and int(said) > 0):
        if variable == "TIDEGATE_THREADS":
            raise ConfigError(variable, said, "must be a whole number, at least 1")
        return 0  # OMP_NUM_THREADS may hold a list, which is for OpenMP alone
    return int(said or 0)


def _cores() -> int:
    """The number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _close() -> None:
    """Let go of the pool: its threads end with their work. A forked process has none of them and
    makes a pool of its own."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close)
