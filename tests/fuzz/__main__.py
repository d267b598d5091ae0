"""`python -m fuzz`: change inputs of strangers for as long as it is told, and keep what breaks.

    PYTHONPATH=tests python -m fuzz                          330 s per target, an hour in all
    PYTHONPATH=tests python -m fuzz --target mcap --seconds 60 --seed 7

Prints what was tried, and exits with 1 if anything was found; findings are in tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import sys
import time

from fuzz.engine import run
from fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    found = False
    for name in given.target or TARGETS:
        tried, finding = run(TARGETS[name], seconds=given.seconds, seed=given.seed)
        said = "nothing" if finding is None else f"{finding.what} ({finding.keep()})"
        print(f"{name:10} seed {given.seed}: {tried:,} inputs, found {said}", flush=True)
        found |= finding is not None
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
