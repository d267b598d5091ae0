"""Java's classes in a file: used where it is, left aside without a word where it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.spark.environment.class_archive import (
    OPTIONS,
    archive_file,
    archive_used,
    make_archive,
)
from tidegate.spark.environment.java import find_java

START = """
from tidegate.spark import session
spark = session("local[1]", settings={"spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
print("rows", spark.range(3).count())
spark.stop()
"""

WRITES = "import os, re; file = re.search('AtExit=(\\\\S+)', os.environ['SPARK_SUBMIT_OPTS'])[1]; "


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_options_are_those_of_the_archive_and_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(OPTIONS, "-Xmx1g")
    with archive_used(tmp_path):
        assert os.environ[OPTIONS] == "-Xmx1g", "there is none"
    file = make_archive(tmp_path, program(WRITES + "open(file, 'w').write('classes')"))
    assert file == archive_file(tmp_path)
    assert file.read_text() == "classes"
    with archive_used(tmp_path):
        assert f"-XX:SharedArchiveFile={file}" in os.environ[OPTIONS]
        assert os.environ[OPTIONS].startswith("-Xmx1g ")
    assert os.environ[OPTIONS] == "-Xmx1g"
    (tmp_path / "release").write_text('JAVA_VERSION="99"')
    assert archive_file(tmp_path) != file, "another Java has an archive of its own"


def test_a_java_that_makes_none(tmp_path: Path) -> None:
    assert make_archive(tmp_path, program("raise SystemExit(3)"), tmp_path) is None
    assert make_archive(tmp_path, ["/nonexistent"], tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_damaged_archive_stops_no_session(tmp_path: Path) -> None:
    home = find_java()
    if home is None:
        pytest.skip("no Java but the wheel's")
    file = archive_file(home, tmp_path / "tidegate")
    file.parent.mkdir()
    file.write_bytes(b"no archive" * 1000)
    ran = subprocess.run(
        program(START), env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["rows 3"], ran.stderr[-2000:]
