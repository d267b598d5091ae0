"""A contestant's process: does a job once per line of input, and says how long it took.

Runs in the contestant's own environment, so it knows nothing but numpy and pyarrow.

    python serve.py CONTESTANT DATA

A line in is a job, or `answer JOB PATH` to write the last answer. A line out is JSON.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq


def main() -> None:
    name, path = sys.argv[1], sys.argv[2]
    sys.path.insert(0, str(Path(__file__).parent / "contestants"))
    module = importlib.import_module(f"with_{name}")
    table = pq.read_table(path)
    prepared: Any = module.prepare(table)
    say({"jobs": sorted(module.JOBS), "version": module.VERSION})
    answers: dict[str, dict[str, Any]] = {}
    for line in sys.stdin:
        words = line.split()
        if words[0] == "answer":
            np.savez(words[2], **answers[words[1]])
            say({"ok": True})
            continue
        job = module.JOBS[words[0]]
        used, began = time.process_time(), time.perf_counter()
        result = job(prepared)
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        answers[words[0]] = module.answer(words[0], result)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say({"wall": wall, "cpu": cpu, "memory": most})


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
