"""Spark's Python daemon with everything a worker needs loaded before it forks.

Importing numba, pyarrow and the kernels takes about a second; done here it is paid once per machine
instead of once per worker.
"""

from __future__ import annotations

import numba  # noqa: F401  (loaded for the workers forked from here)
import pyarrow.compute  # noqa: F401

import tidegate.core.flow  # noqa: F401

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
