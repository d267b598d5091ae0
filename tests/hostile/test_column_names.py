"""No column name is special: whatever columns are called, outcomes are those of plain names.

Every name that Tidegate adds, uses inside or once used inside, and names with dots, backticks,
spaces, other scripts and odd case, as key, topic, time, arrival and payload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidegate.batching.stage import Batch
from tidegate.core.columns import output_names
from tidegate.core.flow import Flow
from tidegate.core.operator import Operator
from tidegate.core.outcomes import Outcome, Watermark
from tidegate.errors import ConfigError
from tidegate.eventtime import Decoder, EventtimeWatermark, TimeColumn
from tidegate.sync import Synchronize
from tidegate.windows import Tumbling, Window

NAMES = (
    "__time", "__time_ns", "__shard", "__slot", "__where", "__place", "__serial", "__late",
    "__lane", "__tidegate", "time_ns", "tidegate_time_ns", "lateness_ns", "watermark_ns", "reason",
    "error_column", "error_value", "error_reason", "kind", "shard", "blob", "part", "rows", "file",
    "column_0", "newest", "suspects", "name", "value", "a.b", "a`b", "a b", "größe", "名前",
    "Upper", "",
)[:-1]  # fmt: skip
"""Columns of the user's, all of them allowed."""

ROLES = ("key", "topic", "time", "arrival")
PLAIN = (*ROLES, *(f"payload_{n}" for n in range(len(NAMES) - len(ROLES))))


def rotated(by: int) -> dict[str, str]:
    """Which name each plain column gets: every name takes every role in turn."""
    names = NAMES[by:] + NAMES[:by]
    return dict(zip(PLAIN, names, strict=True))


def rows(count: int = 60) -> pa.Table:
    """Two keys, two topics; some rows late, some without a readable time."""
    times: list[int | None] = [n * 10 for n in range(count)]
    times[20], times[30] = 5, None
    columns: dict[str, Any] = {
        "key": [f"k{n % 2}" for n in range(count)],
        "topic": ["ab"[n // 2 % 2] for n in range(count)],
        "time": times,
        "arrival": list(range(count)),
    }
    payload = {name: [f"{name}:{n}" for n in range(count)] for name in PLAIN[len(ROLES) :]}
    return pa.table({**columns, **payload})


Stages = Callable[[dict[str, str]], tuple[Operator, ...]]

STAGES: dict[str, Stages] = {
    "order": lambda names: (),
    "synchronize": lambda names: (
        Synchronize(("a", "b"), queue_size=10, topic=names["topic"], keys=(names["key"],)),
    ),
    "batch": lambda names: (Batch(100, topic=names["topic"], gated=True, keys=(names["key"],)),),
    "window": lambda names: (Window(Tumbling(100), keys=(names["key"],), in_order=True),),
}


def in_process(names: dict[str, str], make: Stages) -> list[Outcome]:
    table = rows().rename_columns([names[name] for name in PLAIN])
    decoder = Decoder((TimeColumn(names["time"], "unixtimestamp_ns"),))
    stages = (EventtimeWatermark(30, watermark_per="tuple"), *make(names))
    flow = Flow(stages, key=names["key"], decoder=decoder)
    out: list[Outcome] = []
    for batch in table.to_batches(max_chunksize=7):
        out += flow.process(batch)
    return out + flow.end()


def named(value: Any, names: dict[str, str]) -> Any:
    """The same value with columns and fields renamed."""
    if isinstance(value, dict):
        return {names.get(key, key): named(inner, names) for key, inner in value.items()}
    return [named(one, names) for one in value] if isinstance(value, list) else value


OURS = ("time_ns", "lateness_ns", "watermark_ns", "reason", "error_column", "error_value",
        "error_reason")  # fmt: skip


def expected_rows(outcome: Outcome, names: dict[str, str], user: list[str]) -> list[Any]:
    """What a plainly named outcome must look like under other names."""
    assert not isinstance(outcome, Watermark)
    mine = [name for name in outcome.table().schema.names if name in OURS]
    present = [names.get(n, n) for n in user]
    ours = output_names(present, [name for name in mine if name not in user])
    found = []
    for row in outcome.table().to_pylist():
        renamed = named({k: v for k, v in row.items() if k not in ours}, names)
        renamed |= {ours[name]: row[name] for name in ours}
        if "error_column" in ours:  # says which column it was: under its name
            column = row["error_column"]
            renamed[ours["error_column"]] = names.get(column, column)
        found.append(renamed)
    return found


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("by", range(0, len(NAMES), 3))
def test_outcomes_are_those_of_plain_names(stages: str, by: int) -> None:
    plain = in_process({name: name for name in PLAIN}, STAGES[stages])
    names = rotated(by)
    found = in_process(names, STAGES[stages])
    assert [type(o) for o in found] == [type(o) for o in plain]
    for one, other in zip(found, plain, strict=True):
        if not isinstance(one, Watermark) and not isinstance(other, Watermark):
            user = list(other.rows.schema.names)
            assert one.table().to_pylist() == expected_rows(other, names, user), other.kind


def test_the_internal_namespace_is_refused_in_one_sentence() -> None:
    flow = Flow([EventtimeWatermark(0)], decoder=Decoder((TimeColumn("t", "unixtimestamp_ns"),)))
    with pytest.raises(ConfigError, match="columns that start with '__tidegate_' are internal"):
        flow.process(pa.record_batch({"t": [1], "__tidegate_time_ns": [2]}))
