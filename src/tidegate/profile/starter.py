"""Write a first pipeline file from a profile, with a comment on every choice, and prove it.

The file must run as it is, so it suggests only what the profile has measured: how the files are
read, their schema, event time, key, arrival, late tolerance and the limit for wrong clocks. What
needs a decision (which topics to match) is there as a comment. All names go through `_yaml_quoted`,
because a topic or a path may hold any character.

`prove` plans the file and runs it on the rows of the profile, in process, in the order in which a
run takes them. If more than `MOST_LOST` of the rows are late or refused, and the data give no
reason for it, the setting at fault is raised to the smallest value that suffices and the file is
written anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core.outcomes import Collection, Int64s, Late, Outcome
from tidegate.core.text import plural, span
from tidegate.errors import ConfigError
from tidegate.pipeline import PipelineDefinition, plan
from tidegate.profile.inspect import (
    CHUNK_ROWS,
    Profile,
    arrival_order,
    count_reasons,
    require_rows,
)
from tidegate.profile.order import (
    DAY_NS,
    late_share,
    round_digits,
    round_span,
    rows_held,
    unset_clocks,
)
from tidegate.profile.rows import LoadedRows, spark_ddl
from tidegate.profile.spans import setting
from tidegate.profile.text_csv import SKIPPED
from tidegate.profile.time_columns import read_times
from tidegate.profile.yaml_text import quoted

__all__ = ["Proof", "prove", "starter"]

MOST_TOPICS = 8
"""Topics named in the suggested `synchronize` stage. With more, the smallest spread over all of
them is rarely what is wanted, and the line no longer fits a screen."""

MOST_LOST = 0.01
"""Share of the rows that may be late or refused before a setting is held to be at fault."""

REASONS = 3
"""Reasons of refused rows that a sentence names, the most frequent first: it stays a sentence."""

ROUNDS = 4
"""Times that settings are raised. Each raise is to what the rows ask for, so one is enough, but
where a limit and a tolerance depend on each other."""


def starter(profile: Profile, *, out: str = "out", file: str = "pipeline.yaml") -> str:
    """Return the text of a pipeline.yaml that `tidegate dry-run` accepts and `tidegate run` runs.

    Args:
        profile: From `tidegate.profile.inspect.inspect`.
        out: The folder for the tables, as it will stand in `sink.path`.
        file: The file it will be written to, for the commands in its first lines.

    Raises:
        ConfigError: If no column of the data can be read as a time, or only in two ways.
    """
    time = profile.time
    if time is None or profile.late_tolerance_ns is None:
        raise ConfigError(
            "time", None, "", message=f"{profile.source.path}: {no_time(profile)}"
        )  # fmt: skip
    path = str(Path(profile.source.path).absolute())
    lines = [
        f"# Written by `tidegate init` from {plural(profile.rows_read, 'row')} of "
        f"{_yaml_quoted(path)}.",
        f"# Check it: tidegate dry-run {file}   Run it: tidegate run {file}",
        "",
        f"name: {_yaml_quoted(_name(profile))}",
        "streams:",
        "  messages:",
        "    source:",
        f"      format: {profile.source.format}",
        f"      path: {_yaml_quoted(path)}",
        *_option_lines(profile),
        *_schema_lines(profile),
    ]
    if profile.roles.key:
        keys = ", ".join(_yaml_quoted(name) for name in profile.roles.key)
        lines += [
            f"    # {plural(profile.keys, 'key')}, each with its own order, watermark and state"
            f"{_why(profile, 'key')}",
            f"    key: [{keys}]",
        ]
    else:
        lines += ["    # key: [vehicle]      no key was found: all rows share one watermark"]
    if profile.roles.topic:
        why = _why(profile, "topic").removeprefix(": ")
        lines += [f"    # {why}"] if why else []
        lines += [f"    topic: {_yaml_quoted(profile.roles.topic)}"]
    if profile.roles.arrival:
        lines += [
            "    # the order in which the rows arrived; files and shuffles do not keep it",
            f"    arrival: {_yaml_quoted(profile.roles.arrival)}",
        ]
    lines += [
        *_eventtime_lines(profile),
        *_other_times(profile),
        "options:",
        "  # batch reads what there is once; for a stream: mode: streaming, trigger: available_now",
        "  mode: batch",
        "  eventtime:",
        "    enabled: true",
        *_tolerance_lines(profile),
        *_skew_lines(profile),
        "    # lateness is decided row by row: results do not depend on how the input was cut",
        "    watermarkPer: tuple",
        *_stage_suggestion(profile),
        f"sink: {{format: parquet, path: {_yaml_quoted(out)}}}",
    ]
    return "\n".join(lines) + "\n"


def no_time(profile: Profile) -> str:
    """Return the sentence about a recording without a time column that is sure enough."""
    doubts = [c for c in profile.times if c.confidence == "low"]
    if doubts:
        first = doubts[0]
        sentence = f"{first.column} may be the time, but {first.reason}"
        return f"{sentence}; say so with {first.settled_by}" if first.settled_by else sentence
    return (
        "no column can be read as a time: name one with --time and its type with --type (or its "
        "layout with --format)"
    )


def _name(profile: Profile) -> str:
    """Return a name for the pipeline: that of the file without its endings."""
    return Path(profile.source.path).name.split(".")[0] or "pipeline"


def _yaml_quoted(text: str) -> str:
    """Return text as YAML reads it back: plain where that is safe, else as a JSON string.

    JSON strings are valid YAML. Words that YAML 1.1 reads as true, false or null are quoted, and so
    is everything that begins with a digit or might be a number.

    >>> [_yaml_quoted(text) for text in ("lidar_top", "on", "12:30", "a: b")]
    ['lidar_top', '"on"', '"12:30"', '"a: b"']
    """
    plain = text.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    words = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    safe = plain.isascii() and plain.isalnum() and not plain.isdigit() and text[0] not in "-."
    if safe and text.lower() not in words and not plain[0].isdigit():
        return text
    return quoted(text)


def _yaml_value(value: Any) -> str:
    """Return the value of an option: text quoted, true and false as they are."""
    if isinstance(value, bool):
        return json.dumps(value)
    return quoted(value) if isinstance(value, str) else str(value)


def _option_lines(profile: Profile) -> list[str]:
    """Return the options that make Spark read the files as they were read here."""
    if not profile.options:
        return []
    made = ", ".join(f"{name}: {_yaml_value(value)}" for name, value in profile.options.items())
    skipped = [
        f"      # {note}" for note in profile.notes if "skipRows" in made and SKIPPED in note
    ]
    return [*skipped, f"      options: {{{made}}}"]


def _schema_lines(profile: Profile) -> list[str]:
    """Return the schema of text files, whose types Spark would guess anew, or all as text."""
    if profile.needed_schema is not None:
        return [
            "      # without the columns that Spark cannot read",
            f"      schema: {quoted(spark_ddl(profile.needed_schema))}",
        ]
    if profile.source.format not in ("csv", "json"):
        return []
    return [
        "      # the types that all values have; a line that does not fit is set apart",
        f"      schema: {quoted(spark_ddl(profile.schema))}",
    ]


def _eventtime_lines(profile: Profile) -> list[str]:
    """Return the declaration of event time, with what to know about it."""
    time = profile.time
    assert time is not None
    names = [_yaml_quoted(name) for name in time.columns]
    column = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
    made = f"column: {column}, type: {time.type}"
    if time.format is not None:
        made += f", format: {quoted(time.format)}"
    if time.zone is not None:
        made += f", zone: {_yaml_quoted(time.zone)}"
    lines = []
    if time.confidence == "medium":
        lines.append(f"    # please check: {time.reason}")
    if not time.zoned and time.zone is None:
        lines.append("    # times without a zone are UTC; for another one: zone: Europe/Berlin")
    return [*lines, f"    eventtime: {{{made}}}"]


def _why(profile: Profile, role: str) -> str:
    """Return why a column has a role, for a comment; nothing if that is sure."""
    guess = profile.guesses.get(role)
    if guess is None or guess.confidence == "high":
        return ""
    return f": please check, {guess.reason}"


def _other_times(profile: Profile) -> list[str]:
    """Return comments on up to three other columns that can be read as a time."""
    chosen = () if profile.time is None else profile.time.columns
    others = [
        c for c in profile.times
        if c.columns != chosen and c.column != profile.roles.arrival and c.confidence != "low"
        and not set(c.columns) <= set(chosen)
    ]  # fmt: skip
    return [f"    # also reads as a time: {_yaml_quoted(c.column)} ({c.type})" for c in others[:3]]


def _tolerance_lines(profile: Profile) -> list[str]:
    """Return the late tolerance, with a comment on the disorder it was derived from and its
    price."""
    tolerance = profile.late_tolerance_ns or 0
    share = next((s for t, s in profile.late_share if t == tolerance), 0.0)
    if profile.disordered:
        why = (
            f"    # rows arrive up to {span(profile.disorder.max)} after a newer one (99 % within "
            f"{span(profile.disorder.p99)}); with this tolerance {share:.3%} are late"
        )
    else:
        why = (
            "    # all rows arrive in order; this lets two neighbours change places in the next "
            "recording"
        )
    return [
        why,
        f"    # its price: results come {setting(tolerance)} later in event time, and up to "
        f"{plural(profile.held, 'row')} wait",
        f"    lateTolerance: {setting(tolerance)}",
    ]


def _skew_lines(profile: Profile) -> list[str]:
    """Return the limit for wrong clocks, with a comment on the gaps it was derived from."""
    limit = profile.max_future_skew_ns or 0
    found = plural(profile.wrong_clocks, "row") if profile.wrong_clocks else "none"
    return [
        f"    # a row further ahead has a wrong clock and becomes an error (here: {found}); the "
        f"longest step of a good row is {span(profile.longest_gap_ns)}",
        f"    maxFutureSkew: {setting(limit)}",
    ]


def _stage_suggestion(profile: Profile) -> list[str]:
    """Return a `synchronize` stage for the topics found, commented out.

    Nothing with fewer than two topics that have a rate. The lower bounds are the measured ones,
    rounded down: they let a set be decided earlier.
    """
    topics = [s.topic for s in profile.streams if s.rate_hz > 0]
    if not profile.roles.topic or len(topics) < 2 or profile.topics > len(profile.streams):
        return []
    named = topics[:MOST_TOPICS]
    names = ", ".join(_yaml_quoted(topic) for topic in named)
    bounds = ", ".join(
        f"{_yaml_quoted(topic)}: {setting(bound)}"
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


# -- proof ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Proof:
    """What the pipeline that `init` wrote did with the rows of the profile.

    Attributes:
        text: The pipeline file, with the settings that were proved.
        profile: The profile with these settings.
        rows: Rows that went in.
        in_order: Rows that came out in order.
        late: Rows that were late.
        errors: Rows that were refused, by reason.
        changes: Sentences about settings that had to be raised.
        outcomes: All that came out, in order.
    """

    text: str
    profile: Profile
    rows: int
    in_order: int
    late: int
    errors: dict[str, int]
    changes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    def sentence(self) -> str:
        """Return what came out, in words.

        >>> Proof("", None, 9, 7, 1, {"null": 1}, (), ()).sentence()
        'of 9 rows, 7 come out in order, 1 is late and 1 is refused (1 × null)'
        """
        refused = sum(self.errors.values())
        parts = [f"{self.in_order:,} {'comes' if self.in_order == 1 else 'come'} out in order"]
        if self.late:
            parts.append(f"{self.late:,} {'is' if self.late == 1 else 'are'} late")
        if refused:
            most = sorted(self.errors.items(), key=lambda item: -item[1])
            why = "; ".join(f"{n:,} × {reason}" for reason, n in most[:REASONS])
            why += "; ..." if len(most) > REASONS else ""
            parts.append(f"{refused:,} {'is' if refused == 1 else 'are'} refused ({why})")
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        return f"of {plural(self.rows, 'row')}, {listed}"


def prove(
    profile: Profile, loaded: LoadedRows, *, out: str = "out", file: str = "pipeline.yaml"
) -> Proof:
    """Write a pipeline file, run it in process on the rows of the profile, and raise settings that
    lose good rows.

    Args:
        profile: From `inspect_rows`, with a time column.
        loaded: The rows it was made from.
        out: The folder for the tables, as it will stand in `sink.path`.
        file: The file it will be written to, for the commands in its first lines.

    Raises:
        ConfigError: If the profile has no time column.
        DataError: If it has no rows.
    """
    require_rows(profile)
    text = starter(profile, out=out, file=file)  # raises without a time
    assert profile.time is not None
    time_ns, good = read_times(profile.time, loaded.table)
    order, _, key = arrival_order(loaded, profile.roles, time_ns, good)
    rows = loaded.table.take(pa.array(order))
    timed = order[good[order]]
    changes: list[str] = []
    for _ in range(ROUNDS):
        made = _run(text, profile, rows)
        changed = _raised(profile, made, time_ns[timed], key[timed])
        if changed is None:
            break
        profile, sentence = changed
        changes.append(sentence)
        text = starter(profile, out=out, file=file)
    return replace(made, changes=tuple(changes))


def _run(text: str, profile: Profile, rows: pa.Table) -> Proof:
    """Plan a pipeline file and run rows, in order of arrival, through its flow."""
    definition = PipelineDefinition.from_yaml(text)
    flow = plan(definition, {"messages": rows.schema}).flow()
    out: list[Outcome] = []
    for batch in rows.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS):
        out += flow.process(batch)
    out += flow.end()
    errors = count_reasons(out, profile.max_future_skew_ns or 0)
    in_order = sum(len(o) for o in out if isinstance(o, Collection))
    late = sum(len(o) for o in out if isinstance(o, Late))
    return Proof(text, profile, rows.num_rows, in_order, late, errors, (), tuple(out))


def _raised(
    profile: Profile, made: Proof, time_ns: Int64s, key: Int64s
) -> tuple[Profile, str] | None:
    """Return the profile with the setting raised that loses good rows, and a sentence about it;
    None if none does."""
    skewed = sum(n for reason, n in made.errors.items() if "ahead of its key" in reason)
    if skewed - profile.wrong_clocks > MOST_LOST * made.rows:
        before = profile.max_future_skew_ns or 0
        limit = round_span(2 * max(before, profile.longest_gap_ns))
        if limit > before:
            sentence = (
                f"maxFutureSkew raised from {span(before)} to {span(limit)}: it refused "
                f"{plural(skewed, 'row')}"
            )
            return replace(profile, max_future_skew_ns=limit), sentence
    tolerance = profile.late_tolerance_ns or 0
    unset = bool(unset_clocks(time_ns, key).any())
    behind = np.concatenate([
        np.empty(0, np.int64),
        *(o.lateness_ns[(o.time_ns >= DAY_NS) | (not unset)] + tolerance
          for o in made.outcomes if isinstance(o, Late)),
    ])  # fmt: skip
    if len(behind) > MOST_LOST * made.rows:
        behind = np.sort(behind)
        allowed = int(MOST_LOST * made.rows)
        needed = round_digits(int(behind[-1 - allowed]) + 1)
        shares = [*profile.late_share, (needed, late_share(behind, made.rows, needed))]
        held = rows_held(time_ns, key, needed)
        sentence = (
            f"lateTolerance raised from {span(tolerance)} to {span(needed)}: "
            f"{plural(len(behind), 'row')} were late; results come {span(needed)} later, and up "
            f"to {plural(held, 'row')} wait"
        )
        changed = replace(profile, late_tolerance_ns=needed, late_share=shares, held=held)
        return changed, sentence
    return None
