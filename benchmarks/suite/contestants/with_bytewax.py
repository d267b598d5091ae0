"""Bytewax: its event-time windows, one Python object per message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as windowing
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

VERSION = version("bytewax")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def prepare(path: str) -> Any:
    table = pq.read_table(path)
    columns = (table[name].to_pylist() for name in ("key", "topic", "t", "value"))
    return [(f"{key}/{topic}", (t, value)) for key, topic, t, value in zip(*columns, strict=True)]


def _time(item: Any) -> datetime:
    return EPOCH + timedelta(microseconds=item[0] // 1000)


def tumbling(messages: Any) -> Any:
    """Its clock runs on with wall time, and its watermark is one per key and topic."""
    out: list[Any] = []
    flow = Dataflow("tumbling")
    stream = op.input("in", flow, TestingSource(messages, batch_size=1000))
    clock = windowing.EventClock(_time, wait_for_system_duration=timedelta(milliseconds=200))
    windower = windowing.TumblingWindower(length=timedelta(seconds=1), align_to=EPOCH)
    made = windowing.fold_window("fold", stream, clock, windower, lambda: [0, 0.0], _fold, _merge)
    op.output("out", made.down, TestingSink(out))
    run_main(flow)
    return out


def _fold(sums: list[Any], item: Any) -> list[Any]:
    sums[0] += 1
    sums[1] += item[1]
    return sums


def _merge(one: list[Any], two: list[Any]) -> list[Any]:
    return [one[0] + two[0], one[1] + two[1]]


JOBS = {"tumbling": tumbling}


def answer(job: str, result: Any) -> dict[str, Any]:
    import numpy as np

    rows = sorted(
        (*map(int, name.split("/")), window * 10**9, count, total / count)
        for name, (window, (count, total)) in result
    )
    columns = zip(*rows, strict=True)
    names = ("key", "topic", "start", "n", "m")
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}
