"""`python -m fuzz.by_coverage TARGET`: let libFuzzer look for inputs that reach new lines.

    pip install atheris        # wheels for Python 3.11 and 3.12 on Linux; not among our extras
    PYTHONPATH=src:tests python -m fuzz.by_coverage yaml -max_total_time=600

Only what is written in Python is seen (no numba, no Arrow), so this is of use for the targets that
read text: pipeline files, addresses, records, logs, lines, payloads of JSON. Arguments behind the
name are libFuzzer's; inputs that it finds new go into a folder of their own, findings into the
working directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris


def main() -> None:
    name, *arguments = sys.argv[1:]
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # numba cannot compile what is instrumented
    with atheris.instrument_imports(include=["tidegate", "yaml"]):
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    found = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    for number, seed in enumerate([*target.seeds(), *target.corpus()]):
        (found / f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        with suppress(*target.promised):
            target.use(data)

    atheris.Setup([sys.argv[0], str(found), *arguments], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
