"""The one drawing of this package: lanes, spans, marks and curves over time, as an SVG.

Everything Tidegate draws outside the page uses `Picture`: the pictures of the documentation
(docs/scenarios), the displays of a notebook, and the curves of a compaction. The page itself draws
on a canvas in the browser, with the same colours: `PALETTE` is the only place that names them.

From top to bottom a picture has these parts, each only if it was asked for:

    spans      windows and batches, in rows above the lanes
    lanes      one line per topic or arrival, with marks, links and notes
    panels     curves, each panel with its own scale
    axis       ticks in a unit that suits the length, and a title
    legend     what the marks mean

An SVG holds its own styles, follows the reader's light or dark scheme, and fetches nothing. All
text is escaped, so names from data cannot become markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.time import format_time

__all__ = [
    "ALTERNATING",
    "PALETTE",
    "Curve",
    "Mark",
    "Note",
    "Picture",
    "Span",
    "compaction_picture",
    "css",
    "shortened",
]

PALETTE = {
    "bg": ("#f7f8fa", "#10151c"),
    "panel": ("#ffffff", "#171e27"),
    "ink": ("#1b2430", "#e6ebf2"),
    "soft": ("#5d6b7c", "#9aa8b8"),
    "line": ("#d9dfe7", "#2b3542"),
    "row": ("#eef1f5", "#1c2530"),
    "data": ("#2f6fb3", "#6aaae8"),
    "late": ("#b05500", "#f2a04c"),
    "dropped": ("#8455c4", "#b996ef"),
    "error": ("#cf2f3f", "#ff6b78"),
    "mark": ("#0d7a67", "#4fd1b5"),
    "set": ("#687686", "#8f9dad"),
    "third": ("#a3386c", "#ee8fb8"),
    "pick": ("#111111", "#ffffff"),
}
"""Colours by what they stand for: (light, dark). The first six are surfaces and text; `data`,
`late`, `dropped` and `error` are what became of a message; `mark` is the watermark and sets, `set`
is what still waits, `third` is used beside `data` and `mark` where neighbours must differ.

