"""A browser for the whole folder, runs to look at, and the scenarios of the documentation."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest imports in importlib mode: neighbours of a test are not on the path by themselves
sys.path.append(str(Path(__file__).parents[2] / "docs"))  # docs/scenarios
for _name in ("browser", "pages", "runs"):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parent / f"{_name}.py")
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules.setdefault(_name, _module)
    _spec.loader.exec_module(sys.modules[_name])

from browser import Browser, chromium  # noqa: E402


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, or set CHROMIUM")
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """The browser, which leaves its page after the test: a live page would go on asking."""
    yield one_browser
    one_browser.leave()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """What the page looked like in this run of the tests: build output, kept out of git."""
    folder = Path(__file__).parents[2] / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
