"""Processes below a run: who they are, how much memory they hold, and an end to them at once."""

from __future__ import annotations

import collections
import os
import signal
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[tuple[int, str]]:
    """All processes below one, with their command lines, from /proc."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children[parent].append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children[waiting.pop()]:
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found.append((child, words.decode(errors="replace")))
            waiting.append(child)
    return found


def workers(pid: int) -> list[int]:
    """The Python workers of a run. Spark's daemon forks them: they bear its name, below it."""
    named = "tidegate.spark.environment.daemon pyspark.worker"
    daemons = [child for child, words in descendants(pid) if named in words]
    return sorted({worker for daemon in daemons for worker, _ in descendants(daemon)})


def memory_by_role(pid: int) -> dict[str, int]:
    """Bytes that a run holds: its driver (Python), Java, and all other Pythons together (workers,
    the daemon, readers of sources). What processes share counts once."""
    held = {"driver": share(pid), "Java": 0, "workers": 0}
    for child, words in descendants(pid):
        held["Java" if "java" in words.partition(" ")[0] else "workers"] += share(child)
    return held


def kill(pid: int) -> bool:
    """SIGKILL one process; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_all(pid: int) -> None:
    """SIGKILL a process and all below it. Only ever called for a run of our own, or by it."""
    below = [child for child, _ in descendants(pid)]
    for child in below:
        kill(child)
    kill(pid)


def share(pid: int) -> int:
    """Bytes of memory a process holds, of what it shares with others its part; 0 if it is gone.

    Added up over processes that fork from each other, `rss` counts the same pages again and again:
    Java is twice as large for the moment in which it starts a command.
    """
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in told if line.startswith("Pss:"))


def rss(pid: int) -> int:
    """Bytes of memory a process holds; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0
