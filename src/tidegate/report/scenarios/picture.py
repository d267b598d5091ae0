"""A picture over time, as SVG: spans on top, lanes below, marks and links on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

__all__ = ["Picture"]

WIDTH, GUTTER, RIGHT = 820, 112, 16
SPAN_H, LANE_H, AXIS_H, TOP = 24, 34, 26, 10

STYLE = """
svg.tg{font:12px system-ui,'DejaVu Sans',sans-serif;--paper:#fff;
--ink:#1b2430;--soft:#5d6b7c;--line:#d9dfe7;
--c0:#2f6fb3;--c1:#12836f;--c2:#8a5cc7;--late:#d9730d;--error:#cf2f3f;--dropped:#9a6b2f;--wait:#5d6b7c}
@media(prefers-color-scheme:dark){svg.tg{--paper:#171e27;--ink:#e6ebf2;--soft:#9aa8b8;--line:#33404f;--c0:#6aaae8;
--c1:#4fd1b5;--c2:#b996ef;--late:#f2a04c;--error:#ff6b78;--dropped:#d8a45c;--wait:#9aa8b8}}
svg.tg text{fill:var(--ink)}svg.tg .soft{fill:var(--soft)}svg.tg .rail{stroke:var(--line)}
svg.tg .mark{stroke:var(--c1);stroke-dasharray:5 4;stroke-width:1.4;fill:none}
svg.tg .halo{paint-order:stroke;stroke:var(--paper);stroke-width:5px}
svg.tg .link{stroke-width:1.6;fill:none}
"""


@dataclass
class Picture:
    """Times in nanoseconds; `[start_ns, end_ns]` is what is shown."""

    lanes: list[str]
    start_ns: int
    end_ns: int
    lane_height: int = LANE_H
    spans: list[tuple[int, int, str, str, int]] = field(default_factory=list)
    dots: list[tuple[int, int, str, str, str]] = field(default_factory=list)
    links: list[tuple[list[tuple[int, int]], str]] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)
    notes: list[tuple[int, int, str]] = field(default_factory=list)
    stairs: list[tuple[int, int]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def span(self, start: int, end: int, text: str, colour: str = "c0", row: int = 0) -> None:
        self.spans.append((start, end, text, colour, row))

    def dot(self, lane: int, time: int, colour: str, shape: str = "dot", text: str = "") -> None:
        """`shape`: dot, ring (missing, waiting), diamond (late) or cross (error)."""
        self.dots.append((lane, time, colour, shape, text))

    def link(self, points: list[tuple[int, int]], colour: str) -> None:
        self.links.append((points, colour))

    def line(self, time: int, text: str) -> None:
        self.lines.append((time, text))

    def note(self, lane: int, time: int, text: str) -> None:
        self.notes.append((lane, time, text))

    # -- to SVG -----------------------------------------------------------------------------------

    @property
    def _spans_h(self) -> int:
        return SPAN_H * (1 + max((row for *_, row in self.spans), default=-1))

    def x(self, time: int) -> float:
        share = (time - self.start_ns) / (self.end_ns - self.start_ns)
        return GUTTER + min(max(share, 0.0), 1.0) * (WIDTH - GUTTER - RIGHT)

    def y(self, lane: int) -> float:
        notes = 14 if self.lines else 0
        return TOP + notes + self._spans_h + lane * self.lane_height + self.lane_height / 2 + 4

    def svg(self) -> str:
        height = round(self.y(len(self.lanes) - 1) + self.lane_height / 2 + AXIS_H + 4)
        body = [*self._axis(height), *self._rails(), *self._spans_svg(), *self._links_svg()]
        body += [
            *self._lines_svg(height),
            *self._stairs_svg(),
            *self._dots_svg(),
            *self._notes_svg(),
        ]
        return (
            f'<svg class="tg" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img"><style>{STYLE}</style>'
            + "".join(body)
            + "</svg>"
        )

    def _axis(self, height: int) -> list[str]:
        length = self.end_ns - self.start_ns
        step = next(s for s in _STEPS if length / s <= 9)
        unit, factor = (
            ("s", 10**9) if step >= 10**8 else ("ms", 10**6) if step >= 10**5 else ("ns", 1)
        )
        out = []
        first = -(-self.start_ns // step) * step
        for time in range(first, self.end_ns + 1, step):
            x, value = self.x(time), time / factor
            out.append(
                f'<line class="rail" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 22}"/>'
            )
            anchor = "end" if x > WIDTH - 40 else "middle"
            out.append(
                f'<text class="soft" x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">'
                f"{value:g} {unit}</text>"
            )
        return out

    def _rails(self) -> list[str]:
        out = []
        for number, name in enumerate(self.lanes):
            y = self.y(number)
            out.append(f'<line class="rail" x1="{GUTTER}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            out.append(f'<text x="8" y="{y + 4}">{escape(name)}</text>')
        return out

    def _spans_svg(self) -> list[str]:
        out = []
        for start, end, text, colour, row in self.spans:
            left, right = self.x(start), self.x(end)
            if end < self.start_ns or start > self.end_ns:
                continue
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
        out = []
        for lane, time, colour, shape, text in self.dots:
            x, y = self.x(time), self.y(lane)
            paint = f'fill="var(--{colour})"'
            length = self.end_ns - self.start_ns
            if not self.start_ns - length < time < self.end_ns + length:
                # far away: an arrow at the edge; what is just beyond it is left out
                step = 7 if time > self.end_ns else -7
                drawn = f'<path d="M{x - step} {y - 6}L{x} {y}L{x - step} {y + 6}Z" {paint}/>'
            elif not self.start_ns <= time <= self.end_ns:
                continue
            elif shape == "ring":
                paint = f'fill="none" stroke="var(--{colour})" stroke-width="1.6"'
                drawn = f'<circle cx="{x:.1f}" cy="{y}" r="4.2" {paint}/>'
            elif shape == "diamond":
                drawn = f'<path d="M{x:.1f} {y - 6}l6 6l-6 6l-6 -6Z" {paint}/>'
            elif shape == "cross":
                paint = f'stroke="var(--{colour})" stroke-width="2.2"'
                drawn = f'<path d="M{x - 4.5:.1f} {y - 4.5}l9 9m0 -9l-9 9" {paint}/>'
            else:
                drawn = f'<circle cx="{x:.1f}" cy="{y}" r="4.2" {paint}/>'
            out.append(f"<g>{drawn}<title>{escape(text)}</title></g>" if text else drawn)
        return out

    def _links_svg(self) -> list[str]:
        out = []
        for points, colour in self.links:
            path = "L".join(f"{self.x(time):.1f} {self.y(lane)}" for lane, time in points)
            out.append(f'<path class="link" d="M{path}" stroke="var(--{colour})"/>')
        return out

    def _lines_svg(self, height: int) -> list[str]:
        out = []
        free = -1e9
        top = TOP + self._spans_h
        for time, text in self.lines:
            x = self.x(time)
            ends = f'y1="{top + 12}" y2="{height - 24}"'
            out.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" {ends}/>')
            width = 6.4 * len(text)
            if x - width / 2 > free:
                left = min(x - width / 2, WIDTH - RIGHT - width)
                place = f'x="{left:.1f}" y="{top + 9}"'
                out.append(f'<text class="soft" {place}>{escape(text)}</text>')
                free = left + width + 6
        return out

    def _stairs_svg(self) -> list[str]:
        """The watermark after every arrival, from top to bottom."""
        if not self.stairs:
            return []
        path = ""
        floor = self.y(len(self.lanes) - 1) + self.lane_height / 2
        for lane, time in self.stairs:
            top = self.y(lane) + self.lane_height / 2
            bottom = min(top + self.lane_height, floor)
            path += f"{'L' if path else 'M'}{self.x(time):.1f} {top}L{self.x(time):.1f} {bottom}"
        return [f'<path class="mark" d="{path}"/>']

    def _notes_svg(self) -> list[str]:
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


_STEPS = [
    factor * 10**power for power in range(19) for factor in (1, 2, 5)
]  # fmt: skip
