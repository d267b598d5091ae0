"""RESULTS.md: every benchmark owns a section of it, between two marks."""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parents[1]
RESULTS, PICTURES, MEASURED = HOME / "RESULTS.md", HOME / "pictures", HOME / "measured"


def write_section(name: str, text: str, results: Path = RESULTS) -> None:
    """Put a section where the last one of its name was, or at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = results.read_text() if results.exists() else "# Results\n"
    section = f"{begin}\n{text.strip()}\n{end}"
    if begin in old:
        head, _, rest = old.partition(begin)
        results.write_text(head + section + rest.partition(end)[2])
    else:
        results.write_text(old.rstrip() + "\n\n" + section + "\n")


def write_picture(name: str, svg: str) -> str:
    """Keep a picture; returns how RESULTS.md shows it, there and on the site."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(svg + "\n")
    return f"![{name.replace('-', ' ')}](pictures/{name}.svg)"
