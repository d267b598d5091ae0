"""Print a profile as tables in a terminal: columns, topics, delays, disorder, suggested settings.

Names of columns, topics and files come from data, so they are escaped or printed without markup: a
topic called `[red]` must neither colour the screen nor disappear.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.core.text import plural
from tidegate.core.time import format_duration, format_time
from tidegate.profile.inspect import Profile

__all__ = ["print_profile", "span"]

BARS = "▏▎▍▌▋▊▉█"
"""Blocks of one to eight eighths of a character cell: a bar ends on an eighth."""

BAR_CELLS = 40
"""Character cells of the longest bar: with the numbers before it, a line fits 80 columns."""

ERRORS_SHOWN = 8
"""Reasons printed, the most frequent first. More would push the suggestions off the screen."""


def span(ns: float) -> str:
    """Return a span of time in three significant digits. For reading, not for computing.

    Hours begin at four: below that, seconds are easier to compare with a tolerance.

    Args:
        ns: The span in ns; may be negative.

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


def print_profile(profile: Profile, console: Console) -> None:
    """Print a profile: columns, roles, topics, disorder, suggested settings.

    Without a readable time column it ends after the columns, with the options that name one.

    Args:
        profile: From `tidegate.profile.inspect.inspect`.
        console: The rich console to print to.
    """
    some = ""
    if profile.rows_read < profile.rows:
        some = f"; statistics from the first {plural(profile.rows_read, 'row')}"
    _print_line(
        console,
        f"[bold]{escape(profile.source.path)}[/]: {plural(profile.rows, 'row')} in "
        f"{plural(len(profile.source.files), 'file')}, {profile.source.format}{some}",
    )
    _print_columns(profile, console)
    if profile.time_type is None:
        _print_line(console, "no column can be read as a time: name one with --time and its type "
                       "with --type")  # fmt: skip
        return
    key = escape(", ".join(profile.roles.key)) or "none"
    _print_line(
        console,
        f"key [bold]{key}[/] ({plural(profile.keys, 'value')}), "
        f"topic [bold]{escape(profile.roles.topic or 'none')}[/], "
        f"event time [bold]{escape(profile.roles.time or '')}[/] ({profile.time_type}), "
        f"arrival [bold]{escape(profile.roles.arrival or 'order of the rows')}[/]",
    )
    _print_line(console, f"from {format_time(profile.first_ns)} to {format_time(profile.last_ns)}")
    _print_topics(profile, console)
    _print_disorder(profile, console)
    _print_suggestions(profile, console)


def _print_line(console: Console, text: str) -> None:
    """Print a line with markup. It is wrapped by the terminal, not by rich, so that it can be
    copied.
    """
    console.print(text, highlight=False, soft_wrap=True)


def _print_columns(profile: Profile, console: Console) -> None:
    """Print the columns of the sample with their roles, and as which time each can be read."""
    times = {candidate.column: candidate for candidate in profile.times}
    roles = dict.fromkeys(profile.roles.key, "key")
    roles |= {
        name: role
        for role, name in (
            ("topic", profile.roles.topic),
            ("event time", profile.roles.time),
            ("arrival", profile.roles.arrival),
        )
        if name
    }
    table = Table(box=None, title="columns", title_justify="left", title_style="bold")
    for name in ("column", "type", "distinct", "nulls", "role", "reads as"):
        table.add_column(name, justify="right" if name in ("distinct", "nulls") else "left")
    for column in profile.columns:
        time = times.get(column["name"])
        reads = "" if time is None else f"{time.type} ({time.readable:.1%} of rows)"
        table.add_row(
            escape(column["name"]), escape(column["type"]), f"{column.get('distinct', '')}",
            f"{column['nulls'] or ''}", roles.get(column["name"], ""), reads,
        )  # fmt: skip
    console.print(table)


def _print_topics(profile: Profile, console: Console) -> None:
    """Print rate, period, jitter and gaps per topic, and the delays if the arrival is known."""
    table = _number_table("topics", "topic", "rows", "rate", "period", "jitter p99", "gaps",
                   "longest", "missing", "same time")  # fmt: skip
    for topic in profile.streams:
        table.add_row(
            escape(topic.topic), f"{topic.rows:,}", f"{topic.rate_hz:.4g} Hz",
            span(topic.period_ns), span(topic.jitter.p99), f"{topic.gaps:,}",
            span(topic.longest_gap_ns), f"{topic.missing:,}", f"{topic.duplicates:,}",
        )  # fmt: skip
    console.print(table)
    if profile.delays:
        table = _number_table(
            "delay, from event time to arrival", "topic", "p50", "p99", "max", "skew"
        )
        for d in profile.delays:
            table.add_row(
                escape(d.topic), span(d.delay.p50), span(d.delay.p99), span(d.delay.max),
                span(d.skew_ns),
            )  # fmt: skip
        console.print(table)


def _number_table(title: str, *names: str) -> Table:
    """Return an empty table: the first column aligned left for names, the others right for numbers.

    Args:
        title: The heading above the table.
        names: The headings of its columns. None of them wraps.
    """
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    for name in names:
        left = name == names[0]
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def _print_disorder(profile: Profile, console: Console) -> None:
    """Print how far rows arrive out of order, as a sentence and a histogram, and unusable rows.

    Three bins of the profile become one line, because 40 lines do not fit a screen; empty lines are
    left out. A bar has at least an eighth of a cell, so that a single row can be seen.
    """
    behind = profile.disorder
    if profile.disordered:
        _print_line(
            console,
            f"[bold]disorder[/]: {profile.disordered:,} of {plural(profile.rows_read, 'row')} "
            f"arrive after a newer row of the same key: half of them by up to {span(behind.p50)}, "
            f"99 % by up to {span(behind.p99)}, all by up to {span(behind.max)}",
        )
    else:
        _print_line(console, "[bold]disorder[/]: none; all rows arrive in order of their time")
    edges, counts = profile.histogram
    merged = [(edges[i], edges[min(i + 3, len(edges) - 1)], sum(counts[i : i + 3]))
              for i in range(0, len(counts), 3)]  # fmt: skip
    most = max((count for _, _, count in merged), default=0)
    for low, high, count in merged:
        if count:
            eighths = max(1, round(count / most * BAR_CELLS * 8))
            bar = "█" * (eighths // 8) + (BARS[eighths % 8 - 1] if eighths % 8 else "")
            console.print(
                f"  {span(low):>8} to {span(high):>8} {count:>10,} {bar}", highlight=False
            )
    for reason, count in sorted(profile.errors.items(), key=lambda item: -item[1])[:ERRORS_SHOWN]:
        console.print(f"  unusable: {count:,} × {reason}", highlight=False, markup=False)


def _print_suggestions(profile: Profile, console: Console) -> None:
    """Print the suggested settings in the spelling of a pipeline file.

    Nothing is printed without a time column: every suggestion is derived from times.
    """
    if profile.late_tolerance_ns is None:
        return
    console.print("[bold]suggested settings[/]")
    shares = ", ".join(f"{format_duration(t)}: {share:.3%}" for t, share in profile.late_share)
    _print_line(
        console,
        f"  lateTolerance: {format_duration(profile.late_tolerance_ns)}   (late rows by "
        f"tolerance: {shares})",
    )
    bounds = ", ".join(f"{t}: {format_duration(b)}" for t, b in profile.lower_bounds_ns.items())
    if bounds:
        _print_line(console, escape(f"  lowerBounds: {{{bounds}}}"))
