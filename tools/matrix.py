"""Run the tests on every version of Spark and of Python that is supported: `make matrix`.

    python tools/matrix.py                    all of them
    python tools/matrix.py spark-4.1          one of them; several may be named
    python tools/matrix.py --list             what there is, and why something is skipped

Each has an environment of its own under build/matrix, which is kept: a second run installs only
what has changed. Spark versions run a short list of Spark tests: results against the operators in
process, restarts, files as columns, recordings, Spark Connect. Python versions run the tests of the
operators, in an environment without pyspark: what `pip install tidegate` gives must work alone.

A Python that is not installed here is skipped with a sentence. Exit code 1 if any test failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent

SPARKS = ("4.1", "4.2", "4.3")
"""Minor versions of Spark; the newest patch of each that PyPI has is installed."""

PYTHONS = ("3.11", "3.12", "3.13")

TESTS_NEED = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.112")

SPARK_TESTS = (
    "tests/spark/test_parity.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_sources_mcap.py",
    "tests/spark/test_connect.py",
    "tests/spark/columnar/test_gates.py",
)

CORE_TESTS = (
    "tests/align",
    "tests/batching",
    "tests/deltas",
    "tests/eventtime",
    "tests/sync",
    "tests/windows",
    "tests/core/test_flow.py",
    "tests/core/test_operator.py",
    "tests/core/test_without_spark.py",
)


@dataclass(frozen=True)
class Environment:
    """One environment and what is run in it.

    Args:
        name: Of its folder under build/matrix.
        python: The interpreter it is made with; None: not installed.
        packages: What is installed, as pip takes it.
        tests: What is run.
    """

    name: str
    python: str | None
    packages: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HERE / "build" / "matrix" / self.name

    def make(self) -> None:
        """Create it, or bring it up to date."""
        assert self.python is not None
        if not (self.folder / "bin" / "python").exists():
            subprocess.run([self.python, "-m", "venv", self.folder], check=True)
        pip = [self.folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", *self.packages], check=True, cwd=HERE)

    def run(self, options: list[str]) -> bool:
        """Run its tests; return whether they passed."""
        own = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE / "tests")]),
            "PYSPARK_PYTHON": str(self.folder / "bin" / "python"),
        }
        own.pop("SPARK_HOME", None)
        command = [self.folder / "bin" / "python", "-m", "pytest", "-q", *self.tests, *options]
        return subprocess.run(command, cwd=HERE, env=own).returncode == 0


def runs(name: str) -> str | None:
    """Return the path of an interpreter, if there is one and it starts: a shim of pyenv may not."""
    installed = [str(one) for one in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    for found in [shutil.which(name), *installed]:
        if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    return None


def environments() -> list[Environment]:
    """Return all of them, those that cannot be made here included."""
    made = [
        Environment(
            f"spark-{version}", sys.executable,
            ("-e", ".[spark,connect,delta,rosbag]", f"pyspark=={version}.*", "mcap>=1.2", "lz4",
             *TESTS_NEED),
            SPARK_TESTS,
        )
        for version in SPARKS
    ]  # fmt: skip
    for version in PYTHONS:
        found = runs(f"python{version}")
        core = ("-e", ".", "scipy>=1.11", "mcap>=1.2", "lz4", *TESTS_NEED)
        made.append(Environment(f"python-{version}", found, core, CORE_TESTS))
    return made


def main(arguments: list[str]) -> int:
    """Run what was asked for and print one line each."""
    names = [one for one in arguments if not one.startswith("-")]
    options = [one for one in arguments if one.startswith("-") and one != "--list"]
    unknown = set(names) - {one.name for one in environments()}
    if unknown:
        known = ", ".join(one.name for one in environments())
        print(f"matrix: unknown {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        return 2
    lines, failed = [], False
    for one in environments():
        if names and one.name not in names:
            continue
        if one.python is None:
            lines.append(f"{one.name:12s} skipped: there is no {one.name.replace('-', '')} here")
        elif "--list" in arguments:
            lines.append(f"{one.name:12s} {len(one.tests)} files or folders of tests")
        else:
            print(f"== {one.name}", flush=True)
            began = time.monotonic()
            one.make()
            passed = one.run(options)
            failed = failed or not passed
            took = time.monotonic() - began
            lines.append(f"{one.name:12s} {'passed' if passed else 'FAILED'} in {took:.0f} s")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
