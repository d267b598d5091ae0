"""Drivers on a disk that fails: the short form of `python -m faults.simulation`."""

from __future__ import annotations

import itertools

import pytest

from faults import simulation

SEEDS = [
    "killed_after@443",  # records were removed before the files they named were moved away
    "power_cut_after@496",  # ... and before that move was on disk
    "power_cut_after@409",  # merged files that no fold named stayed
    "overtaken@23",  # found by a seal left out on purpose
    "killed_before@269 power_cut_before@22",  # a record that was seen, not synced, and lost
    "overtaken@442 unanswered@67",  # the next driver removed merged files, then the first one
    "paused@435 read-only@81",  # ... woke up and wrote the fold that named them
    "killed_before@211 full@307 lost@162",  # merged files that no fold named stayed
    "power_cut_after@430 power_cut_before@199",  # ... because their removal was not on disk
    "power_cut_after@355 power_cut_after@408 power_cut_before@89",  # staged files stayed
]
"""Histories that went wrong once, by the numbers that operations had then."""


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
