"""Tempo: as-of joins on Spark. They look back only: the newest message before each of the slowest
topic."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pyspark
from on_spark import Given, batch_job, in_time, session
from on_spark import prepare as prepare_files
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from tempo import TSDF

VERSION = f"{version('dbl-tempo')} on pyspark {pyspark.__version__}"


def prepare(path: str) -> Given:
    return prepare_files(path, session())


def sets(given: Given) -> DataFrame:
    rows = in_time(given.batch).select("id", "key", "topic", "t")
    out = _topic(rows, 3)
    for number in range(3):
        joined = out.asofJoin(_topic(rows, number), right_prefix="other")
        plain = joined.df.withColumnRenamed(f"other_id{number}", f"id{number}").drop("other_t")
        out = TSDF(plain, ts_col="t", partition_cols=["key"])
    return out.df.dropna()


def _topic(rows: DataFrame, number: int) -> TSDF:
    part = rows.where(F.col("topic") == number).select("key", "t", F.col("id").alias(f"id{number}"))
    return TSDF(part, ts_col="t", partition_cols=["key"])


JOBS = {"sets": batch_job(sets)}


def answer(job: str, rows: Any) -> dict[str, Any]:
    import numpy as np

    table = rows()
    return {"sets": np.stack([table[f"id{number}"].to_numpy() for number in range(4)], axis=1)}
