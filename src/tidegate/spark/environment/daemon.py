"""Spark's Python daemon with everything a worker needs loaded before it forks.

Importing Arrow, numba, pandas and the kernels takes a second and a half of CPU; done here it is
paid once per machine instead of once per worker. Pythons that plan a data source (see
`tidegate.spark.environment.python`) run no kernels on lists and need no pandas.

After every task pyspark collects the garbage of its worker. That visits all objects that are
loaded: 110,000 here, 48 ms of CPU, and as many again of numba's once kernels run; a micro-batch of
a few rows has six tasks. So what is loaded is frozen: never visited, and its memory stays shared
between the workers.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, cast

import pyarrow.compute
import pyarrow.parquet  # noqa: F401  (loaded for the workers forked from here)
import pyspark.daemon

import tidegate.spark.columnar.parquet
import tidegate.spark.columnar.source

if "pyspark.worker" in sys.argv:
    import pandas  # noqa: F401  (Arrow loads it when it sees the first list)

    import tidegate.spark.stateful_step  # noqa: F401

FREEZES = 8
"""Collections of a worker after which it freezes what is left. Kernels and modules are loaded when
they are first needed, so one misses some; if all did, every object that a task leaves in a cycle
would be kept."""


class FreezingCollector:
    """Stands in for the module `gc` in pyspark's daemon."""

    def __init__(self) -> None:
        self.left = FREEZES

    def collect(self) -> None:
        """Collect garbage. Called by pyspark in a worker, after each of its tasks."""
        gc.collect()
        if self.left:
            self.left -= 1
            gc.freeze()

    def __getattr__(self, name: str) -> Any:
        return getattr(gc, name)


cast(Any, pyspark.daemon).gc = FreezingCollector()
gc.collect()
gc.freeze()

if __name__ == "__main__":
    pyspark.daemon.manager()
