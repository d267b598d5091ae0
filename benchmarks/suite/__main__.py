"""Run the comparison, whole or in pieces, or its quick form.

PYTHONPATH=benchmarks python -m suite                    (all pieces; half an hour)
PYTHONPATH=benchmarks python -m suite keys-100 flink     (these; the others stay as they were)
PYTHONPATH=benchmarks python -m suite --resume           (those not measured in the last 12 hours)
PYTHONPATH=benchmarks python -m suite --quick            (under three minutes: did a ratio fall?)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from suite.contest import OURS
from suite.data import record
from suite.pieces import PIECES, Piece
from suite.report import report
from suite.results import HOME, MEASURED
from suite.run import Run, console, measure

BASELINE = HOME / "baseline.json"
FALL = 0.8
FRESH_S = 12 * 3600


def full(pieces: list[Piece], given: argparse.Namespace) -> int:
    wrong: list[str] = []
    for number, piece in enumerate(pieces):
        console.print(
            f"[{number + 1}/{len(pieces)}] {piece.name}: {piece.messages:,} messages, "
            f"{piece.keys:,} keys, {', '.join(piece.players)}"
        )
        if given.resume and _fresh(piece):
            console.print("  measured already")
            continue
        run = _measured(piece, keep=not given.no_report)
        wrong += [
            f"{piece.name}: {job}: {said[piece.ours]}"
            for job, said in run.verdicts.items()
            if piece.ours in said and not job.endswith("sets") and said[piece.ours] != "right"
        ]
        wrong += [f"{piece.name}: {piece.ours} is out"] if piece.ours in run.missing else []
        if given.no_report:
            print(run)
        else:
            report()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _fresh(piece: Piece) -> bool:
    file = MEASURED / f"{piece.name}.json"
    return file.exists() and time.time() - file.stat().st_mtime < FRESH_S


def _measured(piece: Piece, *, keep: bool) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.parquet"
        record(path, piece.messages, piece.keys)
        return measure(piece, path, keep=keep)


def quick(given: argparse.Namespace) -> int:
    """Our share of each limit, against the one that was kept: a fall of a fifth is an error."""
    piece = replace(PIECES["keys-100"], messages=500_000, rounds=7, others=())
    run = _measured(piece, keep=False)
    shares = {}
    for job in piece.jobs:
        limit, ours = run.times["limit"][piece.limits[job][0]], run.times[job][piece.ours]
        shares[job] = round(min(limit.cpu) / min(ours.cpu), 4)
    if given.keep:
        BASELINE.write_text(json.dumps(shares, indent=2) + "\n")
    before: dict[str, float] = json.loads(BASELINE.read_text())
    for job, share in shares.items():
        print(f"{job:10s} {share:6.3f} of its limit, before {before.get(job, float('nan')):6.3f}")
    # a job that was never kept counts as fallen: --keep is the way out
    fallen = [job for job, share in shares.items() if not share >= FALL * before.get(job, np.inf)]
    if fallen:
        print(f"fell by more than a fifth: {', '.join(fallen)}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suite")
    parser.add_argument("pieces", nargs="*", help=f"of {', '.join(PIECES)}")
    parser.add_argument("--resume", action="store_true", help="leave out what is measured already")
    parser.add_argument("--messages", type=int, help="another size, for a try")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--only", nargs="+", help="of the contestants; ours play always")
    parser.add_argument("--no-report", action="store_true", help="print, and keep nothing")
    parser.add_argument("--report", action="store_true", help="only write notes/suite.md anew")
    parser.add_argument("--quick", action="store_true", help="only us, against the kept baseline")
    parser.add_argument("--keep", action="store_true", help="with --quick: keep it as the baseline")
    given = parser.parse_args()
    if unknown := [name for name in given.pieces if name not in PIECES]:
        parser.error(f"no piece {', '.join(unknown)}; there are {', '.join(PIECES)}")
    if given.report:
        print(report())
        return 0
    if given.quick:
        return quick(given)
    return full([_as_asked(PIECES[name], given) for name in given.pieces or PIECES], given)


def _as_asked(piece: Piece, given: argparse.Namespace) -> Piece:
    return replace(
        piece,
        messages=given.messages or piece.messages,
        rounds=given.rounds or piece.rounds,
        others=tuple(n for n in piece.others if not given.only or n in given.only or n in OURS),
    )


if __name__ == "__main__":
    sys.exit(main())
