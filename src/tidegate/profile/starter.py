"""A first pipeline file, written from a look at the data, with a comment on every choice."""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.core.time import format_duration
from tidegate.errors import ConfigError
from tidegate.profile.inspect import Look
from tidegate.profile.show import span

__all__ = ["starter"]


def starter(look: Look, *, out: str = "out") -> str:
    """The text of a pipeline.yaml that `tidegate dry-run` accepts and `tidegate run` runs."""
    if look.roles.time is None or look.time_type is None or look.late_tolerance_ns is None:
        raise ConfigError(
            "time", None, "", message=f"{look.source.path}: no column reads as a time; name it "
            "with --time and its type with --type",
        )  # fmt: skip
    path = str(Path(look.source.path).absolute())
    options = {"csv": ", options: {header: true}"}.get(look.source.format, "")
    if look.roles.time == "header_stamp_ns" and look.source.format == "mcap":
        options = ", options: {clock: header}"
    lines = [
        f"# Written by tidegate init from a look at {look.looked_at:,} rows of {_q(path)}.",
        "# Check it: tidegate dry-run pipeline.yaml   Run it: tidegate run pipeline.yaml",
        "",
        f"name: {_q(Path(path).stem or 'pipeline')}",
        "streams:",
        "  messages:",
        f"    source: {{format: {look.source.format}, path: {_q(path)}{options}}}",
    ]
    if look.roles.key:
        keys = ", ".join(_q(name) for name in look.roles.key)
        lines += [
            f"    # order, watermark and state are kept for each of {look.keys:,} keys",
            f"    key: [{keys}]",
        ]
    else:
        lines += ["    # key: [vehicle]      no key was found: all rows are one stream of time"]
    if look.roles.topic:
        lines += [f"    topic: {_q(look.roles.topic)}"]
    if look.roles.arrival:
        lines += [
            "    # pins the order of arrival, which files and shuffles do not keep",
            f"    arrival: {_q(look.roles.arrival)}",
        ]
    lines += [
        f"    eventtime: {{column: {_q(look.roles.time)}, type: {look.time_type}}}",
        *_other_times(look),
        "options:",
        "  # batch reads what there is once; for a stream: mode: streaming, trigger: available_now",
        "  mode: batch",
        "  eventtime:",
        "    enabled: true",
        *_tolerance(look),
        "    # a row further ahead is a wrong clock: it is reported and does not move time",
        "    maxFutureSkew: 1 h",
        "    # lateness is decided row by row: results do not depend on how the input was cut",
        "    watermarkPer: tuple",
        *_stages(look),
        f"sink: {{format: parquet, path: {_q(out)}}}",
    ]
    return "\n".join(lines) + "\n"


def _q(text: str) -> str:
    """Text as YAML reads it back: plain where that is safe, else as a JSON string."""
    plain = text.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    words = {"true", "false", "null", "yes", "no", "on", "off"}
    safe = plain.isascii() and plain.isalnum() and not plain.isdigit() and text[0] not in "-."
    if safe and text.lower() not in words and not plain[0].isdigit():
        return text
    return json.dumps(text)


def _other_times(look: Look) -> list[str]:
    others = [c for c in look.times if c.column not in (look.roles.time, look.roles.arrival)]
    return [f"    # also reads as a time: {c.column} ({c.type})" for c in others[:3]]


def _tolerance(look: Look) -> list[str]:
    tolerance = look.late_tolerance_ns or 0
    share = next((s for t, s in look.late_share if t == tolerance), 0.0)
    return [
        f"    # rows come up to {span(look.disorder.max)} behind a newer one (99 %: "
        f"{span(look.disorder.p99)}); this makes {share:.3%} late",
        f"    lateTolerance: {format_duration(tolerance)}",
    ]


def _stages(look: Look) -> list[str]:
    """What one could do next, ready to be uncommented."""
    topics = [s.topic for s in look.streams if s.rate_hz > 0]
    if not look.roles.topic or len(topics) < 2:
        return []
    names = ", ".join(_q(topic) for topic in topics[:8])
    bounds = ", ".join(
        f"{_q(t)}: {format_duration(b)}" for t, b in look.lower_bounds_ns.items() if t in topics[:8]
    )
    fastest = min(s.period_ns for s in look.streams if s.rate_hz > 0)
    slowest = max(s.period_ns for s in look.streams if s.rate_hz > 0)
    # a queue must reach over two periods of the slowest topic, or its partners leave too early
    queue = max(10, -(-2 * slowest // fastest))
    return [
        f"# the fastest topic comes every {span(fastest)}, the slowest every {span(slowest)};"
        " one message of each, matched:",
        "# stages:",
        f"#   - synchronize: {{topics: [{names}], queueSize: {queue}, lowerBounds: {{{bounds}}}}}",
    ]
