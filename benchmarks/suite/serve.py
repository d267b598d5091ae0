"""A contestant's process: does a job once per line of input, and says how long it took.

Runs in the contestant's own environment, so it knows nothing but numpy.

    python serve.py CONTESTANT DATA

A line in is a job, or `answer JOB PATH` to write what the last job found. A line out is JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import usage


def main() -> None:
    name, path = sys.argv[1], sys.argv[2]
    sys.path.insert(0, str(Path(__file__).parent / "contestants"))
    module = importlib.import_module(f"with_{name}")
    prepared: Any = module.prepare(path)
    say({"jobs": list(module.JOBS), "version": module.VERSION})
    result: Any = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "answer":
            np.savez(words[2], **plain(module.answer(words[1], result)))
            say({"ok": True})
            continue
        job = module.JOBS[words[0]]
        result = None  # what the last round found is not in the way of this one
        used, began = usage.cpu_seconds(), time.perf_counter()
        result = job(prepared)
        wall, cpu = time.perf_counter() - began, usage.cpu_seconds() - used
        say({"wall": wall, "cpu": cpu, "memory": usage.peak_bytes()})


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Arrays that need no pickle: text as text."""
    return {
        name: values.astype(str) if values.dtype == object else values
        for name, values in answer.items()
    }


def say(what: dict[str, Any]) -> None:
    os.write(OUT, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    # Libraries, and the Java they start, print what they like: it goes where errors go.
    OUT = os.dup(1)
    os.dup2(2, 1)
    main()
