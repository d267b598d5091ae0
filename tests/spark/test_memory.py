"""A backfill of one key with rows of a megabyte runs in a small heap, whatever its size: through
files and as a DataFrame. In a process of its own, which is watched with its workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

MEGABYTES = 2_500
"""Above the 2 GiB that an Arrow column of bytes can hold, and above the Java heap."""

WORKER_MB = 2_200
"""Memory of a worker of its own, at most: six times the bytes of a micro-batch (as they came,
joined, sorted, packed) and what it keeps of freed memory. Seen: 670 to 1,760."""

JAVA_MB = 3_600
"""A heap of 2 GB and the buffers beside it through which rows go to Python. Seen: 510 to 2,970."""


@pytest.mark.apart
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["dataframe", "files addressed", "files carried"])
def test_memory_is_bounded(tmp_path: Path, how: str) -> None:
    source, _, payload = how.partition(" ")
    done = subprocess.run(
        [sys.executable, HERE / "memory_child.py", tmp_path, source, str(MEGABYTES),
         payload or "auto"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["all"]
    assert told["bytes"] == (MEGABYTES + 51) * 2**20
    assert told["peak_mb"]["worker"] < WORKER_MB
    assert told["peak_mb"]["java"] < JAVA_MB
