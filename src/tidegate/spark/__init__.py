"""Tidegate on Spark. The only part that imports pyspark.

frames.py         what users write: frames(df, ...).event_time(...).synchronize(...)
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
session.py        the session and its settings  environment/  Java, Python, jars, Kafka
columnar/         files as columns: gate 1      slices.py     rows that wait for other files
read.py           open files for frames
sources/          one module per source         sinks/        one module per sink
"""

# First of all: importing it says in a sentence if there is no Spark, or one that is too old.
from tidegate.spark.requirement import OLDEST_SPARK

# isort: split
from tidegate.spark.frames import Frames, frames
from tidegate.spark.read import Recording, read
from tidegate.spark.session import session
from tidegate.spark.sinks import Sink, SinkRequest, register_sink
from tidegate.spark.sources import PythonSource, Source, SourceRequest, register_source

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
