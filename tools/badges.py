"""Draw the badges of the README: facts that CI proves, each read from where it is stated.

    python tools/badges.py

No service is asked, so a badge cannot say what the clone does not hold. A test draws them again and
compares.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CHARACTER = 6.6
"""Width of a character in pixels, about, at 11 px: the text is fitted to it (textLength)."""


def badges() -> dict[str, str]:
    """Every badge by its file name."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    versions = re.findall(r'"(3\.\d+)"', workflow)
    laws = re.findall(r"^- \*\*\w+\*\*: ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "how-to" / "own-data.md").read_text()
    files = re.search(r"corpus.py` holds (\d+) files", page)
    assert files is not None
    return {
        "badge-python.svg": badge("Python", ", ".join(versions)),
        "badge-laws.svg": badge("property-tested laws", str(len(laws))),
        "badge-corpus.svg": badge("file corpus", f"{files[1]} of {files[1]} right"),
        "badge-axe.svg": badge("axe-core", "no violations"),
    }


def badge(name: str, value: str) -> str:
    """A name and a value side by side, as an SVG."""
    left, right = (round(len(text) * CHARACTER) + 14 for text in (name, value))
    middle = 'y="14" text-anchor="middle" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(name)}: {escape(value)}"><g font-family="Verdana,DejaVu Sans,'
        f'sans-serif" font-size="11" fill="#fff"><rect width="{left + right}" height="20" rx="3" '
        f'fill="#3d4a5c"/><path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z" '
        f'fill="#0f7361"/><text x="{left / 2}" {middle} textLength="{left - 14}">{escape(name)}'
        f'</text><text x="{left + right / 2}" {middle} textLength="{right - 14}">{escape(value)}'
        "</text></g></svg>\n"
    )


if __name__ == "__main__":
    for file, drawn in badges().items():
        (PICTURES / file).write_text(drawn)
