"""The one way kernels are compiled.

A kernel is a plain function over int64 arrays: sequential decisions and nothing else. It is
compiled on first use, cached on disk beside its source, and runs unchanged without the JIT
(`NUMBA_DISABLE_JIT=1`), which is how it is debugged and covered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` with numba: cached, without the GIL, without fast-math."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
