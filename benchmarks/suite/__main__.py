"""Run the comparison, or its quick form.

PYTHONPATH=benchmarks python -m suite [--messages 5000000] [--keys 100 10000 1] [--rounds 5]
PYTHONPATH=benchmarks python -m suite --quick      (a few minutes less: did a ratio fall?)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from suite import answers
from suite.contest import OURS, Contestant, Times, contestant, known
from suite.data import record
from suite.limits import LIMIT_OF, limits, timed
from suite.report import Run, draw, section, write

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / "baseline.json"
FALL = 0.8
SHORTER = {"bytewax": 100_000}
"""Contestants that take a Python call per message get a recording of their own size."""

console = Console(stderr=True)


def compare(path: Path, messages: int, keys: int, rounds: int, names: list[str]) -> Run:
    """All contestants on one recording, in turn, after a round that only warms up and checks."""
    run = Run(messages, keys, rounds)
    table = pq.read_table(path)
    data = {name: table[name].to_numpy() for name in table.column_names}
    right = {job: getattr(answers, job)(data) for job in ("reorder", "tumbling", "sessions")}
    with ExitStack() as stack:
        playing: list[Contestant] = []
        for name in names:
            try:
                playing.append(stack.enter_context(contestant(name, path)))
            except RuntimeError as error:
                run.missing[name] = str(error)
                continue
            run.versions[name] = playing[-1].version
        for player in playing:
            for job in player.jobs:
                console.print(f"  {player.name}: {job}, warm-up and check")
                player.ask(job)
                run.verdicts[player.name, job] = _verdict(job, right, data, player.answer(job))
        bare = limits(path)
        for number in range(rounds):
            console.print(f"  round {number + 1} of {rounds}")
            for name, function in bare.items():
                run.times.setdefault((name, ""), Times()).add(timed(function))
            for job in playing[0].jobs if playing else []:
                for player in playing:
                    if job in player.jobs:
                        times = run.times.setdefault((player.name, job), Times())
                        times.add(player.ask(job))
    return run


def _verdict(
    job: str, right: dict[str, answers.Answer], data: answers.Answer, found: answers.Answer
) -> str:
    if job in right:
        return answers.same(right[job], found) or "right"
    if job == "sets":
        judged = answers.judge_sets(data, found["sets"])
        return (
            f"{judged['sets']:,.0f} sets, median spread {judged['median_spread_ms']:.1f} ms, "
            f"{judged['used_twice']:.0f} messages in two sets"
        )
    expected = answers.reorder(data)["id"]
    lost = len(expected) - len(np.intersect1d(expected, found["id"]))
    return "right" if lost == 0 and len(found["id"]) == len(expected) else f"{lost} rows lost"


def full(given: argparse.Namespace) -> int:
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        runs += [
            _on_one(Path(folder), given, given.messages, keys, given.rounds) for keys in given.keys
        ]
        for name, messages in SHORTER.items():
            if name in given.only:
                runs.append(_on_one(Path(folder), given, messages, 100, 3, [OURS, name]))
    pictures = ROOT / "pictures"
    pictures.mkdir(exist_ok=True)
    (pictures / "comparison.svg").write_text(draw(runs[0]))
    text = section(runs, "benchmarks/pictures/comparison.svg")
    write(ROOT / "RESULTS.md", text)
    print(text)
    wrong = [who for run in runs for who, verdict in run.verdicts.items()
             if who[0] == OURS and who[1] != "sets" and verdict != "right"]  # fmt: skip
    return 1 if wrong else 0


def _on_one(
    folder: Path,
    given: argparse.Namespace,
    messages: int,
    keys: int,
    rounds: int,
    names: list[str] | None = None,
) -> Run:
    console.print(f"{messages:,} messages of {keys:,} keys")
    path = folder / f"{messages}-{keys}.parquet"
    record(path, messages, keys)
    chosen = names or [name for name in given.only if name not in SHORTER]
    return compare(path, messages, keys, rounds, chosen)


def quick(given: argparse.Namespace) -> int:
    """Our share of each limit, against the one that was kept: a fall of a fifth is an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quick.parquet"
        record(path, 500_000, 100)
        run = compare(path, 500_000, 100, max(given.rounds, 5), [OURS])
    shares = {}
    for job in run.jobs():
        limit, ours = run.times[LIMIT_OF[job], ""], run.times[OURS, job]
        shares[job] = round(min(limit.cpu) / min(ours.cpu), 4)
    if given.keep:
        BASELINE.write_text(json.dumps(shares, indent=2) + "\n")
    before = json.loads(BASELINE.read_text())
    for job, share in shares.items():
        print(f"{job:10s} {share:6.3f} of its limit, before {before[job]:6.3f}")
    fallen = [job for job, share in shares.items() if share < FALL * before[job]]
    if fallen:
        print(f"fell by more than a fifth: {', '.join(fallen)}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suite")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=known(), choices=known(), help="contestants")
    parser.add_argument("--quick", action="store_true", help="only us, against the kept baseline")
    parser.add_argument("--keep", action="store_true", help="with --quick: keep it as the baseline")
    given = parser.parse_args()
    if OURS not in given.only:
        given.only = [OURS, *given.only]
    return quick(given) if given.quick else full(given)


if __name__ == "__main__":
    sys.exit(main())
