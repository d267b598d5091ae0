"""Scenarios: each holds the rule it is there to show, and its picture shows what came out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scenarios import Scenario, all_scenarios, write_scenarios
from tidegate.errors import ConfigError
from tidegate.pipeline.stages import STAGES, StageContext
from tidegate.report.picture import Picture

BY_SLUG = {scenario.slug: scenario for scenario in all_scenarios()}


@cache
def drawn(slug: str) -> Picture:
    return BY_SLUG[slug].draw()


def facts(slug: str) -> dict[str, Any]:
    return drawn(slug).facts


@pytest.mark.parametrize("scenario", BY_SLUG.values(), ids=list(BY_SLUG))
def test_every_picture_is_svg_with_a_rule_and_marks(scenario: Scenario) -> None:
    picture = drawn(scenario.slug)
    root = ET.fromstring(picture.svg())
    assert root.tag.endswith("svg")
    assert len(scenario.rule) > 20
    assert scenario.rule.endswith(".")
    marks = [e for e in root.iter() if e.tag.rsplit("}")[-1] in ("circle", "path")]
    assert len(marks) >= 3
    assert all(0 <= float(e.get("x", "0")) <= 820 for e in root.iter() if e.tag.endswith("text"))


def test_every_scenario_of_the_batching_document_is_there() -> None:
    """Its sixteen pictures, by the names they have here."""
    wanted = ("happy-path", "missing-pulse", "split-messages", "overflow", "several-gated-streams",
              "phase-offset", "gap-recovery", "timeout", "non-gated-ride-along", "sub-hz-stream",
              "ahead-of-the-window", "broken-stream", "one-wrong-time",
              "join-absent-evicted-back", "batch-length-changes", "jitter")  # fmt: skip
    assert {f"batching-{name}" for name in wanted} <= set(BY_SLUG)


@pytest.mark.parametrize(
    ("name", "reasons", "sizes"),
    [
        ("happy-path", ["gate"] * 4, [14] * 4),
        ("missing-pulse", ["gate"] * 4, [14, 14, 13, 14]),
        ("split-messages", ["gate"] * 2, [14, 14]),
        ("overflow", ["gate"] * 4, [19] * 4),
        ("several-gated-streams", ["gate"] * 4, [19] * 4),
        ("phase-offset", ["gate"] * 5, [14] * 5),
        ("gap-recovery", ["gate", "gate", "gap", "gate", "gate"], [14] * 5),
        ("timeout", ["gate", "gate", "timeout"], [14, 14, 7]),
        ("any-rate", ["gate"] * 8, [2, 3] * 4),
        ("a-clock-that-runs-ahead-corrected", ["gate"] * 7, [19] * 7),
        ("a-quiet-end", ["gate", "gate", "gate", "idle"], [14, 14, 14, 7]),
        ("non-gated-ride-along", ["gate"] * 4, [17] * 4),
        ("ahead-of-the-window", ["gate"] * 4, [14, 14, 15, 15]),
        ("broken-stream", ["gate"] * 4, [28] * 4),
        ("one-wrong-time", ["gate"] * 5, [14, 14, 15, 14, 14]),
        ("batch-length-changes", ["gate"] * 5, [14, 14, 14, 28, 28]),
        ("far-ahead-without-a-grid", ["gate"] * 4, [14, 14, 15, 14]),
    ],
)
def test_batches_close_as_the_rule_says(name: str, reasons: list[str], sizes: list[int]) -> None:
    said = facts(f"batching-{name}")
    assert (said["reasons"], said["sizes"]) == (reasons, sizes)


def test_empty_slots_are_drawn_as_rings() -> None:
    picture = drawn("batching-missing-pulse")
    rings = [d for d in picture.dots if d[3] == "ring" and d[1] > picture.start_ns]
    assert [round(time / 1e9, 2) for _, time, *_ in rings] == [6.43]  # pulse 6 of 14 after 6 s
    assert facts("batching-timeout")["missing"] == [0, 0, 8]


def test_an_absent_stream_costs_five_batches_and_no_more() -> None:
    reasons = facts("batching-join-absent-evicted-back")["reasons"]
    assert reasons.count("timeout") == 5
    assert set(reasons) == {"gate", "timeout"}


@pytest.mark.parametrize(
    ("name", "order", "late"),
    [
        ("disorder-within-the-tolerance", "a c b e d g f h", {}),
        ("too-late", "a b c f e g", {"d": 15}),
        ("exactly-at-the-watermark", "a d b", {"c": 0}),
        ("no-tolerance", "a b d f", {"c": 10, "e": 5}),
        ("a-clock-that-jumps-ahead", "a d b f e", {}),
        ("a-stamp-that-cannot-be-read", "a e c f", {}),
        ("two-partitions-one-slow", "a b e g c h d f", {}),
        ("a-partition-falls-silent", "a b c d e f", {}),
    ],
)
def test_event_time_puts_rows_in_order(name: str, order: str, late: dict[str, int]) -> None:
    said = facts(f"event-time-{name}")
    assert (said["in order"], said["late"]) == (order, late)


def test_lower_bounds_decide_the_same_sets_earlier() -> None:
    waiting = facts("synchronisation-decided-as-soon-as-it-is-proven")
    bound = facts("synchronisation-lower-bounds-decide-earlier")
    assert bound["sets"][: len(waiting["sets"])] == waiting["sets"]
    pairs = zip(bound["decided"], waiting["decided"], strict=False)
    assert all(early < late for early, late in pairs)


def test_sets_and_those_left_over() -> None:
    assert facts("synchronisation-the-smallest-spread")["spreads"] == [7, 12, 7, 12]
    narrow = facts("synchronisation-a-largest-interval")
    assert max(narrow["spreads"]) <= 10
    assert len(narrow["unmatched"]) == 4
    assert ("camera", 30.0, "overflow") in facts("synchronisation-the-queue-is-full")["unmatched"]
    silent = facts("synchronisation-an-optional-topic-falls-silent")["sets"]
    assert [s[2] is None for s in silent] == [False] * 2 + [True] * 6 + [False] * 3
    assert facts("synchronisation-a-clock-jumps-back")["unmatched"][0][2] == "time_jump"
    assert set(facts("synchronisation-equal-stamps")["spreads"]) == {0}
    latest = facts("synchronisation-the-newest-of-every-topic")["sets"]
    assert latest == [(10, 5), (30, 5), (50, 45), (70, 45), (90, 85)]


def test_windows_hold_what_the_rule_says() -> None:
    tumbling = facts("windows-tumbling")["windows"]
    assert [len(ids) for *_, ids in tumbling] == [5, 5, 5, 2, 1]
    sliding = facts("windows-sliding")["windows"]
    inside = [i for *_, ids in sliding for i in ids]
    assert all(inside.count(i) == 2 for i in set(inside))
    assert [ids for *_, ids in facts("windows-a-late-row-bridges-two-sessions")["windows"]] == [
        [0, 1, 4, 2, 3],
        [5, 6],
    ]
    assert facts("windows-late-rows-beside")["late"] == [5]
    revised = facts("windows-late-rows-make-a-revision")["windows"]
    assert [(w[3], 5 in w[4]) for w in revised if w[0] == 0] == [(0, False), (1, True)]
    lengths = [end - start for start, end, *_ in facts("windows-adaptive-length")["windows"]]
    assert min(lengths) < max(lengths) / 3


@pytest.mark.parametrize("slug", [s for s in BY_SLUG if s.startswith("compaction")])
def test_compaction_keeps_what_a_chain_composes_to(slug: str) -> None:
    said = facts(slug)
    assert said["same"]
    assert said["after"] < said["before"]


def test_the_vector_is_that_of_the_deltas_in_order_of_time() -> None:
    assert facts("compaction-out-of-order")["vector"] == [9.5, 15.5]
    assert facts("compaction-a-dense-write-replaces-what-was-before")["vector"] == [6.0, 10.0]


def test_one_page_and_one_picture_each(tmp_path: Path) -> None:
    page, *pictures = write_scenarios(tmp_path / "s", "compaction")
    text = page.read_text()
    own = [s for s in BY_SLUG.values() if s.family == "compaction"]
    assert [p.stem for p in pictures] == [s.slug for s in own]
    assert all(s.name in text for s in own)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(ConfigError, match="must be one of event-time"):
        write_scenarios(tmp_path, "nope")


def test_every_yaml_form_beside_a_picture_can_be_built() -> None:
    """Of the pages of families: a block of one stage is a stage of a pipeline."""
    built = 0
    for page in sorted((Path(__file__).parents[2] / "docs" / "explain").glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            found = yaml.safe_load(block)
            if isinstance(found, dict) and len(found) == 1 and next(iter(found)) in STAGES.list():
                ((name, settings),) = found.items()
                context = StageContext(key=("key",), topic="topic", event_time=True)
                assert STAGES.build(name, settings, context), (page, block)
                built += 1
    assert built > 60
