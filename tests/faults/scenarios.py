"""All scenarios that need no process of their own, by name, in one Spark session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from faults import sources, storage
from faults.kills import Result

Scenario = Callable[[SparkSession, Path], tuple[str, int]]

SCENARIOS: dict[str, Scenario] = {
    "a truncated file": sources.truncated_file,
    "a source that repeats": sources.repeats,
    "a source that reorders": sources.reorders,
    "a source that pauses": sources.pauses,
    "a schema that changes": sources.schema_changes,
    "a clock that steps back": sources.clock_steps_back,
    "a clock that is set back in a run": sources.clock_set_back,
    "a full disk": storage.full_disk,
    "a read-only disk": storage.read_only,
    "a deleted part file": storage.deleted_part,
    "a checkpoint half written": storage.half_written,
}


def run(
    spark: SparkSession, folder: Path, names: Sequence[str], step: Callable[[str], None]
) -> Iterator[Result]:
    """These scenarios, each in a folder of its own. One that breaks off does not stop the rest."""
    for name in names:
        scenario = SCENARIOS[name]
        step(name)
        result = Result(name)
        began = time.monotonic()
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True)
        try:
            result.did, result.rows = scenario(spark, place)
        except sources.CannotTryError as error:
            result.skipped = str(error)
        except AssertionError as error:
            result.wrong.append(str(error))
        except Exception as error:
            result.wrong.append(f"{type(error).__name__}: {str(error)[:300]}")
        result.seconds = time.monotonic() - began
        yield result
