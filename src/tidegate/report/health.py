"""How the streams and the run fared: delays, rates, lags and state, as numbers for the page.

Everything is small enough to be embedded as JSON: histograms with a fixed number of bins, curves
with `BUCKETS` points, one record per micro-batch. Times are in ns unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegate.core.columns import MICRO_BATCH
from tidegate.core.outcomes import Int64s
from tidegate.output.reader import StoredRun
from tidegate.profile.statistics import Spread, histogram, topic_statistics
from tidegate.report.columns import NONE, flat, integers, nanoseconds, text_of
from tidegate.report.rows import KINDS, RunMessages

__all__ = ["commit_levels", "health_of", "standing_levels"]

BUCKETS = 240
"""Points of a rate curve. Fewer hide short gaps; a chart has no pixels for more."""


def health_of(run: StoredRun, messages: RunMessages) -> dict[str, Any]:
    """Return everything the health tab draws, as plain values; None for what the run cannot say.

    Error rows and rows without time are left out of the statistics per topic and of the rates.

    Args:
        run: The run, for its commits and side tables.
        messages: Its messages; statistics of a sample are those of the sample.

    Returns:
        `streams`: statistics per topic. `delay`: arrival less event time. `lateness`: of late rows.
        `rate`: messages per second and key over time. `commits`: levels per micro-batch.
            `decision`: how long after its end a set, batch or window was decided. `waiting`: how
            long rows in order were held. `compaction`: chains before and after. `chains`: the
            history of single chains. `diagnosis`: what the synchroniser says of each key.
    """
    counted = (messages.kind != KINDS.index("error")) & (messages.time_ns != NONE)
    stream = messages.key * max(len(messages.topics), 1) + messages.topic
    looks = topic_statistics(
        stream[counted], messages.topic[counted], messages.time_ns[counted], messages.topics
    )
    return {
        "streams": [look.to_json() for look in looks if look.rows],
        "delay": _delay(messages),
        "lateness": _lateness(messages),
        "rate": _rates(messages, counted),
        "commits": commit_levels(run),
        "decision": _decision(messages),
        "waiting": _holding(messages),
        "compaction": _compaction(run),
        "chains": _chain_histories(run),
        "diagnosis": _diagnosis(run),
    }


def _of_kind(messages: RunMessages, kind: str) -> Any:
    """Return a mask of the messages of one kind.

    Args:
        messages: All messages.
        kind: A name of `KINDS`.
    """
    return messages.kind == KINDS.index(kind)


def _delay(messages: RunMessages) -> dict[str, Any] | None:
    """Return histograms of arrival less event time, of all kinds on the same scale.

    One scale, from the delays of all kinds together, so that the page can draw them above each
    other. None if the run has no arrivals.
    """
    known = (messages.arrival_ns != NONE) & (messages.time_ns != NONE)
    known &= ~_of_kind(messages, "error")
    if not known.any():
        return None
    delay = messages.arrival_ns - messages.time_ns
    edges, _ = histogram(delay[known])
    out: dict[str, Any] = {"edges_ns": edges, "quantiles": Spread.of(delay[known]).__dict__}
    for kind in ("data", "late", "dropped"):
        own = delay[known & _of_kind(messages, kind)]
        if len(own):
            out[kind] = np.histogram(own, edges)[0].tolist()
    return out


def _lateness(messages: RunMessages) -> dict[str, Any] | None:
    """Return a histogram of how late the late rows were; None without late rows."""
    late = messages.lateness_ns[_of_kind(messages, "late")]
    if len(late) == 0:
        return None
    edges, counts = histogram(late)
    return {"edges_ns": edges, "late": counts, "quantiles": Spread.of(late).__dict__}


def _rates(messages: RunMessages, counted: Any) -> dict[str, Any] | None:
    """Return messages per second and key over event time, one curve per topic.

    Rates are per key, so that a fleet and a single vehicle have the same scale. The curve covers
    the middle 99.9 % of the messages: one wrong clock would put all others into one bucket. None if
    that has no length.

    Args:
        messages: All messages.
        counted: Mask of those that count.
    """
    times = messages.time_ns[counted]
    if len(times) == 0:
        return None
    low, high = (int(q) for q in np.quantile(times, (0.0005, 0.9995), method="nearest"))
    if high <= low:
        return None
    edges = np.linspace(low, high, BUCKETS + 1)
    seconds = (high - low) / BUCKETS / 1e9
    streams = {}
    for number, name in enumerate(messages.topics):
        own = counted & (messages.topic == number)
        if own.any():
            keys = len(np.unique(messages.key[own]))
            counts = np.histogram(messages.time_ns[own], edges)[0]
            streams[name] = [round(float(c), 4) for c in counts / seconds / keys]
    middle = (edges[:-1] + edges[1:]) / 2
    return {"at_s": [round(t, 6) for t in (middle / 1e9).tolist()], "per_key_hz": streams}


def commit_levels(run: StoredRun) -> list[dict[str, Any]]:
    """Return the watermark, its lag, the rows held and the state after every micro-batch.

    Returns:
        One record per commit, oldest first. `watermark_ns` and `slowest_ns` are the greatest and
        the smallest watermark of the shards, as text (JavaScript would round them); `lag_ns` is the
        newest event time less the slowest watermark; all three are None before they are known.
        `held` and `state_bytes` are sums over the shards.
    """
    out = []
    standing: dict[int, dict[str, int]] = {}
    for commit in run.all_commits:
        # a shard without rows in this batch does not report: its last report still holds
        standing |= commit.shards
        out.append(
            {
                "batch": commit.batch,
                **standing_levels(standing),
                "rows": commit.rows,
                "chains": _chain_levels(list(standing.values())),
            }
        )
    return out


def standing_levels(standing: Mapping[int, dict[str, int]]) -> dict[str, Any]:
    """Return the watermarks, the lag, the rows held and the state of all shards, as each last
    reported them; see `commit_levels`."""
    marks = [m for m in map(_watermark, standing.values()) if m is not None]
    newest = [n for n in (_stage_metric(m, "max_timestamp_seen") for m in standing.values()) if n]
    return {
        "watermark_ns": None if not marks else str(max(marks)),
        "slowest_ns": None if not marks else str(min(marks)),
        "lag_ns": max(newest) - min(marks) if marks and newest else None,
        "held": sum(_stage_metric(m, "rows_held") or 0 for m in standing.values()),
        "state_bytes": sum(m.get("state_bytes", 0) for m in standing.values()),
    }


def _watermark(metrics: dict[str, int]) -> int | None:
    """Return the watermark of a shard; None before its first row (the metric is then `NONE`)."""
    found = _stage_metric(metrics, "current_watermark")
    return found if found is not None and found > NONE + 1 else None


def _stage_metric(metrics: dict[str, int], name: str) -> int | None:
    """Return the greatest value of a metric over all stages that have it; None if none has.

    Metrics are named `stage.metric`; a stage without a value reports `NONE`.
    """
    found = [value for key, value in metrics.items() if key.rsplit(".", 1)[-1] == name]
    real = [value for value in found if value != NONE]
    return max(real) if real else None


def _decision(messages: RunMessages) -> dict[str, Any] | None:
    """Return how long after its end a group was decided; for sets also how wide they are.

    A set names the message that decided it. A batch or a window does not: what is known is the
    micro-batch that delivered it, and the newest arrival in that micro-batch.
    """
    groups = messages.groups
    if groups is None or len(groups.end_ns) == 0:
        return None
    if groups.what != "set":
        return _delivery(messages)
    delay: Int64s = groups.columns["decided_at_ns"] - groups.end_ns
    delay = delay[(groups.columns["decided_at_ns"] != NONE) & (delay >= 0)]
    edges, counts = histogram(delay)
    spread = groups.columns["spread_ns"]
    spread_edges, spread_counts = histogram(spread)
    return {
        "what": "set",
        "edges_ns": edges, "counts": counts, "quantiles": Spread.of(delay).__dict__,
        "spread_edges_ns": spread_edges, "spread_counts": spread_counts,
        "spread_quantiles": Spread.of(spread).__dict__,
    }  # fmt: skip


def _delivery(messages: RunMessages) -> dict[str, Any] | None:
    """Return the time from the end of a batch or window to the newest arrival of its micro-batch.

    Groups that end after that arrival were delivered by the end of the run, and are left out."""
    own = _of_kind(messages, "data") & (messages.arrival_ns != NONE)
    own &= (messages.group >= 0) & (messages.micro >= 0)
    if messages.groups is None or not own.any():
        return None
    which, first = np.unique(messages.group[own], return_index=True)
    newest = _newest_arrival(messages, own)[messages.micro[own][first]]
    delay = newest - messages.groups.end_ns[which]
    delay = delay[delay >= 0]
    if len(delay) == 0:
        return None
    edges, counts = histogram(delay)
    found = {"edges_ns": edges, "counts": counts, "quantiles": Spread.of(delay).__dict__}
    return {"what": messages.groups.what, **found}


def _newest_arrival(messages: RunMessages, own: Any) -> Int64s:
    """Return the newest arrival of every micro-batch, by its number; `NONE` where there is none."""
    newest = np.full(int(messages.micro[own].max()) + 1, NONE, np.int64)
    np.maximum.at(newest, messages.micro[own], messages.arrival_ns[own])
    return newest


def _holding(messages: RunMessages) -> dict[str, Any] | None:
    """Return how long rows in order were held: from their arrival to the newest arrival of the
    micro-batch that delivered them."""
    own = _of_kind(messages, "data") & (messages.arrival_ns != NONE) & (messages.micro >= 0)
    if not own.any():
        return None
    held = _newest_arrival(messages, own)[messages.micro[own]] - messages.arrival_ns[own]
    return {"quantiles": Spread.of(held).__dict__}


# -- compaction -----------------------------------------------------------------------------------

_STAGE = "compact."
"""Prefix of the metrics of a compact stage."""


def _chain_levels(metrics: list[dict[str, int]]) -> dict[str, float] | None:
    """Return chains, their deltas and mean length over all shards; None without a compact stage."""
    own = [shard for shard in metrics if f"{_STAGE}chains_held" in shard]
    if not own:
        return None
    names = ("chains_held", "rows_held", "compactions", "bytes_saved")
    chains, deltas, done, saved = (sum(m.get(_STAGE + n, 0) for m in own) for n in names)
    return {
        "chains": chains, "deltas": deltas, "length": deltas / chains if chains else 0.0,
        "compactions": done, "bytes_saved": saved,
    }  # fmt: skip


def _compaction(run: StoredRun) -> dict[str, Any] | None:
    """Return the length and bytes of chains before and after compaction; None without any."""
    if "compactions" not in run.kinds:
        return None
    names = ("deltas_before", "deltas_after", "bytes_before", "bytes_after")
    table = run.table("compactions", names)
    before, after, bytes_before, bytes_after = (integers(table, name, 0) for name in names)
    micro = integers(table, MICRO_BATCH)
    batches = np.unique(micro)
    return {
        "count": len(before),
        "before": Spread.of(before).__dict__,
        "after": Spread.of(after).__dict__,
        "bytes_before": int(bytes_before.sum()),
        "bytes_after": int(bytes_after.sum()),
        "by_batch": {
            int(batch): {
                "count": int((micro == batch).sum()),
                "before": float(before[micro == batch].mean()),
                "after": float(after[micro == batch].mean()),
            }
            for batch in batches
        },
    }


MOST_CHAINS = 20
"""Chains whose history the page shows, those with most compactions. More buttons are not read."""

MOST_STEPS = BUCKETS
"""Newest compactions of a chain that are drawn. A chart has no pixels for more."""


def _chain_histories(run: StoredRun) -> dict[str, Any] | None:
    """Return when chains were compacted, how long they were before and after, and what that saved;
    None without any compaction."""
    if "compactions" not in run.kinds:
        return None
    ours = ("vector_id", "time_ns", "strategy", "deltas_before", "deltas_after", "bytes_before",
            "bytes_after")  # fmt: skip
    names = run.schema("compactions").names
    keys = [name for name in names if name not in (*ours, MICRO_BATCH)]
    table = run.table("compactions", names)
    chain = flat(text_of(table, (*keys, "vector_id"))).dictionary_encode()
    number = np.asarray(chain.indices)
    time_ns = nanoseconds(table["time_ns"])
    order = np.lexsort((time_ns, number))
    ends = np.cumsum(np.bincount(number, minlength=len(chain.dictionary)))
    begins = ends - np.bincount(number, minlength=len(chain.dictionary))
    first = int(time_ns.min()) if len(time_ns) else 0
    columns = {name: integers(table, name, 0) for name in ours[3:]}
    strategies = text_of(table, ("strategy",))
    rows = []
    for at in np.argsort(begins - ends, kind="stable")[:MOST_CHAINS].tolist():
        own = order[begins[at] : ends[at]]
        before, after, big, small = (column[own] for column in columns.values())
        drawn = slice(max(0, len(own) - MOST_STEPS), None)
        rows.append(
            {
                "chain": chain.dictionary[at].as_py(),
                "compactions": len(own),
                "folded": int((before - after).sum()),
                "longest": int(before.max()),
                "bytes_saved": int((big - small).sum()),
                "strategy": strategies[int(own[-1])].as_py(),
                "at_s": [round(t / 1e9, 6) for t in (time_ns[own][drawn] - first).tolist()],
                "before": before[drawn].tolist(),
                "after": after[drawn].tolist(),
            }
        )
    return {"count": len(ends), "rows": rows}


# -- diagnosis ------------------------------------------------------------------------------------

MOST_DIAGNOSES = 50
"""Keys that the page lists with their diagnosis. A reader looks at the first few; the table of the
run has all."""


def _diagnosis(run: StoredRun) -> dict[str, Any] | None:
    """Return the newest diagnosis of every key, keys with a problem first; None without the side
    table `diagnosis` (setting `diagnosis` of the synchronize stage)."""
    if "diagnosis" not in run.kinds:
        return None
    table = run.table("diagnosis", run.schema("diagnosis").names)
    ours = ("problem", "topic", "by_ns", "queue_size", "offset_ns", "refused", "text")
    keys = [name for name in table.column_names if name not in (*ours, MICRO_BATCH)]
    newest: dict[str, dict[str, Any]] = {}
    for row in table.to_pylist():  # in the order of commits: the last one of a key holds
        name = ", ".join(str(row[key]) for key in keys if not key.startswith("_"))
        newest[name] = {
            "key": name,
            **{field: row[field] for field in ("problem", "topic", "text")},
        }
    found = sorted(newest.values(), key=lambda one: (one["problem"] == "healthy", one["key"]))
    healthy = sum(one["problem"] == "healthy" for one in found)
    return {"keys": len(found), "healthy": healthy, "rows": found[:MOST_DIAGNOSES]}
