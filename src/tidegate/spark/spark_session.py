"""The Spark session: local mode by default, any cluster by its master.

A session that is running already is used and never changed for good: settings that a run needs
are set while it starts and put back (`settings_for_now`). A session made here gets `SETTINGS`, the
machine's Java or the one in a wheel, and workers in the Python that Tidegate is installed in.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.errors import ConfigError
from tidegate.spark.connect import CONNECT_ADDRESS
from tidegate.spark.environment.class_archive import archive_used
from tidegate.spark.environment.java import use_java
from tidegate.spark.environment.python import DAEMON, use_python

__all__ = [
    "CHECKPOINT_FILES",
    "SETTINGS",
    "current_log",
    "limit_list_batches",
    "log_file",
    "session",
    "settings_for_now",
    "state_store_setting",
]

LOCAL = "local[*,4]"
"""All cores, and a task may fail three times, as on a cluster: a dead worker stops no run."""

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting that says how Spark writes the files of a checkpoint; see `LOCAL_SETTINGS`."""

ROWS_PER_HOP = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The setting that limits the rows of a batch that Spark hands to Python."""

LIST_ROWS = 1_024
"""Rows per hop to Python where columns hold lists: see `limit_list_batches`. At 65,536 the JVM took
twenty times the CPU (figures in `tidegate.spark.pack.holds_lists`)."""

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
"""The setting that says where Spark keeps state."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The only state store that transformWithState runs on."""

CONNECT_PORT = 15002
"""Where a Spark Connect server listens unless its address says otherwise."""

STANDALONE_ADDRESS = "spark://"
"""What the address of the master of a standalone cluster begins with."""

ANSWER_WITHIN_S = 10.0
"""Seconds a server or a master has to accept a connection. Below, one behind a slow tunnel would be
given up; alone, pyspark tries for ten minutes, and Spark for one."""

SETTINGS: dict[str, str] = {
    STATE_STORE: ROCKSDB,
    # writes what changed instead of whole files at every micro-batch
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # event time is int64 ns; a session in another zone would shift timestamp columns when shown
    "spark.sql.session.timeZone": "UTC",
    # pandas writes timestamps in ns: Spark refuses such a file, or reads them as integers
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # rows per hop to Python: the packer gathers them into larger blobs itself
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # bytes per hop: Java pools no larger buffers, and each of their pages would be faulted in anew
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 2**20),
    # the same for workers: up to 256 MB of freed memory is kept for the next micro-batch
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
    "spark.executorEnv.MALLOC_TOP_PAD_": str(64 * 2**20),
    # workers load numba, pyarrow and the kernels once, before they are forked
    "spark.python.daemon.module": DAEMON,
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
}
"""What every session made here gets; the caller's settings override it."""

