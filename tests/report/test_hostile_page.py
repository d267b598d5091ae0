"""A commit or a table somebody else wrote: its values are shown as text, or refused; never run."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from runs import store

from tidegate.batching.stage import Batch
from tidegate.core.operator import Operator
from tidegate.errors import TidegateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import run_totals
from tidegate.profile.roles import Roles
from tidegate.report.page import write_page
from tidegate.report.serve import LiveServer, metrics_text
from tidegate.sync.stage import Synchronize
from tidegate.testing.fleet import fleet
from tidegate.windows import Tumbling, Window

EVIL = (
    'a"} 1\nfake_metric{x="1',
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"'><svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{script}}",
    "--><script>window.hacked=1</script>",
    "constructor",
    "__proto__",
    "\u2028window.hacked=1",
)

SAMPLE = re.compile(r'\w+(\{\w+="(\\.|[^"\\\n])*"(,\w+="(\\.|[^"\\\n])*")*\})? \S+')
"""A line of Prometheus' text format: a name, labels with escaped values, a number."""

HARMLESS = (
    "window.hacked === undefined && document.images.length === 0 && ({}).hacked === undefined"
)


def ordered() -> EventtimeWatermark:
    return EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")


def hostile(commit: dict[str, Any], field: str, evil: str) -> Any:
    """The commit with one of its fields replaced by, or made of, hostile text."""
    changed = json.loads(json.dumps(commit))
    match field:
        case "kind":
            changed["rows"][evil] = 5
        case "count":
            changed["rows"]["data"] = evil
        case "metric":
            changed["shards"]["0"][evil] = 1
        case "metric of a stage":
            changed["shards"]["0"][f"{evil}.rows_held"] = 1
        case "metric value":
            changed["shards"]["0"]["eventtime_watermark.current_watermark"] = evil
        case "state":
            changed["shards"]["0"]["state_bytes"] = evil
        case "shard":
            changed["shards"][evil] = {"rows_in": 1}
        case "files":
            changed["files"].append(f"{evil}/x.parquet")
        case _:
            changed[field] = evil
    return changed


FIELDS = ("query", "batch", "rows", "watermark_ns", "shards", "files", "kind", "count", "metric",
          "metric of a stage", "metric value", "state", "shard", "more")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("run"), [ordered()], fleet(1, 5, seed=3), cuts=2)


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_field_of_a_commit_is_text_or_refused(
    run: Path, tmp_path: Path, browser: Browser, field: str
) -> None:
    file = run / "_commits" / "00000001.json"
    before = file.read_text()
    shown = 0
    try:
        for evil in EVIL:
            file.write_text(json.dumps(hostile(json.loads(before), field, evil)))
            try:
                write_page(str(run), str(tmp_path / "page.html"), Roles())
                samples = metrics_text(run_totals(str(run))).rstrip("\n").split("\n")
                assert all(SAMPLE.fullmatch(s) for s in samples if not s.startswith("# "))
            except TidegateError:
                continue  # refused in one sentence
            browser.problems.clear()
            browser.open(tmp_path / "page.html")
            browser.evaluate("document.getElementById('tab-health').click()")
            assert browser.evaluate(HARMLESS)
            assert browser.problems == []
            if field == "kind" and not evil.startswith("__proto"):
                assert evil.strip() in browser.evaluate(
                    "document.getElementById('counts').textContent"
                )
            shown += 1
    finally:
        file.write_text(before)
    assert shown in (0, len(EVIL)) or field == "files"


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [Synchronize(("camera", "lidar"), queue_size=10, keys=("vehicle",))],
        [Batch("1 s", keys=("vehicle",), gated=("camera",))],
        [Window(Tumbling("1 s"), keys=("vehicle",))],
    ],
    ids=["rows", "sets", "batches", "windows"],
)
@pytest.mark.parametrize("evil", EVIL[:3])
def test_hostile_names_in_the_tables_are_text(
    tmp_path: Path, browser: Browser, stages: list[Operator], evil: str
) -> None:
    recording = fleet(2, 4, seed=1)
    rows = recording.num_rows
    recording = recording.set_column(0, "vehicle", [[evil] * rows])
    stamps = recording["stamp"].to_pylist()
    stamps[5] = evil
    at = recording.column_names.index("stamp")
    recording = recording.set_column(at, "stamp", [stamps])
    recording = recording.rename_columns(
        [evil if name == "value" else name for name in recording.column_names]
    )
    store(tmp_path, [ordered(), *stages], recording)
    write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    browser.problems.clear()
    browser.open(tmp_path / "page.html")
    for kind in range(4):
        browser.evaluate(
            f"(() => {{ const i = tidegate.run.c.kind.indexOf({kind}); if (i >= 0)"
            " tidegate.timeline.select({ message: i, group: tidegate.run.c.group[i] }); })()"
        )
        assert browser.evaluate(HARMLESS)
    browser.evaluate("if (tidegate.run.groups) tidegate.timeline.select({ group: 0 })")
    browser.evaluate("document.getElementById('tab-health').click()")
    assert evil in browser.evaluate("document.body.textContent")
    assert browser.evaluate(HARMLESS)
    assert browser.problems == []


def test_the_policy_stops_a_script_that_gets_in_anyway(
    run: Path, tmp_path: Path, browser: Browser
) -> None:
    write_page(str(run), str(tmp_path / "page.html"), Roles())
    browser.open(tmp_path / "page.html")
    browser.evaluate(
        """(() => { const made = document.createElement('script');
          made.textContent = 'window.hacked = 1';
          document.body.append(made);
          const home = document.createElement('div'); document.body.append(home);
          home.innerHTML = '<img src=data:, onerror=window.hacked=1>'; })()"""
    )
    browser.until("true")
    assert browser.evaluate(
        "new Promise((done) => setTimeout(() => done(window.hacked === undefined), 300))"
    )
    assert any("Content Security Policy" in problem for problem in browser.problems)
    browser.problems.clear()


def test_a_live_page_has_the_policy_too(run: Path, browser: Browser) -> None:
    live = LiveServer(str(run)).start()
    try:
        browser.problems.clear()
        browser.visit(live.url)
        policy = browser.evaluate("document.querySelector('meta[http-equiv]').content")
        assert "script-src 'sha256-" in policy
        assert "connect-src 'self'" in policy
        assert "unsafe" not in policy
        assert browser.problems == []
    finally:
        live.close()


def test_no_script_of_the_page_parses_markup() -> None:
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
    for file in (files("tidegate.report") / "assets").iterdir():
        if file.name.endswith(".js"):
            text = file.read_text()
            assert [word for word in forbidden if word in text] == [], file.name


def test_a_link_in_the_folder_of_a_stranger_is_not_written_through(tmp_path: Path) -> None:
    """`tidegate view` writes OUT/page.html, and OUT may be somebody else's."""
    out = tmp_path / "out"
    store(out, [ordered()], fleet(vehicles=1, seconds=2))
    mine = tmp_path / "mine"
    mine.write_text("kept")
    (out / "page.html").symlink_to(mine)
    write_page(str(out), str(out / "page.html"), Roles())
    assert mine.read_text() == "kept"
    assert "<!doctype html>" in (out / "page.html").read_text().lower()
