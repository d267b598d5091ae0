"""inspect, init, run and view on every file of the corpus: a run gives what inspect says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidegate.output.reader import open_run
from tidegate.pipeline import PipelineDefinition
from tidegate.profile.inspect import inspect_rows
from tidegate.profile.roles import Roles
from tidegate.profile.starter import prove
from tidegate.report.page import write_page
from tidegate.spark.runner import run_definition

# `profile` is a module of Python, so that folder cannot be imported under its name.
sys.path.insert(0, str(Path(__file__).parents[1] / "profile"))
from corpus import CASES

SHARES = 6
"""The corpus is dealt to this many tests, which workers run side by side. `.ci/run` takes two of
them; all take five minutes of two cores, in `make test-apart`."""


MOST_COMPARED = 20_000
"""Rows of which every value is compared."""


def _rows_as_text(table: pa.Table) -> list[str]:
    """Return rows as text, sorted: a run orders them by time."""
    return sorted(map(str, table.to_pylist()))


def _share(number: int) -> Any:
    marks = [pytest.mark.xdist_group(f"corpus {number}")]
    return pytest.param(
        number, marks=[*marks, pytest.mark.long if number < 2 else pytest.mark.apart]
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [_share(number) for number in range(SHARES)])
def test_a_run_gives_what_inspect_says(spark: SparkSession, tmp_path: Path, share: int) -> None:
    ran, other_values = 0, []
    for number, case in enumerate(CASES[share::SHARES]):
        place = tmp_path / f"case{number}"
        place.mkdir()
        path = case.make(place)
        if not path.exists():  # a real file that is not on this machine
            continue
        profile, rows = inspect_rows(str(path))
        if profile.time is None:
            continue
        out = tmp_path / f"out{number}"
        proof = prove(profile, rows, out=str(out))
        summary = run_definition(PipelineDefinition.from_yaml(proof.text), master="local[2]")
        errors = sum(proof.errors.values())
        got = [summary.rows.get(kind, 0) for kind in ("data", "late", "error")]
        assert got == [proof.in_order, proof.late, errors], case.name
        schema = open_run(str(out)).schema("data")
        for field_ in proof.profile.schema:
            assert schema.field(field_.name).type == field_.type, (case.name, field_.name)
        if not proof.late and not errors and summary.rows["data"] < MOST_COMPARED:
            names = [name for name in proof.profile.schema.names if name in rows.table.schema.names]
            made = open_run(str(out)).table("data", names).select(names)
            if _rows_as_text(made) != _rows_as_text(rows.table.select(names)):
                other_values.append(case.name)
        page = write_page(str(out), str(tmp_path / f"{number}.html"), Roles())
        assert page["messages"] == proof.rows, case.name
        if not proof.late and not errors:
            assert page["headline"].startswith(("All ", "The one row")), case.name
        ran += 1
    assert ran >= 10
    assert other_values == []
