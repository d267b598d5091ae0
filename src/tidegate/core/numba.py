"""How kernels are compiled: the only place that calls numba.

A kernel is a plain function over arrays that makes sequential decisions, row by row. It is compiled
on first use and cached on disk beside its source (`Operator.compile` does so on the driver). It
runs unchanged without the JIT (`NUMBA_DISABLE_JIT=1`), which is how it is debugged and covered.
Compiled kernels check no bounds: their callers guarantee the indices.

The largest kernels take ten to twenty seconds to compile, a row in plain Python a tenth of a
millisecond. So on a machine that has never run them, `interpret_first` runs the first few thousand
rows in plain Python: a first look at a small recording, a notebook or a doctest never compiles.
Where it does compile, it warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

__all__ = [
    "all_readonly",
    "as_readonly",
    "brief_kernel",
    "compile_at_once",
    "entry_point",
    "interpret_first",
    "kernel",
    "lean_inline",
    "lean_inner",
    "lean_kernel",
    "prefetch",
    "written_in",
]

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit  # its stubs know only the documented options
_types: Any = numba.types
_ir: Any = cgutils.ir  # type: ignore[attr-defined]  # llvmlite's, which has no stubs


def _lean_options() -> dict[str, bool]:
    """The options that switch off reference counts, if this numba has them."""
    # Not a documented option of numba, so a version that lacks it must still work, only slower.
    try:
        _njit(_nrt=False)(lambda: None)
    except (KeyError, TypeError):
        return {}
    return {"_nrt": False}


_LEAN = _lean_options()


def _tolerant(dispatcher: Any) -> Any:
    """Let a cache that cannot be read count as no cache.

    Numba unpickles its index before it looks whether the source has changed. The index names the
    NamedTuples that a kernel takes, so after an upgrade that renamed one, reading it would raise.
    """
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    if load is not None:

        def load_or_nothing() -> Any:
            try:
                return load()
            except Exception:
                return {}

        file._load_index = load_or_nothing
    return dispatcher


def kernel(function: F) -> F:
    """Compile `function` with numba: cached, without the GIL, without fast-math."""
    return cast(F, _tolerant(_njit(cache=True, nogil=True)(function)))


def brief_kernel(function: F) -> F:
    """`kernel` that keeps the GIL: for a call of a few hundred nanoseconds, of which handing over
    the GIL and getting it back would be a quarter."""
    return cast(F, _tolerant(_njit(cache=True)(function)))


def lean_kernel(function: F) -> F:
    """`kernel` without reference counts: only for functions that allocate nothing.

    Numba counts references to every array a compiled function hands to another one, atomically.
    Where small functions pass several arrays around per message, that is most of the time: the
    synchroniser ran six times faster without.
    """
    return cast(F, _tolerant(_njit(cache=True, nogil=True, **_LEAN)(function)))


def lean_inner(function: F) -> F:
    """`lean_kernel` that only other kernels call: without the entry points for Python and C, which
    take about as long to compile as the function itself where it is handed many arrays."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_LEAN}
    return cast(F, _njit(cache=True, nogil=True, **options)(function))


def lean_inline(function: F) -> F:
    """`lean_kernel` that becomes part of its caller: for a step called once per message, whose
    arguments (seven words per array) would cost more than its work. Call it from one place only."""
    return cast(F, _tolerant(_njit(cache=True, nogil=True, forceinline=True, **_LEAN)(function)))


def written_in(function: F) -> F:
    """A function that is written into each of its callers before these are compiled: for views of
    arrays that several kernels make alike. It may return records, which a compiled function cannot,
    and never runs by itself."""
    return cast(F, _njit(inline="always")(function))


INTERPRETED_ROWS = 5_000
"""Rows that a kernel handles in plain Python before it is compiled: about half a second's worth, a
small share of what compiling takes. Above some 100,000, plain Python would take longer than
compiling; below a thousand, a first look at a recording compiles."""

_at_once = False


@contextmanager
def compile_at_once() -> Iterator[None]:
    """Within this, `interpret_first` compiles at the first call, whatever its size: for
    `Operator.compile`, and for a program that must not pause later while it runs."""
    global _at_once
    before, _at_once = _at_once, True
    try:
        yield
    finally:
        _at_once = before


def interpret_first(function: F, work: Callable[..., int], rows: int = INTERPRETED_ROWS) -> F:
    """A kernel that runs in plain Python until it has handled `rows` rows, and compiled from then
    on.

    Where it is compiled already, or in numba's cache on disk, it runs compiled from the first call
    on. Results are the same either way.

    Args:
        function: made by `kernel` or `lean_kernel`, called with positional arguments. Only for
            kernels whose arithmetic stays within int64: plain Python does not wrap around.
        work: how many rows a call handles, from the same arguments.
        rows: how many are handled in plain Python. More than the default where compiling takes so
            long that a first call of usual size should not wait for it.
    """
    dispatcher: Any = function
    if not hasattr(dispatcher, "overloads"):
        return function  # without the JIT
    plain: list[Any] = []
    done = 0
    cached: bool | None = None  # asked once: it reads the disk, and calls may bring no rows

    def call(*arguments: Any) -> Any:
        nonlocal done, cached
        if cached is None:
            cached = bool(dispatcher.overloads) or _is_cached(dispatcher, arguments)
        if not cached and not dispatcher.overloads:
            done += work(*arguments)
            if done <= rows and not _at_once:
                if not plain:
                    plain.append(_in_python(dispatcher, {}))
                with np.errstate(all="ignore"):  # as compiled: numpy's warnings are not for users
                    return plain[0](*arguments)
            if not _at_once:
                _announce_compiling()
        return dispatcher(*arguments)

    return cast(F, call)


