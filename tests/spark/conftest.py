"""One Spark session for all tests here, and a small recording of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.testing.fleet import Facts, facts, fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    # one Python worker per core is enough, and a dead one must be noticed by its task, not by us
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.noDataProgressEventInterval": "500",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. `local[2,4]`: two cores, and a task may fail three times, as on a cluster."""
    from tidegate.spark import session

    log = tmp_path_factory.mktemp("spark") / "spark.log"
    made = session("local[2,4]", "tidegate-tests", settings=SMALL, log=log)
    yield made
    made.stop()


@dataclass(frozen=True)
class Recording:
    """A fleet's messages in order of arrival, as one table and as the files of a folder."""

    table: pa.Table
    folder: Path
    files: int
    facts: Facts

    @property
    def slices(self) -> list[pa.Table]:
        return cut(self.table, self.files)


def cut(table: pa.Table, files: int) -> list[pa.Table]:
    """A table as `files` tables of about the same length."""
    step = -(-table.num_rows // files)
    return [table.slice(number * step, step) for number in range(files)]


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four vehicles, six seconds, every trouble; four Parquet files, one after the other."""
    table = fleet(vehicles=4, seconds=6, seed=11, late_share=0.01, late_by="1 s", payload_bytes=16)
    folder = tmp_path_factory.mktemp("recording")
    for number, part in enumerate(cut(table, 4)):
        pq.write_table(part, folder / f"{number:03d}.parquet")
    return Recording(table, folder, 4, facts(table))
