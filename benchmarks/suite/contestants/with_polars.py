"""Polars: what its documentation offers for each job, in its lazy engine."""

from __future__ import annotations

from typing import Any

import polars as pl

VERSION = pl.__version__
TOLERANCE, GAP = 200_000_000, 500_000_000


def prepare(path: str) -> Any:
    return pl.read_parquet(path), pl.read_parquet(path.replace(".parquet", ".deltas.parquet"))


def _in_time(df: Any) -> Any:
    newest = pl.col("t").cum_max().shift(1).over("key")
    return df.lazy().filter((pl.col("t") > newest - TOLERANCE - 1).fill_null(True))


def reorder(given: Any) -> Any:
    return _in_time(given[0]).sort("key", "t", maintain_order=True).collect()


def tumbling(given: Any) -> Any:
    start = (pl.col("t") // 10**9 * 10**9).alias("start")
    groups = _in_time(given[0]).group_by("key", "topic", start)
    return groups.agg(pl.len().alias("n"), pl.col("value").mean().alias("m")).collect()


def sessions(given: Any) -> Any:
    rows = _in_time(given[0].lazy().filter(pl.col("topic") == 3)).sort("key", "t")
    new = (pl.col("t").diff().over("key") > GAP).fill_null(True).cum_sum().alias("session")
    groups = rows.group_by("key", new)
    first, last = pl.col("t").min().alias("first"), pl.col("t").max().alias("last")
    return groups.agg(first, last, pl.len().alias("n")).collect()


def sets(given: Any) -> Any:
    """As-of joins to the slowest topic: the nearest message of each other one."""
    rows = _in_time(given[0]).select("id", "key", "topic", "t").sort("t").collect()
    parts = [rows.filter(pl.col("topic") == n).drop("topic") for n in range(4)]
    out = parts[3].rename({"id": "id3"})
    for n in range(3):
        part = parts[n].rename({"id": f"id{n}"})
        out = out.join_asof(part, on="t", by="key", strategy="nearest", check_sortedness=False)
    return out.drop_nulls()


def compaction(given: Any) -> Any:
    """The last write of every dimension of every vector."""
    writes = given[1].lazy().select("vector_id", "t", "indices", "values")
    last = pl.col("values").sort_by("t").last()
    return writes.explode("indices", "values").group_by("vector_id", "indices").agg(last).collect()


JOBS = {
    "reorder": reorder,
    "tumbling": tumbling,
    "sessions": sessions,
    "sets": sets,
    "compaction": compaction,
}


def answer(job: str, result: Any) -> dict[str, Any]:
    if job == "reorder":
        return {"id": result["id"].to_numpy()}
    if job == "sets":
        return {"sets": result.select("id0", "id1", "id2", "id3").to_numpy()}
    if job == "compaction":
        names = {"vector_id": "vector_id", "place": "indices", "value": "values"}
        return {name: result[column].to_numpy() for name, column in names.items()}
    order = {"tumbling": ["key", "topic", "start"], "sessions": ["key", "first"]}[job]
    result = result.sort(order)
    return {name: result[name].to_numpy() for name in result.columns}
