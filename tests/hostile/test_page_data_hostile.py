"""Fuzzer for what the page reads from disk: commits, the run record, a pipeline file beside them.

Whatever stands in them, the page is made or one TidegateError says why not; hostile text never
reaches the page as markup. `tests/report/test_hostile_page.py` opens such pages in Chromium.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.output.commit import Commit
from tidegate.output.reader import run_totals
from tidegate.profile.roles import Roles
from tidegate.report.page import write_page
from tidegate.report.serve import metrics_text

TIMES = int(os.environ.get("TIDEGATE_FUZZ", "1"))
fuzz = settings(max_examples=100 * TIMES, deadline=None, suppress_health_check=list(HealthCheck))

MARK = "<b>evil</b></script><script>evil()</script>"
COMMIT: dict[str, Any] = {
    "batch": 0, "query": "q", "rows": {"data": 3, "late": 1}, "watermark_ns": 5,
    "shards": {"0": {"rows_in": 4, "keys": 1}}, "behind": {"0": {"a": 5}},
    "seen": {"topic": ["imu"]},
    "files": ["data/batch=00000000/part-0.parquet", "late/batch=00000000/part-0.parquet"],
}  # fmt: skip

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**70), 2**70), st.floats(),
    st.text(max_size=12),
    st.sampled_from([MARK, "../../etc/passwd", "data/../../x", "/etc/passwd", "data/\0",
                     "__proto__", "data/batch=00000000/part-0.parquet", "late/nothing.parquet"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths_of(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            found += paths_of(inner, (*path, place))
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    for kind, rows in (("data", 3), ("late", 1)):
        folder = out / kind / "batch=00000000"
        folder.mkdir(parents=True)
        table = pa.table({"vehicle": ["a"] * rows, "topic": ["imu"] * rows,
                          "time_ns": list(range(rows)), "lateness_ns": [1] * rows})  # fmt: skip
        pq.write_table(table, folder / "part-0.parquet")
    (out / "_commits").mkdir()
    (out / "_tidegate").mkdir()
    return out


def look(out: Path) -> None:
    page = out / "page.html"
    with suppress(TidegateError):
        metrics_text(run_totals(str(out)))
    with suppress(TidegateError):
        write_page(str(out), str(page), Roles())
        assert MARK not in page.read_text()


@fuzz
@given(st.sampled_from(paths_of(COMMIT)), values, st.booleans())
def test_commits(output: Path, path: tuple[Any, ...], value: Any, rename: bool) -> None:
    made = copy.deepcopy(COMMIT)
    here: Any = made
    for part in path[:-1]:
        here = here[part]
    if rename and isinstance(here, dict):
        here[str(value)] = here.pop(path[-1])
    else:
        here[path[-1]] = value
    (output / "_commits" / "00000000.json").write_text(json.dumps(made))
    look(output)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
NAMED = {
    "deep list": b"[" * 100_000,
    "deep mapping": b'{"a":' * 100_000,
    "aliases": BOMB.encode(),
    "wrong types": b"streams: {s: {key: 5, topic: []}}",
    "markup": f"streams: {{s: {{key: '{MARK}', topic: '{MARK}'}}}}".encode(),
}
"""By name, so that a failure does not print them."""
contents = st.sampled_from(sorted(NAMED)) | st.binary(max_size=200)


def bytes_of(content: str | bytes) -> bytes:
    return NAMED[content] if isinstance(content, str) else content


@fuzz
@given(contents)
def test_any_bytes_as_a_commit(output: Path, content: str | bytes) -> None:
    (output / "_commits" / "00000000.json").write_bytes(bytes_of(content))
    look(output)
    with suppress(TidegateError):
        Commit.from_json(bytes_of(content), "x")


@fuzz
@given(contents, st.booleans())
def test_a_record_or_a_pipeline_file_beside_the_tables(
    output: Path, content: str | bytes, record: bool
) -> None:
    (output / "_commits" / "00000000.json").write_text(json.dumps(COMMIT))
    place = output / ("_tidegate/pipeline.json" if record else "pipeline.yaml")
    place.write_bytes(bytes_of(content))
    try:
        look(output)
    finally:
        place.unlink()


def test_an_output_without_tables(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output / "_commits", tmp_path / "_commits")
    look(tmp_path)
