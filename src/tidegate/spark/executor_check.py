"""What `tidegate doctor` finds out on an executor. Needs nothing but the standard library.

It travels by value, like `tidegate.spark.processor`: the question is whether the package can be
imported there at all.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

__all__ = ["PACKAGES", "ExecutorCheck"]

PACKAGES = ("tidegate", "pyspark", "pyarrow", "numpy", "numba", "pandas")
"""What a worker imports."""

STAY_S = 0.3
"""Seconds a check stays at its core, so that Spark gives the next one to another core. Below, one
quick executor would take them all."""


class ExecutorCheck:
    """A function for a UDF: a number in, what was found as JSON out.

    Args:
        marker: The name of a file that the driver has put into every path.
        paths: Local folders that must be the same for the driver and every executor.
    """

    def __init__(self, marker: str, paths: tuple[str, ...]) -> None:
        self.marker = marker
        self.paths = paths

    def __call__(self, number: int) -> str:
        """Return what was found. Called on an executor."""
        time.sleep(STAY_S)
        found: dict[str, Any] = {
            "host": socket.gethostname(),
            "java": _java_above(),
            "folder": os.getcwd(),
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "packages": {name: _version(name) for name in PACKAGES},
            "paths": {path: self._look_at(path) for path in self.paths},
            "kernels": _kept_kernels(),
        }
        return json.dumps(found)

    def _look_at(self, path: str) -> str:
        """Return what is wrong with a path here; empty if it is the driver's and can be written."""
        folder = Path(path)
        if not folder.is_dir():
            return "is not there"
        if not (folder / self.marker).is_file():
            return "is another folder than the driver's"
        own = folder / f"{self.marker}-{socket.gethostname()}-{os.getpid()}"
        try:
            own.write_text("")
        except OSError as error:
            return f"cannot be written to ({error.strerror})"
        return ""


def _java_above() -> int:
    """Return the process that this worker belongs to: its parent, or that of the daemon between."""
    status = Path(f"/proc/{os.getppid()}/stat")
    try:
        name, _, rest = status.read_text().rpartition(")")
        return os.getppid() if "java" in name else int(rest.split()[1])
    except (OSError, ValueError, IndexError):
        return os.getppid()


def _version(package: str) -> str:
    """Return the version of a package, or `missing: ` and why."""
    try:
        module = import_module(package)
    except Exception as error:  # a package may fail in any way when it is imported
        return f"missing: {type(error).__name__}: {error}"
    return str(getattr(module, "__version__", "unknown"))


def _kept_kernels() -> int:
    """Return how many compiled kernels numba has kept for this Python; -1: it can keep none."""
    try:
        home = Path(str(import_module("tidegate").__file__)).parent
    except Exception:
        return 0
    told = os.environ.get("NUMBA_CACHE_DIR")
    caches = [Path(told)] if told else [home]
    kept = sum(1 for cache in caches for _ in cache.rglob("*.nbi"))
    if kept:
        return kept
    place = caches[0] if told else home / "core" / "__pycache__"
    while not place.exists():
        place = place.parent
    return 0 if os.access(place, os.W_OK) else -1


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
