"""The figures of all pieces as a page of notes, and their pictures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from suite.contest import Times, ratio
from suite.data import LATE_NS, RATES_HZ
from suite.drawing import Bar, bars
from suite.pieces import PIECES, Piece
from suite.results import write_note, write_picture
from suite.run import Run

HEAD = """# Beside others

Made by `make bench`; the figures of every round are in `benchmarks/measured/`. Contestants have
environments of their own, pinned, and take turns, a different one first in every round. A ratio
is their time in ours, round by round, as median (least to most): above 1 Tidegate is faster. CPU
counts all threads and processes, memory adds up the peaks of all processes. Every answer is
compared with one in plain numpy first; where it is not the same, what differs stands in the last
column and the bar is grey. Sets (C) have no one right answer: as-of joins answer an easier
question, and the column says how well. Rate-aware batches (E) nobody else has."""

WORDS = {
    "In process": (
        "From memory to memory. Polars, DuckDB and, in part, Tidegate use both cores, pandas one. "
        "In F Tidegate also puts the deltas in order, checks them, finds those that come twice and "
        "keeps a version per vector; the others take the last write of every dimension. Of its "
        "time there a third is admitting and folding, a fifth reading and hashing ids, a quarter "
        "the last small collection and the end, which write down and read all state once more."
    ),
    "On Spark": (
        "Local mode, two cores, from Parquet to the noop sink; streams in three micro-batches, "
        "available now, from the start of the query to its end. Spark's own windows in a stream "
        "have one watermark for all keys that moves between micro-batches, so they do not find the "
        "same late rows; in batch it uses window functions and its answer is exact. Tempo joins in "
        "batch only. `nothing` is a stateful step that does nothing, `identity` is mapInArrow. "
        "E in a stream has timers, with which Spark's available-now does not end: it is stopped "
        "after an empty micro-batch, and the two took 0.6 of 4.4 s where they were looked at. In "
        "its micro-batches with rows alone the step that does nothing took 0.96 of its time (0.81 "
        "to 1.08, five rounds in turns, 100 keys, load 2 to 3)."
    ),
    "Beside engines of streams": (
        "These take one Python object or one line of CSV per message, so they get fewer messages. "
        "Flink runs with one task (two would read the halves of the recording side by side) and "
        "its time includes starting the job, more than a second, which is most of it with so "
        "few messages. Flink and Pathway have one watermark for all keys, "
        "Bytewax one per key and topic that also runs on with the clock."
    ),
}


def report() -> str:
    """Write section and pictures from what was kept; returns the section."""
    parts = [HEAD]
    title = ""
    for piece in PIECES.values():
        run = Run.kept(piece.name)
        if run is None or piece.ours in run.missing:  # a ratio needs us
            continue
        if piece.title != title:
            title = piece.title
            parts += [f"## {title}", WORDS[title]]
        parts.append("\n".join(_lines(piece, run)))
    missing = [name for name in PIECES if Run.kept(name) is None]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)} (`make bench ARGS=--resume`).")
    text = "\n\n".join(parts)
    write_note("suite", text)
    return text


def _lines(piece: Piece, run: Run) -> Iterator[str]:
    yield f"### {run.messages:,} messages, {run.keys:,} {'key' if run.keys == 1 else 'keys'}"
    yield ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    load = f"load {min(run.load):.1f} to {max(run.load):.1f}"
    yield f"{run.when}, {run.rounds} rounds, {run.machine}, {load}; {versions}."
    yield ""
    seconds = run.messages / run.keys / sum(RATES_HZ.values())
    if seconds < LATE_NS / 1e9:
        yield f"The recording lasts {seconds:.1f} s: too short for a late message to be in it."
        yield ""
    for name, why in run.missing.items():
        yield f"- {name} did not take part: {why}"
    if run.missing:
        yield ""
    drawn = _bars(piece, run)
    if drawn:
        yield write_picture(
            piece.name, bars("their time in ours (wall; line: least to most)", drawn)
        )
        yield ""
    yield "| job | contestant | s | M/s | ratio wall | ratio CPU | GiB | answer |"
    yield "|---|---|---|---|---|---|---|---|"
    for job, what in piece.jobs.items():
        for name, times in run.times.get(job, {}).items():
            yield _row(piece, run, job, what, name, times)
    yield ""
    yield (
        "Tidegate as a share of its limits (time of the limit in ours; of CPU time the least of "
        "the rounds):"
    )
    yield ""
    yield "| job | limit | wall | CPU |"
    yield "|---|---|---|---|"
    for job, what in piece.jobs.items():
        ours = run.times.get(job, {}).get(piece.ours)
        for limit in piece.limits[job] if ours else ():
            bare = run.times["limit"].get(limit) or run.times[limit][piece.ours]
            assert ours is not None
            wall, cpu = ratio(bare.wall, ours.wall)[0], min(bare.cpu) / min(ours.cpu)
            yield f"| {what} | {limit} | {wall:.2f} | {cpu:.2f} |"


def _row(piece: Piece, run: Run, job: str, what: str, name: str, times: Times) -> str:
    ours = run.times[job][piece.ours]
    middle = statistics.median(times.wall)
    count = run.messages // 5 if job == "compaction" else run.messages
    if name == piece.ours:
        ratios = "1 | 1"
    else:
        wall, cpu = ratio(times.wall, ours.wall), ratio(times.cpu, ours.cpu)
        ratios = f"**{wall[0]:.2f}** ({wall[1]:.2f} to {wall[2]:.2f}) | {cpu[0]:.2f}"
    return (
        f"| {what if name == piece.ours else ''} | {name} | {middle:.3f} | "
        f"{count / middle / 1e6:.2f} | {ratios} | {times.memory / 2**30:.1f} | "
        f"{run.verdicts[job].get(name, '')} |"
    )


def _bars(piece: Piece, run: Run) -> list[Bar]:
    out = []
    for job, what in piece.jobs.items():
        for name, times in run.times.get(job, {}).items():
            if name != piece.ours:
                verdict = run.verdicts[job].get(name, "")
                wrong = verdict != "right" and not job.endswith("sets")
                found = ratio(times.wall, run.times[job][piece.ours].wall)
                out.append(Bar(what, name, *found, wrong=wrong))
    return out
