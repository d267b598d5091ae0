"""The record of a run comes from a folder that anybody may have written to."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import StateError
from tidegate.pipeline import PipelineDefinition
from tidegate.pipeline.run_record import RunRecord, record_text

GOOD = json.loads(record_text(PipelineDefinition.of({"streams": {"s": {"key": "car"}}})))


def test_what_was_written_is_read() -> None:
    assert RunRecord.read(json.dumps(GOOD).encode(), "x").key == ("car",)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{}", b"5", b"\xff", b"[" * 100_000, b'{"a":' * 100_000,
     json.dumps({**GOOD, "format": 99}).encode(), json.dumps({**GOOD, "format": "1"}).encode(),
     json.dumps({**GOOD, "format": True}).encode(), json.dumps({**GOOD, "roles": []}).encode(),
     json.dumps({**GOOD, "definition": 5}).encode(),
     json.dumps({**GOOD, "roles": {**GOOD["roles"], "key": "car"}}).encode(),
     json.dumps({**GOOD, "roles": {**GOOD["roles"], "key": [["a"]]}}).encode(),
     json.dumps({**GOOD, "roles": {**GOOD["roles"], "topic": {}}}).encode()],
)  # fmt: skip
def test_anything_else_is_a_state_error(text: bytes) -> None:
    with pytest.raises(StateError, match=r"^out/pipeline\.json "):
        RunRecord.read(text, "out/pipeline.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(GOOD)), json_values, st.sampled_from([None, *GOOD["roles"]]))
def test_fuzzed(field: str, value: Any, role: str | None) -> None:
    made = {**GOOD, field: value}
    if role is not None:
        made = {**GOOD, "roles": {**GOOD["roles"], role: value}}
    with suppress(StateError):
        record = RunRecord.read(json.dumps(made).encode(), "x")
        assert all(isinstance(name, str) for name in (*record.key, *record.arrival))
