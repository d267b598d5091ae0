"""Contestants in processes and environments of their own, asked in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / "environments"
OURS = "tidegate"


def known() -> list[str]:
    """The contestants, ourselves first."""
    return [OURS, *sorted(file.stem for file in (HERE / "requirements").glob("*.txt"))]


def environment(name: str) -> Path:
    """The Python of a contestant, installed if need be. Raises with what pip said."""
    if name == OURS:
        return Path(sys.executable)
    folder = ENVIRONMENTS / name
    python, wanted = folder / "bin" / "python", HERE / "requirements" / f"{name}.txt"
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-r", wanted], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    stamp.write_text(wanted.read_text())
    return python


@dataclass
class Contestant:
    """A process that does jobs when told to."""

    name: str
    process: subprocess.Popen[str]
    version: str = ""
    jobs: list[str] = field(default_factory=list)

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # whatever else a library prints is not for us
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"{self.name} stopped with exit code {self.process.wait()}")

    def answer(self, job: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.npz"
            self.ask(f"answer {job} {path}")
            with np.load(path) as arrays:
                return dict(arrays)


@contextmanager
def contestant(name: str, data: Path) -> Iterator[Contestant]:
    """A contestant that has read the data."""
    process = subprocess.Popen(
        [str(environment(name)), str(HERE / "serve.py"), name, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        made = Contestant(name, process)
        hello = made._hear()
        made.version, made.jobs = hello["version"], hello["jobs"]
        yield made
    finally:
        process.kill()
        process.wait()


@dataclass
class Times:
    """What the rounds of one contestant and job took."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: float = 0.0

    def add(self, said: dict[str, Any]) -> None:
        self.wall.append(said["wall"])
        self.cpu.append(said["cpu"])
        self.memory = max(self.memory, said["memory"])


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of their time in ours, round by round: above 1 we are faster."""
    ratios = [them / us for them, us in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)
