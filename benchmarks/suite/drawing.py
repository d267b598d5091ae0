"""Pictures of figures as SVG, written out by hand: bars, curves and a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

AHEAD, BEHIND, WRONG = "#2a7f9e", "#c0562f", "#9a9a9a"
COLOURS = (AHEAD, BEHIND, "#6a8f3c", "#7a5ba6", "#b58a1b", "#46627f", "#a3476f", "#5f5f5f")


@dataclass(frozen=True)
class Bar:
    """A ratio with its spread. A contestant whose answer is wrong is drawn grey."""

    what: str
    name: str
    middle: float
    low: float
    high: float
    wrong: bool = False


def bars(title: str, rows: Sequence[Bar], most: float = 7.5) -> str:
    """One bar per ratio; the upright line is 1."""
    height, left, scale = 22, 470, 60
    parts = [
        _open(1080, height * len(rows) + 60),
        f'<text x="{left}" y="18">{escape(title)}</text>',
    ]
    for number, bar in enumerate(rows):
        y = 34 + number * height
        width = min(bar.middle, most) * scale
        colour = WRONG if bar.wrong else AHEAD if bar.middle >= 1 else BEHIND
        label = f"{bar.middle:.2f}" + (", other answer" if bar.wrong else "")
        parts += [
            f'<text x="8" y="{y + 12}">{escape(bar.what)}</text>',
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect x="{left}" y="{y}" width="{width:.0f}" height="{height - 8}" fill="{colour}"/>',
            f'<line x1="{left + min(bar.low, most) * scale:.0f}" y1="{y + 7}" '
            f'x2="{left + min(bar.high, most) * scale:.0f}" y2="{y + 7}" stroke="#222"/>',
            f'<text x="{left + max(width, min(bar.high, most) * scale) + 6:.0f}" y="{y + 12}">'
            f"{label}</text>",
        ]
    x = left + scale
    parts.append(f'<line x1="{x}" x2="{x}" y1="26" y2="{34 + len(rows) * height}" stroke="#222"/>')
    return "\n".join([*parts, "</svg>"])


def curves(title: str, panels: dict[str, dict[str, float]], unit: str) -> str:
    """A small panel per question: the places along the bottom as they come, figures from zero."""
    across, wide, tall = 2, 480, 250
    rows = math.ceil(len(panels) / across)
    parts = [_open(across * wide, rows * tall + 40), f'<text x="16" y="22">{escape(title)}</text>']
    for number, (name, points) in enumerate(panels.items()):
        x0, y0 = (number % across) * wide + 60, (number // across) * tall + 60
        parts += _panel(x0, y0, wide - 90, tall - 75, name, points, unit)
    return "\n".join([*parts, "</svg>"])


def _panel(
    x0: float, y0: float, wide: float, tall: float, name: str, points: dict[str, float], unit: str
) -> list[str]:
    top = max(points.values(), default=1.0) * 1.15 or 1.0
    step = wide / max(len(points) - 1, 1)
    places = [
        (x0 + number * step, y0 + tall - value / top * tall)
        for number, value in enumerate(points.values())
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        f'<text x="{x0}" y="{y0 - 8}">{escape(name)}</text>',
        f'<line x1="{x0}" y1="{y0 + tall}" x2="{x0 + wide}" y2="{y0 + tall}" stroke="#999"/>',
        f'<polyline points="{path}" fill="none" stroke="{AHEAD}" stroke-width="2"/>',
    ]
    for (label, value), (x, y) in zip(points.items(), places, strict=True):
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{AHEAD}"/>',
            f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle" font-size="11">'
            f"{_short(value)}</text>",
            f'<text x="{x:.1f}" y="{y0 + tall + 15}" text-anchor="middle" font-size="11">'
            f"{escape(label)}</text>",
        ]
    parts.append(
        f'<text x="{x0 - 8}" y="{y0 + 4}" text-anchor="end" font-size="11">{escape(unit)}</text>'
    )
    return parts


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stack(title: str, shares: dict[str, float], unit: str) -> str:
    """One bar cut into its parts, each named below with its figure."""
    total = sum(shares.values()) or 1.0
    wide, x = 900.0, 20.0
    parts = [_open(960, 90 + 22 * len(shares)), f'<text x="20" y="22">{escape(title)}</text>']
    for number, (name, value) in enumerate(shares.items()):
        colour = COLOURS[number % len(COLOURS)]
        width, y = value / total * wide, 92 + number * 22
        parts += [
            f'<rect x="{x:.1f}" y="36" width="{width:.1f}" height="32" fill="{colour}"/>',
            f'<rect x="20" y="{y - 11}" width="12" height="12" fill="{colour}"/>',
            f'<text x="40" y="{y}">{escape(name)}: {value:.2f} {unit}, {value / total:.0%}</text>',
        ]
        x += width
    return "\n".join([*parts, "</svg>"])


def _open(wide: float, tall: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    )
