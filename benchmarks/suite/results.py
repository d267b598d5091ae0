"""Where benchmarks leave what they measured: a page of notes each, pictures, and raw figures."""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parents[1]
NOTES, PICTURES, MEASURED = HOME / "notes", HOME / "pictures", HOME / "measured"


def write_note(name: str, text: str, notes: Path = NOTES) -> None:
    """Replace the notes of a benchmark. RESULTS.md is written by hand from them."""
    notes.mkdir(exist_ok=True)
    (notes / f"{name}.md").write_text(text.strip() + "\n")


def write_picture(name: str, svg: str) -> str:
    """Keep a picture; returns how a page of notes shows it."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(svg + "\n")
    return f"![{name.replace('-', ' ')}](../pictures/{name}.svg)"
