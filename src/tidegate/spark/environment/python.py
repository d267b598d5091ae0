"""The Python that Spark's workers run in: ours, with pyspark from where it is installed.

Java puts the copy of pyspark in `python/lib/pyspark.zip` before everything else that a worker may
import. A zip keeps no compiled modules, so every new Python compiles all it imports: 0.9
instead of 0.2 s of CPU, at the start of the workers and once more at the start of every stream with
state. In local mode the same pyspark lies beside it, compiled; a short `python` leaves the zip out.

The same script has the Pythons that plan data sources fork from our daemon, which has loaded what
they need: Spark has a setting for the daemon of its workers, and none for that of its planners.

On a cluster nothing is changed: what is installed there is not known here.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

from tidegate.spark.environment.launcher import cache_folder, keep_launcher

__all__ = ["DAEMON", "use_python", "worker_python"]

_LAUNCHER = """#!/bin/sh
# Made by tidegate.spark.environment.python: workers take the installed pyspark, not a zip.
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case "$entry" in
    "{library}"/*.zip|"{resolved}"/*.zip) ;;
    *) kept="$kept${{kept:+:}}$entry" ;;
  esac
done
unset IFS
case "$1 $2 $3" in
  "-m pyspark.daemon pyspark.sql.worker."*) shift 2; set -- -m {daemon} "$@" ;;
esac
PYTHONPATH=$kept exec "{python}" "$@"
"""

DAEMON = "tidegate.spark.environment.daemon"
"""The daemon that workers are forked from."""


def worker_python(cache: Path | None = None) -> str:
    """Return the Python that workers on this machine should run: a launcher, or our own where there
    is nothing to gain."""
    import pyspark

    library = Path(pyspark.__file__).parent / "python" / "lib"
    if os.name == "nt" or not library.is_dir():
        return sys.executable
    # Spark resolves links before it names the zip: an environment may be one.
    text = _LAUNCHER.format(
        library=library, resolved=library.resolve(), python=sys.executable, daemon=DAEMON
    )
    name = f"python-{zlib.crc32(text.encode()):08x}"
    try:
        return str(keep_launcher((cache or cache_folder()) / name / "bin" / "python", text))
    except OSError:  # a home that cannot be written to
        return sys.executable


def use_python(*, local: bool) -> None:
    """Have Spark run workers in the Python that has tidegate in it, not in whatever `python3` is on
    the PATH. What a user has set stays."""
    own = worker_python()
    if os.environ.get("PYSPARK_PYTHON") in (None, own, sys.executable):
        os.environ["PYSPARK_PYTHON"] = own if local else sys.executable
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
