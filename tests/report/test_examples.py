"""The tutorials' scripts run, and show what their pages say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

HOME = Path(__file__).parents[2]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOME / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_robot_logs_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    counts = example("robot_logs").main()
    members = 3 * counts["data"]
    assert members + counts["dropped"] + counts["late"] + counts["error"] == counts["rows"]
    assert counts["data"] > 200
    assert "suggested late tolerance" in capsys.readouterr().out


def test_instrument_batches_close_by_their_gates() -> None:
    reasons = example("instrument_batches").main()
    assert reasons.count("gate") >= 10
    assert reasons[0] == "first"
    assert reasons[-1] == "flush"


def test_telemetry_windows_are_revised() -> None:
    emitted = example("telemetry_windows").main()
    revised = [window for window in emitted if window[1] > 0]
    assert revised
    last = {start: readings for start, _, readings, _ in emitted}
    assert sum(last.values()) == 200  # with the last revision of each, nothing is missing


def test_training_data_is_what_the_joints_did() -> None:
    made, rows = example("training_data").main()
    assert made.written["episodes"] == 2
    assert made.written["frames"] == len(rows) > 40
    assert made.outcomes["data"] == len(rows)


def test_every_page_of_the_site_is_linked_and_its_pictures_are_there() -> None:
    docs = HOME / "docs"
    config = (HOME / "mkdocs.yml").read_text()
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).as_posix()
        linked = name in config or name.startswith(("adr/", "changes/"))
        assert linked, f"{name} is not in mkdocs.yml"
        for target in _links(page.read_text()):
            assert (page.parent / target).exists(), f"{name}: {target} is not there"


def _links(text: str) -> list[str]:
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [target for target in found if "://" not in target]


def test_the_pictures_of_the_site_are_what_the_operators_do_now() -> None:
    from scenarios import all_scenarios

    pictures = HOME / "docs" / "pictures"
    stale = [
        s.slug
        for s in all_scenarios()
        if (pictures / f"{s.slug}.svg").read_text() != s.draw().svg()
    ]
    assert stale == [], "run: python docs/scenarios --to docs/pictures"


def test_the_rules_in_the_pages_are_those_of_the_scenarios(tmp_path: Path) -> None:
    from scenarios import refresh_rules

    pages = {page.name: page.read_text() for page in (HOME / "docs" / "explain").glob("*.md")}
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    assert refresh_rules(tmp_path) == []  # every scenario is shown
    stale = [name for name, text in pages.items() if (tmp_path / name).read_text() != text]
    assert stale == [], "run: python docs/scenarios --to docs/pictures --rules docs/explain"
