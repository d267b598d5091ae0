"""Print a profile as tables in a terminal: columns, topics, delays, disorder, suggested settings.

Names of columns, topics and files come from data, so they are escaped or printed without markup: a
topic called `[red]` must neither colour the screen nor disappear.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.core.text import plural, span
from tidegate.profile.inspect import Profile
from tidegate.profile.spans import moment, setting
from tidegate.profile.starter import Proof, no_time

__all__ = ["print_look", "print_profile", "print_proof"]

BARS = "▏▎▍▌▋▊▉█"
"""Blocks of one to eight eighths of a character cell: a bar ends on an eighth."""

BAR_CELLS = 40
"""Character cells of the longest bar: with the numbers before it, a line fits 80 columns."""

ERRORS_SHOWN = 8
"""Reasons printed, the most frequent first. More would push the suggestions off the screen."""

TOPICS_SHOWN = 12
"""Topics that `look` lists; the page has all of them."""

COLUMNS_SHOWN = 40
"""Columns printed; those with a role or a time always are. More fill the screen and hide the
answer."""


def print_profile(profile: Profile, console: Console) -> None:
    """Print a profile: columns, roles, topics, disorder, suggested settings.

    Without a readable time column it ends after the columns, with the options that name one.

    Args:
        profile: From `tidegate.profile.inspect.inspect`.
        console: The rich console to print to.
    """
    some = ""
    if profile.rows_read and profile.rows_read < profile.rows:
        some = f"; statistics from the first {plural(profile.rows_read, 'row')}"
    _print_line(
        console,
        f"[bold]{escape(profile.source.path)}[/]: {plural(profile.rows, 'row')} in "
        f"{plural(len(profile.source.files), 'file')}, {profile.source.format}{some}",
    )
    for note in profile.notes:
        _print_line(console, escape(f"  {note}"))
    for reason, count in profile.unreadable.items():
        _print_line(console, escape(f"  not readable: {count:,} × {reason}"))
    _print_columns(profile, console)
    if profile.time is None:
        _print_line(console, escape(no_time(profile)))
        return
    _print_roles(profile, console)
    if profile.first_ns is None:
        _print_line(console, f"no row has a time that {profile.time.type} reads")
        return
    _print_line(console, f"from {moment(profile.first_ns)} to {moment(profile.last_ns)}"
                         f" ({span((profile.last_ns or 0) - profile.first_ns)})")  # fmt: skip
    _print_topics(profile, console)
    _print_disorder(profile, console)
    _print_suggestions(profile, console)


def print_look(proof: Proof, console: Console) -> None:
    """Print a recording in a few lines: its time, roles, rates, gaps, disorder, and what a pipeline
    would do with it."""
    profile = proof.profile
    _print_line(
        console,
        f"[bold]{escape(profile.source.path)}[/]: {plural(profile.rows, 'row')}, "
        f"{profile.source.format}, from {moment(profile.first_ns)} to "
        f"{moment(profile.last_ns)}",
    )
    _print_roles(profile, console)
    for topic in profile.streams[:TOPICS_SHOWN]:
        gaps = f", {plural(topic.gaps, 'gap')} (longest {span(topic.longest_gap_ns)})"
        mean = "" if topic.regular else " on average"
        rate = f", {_rate(topic.rate_hz)}{mean}" if topic.rate_hz else ""
        _print_line(
            console,
            f"  {escape(topic.topic)}: {plural(topic.rows, 'row')}{rate}"
            f"{gaps if topic.gaps else ''}",
        )
    if len(profile.streams) > TOPICS_SHOWN:
        more = plural(len(profile.streams) - TOPICS_SHOWN, "more topic")
        _print_line(console, f"  and {more}")
    if profile.disordered:
        _print_line(
            console,
            f"{plural(profile.disordered, 'row')} out of order, by up to "
            f"{span(profile.disorder.max)}",
        )
    print_proof(proof, console)


def print_proof(proof: Proof, console: Console) -> None:
    """Print what the pipeline that was written did with the rows, and what had to be raised."""
    for change in proof.changes:
        _print_line(console, escape(change))
    _print_line(console, escape(f"tried in process: {proof.sentence()}"))
    tolerance = proof.profile.late_tolerance_ns or 0
    _print_line(
        console,
        f"lateTolerance {setting(tolerance)}: results come {setting(tolerance)} later in event "
        f"time, up to {plural(proof.profile.held, 'row')} wait; maxFutureSkew "
        f"{setting(proof.profile.max_future_skew_ns or 0)}",
    )
    for role, guess in proof.profile.guesses.items():
        if guess.confidence == "medium":
            _print_line(console, escape(f"please check: {role} {guess.column} ({guess.reason})"))


def _print_line(console: Console, text: str) -> None:
    """Print a line with markup. It is wrapped by the terminal, not by rich, so that it can be
    copied.
    """
    console.print(text, highlight=False, soft_wrap=True)


def _print_columns(profile: Profile, console: Console) -> None:
    """Print the columns of the sample with their roles, and as which time each can be read."""
    times = {c.column: c for c in reversed(profile.times)}
    roles = dict.fromkeys(profile.roles.key, "key")
    roles |= {
        name: role
        for role, name in (
            ("topic", profile.roles.topic),
            ("arrival", profile.roles.arrival),
            *(("event time", name) for name in profile.roles.time_columns),
        )
        if name
    }
    table = Table(box=None, title="columns", title_justify="left", title_style="bold")
    for name in ("column", "type", "distinct", "nulls", "role", "reads as"):
        table.add_column(name, justify="right" if name in ("distinct", "nulls") else "left")
    left_out = 0
    for number, column in enumerate(profile.columns):
        name = column["name"]
        inner = [c for c in times.values() if c.column.startswith(f"{name}.")]
        if number >= COLUMNS_SHOWN and name not in roles and name not in times and not inner:
            left_out += 1
            continue
        time = times.get(name)
        reads = "" if time is None else f"{time.type} ({time.readable:.1%} of rows)"
        if time is not None and time.confidence != "high":
            reads = f"{time.type}? {time.reason}"
        kind = "struct" if column["type"].startswith("struct<") else column["type"]
        table.add_row(
            escape(name), escape(kind), f"{column.get('distinct', '')}",
            f"{column['nulls'] or ''}", roles.get(name, ""), escape(reads),
        )  # fmt: skip
        for each in inner:
            table.add_row(escape(f"  {each.column}"), "", "", "", roles.get(each.column, ""),
                          f"{each.type} ({each.readable:.1%} of rows)")  # fmt: skip
    console.print(table)
    if left_out:
        _print_line(console, f"  and {plural(left_out, 'more column')}")


def _print_roles(profile: Profile, console: Console) -> None:
    """Print which column has which role, why, and how sure that is."""
    time = profile.time
    assert time is not None
    how = time.type
    if time.format is not None and time.format not in time.reason:
        how = f"{time.type} {time.format}"
    zone = f", {time.zone}" if time.zone else ""
    key = plural(profile.keys, "value") if profile.roles.key else "all rows share one clock"
    topic = plural(profile.topics, "topic") if profile.roles.topic else ""
    for role, name, more in (
        ("event time", time.column, f"{how}{zone}"),
        ("key", ", ".join(profile.roles.key), key),
        ("topic", profile.roles.topic, topic),
        ("arrival", profile.roles.arrival or "order of the rows", ""),
    ):
        guess = profile.guesses.get("time" if role == "event time" else role)
        why = "" if guess is None else f"; {guess.confidence} confidence: {guess.reason}"
        about = f" ({more}{why})".replace("(; ", "(") if more or why else ""
        _print_line(console, f"{role} [bold]{escape(name or 'none')}[/]{escape(about)}")


def _print_topics(profile: Profile, console: Console) -> None:
    """Print rate, period, jitter and gaps per topic, and the delays if the arrival is known."""
    first = "topic" if profile.roles.topic else ""
    _print_line(console, f"[bold]{'topics' if first else 'rows'}[/]")
    table = _number_table(first, "rows", "rate", "period", "jitter", "gaps", "longest", "missing",
                          "equal")  # fmt: skip
    for topic in profile.streams:
        # Without a period nothing can be said to be missing; one message has no rate either.
        steady, several = topic.regular and topic.period_ns > 0, topic.rows > topic.streams
        table.add_row(
            escape(topic.topic), f"{topic.rows:,}", _rate(topic.rate_hz),
            span(topic.period_ns) if steady else "irregular" if several else "",
            span(topic.jitter.p99) if steady else "", f"{topic.gaps:,}" if steady else "",
            span(topic.longest_gap_ns) if several else "", f"{topic.missing:,}" if steady else "",
            f"{topic.duplicates:,}" if several else "",
        )  # fmt: skip
    console.print(table)
    if profile.delays:
        _print_line(console, "[bold]delay[/], from event time to arrival")
        table = _number_table(first, "p50", "p99", "max", "skew")
        for d in profile.delays:
            table.add_row(
                escape(d.topic), span(d.delay.p50), span(d.delay.p99), span(d.delay.max),
                span(d.skew_ns),
            )  # fmt: skip
        console.print(table)


def _rate(hertz: float) -> str:
    """Return a rate as people say it: 10 Hz, 24 per day.

    >>> _rate(100.0), _rate(1 / 3600), _rate(0.0), _rate(5e8)
    ('100 Hz', '24 per day', '', '500 MHz')
    """
    if hertz == 0:
        return ""
    for name, factor in (("GHz", 1e9), ("MHz", 1e6), ("kHz", 1e4)):
        if hertz >= factor:
            return f"{hertz / (1e3 if name == 'kHz' else factor):.4g} {name}"
    if hertz >= 0.1:
        return f"{hertz:.4g} Hz"
    for name, seconds in (("minute", 60), ("hour", 3600), ("day", 86_400), ("year", 31_557_600)):
        if hertz * seconds >= (1 if name != "hour" else 2):
            return f"{hertz * seconds:.3g} per {name}"
    return f"one in {1 / hertz / 31_557_600:.3g} years"


def _number_table(*names: str) -> Table:
    """Return an empty table: the first column aligned left for names, the others right for numbers.

    Args:
        names: The headings of its columns. Only the first one wraps: a number that is cut is
            wrong.
    """
    table = Table(box=None, padding=(0, 1))
    table.add_column(names[0], justify="left", overflow="fold")
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print_disorder(profile: Profile, console: Console) -> None:
    """Print how far rows arrive out of order, as a sentence and a histogram, and unusable rows.

    Three bins of the profile become one line, because 40 lines do not fit a screen; empty lines are
    left out. A bar has at least an eighth of a cell, so that a single row can be seen.
    """
    behind = profile.disorder
    same = "of the same key" if profile.roles.key else ""
    if profile.disordered:
        verb = "arrives" if profile.disordered == 1 else "arrive"
        _print_line(
            console,
            f"[bold]disorder[/]: {profile.disordered:,} of {plural(profile.rows_read, 'row')} "
            f"{verb} after a newer row {same}".rstrip()
            + f": half of them by up to "
            f"{span(behind.p50)}, 99 % by up to {span(behind.p99)}, all by up to "
            f"{span(behind.max)}",
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
    tolerance = profile.late_tolerance_ns
    shares = ", ".join(f"{share:.3%} with {span(t)}" for t, share in profile.late_share)
    late = "no row is late"
    if any(share for _, share in profile.late_share):
        late = f"late rows: {shares}"
    _print_line(
        console,
        f"  lateTolerance: {setting(tolerance)}   (up to {plural(profile.held, 'row')} wait; "
        f"{late})",
    )
    _print_line(
        console,
        f"  maxFutureSkew: {setting(profile.max_future_skew_ns or 0)}   (the longest step of a "
        f"good row is {span(profile.longest_gap_ns)})",
    )
    bounds = ", ".join(f"{t}: {setting(b)}" for t, b in profile.lower_bounds_ns.items())
    if bounds and profile.roles.topic:
        _print_line(console, escape(f"  lowerBounds: {{{bounds}}}"))
