"""All scenarios, and the page and pictures made from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.report.picture import Picture

__all__ = ["FAMILIES", "Scenario", "all_scenarios", "refresh_rules", "scenario", "write_scenarios"]

FAMILIES = {
    "event-time": "Event time",
    "batching": "Rate-aware batching",
    "synchronisation": "Synchronisation",
    "align": "Align",
    "windows": "Windows",
    "compaction": "Compaction",
}
MODULES = ("event_time", "batching", "synchronisation", "align", "windows", "compaction")


@dataclass(frozen=True)
class Scenario:
    """A name, the rule it shows, and what makes its picture by running the operator."""

    family: str
    name: str
    rule: str
    draw: Callable[[], Picture]

    @property
    def slug(self) -> str:
        words = "".join(ch if ch.isalnum() else " " for ch in self.name.lower()).split()
        return f"{self.family}-{'-'.join(words)}"


_SCENARIOS: list[Scenario] = []


def scenario(family: str, name: str) -> Callable[[Callable[[], Picture]], Callable[[], Picture]]:
    """Register the function that runs and draws a scenario; its docstring is the rule it shows."""

    def register(draw: Callable[[], Picture]) -> Callable[[], Picture]:
        rule = " ".join((draw.__doc__ or "").split())
        _SCENARIOS.append(Scenario(family, name, rule, draw))
        return draw

    return register


def all_scenarios() -> list[Scenario]:
    """Every scenario, family by family."""
    for name in MODULES:
        import_module(f"scenarios.{name}")
    order = list(FAMILIES)
    return sorted(_SCENARIOS, key=lambda s: order.index(s.family))


def refresh_rules(folder: Path) -> list[str]:
    """Write the rule of every scenario into the pages that show its picture.

    In a page, the paragraph above `![...](../pictures/SLUG.svg)` is the rule of that scenario.
    Returns the slugs of scenarios that no page shows."""
    missing = []
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}
    for s in all_scenarios():
        shown = re.compile(rf"\n\n[^\n]+\n\n(!\[[^\]]*\]\([^)]*/{s.slug}\.svg\))")
        found = False
        for page, text in pages.items():
            pages[page], times = shown.subn(lambda m: f"\n\n{s.rule}\n\n{m[1]}", text)  # noqa: B023
            found = found or times > 0
        if not found:
            missing.append(s.slug)
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    return missing


def write_scenarios(to: Path, only: str | None = None) -> list[Path]:
    """Run and draw: one SVG per scenario, and a page with all of them."""
    chosen = [s for s in all_scenarios() if only is None or s.family == only]
    if not chosen:
        raise ConfigError("family", only, f"must be one of {', '.join(FAMILIES)}")
    to.mkdir(parents=True, exist_ok=True)
    files = []
    parts: list[str] = []
    for family, title in FAMILIES.items():
        own = [s for s in chosen if s.family == family]
        if not own:
            continue
        parts.append(f'<h2 id="{family}">{title}</h2>')
        for s in own:
            picture = s.draw().svg()
            file = to / f"{s.slug}.svg"
            file.write_text(picture, encoding="utf-8")
            files.append(file)
            parts.append(
                f'<section id="{s.slug}"><h3>{escape(s.name)}</h3><p>{escape(s.rule)}</p>'
                f"{picture}</section>"
            )
    links = " · ".join(
        f'<a href="#{f}">{t}</a>' for f, t in FAMILIES.items() if any(s.family == f for s in chosen)
    )
    page = to / "scenarios.html"
    page.write_text(_PAGE.format(links=links, body="\n".join(parts)), encoding="utf-8")
    return [page, *files]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidegate: scenarios</title><link rel="icon" href="data:,">
<style>
:root{{color-scheme:light dark;--bg:#f7f8fa;--panel:#fff;--ink:#1b2430;--soft:#5d6b7c;
--line:#d9dfe7}}
@media(prefers-color-scheme:dark){{:root{{--bg:#10151c;--panel:#171e27;--ink:#e6ebf2;
--soft:#9aa8b8;--line:#2b3542}}}}
body{{margin:0 auto;max-width:900px;padding:24px;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}}
a{{color:inherit}}h1{{font-size:24px;margin:0}}h2{{font-size:20px;margin:36px 0 8px}}
h3{{font-size:16px;margin:0}}p{{margin:2px 0 10px;color:var(--soft)}}
section{{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:14px 18px;
margin:12px 0;overflow-x:auto}}svg{{max-width:100%;height:auto}}
</style></head><body>
<h1>Scenarios</h1>
<p>Every picture is drawn from what the real operators did with the messages shown, and is made by
<code>make docs</code>. {links}</p>
{body}
</body></html>
"""
