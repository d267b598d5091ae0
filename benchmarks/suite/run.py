"""One piece from start to end: everyone warms up and is checked, then all take turns."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from suite import answers
from suite.contest import Contestant, OutError, Times, contestant
from suite.data import deltas_of
from suite.limits import limits, timed
from suite.pieces import Piece
from suite.results import MEASURED

console = Console(stderr=True)


@dataclass
class Run:
    """Everything measured on one recording."""

    piece: str
    messages: int
    keys: int
    rounds: int
    when: str = ""
    machine: str = ""
    load: list[float] = field(default_factory=list)
    """Average load of the machine at the start of each round: ours alone is about 1 to 2."""
    times: dict[str, dict[str, Times]] = field(default_factory=dict)
    """Per job and contestant; limits stand under the job `limit`."""
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def keep(self) -> None:
        MEASURED.mkdir(exist_ok=True)
        (MEASURED / f"{self.piece}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def kept(cls, piece: str) -> Run | None:
        file = MEASURED / f"{piece}.json"
        if not file.exists():
            return None
        said: dict[str, Any] = json.loads(file.read_text())
        times = {
            job: {name: Times(**values) for name, values in by_name.items()}
            for job, by_name in said.pop("times").items()
        }
        return cls(**said, times=times)


def measure(piece: Piece, path: Path, *, keep: bool) -> Run:
    """All contestants of a piece on one recording; `keep` what is measured after every round."""
    run = Run(piece.name, piece.messages, piece.keys, 0, time.strftime("%Y-%m-%d %H:%M"),
              f"{platform.machine()}, Python {platform.python_version()}")  # fmt: skip
    with ExitStack() as stack:
        playing = [player for name in piece.players if (player := _enter(stack, name, path, run))]
        judge = Judge(path)
        for player in list(playing):
            try:
                _warm_up(player, piece, judge, run)
            except OutError as error:
                run.missing[player.name] = str(error)
                playing.remove(player)
        bare = limits(path)
        for number in range(piece.rounds):
            console.print(f"  round {number + 1} of {piece.rounds}")
            run.load.append(os.getloadavg()[0])
            for name, function in bare.items():
                _times(run, "limit", name).add(timed(function))
            for job in _asked(piece):
                able = [player for player in playing if job in player.jobs]
                turn = number % max(len(able), 1)  # nobody is always first
                for player in able[turn:] + able[:turn]:
                    _times(run, job, player.name).add(player.ask(job))
            run.rounds = number + 1
            if keep:  # at once: who stops it now loses one round
                run.keep()
    return run


def _enter(stack: ExitStack, name: str, path: Path, run: Run) -> Contestant | None:
    try:
        player = stack.enter_context(contestant(name, path))
    except OutError as error:
        run.missing[name] = str(error)
        console.print(f"  {name} is out: {error}")
        return None
    run.versions[name] = player.version
    return player


def _warm_up(player: Contestant, piece: Piece, judge: Judge, run: Run) -> None:
    for job in _asked(piece):
        if job in player.jobs:
            took = player.ask(job)
            console.print(f"  {player.name}: {job}, warm-up {took['wall']:.1f} s, check")
            if job in piece.jobs:
                said = judge.verdict(job, player.answer(job))
                run.verdicts.setdefault(job, {})[player.name] = said


def _asked(piece: Piece) -> list[str]:
    """The jobs, and those limits that are jobs themselves (on Spark)."""
    named = dict.fromkeys(name for names in piece.limits.values() for name in names)
    return [*piece.jobs, *(name for name in named if " " not in name)]


def _times(run: Run, job: str, name: str) -> Times:
    return run.times.setdefault(job, {}).setdefault(name, Times())


class Judge:
    """Says whether an answer is the one plain numpy gives."""

    def __init__(self, path: Path) -> None:
        table = pq.read_table(path)
        self.data = {name: table[name].to_numpy() for name in table.column_names}
        self.deltas = deltas_of(path)
        self.right: dict[str, answers.Answer] = {}

    def verdict(self, job: str, found: answers.Answer) -> str:
        """`right`, or in a few words what differs or how good it is."""
        kind = job.removeprefix("stream_")
        if kind == "compaction":
            right = self._right(kind, answers.compaction, pq.read_table(self.deltas))
            return answers.same(right, answers.dense(found)) or "right"
        if kind == "sets":
            judged = answers.judge_sets(self.data, found["sets"])
            return (
                f"{judged['sets']:,.0f} sets, median spread {judged['median_spread_ms']:.1f} ms, "
                f"{judged['used_twice']:,.0f} messages in two sets"
            )
        if kind == "batches":
            found = {"id": np.sort(found["id"])}
            right = {"id": np.sort(self._right("reorder", answers.reorder, self.data)["id"])}
        else:
            right = self._right(kind, getattr(answers, kind), self.data)
        if kind != job:
            right, found = answers.closed(right, found, self.data)
        return answers.same(right, found) or "right"

    def _right(self, kind: str, make: Any, given: Any) -> answers.Answer:
        if kind not in self.right:
            self.right[kind] = make(given)
        return self.right[kind]
