"""`tidegate doctor`: whether every executor of a cluster can run a pipeline, before one is run.

    examine      ask every executor: Python, packages, Java, paths, compiled kernels
    Finding      what is wrong on one executor, and the line that mends it

An executor is a process of Spark's on some machine. Tasks cannot be sent to a certain one: there
are more than there are cores, each of them stays for a moment, and that is repeated until all the
executors that the driver knows have answered.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name everyone uses)
from rich.table import Table

from tidegate.errors import ConfigError
from tidegate.spark.connect import cores_of, is_connect
from tidegate.spark.environment.java import OLDEST as OLDEST_JAVA
from tidegate.spark.executor_check import PACKAGES, ExecutorCheck, _version
from tidegate.spark.failures import Py4JJavaError, cause_of

__all__ = ["Examined", "Finding", "examine", "findings_table"]

ROUNDS = 8
"""How often tasks are sent out before executors that have not answered are given up: executors of a
cluster that has just been asked for them take seconds to appear."""

EXECUTORS_WITHIN_S = 60.0
"""Seconds for the first executor to appear. Below, a cluster that starts machines on demand would
be called empty; without a limit, one that has no room for an executor would be waited for."""

TASKS_PER_CORE = 2
"""Tasks per core and round. With one, an executor that is slow to start would get none."""

_LOST = re.compile(r"\((?P<host>\S+) executor (?P<number>\S+)\): (?P<why>.*)")
"""How Spark names the executor on which a task failed."""


@dataclass(frozen=True)
class Finding:
    """What is wrong on one executor.

    Args:
        executor: Which one, as the table calls it.
        what: The column of the table.
        wrong: What is wrong, a sentence.
        fix: What to do about it.
    """

    executor: str
    what: str
    wrong: str
    fix: str


@dataclass
class Examined:
    """What was found out about all executors.

    Args:
        executors: What each of them said, by the name of the executor.
        findings: What is wrong.
        silent: How many executors the driver knows that have not answered.
    """

    executors: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    silent: int = 0


def examine(spark: SparkSession, paths: Sequence[str] = ()) -> Examined:
    """Ask every executor of a session.

    Args:
        spark: The session. Its Python daemon should be Spark's own (`pyspark.daemon`): ours cannot
            even start where the package is missing.
        paths: Local folders of the output, the checkpoint and the sources. Each must exist; a file
            is written there for the moment.

    Raises:
        ConfigError: A path that is no folder on the driver.
    """
    marker = f".tidegate-doctor-{uuid.uuid4().hex}"
    found = Examined()
    for path in paths:
        if "://" in path:
            raise ConfigError("path", path, "must be a mounted folder; addresses are not examined")
        if not Path(path).is_dir():
            raise ConfigError("path", path, "must be a folder that exists")
        Path(path, marker).write_text("")
    try:
        _ask(spark, ExecutorCheck(marker, tuple(paths)), found)
    finally:
        for path in paths:
            for file in Path(path).glob(f"{marker}*"):
                file.unlink(missing_ok=True)
    for name, said in found.executors.items():
        found.findings += _judge(name, said)
    return found


def _ask(spark: SparkSession, check: ExecutorCheck, found: Examined) -> None:
    """Send out tasks until all executors have answered, or one has failed."""
    asking = F.udf(check, "string", useArrow=False)
    java = F.expr("java_method('java.lang.System', 'getProperty', 'java.version')")
    if not _has_executors(spark):
        found.findings.append(
            Finding("no executor", "executor", f"none came within {EXECUTORS_WITHIN_S:g} s",
                    "start workers, or ask for less: spark.executor.memory, spark.executor.cores")
        )  # fmt: skip
        return
    for _ in range(ROUNDS):
        count = max(2, cores_of(spark) * TASKS_PER_CORE)
        tasks = spark.range(0, count, 1, count)
        try:
            rows = tasks.select(asking("id").alias("said"), java.alias("java")).collect()
        except (PySparkException, Py4JJavaError) as error:
            found.findings.append(_of_failure(str(error), error))
            return
        for row in rows:
            said = {**json.loads(row.said), "java_version": row.java, "of_java": 0}
            found.executors[_executor_name(said)] = said
        found.silent = _known(spark) - len(found.executors)
        if found.silent <= 0:
            found.silent = 0
            return
    if found.silent:
        found.findings.append(
            Finding(f"{found.silent} of them", "executor", "did not answer",
                    "look at their logs in Spark's user interface")
        )  # fmt: skip


def _known(spark: SparkSession) -> int:
    """Return how many executors the driver knows; 0 where it cannot be asked (Spark Connect)."""
    if is_connect(spark):
        return 0
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    local = str(spark.sparkContext.master).startswith("local")
    return max(int(local), len(infos) - 1)  # the driver is among them


def _has_executors(spark: SparkSession) -> bool:
    """Return whether there is an executor, after a while: a task would wait for one for ever."""
    until = time.monotonic() + EXECUTORS_WITHIN_S
    while not is_connect(spark) and _known(spark) == 0:
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def _executor_name(said: dict[str, Any]) -> str:
    """Return what to call an executor: host, and its number where its folder tells (standalone,
    YARN), else its process.

    >>> _executor_name({"host": "node-7", "folder": "/work/app-20261118-0001/3", "java": 71})
    'executor 3 on node-7'
    >>> _executor_name({"host": "node-7", "folder": "/home/me", "java": 71})
    'process 71 on node-7'
    """
    folder = Path(said["folder"])
    if folder.parent.name.startswith("app-"):
        return f"executor {folder.name} on {said['host']}"
    if folder.name.startswith("container_"):
        return f"{folder.name} on {said['host']}"
    return f"process {said['java']} on {said['host']}"


def _of_failure(text: str, error: Exception) -> Finding:
    """Return the finding of a check that failed as a whole, as where there is no such Python."""
    lost = _LOST.search(text)
    name = f"executor {lost['number']} on {lost['host']}" if lost else "an executor"
    missing = re.search(r'Cannot run program "([^"]+)"', text)
    if missing:
        return Finding(
            name, "python", f"there is no {missing[1]}",
            "install Python and tidegate there at that path, or set PYSPARK_PYTHON to where it is "
            "on every machine",
        )  # fmt: skip
    return Finding(name, "executor", cause_of(error), "see its log in Spark's user interface")


def _judge(name: str, said: dict[str, Any]) -> list[Finding]:
    """Return what is wrong with one executor, compared with this process."""
    found = []
    python = said["python"]
    if said["python_version"].split(".")[:2] != platform.python_version().split(".")[:2]:
        found.append(
            Finding(
                name, "python",
                f"Python {said['python_version']} at {python}, here {platform.python_version()}",
                "install the same minor version there, or set PYSPARK_PYTHON to one",
            )
        )  # fmt: skip
    for package in PACKAGES:
        there, here = said["packages"][package], _version(package)
        if there.startswith("missing: "):
            wrong = f"{package} cannot be imported ({there.removeprefix('missing: ')})"
        elif package in ("tidegate", "pyspark") and there != here:
            wrong = f"{package} {there}, here {here}"
        else:
            continue
        fix = f"{python} -m pip install {package}=={here}"
        found.append(Finding(name, package, wrong, fix))
    major = said["java_version"].split(".")[0]
    if major.isdigit() and int(major) < OLDEST_JAVA:
        found.append(
            Finding(name, "java", f"Java {said['java_version']}", f"needs {OLDEST_JAVA} or newer")
        )
    for path, wrong in said["paths"].items():
        if wrong:
            fix = "mount the same folder there, writable for Spark's user"
            found.append(Finding(name, "paths", f"{path} {wrong}", fix))
    if said["kernels"] < 0 and not said["packages"]["tidegate"].startswith("missing"):
        found.append(
            Finding(
                name, "kernels", "compiled kernels can be kept nowhere: every worker compiles them",
                "run tidegate warm when its image is built, or set spark.executorEnv."
                "NUMBA_CACHE_DIR to a folder that can be written to",
            )
        )  # fmt: skip
    return found


def findings_table(found: Examined) -> Table:
    """Return one line per executor; what is wrong is red."""
    table = Table(title="executors", title_justify="left")
    wrong = {(one.executor, one.what) for one in found.findings}
    for column in ("executor", "python", "tidegate", "pyspark", "java", "paths", "kernels"):
        table.add_column(column)
    for name, said in sorted(found.executors.items()):
        packages = said["packages"]
        bad = [path for path, why in said["paths"].items() if why]
        cells = {
            "python": f"{said['python_version']} {said['python']}",
            "tidegate": packages["tidegate"].split(":")[0],
            "pyspark": packages["pyspark"].split(":")[0],
            "java": said["java_version"],
            "paths": f"{len(said['paths']) - len(bad)} of {len(said['paths'])}",
            "kernels": {0: "none yet", -1: "not kept"}.get(said["kernels"], str(said["kernels"])),
        }
        table.add_row(
            name, *(f"[red]{t}[/]" if (name, c) in wrong else t for c, t in cells.items())
        )
    table.caption = f"this process: Python {platform.python_version()} {sys.executable}"
    return table
