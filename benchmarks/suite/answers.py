"""What is right: each job in plain numpy, without any contestant. Slow, and easy to read.

An answer is a dictionary of arrays in a fixed order; `same` compares two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from suite.data import DIMS, VECTORS

TOLERANCE_NS = 200_000_000
SECOND_NS = 10**9
GAP_NS = 500_000_000

Answer = dict[str, NDArray[Any]]


def in_time(key: NDArray[Any], t: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows that come before the newest time of their key, less the tolerance, has passed them."""
    good = np.empty(len(t), np.bool_)
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order])) + 1
    for rows in np.split(order, edges):
        newest = np.maximum.accumulate(t[rows])
        before = np.concatenate([[np.iinfo(np.int64).min // 2], newest[:-1]])
        good[rows] = t[rows] > before - TOLERANCE_NS - 1
    return good


def reorder(data: Answer) -> Answer:
    """Job A: per key the rows in time, by event time (equal ones as they came)."""
    good = np.flatnonzero(in_time(data["key"], data["t"]))
    order = np.lexsort((good, data["t"][good], data["key"][good]))
    return {"id": data["id"][good[order]]}


def tumbling(data: Answer) -> Answer:
    """Job B: count and mean per key, topic and second, of the rows in time."""
    good = in_time(data["key"], data["t"])
    key, topic = data["key"][good], data["topic"][good]
    start = data["t"][good] // SECOND_NS * SECOND_NS
    order = np.lexsort((start, topic, key))
    key, topic, start, value = key[order], topic[order], start[order], data["value"][good][order]
    new = (np.diff(key) != 0) | (np.diff(topic) != 0) | (np.diff(start) != 0)
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    count = np.diff(np.append(first, len(key)))
    mean = np.add.reduceat(value, first) / count
    return {"key": key[first], "topic": topic[first], "start": start[first], "n": count, "m": mean}


def sessions(data: Answer) -> Answer:
    """Job D: per key, stretches of gps messages in time without a pause of more than the gap."""
    gps = data["topic"] == 3
    key, t = data["key"][gps], data["t"][gps]
    good = in_time(key, t)
    key, t = key[good], t[good]
    order = np.lexsort((t, key))
    key, t = key[order], t[order]
    new = (np.diff(key) != 0) | (np.diff(t) > GAP_NS)
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    last = np.append(first[1:], len(t)) - 1
    return {"key": key[first], "first": t[first], "last": t[last], "n": last - first + 1}


def compaction(deltas: pa.Table) -> Answer:
    """Job F: every vector as its last writes left it, zero where nothing was written."""
    t = deltas["t"].to_numpy()
    order = np.argsort(t, kind="stable")
    number = vector_numbers(deltas["vector_id"])
    each = pc.list_value_length(deltas["indices"]).to_numpy()
    first = np.concatenate([[0], np.cumsum(each)[:-1]])
    places = pc.list_flatten(deltas["indices"]).to_numpy()
    values = pc.list_flatten(deltas["values"]).to_numpy()
    vectors = np.zeros((VECTORS, DIMS))
    for row in order:
        part = slice(first[row], first[row] + each[row])
        vectors[number[row], places[part]] = values[part]
    return {"vectors": vectors.ravel()}


def dense(found: Answer) -> Answer:
    """Whole vectors, or a row per written dimension, as one matrix."""
    number = vector_numbers(pa.array(found["vector_id"].tolist(), pa.string()))
    vectors = np.zeros((VECTORS, DIMS))
    if "vectors" in found:
        vectors[number] = found["vectors"]
    else:
        vectors[number, found["place"]] = found["value"]
    return {"vectors": vectors.ravel()}


def vector_numbers(ids: Any) -> NDArray[Any]:
    """`v17` is vector 17."""
    return pc.utf8_slice_codeunits(ids, 1).cast(pa.int64()).to_numpy()


def closed(right: Answer, found: Answer, data: Answer) -> tuple[Answer, Answer]:
    """What a stream must have let out when its input ends: what was over for every key two seconds
    before. The rest of both is left aside."""
    newest = np.full(int(data["key"].max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, data["key"], data["t"])
    over = int(newest.min()) - 2 * SECOND_NS

    def part(answer: Answer) -> Answer:
        if "start" in answer:
            ends = answer["start"] + SECOND_NS
        else:
            ends = answer["last"] + GAP_NS if "last" in answer else data["t"][answer["id"]]
        return {name: values[ends < over] for name, values in answer.items()}

    return part(right), part(found)


def same(ours: Answer, theirs: Answer) -> str:
    """Empty, or in a few words what differs."""
    for name, expected in ours.items():
        found = theirs.get(name)
        if found is None:
            return f"no {name}"
        if len(found) != len(expected):
            return f"{len(found)} instead of {len(expected)} rows"
        if expected.dtype.kind == "f":
            equal = np.isclose(found, expected, rtol=1e-9, atol=1e-12)
        else:
            equal = found == expected
        if not equal.all():
            return f"{name} differs in {int((~equal).sum())} of {len(equal)} rows"
    return ""


def judge_sets(data: Answer, sets: NDArray[Any]) -> dict[str, float]:
    """Job C has no one right answer: how wide the sets are, and how many messages are in two."""
    times = data["t"][sets]
    spread = times.max(axis=1) - times.min(axis=1)
    twice = sum(len(column) - len(np.unique(column)) for column in sets.T)
    return {
        "sets": float(len(sets)),
        "median_spread_ms": float(np.median(spread) / 1e6),
        "used_twice": float(twice),
    }
