"""The wheel alone in a new environment without pyspark: what the README promises of
`pip install tidegate`.

Dependencies come from the package index (or pip's cache); where there is none, the test is skipped
with pip's reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TEN_LINES = """
from importlib.util import find_spec

import pyarrow as pa
import tidegate as tg

decoder = tg.Decoder((tg.TimeColumn("t", "unixtimestamp_ms"),))
flow = tg.Flow([tg.EventtimeWatermark("10 ms")], key="car", decoder=decoder)
rows = pa.record_batch({"car": ["a"] * 4, "t": [100, 103, 101, 50]})
outcomes = flow.process(rows) + flow.end()
print(*(f"{o.kind} {len(o)}" for o in outcomes if o.kind in ("data", "late")))
print(find_spec("pyspark"))
"""

PROTOBUF = """
from tidegate.mcap import McapWriter
from tidegate.warm import _described_stamp

with McapWriter("stamps.mcap") as writer:
    channel = writer.channel("p", schema="Warm", schema_encoding="protobuf",
                             schema_data=_described_stamp(), encoding="protobuf")
    for second in range(1, 9):
        writer.message(channel, second, bytes([10, 2, 8, second]))
"""
"""Writes messages of a Protobuf type whose field 1 is a stamp in seconds."""

QUIET = {"NO_COLOR": "1", "COLUMNS": "100", "NUMBA_DISABLE_JIT": "1"}


class Installed:
    """A new environment with the wheel in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "venv" / "bin"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        # nothing of the environment that runs the tests: no PYTHONPATH, another folder; kernels
        # as plain Python, because compiling them takes longer than these few rows
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        program, *arguments = command
        return subprocess.run(
            [str(self.bin / program), *arguments], capture_output=True, text=True, timeout=300,
            cwd=self.home, env={**kept, **QUIET},
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home),
         str(ROOT)], capture_output=True, text=True,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = home.glob("tidegate-*.whl")
    venv.create(home / "venv", with_pip=True)
    made = Installed(home)
    done = made.run("python", "-m", "pip", "install", "--quiet", "--no-compile",
                    "--disable-pip-version-check", str(wheel))  # fmt: skip
    if done.returncode:
        pytest.skip(f"its dependencies cannot be had here: {done.stderr.strip().splitlines()[-1]}")
    return made


@pytest.mark.apart
@pytest.mark.timeout(600)
def test_the_wheel_alone_does_everything_but_run(installed: Installed) -> None:
    def said(*command: str) -> str:
        done = installed.run(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    assert "no PySpark" in said("tidegate", "--version")
    assert said("python", "-c", TEN_LINES).split("\n")[:2] == ["late 1 data 3", "None"]
    said("tidegate", "demo", "--record-only", "--vehicles", "2", "--seconds", "5")
    assert "event time stamp" in said("tidegate", "inspect", "demo-out/recording")
    assert "wrote" in said("tidegate", "look", "demo-out/recording", "--no-open")
    assert (installed.home / "recording.look.html").stat().st_size > 50_000
    assert "run it with: tidegate run" in said("tidegate", "init", "demo-out/recording")
    said("python", "-c", PROTOBUF)
    assert "event time header_stamp_ns" in said("tidegate", "inspect", "stamps.mcap")
    said("tidegate", "warm")
    for command in (["run", "pipeline.yaml"], ["dry-run", "pipeline.yaml"], ["demo"]):
        refused = installed.run("tidegate", *command)
        assert refused.returncode == 2, command
        assert "pip install 'tidegate[spark]'" in refused.stderr, (command, refused.stderr)
        assert "Traceback" not in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
