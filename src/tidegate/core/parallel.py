"""Work side by side, where a process has more than one core to itself.

Arrow and the kernels let go of Python's lock, so threads are enough. How many: what `use` said, or
TIDEGATE_THREADS, or OMP_NUM_THREADS (which Spark sets to the cores of a task), or all cores.
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
"""Rows from which on it is worth the trouble."""

_count: int | None = None
_pool: ThreadPoolExecutor | None = None


def count() -> int:
    """How many threads work at the same time."""
    global _count
    if _count is None:
        _count = _told("TIDEGATE_THREADS") or _told("OMP_NUM_THREADS") or _cores()
    return _count


def use(threads: int) -> None:
    """From now on so many."""
    global _count
    if threads < 1:
        raise ConfigError("threads", threads, "must be at least 1")
    _count = threads
    _close()


def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of each item, in order of the items. The caller's thread works too.

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
    """So many rows cut into parts of one size, one for each thread; few rows are one part.

    >>> parts(10)
    [slice(0, 10, None)]
    """
    some = count() if rows >= MANY else 1
    edges = [rows * part // some for part in range(some + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


def whole_runs(values: NDArray[Any]) -> list[slice]:
    """The same for entries of which equal ones lie next to each other, and stay together.

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
    said = os.environ.get(variable, "")
    if said and not (said.isdecimal() and int(said) > 0):
        if variable == "TIDEGATE_THREADS":
            raise ConfigError(variable, said, "must be a whole number, at least 1")
        return 0  # another's setting, in another's words
    return int(said or 0)


def _cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _close() -> None:
    """The threads end with their work; a forked process has none of them and starts its own."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close)
