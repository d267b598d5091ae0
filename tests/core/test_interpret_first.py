"""The first rows on a new machine run in plain Python: soon, and with the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.batching import Batch
from tidegate.core.chain import Chain
from tidegate.core.numba import INTERPRETED_ROWS, compile_at_once, interpret_first, kernel
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Watermark
from tidegate.sync import Synchronize
from tidegate.testing.laws import rows_of
from tidegate.windows import CountWindow, Session, Sliding, Tumbling, Window

STAGES: dict[str, Operator] = {
    "batch": Batch("1 s", rates="any"),
    "sync": Synchronize(topics=("a", "b"), queue_size=4),
    "tumbling": Window(Tumbling("1 s"), aggregates={"x": ("sum", "x"), "n": "count"}),
    "sliding": Window(Sliding("2 s", "500 ms"), aggregates={"x": ("mean", "x")}),
    "session": Window(Session("90 ms"), aggregates={"x": ("max", "x")}),
    "count": Window(CountWindow(7)),
}


def outcomes(stage: Operator) -> list[Any]:
    """What comes out of 400 rows of two keys, some of them not in order, and at the end."""
    n = 400
    rng = np.random.default_rng(7)
    times = np.arange(n) // 4 * 71_428_571 + rng.integers(-30_000_000, 30_000_000, n)
    rows = pa.record_batch(
        {"topic": [("a", "b")[k % 2] for k in range(n)], "x": (np.arange(n) % 61).astype(float)}
    )
    chain = Chain((stage,))
    states = chain.open(2)
    lane = (np.arange(n) // 2 % 2).astype(np.int32)
    out = []
    for part in (slice(0, 150), slice(150, n)):
        length = part.stop - part.start
        piece = rows.slice(part.start, length)
        out += chain.process(states, Collection(piece, times[part], lane[part]))
        reached = np.full(2, times[part].min() - 1)
        out += chain.advance(states, Watermark(reached, np.arange(2, dtype=np.int32)))
    out += chain.flush(states)
    return sorted([list(key), str(rows)] for key, rows in rows_of(out).items())


def test_first_batches_are_soon_and_the_same(tmp_path: Path) -> None:
    """In a process with an empty cache: nothing large is compiled, which would warn."""
    here = Path(__file__)
    env = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(here.parents[2] / "src"), str(here.parent)]),
    }
    code = f"import {here.stem} as t; t.show()"
    found = subprocess.run(
        [sys.executable, "-W", "error:tidegate compiles:UserWarning", "-c", code],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    for name, made in json.loads(found.stdout).items():
        with compile_at_once():
            assert made == json.loads(json.dumps(outcomes(STAGES[name]))), name


def show() -> None:
    """Print what each stage makes."""
    print(json.dumps({name: outcomes(stage) for name, stage in STAGES.items()}))


@kernel
def add_one(values: Any) -> Any:
    """Count up in place; returns the first value."""
    for i in range(len(values)):
        values[i] += 1
    return values[0]


def test_many_rows_are_compiled() -> None:
    if not hasattr(add_one, "overloads"):
        pytest.skip("without the JIT")
    counted = interpret_first(add_one, len)
    values = np.zeros(INTERPRETED_ROWS - 1, np.int64)
    add_one._cache.load_overload = lambda *_: None  # type: ignore[attr-defined]
    assert counted(values) == 1
    assert not add_one.overloads
    assert counted(values) == 2
    assert add_one.overloads


@kernel
def add_two(values: Any) -> Any:
    """Count up by two in place."""
    for i in range(len(values)):
        values[i] += 2
    return values[0]


def test_a_wait_for_the_compiler_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(add_two, "overloads"):
        pytest.skip("without the JIT")
    warnings.simplefilter("error")  # pytest undoes it
    monkeypatch.setattr("tidegate.core.numba._announced", False)
    monkeypatch.setattr("tidegate.core.numba._is_cached", lambda *_: False)
    made = interpret_first(add_two, len)
    made(np.zeros(INTERPRETED_ROWS, np.int64))  # in plain Python, without a word
    with pytest.warns(UserWarning, match="`tidegate warm` does it beforehand"):
        made(np.zeros(1, np.int64))
    made(np.zeros(1, np.int64))
