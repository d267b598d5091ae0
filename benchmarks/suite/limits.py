"""What the machine can do at best: the bare steps that a job cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def limits(path: Path) -> dict[str, Callable[[], object]]:
    """Each as a function to be timed, on the columns of the recording."""
    table = pq.read_table(path)
    rows = table.combine_chunks().to_batches()[0]
    t = rows.column("t").to_numpy()
    key = rows.column("key").to_numpy()
    order = pa.array(np.argsort(t, kind="stable"))
    block = np.ascontiguousarray(np.stack([t, t]))
    return {
        "numpy stable argsort of the times": lambda: np.argsort(t, kind="stable"),
        "argsort by key and time, and Arrow take": lambda: rows.take(
            pa.array(np.lexsort((t, key)))
        ),
        "Arrow take of all rows": lambda: rows.take(order),
        "memory copy of two columns": block.copy,
        "Parquet scan": lambda: pq.read_table(path),
    }


def timed(function: Callable[[], object]) -> dict[str, float]:
    used, began = time.process_time(), time.perf_counter()
    function()
    return {
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - used,
        "memory": 0.0,
    }


LIMIT_OF = {
    "reorder": "argsort by key and time, and Arrow take",
    "tumbling": "numpy stable argsort of the times",
    "sessions": "numpy stable argsort of the times",
    "sets": "numpy stable argsort of the times",
    "batches": "argsort by key and time, and Arrow take",
}
"""The step each job is set against: what putting its rows in order costs at least."""
