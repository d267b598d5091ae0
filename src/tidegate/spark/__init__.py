"""Tidegate on Spark. The only part that imports pyspark.

frames_api.py     what users write: frames(df, ...).event_time(...).synchronize(...)
dataflow.py       the DataFrames a pipeline is made of: pack, shuffle, step, outcomes
arrival.py        in which order rows are taken, however Spark lists and splits files
pack.py           rows to blobs and back        shards.py     which shard goes where
stateful_step.py  one shard of keys through its stages, batch and streaming
processor.py      Spark's side of the step: what it keeps in RocksDB
control_rows.py   settings changed, or an end announced, while a stream runs
query.py          a pipeline into a sink        checkpoint.py what is kept beside Spark's files
open.py           from a definition to frames   runner.py     run a definition
reload.py         follow a file while it runs   progress.py   the bar and the summary
failures.py       why a run failed, in one sentence
requirement.py    whether there is a Spark that will do
connect.py        what is different on Spark Connect
batch_writer.py   what Spark calls per micro-batch
read_limits.py    how much of a source a micro-batch reads
pipelines.py      tables of a declarative pipeline
doctor.py         whether executors can run it    executor_check.py  what is asked there
spark_session.py  the session and its settings  environment/  Java, Python, jars, Kafka
columnar/         files as columns: gate 1      slices.py     rows that wait for other files
recording.py      open files for frames
sources/          one module per source         sinks/        one module per sink

Names are loaded when they are first used: Spark starts a Python of its own for every stream source,
on the driver, and one that imported the operators, pandas and pydantic took 1.5 s of CPU longer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# First of all: importing it says in a sentence if there is no Spark, or one that is too old.
from tidegate.spark.requirement import OLDEST_SPARK

if TYPE_CHECKING:
    from tidegate.spark.frames_api import Frames, frames
    from tidegate.spark.recording import Recording, read
    from tidegate.spark.sinks import Sink, SinkRequest, register_sink
    from tidegate.spark.sources import PythonSource, Source, SourceRequest, register_source
    from tidegate.spark.spark_session import session

_MODULE_OF = {
    "Frames": "tidegate.spark.frames_api",
    "frames": "tidegate.spark.frames_api",
    "Recording": "tidegate.spark.recording",
    "read": "tidegate.spark.recording",
    "Sink": "tidegate.spark.sinks",
    "SinkRequest": "tidegate.spark.sinks",
    "register_sink": "tidegate.spark.sinks",
    "PythonSource": "tidegate.spark.sources",
    "Source": "tidegate.spark.sources",
    "SourceRequest": "tidegate.spark.sources",
    "register_source": "tidegate.spark.sources",
    "session": "tidegate.spark.spark_session",
}
"""The names of this package, by the module that defines them."""

__all__ = [
    "OLDEST_SPARK",
    "Frames",
    "PythonSource",
    "Recording",
    "Sink",
    "SinkRequest",
    "Source",
    "SourceRequest",
    "frames",
    "read",
    "register_sink",
    "register_source",
    "session",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidegate.spark' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
