"""The table of settings in "Change a running pipeline" is what the operators say.

PYTHONPATH=src:tests python -m house.test_change_page      writes it into the page
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from tidegate.align import Align
from tidegate.align.episodes import Episodes
from tidegate.batching import Batch
from tidegate.core.operator import Operator
from tidegate.deltas import Compact
from tidegate.eventtime import EventtimeWatermark, ProcessTimeWatermark
from tidegate.sync import Synchronize
from tidegate.windows import Window

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "change-a-pipeline.md"
BEGIN = "<!-- table: made by tests/house/test_change_page.py -->\n"
END = "<!-- end -->\n"


def operators() -> list[Any]:
    """Every operator of the package, by name."""
    known = (Align, Batch, Compact, Episodes, EventtimeWatermark, ProcessTimeWatermark)
    found: dict[str, Any] = {kind.name: kind for kind in (*known, Synchronize, Window)}
    waiting: list[Any] = [Operator]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("tidegate."):
                found[kind.name] = kind
    return [found[name] for name in sorted(found)]


def table() -> str:
    lines = ["| stage | setting | | |", "|---|---|---|---|"]
    for kind in operators():
        for f in fields(kind):
            if f.init:
                adopted = f.name in kind.adopts
                said = kind.adopts[f.name] if adopted else kind.refuses.get(f.name, "")
                mark = "adopted" if adopted else "refused"
                lines.append(f"| {kind.name} | `{f.name}` | {mark} | {said} |")
    return "\n".join(lines) + "\n"


def test_every_setting_is_either_adopted_or_refused_with_a_reason() -> None:
    for kind in operators():
        settings = {f.name for f in fields(kind) if f.init}
        assert set(kind.adopts) | set(kind.refuses) == settings, kind.name
        assert not set(kind.adopts) & set(kind.refuses), kind.name


def test_the_page_has_the_table() -> None:
    told = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    assert told.splitlines() == table().splitlines(), "run: python -m house.test_change_page"


if __name__ == "__main__":
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END, 1)[1])
