"""What must work without pyspark: the package, its operators, the commands that only read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WITHOUT = "import sys; sys.modules.update(pyspark=None, py4j=None); "
"""A Python in which `import pyspark` fails, as where it is not installed."""


def run(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)


COMMAND = "sys.argv[0] = 'tidegate'; from tidegate.cli import main; main()"


def test_operators_and_every_other_namespace_need_no_spark() -> None:
    done = run(
        "import tidegate; "
        "[getattr(tidegate, name) for name in tidegate.__all__ if name != 'spark']; "
        "flow = tidegate.Flow([tidegate.EventtimeWatermark('1 s')], timed=True); flow.compile()"
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def recording(tmp_path: Path) -> str:
    rows = {"car": ["a", "b"] * 50, "stamp": [10**18 + n * 10**7 for n in range(100)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


@pytest.mark.parametrize("command", ["inspect", "look"])
def test_commands_that_read_need_no_spark(command: str, recording: str, tmp_path: Path) -> None:
    done = run(COMMAND, command, recording, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_needs_spark_says_how_to_install_it(tmp_path: Path) -> None:
    done = run("import tidegate.spark")
    assert "MissingPackageError: this needs Spark" in done.stderr
    assert "pip install 'tidegate[spark]'" in done.stderr
    assert run("\ntry: import tidegate.spark\nexcept ImportError: pass").returncode == 0
    told = run(COMMAND, "checkpoint", "show", str(tmp_path))
    assert told.returncode == 2
    assert "this needs Spark" in told.stderr
