"""The core does no I/O, reads no clock, draws no random number and knows no Spark: by its imports
and calls, and by what is loaded when it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate

ROOT = Path(tidegate.__file__).parent
ALLOWED = {
    "__future__", "abc", "base64", "bisect", "collections", "contextlib", "ctypes", "dataclasses",
    "datetime", "decimal", "enum",
    "fractions", "functools", "hashlib", "heapq", "hmac", "itertools", "json", "math", "operator",
    "re", "struct", "threading", "types", "typing", "zlib",
    "warnings",  # tells the caller; where that is shown is the caller's choice
    "zoneinfo",  # its tables are data of the installation, like those of Unicode
    "numba", "numpy", "pyarrow", "tidegate",
}  # fmt: skip
FORBIDDEN_INSIDE = ("tidegate.spark", "tidegate.pipeline", "tidegate.report", "tidegate.cli",
                    "tidegate.testing", "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset",
                    "numpy.random")  # fmt: skip
CLOCKS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
          ("np", "random"), ("numpy", "random"), ("pa", "memory_map"), ("pa", "OSFile"),
          ("np", "load"), ("np", "save"), ("np", "fromfile")}  # fmt: skip
CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PURE = [
    path
    for path in sources("core", "eventtime", "sync", "align", "batching", "windows", "deltas")
    if "table" not in path.parts  # what keeps rows on disk
    and path.name not in ("recorded.py", "durable.py")  # read and write the disk
    and path != ROOT / "core" / "parallel.py"  # asks how many cores there are
]


def impurities(text: str) -> list[str]:
    """What a module of the core must not do, as far as its syntax shows it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        found += [name for name in names[:1] if name.split(".")[0] not in ALLOWED]
        found += [name for name in names if name.startswith(FORBIDDEN_INSIDE)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(f"{node.func.id}()")
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in CLOCKS
        ):
            found.append(f"{node.value.id}.{node.attr}")
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda p: str(p.relative_to(ROOT)))
def test_core_is_pure(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time", "import os", "import random", "from pyspark.sql import Row",
        "from datetime import datetime\nx = datetime.now()", "open('f')", "import pathlib",
        "import numpy as np\nnp.random.default_rng(0)", "from tidegate.spark import frames",
        "from tidegate import pipeline\nfrom tidegate.pipeline import plan", "import socket",
    ],
)  # fmt: skip
def test_the_check_itself_finds(text: str) -> None:
    assert impurities(text)


@pytest.mark.parametrize("path", sources("pipeline", "testing"), ids=lambda p: p.name)
def test_spark_stays_out_of_pipeline_and_testing(path: Path) -> None:
    imported = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom)
                     else [alias.name for alias in node.names])
    }  # fmt: skip
    assert not [name for name in imported if name.startswith(("pyspark", "tidegate.spark"))]


def test_nothing_loads_spark() -> None:
    program = (
        "import sys, tidegate.core.flow, tidegate.eventtime, tidegate.pipeline, "
        "tidegate.testing.fleet, tidegate.testing.laws\n"
        "assert not any(name.split('.')[0] in ('pyspark', 'pandas') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