LOCAL_SETTINGS: dict[str, str] = {
    # Spark's other way to write checkpoints starts ten processes (chmod, readlink) for every file
    # on a local disk: commits of state took 150 to 200 ms of a micro-batch, and now 12 to 25. Both
    # write a file beside its place and rename it.
    CHECKPOINT_FILES: (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
"""What a session in local mode gets in addition."""


def session(
    master: str | None = None,
    name: str = "tidegate",
    settings: Mapping[str, str] | None = None,
    log: str | Path | None = None,
) -> SparkSession:
    """Return the running session, or a new one with what Tidegate needs.

    A running session is returned unchanged, whatever the arguments say. A new one in local mode
    listens on the loopback interface only.

    Args:
        master: A Spark master, or the address of a Spark Connect server (`sc://host:15002`); None:
            the server in `SPARK_REMOTE`, if that is set, else local mode on all cores.
        name: The name of the application, for Spark's user interface.
        settings: Spark settings; they override ours.
        log: A file for what Java and the workers write to standard error, their stacks and
            warnings; it is appended to. None: standard error of this process.

    Raises:
        ConfigError: If there is no Java that runs Spark, or a server or master does not answer.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if (master or os.environ.get("SPARK_REMOTE", "")).startswith(CONNECT_ADDRESS):
        return _connect(master or os.environ["SPARK_REMOTE"], {**SETTINGS, **(settings or {})})
    if (master or "").startswith(STANDALONE_ADDRESS):
        _check_masters(str(master))
    java = use_java()
    local = master is None or master.startswith("local")
    use_python(local=local)
    cores = str(os.cpu_count() or 2)
    builder = SparkSession.builder.appName(name).master(master or LOCAL)
    own = {"spark.sql.shuffle.partitions": cores}
    if local:
        own |= LOCAL_SETTINGS
    for key, value in {**SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(key, value)
    if local:
        # Loopback only: nothing of a local run is reachable from outside.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    with _stderr_to(log), archive_used(java):
        spark = builder.getOrCreate()
    if log is not None:
        _LOGS.append(Path(log))
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _connect(address: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server. Of the settings it gets those that can be changed
    while Spark runs; the others are the server's affair.

    Raises ConfigError if the packages for Spark Connect are missing or the server does not answer.
    """
    _check_server(address)
    try:
        spark = SparkSession.builder.remote(address).getOrCreate()
        for key, value in settings.items():
            if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
                spark.conf.set(key, value)
    except ImportError as error:  # pyspark's own error names them one by one
        raise ConfigError(
            "master", address, "needs packages for Spark Connect: pip install 'tidegate[connect]'"
        ) from error
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError("master", address, f"the server does not answer: {reason}") from error
    return spark


def _check_server(address: str) -> None:
    """Raise ConfigError if nobody listens at the address of a server: pyspark would try for ten
    minutes."""
    found = re.fullmatch(r"sc://(\[[^]]+\]|[^:/;\[]+)(?::(\d+))?(?:/.*)?", address)
    if found is None:
        raise ConfigError("master", address, "must be sc://host:port, as sc://localhost:15002")
    silent = _silence_of(found[1], int(found[2] or CONNECT_PORT))
    if silent:
        raise ConfigError("master", address, f"no server answers there ({silent})")


def _check_masters(address: str) -> None:
    """Raise ConfigError if no master of a standalone cluster listens at its address: Spark would
    try for a minute, and then stop in the middle of something else."""
    why = ""
    for place in address.removeprefix(STANDALONE_ADDRESS).split(","):
        found = re.fullmatch(r"(\[[^]]+\]|[^:/;\[]+):(\d+)", place)
        if found is None:
            raise ConfigError("master", address, "must be spark://host:port, as spark://head:7077")
        why = _silence_of(found[1], int(found[2]))
        if not why:
            return  # one of several is enough
    raise ConfigError("master", address, f"no master answers there ({why})")


def _silence_of(host: str, port: int) -> str:
    """Return why nobody accepts a connection there; empty if somebody does."""
    try:
        with socket.create_connection((host.strip("[]"), port), ANSWER_WITHIN_S):
            return ""
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)


def current_log() -> Path | None:
    """Return the file in which the session made here writes its log, if it has one."""
    return _LOGS[-1] if _LOGS else None


_LOGS: list[Path] = []
"""The logs of sessions made in this process; the last one is in use."""


def state_store_setting(spark: SparkSession) -> dict[str, str]:
    """Return the setting of the state store that a stream must be started with; empty if the
    session has it, or one of the platform's own that is made of RocksDB."""
    return {} if "RocksDB" in (spark.conf.get(STATE_STORE, "") or "") else {STATE_STORE: ROCKSDB}


def limit_list_batches(spark: SparkSession) -> dict[str, str]:
    """Return the settings that hand over fewer rows at a time to Python, where columns hold lists.

    See `tidegate.spark.pack.holds_lists` for the reason. Empty if the session has a limit that is
    low enough. The limit in bytes stays as it is.
    """
    told = spark.conf.get(ROWS_PER_HOP) or ""
    low = told.isdigit() and 1 <= int(told) <= LIST_ROWS
    return {} if low else {ROWS_PER_HOP: str(LIST_ROWS)}


@contextmanager
def settings_for_now(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Change settings of a user's session and put them back when the block ends, by an error too.

    A stream keeps for good the settings of the moment it was started in, so a block around its
    start is enough.

    Args:
        spark: The session.
        settings: Values by name; None unsets one.
    """
    before = {name: spark.conf.get(name, None) for name in settings}

    def apply(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)

    apply(settings)
    try:
        yield
    finally:
        apply(before)


def log_file() -> Path:
    """Create a file in the temporary folder for the log of a run started from the command line."""
    handle, path = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
    os.close(handle)
    return Path(path)


@contextmanager
def _stderr_to(log: str | Path | None) -> Iterator[None]:
    """Let processes started inside write their standard error to a file.

    Java inherits it when it is started and keeps it; our own is put back at once.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
