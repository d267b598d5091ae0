"""A failure of Spark's is one sentence that says its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import RunError, TidegateError
from tidegate.spark.failures import cause_of

STREAM = """[STREAM_FAILED] Query [id = 5] terminated with exception: Job aborted
Lost task 0.3 in stage 8.0 (TID 12): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/usr/lib/pyspark/worker.py", line 1, in main
    process()
  File "/work/parsers.py", line 12, in parse
    raise ValueError("no such unit: parsec")
ValueError: no such unit: parsec

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
Caused by: java.lang.IllegalStateException: later"""

MISSING = """An error occurred while calling o165.collectToPython.
: org.apache.spark.SparkException: Job aborted
Traceback (most recent call last):
  File "worker.py", line 3, in <module>
ModuleNotFoundError: No module named 'tidegate'"""

MEMORY = """An error occurred while calling o9.save.
: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3745)"""

JAVA = """An error occurred while calling o9.save.
: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)"""

OURS = """Job aborted
tidegate.errors.StateError: the state was made with 2 shards, now there are 3
\tat org.apache"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STREAM, "ValueError: no such unit: parsec (parsers.py, line 12)"),
        (MISSING, "a worker has no package tidegate: install it in the Python of every machine"),
        (MEMORY, "Spark ran out of memory (Java heap space): give it more"),
        (JAVA, "IOException: No space left on device"),
        (OURS, "the state was made with 2 shards, now there are 3"),
        ("Python worker exited unexpectedly (crashed): EOF", "a Python worker died, most likely"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause(text: str, cause: str) -> None:
    said = cause_of(RuntimeError(text))
    assert said.startswith(cause)
    assert "\n" not in said


def test_a_bad_function_of_the_users(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from tidegate.spark import frames
    from tidegate.spark.spark_session import current_log

    @F.udf("long")
    def stamp(n: int) -> int:
        raise ValueError(f"no such unit: {n}")

    df = spark.createDataFrame([(1,)], "n long").withColumn("stamp", stamp("n"))
    made = frames(df, time="stamp").event_time("unixtimestamp_ns")
    with pytest.raises(RunError) as error:
        made.write(str(tmp_path / "out"))
    assert isinstance(error.value, TidegateError), "which the command line ends with exit code 2"
    assert str(error.value).startswith("ValueError: no such unit: 1 (test_failures.py, line ")
    log = current_log()
    assert log is not None
    assert f"(stack: {log})" in str(error.value)
    assert "Traceback" in log.read_text(errors="replace")
