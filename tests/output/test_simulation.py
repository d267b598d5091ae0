"""Drivers on a disk that fails: the short form of `python -m faults.simulation`."""

from __future__ import annotations

import itertools

import pytest

from faults import simulation

SEEDS: list[str] = []
"""Histories that went wrong once."""


@pytest.fixture(scope="module")
def undisturbed() -> tuple[dict[str, list[int]], int]:
    return simulation.undisturbed_run()


def test_one_fault(undisturbed: tuple[dict[str, list[int]], int]) -> None:
    """Every kind of fault, at every operation of one driver; here every thirteenth of them."""
    rows, calls = undisturbed
    step = len(simulation.KINDS) + 1  # so that all kinds have their turn
    histories = itertools.islice(simulation.every_single(calls), 0, None, step)
    report = simulation.campaign(histories, rows)
    assert not report.wrong, report.wrong[:3]
    assert set(report.kinds) == set(simulation.KINDS)


def test_several_faults(undisturbed: tuple[dict[str, list[int]], int]) -> None:
    """Drivers that fail one after the other, or inside each other's pauses."""
    rows, calls = undisturbed
    report = simulation.campaign(
        itertools.islice(simulation.random_histories(calls, seed=1), 150), rows
    )
    assert not report.wrong, report.wrong[:3]


@pytest.mark.parametrize("history", SEEDS)
def test_what_went_wrong_once(undisturbed: tuple[dict[str, list[int]], int], history: str) -> None:
    simulation.run_history(simulation.parse(history), undisturbed[0])
