"""Write a first pipeline file from a profile, with a comment on every choice."""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.core.text import plural
from tidegate.core.time import format_duration
from tidegate.errors import ConfigError
from tidegate.profile.inspect import Profile
from tidegate.profile.show import span

__all__ = ["starter"]

MOST_TOPICS = 8
"""Topics named in the suggested `synchronize` stage. With more, the smallest spread over all of
them is rarely what is wanted, and the line no longer fits a screen."""


def starter(profile: Profile, *, out: str = "out") -> str:
    """Return the text of a pipeline.yaml that `tidegate dry-run` accepts and `tidegate run` runs.

    Parameters
    ----------
    profile : from `tidegate.profile.inspect.inspect`.
    out : the folder for the tables, as it will stand in `sink.path`.

    Raises
    ------
    ConfigError : if no column of the data can be read as a time.
    """
    if profile.roles.time is None or profile.time_type is None or profile.late_tolerance_ns is None:
        raise ConfigError(
            "time", None, "", message=f"{profile.source.path}: no column can be read as a time; "
            "name one with --time and its type with --type",
        )  # fmt: skip
    path = str(Path(profile.source.path).absolute())
    options = {"csv": ", options: {header: true}"}.get(profile.source.format, "")
    if profile.roles.time == "header_stamp_ns" and profile.source.format == "mcap":
        options = ", options: {clock: header}"
    lines = [
        f"# Written by `tidegate init` from {plural(profile.rows_read, 'row')} of {_quoted(path)}.",
        "# Check it: tidegate dry-run pipeline.yaml   Run it: tidegate run pipeline.yaml",
        "",
        f"name: {_quoted(Path(path).stem or 'pipeline')}",
        "streams:",
        "  messages:",
        f"    source: {{format: {profile.source.format}, path: {_quoted(path)}{options}}}",
    ]
    if profile.roles.key:
        keys = ", ".join(_quoted(name) for name in profile.roles.key)
        lines += [
            f"    # {plural(profile.keys, 'key')}, each with its own order, watermark and state",
            f"    key: [{keys}]",
        ]
    else:
        lines += ["    # key: [vehicle]      no key was found: all rows share one watermark"]
    if profile.roles.topic:
        lines += [f"    topic: {_quoted(profile.roles.topic)}"]
    if profile.roles.arrival:
        lines += [
            "    # the order in which the rows arrived; files and shuffles do not keep it",
            f"    arrival: {_quoted(profile.roles.arrival)}",
        ]
    lines += [
        f"    eventtime: {{column: {_quoted(profile.roles.time)}, type: {profile.time_type}}}",
        *_other_times(profile),
        "options:",
        "  # batch reads what there is once; for a stream: mode: streaming, trigger: available_now",
        "  mode: batch",
        "  eventtime:",
        "    enabled: true",
        *_tolerance(profile),
        "    # a row further ahead has a wrong clock: it is reported as an error and does not move",
        "    # the watermark",
        "    maxFutureSkew: 1 h",
        "    # lateness is decided row by row: results do not depend on how the input was cut",
        "    watermarkPer: tuple",
        *_stages(profile),
        f"sink: {{format: parquet, path: {_quoted(out)}}}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Text as YAML reads it back: plain where that is safe, else as a JSON string."""
    plain = text.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    words = {"true", "false", "null", "yes", "no", "on", "off"}
    safe = plain.isascii() and plain.isalnum() and not plain.isdigit() and text[0] not in "-."
    if safe and text.lower() not in words and not plain[0].isdigit():
        return text
    return json.dumps(text)


def _other_times(profile: Profile) -> list[str]:
    chosen = (profile.roles.time, profile.roles.arrival)
    others = [c for c in profile.times if c.column not in chosen]
    return [f"    # also reads as a time: {_quoted(c.column)} ({c.type})" for c in others[:3]]


def _tolerance(profile: Profile) -> list[str]:
    tolerance = profile.late_tolerance_ns or 0
    share = next((s for t, s in profile.late_share if t == tolerance), 0.0)
    return [
        f"    # rows arrive up to {span(profile.disorder.max)} after a newer one (99 % within "
        f"{span(profile.disorder.p99)}); with this tolerance {share:.3%} are late",
        f"    lateTolerance: {format_duration(tolerance)}",
    ]


def _stages(profile: Profile) -> list[str]:
    """A `synchronize` stage for the topics found, commented out."""
    topics = [s.topic for s in profile.streams if s.rate_hz > 0]
    if not profile.roles.topic or len(topics) < 2:
        return []
    named = topics[:MOST_TOPICS]
    names = ", ".join(_quoted(topic) for topic in named)
    bounds = ", ".join(
        f"{_quoted(topic)}: {format_duration(bound)}"
        for topic, bound in profile.lower_bounds_ns.items()
        if topic in named
    )
    fastest = min(s.period_ns for s in profile.streams if s.rate_hz > 0)
    slowest = max(s.period_ns for s in profile.streams if s.rate_hz > 0)
    # A queue must reach over two periods of the slowest topic, or its partners leave too early.
    queue = max(10, -(-2 * slowest // fastest))
    return [
        f"# the fastest topic has a message every {span(fastest)}, the slowest every "
        f"{span(slowest)}; to match",
        "# one message of each topic, uncomment:",
        "# stages:",
        f"#   - synchronize: {{topics: [{names}], queueSize: {queue}, lowerBounds: {{{bounds}}}}}",
    ]
