"""Results at the end of a notebook cell: counts, reasons and a small timeline, as HTML.

In Jupyter and IPython `import tidegate` is enough: an outcome, a set, a batch, a window, a
compaction, a profile or frames at the end of a cell are shown (`tidegate.report.DISPLAYED` lists
the classes). A list has a display of its own, so it is shown by `show`:

    from tidegate.report.notebook import show
    show(flow.process(rows))

The colours are those of the page (`tidegate.report.picture.PALETTE`). Frames show their plan and
their tables, never rows: showing them runs no job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.align.in_process import Aligned
from tidegate.batching.message import MessageBatch
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Dropped, Int64s, Late, Side, StreamError, Watermark
from tidegate.core.text import plural, span
from tidegate.core.time import MIN_NS, format_duration, format_time
from tidegate.deltas.compactor import CompactionResult
from tidegate.errors import ConfigError
from tidegate.output.audit import AuditReport
from tidegate.output.reader import StoredRun, open_run
from tidegate.output.summary import Summary
from tidegate.profile.inspect import Profile
from tidegate.profile.roles import TOPIC_NAMES, Roles
from tidegate.profile.starter import Proof
from tidegate.report.columns import NONE
from tidegate.report.headline import headline
from tidegate.report.look import LookedAt
from tidegate.report.picture import PALETTE, Picture
from tidegate.report.rows import KINDS, gather_messages
from tidegate.sync.results import Diagnosis, SyncResult, SyncSet
from tidegate.windows.results import WindowOutput

__all__ = ["Shown", "plan_html", "show"]

MESSAGES = 2_000
"""Messages read for the picture of a stored run; `tidegate view` shows all of them."""

REASONS = 5
"""Reasons listed, the most frequent first: some hold a value and are as many as there are rows."""

MARKS = 500
"""Marks in a picture. More make a cell slow and cannot be told apart at this size."""

LANES = 12
"""Lanes in a picture; further topics share the last one."""

_SPANS = (
    ["window_start_ns", "window_end_ns", "trigger"],
    ["batch_start_ns", "batch_end_ns", "batch_reason"],
)
"""The columns by which a row names its window or batch: start, end, label."""

_SHAPE = {"data": "dot", "late": "diamond", "dropped": "ring"}
_MEANING = {
    ("data", "dot"): "data", ("late", "diamond"): "late", ("dropped", "ring"): "dropped",
    ("mark", "link"): "set", ("third", "span"): "window or batch", ("mark", "line"): "watermark",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """HTML that a notebook displays; its `repr` is the counts as text.

    Args:
        counts: Number of items by name ("sets", "late", ...), in the order in which they came up.
        html: The fragment to display: one `div` of class `tidegate`, all text escaped.
    """

    counts: Mapping[str, int]
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return ", ".join(f"{number:,} {name}" for name, number in self.counts.items()) or "nothing"


def show(value: Any, *, topics: Sequence[str] = ()) -> Shown:
    """Show results of Tidegate as counts and a small timeline.

    Args:
        value: An outcome, set, batch, window or compaction result; a list of them; what `inspect`
            returned; or the path of a run's output. Anything else is a ConfigError.
        topics: Names for the members of sets that do not know them (`ApproximateTime.push` returns
            such sets); "topic 1", "topic 2" and so on if unset.

    >>> import tidegate as tg
    >>> sync = tg.ApproximateTime(["camera", "lidar"], queue_size=10)
    >>> sets = [s for t in range(9) for topic in ("camera", "lidar") for s in sync.push(topic, t)]
    >>> show(sets, topics=["camera", "lidar"])
    9 sets
    """
    if isinstance(value, str | Path):
        return _show_run(open_run(str(value)))
    if isinstance(value, StoredRun):
        return _show_run(value)
    if isinstance(value, Profile):
        return _show_profile(value)
    if isinstance(value, LookedAt):
        return _show_look(value)
    if isinstance(value, Proof):
        return _show_proof(value)
    if isinstance(value, Summary):
        return _show_summary(value)
    if isinstance(value, AuditReport):
        return _show_lines({"batches": value.batches, "files": value.files}, value.lines())
    if isinstance(value, Diagnosis):
        return _show_lines({}, [str(value)])
    # by its name: the module imports Spark's frames, which import this one
    if type(value).__name__ == "DatasetSummary":
        return _show_dataset(value)
    if isinstance(value, Aligned):
        return _show_aligned(value)
    drawing = _Drawing(topics=tuple(topics))
    drawing.add(value)
    return drawing.shown()


def _show_run(run: StoredRun) -> Shown:
    """Show a stored run: the rows of every kind, and a sample of its messages.

    Counts are exact because the commits record them; only the picture is drawn from a sample of at
    most `MESSAGES`. Rows without any time and error rows are counted but not drawn.
    """
    messages = gather_messages(run, Roles(), MESSAGES)
    drawing = _Drawing(sentence=headline(messages, run.counts))
    for kind in run.kinds:
        drawing.count(kind, run.rows(kind))
    columns = zip(messages.topic.tolist(), messages.time_ns.tolist(), messages.kind.tolist(),
                  strict=True)  # fmt: skip
    drawing.marks = [(messages.topics[topic] or KINDS[kind], time, KINDS[kind])
                     for topic, time, kind in columns
                     if time != NONE and KINDS[kind] != "error"]  # fmt: skip
    drawing.messages = messages.total
    return drawing.shown()


def _show_proof(proof: Proof) -> Shown:
    """What the pipeline that `init` would write does with a recording, over the profile of it."""
    return _show_tried(proof, f"tried in process: {proof.sentence()}")


def _show_look(looked: LookedAt) -> Shown:
    """The sentence on top of the page, a link to it, the timeline in small, and the profile."""
    link = f'<a href="{escape(looked.page)}">{escape(looked.page)}</a>'
    return _show_tried(looked.proof, looked.headline, f"<p>the page: {link}</p>")


def _show_tried(proof: Proof, sentence: str, more: str = "") -> Shown:
    """A sentence, the outcomes of a trial as counts and timeline, and the profile below."""
    topic = proof.profile.roles.topic
    drawing = _Drawing(sentence=sentence, topic=topic)
    drawing.add(proof.outcomes)
    shown = drawing.shown()
    return Shown(shown.counts, _boxed([shown.html, more, _show_profile(proof.profile).html]))


def _show_summary(summary: Summary) -> Shown:
    """What a run did: where every row is, then where time stands."""
    counts = {
        "rows in": summary.rows_in, "used in results": summary.used, "late": summary.late,
        "errors": summary.errors, "dropped": summary.dropped, "held": summary.held,
    }  # fmt: skip
    facts = {"tables": summary.out, "watermark": format_time(summary.watermark_ns),
             "micro-batches": f"{summary.batches:,}",
             "rows per second": f"{summary.rows_per_second:,.0f}"}  # fmt: skip
    rows = [(kind, f"{rows:,}") for kind, rows in sorted(summary.rows.items())]
    warnings = [f"<p><b>{escape(warning)}</b></p>" for warning in summary.warnings()]
    kept = {name: rows for name, rows in counts.items() if rows or name == "rows in"}
    return Shown(kept, _boxed([_counted(kept), _declared(facts), *warnings,
                               _html_table(("table", "rows"), rows)]))  # fmt: skip


def _show_dataset(made: Any) -> Shown:
    """A training dataset: what was written, what was left out and why."""
    counts = {name.replace("_", " "): value for name, value in made.written.items()
              if isinstance(value, int)}  # fmt: skip
    facts = {"dataset": str(made.path)}
    facts |= {f"{name} rows": f"{rows:,}" for name, rows in made.outcomes.items()}
    said = [f"{kind}: {plural(n, 'row')}, {why}"
            for kind, reasons in (*made.reasons.items(),
                                  ("left out", made.written.get("reasons", {})))
            for why, n in list(reasons.items())[:REASONS]]  # fmt: skip
    lines = [f"<p>{escape(line)}</p>" for line in (*made.warnings, *said)]
    return Shown(counts, _boxed([_counted(counts), _declared(facts), *lines]))


def _show_lines(counts: Mapping[str, int], lines: Sequence[str]) -> Shown:
    """Sentences, one below the other."""
    return Shown(counts, _boxed([f"<p>{escape(line)}</p>" for line in lines]))


def _show_aligned(aligned: Aligned) -> Shown:
    """What became of a recording: counts, and per topic how far values are from their rows."""
    tables = {"rows": aligned.data, "dropped": aligned.dropped, "errors": aligned.errors}
    counts = {name: table.num_rows for name, table in tables.items() if table.num_rows}
    offsets = aligned.offsets.slice(0, LANES).to_pylist()
    rows = [[_cell(name, cell) for name, cell in row.items()] for row in offsets]
    return Shown(
        counts, _boxed([_counted(counts), _html_table(aligned.offsets.column_names, rows)])
    )


def _cell(name: str, value: Any) -> str:
    """Return one cell as text: durations with a unit for columns in ns, a dash for null."""
    if name.endswith("_ns") and isinstance(value, int):
        return format_duration(value)
    return "–" if value is None else str(value)


def _show_profile(profile: Profile) -> Shown:
    """What `inspect` found: the columns' roles, one line per topic, and the suggested tolerance."""
    counts = {"rows": profile.rows, "keys": profile.keys, "topics": len(profile.streams)}
    roles = {"key": ", ".join(profile.roles.key), "topic": profile.roles.topic or "",
             "event time": " + ".join(profile.roles.time_columns), "type": profile.time_type or "",
             "arrival": profile.roles.arrival or ""}  # fmt: skip
    rows = [
        (s.topic or "messages", f"{s.rows:,}", f"{s.rate_hz:.4g} Hz" if s.rate_hz else "–",
         span(s.period_ns), f"{s.gaps:,}")
        for s in profile.streams
    ]  # fmt: skip
    parts = [_counted(counts), _declared(roles),
             _html_table(("topic", "rows", "rate", "period", "gaps"), rows)]  # fmt: skip
    if profile.late_tolerance_ns is not None:
        tolerance = format_duration(profile.late_tolerance_ns)
        parts.append(f"<p>suggested late tolerance: <b>{tolerance}</b></p>")
    return Shown(counts, _boxed(parts))