Each colour has a contrast of at least 4.5 to 1 on `panel` in both schemes, so that small text in it
can be read; tests/report/test_picture.py computes it."""

ALTERNATING = ("data", "mark", "third")
"""Colours of neighbouring batches, sets and windows, in turn."""

WIDTH, GUTTER, RIGHT = 820, 112, 16
"""Width of a picture, of the names on its left, and of the margin on its right, in pixels."""

SPAN_H, LANE_H, PANEL_H, AXIS_H, LEGEND_H, TOP = 24, 34, 120, 26, 22, 10
"""Heights in pixels: a row of spans, a lane, a panel of curves, the axis, a row of the legend, and
the margin above."""

_UNITS = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9),
          ("h", 3600 * 10**9), ("d", 86_400 * 10**9))  # fmt: skip

_STEPS = sorted(
    {factor * 10**power for power in range(11) for factor in (1, 2, 5)}
    | {factor * 60 * 10**9 for factor in (1, 2, 5, 10, 30)}
    | {factor * 3600 * 10**9 for factor in (1, 2, 6, 12)}
    | {factor * 86_400 * 10**9 * 10**power for power in range(6) for factor in (1, 2, 5)}
)
"""Distances between ticks in ns: round numbers of the units that people read."""

_STYLE = """
svg.tg{font:12px system-ui,'DejaVu Sans',sans-serif;%s}
@media(prefers-color-scheme:dark){svg.tg{%s}}
svg.tg text{fill:var(--ink)}svg.tg .soft{fill:var(--soft)}svg.tg .rail{stroke:var(--line)}
svg.tg .mark{stroke:var(--mark);stroke-dasharray:5 4;stroke-width:1.4;fill:none}
svg.tg .halo{paint-order:stroke;stroke:var(--panel);stroke-width:5px}
svg.tg .link{stroke-width:1.6;fill:none}svg.tg .curve{stroke-width:1.6;fill:none}
"""


def css(dark: bool) -> str:
    """Return `PALETTE` as declarations of CSS variables, one per colour.

    >>> css(dark=False)[:30]
    '--bg:#f7f8fa;--panel:#ffffff;-'
    """
    return "".join(f"--{name}:{pair[dark]};" for name, pair in PALETTE.items())


class Span(NamedTuple):
    """A window or batch, drawn as a bar above the lanes.

    Args:
        start_ns: Start of the span, inclusive.
        end_ns: End of the span, exclusive.
        text: Its label; only a tooltip where the bar is too narrow for it.
        colour: A name of `PALETTE`.
        row: The row of bars, from 0 at the top: spans that overlap need different rows.
    """

    start_ns: int
    end_ns: int
    text: str
    colour: str
    row: int


class Mark(NamedTuple):
    """A message on a lane.

    Args:
        lane: Index of the lane, from 0 at the top.
        time_ns: Where it is drawn.
        colour: A name of `PALETTE`.
        shape: dot, ring (missing or unmatched), diamond (late) or cross (error). Any other shape is
            a ValueError when the picture is drawn.
        text: Tooltip; none if empty.
    """

    lane: int
    time_ns: int
    colour: str
    shape: str
    text: str


class Note(NamedTuple):
    """Words beside a point of a lane.

    Args:
        lane: Index of the lane.
        time_ns: The point they belong to.
        text: The words. Near the right edge they are put left of the point.
    """

    lane: int
    time_ns: int
    text: str


class Curve(NamedTuple):
    """Values over time in a panel, joined by straight lines.

    Args:
        label: Its name in the panel's heading.
        colour: A name of `PALETTE`.
        time_ns: Times of the values, ascending.
        values: The values, at least 0: the scale of a panel begins at zero.
    """

    label: str
    colour: str
    time_ns: NDArray[Any]
    values: NDArray[Any]


@dataclass
class Picture:
    """A picture over `[start_ns, end_ns]`; add to it, then call `svg`.

    Args:
        lanes: Names of the lanes, top to bottom. May be empty if there are panels.
        start_ns, end_ns: What is shown, in ns. Marks just outside are left out; marks further away
            than the length of the picture become an arrow at its edge, so that a wrong clock is
            seen.
        lane_height: Pixels per lane. 34 leaves room for a note above a mark; below 30, notes go
            beside it.
        axis: The title of the time axis.
        lanes_title: A title above the names of the lanes, for example what their order means.
        facts: What the picture shows, as values that a test can compare.

    >>> picture = Picture(["camera", "lidar"], 0, 100)
    >>> picture.dot(0, 40, "data", text="frame 1")
    >>> picture.link([(0, 40), (1, 43)], "mark")
    >>> picture.svg().count("<circle")
    1
    """

    lanes: list[str]
    start_ns: int
    end_ns: int
    lane_height: int = LANE_H
    axis: str = "event time"
    lanes_title: str = ""
    spans: list[Span] = field(default_factory=list)
    dots: list[Mark] = field(default_factory=list)
    links: list[tuple[list[tuple[int, int]], str]] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    stairs: list[tuple[int, int]] = field(default_factory=list)
    panels: list[tuple[str, list[Curve]]] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    # -- adding to it -----------------------------------------------------------------------------

    def span(self, start: int, end: int, text: str, colour: str = "data", row: int = 0) -> None:
        """Add a window or batch `[start, end)`, in ns, in a row above the lanes."""
        self.spans.append(Span(start, end, text, colour, row))

    def dot(self, lane: int, time: int, colour: str, shape: str = "dot", text: str = "") -> None:
        """Add a mark at `time` ns: a dot, ring, diamond or cross; `text` is its tooltip."""
        self.dots.append(Mark(lane, time, colour, shape, text))

    def link(self, points: list[tuple[int, int]], colour: str) -> None:
        """Join points, each a (lane, time in ns), by a line."""
        self.links.append((points, colour))

    def line(self, time: int, text: str) -> None:
        """Add a dashed vertical line at `time` ns with a label above it."""
        self.lines.append((time, text))

    def note(self, lane: int, time: int, text: str) -> None:
        """Write words beside a point of a lane."""
        self.notes.append(Note(lane, time, text))

    def stair(self, lane: int, time: int) -> None:
        """Add a step of the watermark: its value in ns after the arrival drawn in `lane`."""
        self.stairs.append((lane, time))

    def panel(self, title: str, curves: Sequence[Curve]) -> None:
        """Add a panel of curves below the lanes, with a scale from zero to their greatest value."""
        self.panels.append((title, list(curves)))

    def explain(self, colour: str, shape: str, text: str) -> None:
        """Add an entry to the legend; `shape` is one of a mark's, or span, link or line."""
        self.legend.append((colour, shape, text))

    def explain_used(self, meanings: Mapping[tuple[str, str], str]) -> None:
        """Add legend entries, by (colour, shape), for those that occur in the picture so far."""
        used = {(m.colour, m.shape) for m in self.dots if self.start_ns <= m.time_ns <= self.end_ns}
        used |= {(s.colour, "span") for s in self.spans
                 if s.end_ns > self.start_ns and s.start_ns < self.end_ns}  # fmt: skip
        used |= {(colour, "link") for _, colour in self.links}
        if self.lines or self.stairs:
            used.add(("mark", "line"))
        for (colour, shape), text in meanings.items():
            if (colour, shape) in used:
                self.explain(colour, shape, text)

    def shifted(self, by_ns: int) -> Picture:
        """Return the same picture with all times moved by `by_ns`."""
        return Picture(
            self.lanes, self.start_ns + by_ns, self.end_ns + by_ns, self.lane_height, self.axis,
            self.lanes_title,
            [s._replace(start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns) for s in self.spans],
            [m._replace(time_ns=m.time_ns + by_ns) for m in self.dots],
            [([(lane, t + by_ns) for lane, t in points], c) for points, c in self.links],
            [(t + by_ns, text) for t, text in self.lines],
            [n._replace(time_ns=n.time_ns + by_ns) for n in self.notes],
            [(lane, t + by_ns) for lane, t in self.stairs],
            [(title, [c._replace(time_ns=c.time_ns + by_ns) for c in curves])
             for title, curves in self.panels],
            self.legend, self.facts,
        )  # fmt: skip

    # -- where things stand -----------------------------------------------------------------------

    def x(self, time: int) -> float:
        """Return the pixel of a time, held to the picture's edges."""
        share = (time - self.start_ns) / (self.end_ns - self.start_ns)
        return GUTTER + min(max(share, 0.0), 1.0) * (WIDTH - GUTTER - RIGHT)

    def y(self, lane: int) -> float:
        """Return the pixel of the middle of a lane."""
        return self._lanes_top + lane * self.lane_height + self.lane_height / 2

    @property
    def _spans_height(self) -> int:
        """Pixels of all rows of spans; 0 without spans."""
        return SPAN_H * (1 + max((span.row for span in self.spans), default=-1))

    @property
    def _lanes_top(self) -> int:
        """Pixel of the upper edge of the first lane, below the spans and the labels of lines."""
        words = 14 if self.lines or self.lanes_title else 0
        return TOP + words + self._spans_height + 4

    @property
    def _lanes_bottom(self) -> int:
        """Pixel of the lower edge of the last lane."""
        return self._lanes_top + len(self.lanes) * self.lane_height

    @property
    def _axis_top(self) -> int:
        """Pixel of the upper edge of the axis, below the panels."""
        return self._lanes_bottom + len(self.panels) * (PANEL_H + AXIS_H)

    # -- to SVG -----------------------------------------------------------------------------------

    def svg(self) -> str:
        """Return the picture as the text of an SVG element."""
        legend, legend_rows = self._legend_svg()
        height = self._axis_top + AXIS_H + 18 + legend_rows * LEGEND_H
        body = [
            *self._axis_svg(), *self._rails_svg(), *self._spans_svg(), *self._links_svg(),
            *self._lines_svg(), *self._stairs_svg(), *self._dots_svg(), *self._notes_svg(),
            *self._panels_svg(), *legend,
        ]  # fmt: skip
        return (
            f'<svg class="tg" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img"><style>'
            f"{_STYLE % (css(False), css(True))}</style>" + "".join(body) + "</svg>"
        )

    def _axis_svg(self) -> list[str]:
        """Draw vertical lines with times below them, and the title of the axis.

        The step is the smallest of `_STEPS` with at most 9 ticks: more would overlap at this width.
        The unit is the largest that is at most ten steps.
        """
        length = self.end_ns - self.start_ns
        step = next((s for s in _STEPS if length / s <= 9), max(length // 9, 1))
        unit, factor = next(u for u in reversed(_UNITS) if step >= u[1] // 10 or u[1] == 1)
        bottom = self._axis_top
        out = []
        for time in range(-(-self.start_ns // step) * step, self.end_ns + 1, step):
            x = self.x(time)
            anchor = "end" if x > WIDTH - 40 else "middle"
            out.append(
                f'<line class="rail" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom + 4}"/>'
                f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">'
                f"{time / factor:g} {unit}</text>"
            )
        title = f'<text class="soft" x="{WIDTH - RIGHT}" y="{bottom + 35}" text-anchor="end">'
        return [*out, f"{title}{escape(self.axis)} →</text>"]

    def _rails_svg(self) -> list[str]:
        """Draw a line for every lane with its name to the left, cut to the width of the gutter."""
        out = []
        if self.lanes_title:
            top = self._lanes_top - 4
            out.append(f'<text class="soft" x="8" y="{top}">{escape(self.lanes_title)}</text>')
        for number, name in enumerate(self.lanes):
            y = self.y(number)
            out.append(
                f'<line class="rail" x1="{GUTTER}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
                f'<text x="8" y="{y + 4}">{escape(shortened(name, 16))}</text>'
            )
        return out

    def _spans_svg(self) -> list[str]:
        """Draw the spans that are in view. A label is drawn if the bar has room: 6.6 pixels per
        character.
        """
        out = []
        for start, end, text, colour, row in self.spans:
            if end < self.start_ns or start > self.end_ns:
                continue
            left, right = self.x(start), self.x(end)
            y = TOP + row * SPAN_H
            out.append(
                f'<rect x="{left + 0.5:.1f}" y="{y}" width="{max(right - left - 1, 2):.1f}" '
                f'height="{SPAN_H - 4}" rx="3" fill="var(--{colour})" fill-opacity=".25" '
                f'stroke="var(--{colour})"><title>{escape(text)}</title></rect>'
            )
            if right - left > 6.6 * len(text) + 6:
                out.append(f'<text x="{left + 6:.1f}" y="{y + 14}">{escape(text)}</text>')
        return out

    def _dots_svg(self) -> list[str]:
        """Draw the marks in view, and arrows at the edge for marks far outside.

        "Far" is more than the length of the picture: a clock that is wrong. Marks a little outside
        are simply not part of this view.
        """
        out = []
        length = self.end_ns - self.start_ns
        for lane, time, colour, shape, text in self.dots:
            x, y = self.x(time), self.y(lane)
            if not self.start_ns - length < time < self.end_ns + length:
                back = -7 if time > self.end_ns else 7
                drawn = (f'<path d="M{x + back:.1f} {y - 6}L{x:.1f} {y}L{x + back:.1f} {y + 6}Z" '
                         f'fill="var(--{colour})"/>')  # fmt: skip
            elif self.start_ns <= time <= self.end_ns:
                drawn = _shape(shape, x, y, colour)
            else:
                continue
            out.append(f"<g>{drawn}<title>{escape(text)}</title></g>" if text else drawn)
        return out

    def _links_svg(self) -> list[str]:
        """Draw a line through the points of every link."""
        out = []
        for points, colour in self.links:
            path = "L".join(f"{self.x(time):.1f} {self.y(lane)}" for lane, time in points)
            out.append(f'<path class="link" d="M{path}" stroke="var(--{colour})"/>')
        return out

    def _lines_svg(self) -> list[str]:
        """Draw the dashed lines. A label that would overlap the one before it is left out."""
        out = []
        free = -1e9
        top = TOP + self._spans_height
        for time, text in self.lines:
            x = self.x(time)
            ends = f'y1="{top + 12}" y2="{self._axis_top + 2}"'
            out.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" {ends}/>')
            width = 6.4 * len(text)
            if x - width / 2 > free:
                left = min(x - width / 2, WIDTH - RIGHT - width)
                place = f'x="{left:.1f}" y="{top + 9}"'
                out.append(f'<text class="soft" {place}>{escape(text)}</text>')
                free = left + width + 6
        return out

    def _stairs_svg(self) -> list[str]:
        """Draw the watermark after every arrival, from top to bottom."""
        if not self.stairs:
            return []
        path = ""
        for lane, time in self.stairs:
            top = self.y(lane) + self.lane_height / 2
            bottom = min(top + self.lane_height, self._lanes_bottom)
            path += f"{'L' if path else 'M'}{self.x(time):.1f} {top}L{self.x(time):.1f} {bottom}"
        return [f'<path class="mark" d="{path}"/>']

    def _notes_svg(self) -> list[str]:
        """Draw the notes, with a halo in the colour of the background so that lines do not cross
        them.
        """
        out = []
        # beside the mark where lanes are narrow, above it where there is room
        lift = -4 if self.lane_height < 30 else 7 if self.lane_height < 40 else 11
        for lane, time, text in self.notes:
            x = self.x(time)
            end = x > WIDTH - 7 * len(text) - 20
            anchor, shift = ("end", -9) if end else ("start", 9)
            out.append(
                f'<text class="soft halo" x="{x + shift:.1f}" y="{self.y(lane) - lift}" '
                f'text-anchor="{anchor}">{escape(text)}</text>'
            )
        return out

    def _panels_svg(self) -> list[str]:
        """Draw the panels: a scale with three lines, the curves, and their names in the heading."""
        out = []
        right = WIDTH - RIGHT
        for number, (title, curves) in enumerate(self.panels):
            top = self._lanes_bottom + number * (PANEL_H + AXIS_H) + AXIS_H
            bottom = top + PANEL_H
            most = max((float(c.values.max()) for c in curves if len(c.values)), default=0.0) or 1.0
            out.append(f'<text x="{GUTTER}" y="{top - 8}">{escape(title)}</text>')
            for share in (0.0, 0.5, 1.0):
                y = bottom - share * PANEL_H
                out.append(
                    f'<line class="rail" x1="{GUTTER}" x2="{right}" y1="{y}" y2="{y}"/>'
                    f'<text class="soft" x="{GUTTER - 8}" y="{y + 4}" text-anchor="end">'
                    f"{_brief(most * share)}</text>"
                )
            for place, curve in enumerate(curves):
                points = " ".join(
                    f"{self.x(int(t)):.1f},{bottom - float(v) / most * PANEL_H:.1f}"
                    for t, v in zip(curve.time_ns, curve.values, strict=True)
                )
                paint = f'stroke="var(--{curve.colour})"'
                at = right - 70 * (len(curves) - place)
                out.append(
                    f'<polyline class="curve" points="{points}" {paint}/>'
                    f'<path class="curve" d="M{at} {top - 12}h14" {paint}/>'
                    f'<text x="{at + 18}" y="{top - 8}">{escape(curve.label)}</text>'
                )
        return out

    def _legend_svg(self) -> tuple[list[str], int]:
        """Return the legend and how many rows it takes below the axis."""
        out = []
        x, row = float(GUTTER), 0
        y = self._axis_top + AXIS_H + 4
        for colour, shape, text in self.legend:
            width = 26 + 6.6 * len(text)
            # the first row shares its line with the axis title on the right
            if x + width > WIDTH - RIGHT - (0 if row else 100) and x > GUTTER:
                x, row = float(GUTTER), row + 1
            at = y + row * LEGEND_H
            out.append(_shape(shape, x, at, colour))
            out.append(f'<text class="soft" x="{x + 12:.1f}" y="{at + 4}">{escape(text)}</text>')
            x += width
        return [f'<g class="legend">{"".join(out)}</g>'] if out else [], row


def _shape(shape: str, x: float, y: float, colour: str) -> str:
    """Return a mark or a sign of the legend at a point.

    Raises:
        ValueError: `shape` is not one of those drawn here.
    """
    paint = f'fill="var(--{colour})"'
    hollow = f'fill="none" stroke="var(--{colour})"'
    match shape:
        case "dot":
            return f'<circle cx="{x:.1f}" cy="{y}" r="4.2" {paint}/>'
        case "ring":
            return f'<circle cx="{x:.1f}" cy="{y}" r="4.2" {hollow} stroke-width="1.6"/>'
        case "diamond":
            return f'<path d="M{x:.1f} {y - 6}l6 6l-6 6l-6 -6Z" {paint}/>'
        case "cross":
            return f'<path d="M{x - 4.5:.1f} {y - 4.5}l9 9m0 -9l-9 9" {hollow} stroke-width="2.2"/>'
        case "span":
            return (f'<rect x="{x - 8:.1f}" y="{y - 6}" width="16" height="12" rx="3" {paint} '
                    f'fill-opacity=".25" stroke="var(--{colour})"/>')  # fmt: skip
        case "link":
            return f'<path class="link" d="M{x - 6:.1f} {y - 6}l12 12" {hollow}/>'
        case "line":
            return f'<path class="mark" d="M{x:.1f} {y - 8}v16"/>'
    raise ValueError(f"{shape!r} is no shape of a mark")


def shortened(text: str, most: int) -> str:
    """Cut `text` in the middle to at most `most` characters: names differ at their ends.

    >>> shortened("/sensors/front/camera/image", 16)
    '/sensors…a/image'
    """
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def _brief(value: float) -> str:
    """Return a number in three digits, with k, M or G, for a scale."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def compaction_picture(compactions: pa.Table | pa.RecordBatch) -> str:
    """Draw chain length, bytes, and their ratio before and after each compaction, over event time.

    Args:
        compactions: Rows of the side table `compactions` of a compact stage, in any order.

    Returns:
        The text of an SVG with three panels.
    """
    names = ("time_ns", "deltas_before", "deltas_after", "bytes_before", "bytes_after")
    order = np.argsort(compactions.column("time_ns").to_numpy(), kind="stable")
    time, n0, n1, b0, b1 = (compactions.column(name).to_numpy()[order] for name in names)
    if not len(time):
        empty = Picture(["compactions"], 0, 1)
        empty.note(0, 0, "nothing was compacted")
        return empty.svg()
    first = int(time[0])
    picture = Picture([], 0, max(int(time[-1]) - first, 1),
                      axis=f"event time from {format_time(first)}")  # fmt: skip
    at = time - first
    picture.panel("deltas in the chain", [Curve("before", "late", at, n0),
                                          Curve("after", "mark", at, n1)])  # fmt: skip
    picture.panel("bytes of the chain", [Curve("before", "late", at, b0),
                                         Curve("after", "mark", at, b1)])  # fmt: skip
    ratio = b0 / np.maximum(b1, 1)
    picture.panel("bytes before / bytes after", [Curve("ratio", "data", at, ratio)])
    return picture.svg()
