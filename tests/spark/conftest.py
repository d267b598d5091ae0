"""One Spark session for all tests here, and a small recording of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.outcomes import add_file
from spark.recordings import Recording, cut
from tidegate.testing.fleet import facts, fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    # the quick compiler only: on two cores the thorough one takes longer than these tests
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
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


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Five vehicles (four hash to one of two shards, one to the other), five seconds, every
    trouble; four Parquet files, one after the other."""
    table = fleet(vehicles=5, seconds=5, seed=11, late_share=0.01, late_by="1 s", payload_bytes=16)
    folder = tmp_path_factory.mktemp("recording")
    for number, part in enumerate(cut(table, 4)):
        add_file(part, folder, number)
    return Recording(table, folder, 4, facts(table))
