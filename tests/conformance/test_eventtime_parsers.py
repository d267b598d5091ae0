"""The recorded values and what a parser must make of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cases import load_list
from tidegate.errors import ConfigError
from tidegate.eventtime import EventtimeTypes


def column(value: object) -> pa.Array:
    return pa.array([value], pa.uint64()) if value == 2**64 - 1 else pa.array([value])


@pytest.mark.parametrize("case", load_list("eventtime/parsers.json", "cases"))
def test_parser(case: dict[str, Any]) -> None:
    types = EventtimeTypes()
    if "resolve_error" in case:
        with pytest.raises(ConfigError) as caught:
            types.resolve(case["type"])
        head, known = str(caught.value).split("(available: ")
        assert head + "(available: ...)" == case["resolve_error"]
        assert known.rstrip(")").split(", ") == types.list()
        return
    parsed = types.parse(case["type"], column(case["value"]))
    if "error" in case:
        assert not parsed.ok[0]
        assert case["error"] in parsed.reason[0].as_py()
    else:
        assert parsed.ok[0]
        assert parsed.time_ns[0] == case["ts_ms"] * 10**6


def test_built_in_names_are_listed_sorted() -> None:
    names = EventtimeTypes().list()
    assert names == sorted(names)
    assert {"unixtimestamp_ms", "unixtimestamp_s"} <= set(names)
