"""How thorough a run is: `TIDEGATE_EXAMPLES=3` gives every property three times its examples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from longer import mark

LAWS = Path(__file__).parent / "laws"
FACTOR = float(os.environ.get("TIDEGATE_EXAMPLES", "1"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    scaled = set()  # the items of a parametrised test share one function
    for item in items:
        mark(item)
        if LAWS in item.path.parents:
            item.add_marker(pytest.mark.laws)
        function = getattr(item, "function", None)
        own = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None and FACTOR != 1 and function not in scaled:
            scaled.add(function)
            many = max(1, round(own.max_examples * FACTOR))
            function._hypothesis_internal_use_settings = settings(own, max_examples=many)
