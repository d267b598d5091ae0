"""The sentence on top of the page, and the moment it opens on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from runs import store

from tidegate.batching.stage import Batch
from tidegate.core.operator import Operator
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.profile.roles import Roles
from tidegate.report.headline import headline, opening
from tidegate.report.rows import KINDS, RunMessages, gather_messages
from tidegate.testing.fleet import fleet


def messages_of(
    path: Path, *stages: Operator, **options: float
) -> tuple[RunMessages, dict[str, int]]:
    ordered = EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")
    store(path, [ordered, *stages], fleet(3, 20, seed=5, **options))
    run = open_run(str(path))
    return gather_messages(run, Roles()), run.counts


def test_it_names_what_is_wrong(tmp_path: Path) -> None:
    messages, counts = messages_of(tmp_path, late_share=0.01)
    words = headline(messages, counts)
    assert words.endswith(".")
    assert words[0].isupper()
    assert "jumped a year ahead" in words
    assert f"{counts['late']} rows late by up to" in words


def test_a_quiet_run_is_called_quiet(tmp_path: Path) -> None:
    messages, counts = messages_of(tmp_path)
    quiet = messages.kind == KINDS.index("data")
    for name in ("key", "topic", "kind", "time_ns", "arrival_ns", "lateness_ns", "reason"):
        setattr(messages, name, getattr(messages, name)[quiet])
    messages.arrival_ns = messages.time_ns + 10**6
    words = headline(messages, {"data": counts["data"]})
    assert (
        words
        == f"All {counts['data']:,} rows come out in order: none is late, dropped or unreadable."
    )


def test_a_topic_that_is_behind_another_is_named(tmp_path: Path) -> None:
    messages, counts = messages_of(tmp_path)
    quick = messages.time_ns + 10**6
    slow = messages.topics.index("gps")
    messages.arrival_ns = np.where(messages.topic == slow, quick + 80 * 10**6, quick)
    assert "gps is 80 ms behind" in headline(messages, {"data": counts["data"]})


def test_batches_that_timed_out_are_counted(tmp_path: Path) -> None:
    messages, _ = messages_of(tmp_path, Batch("1 s", keys=("vehicle",), gated=("camera",)))
    assert messages.groups is not None
    reasons = messages.groups.columns["reason"]
    reasons[:] = ["timeout"] * 3 + ["gate"] * (len(reasons) - 3)
    messages.kind[:] = 0
    assert (
        f"3 of {len(reasons)} batches closed by timeout" in headline(messages, {"data": 1}).lower()
    )


def test_the_opening_is_where_exceptions_come_together(tmp_path: Path) -> None:
    messages, _ = messages_of(tmp_path)
    messages.kind[:] = 0
    own = np.flatnonzero((messages.key == 2) & (messages.topic == 0))
    burst = own[100:106]
    messages.kind[burst] = KINDS.index("late")
    messages.kind[own[10]] = KINDS.index("late")
    low, high = int(messages.time_ns.min()), int(messages.time_ns.max())
    found = opening(messages, (low, high))
    assert found.key == 2
    inside = messages.time_ns[burst]
    assert ((inside >= found.start_ns) & (inside <= found.end_ns)).all()
    assert found.end_ns - found.start_ns < (high - low) / 5


def test_without_an_exception_it_opens_in_the_middle(tmp_path: Path) -> None:
    messages, _ = messages_of(tmp_path)
    messages.kind[:] = 0
    low, high = int(messages.time_ns.min()), int(messages.time_ns.max())
    found = opening(messages, (low, high))
    assert abs((found.start_ns + found.end_ns) // 2 - (low + high) // 2) <= 1
