"""One name, one thing: a top-level name stands in one module only."""

from __future__ import annotations

import json
from pathlib import Path

from house.count import Source, homonyms, read_package, this_package

ALLOWED = json.loads((Path(__file__).parent / "allowed.json").read_text())["homonyms"]


def test_no_new_homonyms() -> None:
    found = homonyms(this_package())
    assert {name: at for name, at in found.items() if name not in ALLOWED} == {}


def test_the_allow_list_only_shrinks() -> None:
    found = homonyms(this_package())
    assert sorted(set(ALLOWED) - set(found)) == []


def test_the_count_itself_finds(tmp_path: Path) -> None:
    package: dict[str, Source] = {}
    for name in ("one", "two"):
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / "p" / f"{name}.py").write_text("def same(): ...\ndef __dir__(): ...\n")
    package = read_package(tmp_path)
    assert homonyms(package) == {"same": ["p.one", "p.two"]}
