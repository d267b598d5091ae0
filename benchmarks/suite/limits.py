"""What the machine can do at best: the bare steps that a job cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from suite.answers import vector_numbers
from suite.data import DIMS, VECTORS, deltas_of
from suite.pieces import COPY, ORDER, SCAN, SCATTER, SORT, TAKE


def limits(path: Path) -> dict[str, Callable[[], object]]:
    """Each as a function to be timed, on the columns of the recording."""
    table = pq.read_table(path)
    rows = table.combine_chunks().to_batches()[0]
    t = rows.column("t").to_numpy()
    key = rows.column("key").to_numpy()
    order = pa.array(np.argsort(t, kind="stable"))
    block = np.ascontiguousarray(np.stack([t, t]))
    deltas = pq.read_table(deltas_of(path))
    each = pc.list_value_length(deltas["indices"]).to_numpy()
    vector = np.repeat(vector_numbers(deltas["vector_id"]), each)
    place = pc.list_flatten(deltas["indices"]).to_numpy()
    values = pc.list_flatten(deltas["values"]).to_numpy()
    vectors = np.zeros((VECTORS, DIMS))

    def scatter() -> None:
        vectors[vector, place] = values

    return {
        SORT: lambda: np.argsort(t, kind="stable"),
        ORDER: lambda: rows.take(pa.array(np.lexsort((t, key)))),
        TAKE: lambda: rows.take(order),
        COPY: block.copy,
        SCAN: lambda: pq.read_table(path),
        SCATTER: scatter,
    }


def timed(function: Callable[[], object]) -> dict[str, float]:
    used, began = time.process_time(), time.perf_counter()
    function()
    return {
        "wall": time.perf_counter() - began,
        "cpu": time.process_time() - used,
        "memory": 0.0,
    }
