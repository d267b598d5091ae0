"""The page by the rules of axe-core (WCAG 2 A and AA): both tabs, light and dark, wide and narrow.

axe-core is not in this repository: `make` installs it with npm into the environment where there is
one, and `AXE_CORE` may name its file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from browser import Browser
from runs import store

from tidegate.batching.stage import Batch
from tidegate.eventtime import EventtimeWatermark
from tidegate.profile.roles import Roles
from tidegate.report.look import write_look
from tidegate.report.page import write_page
from tidegate.testing.fleet import fleet

INSTALLED = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
AXE = Path(os.environ.get("AXE_CORE", INSTALLED))

pytestmark = pytest.mark.skipif(
    not AXE.is_file(),
    reason=f"no axe-core at {AXE}: npm install --prefix {sys.prefix}/axe axe-core",
)

FOUND = """axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa',
  'best-practice'] }).then((r) => r.violations.map((v) => v.id + ': '
  + v.nodes.map((n) => n.target.join(' ') + ' ' + (n.any[0] || {}).message).join(', ')))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page of a run with batches, and that of a recording with a single key."""
    home = tmp_path_factory.mktemp("axe")
    stage = EventtimeWatermark("200 ms", max_future_skew="1 h", watermark_per="tuple")
    batches = Batch("1 s", keys=("vehicle",), gated=("camera",))
    store(home / "run", [stage, batches], fleet(3, 10, seed=5, late_share=0.01))
    write_page(str(home / "run"), str(home / "run.html"), Roles())
    csv = home / "log.csv"
    csv.write_text("time,speed\n" + "".join(f"2024-01-01T00:00:{s:02d}Z,{s}\n" for s in range(50)))
    write_look(str(csv), str(home / "look.html"))
    return [home / "run.html", home / "look.html"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(pages: list[Path], browser: Browser, theme: str, width: int) -> None:
    library = AXE.read_text(encoding="utf-8")
    browser.resize(width, 800)
    try:
        for page in pages:
            browser.open(page, f"#theme={theme}")
            browser.evaluate(library + "; true")
            browser.evaluate("tidegate.timeline.select({ message: 0, group: -1 })")
            assert "\n".join(browser.evaluate(FOUND)) == ""
            browser.evaluate("document.getElementById('tab-health').click()")
            assert "\n".join(browser.evaluate(FOUND)) == ""
    finally:
        browser.resize(1440, 860)
