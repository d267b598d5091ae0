"""A picture of compaction over time: chain length, bytes before and after, the ratio of the two.

Drawn from what the stage delivers (its side table `compactions`) as a self-contained SVG: no fonts,
no scripts, nothing fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.time import format_time

__all__ = ["compaction_picture"]

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 900, 150, 90, 20, 56, 46
BEFORE, AFTER, RATIO = "#b4552d", "#1f6f8b", "#4a7c3a"


def compaction_picture(compactions: pa.Table | pa.RecordBatch, title: str = "Compaction") -> str:
    """An SVG with three panels over event time, from rows of the side table `compactions`."""
    order = np.argsort(compactions.column("time_ns").to_numpy(), kind="stable")
    names = ("time_ns", "deltas_before", "deltas_after", "bytes_before", "bytes_after")
    t, n0, n1, b0, b1 = (compactions.column(name).to_numpy()[order] for name in names)
    ratio = b0 / np.maximum(b1, 1)
    panels: list[tuple[str, list[tuple[str, str, NDArray[np.float64]]]]] = [
        ("chain length (deltas)", [("before", BEFORE, n0), ("after", AFTER, n1)]),
        ("bytes of the chain", [("before", BEFORE, b0), ("after", AFTER, b1)]),
        ("compaction ratio (bytes before / after)", [("ratio", RATIO, ratio)]),
    ]
    height = TOP + len(panels) * (PANEL + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="16">{escape(title)}</text>',
    ]
    for number, (label, lines) in enumerate(panels):
        out += _panel(TOP + number * (PANEL + GAP), label, lines, t)
    return "\n".join([*out, "</svg>"])


def _panel(
    top: int,
    label: str,
    lines: Sequence[tuple[str, str, NDArray[np.float64]]],
    t: NDArray[np.int64],
) -> list[str]:
    bottom, right = top + PANEL, WIDTH - RIGHT
    most = max((float(values.max()) for _, _, values in lines if len(values)), default=1.0) or 1.0
    out = [
        f'<text x="{LEFT}" y="{top - 6}">{escape(label)}</text>',
        f'<path d="M{LEFT} {top}V{bottom}H{right}" fill="none" stroke="#888"/>',
    ]
    for part in (0.0, 0.5, 1.0):
        y = bottom - part * PANEL
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_round(most * part)}'
                   f'</text><path d="M{LEFT} {y:.1f}H{right}" stroke="#eee"/>')  # fmt: skip
    if not len(t):
        return [*out, f'<text x="{LEFT + 10}" y="{top + 20}">nothing was compacted</text>']
    span = max(float(t[-1]) - float(t[0]), 1.0)
    x = LEFT + (t.astype(float) - float(t[0])) / span * (right - LEFT)
    for place, (name, colour, values) in enumerate(lines):
        y_all = bottom - values / most * PANEL
        dots = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y_all, strict=True))
        out.append(f'<polyline points="{dots}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        at = right - 130 + 70 * place
        out.append(f'<text x="{at}" y="{top - 6}" fill="{colour}">{name}</text>')
    ends = ((LEFT, "start", t[0]), (right, "end", t[-1]))
    for end, anchor, when in ends:
        out.append(f'<text x="{end}" y="{bottom + 16}" text-anchor="{anchor}" fill="#666">'
                   f"{format_time(int(when))}</text>")  # fmt: skip
    return out


def _round(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
