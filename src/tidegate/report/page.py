"""One HTML file with everything in it: the columns, the scripts, the styles.

Columns travel as base64 of zlib over byte planes: all lowest bytes first, then the next, because
neighbours in time differ in few bytes and equal bytes in a row cost nothing. A million messages
then take about 10 MB, exact to the nanosecond.
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s
from tidegate.output.reader import StoredRun, open_run
from tidegate.profile.roles import Roles
from tidegate.report.columns import NONE
from tidegate.report.groups import Groups
from tidegate.report.health import health_of
from tidegate.report.rows import KINDS, Messages, gather

__all__ = ["DEFAULT_LIMIT", "page_of", "write_page"]

DEFAULT_LIMIT = 1_000_000
"""Messages in a page: more make a file that browsers open slowly."""

SCRIPTS = (
    "data.js", "text.js", "lanes.js", "groups.js", "timeline.js", "details.js", "health.js",
    "page.js",
)  # fmt: skip

FIT_SHARE = (0.0005, 0.9995)
"""The page opens on the span that holds this share: one wrong clock must not hide all others."""


def write_page(out: str, to: str, roles: Roles, *, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """Make the page of the run under `out`; says how large it is and what it shows."""
    run = open_run(out)
    messages = gather(run, roles, limit)
    text = page_of(run, messages)
    with open(to, "w", encoding="utf-8") as file:
        file.write(text)
    return {
        "page": to,
        "bytes": len(text.encode()),
        "messages": len(messages),
        "of": messages.total,
        "keys": len(messages.keys),
        "topics": messages.topics,
    }


def page_of(run: StoredRun, messages: Messages) -> str:
    """The page as text."""
    origin = int(messages.time_ns[messages.time_ns != NONE].min(initial=2**62))
    if messages.groups is not None and len(messages.groups.start_ns):
        origin = min(origin, int(messages.groups.start_ns.min()))
    if origin == 2**62:
        origin = 0
    facts = {
        "title": run.path,
        "origin_ns": str(origin),
        "fit": _fit(messages, origin),
        "keys": messages.keys,
        "topics": messages.topics,
        "kinds": KINDS,
        "reasons": messages.reasons,
        "counts": run.counts,
        "since": run.commits[0].batch if run.earlier else None,
        "shown": len(messages),
        "total": messages.total,
        "roles": {**messages.roles.__dict__},
        "groups": _group_facts(messages.groups),
        "health": health_of(run, messages),
    }
    columns = _columns(messages, origin)
    text = _asset("page.html")
    fill = {
        "title": html.escape(run.path),
        "style": _vendored("uPlot.min.css") + _asset("page.css"),
        "facts": _embedded(facts),
        "columns": _embedded(columns),
        "licence": html.escape(_vendored("LICENSE")),
        "library": _vendored("uPlot.iife.min.js"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
    }
    parts = text.split("{{")
    out = [parts[0]]
    for part in parts[1:]:
        name, rest = part.split("}}", 1)
        out += [fill[name], rest]
    return "".join(out)


def _fit(messages: Messages, origin: int) -> list[int]:
    times = messages.time_ns[messages.time_ns != NONE]
    if messages.groups is not None and len(times) == 0:
        times = np.concatenate([messages.groups.start_ns, messages.groups.end_ns])
    if len(times) == 0:
        return [0, 10**9]
    low, high = (int(q) - origin for q in np.quantile(times, FIT_SHARE, method="nearest"))
    margin = max((high - low) // 50, 1000)
    return [low - margin, high + margin]


def _columns(messages: Messages, origin: int) -> dict[str, Any]:
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
    if groups is None:
        return None
    out: dict[str, Any] = {"what": groups.what, "topics": groups.topics}
    for name in ("reason", "trigger", "report"):
        if name in groups.columns:
            out[name] = groups.columns[name]
    return out


def _planes(values: Int64s | NDArray[Any]) -> dict[str, Any]:
    """int64 as byte planes; planes that are all zero or all one do not cost a thing."""
    raw = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    packed = zlib.compress(np.ascontiguousarray(raw.T).tobytes(), 6)
    return {"n": len(values), "z": base64.b64encode(packed).decode()}


def _embedded(value: Any) -> str:
    """JSON that may stand inside a script element whatever text it holds."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return (files("tidegate.report") / "assets" / name).read_text(encoding="utf-8")


def _vendored(name: str) -> str:
    return (files("tidegate.report") / "vendor" / "uplot" / name).read_text(encoding="utf-8")
