"""Count the calls that cross a file border while one collection passes through an operator.

A call crosses a border when caller and callee stand in different files of `src/tidegate`. The
number says how many files a reader has to hold open to follow one collection. Kernels count as
well: run with `--kernels` to switch the compiler off, so that calls from kernel to kernel are
Python calls and are seen.

    PYTHONPATH=src .venv/bin/python benchmarks/borders.py            # every operator below
    PYTHONPATH=src .venv/bin/python benchmarks/borders.py window     # one of them
    PYTHONPATH=src .venv/bin/python benchmarks/borders.py window --list     # and each border

Each case is measured twice: the operator alone (`process` and `advance`), and in a `Flow` behind
an event-time stage, which adds the borders of the flow, the decoder and that stage.

Another operator: add a function to `CASES` that returns the operator and its input columns, or use
`borders(call)` on any call (warmed up, so that imports, plans and compilation are not counted).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

if "--kernels" in sys.argv:  # before numba is imported
    os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np
import pyarrow as pa

import tidegate
from tidegate.core.flow import Flow
from tidegate.core.numba import compile_at_once
from tidegate.core.outcomes import Collection, Watermark
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn

PACKAGE = str(Path(tidegate.__file__).parent)
"""Files outside this folder are left out; a call through them counts where it comes back."""


ROWS = 100
"""Rows of a measured run, half of them before the measurement: enough that every case emits."""

Case = tuple[Any, dict[str, Any]]
"""An operator and the columns of its input."""


class Borders(NamedTuple):
    """What `borders` counted."""

    functions: int
    files: int
    crossings: int
    pairs: Counter[tuple[str, str]]
    """Crossings by (calling function, called function), each as `file:function`."""


def borders(call: Callable[[], Any]) -> Borders:
    """Run `call` once and count its functions, its files and the calls between files.

    Comprehensions and lambdas count as part of the function they stand in. A call that goes
    through a library (`sorted(key=...)`, `map`) has the nearest caller in the package.
    """
    functions: set[tuple[str, str]] = set()
    pairs: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _ours(frame):
            return
        functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and not _ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            pairs[_name(caller), _name(frame)] += 1

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = {file for file, _ in functions}
    return Borders(len(functions), len(files), sum(pairs.values()), pairs)


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _name(frame: FrameType) -> str:
    file = Path(frame.f_code.co_filename).relative_to(PACKAGE)
    return f"{file}:{frame.f_code.co_qualname}"


def window(n: int) -> Case:
    """A window of ten rows with two aggregates."""
    from tidegate.windows import CountWindow, Window

    stage = Window(CountWindow(10), aggregates={"n": "count", "mean": ("mean", "v")})
    return stage, {"v": np.arange(float(n))}


def compact(n: int) -> Case:
    """Compaction of the chains of two vectors: every 30 deltas are folded."""
    from tidegate.deltas import Compact

    ids = [f"d{i}" for i in range(n)]
    rows = {
        "delta_id": ids,
        "vector_id": [f"v{i % 2}" for i in range(n)],
        "parent": [None, None, *ids[:-2]],
        "op": ["create"] * 2 + ["dense"] * (n - 2),
        "values": [[float(i), 1.0] for i in range(n)],
    }
    return Compact(2, delta_threshold=30), rows


def synchronize(n: int) -> Case:
    """Approximate synchronisation of two topics."""
    from tidegate.sync import Synchronize

    stage = Synchronize(("a", "b"), queue_size=10)
    return stage, {"topic": (["a", "b"] * n)[:n], "v": np.arange(float(n))}


CASES = {"window": window, "compact": compact, "synchronize": synchronize}


def alone(case: Case, n: int) -> Callable[[], Any]:
    """The second of two collections through the operator by itself, with its watermark."""
    stage, columns = case
    state, rows, times = stage.open(), pa.record_batch(columns), np.arange(1, n + 1) * 1_000_000

    def half(first: int, last: int) -> None:
        stage.process(state, Collection.of(rows.slice(first, last - first), times[first:last]))
        stage.advance(state, Watermark.at(int(times[last - 1])))

    half(0, n // 2)
    return lambda: half(n // 2, n)


def in_flow(case: Case, n: int) -> Callable[[], Any]:
    """The same behind an event-time stage, with times to be parsed and keys to be found."""
    stage, columns = case
    decoder = Decoder((TimeColumn("t", "unixtimestamp_ms"),))
    flow = Flow([EventtimeWatermark("1 ms"), stage], key="car", decoder=decoder)
    rows = pa.record_batch({"car": ["a"] * n, "t": np.arange(1, n + 1), **columns})
    flow.process(rows.slice(0, n // 2), wall_ns=1)
    return lambda: flow.process(rows.slice(n // 2), wall_ns=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="*", help=f"operators to measure: {', '.join(CASES)}")
    parser.add_argument("--list", action="store_true", help="every border with its count")
    parser.add_argument("--kernels", action="store_true", help="count calls inside kernels too")
    given = parser.parse_args()
    for name in given.case or CASES:
        for setting in (alone, in_flow):
            with compile_at_once():  # kernels in plain Python would count as callers
                found = borders(setting(CASES[name](ROWS), ROWS))
            print(
                f"{name:12} {setting.__name__:8} {found.crossings:4} border crossings, "
                f"{found.functions:4} functions in {found.files:3} files"
            )
            if given.list:
                for (caller, callee), count in found.pairs.most_common():
                    print(f"  {count:4}  {caller} -> {callee}")


if __name__ == "__main__":
    main()
