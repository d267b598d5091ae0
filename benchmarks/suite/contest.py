"""Contestants in processes and environments of their own, asked in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / "environments"
OURS = ("tidegate", "tidegate_spark")
PATIENCE_S = 240
"""A job that takes longer is ended, and said to have: one that hangs would stop the others."""


class OutError(RuntimeError):
    """A contestant that does not take part, or no longer, and why."""


def environment(name: str) -> Path:
    """The Python of a contestant, installed if need be. Raises with what pip said."""
    if name in OURS:
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
        raise OutError(f"did not install: {done.stderr.strip().splitlines()[-1]}")
    stamp.write_text(wanted.read_text())
    return python


@dataclass
class Contestant:
    """A process that does jobs when told to."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    version: str = ""
    jobs: list[str] = field(default_factory=list)

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise OutError(self._why(line)) from None
        return self.hear(line)

    def hear(self, asked: str = "reading the data") -> dict[str, Any]:
        assert self.process.stdout is not None
        waited = threading.Timer(PATIENCE_S, self.process.kill)
        waited.start()
        try:
            for line in self.process.stdout:
                found: dict[str, Any] = json.loads(line)
                return found
        finally:
            too_long = not waited.is_alive()
            waited.cancel()
        raise OutError(f"{asked}: over {PATIENCE_S} s" if too_long else self._why(asked))

    def _why(self, asked: str) -> str:
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        last = said[-1].strip()[:200] if said else "without a word"
        return f"{asked}: ended with exit code {self.process.wait()}: {last}"

    def answer(self, job: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.npz"
            self.ask(f"answer {job} {path}")
            with np.load(path) as arrays:
                return dict(arrays)


@contextmanager
def contestant(name: str, data: Path) -> Iterator[Contestant]:
    """A contestant that has read the data."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [str(environment(name)), str(HERE / "serve.py"), name, str(data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            made = Contestant(name, process, log)
            hello = made.hear()
            made.version, made.jobs = hello["version"], hello["jobs"]
            yield made
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Without more input it ends by itself, and takes what it has started with it."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(30)
    except (BrokenPipeError, subprocess.TimeoutExpired):
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
