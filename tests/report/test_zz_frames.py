"""The page in a real browser: it opens from a file, moves, explains, and stays small and quick."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from runs import store

import tidegate.report.vendor as vendor
from tidegate.batching.stage import Batch
from tidegate.core.operator import Operator
from tidegate.errors import ConfigError, StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.output.reader import open_run
from tidegate.profile.roles import Roles
from tidegate.report.page import write_page
from tidegate.report.rows import gather_messages
from tidegate.sync.stage import Synchronize
from tidegate.testing.fleet import facts, fleet
from tidegate.windows.kinds import Tumbling
from tidegate.windows.late import Reemit
from tidegate.windows.stage import Window

PAINTED = """(() => { const c = document.getElementById('lanes');
  const p = c.getContext('2d').getImageData(140, 30, c.width - 140, c.height - 30).data;
  let n = 0; for (let i = 3; i < p.length; i += 4) if (p[i]) n++; return n; })()"""


def in_order() -> EventtimeWatermark:
    return EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain")
    store(path, [in_order()], fleet(2, 20, seed=5, late_share=0.01))
    write_page(str(path), str(path / "page.html"), Roles())
    return path


def test_every_message_of_the_recording_is_in_the_page_once(plain: Path) -> None:
    known = facts(fleet(2, 20, seed=5, late_share=0.01))
    messages = gather_messages(open_run(str(plain)), Roles())
    by_kind = np.bincount(messages.kind, minlength=4).tolist()
    assert by_kind == [known.in_order, known.late, 0, known.unreadable + known.skewed]
    assert messages.keys == sorted(known.by_vehicle)
    assert messages.topics == sorted(known.by_topic)


def test_the_page_opens_from_a_file_and_paints_without_a_complaint(
    plain: Path, browser: Browser, screenshots: Path
) -> None:
    browser.problems.clear()
    for theme in ("light", "dark"):
        browser.open(plain / "page.html", f"#theme={theme}")
        assert browser.evaluate(PAINTED) > 5_000
        browser.screenshot(screenshots / f"timeline-{theme}.png")
        assert browser.evaluate("document.documentElement.dataset.theme") == theme
    browser.evaluate("document.getElementById('tab-health').click()")
    assert browser.evaluate("document.querySelectorAll('#health .uplot').length") >= 5
    assert "camera" in browser.evaluate("document.getElementById('health').innerText")
    assert browser.problems == []
    browser.screenshot(screenshots / "health.png")


def test_the_columns_reach_the_browser_exactly(plain: Path, browser: Browser) -> None:
    messages = gather_messages(open_run(str(plain)), Roles())
    browser.open(plain / "page.html")
    origin = int(browser.evaluate("tidegate.run.origin_ns"))
    for number in (0, len(messages) // 2, len(messages) - 1):
        seen = browser.evaluate(
            f"(({{c}}) => [c.time[{number}], c.delay[{number}], c.kind[{number}], "
            f"c.lateness[{number}], c.micro[{number}]])(tidegate.run)"
        )
        delay = messages.arrival_ns[number] - messages.time_ns[number]
        wanted = [messages.time_ns[number] - origin, delay, messages.kind[number],
                  messages.lateness_ns[number], messages.micro[number]]  # fmt: skip
        assert seen == [int(value) for value in wanted]


@pytest.mark.parametrize(
    ("kind", "words"),
    [(0, "In order"), (1, "Too late by"), (3, "Could not be used: column")],
)
def test_a_click_says_where_a_message_went_and_why(
    plain: Path, browser: Browser, kind: int, words: str
) -> None:
    browser.open(plain / "page.html")
    x, y = browser.evaluate(
        f"""(() => {{ const {{ run, timeline }} = tidegate;
          const i = run.c.kind.findIndex((k, n) => k === {kind} && run.c.stream[n] < 4);
          timeline.reveal(i, 2e7); timeline.draw();
          const row = timeline.rows.find((r) => r.stream === run.c.stream[i]);
          const box = document.getElementById('lanes').getBoundingClientRect();
          return [box.left + timeline.x(run.c.time[i]),
                  box.top + row.y + ({kind} === 3 ? row.h / 2 + 1 : row.h - 12)]; }})()"""
    )
    browser.click(x, y)
    browser.until("document.getElementById('why') !== null")
    text = browser.evaluate("document.getElementById('details').innerText")
    assert words in text
    assert "car-00000" in text
    if kind == 1:
        assert "lateness" in text


def test_wheel_and_drag_move_the_view(plain: Path, browser: Browser) -> None:
    browser.open(plain / "page.html")
    browser.evaluate("document.getElementById('fit').click()")
    before = browser.evaluate("[tidegate.timeline.a, tidegate.timeline.b]")
    browser.wheel(700, 300, -600)
    browser.until(f"tidegate.timeline.b - tidegate.timeline.a < {before[1] - before[0]}")
    zoomed = browser.evaluate("[tidegate.timeline.a, tidegate.timeline.b]")
    browser.drag(800, 300, 600)
    browser.until(f"tidegate.timeline.a > {zoomed[0]}")
    moved = browser.evaluate("[tidegate.timeline.a, tidegate.timeline.b]")
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])
    browser.evaluate("document.getElementById('fit').click()")
    assert browser.evaluate("[tidegate.timeline.a, tidegate.timeline.b]") == before


@pytest.mark.parametrize(
    ("what", "stage", "words"),
    [
        (
            "set",
            Synchronize(("camera", "lidar", "gps"), queue_size=10, keys=("vehicle",)),
            "Spread",
        ),
        ("batch", Batch("1 s", keys=("vehicle",), gated=("camera",)), "Closed by"),
        ("window", Window(Tumbling("1 s"), keys=("vehicle",), late=Reemit("9 s")), "Emitted by"),
        ("window", Window(Tumbling("1 s"), keys=("vehicle",), aggregates={"n": "count"}), "n\t"),
    ],
)
def test_a_click_on_a_set_a_batch_or_a_window_shows_what_it_holds(
    tmp_path: Path, browser: Browser, screenshots: Path, what: str, stage: Operator, words: str
) -> None:
    store(tmp_path, [in_order(), stage], fleet(2, 12, seed=6))
    write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    browser.problems.clear()
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("tidegate.run.groups.what") == what
    x, y = browser.evaluate(
        """(() => { const { run, timeline } = tidegate; const of = run.groupsOf[0];
          const g = of.list[of.list.length >> 1];
          timeline.a = run.c.groupStart[g] - 1e8; timeline.b = run.c.groupEnd[g] + 1e8;
          timeline.draw();
          const box = document.getElementById('lanes').getBoundingClientRect();
          const row = timeline.rows.find((r) => r.strip);
          const middle = (run.c.groupStart[g] + run.c.groupEnd[g]) / 2;
          return [box.left + timeline.x(middle), box.top + row.y + 9]; })()"""
    )
    browser.click(x, y)
    browser.until(f"document.getElementById('{what}') !== null")
    text = browser.evaluate("document.getElementById('details').innerText")
    assert words in text
    if what == "set":
        assert all(topic in text for topic in ("camera", "lidar", "gps"))
    if what == "batch":
        assert "expected" in text
    browser.screenshot(screenshots / f"{what}.png")
    browser.evaluate("document.getElementById('tab-health').click()")
    if words != "n\t":  # aggregated windows do not say when their rows came
        assert "Decision delay" in browser.evaluate("document.getElementById('health').innerText")
    browser.screenshot(screenshots / f"{what}-health.png")
    assert browser.problems == []


def test_the_page_opens_where_something_happens_and_says_what(
    plain: Path, browser: Browser
) -> None:
    browser.open(plain / "page.html")
    seen = browser.evaluate(
        """(() => { const { run, timeline } = tidegate; const topics = run.topics.length;
          const inside = (i) => run.c.time[i] >= timeline.a && run.c.time[i] <= timeline.b
            && Math.floor(run.c.stream[i] / topics) === timeline.key;
          const kinds = [0, 0, 0, 0];
          for (let i = 0; i < run.n; i++) if (inside(i)) kinds[run.c.kind[i]]++;
          return { kinds, share: (timeline.b - timeline.a) / (run.fit[1] - run.fit[0]) }; })()"""
    )
    assert seen["share"] < 0.2
    assert seen["kinds"][0] > 20  # with what is in order around it
    assert seen["kinds"][1] + seen["kinds"][3] > 0
    words = browser.evaluate("document.getElementById('headline').innerText")
    assert "a year ahead" in words
    assert "late by up to" in words


def test_a_late_mark_wins_a_click_over_data_beside_it(plain: Path, browser: Browser) -> None:
    browser.open(plain / "page.html")
    found = browser.evaluate(
        """(() => { const { run, timeline } = tidegate; const { c } = run;
          const late = c.kind.findIndex((k) => k === 1);
          timeline.show(Math.floor(c.stream[late] / run.topics.length));
          const [from, to] = run.range(c.stream[late], 0);
          const data = bisect(c.time, c.time[late], from, to);
          const gap = Math.abs(c.time[data] - c.time[late]);
          const pixels = timeline.w - timeline.gutter; // the two are five pixels apart
          timeline.a = c.time[late] - gap * pixels / 10; timeline.b = timeline.a + gap * pixels / 5;
          timeline.draw();
          const row = timeline.rows.find((r) => r.stream === c.stream[late]);
          const picked = timeline.nearest(row, timeline.x(c.time[data]), timeline.floor(row));
          const apart = Math.abs(timeline.x(c.time[data]) - timeline.x(c.time[late]));
          return [c.kind[picked.message], apart]; })()"""
    )
    assert found[0] == 1
    assert found[1] == pytest.approx(5, abs=0.5)


def test_numbers_are_plotted_and_reach_the_browser(plain: Path, browser: Browser) -> None:
    messages = gather_messages(open_run(str(plain)), Roles())
    assert messages.value_names == ["value"] * len(messages.topics)
    browser.open(plain / "page.html")
    for number in (0, len(messages) // 2):
        seen = browser.evaluate(f"tidegate.run.c.value[{number}]")
        assert seen == pytest.approx(float(messages.value[number]))
    assert browser.evaluate("tidegate.timeline.rows.every((r) => tidegate.timeline.hasValues(r))")


def test_lanes_fill_the_height(plain: Path, browser: Browser) -> None:
    browser.open(plain / "page.html")
    height, used = browser.evaluate(
        "[document.getElementById('scroller').clientHeight, tidegate.timeline.height]"
    )
    assert height - 10 <= used <= height


def test_long_names_are_cut_in_the_middle(plain: Path, browser: Browser) -> None:
    browser.open(plain / "page.html")
    cut = browser.evaluate(
        """fitted(document.getElementById('lanes').getContext('2d'),
        '/robot/sensors/front/left/camera/image_raw/compressed', 100)"""
    )
    assert cut.startswith("/robot")
    assert cut.endswith("sed")
    assert "…" in cut


def test_a_narrow_screen_shows_the_lanes_without_scrolling_sideways(
    plain: Path, browser: Browser, screenshots: Path
) -> None:
    browser.resize(390, 800)
    try:
        browser.problems.clear()
        browser.open(plain / "page.html")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.evaluate("document.getElementById('scroller').clientHeight") >= 250
        assert browser.evaluate(PAINTED) > 2_000
        browser.screenshot(screenshots / "narrow.png")
        browser.evaluate("document.getElementById('tab-health').click()")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.problems == []
    finally:
        browser.resize(1440, 860)


CONTRAST = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  while (walk.nextNode()) {
    const home = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !home.checkVisibility()) continue;
    if (["SCRIPT", "STYLE"].includes(home.tagName)) continue;
    const pair = [light(parse(getComputedStyle(home).color)), light(behind(home))].sort();
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) poor.push([walk.currentNode.textContent.trim(), +ratio.toFixed(2)]);
  }
  return poor; })()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_has_enough_contrast(plain: Path, browser: Browser, theme: str) -> None:
    browser.open(plain / "page.html", f"#theme={theme}")
    browser.evaluate("tidegate.timeline.select({ message: tidegate.run.c.kind.indexOf(1) })")
    assert browser.evaluate(CONTRAST) == []
    browser.evaluate("document.getElementById('tab-health').click()")
    assert browser.evaluate(CONTRAST) == []


def test_everything_can_be_reached_by_keyboard_and_has_a_name(
    plain: Path, browser: Browser
) -> None:
    browser.open(plain / "page.html")
    nameless = browser.evaluate(
        """[...document.querySelectorAll('button, input, canvas, li')].filter((e) =>
          !(e.getAttribute('aria-label') || e.textContent.trim() || e.title)).length"""
    )
    assert nameless == 0
    before = browser.evaluate("tidegate.timeline.a")
    browser.evaluate(
        """(() => { const lanes = document.getElementById('lanes'); lanes.focus();
          lanes.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' })); })()"""
    )
    assert browser.evaluate("tidegate.timeline.a") > before
    browser.evaluate(
        """(() => { const item = document.querySelectorAll('#keylist li')[2]; item.focus();
          item.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' })); })()"""
    )
    assert browser.evaluate("tidegate.timeline.key") == 1


@pytest.mark.long
def test_a_million_messages_stay_small_and_quick(tmp_path: Path, browser: Browser) -> None:
    recording = fleet(10, 690, seed=3, payload_bytes=0)
    assert 980_000 < recording.num_rows <= 1_000_000
    store(tmp_path, [in_order()], recording, cuts=6)
    made = write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    assert made["messages"] == recording.num_rows
    assert made["bytes"] < 20_000_000
    browser.problems.clear()
    browser.open(tmp_path / "page.html")
    for key in (0, -1):
        frames = browser.evaluate(
            f"""(() => {{ const t = tidegate.timeline; t.show({key}); t.frames.length = 0;
              for (let i = 0; i < 20; i++) {{ const s = t.b - t.a; t.a += s * 0.1;
                t.b = t.a + s * 0.7; t.draw(); }}
              t.fit(); for (let i = 0; i < 10; i++) t.draw(); return t.frames; }})()"""
        )
        assert len(frames) == 30
        # the median: the machine may be busy with something else for one frame
        print("FRAMES", key, np.median(frames), max(frames))
    assert browser.problems == []


def test_more_messages_than_the_limit_are_thinned_and_the_page_says_so(
    plain: Path, tmp_path: Path, browser: Browser
) -> None:
    made = write_page(str(plain), str(tmp_path / "page.html"), Roles(), limit=500)
    assert 400 < made["messages"] <= 500 < made["of"]
    whole = gather_messages(open_run(str(plain)), Roles())
    thinned = gather_messages(open_run(str(plain)), Roles(), 2000)
    for kind in (1, 3):  # what one looks for is not thinned away
        assert np.count_nonzero(thinned.kind == kind) == np.count_nonzero(whole.kind == kind)
    browser.open(tmp_path / "page.html")
    assert f"of {made['of']:,}" in browser.evaluate("document.getElementById('counts').innerText")


def test_names_and_values_from_the_data_cannot_become_markup(
    tmp_path: Path, browser: Browser
) -> None:
    recording = fleet(1, 5, seed=1)
    evil = "</script><img src=x onerror=window.hacked=1>"
    recording = recording.set_column(0, "vehicle", [[evil] * recording.num_rows])
    store(tmp_path, [in_order()], recording)
    write_page(str(tmp_path), str(tmp_path / "page.html"), Roles())
    browser.open(tmp_path / "page.html")
    browser.evaluate("tidegate.timeline.select({ message: 0, group: -1 })")
    assert evil in browser.evaluate("document.getElementById('details').innerText")
    assert evil in browser.evaluate("document.getElementById('keylist').innerText")
    assert browser.evaluate("window.hacked === undefined && document.images.length === 0")


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, plain: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        open_run(str(tmp_path))
    with pytest.raises(ConfigError, match="topic: got 'nope', is not a column"):
        gather_messages(open_run(str(plain)), Roles(topic="nope"))
    (tmp_path / "_commits").mkdir()
    (tmp_path / "_commits" / "00000000.json").write_text("{}")
    with pytest.raises(StateError, match="corrupt or newer than this version: it lacks batch"):
        open_run(str(tmp_path))


def test_rows_that_were_not_committed_are_not_shown(tmp_path: Path) -> None:
    store(tmp_path, [in_order()], fleet(1, 5, seed=2))
    whole = len(gather_messages(open_run(str(tmp_path)), Roles()))
    last = tmp_path / "_commits" / "00000003.json"
    rows = sum(json.loads(last.read_text())["rows"].values())
    last.unlink()
    assert len(gather_messages(open_run(str(tmp_path)), Roles())) == whole - rows


def test_the_vendored_library_is_the_one_that_is_locked() -> None:
    home = Path(vendor.__file__).parent
    for name, lock in json.loads((home / "lock.json").read_text()).items():
        for file, known in lock["files"].items():
            assert hashlib.sha256((home / name / file).read_bytes()).hexdigest() == known["sha256"]
