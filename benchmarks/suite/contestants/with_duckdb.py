"""DuckDB: the jobs in SQL."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow.parquet as pq

VERSION = duckdb.__version__

IN_TIME = """
    select * from (
        select *, max(t) over (partition by key order by id
                               rows between unbounded preceding and 1 preceding) as newest
        from recording)
    where newest is null or t > newest - 200000000 - 1
"""


def prepare(path: str) -> Any:
    database = duckdb.connect()
    for name, file in (
        ("recording", path),
        ("deltas", path.replace(".parquet", ".deltas.parquet")),
    ):
        database.register("given", pq.read_table(file))
        database.execute(f"create table {name} as select * from given")
    return database


def reorder(database: Any) -> Any:
    return _fetch(database, f"select * from ({IN_TIME}) order by key, t, id")


def tumbling(database: Any) -> Any:
    return _fetch(
        database,
        f"select key, topic, t // 1000000000 * 1000000000 as start, count(*) as n, avg(value) as m "
        f"from ({IN_TIME}) group by all",
    )


def sessions(database: Any) -> Any:
    gps = IN_TIME.replace("from recording", "from recording where topic = 3")
    return _fetch(
        database,
        f"""
        with marked as (
            select key, t, coalesce(t - lag(t) over w > 500000000, true)::int as new
            from ({gps}) window w as (partition by key order by t)),
        numbered as (select *, sum(new) over (partition by key order by t) as session from marked)
        select key, min(t) as first, max(t) as last, count(*) as n
        from numbered group by key, session
        """,
    )


def sets(database: Any) -> Any:
    """As-of joins look back only: the newest message before the one of the slowest topic."""
    database.execute(f"create or replace temp table good as {IN_TIME}")
    joins = " ".join(
        f"asof join (select id as id{n}, key, t from good where topic = {n}) p{n} "
        f"on p3.key = p{n}.key and p3.t >= p{n}.t"
        for n in range(3)
    )
    first = "(select id as id3, key, t from good where topic = 3) p3"
    return _fetch(database, f"select id0, id1, id2, id3 from {first} {joins}")


def compaction(database: Any) -> Any:
    """The last write of every dimension of every vector."""
    return _fetch(
        database,
        """
        select vector_id, place, arg_max(value, t) as value
        from (select vector_id, t, unnest(indices) as place, unnest(values) as value from deltas)
        group by all
        """,
    )


def _fetch(database: Any, query: str) -> Any:
    return database.execute(query).fetchnumpy()


JOBS = {
    "reorder": reorder,
    "tumbling": tumbling,
    "sessions": sessions,
    "sets": sets,
    "compaction": compaction,
}


def answer(job: str, result: Any) -> dict[str, Any]:
    import numpy as np

    if job == "reorder":
        return {"id": np.asarray(result["id"])}
    if job == "sets":
        return {"sets": np.stack([np.asarray(result[f"id{n}"]) for n in range(4)], axis=1)}
    if job == "compaction":
        return dict(result)
    order = {"tumbling": ("start", "topic", "key"), "sessions": ("first", "key")}[job]
    rows = np.lexsort([np.asarray(result[name]) for name in order])
    return {name: np.asarray(values)[rows] for name, values in result.items()}
