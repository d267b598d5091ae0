"""Reads the recorded cases beside the repo; where they are missing, tests are skipped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[2] / "shared"))
CONFORMANCE = SHARED / "conformance"


def load(pattern: str) -> list[Any]:
    """One pytest.param (id = file stem) per file that matches, e.g. `load("sync/exact_*.json")`."""
    found = sorted(CONFORMANCE.glob(pattern)) if CONFORMANCE.is_dir() else []
    if not found:
        reason = f"no recorded cases at {CONFORMANCE / pattern} (set TIDEGATE_SHARED)"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="missing")]
    return [pytest.param(json.loads(path.read_text()), id=path.stem) for path in found]


def load_list(name: str, *keys: str) -> list[Any]:
    """One pytest.param per entry of a list inside one file, e.g. `load_list("x.json", "cases")`."""
    path = CONFORMANCE / name
    if not path.is_file():
        reason = f"no recorded cases at {path} (set TIDEGATE_SHARED)"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="missing")]
    entries: Any = json.loads(path.read_text())
    for key in keys:
        entries = entries[key]
    return [
        pytest.param(entry, id=str(entry.get("name", number)) if isinstance(entry, dict) else None)
        for number, entry in enumerate(entries)
    ]
