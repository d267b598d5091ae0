"""How thorough a run is: `TIDEGATE_EXAMPLES=3` gives every property three times its examples, 0.5
half of them, but not fewer than `FEW` where it has as many."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from longer import keep_together, mark, slowest_first

LAWS = Path(__file__).parent / "laws"
FACTOR = float(os.environ.get("TIDEGATE_EXAMPLES", "1"))
FEW = 25
"""Examples below which a property is not worth running: the first dozen are the simplest ones."""

# An example may take long on a busy machine: that is no fault of the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slowest_first(items)
    scaled = set()  # the items of a parametrised test share one function
    for item in items:
        mark(item)
        keep_together(item)
        if LAWS in item.path.parents:
            item.add_marker(pytest.mark.laws)
        function = getattr(item, "function", None)
        own = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None and FACTOR != 1 and function not in scaled:
            scaled.add(function)
            many = max(min(own.max_examples, FEW), round(own.max_examples * FACTOR))
            function._hypothesis_internal_use_settings = settings(own, max_examples=many)


def pytest_collection_finish() -> None:
    """Thousands of tests live as long as the run: no collection need look at them again."""
    gc.collect()
    gc.freeze()
