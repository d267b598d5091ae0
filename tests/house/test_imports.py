"""Imports go one way: no module imports, at the top, lazily or for types, one that imports it."""

from __future__ import annotations

from pathlib import Path

from house.count import crowded_functions, import_cycles, imports, read_package

import tidegate

PACKAGE = read_package(Path(tidegate.__file__).parents[1])


def test_no_import_cycles() -> None:
    assert import_cycles(imports(PACKAGE)) == []


def test_operators_do_not_import_each_other() -> None:
    operators = ("align", "batching", "deltas", "eventtime", "sync", "windows")

    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    crossing = [
        f"{module} imports {target}"
        for module, targets in imports(PACKAGE).items()
        for target in targets
        if room(module) in operators and room(target) in operators and room(module) != room(target)
    ]
    assert crossing == []


def test_at_most_eight_positional_parameters() -> None:
    assert crowded_functions(PACKAGE) == {}


def test_a_cycle_is_found() -> None:
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
