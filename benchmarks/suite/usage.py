"""CPU time and memory of this process and all it has started: Java and workers too."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")


def family() -> list[int]:
    """This process and its descendants, as far as the machine tells (Linux)."""
    parents: dict[int, int] = {}
    for folder in PROC.glob("[0-9]*"):
        said = _stat(int(folder.name))
        if said:
            parents[int(folder.name)] = int(said[1])
    found, newest = [os.getpid()], {os.getpid()}
    while newest:
        newest = {pid for pid, parent in parents.items() if parent in newest}
        found += newest
    return found


def cpu_seconds() -> float:
    """User and system time: our own exactly, that of others in the hundredths Linux tells."""
    children = os.times()
    own = time.process_time() + children.children_user + children.children_system
    ticks = 0
    for pid in family()[1:]:
        said = _stat(pid)
        ticks += sum(int(part) for part in said[11:15]) if said else 0
    return own + ticks / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """The most each process ever had resident, added up: an upper bound for them together."""
    total = 0
    for pid in family():
        try:
            said = (PROC / str(pid) / "status").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if "VmHWM:" in said:
            total += int(said.split("VmHWM:")[1].split()[0]) * 1024
    return total


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended meanwhile; its parent has its time
        return []
