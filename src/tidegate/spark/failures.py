"""Why a run failed, in one sentence.

Spark reports a failure as a Java stack around a Python stack around the cause. `cause_of` finds the
cause: what Tidegate itself said, else the first Python exception, else the deepest Java one. Some
are known well enough to say what to do. The whole stack goes to the log, and the command line ends
with exit code 2.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from tidegate.errors import RunError, TidegateError
from tidegate.spark.spark_session import current_log

try:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
except ImportError:  # a client of Spark Connect alone (pyspark-client) has no Java to talk to

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Never raised there."""

    Py4JJavaError = Py4JError

__all__ = ["Py4JJavaError", "cause_of", "failures_in_a_sentence"]

log = logging.getLogger(__name__)

ADVICE = {
    "java.lang.OutOfMemoryError": (
        "Spark ran out of memory ({message}): give it more (spark.driver.memory, "
        "spark.executor.memory), or use more shards or smaller micro-batches"
    ),
    "Python worker exited unexpectedly": (
        "a Python worker died, most likely because the machine ran out of memory: use more shards, "
        "smaller micro-batches or fewer cores"
    ),
    "No module named 'tidegate": (
        "a worker has no package tidegate: install it in the Python of every machine, or name that "
        "Python by PYSPARK_PYTHON"
    ),
}
"""Causes that users can do something about, by a part of their text."""

_PYTHON = re.compile(
    r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning))(?:: (.*))?$"
)
"""The last line of a Python stack: the exception, without its module, and what it says."""

_OURS = re.compile(r"tidegate\.errors\.\w+: (.*)")
"""What one of our own errors says, wherever in the text it stands."""

_JAVA = re.compile(r"^(?:Caused by: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Error|Exception))(?:: (.*))?$")
"""A line of a Java stack that names an exception and what it says."""


def cause_of(error: BaseException) -> str:
    """Return the cause of a failure of Spark's in one sentence.

    >>> stack = '''An error occurred while calling o165.collectToPython.
    ... : org.apache.spark.SparkException: Job aborted
    ... Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
    ...   File "udf.py", line 3, in scale
    ... ZeroDivisionError: division by zero
    ...
    ...     at org.apache.spark.Something
    ... Caused by: java.lang.IllegalStateException: task failed'''
    >>> cause_of(RuntimeError(stack))
    'ZeroDivisionError: division by zero (udf.py, line 3)'
    >>> cause_of(RuntimeError("stage failed\\njava.lang.OutOfMemoryError: Java heap space"))
    'Spark ran out of memory (Java heap space): give it more (spark.driver.memory, \
spark.executor.memory), or use more shards or smaller micro-batches'
    """
    text = _text_of(error)
    for sign, advice in ADVICE.items():
        if sign in text:
            said = re.search(rf"{re.escape(sign)}(?:: (.*))?", text)
            return advice.format(message=((said and said[1]) or "no reason given").strip())
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    lines = text.splitlines()
    return _python_cause(lines) or _java_cause(lines) or _first(lines) or type(error).__name__


def _text_of(error: BaseException) -> str:
    """Return all that an error says; of a Java error also the text of the exception itself."""
    if isinstance(error, Py4JJavaError):
        return f"{error}\n{error.java_exception}"
    return str(error)


def _python_cause(lines: list[str]) -> str | None:
    """The exception at the end of the first Python stack, and where it was raised."""
    place: str | None = None
    inside = False
    for line in lines:
        if "Traceback (most recent call last)" in line:
            inside, place = True, None
        elif inside and (file := re.match(r'\s+File "([^"]+)", line (\d+)', line)):
            place = f"{file[1].rsplit('/', 1)[-1]}, line {file[2]}"
        elif inside and (found := _PYTHON.match(line)):
            said = found[1] if not found[2] else f"{found[1]}: {found[2]}"
            return said if place is None else f"{said} ({place})"
    return None


def _java_cause(lines: list[str]) -> str | None:
    """The last Java exception that says something."""
    found = [match for line in lines if (match := _JAVA.match(line.strip().lstrip(": ")))]
    for match in reversed(found):
        if match[2]:
            return f"{match[1].rpartition('.')[2]}: {match[2].strip()}"
    return None


def _first(lines: list[str]) -> str:
    """Return the first line that is not empty."""
    return next((line.strip() for line in lines if line.strip()), "")


@contextmanager
def failures_in_a_sentence() -> Iterator[None]:
    """Turn a failure of Spark's into a RunError that says its cause; the stack goes to the log."""
    try:
        yield
    except TidegateError:
        raise
    except (PySparkException, Py4JError) as error:
        stack = "".join(traceback.format_exception(error))
        file = current_log()
        where = ""
        if file is not None:
            with file.open("a", errors="replace") as opened:
                opened.write(stack)
            where = f" (stack: {file})"
        log.debug("%s", stack)
        raise RunError(f"{cause_of(error)}{where}") from error
