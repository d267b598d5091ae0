"""The live page: from the run's own commits, on loopback, and nobody else's business."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from runs import store

from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run, run_totals
from tidegate.profile.roles import Roles
from tidegate.report.rows import gather_messages
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
    assert json.loads(get(live.url + "state")[1]) == {"commits": 0, "ended": False}
    assert "tidegate_commits_total 0" in get(live.url + "metrics")[1]
    commit(whole, out, 0)
    assert json.loads(get(live.url + "state")[1]) == {"commits": 1, "ended": False}
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
    assert text == metrics_text(run_totals(str(out)))


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
    view = browser.evaluate(
        "window.stayed = true; tidegate.timeline.show(1); tidegate.timeline.zoom(0.5);"
        "[tidegate.timeline.a, tidegate.timeline.b]"
    )
    commit(whole, out, 1)
    browser.until(f"tidegate.run.n > {first}", 30)
    assert browser.evaluate("window.stayed")  # in place: it was not loaded again
    assert browser.evaluate("tidegate.timeline.key") == 1  # what was in view still is
    assert browser.evaluate("[tidegate.timeline.a, tidegate.timeline.b]") == view
    assert "live, 2 commits" in browser.evaluate("document.getElementById('live').innerText")
    assert browser.problems == []


def test_the_page_stays_when_the_run_ends(
    growing: tuple[LiveServer, Path, Path], browser: Browser, screenshots: Path
) -> None:
    live, whole, out = growing
    commit(whole, out, 0)
    browser.problems.clear()
    browser.visit(live.url)
    browser.until("document.getElementById('live').innerText.includes('live')")
    live.state()  # a page asked just now
    for number in (1, 2, 3):
        commit(whole, out, number)
    live.finish()
    browser.until("document.getElementById('live').className === 'ended'", 10)
    words = browser.evaluate("document.getElementById('live').innerText")
    assert "ended after 4 commits" in words  # the last one was still taken up
    browser.screenshot(screenshots / "live-ended.png")
    assert browser.evaluate("tidegate.run.n") == len(gather_messages(open_run(str(out)), Roles()))
    browser.evaluate("tidegate.timeline.fit(); tidegate.timeline.draw()")
    assert browser.problems == []


def test_a_page_whose_server_is_gone_says_so_and_stays(
    growing: tuple[LiveServer, Path, Path], browser: Browser
) -> None:
    live, whole, out = growing
    commit(whole, out, 0)
    browser.visit(live.url)
    live.close()
    browser.until("document.getElementById('live').className === 'ended'", 10)
    assert "server is gone" in browser.evaluate("document.getElementById('live').innerText")
    assert browser.evaluate("tidegate.run.n") > 0


def test_a_browser_that_leaves_is_not_reported(
    growing: tuple[LiveServer, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    live, whole, out = growing
    for number in range(4):
        commit(whole, out, number)
    port = int(live.url.rsplit(":", 1)[1].rstrip("/"))
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert get(live.url + "state")[0] == 200
    time.sleep(0.5)
    assert capsys.readouterr().err == ""


def test_finishing_without_a_reader_does_not_wait(growing: tuple[LiveServer, Path, Path]) -> None:
    began = time.monotonic()
    growing[0].finish()
    assert time.monotonic() - began < 2


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
