"""Write a first pipeline file from a profile, with a comment on every choice.

The file must run as it is, so it suggests only what the profile has measured: event time, key,
arrival and late tolerance. What needs a decision (which topics to match) is there as a comment. All
names go through `_yaml_quoted`, because a topic or a path may hold any character.
"""

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

    Args:
        profile: From `tidegate.profile.inspect.inspect`.
        out: The folder for the tables, as it will stand in `sink.path`.

    Raises:
        ConfigError: If no column of the data can be read as a time.
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
        f"# Written by `tidegate init` from {plural(profile.rows_read, 'row')} of "
        f"{_yaml_quoted(path)}.",
        "# Check it: tidegate dry-run pipeline.yaml   Run it: tidegate run pipeline.yaml",
        "",
        f"name: {_yaml_quoted(Path(path).stem or 'pipeline')}",
        "streams:",
        "  messages:",
        f"    source: {{format: {profile.source.format}, path: {_yaml_quoted(path)}{options}}}",
    ]
    if profile.roles.key:
        keys = ", ".join(_yaml_quoted(name) for name in profile.roles.key)
        lines += [
            f"    # {plural(profile.keys, 'key')}, each with its own order, watermark and state",
            f"    key: [{keys}]",
        ]
    else:
        lines += ["    # key: [vehicle]      no key was found: all rows share one watermark"]
    if profile.roles.topic:
        lines += [f"    topic: {_yaml_quoted(profile.roles.topic)}"]
    if profile.roles.arrival:
        lines += [
            "    # the order in which the rows arrived; files and shuffles do not keep it",
            f"    arrival: {_yaml_quoted(profile.roles.arrival)}",
        ]
    lines += [
        f"    eventtime: {{column: {_yaml_quoted(profile.roles.time)}, type: {profile.time_type}}}",
        *_other_times(profile),
        "options:",
        "  # batch reads what there is once; for a stream: mode: streaming, trigger: available_now",
        "  mode: batch",
        "  eventtime:",
        "    enabled: true",
        *_tolerance_lines(profile),
        "    # a row further ahead has a wrong clock: it is reported as an error and does not move",
        "    # the watermark",
        "    maxFutureSkew: 1 h",
        "    # lateness is decided row by row: results do not depend on how the input was cut",
        "    watermarkPer: tuple",
        *_stage_suggestion(profile),
        f"sink: {{format: parquet, path: {_yaml_quoted(out)}}}",
    ]
    return "\n".join(lines) + "\n"


def _yaml_quoted(text: str) -> str:
    """Return text as YAML reads it back: plain where that is safe, else as a JSON string.

    JSON strings are valid YAML. Words that YAML 1.1 reads as true, false or null are quoted, and so
    is everything that begins with a digit or might be a number.

    >>> [_yaml_quoted(text) for text in ("lidar_top", "on", "12:30", "a: b")]
    ['lidar_top', '"on"', '"12:30"', '"a: b"']
    """
    plain = text.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    words = {"true", "false", "null", "yes", "no", "on", "off"}
    safe = plain.isascii() and plain.isalnum() and not plain.isdigit() and text[0] not in "-."
    if safe and text.lower() not in words and not plain[0].isdigit():
        return text
    return json.dumps(text)


def _other_times(profile: Profile) -> list[str]:
    """Return comments on up to three other columns that can be read as a time."""
    chosen = (profile.roles.time, profile.roles.arrival)
    others = [c for c in profile.times if c.column not in chosen]
    return [f"    # also reads as a time: {_yaml_quoted(c.column)} ({c.type})" for c in others[:3]]


def _tolerance_lines(profile: Profile) -> list[str]:
    """Return the suggested late tolerance, with a comment on the disorder it was derived from."""
    tolerance = profile.late_tolerance_ns or 0
    share = next((s for t, s in profile.late_share if t == tolerance), 0.0)
    return [
        f"    # rows arrive up to {span(profile.disorder.max)} after a newer one (99 % within "
        f"{span(profile.disorder.p99)}); with this tolerance {share:.3%} are late",
        f"    lateTolerance: {format_duration(tolerance)}",
    ]


def _stage_suggestion(profile: Profile) -> list[str]:
    """Return a `synchronize` stage for the topics found, commented out.

    Nothing with fewer than two topics that have a rate. The lower bounds are the measured ones,
    rounded down: they let a set be decided earlier.
    """
    topics = [s.topic for s in profile.streams if s.rate_hz > 0]
    if not profile.roles.topic or len(topics) < 2:
        return []
    named = topics[:MOST_TOPICS]
    names = ", ".join(_yaml_quoted(topic) for topic in named)
    bounds = ", ".join(
        f"{_yaml_quoted(topic)}: {format_duration(bound)}"
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
