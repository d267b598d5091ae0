"""The page of vector deltas names everything there is, and its two forms of a stage are one."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from tidegate.deltas import Compact, Compactor, TieredMerge
from tidegate.deltas.kernels import DeltaVerdict
from tidegate.deltas.operations import OPERATIONS
from tidegate.deltas.strategies import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "deltas.md").read_text()


def test_every_operation_strategy_and_setting_is_there() -> None:
    settings = {f.name for kind in (Compact, Compactor) for f in fields(kind) if f.init}
    for name in (*OPERATIONS, *STRATEGIES, *settings):
        assert f"| `{name}` |" in PAGE, name


@pytest.mark.parametrize(
    "verdict",
    sorted(set(DeltaVerdict) - {DeltaVerdict.ACCEPTED, DeltaVerdict.WAITING, DeltaVerdict.OPEN}),
)
def test_every_reason_is_there(verdict: DeltaVerdict) -> None:
    said = verdict.sentence(where=-7, dims=-7, parent="-7", limit=-7).replace("-7", "…")
    assert f"| {said} |" in PAGE


def test_the_stage_in_python_is_the_stage_in_a_definition() -> None:
    python, definition = (
        re.search(rf"```{language}\n({start}.*?)```", PAGE, re.S)
        for language, start in (("python", r"Compact\("), ("yaml", "- compact"))
    )
    assert python is not None
    assert definition is not None
    made = eval(python[1], {"Compact": Compact, "TieredMerge": TieredMerge})
    ((said,),) = ([stage["compact"]] for stage in yaml.safe_load(definition[1]))
    assert Compact(**said) == made
