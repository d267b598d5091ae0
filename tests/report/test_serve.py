"""The live page: from the run's own commits, on loopback, and nobody else's business."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from runs import store

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.report.serve import LiveServer, metrics_text
from tidegate.testing.fleet import facts, fleet


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[LiveServer, Path, Path]]:
    """A server on an output that has no commit yet, and the whole run beside it."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    stage = EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")
    store(whole, [stage], fleet(2, 10, seed=9), cuts=4)
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("_commits"))
    live = LiveServer(str(out)).start()
    yield live, whole, out
    live.close()


def commit(whole: Path, out: Path, number: int) -> None:
    (out / "_commits").mkdir(exist_ok=True)
    name = f"{number:08d}.json"
    shutil.copy(whole / "_commits" / name, out / "_commits" / name)


def get(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_run_without_a_commit_is_waited_for(growing: tuple[LiveServer, Path, Path]) -> None:
    live, whole, out = growing
    assert "Waiting for the first commit" in get(live.url)[1]
    assert json.loads(get(live.url + "state")[1]) == {"commits": 0}
    assert "tidegate_commits_total 0" in get(live.url + "metrics")[1]
    commit(whole, out, 0)
    assert json.loads(get(live.url + "state")[1]) == {"commits": 1}
    assert "Waiting" not in get(live.url)[1]


def test_the_numbers_are_those_of_the_recording(growing: tuple[LiveServer, Path, Path]) -> None:
    live, whole, out = growing
    for number in range(4):
        commit(whole, out, number)
    status, text = get(live.url + "metrics")
    assert status == 200
    known = facts(fleet(2, 10, seed=9))
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(samples['tidegate_rows_total{kind="data"}']) == known.in_order
    assert int(samples['tidegate_rows_total{kind="late"}']) == known.late
    assert int(samples['tidegate_rows_total{kind="error"}']) == known.unreadable + known.skewed
    assert float(samples["tidegate_held_rows"]) == 0
    name = 'tidegate_stage{stage="eventtime_watermark",metric="late_dropped_count"}'
    assert int(samples[name]) == known.late
    for line in text.splitlines():  # every sample belongs to a family that was announced
        family = line.split(" ")[0].split("{")[0]
        assert line.startswith("# ") or f"# TYPE {family} " in text
    assert text == metrics_text(open_run(str(out)))


def test_only_loopback_by_its_own_name(growing: tuple[LiveServer, Path, Path]) -> None:
    live, _, _ = growing
    assert live.url.startswith("http://127.0.0.1:")
    assert get(live.url + "metrics", host="example.com")[0] == 403
    assert get(live.url + "../etc/passwd")[0] == 404
    port = int(live.url.rsplit(":", 1)[1].rstrip("/"))
    with pytest.raises(ConfigError, match="serve: got"):
        LiveServer(live.out, port)


def test_the_page_follows_the_run(growing: tuple[LiveServer, Path, Path], browser: Browser) -> None:
    live, whole, out = growing
    commit(whole, out, 0)
    browser.problems.clear()
    browser.visit(live.url)
    first = browser.evaluate("tidegate.run.n")
    browser.evaluate("tidegate.timeline.show(1)")
    commit(whole, out, 1)
    browser.until(f"window.tidegate && tidegate.run.n > {first}", 30)
    browser.until("tidegate.timeline.key === 1", 5)  # what was looked at is still shown
    assert browser.problems == []


def test_a_live_page_reads_no_more_of_a_long_run_than_of_a_short_one(
    growing: tuple[LiveServer, Path, Path], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, whole, out = growing
    for number in range(4):
        commit(whole, out, number)
    whole_run = open_run(str(out))
    last = sum(whole_run.commits[-1].rows.values())
    monkeypatch.setattr("tidegate.report.serve.LIVE_LIMIT", last + 1)
    shutil.rmtree(out / "data" / "batch=00000000")  # it may not even look there
    browser.problems.clear()
    browser.visit(live.url)
    assert browser.evaluate("tidegate.run.n") <= last
    assert browser.evaluate("tidegate.run.since") == 3
    assert browser.evaluate("tidegate.run.counts") == whole_run.counts  # of all that came
    assert browser.evaluate("tidegate.run.health.commits.length") == 4
    counts = browser.evaluate("document.getElementById('counts').innerText")
    assert "from micro-batch 3 on" in counts
    assert browser.problems == []
    assert open_run(str(out)).newest(10**9).earlier == ()
