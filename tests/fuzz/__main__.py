"""`python -m fuzz`: change inputs of strangers for as long as it is told, and keep what breaks.

    PYTHONPATH=tests python -m fuzz                          an hour in all
    PYTHONPATH=tests python -m fuzz --target mcap --seconds 60 --seed 7

Prints what was tried, with the CPU time it took, and exits with 1 if anything was found; findings
are in tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

from fuzz.engine import run
from fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=3600 / len(TARGETS), help="per target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    found = False
    for name in given.target or TARGETS:
        before = cpu_seconds()
        tried, finding = run(TARGETS[name], seconds=given.seconds, seed=given.seed)
        said = "nothing" if finding is None else f"{finding.what} ({finding.keep()})"
        took = f"{cpu_seconds() - before:,.0f} s of CPU"
        print(f"{name:10} seed {given.seed}: {tried:,} inputs in {took}, found {said}", flush=True)
        found |= finding is not None
    return int(found)


def cpu_seconds() -> float:
    """The CPU time of this process and of the children that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


if __name__ == "__main__":
    sys.exit(main())
