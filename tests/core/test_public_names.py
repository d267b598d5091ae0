"""The public names: listed once, at most forty, all there, and loaded only when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidegate


def test_at_most_forty_and_sorted() -> None:
    assert len(tidegate.__all__) <= 40
    assert sorted(tidegate.__all__) == list(tidegate.__all__)
    assert set(tidegate.__all__) == set(tidegate._MODULE_OF)


@pytest.mark.parametrize("name", tidegate.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(tidegate, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="Synchronise"):
        _ = tidegate.Synchronise


def test_import_is_light() -> None:
    heavy = "{'numba', 'pyarrow', 'pyspark', 'numpy'} & set(sys.modules)"
    code = f"import sys, tidegate, tidegate.cli; print(sorted({heavy}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
