"""The short form of `make faults`: every scenario once, in the session of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults import storage
from faults.scenarios import SCENARIOS

CASES = [
    ("_checkpoint/offsets/[0-9]*", "half"),
    ("_checkpoint/commits/[0-9]*", "empty"),
    ("_checkpoint/sources/0/[0-9]*", "gone"),
    ("_commits/*.json", "half"),
]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "half written" not in name])
def test_nothing_lost_nothing_twice(spark: SparkSession, tmp_path: Path, name: str) -> None:
    try:
        _, rows = SCENARIOS[name](spark, tmp_path)
    except storage.CannotMountError as error:
        pytest.skip(str(error))
    assert rows > 1000


def test_files_half_written(spark: SparkSession, tmp_path: Path) -> None:
    said, _ = storage.half_written(spark, tmp_path, CASES)
    assert said.startswith(f"{len(CASES)} damages: ")
