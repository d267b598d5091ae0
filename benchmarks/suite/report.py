"""The figures of a run as a section of RESULTS.md and a picture."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from suite.contest import OURS, Times, ratio
from suite.limits import LIMIT_OF

BEGIN, END = "<!-- suite: begin -->", "<!-- suite: end -->"
WHAT = {
    "reorder": "A. reorder within 200 ms, late rows aside",
    "tumbling": "B. 1 s tumbling count and mean per key and topic",
    "sets": "C. sets of one message per topic",
    "sessions": "D. sessions of gps with a gap of 500 ms",
    "batches": "E. rate-aware batches",
}


@dataclass
class Run:
    """Everything measured on one recording."""

    messages: int
    keys: int
    rounds: int
    times: dict[tuple[str, str], Times] = field(default_factory=dict)
    """Per contestant (or limit) and job."""
    verdicts: dict[tuple[str, str], str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def jobs(self) -> list[str]:
        return [job for job in WHAT if (OURS, job) in self.times]


def section(runs: list[Run], picture: str) -> str:
    """All runs in Markdown."""
    lines = [
        BEGIN,
        "## Beside others, in process",
        "",
        f"Made by `make bench` on {platform.machine()}, {platform.python_implementation()} "
        f"{platform.python_version()}. Contestants have environments of their own and take turns. "
        "A ratio is their time in ours, round by round: above 1 Tidegate is faster. CPU counts all "
        "threads. Every answer is compared with one in plain numpy first.",
        "",
        f"The same as a picture: `{picture}`.",
    ]
    for run in runs:
        lines += [
            "",
            f"### {run.messages:,} messages of {run.keys:,} keys, {run.rounds} rounds",
            "",
        ]
        lines += [f"- {name} {version}" for name, version in sorted(run.versions.items())]
        lines += [f"- {name} did not take part: {why}" for name, why in run.missing.items()]
        lines += [
            "",
            "| job | contestant | s | M messages/s | ratio wall | ratio CPU | answer |",
            "|---|---|---|---|---|---|---|",
        ]
        for job in run.jobs():
            lines += _rows(run, job)
        lines += ["", "Tidegate as a share of its limit (CPU time of the limit in ours):", ""]
        for job in run.jobs():
            limit = run.times[LIMIT_OF[job], ""]
            share = ratio(limit.cpu, run.times[OURS, job].cpu)
            lines.append(f'- {WHAT[job]}: {share[0]:.2f} of "{LIMIT_OF[job]}"')
    return "\n".join([*lines, END])


def _rows(run: Run, job: str) -> list[str]:
    ours = run.times[OURS, job]
    out = []
    for (name, done), times in run.times.items():
        if done != job:
            continue
        wall, cpu = ratio(times.wall, ours.wall), ratio(times.cpu, ours.cpu)
        middle = statistics.median(times.wall)
        spread = f"({wall[1]:.2f} to {wall[2]:.2f})" if name != OURS else ""
        out.append(
            f"| {WHAT[job] if name == OURS else ''} | {name} | {middle:.3f} | "
            f"{run.messages / middle / 1e6:.2f} | {wall[0]:.2f} {spread} | {cpu[0]:.2f} | "
            f"{run.verdicts.get((name, job), '')} |"
        )
    return out


def write(results: Path, text: str) -> None:
    """Put the section where the last one was, or at the end."""
    old = results.read_text() if results.exists() else "# Results\n"
    if BEGIN in old:
        head, _, rest = old.partition(BEGIN)
        old = head + rest.partition(END)[2]
    results.write_text(old.rstrip() + "\n\n" + text + "\n")


def draw(run: Run) -> str:
    """Bars of the wall-time ratio per job and contestant, as SVG; the line is Tidegate."""
    bars = []
    for job in run.jobs():
        ours = run.times[OURS, job]
        for (name, done), times in run.times.items():
            if done == job and name != OURS:
                bars.append((WHAT[job], name, *ratio(times.wall, ours.wall)))
    height, left, scale, most = 22, 470, 60, 7.5
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="960" height="{height * len(bars) + 60}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18">their time in ours (wall; line: least to most)</text>',
    ]
    for number, (what, name, middle, low, high) in enumerate(bars):
        y = 34 + number * height
        width = min(middle, most) * scale
        colour = "#2a7f9e" if middle >= 1 else "#c0562f"
        parts += [
            f'<text x="8" y="{y + 12}">{escape(what)}</text>',
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y}" width="{width:.0f}" height="{height - 8}" fill="{colour}"/>',
            f'<line x1="{left + min(low, most) * scale:.0f}" y1="{y + 7}" '
            f'x2="{left + min(high, most) * scale:.0f}" y2="{y + 7}" stroke="#222"/>',
            f'<text x="{left + width + 6:.0f}" y="{y + 12}">{middle:.2f}</text>',
        ]
    bottom = 34 + len(bars) * height
    x = left + scale
    parts.append(f'<line x1="{x}" x2="{x}" y1="26" y2="{bottom}" stroke="#222"/></svg>')
    return "\n".join(parts)
