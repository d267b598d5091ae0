"""Imports go one way: no module imports, at the top, lazily or for types, one that imports it."""

from __future__ import annotations

import json
from pathlib import Path

from house.count import Source, crowded_functions, import_cycles, imports, this_package

ALLOWED = json.loads((Path(__file__).parent / "allowed.json").read_text())


def test_no_import_cycles() -> None:
    assert import_cycles(imports(this_package())) == ALLOWED["import cycles"]


OPERATORS = ("align", "batching", "deltas", "eventtime", "sync", "windows")


def crossing_imports(package: dict[str, Source]) -> list[str]:
    """Imports from one operator to another."""

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    return sorted(
        f"{module} imports {target}"
        for module, targets in imports(package).items()
        for target in targets
        if room(module) in OPERATORS and room(target) in OPERATORS and room(module) != room(target)
    )


def test_operators_do_not_import_each_other() -> None:
    assert crossing_imports(this_package()) == ALLOWED["operators that import each other"]


def test_at_most_eight_positional_parameters() -> None:
    assert sorted(crowded_functions(this_package())) == ALLOWED["over eight parameters"]


def test_a_cycle_is_found() -> None:
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
