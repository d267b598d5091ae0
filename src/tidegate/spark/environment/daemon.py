"""Spark's Python daemon with everything a worker needs loaded before it forks.

Importing Arrow, numba, pandas and the kernels takes a second and a half of CPU; done here it is
paid once per machine instead of once per worker. Pythons that plan a data source (see
`tidegate.spark.environment.python`) run no kernels on lists and need no pandas.

Between two tasks pyspark collects a worker's garbage. Every collection would visit all that is
loaded here: 110,000 objects, 48 ms of CPU, and a micro-batch of a few rows has six tasks. They are
frozen: never visited, and their memory stays shared between the workers.
"""

from __future__ import annotations

import gc
import sys

import pyarrow.compute
import pyarrow.parquet  # noqa: F401  (loaded for the workers forked from here)

import tidegate.spark.columnar.parquet
import tidegate.spark.columnar.source

if "pyspark.worker" in sys.argv:
    import pandas  # noqa: F401  (Arrow loads it when it sees the first list)

    import tidegate.spark.stateful_step  # noqa: F401

gc.collect()
gc.freeze()

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