_announced = False


def _announce_compiling() -> None:
    """Warn, once per process, that a wait is for the compiler."""
    global _announced
    if not _announced:
        _announced = True
        warnings.warn(
            "tidegate compiles its kernels for this machine, once: up to half a minute "
            "(`tidegate warm` does it beforehand)",
            stacklevel=3,
        )


def _is_cached(dispatcher: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether numba has the kernel on disk for arguments of these types."""
    try:
        signature = tuple(dispatcher.typeof_pyval(argument) for argument in arguments)
        return dispatcher._cache.load_overload(signature, dispatcher.targetctx) is not None
    except Exception:  # not numba's documented interface: where it differs, compile as ever
        return True


def _in_python(dispatcher: Any, twins: dict[int, dict[str, Any]]) -> Any:
    """The function behind a kernel, calling the functions behind the kernels that it calls.

    Args:
        dispatcher: the kernel.
        twins: by identity of a module's globals: a copy of them in which kernels are functions.
            Filled in here.
    """
    function = dispatcher.py_func
    names = function.__globals__
    if id(names) not in twins:
        twins[id(names)] = twin = dict(names)
        for name, value in names.items():
            if hasattr(value, "py_func"):
                twin[name] = _in_python(value, twins)
    twin = twins[id(names)]
    made = FunctionType(function.__code__, twin, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def as_readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only, contiguous view (a copy only if the array is not contiguous).

    Arrow's arrays are read-only, numpy's are writable, and numba compiles a kernel once for every
    mixture of the two that it is called with. What a kernel only reads is passed through here, so
    that there is one mixture.
    """
    view = (array if array.flags.c_contiguous else np.ascontiguousarray(array)).view()
    view.flags.writeable = False
    return view


def all_readonly(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """`as_readonly` of several arrays: those that one kernel reads."""
    return tuple(as_readonly(array) for array in arrays)


def entry_point(function: F, *types: str) -> F:
    """A kernel as the plain C function behind it, for one combination of argument types.

    Called through numba's dispatcher, a kernel looks at the types of its arguments first. Where a
    call takes a microsecond in all, that is a third of it. The caller guarantees the types: whole
    numbers that fit into 64 bits for `int64`. Without the JIT, or with a numba that does not offer
    it, the kernel itself is returned.

    Args:
        function: made by `kernel` or `lean_kernel`.
        types: numba's names of the argument types. The kernel is compiled for them, or read from
            the cache, if that has not happened yet.
    """
    dispatcher: Any = function
    if not hasattr(dispatcher, "overloads"):
        return function
    wanted = tuple(getattr(_types, name) for name in types)
    dispatcher.compile(wanted)
    found = getattr(dispatcher.overloads.get(wanted), "entry_point", None)
    return cast(F, found) if callable(found) else function


CACHE_LINE_BYTES = 64
"""What one access to memory brings into the cache, on every processor we know."""


def prefetch(records: NDArray[Any], i: Any) -> None:
    """Ask the processor to bring entry `i` of an array into the cache, without waiting for it.

    For kernels that go through large records in an order that the processor cannot guess: asked for
    while the record before is worked on, memory no longer counts. Does nothing in plain Python.

    Args:
        records: An array, also of records; of more dimensions, `i` counts along the first.
        i: Index of the entry; must exist. At most 512 bytes of it are brought in.
    """


@intrinsic
def _prefetch_line(typing_context: Any, address: Any) -> Any:
    """Emit the instruction for one cache line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, pointer = cgutils.int32_t, cgutils.voidptr_t
        kind = _ir.FunctionType(_ir.VoidType(), [pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        place = builder.inttoptr(arguments[0], pointer)
        # For reading and writing, to be kept in all caches, data rather than instructions.
        builder.call(function, [place, word(1), word(3), word(1)])
        return context.get_dummy_value()

    return _types.void(_types.intp), generate


_line: Any = _prefetch_line  # numba fills in its first argument


@overload(prefetch)
def _compiled_prefetch(records: Any, i: Any) -> Any:
    """What `prefetch` is in compiled code."""

    def compiled(records: Any, i: Any) -> None:
        place = records.ctypes.data + i * records.strides[0]
        for line in range(min(records.strides[0], 512) // CACHE_LINE_BYTES + 1):
            _line(place + line * CACHE_LINE_BYTES)

    return compiled
