"""A look as tables for a person."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tidegate.core.time import format_duration, format_time
from tidegate.profile.inspect import Look

__all__ = ["print_look", "span"]

BARS = "▏▎▍▌▋▊▉█"


def span(ns: float) -> str:
    """A span in three digits, for reading, not for computing.

    >>> span(33_333_333), span(1_500), span(0)
    ('33.3 ms', '1.5 µs', '0')
    """
    size = abs(ns)
    for unit, factor in (("h", 3.6e12), ("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= factor and (unit != "h" or size >= 4 * factor):
            return (
                f"{ns / factor:.3g} {unit}" if size < 1000 * factor else f"{ns / factor:.0f} {unit}"
            )
    return f"{ns:.0f} ns" if ns else "0"


def print_look(look: Look, console: Console) -> None:
    console.print(
        f"[bold]{look.source.path}[/]: {look.rows:,} rows, {look.source.format}, "
        f"{len(look.source.files)} file(s)" + (
            f"; the first {look.looked_at:,} were looked at" if look.looked_at < look.rows else ""
        ),
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    _columns(look, console)
    if look.time_type is None:
        console.print(
            "no column reads as a time of our days: name it with --time and its type with --type"
        )
        return
    key = ", ".join(look.roles.key) or "none"
    console.print(
        f"key [bold]{key}[/] ({look.keys:,}), topic [bold]{look.roles.topic or 'none'}[/], "
        f"event time [bold]{look.roles.time}[/] ({look.time_type}), "
        f"arrival [bold]{look.roles.arrival or 'the order of the rows'}[/]",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        f"from {format_time(look.first_ns)} to {format_time(look.last_ns)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    _streams(look, console)
    _disorder(look, console)
    _suggestions(look, console)


def _columns(look: Look, console: Console) -> None:
    times = {candidate.column: candidate for candidate in look.times}
    roles = dict.fromkeys(look.roles.key, "key")
    roles |= {
        name: role
        for role, name in (
            ("topic", look.roles.topic),
            ("event time", look.roles.time),
            ("arrival", look.roles.arrival),
        )
        if name
    }
    table = Table(box=None, title="columns", title_justify="left", title_style="bold")
    for name in ("column", "type", "distinct", "nulls", "role", "reads as"):
        table.add_column(name, justify="right" if name in ("distinct", "nulls") else "left")
    for column in look.columns:
        time = times.get(column["name"])
        reads = "" if time is None else f"{time.type} ({time.readable:.1%} of rows)"
        table.add_row(
            column["name"], column["type"], f"{column.get('distinct', '')}",
            f"{column['nulls'] or ''}", roles.get(column["name"], ""), reads,
        )  # fmt: skip
    console.print(table)


def _streams(look: Look, console: Console) -> None:
    table = _table("streams", "topic", "rows", "rate", "period", "jitter p99", "gaps",
                   "longest", "missing", "same time")  # fmt: skip
    for stream in look.streams:
        table.add_row(
            stream.topic, f"{stream.rows:,}", f"{stream.rate_hz:.4g} Hz", span(stream.period_ns),
            span(stream.jitter.p99), f"{stream.gaps:,}", span(stream.longest_gap_ns),
            f"{stream.missing:,}", f"{stream.duplicates:,}",
        )  # fmt: skip
    console.print(table)
    if look.delays:
        table = _table("delay, from event time to arrival", "topic", "p50", "p99", "max", "skew")
        for d in look.delays:
            table.add_row(
                d.topic, span(d.delay.p50), span(d.delay.p99), span(d.delay.max), span(d.skew_ns)
            )
        console.print(table)


def _table(title: str, *names: str) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    for name in names:
        left = name == names[0]
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def _disorder(look: Look, console: Console) -> None:
    console.print(
        f"[bold]disorder[/]: {look.disordered:,} of {look.looked_at:,} rows come behind a newer "
        f"one of their key: half by up to {span(look.disorder.p50)}, 99 % by up to "
        f"{span(look.disorder.p99)}, all by up to {span(look.disorder.max)}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    edges, counts = look.histogram
    most = max(counts, default=0)
    merged = [(edges[i], edges[min(i + 3, len(edges) - 1)], sum(counts[i : i + 3]))
              for i in range(0, len(counts), 3)]  # fmt: skip
    most = max((count for _, _, count in merged), default=0)
    for low, high, count in merged:
        if count:
            eighths = max(1, round(count / most * 40 * 8))
            bar = "█" * (eighths // 8) + (BARS[eighths % 8 - 1] if eighths % 8 else "")
            console.print(
                f"  {span(low):>8} to {span(high):>8} {count:>10,} {bar}", highlight=False
            )
    for reason, count in sorted(look.errors.items(), key=lambda item: -item[1])[:8]:
        console.print(f"  unusable: {count:,} × {reason}", highlight=False, markup=False)


def _suggestions(look: Look, console: Console) -> None:
    if look.late_tolerance_ns is None:
        return
    console.print("[bold]suggested[/]")
    shares = ", ".join(f"{format_duration(t)}: {share:.3%}" for t, share in look.late_share)
    console.print(
        f"  lateTolerance: {format_duration(look.late_tolerance_ns)}   (late rows by tolerance: "
        f"{shares})",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    bounds = ", ".join(f"{t}: {format_duration(b)}" for t, b in look.lower_bounds_ns.items())
    if bounds:
        console.print(f"  lowerBounds: {{{bounds}}}", highlight=False, soft_wrap=True)
