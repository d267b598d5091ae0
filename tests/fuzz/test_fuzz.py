"""A minute of fuzzing: kept inputs first, then new ones. `make faults` runs it for an hour."""

from __future__ import annotations

import os

import pytest

from fuzz.engine import run, try_all
from fuzz.targets import TARGETS

SECONDS = 4.0 * float(os.environ.get("TIDEGATE_FUZZ", "1"))


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_and_kept_ones(name: str) -> None:
    target = TARGETS[name]
    inputs = [*target.seeds(), *target.corpus()]
    done, what = try_all(target, inputs)
    assert what is None, f"input {done}: {what}"


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs(name: str) -> None:
    tried, finding = run(TARGETS[name], seconds=SECONDS)
    if finding is not None:
        raise AssertionError(f"input {tried}: {finding.what}; kept as {finding.keep()}")
