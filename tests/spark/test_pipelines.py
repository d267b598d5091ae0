"""Declarative Pipelines: what is refused, and shards one after the other.

The example project is run by `test_connect.py`, on the server that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from tidegate.errors import ConfigError
from tidegate.spark import frames
from tidegate.spark.arrival import file_column
from tidegate.spark.pipelines import declared, publish
from tidegate.spark.stateful_step import EachShard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_what_cannot_work_in_a_pipeline_is_told(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "vehicle string, stamp long")
    with pytest.raises(ConfigError, match="must be of a Spark Connect session"):
        declared(df, "vehicle string, stamp long")
    made = frames(df, key="vehicle", time="stamp").event_time("unixtimestamp_ns")
    with pytest.raises(ConfigError, match="must be kinds of results: data, late, error, dropped"):
        publish("sets", made, tables={"lost": "lost"})
    waits = frames(df, key="vehicle", time="stamp", forget="1 min").event_time("unixtimestamp_ns")
    with pytest.raises(ConfigError, match="its runs would not end"):
        publish("sets", waits)


class Refusing:
    """A DataFrame whose analysis fails with an error of pyspark itself, as on Spark 4.1."""

    def __init__(self, condition: str) -> None:
        self.columns = ["vehicle"]
        self.condition = condition

    def select(self, *_: object) -> Refusing:
        return self

    @property
    def schema(self) -> None:
        raise PySparkException("refused", errorClass=self.condition, messageParameters={})


def test_rows_have_no_file_where_a_pipeline_refuses_the_analysis(spark: SparkSession) -> None:
    refused = Refusing("ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION")
    assert file_column(cast("DataFrame", refused), None) is None
    with pytest.raises(PySparkException):  # a server that is gone is no answer
        file_column(cast("DataFrame", Refusing("CONNECT_URL_INVALID")), None)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_each_shard_is_run_once_however_its_rows_are_cut(cut: int) -> None:
    table = pa.table({"shard": pa.array([3, 3, 3, 5, 5, 1, 8], pa.int32()), "row": range(7)})
    seen: list[tuple[set[int], list[int]]] = []

    def run(rows: pa.Table) -> pa.Table:
        seen.append((set(rows["shard"].to_pylist()), rows["row"].to_pylist()))
        return rows

    out = list(EachShard(run)(iter(table.to_batches(max_chunksize=cut))))
    assert seen == [({3}, [0, 1, 2]), ({5}, [3, 4]), ({1}, [5]), ({8}, [6])]
    assert pa.Table.from_batches(out).equals(table)
