"""What is different on Spark Connect, where this process is a client and Spark runs elsewhere.

There is no `sparkContext` and no Java here. What other modules would ask those for they ask this
one, which knows a way that works on both kinds of session.

    cores_of          how many tasks run at once
    estimated_bytes   how large a batch is, as far as Spark knows
    CommitFollower    which batches a run has written, seen from the client

The function that writes micro-batches runs on the server there, in a Python of its own: it must
travel, and nothing it changes is seen here. See `tidegate.spark.batch_writer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame, SparkSession

from tidegate.output.commit import Commit, CommitLog

__all__ = ["CONNECT_ADDRESS", "CommitFollower", "cores_of", "estimated_bytes", "is_connect"]

CONNECT_ADDRESS = "sc://"
"""What the address of a Spark Connect server begins with, where another master is `spark://`."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect.

    Args:
        spark: The session. Both kinds have the same base class since Spark 4; the module of its own
            class tells them apart without importing grpc, which need not be installed.

    Example:
        >>> is_connect(object())
        False
    """
    return type(spark).__module__.startswith("pyspark.sql.connect")


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at once: Spark's default parallelism. Runs no job.

    A client of Spark Connect cannot ask for it. The plan of a range is split that often by default,
    and a plan can be shown: `Range (0, 1, step=1, splits=2)`.
    """
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    plan = spark.sql("EXPLAIN SELECT id FROM range(1)").collect()[0][0]
    return splits_in(plan)


def splits_in(plan: str) -> int:
    """Return the number of splits that a plan shows; 1 if it shows none.

    >>> splits_in("*(1) Range (0, 1, step=1, splits=12)")
    12
    >>> splits_in("LocalTableScan")
    1
    """
    found = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(found[1]) if found else 1


def estimated_bytes(df: DataFrame) -> int:
    """Return how many bytes Spark's planner thinks that a batch has: much too many where it cannot
    tell. Runs no job.

    A client of Spark Connect cannot ask for it, but a plan can be shown with it.
    """
    if not is_connect(df.sparkSession):
        plan = df._jdf.queryExecution().optimizedPlan()
        return int(str(plan.stats().sizeInBytes()))
    return size_in(df._explain_string(mode="cost"))  # type: ignore[operator]


def size_in(plan: str) -> int:
    """Return the size that a plan shows first; more than any file if it shows none.

    >>> size_in("Relation [a] parquet, Statistics(sizeInBytes=1.5 KiB, rowCount=3)")
    1536
    >>> size_in("LocalRelation") == 2**63 - 1
    True
    """
    found = re.search(r"sizeInBytes=([0-9.E+]+) ([KMGTPE]?)i?B", plan)
    if found is None:
        return 2**63 - 1
    return int(float(found[1]) * 1024 ** " KMGTPE".index(found[2] or " "))


class CommitFollower:
    """Which batches a run has committed, seen from a process that does not write them.

    Args:
        commits: The records that the sink writes; None: it writes none that can be read (Kafka).
        on_commit: Called for every record that is new, in order.

    Example:
        >>> import tempfile
        >>> log = CommitLog.at(tempfile.mkdtemp())
        >>> log.write(Commit(0, "batch", {"data": 5}))
        >>> seen = []
        >>> follower = CommitFollower(log, seen.append)
        >>> log.write(Commit(1, "batch", {"data": 7}))
        >>> follower.look()
        >>> [commit.batch for commit in seen]
        [1]
    """

    def __init__(self, commits: CommitLog | None, on_commit: Callable[[Commit], None]) -> None:
        self._commits = commits
        self._on_commit = on_commit
        self._last = -1 if commits is None else max(commits.numbers(), default=-1)

    def look(self) -> None:
        """Report the batches that were committed since the last look, or since this was made."""
        for commit in list(self._new()):
            self._last = commit.batch
            self._on_commit(commit)

    def _new(self) -> Iterator[Commit]:
        """Yield the records of batches after the last one that was reported."""
        if self._commits is None:
            return
        for number in self._commits.numbers():
            commit = self._commits.read(number) if number > self._last else None
            if commit is not None:
                yield commit
