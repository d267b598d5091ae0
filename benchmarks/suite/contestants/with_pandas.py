"""pandas, as most people would write it."""

from __future__ import annotations

from typing import Any

import pandas as pd

VERSION = pd.__version__


def prepare(path: str) -> Any:
    deltas = path.replace(".parquet", ".deltas.parquet")
    return pd.read_parquet(path), pd.read_parquet(deltas)


def _in_time(df: Any) -> Any:
    newest = df.groupby("key")["t"].cummax().groupby(df["key"]).shift(1)
    # Times are too large for the floats that a shift makes of them: late is told by the difference.
    before = newest.fillna(0).astype("int64")
    return df[(newest.isna()) | (df["t"] - before > -200_000_000 - 1)]


def reorder(given: Any) -> Any:
    return _in_time(given[0]).sort_values(["key", "t"], kind="stable")


def tumbling(given: Any) -> Any:
    rows = _in_time(given[0])
    groups = rows.groupby(["key", "topic", (rows["t"] // 10**9 * 10**9).rename("start")])["value"]
    return groups.agg(n="count", m="mean").reset_index()


def sessions(given: Any) -> Any:
    df = given[0]
    rows = _in_time(df[df["topic"] == 3]).sort_values(["key", "t"], kind="stable")
    gap = rows.groupby("key")["t"].diff()
    session = (gap.isna() | (gap > 500_000_000)).cumsum().rename("session")
    groups = rows.groupby(["key", session])["t"]
    return groups.agg(first="min", last="max", n="count").reset_index()


def sets(given: Any) -> Any:
    rows = _in_time(given[0])[["id", "key", "topic", "t"]].sort_values("t", kind="stable")
    parts = [rows[rows["topic"] == n].drop(columns="topic") for n in range(4)]
    out = parts[3].rename(columns={"id": "id3"})
    for n in range(3):
        part = parts[n].rename(columns={"id": f"id{n}"})
        out = pd.merge_asof(out, part, on="t", by="key", direction="nearest")
    return out.dropna()


def compaction(given: Any) -> Any:
    """The last write of every dimension of every vector."""
    writes = given[1][["vector_id", "t", "indices", "values"]].sort_values("t", kind="stable")
    writes = writes.explode(["indices", "values"])
    return writes.drop_duplicates(["vector_id", "indices"], keep="last")


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
        return {"sets": result[[f"id{n}" for n in range(4)]].to_numpy("int64")}
    if job == "compaction":
        columns = {"vector_id": "vector_id", "place": "indices", "value": "values"}
        types = {"place": "int64", "value": "float64"}
        return {name: result[column].to_numpy(types.get(name)) for name, column in columns.items()}
    order = {"tumbling": ["key", "topic", "start"], "sessions": ["key", "first"]}[job]
    result = result.sort_values(order)
    return {name: result[name].to_numpy() for name in result.columns}
