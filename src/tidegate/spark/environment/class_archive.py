"""Spark's Java classes, loaded and checked beforehand: a session in local mode starts 5 s sooner.

Java reads, checks and links some 20,000 classes before the first row of a run moves. Java keeps
them in an archive if told to (class data sharing), and maps that into memory at the next start.
`tidegate warm` makes the archive, by running a small batch and a small stream in a process of its
own; sessions made here use it if it is there.

An archive is of one Java and one pyspark, which its name says. Java itself compares the jars as
well, and leaves aside an archive that does not fit, without a word.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidegate.spark.environment.launcher import cache_folder

__all__ = ["archive_file", "archive_used", "make_archive"]

OPTIONS = "SPARK_SUBMIT_OPTS"
"""Where Spark's launcher takes options for Java from, beside those that a session sets. A setting
of the session would hide what `spark-defaults.conf` has."""

SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is no reason for a warning on standard output."""

SECONDS = 300
"""Seconds after which making an archive is given up. It takes 40 on two calm cores."""


def archive_file(home: Path, cache: Path | None = None) -> Path:
    """Return where the archive of a Java is kept, whether it is there or not.

    Args:
        home: The home of that Java.
        cache: The folder of archives; None: the user's cache.
    """
    import pyspark

    release = home / "release"
    about = release.read_text() if release.is_file() else ""
    library = Path(pyspark.__file__).resolve().parent
    told = f"{home.resolve()} {about} {library} {pyspark.__version__}"
    return (cache or cache_folder()) / f"spark-classes-{zlib.crc32(told.encode()):08x}.jsa"


@contextmanager
def archive_used(home: Path) -> Iterator[None]:
    """Within this, a Java that Spark starts uses the archive, if there is one."""
    file = archive_file(home)
    if not file.is_file() or " " in str(file):  # the launcher splits options at spaces
        yield
        return
    with _options(f"-XX:SharedArchiveFile={file} -Xshare:auto {SILENT}"):
        yield


@contextmanager
def _options(more: str) -> Iterator[None]:
    """Add options for the Java that Spark starts within this."""
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = f"{before} {more}" if before else more
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def make_archive(home: Path, program: Sequence[str], cache: Path | None = None) -> Path | None:
    """Make the archive of a Java, unless it is there.

    Args:
        home: The home of the Java that runs Spark.
        program: A command that starts Spark, does what most runs do, and waits for its Java to
            end: at its end Java writes the archive of the classes it has loaded.
        cache: The folder of archives; None: the user's cache.

    Returns:
        The file; None if this Java makes none, as one without an archive of its own classes.
    """
    file = archive_file(home, cache)
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        # the quick compiler: everything runs once
        with _options(f"-XX:ArchiveClassesAtExit={fresh} -XX:TieredStopAtLevel=1 {SILENT}"):
            subprocess.run(
                program, env={**os.environ, "JAVA_HOME": str(home)}, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        if not fresh.is_file():
            return None
        fresh.replace(file)
    except (OSError, subprocess.TimeoutExpired):  # a full disk, a machine that is too busy
        return None
    finally:
        fresh.unlink(missing_ok=True)
    return file