@dataclass
class _Drawing:
    """Collects what results say about time; `shown` draws it. Times are ns since the epoch.

    Results are added one by one because a list may mix all classes: outcomes of several stages,
    sets of `ApproximateTime`, batches. Nothing is thinned before `picture`, except rows of one
    outcome (at most `MARKS` of each are kept as marks: an outcome may have millions).

    Args:
        topics: Names for the members of sets that do not carry their topics.
        counts: Number of items by name.
        reasons: How often each reason occurs, of errors, dropped and unmatched messages.
        marks: Messages to draw: (lane name, time, kind), where kind is data, late or dropped.
        spans: Windows and batches as (start, end, label); a dict, to keep each once and in order.
        links: Sets to draw: the (lane name, time) of each member that is present.
        watermark_ns: The greatest watermark seen; None before the first.
    """

    topics: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    marks: list[tuple[str, int, str]] = field(default_factory=list)
    spans: dict[tuple[int, int, str], None] = field(default_factory=dict)
    links: list[list[tuple[str, int]]] = field(default_factory=list)
    watermark_ns: int | None = None
    sentence: str = ""
    """Stands on top, if there is one."""
    topic: str | None = None
    """The column of the topic; found by its name if unset."""
    messages: int = 0
    """All messages, drawn or not."""

    def add(self, value: Any) -> None:
        """Add one result of any operator, or an iterable of them."""
        match value:
            case Collection() | Late() | Dropped():
                self._add_rows(value)
            case StreamError():
                self.count("error", len(value))
                self._explain(value.reason)
            case Side():
                self.count(value.name, len(value))
            case Watermark():
                known = value.time_ns[value.time_ns > MIN_NS]
                if len(known):
                    self.watermark_ns = max(int(known.max()), self.watermark_ns or MIN_NS)
            case SyncSet():
                self.count("sets", 1)
                names = self.topics or tuple(f"topic {n + 1}" for n in range(len(value.times_ns)))
                self._set(list(zip(names, value.times_ns, strict=True)))
            case SyncResult():
                self.count("sets", len(value))
                for times, rows in zip(value.times_ns.tolist(), value.rows.tolist(), strict=True):
                    there = [time if row >= 0 else None
                             for time, row in zip(times, rows, strict=True)]  # fmt: skip
                    self._set(list(zip(value.topics, there, strict=True)))
                self.count("unmatched", len(value.unmatched_rows))
                self._mark_unmatched(value)
            case MessageBatch():
                self.count("batches", 1)
                self.count("messages", len(value.messages))
                self.spans[value.start_ns, value.end_ns, value.reason] = None
                self.messages += len(value.messages)
                self.marks += [(m.stream, m.time_ns, "data") for m in value.messages]
            case WindowOutput():
                self.count("windows", 1)
                self.count("rows", value.rows.num_rows)
                self.spans[value.start_ns, value.end_ns, value.trigger] = None
            case CompactionResult():
                self.count("compactions", 1)
                self.count("deltas before", value.deltas_before)
                self.count("deltas after", value.deltas_after)
                self.count("bytes before", value.bytes_before)
                self.count("bytes after", value.bytes_after)
                if value.error is not None:
                    self.reasons[value.error] = self.reasons.get(value.error, 0) + 1
            case Iterable() if not isinstance(value, str | bytes):
                for inner in value:
                    self.add(inner)
            case _:
                raise ConfigError(
                    "value",
                    type(value).__name__,
                    "must be results of Tidegate, or the path of a run",
                )

    def count(self, name: str, number: int) -> None:
        """Add `number` to the count of `name`; zero adds no entry, so that empty kinds are not
        shown.
        """
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    # -- rows -------------------------------------------------------------------------------------

    def _add_rows(self, value: Collection | Late | Dropped) -> None:
        """Add an outcome with rows. Rows of sets have a struct per topic; others are one message
        each.

        The schema tells what the rows are: `spread_ns` marks sets, the columns of `_SPANS` mark
        windows and batches. A window or batch is drawn once, however many of its rows are here.
        """
        names = value.rows.schema.names
        if isinstance(value, Dropped):
            self._explain(value.reason)
        if isinstance(value, Collection) and "spread_ns" in names:
            self.count("sets", len(value))
            members = [f.name for f in value.rows.schema
                       if pa.types.is_struct(f.type)
                       and f.type.get_field_index("time_ns") >= 0]  # fmt: skip
            for row in value.rows.select(members).to_pylist():
                self._set([(name, row[name] and row[name]["time_ns"]) for name in members])
            return
        self.count(value.kind, len(value))
        if isinstance(value, Collection):
            for span in _SPANS:
                if set(span) <= set(names):
                    columns = [column.to_pylist() for column in value.rows.select(span).columns]
                    self.spans |= dict.fromkeys(zip(*columns, strict=True))
        self._mark(value.rows, value.time_ns, value.kind)

    def _mark(self, rows: pa.RecordBatch, times: Int64s, kind: str) -> None:
        """Add marks for rows, on the lane of their topic, or of their kind if there is no topic
        column.

        Rows at `MIN_NS` have no time and are not drawn, but count as messages.
        """
        known = (*([self.topic] if self.topic else []), *TOPIC_NAMES)
        topic = next((name for name in known if name in rows.schema.names), None)
        self.messages += len(times)
        real = np.flatnonzero(times > MIN_NS)
        chosen = real[_spread_out(len(real), MARKS)]
        texts: Sequence[Any] = [kind] * len(chosen)
        if topic is not None:
            texts = rows.column(topic).take(pa.array(chosen)).to_pylist()
        self.marks += [(str(text), int(times[row]), kind)
                       for text, row in zip(texts, chosen.tolist(), strict=True)]  # fmt: skip

    def _mark_unmatched(self, value: SyncResult) -> None:
        """Count the reasons of all unmatched messages of a result and mark a sample of them."""
        self.messages += len(value.unmatched_rows)
        for reason, number in enumerate(np.bincount(value.unmatched_reasons).tolist()):
            if number:
                name = value.reasons[reason]
                self.reasons[name] = self.reasons.get(name, 0) + number
        for place in _spread_out(len(value.unmatched_rows), MARKS):
            topic = value.topics[value.unmatched_topics[place]]
            self.marks.append((topic, int(value.unmatched_times_ns[place]), "dropped"))

    def _set(self, members: list[tuple[str, int | None]]) -> None:
        """Add a set: a link between its members, and a mark for each. Absent members have time
        None.
        """
        there = [(name, int(time)) for name, time in members if time is not None]
        self.links.append(there)
        self.messages += len(there)
        self.marks += [(name, time, "data") for name, time in there]

    def _explain(self, reasons: pa.Array) -> None:
        """Count reasons of rows, one entry per distinct text."""
        for found in reasons.value_counts().to_pylist():
            reason = str(found["values"])
            self.reasons[reason] = self.reasons.get(reason, 0) + int(found["counts"])

    # -- the picture ------------------------------------------------------------------------------

    def picture(self) -> tuple[Picture | None, int]:
        """Draw what was collected.

        Times in the picture are relative to the earliest one: SVG renderers use floats, which
        cannot hold nanoseconds since 1970. The axis names the origin.

        Returns:
            The picture, and how many marks it shows; (None, 0) if there is nothing to draw.
        """
        marks = _thinned(self.marks)
        links = [self.links[n] for n in _spread_out(len(self.links), MARKS // 4)]
        times = [time for _, time, _ in marks] + [t for s in self.spans for t in s[:2]]
        if not times:
            return None, 0
        origin, last = min(times), max(times)
        margin = max((last - origin) // 40, 1)
        names = list(dict.fromkeys(name for name, *_ in sorted(marks))) or ["windows"]
        lanes = names if len(names) <= LANES else [*names[: LANES - 1], "others"]
        lane_of = {name: min(n, len(lanes) - 1) for n, name in enumerate(names)}
        drawn = Picture(lanes, -margin, last - origin + margin, lane_height=26,
                        axis=f"event time from {format_time(origin)}")  # fmt: skip
        spans = list(self.spans)
        for start, end, text in (spans[n] for n in _spread_out(len(spans), MARKS // 4)):
            drawn.span(start - origin, end - origin, text, "third")
        for link in links:
            drawn.link([(lane_of[name], time - origin) for name, time in link], "mark")
        for name, time, kind in marks:
            drawn.dot(lane_of[name], time - origin, kind, _SHAPE[kind])
        if self.watermark_ns is not None and origin <= self.watermark_ns <= last:
            drawn.line(self.watermark_ns - origin, "watermark")
        drawn.explain_used(_MEANING)
        return drawn, len(marks)

    def shown(self) -> Shown:
        """Return the display: counts, frequent reasons, the picture, and what it leaves out."""
        picture, drawn = self.picture()
        parts = [f"<p>{escape(self.sentence)}</p>"] if self.sentence else []
        parts.append(_counted(self.counts))
        if self.reasons:
            most = sorted(self.reasons.items(), key=lambda reason: -reason[1])
            reasons = "; ".join(f"{escape(why)}: {n:,}" for why, n in most[:REASONS])
            more = f"; {len(most) - REASONS} more reasons" if len(most) > REASONS else ""
            parts.append(f"<p><small>{reasons}{more}</small></p>")
        if picture is not None:
            parts.append(picture.svg())
            if drawn < self.messages:
                words = f"{drawn:,} of {self.messages:,} messages are drawn"
                parts.append(f"<p><small>{words}</small></p>")
        elif self.watermark_ns is not None:
            parts.append(f"<p>watermark {format_time(self.watermark_ns)}</p>")
        return Shown(self.counts, _boxed(parts))


def _spread_out(count: int, most: int) -> list[int]:
    """Return at most `most` indices into `count` items, evenly spread, with the first and last."""
    if count <= most:
        return list(range(count))
    return [int(index) for index in np.linspace(0, count - 1, most)]


def _thinned(marks: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Return at most `MARKS` marks; late and dropped ones are kept first, up to half of them.

    Late and dropped messages are rare, and what the reader looks for: sampling all kinds alike
    would lose most of them.
    """
    rare = [mark for mark in marks if mark[2] != "data"]
    rest = [mark for mark in marks if mark[2] == "data"]
    kept = [rare[n] for n in _spread_out(len(rare), MARKS // 2)]
    return [rest[n] for n in _spread_out(len(rest), MARKS - len(kept))] + kept


# -- frames ---------------------------------------------------------------------------------------


def plan_html(
    head: Mapping[str, str], stages: Sequence[Operator], schemas: Mapping[str, pa.Schema]
) -> str:
    """Return the display of frames: what is declared, the stages, the columns of each table.

    Args:
        head: What was declared, by name (key, topic, ...); empty values are left out.
        stages: The stages in order; of each, the settings that differ from their defaults are
            shown.
        schemas: The tables that come out, by kind.

    >>> from tidegate.eventtime import EventtimeWatermark
    >>> html = plan_html({"key": "car"}, [EventtimeWatermark("2 s")], {"data": pa.schema([])})
    >>> "late_tolerance=2000000000" in html, "late=" in html
    (True, False)
    """
    steps = "".join(
        f"<li><code>{escape(stage.name)}</code> {escape(_changed(stage))}</li>" for stage in stages
    )
    tables = [(kind, ", ".join(f"{f.name}: {f.type}" for f in s)) for kind, s in schemas.items()]
    return _boxed([
        _declared(head), f"<ol>{steps}</ol>", _html_table(("table", "columns"), tables),
        "<p><small>a plan: nothing has been computed</small></p>",
    ])  # fmt: skip


def _changed(stage: Operator) -> str:
    """Return the settings that differ from the stage's defaults, as text."""
    fields = getattr(type(stage), "__dataclass_fields__", {})
    defaults = {name: setting.default for name, setting in fields.items()}
    changed = {name: value for name, value in stage.settings().items()
               if value not in (None, [], (), {}) and value != defaults.get(name)}  # fmt: skip
    return ", ".join(f"{name}={value}" for name, value in changed.items())


# -- pieces of HTML -------------------------------------------------------------------------------


def _boxed(parts: Iterable[str]) -> str:
    """Return parts of HTML in the element that notebooks can style (`div.tidegate`)."""
    return f'<div class="tidegate">{"".join(parts)}</div>'


def _counted(counts: Mapping[str, int]) -> str:
    """Return counts as one line of HTML, each kind with a dot in its colour of the page.

    Names are escaped: they may come from data. `light-dark` follows the scheme of the notebook; a
    browser without it shows the dot in the colour of the text.
    """

    def dot(name: str) -> str:
        kind = {"errors": "error", "rows in": "data"}.get(name, name)
        if kind not in ("data", "late", "dropped", "error"):
            return ""
        light, dark = PALETTE[kind]
        return f'<span style="color:{light};color:light-dark({light},{dark})">●</span> '

    numbers = " · ".join(f"{dot(name)}<b>{n:,}</b> {escape(name)}" for name, n in counts.items())
    return f"<p>{numbers or 'nothing came out'}</p>"


def _declared(facts: Mapping[str, str]) -> str:
    """Return names with their values as one line of HTML; empty values are left out."""
    texts = (f"{escape(k)} <code>{escape(v)}</code>" for k, v in facts.items() if v)
    return f"<p>{' · '.join(texts)}</p>"


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with text aligned left; all cells are escaped."""
    left = "style='text-align:left'"
    names = "".join(f"<th {left}>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td {left}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{names}</tr>{lines}</table>"
