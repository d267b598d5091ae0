"""The short form of the kills of `make faults`: every pipeline, and a Kafka whose leader is killed.

Runs in processes of their own, which is why the session of the tests is not used.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import pipelines
from faults.broker import kill_broker
from faults.kills import Campaign, Peace, Result, pipeline_target
from kafka_broker import Cluster, NoBrokerError


def check(results: list[Result]) -> None:
    """Rows were compared, and none differs."""
    for result in results:
        assert result.wrong == [], result.name
        assert result.rows > 0, result.name


@pytest.mark.apart
@pytest.mark.timeout(1500)
def test_killed_pipelines_of_every_kind_give_what_undisturbed_ones_give(tmp_path: Path) -> None:
    pipelines.record(tmp_path)
    targets = [pipeline_target(name, tmp_path) for name in pipelines.PIPELINES]
    campaign = Campaign(
        targets, Peace.of(targets, tmp_path), tmp_path, seed=1, streams=1, minutes=9
    )
    steps: list[int] = []
    check(campaign.kill_drivers(1, steps.append))
    assert sum(steps) == 1, "no driver was killed while all of them ran"


@pytest.mark.apart
@pytest.mark.timeout(900)
def test_the_leader_of_a_partition_that_is_read_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="pip install 'tidegate[kafka]'")
    try:
        cluster = Cluster.create(tmp_path, 3)
    except NoBrokerError as error:
        pytest.skip(str(error))
    try:
        results = kill_broker(cluster, tmp_path, 2, 1, lambda _: None)
    finally:
        cluster.stop()
    check(results)
    for result in results:
        assert "2 changes of leader" in result.did, result.did
