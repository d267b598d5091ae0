"""One HTML file with everything in it: the columns, the scripts, the styles.

Columns travel as base64 of zlib over byte planes: all lowest bytes first, then the next, because
neighbours in time differ in few bytes and equal bytes in a row cost nothing. A million messages
then take about 10 MB, exact to the nanosecond.

What comes from a run is data, never markup: it is embedded as JSON in which no `<` occurs, the
scripts only make text nodes of it, and a content security policy lets the browser run the scripts
of this file by their hashes and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.output.filesystem import replace_file
from tidegate.output.reader import StoredRun, open_run
from tidegate.profile.roles import Roles
from tidegate.report.columns import NONE
from tidegate.report.groups import Groups
from tidegate.report.headline import Opening, headline, opening
from tidegate.report.health import health_of
from tidegate.report.picture import css
from tidegate.report.rows import KINDS, RunMessages, gather_messages
from tidegate.report.thumbnails import Thumbnail, run_payloads, thumbnails_of

__all__ = ["DEFAULT_LIMIT", "data_text", "first_view", "page_text", "write_page"]

DEFAULT_LIMIT = 1_000_000
"""Messages in a page. Below, a page of a long run shows less than it could; above, browsers take
seconds to open the file."""

SCRIPTS = (
    "dom.js", "data.js", "text.js", "lanes.js", "values.js", "pictures.js", "groups.js",
    "timeline.js", "details.js", "health.js", "live.js", "page.js",
)  # fmt: skip
"""The scripts of the page, in the order in which they use each other."""

FIT_SHARE = (0.0005, 0.9995)
"""Quantiles of event time between which the whole run is shown: one wrong clock must not squeeze
all other messages into a pixel."""


def write_page(out: str, to: str, roles: Roles, *, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """Write the page of a run to a file.

    Args:
        out: The output path of the run, or a folder with `results` in it as the demo leaves it.
        to: The HTML file to write; an existing file is replaced.
        roles: Which columns are key, topic and arrival; those left unset are what the run declares.
        limit: Most messages in the page. Above it, rows in order are thinned evenly, late rows and
            errors last, and the page says so.

    Returns:
        What the page shows: `page` (its path), `bytes`, `messages`, `of` (messages there are),
        `keys`, `topics`, `headline` (the sentence on top).

    Raises:
        ConfigError: If `out` holds no run or a role names no column.
        StateError: If a commit or a table is damaged.
    """
    run = open_run(out)
    messages = gather_messages(run, roles, limit)
    images = thumbnails_of(messages, first_view(messages), run_payloads(run, messages))
    text = page_text(run, messages, thumbnails=images)
    replace_file(to, text)
    return {
        "page": to,
        "bytes": len(text.encode()),
        "messages": len(messages),
        "of": messages.total,
        "keys": len(messages.keys),
        "topics": messages.topics,
        "headline": headline(messages, run.counts),
    }


def page_text(
    run: StoredRun,
    messages: RunMessages,
    *,
    live: bool = False,
    thumbnails: Sequence[Thumbnail] = (),
    sentence: str | None = None,
) -> str:
    """Return the page as HTML.

    Args:
        run: The run the messages are from; its path is the title.
        messages: What the page shows, from `gather_messages`.
        live: Make a page that asks its server for new commits. Its security policy then allows
            connections to that server; a page in a file allows none.
        thumbnails: Images of messages.
        sentence: The sentence on top; without, `headline` makes it.
    """
    facts, columns = _facts(run, messages, live), _packed_columns(messages, _origin(messages))
    if sentence is not None:
        facts["headline"] = sentence
    facts["thumbnails"] = [list(each) for each in thumbnails]
    style = f":root{{{css(False)}}}:root[data-theme=dark]{{{css(True)}}}"
    style += _vendored("uPlot.min.css") + _asset("page.css")
    library = _vendored("uPlot.iife.min.js")
    script = '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)
    return _fill_template(
        _asset("page.html"),
        {
            "policy": _policy([library, script], style, live),
            "title": html.escape(run.path),
            "style": style,
            "facts": _embedded(facts),
            "columns": _embedded(columns),
            "licence": html.escape(_vendored("LICENSE")),
            "library": library,
            "script": script,
        },
    )


def data_text(run: StoredRun, messages: RunMessages, thumbnails: Sequence[Thumbnail] = ()) -> str:
    """Return what a live page draws from, as JSON: the same that a page is written with.

    Args:
        run: The run as far as it is committed.
        messages: Its messages, from `gather_messages`.
        thumbnails: Images of messages.
    """
    facts, columns = _facts(run, messages, True), _packed_columns(messages, _origin(messages))
    facts["thumbnails"] = [list(each) for each in thumbnails]
    return json.dumps({"facts": facts, "columns": columns}, separators=(",", ":"), default=str)


def _policy(scripts: list[str], style: str, live: bool) -> str:
    """Return a content security policy that admits exactly these scripts and this style."""

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return "; ".join([
        "default-src 'none'", f"script-src {' '.join(map(hashed, scripts))}",
        f"style-src {hashed(style)}", "img-src data:",
        f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}", "base-uri 'none'",
        "form-action 'none'",
    ])  # fmt: skip


def _fill_template(template: str, values: dict[str, str]) -> str:
    """Return the template with `{{name}}` replaced, once: values may hold braces themselves."""
    first, *rest = template.split("{{")
    out = [first]
    for part in rest:
        name, text = part.split("}}", 1)
        out += [values[name], text]
    return "".join(out)


def _origin(messages: RunMessages) -> int:
    """Return the time that the columns count from: the earliest of all messages and groups."""
    times = messages.time_ns[messages.time_ns != NONE]
    starts = np.empty(0, np.int64) if messages.groups is None else messages.groups.start_ns
    return min((int(found.min()) for found in (times, starts) if len(found)), default=0)


def _facts(run: StoredRun, messages: RunMessages, live: bool) -> dict[str, Any]:
    """Return everything the page needs besides the columns, as plain JSON values.

    Times are relative to `origin_ns`, which is text: numbers of JavaScript are exact only up to
    2**53, and nanoseconds since 1970 are beyond that.

    Args:
        run: The run the messages are from.
        messages: What the page shows.
        live: Whether the page asks its server for new commits.
    """
    origin = _origin(messages)
    low, high = _fit(messages, origin)
    first = first_view(messages)
    return {
        "title": run.path,
        "headline": headline(messages, run.counts),
        "origin_ns": str(origin),
        "fit": [low, high],
        "opening": {"key": first.key, "view": [first.start_ns - origin, first.end_ns - origin]},
        "keys": messages.keys,
        "topics": messages.topics,
        "values": messages.value_names if any(messages.value_names) else None,
        "kinds": KINDS,
        "reasons": messages.reasons,
        "counts": run.counts,
        "since": run.commits[0].batch if run.earlier else None,
        "live": {"commits": len(run.all_commits)} if live else None,
        "shown": len(messages),
        "total": messages.total,
        "roles": {**messages.roles.__dict__},
        "groups": _group_facts(messages.groups),
        "health": health_of(run, messages),
    }


def first_view(messages: RunMessages) -> Opening:
    """Return what the page of these messages opens with."""
    origin = _origin(messages)
    low, high = _fit(messages, origin)
    return opening(messages, (low + origin, high + origin))


def _fit(messages: RunMessages, origin: int) -> list[int]:
    """Return the span that the page calls the whole run, in ns relative to `origin`.

    It covers `FIT_SHARE` of the messages and a margin of 2 % (at least 1 µs) on both sides; one
    second if there is nothing with a time. Without messages (aggregated windows) the groups decide.
    """
    times = messages.time_ns[messages.time_ns != NONE]
    if messages.groups is not None and len(times) == 0:
        times = np.concatenate([messages.groups.start_ns, messages.groups.end_ns])
    if len(times) == 0:
        return [0, 10**9]
    low, high = (int(q) - origin for q in np.quantile(times, FIT_SHARE, method="nearest"))
    margin = max((high - low) // 50, 1000)
    return [low - margin, high + margin]


def _packed_columns(messages: RunMessages, origin: int) -> dict[str, Any]:
    """Return the columns of messages and groups, packed, by the names that data.js reads.

    Columns that grow along the sort order (stream, time, micro) are stored as differences to the
    row before: their high bytes are then mostly zero, and zlib removes them. Unknown times become 0
    beside a flag (`known`), because `NONE` would spoil the differences. `value` holds the bits of
    float32. `slot` uses -2**31 for none, which is what the page compares with.
    """
    time = np.where(messages.time_ns == NONE, 0, messages.time_ns - origin)
    known = messages.arrival_ns != NONE
    delay = np.where(known, messages.arrival_ns - origin - time, 0)
    stream = messages.key * max(len(messages.topics), 1) + messages.topic
    out = {
        "stream": _planes(np.diff(stream, prepend=0)),
        "kind": _planes(messages.kind.astype(np.int64)),
        "time": _planes(np.diff(time, prepend=0)),
        "delay": _planes(delay),
        "known": _planes(known.astype(np.int64)),
        "lateness": _planes(messages.lateness_ns),
        "micro": _planes(np.diff(messages.micro, prepend=0)),
        "group": _planes(messages.group),
        "reason": _planes(messages.reason),
        "slot": _planes(np.where(messages.slot == NONE, -(2**31), messages.slot)),
    }
    if any(messages.value_names):
        out["value"] = _planes(messages.value.view(np.uint32).astype(np.int64))
    groups = messages.groups
    if groups is not None:
        out |= {
            "groupKey": _planes(groups.key),
            "groupStart": _planes(groups.start_ns - origin),
            "groupEnd": _planes(groups.end_ns - origin),
        }
        for name in ("spread_ns", "id", "rows", "pane", "revision"):
            if name in groups.columns:
                out[f"group_{name}"] = _planes(np.asarray(groups.columns[name]))
        if "decided_at_ns" in groups.columns:
            out["group_decided"] = _planes(groups.columns["decided_at_ns"] - origin)
        if groups.members is not None:
            out["members"] = _planes(groups.members.astype(np.int64).ravel())
    return out


def _group_facts(groups: Groups | None) -> dict[str, Any] | None:
    """Return the text columns of groups, which do not pack as integers; None without groups."""
    if groups is None:
        return None
    out: dict[str, Any] = {"what": groups.what, "topics": groups.topics}
    for name in ("reason", "trigger", "report"):
        if name in groups.columns:
            out[name] = groups.columns[name]
    return out


def _planes(values: Int64s | NDArray[Any]) -> dict[str, Any]:
    """Return int64 values as byte planes; a plane of equal bytes costs next to nothing.

    Returns:
        `n`, the number of values, and `z`, base64 of zlib over all lowest bytes, then all second
        bytes, and so on up to the eighth.
    """
    raw = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    packed = zlib.compress(np.ascontiguousarray(raw.T).tobytes(), 6)
    return {"n": len(values), "z": base64.b64encode(packed).decode()}


def _embedded(value: Any) -> str:
    """Return JSON that can stand inside a script element, whatever text it holds.

    `<` is escaped, so neither `</script>` nor `<!--` can occur. U+2028 and U+2029 are valid in JSON
    but end a line in older JavaScript.
    """
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    """Return a script, style or template of the page, as packaged with this module."""
    return (files("tidegate.report") / "assets" / name).read_text(encoding="utf-8")


def _vendored(name: str) -> str:
    """Return a file of uPlot, the chart library, as packaged with this module."""
    return (files("tidegate.report") / "vendor" / "uplot" / name).read_text(encoding="utf-8")
