"""Snapshots that somebody changed, with checksums that are right: only a StateError may come out.

`assert_survives_crafted` takes a good snapshot and what to do with one, changes it in every way
that keeps its form (values of arrays and tables, rows, columns, types, lanes, shapes, counters,
settings), repairs the checksums, and tries each one in a child process: a kernel that trusts an
index it should not trust ends the child with a signal, which is then a failure with the mutation
that caused it.

    assert_survives_crafted(blob, lambda changed: use(operator.restore(changed)))
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.core import snapshot
from tidegate.core.ipc import write_batch
from tidegate.errors import StateError

__all__ = ["assert_survives_crafted", "crafted"]

_NUMBERS = (0, 1, -1, 2, 7, 63, 64, 511, 512, 513, 10**6, 2**31 - 1, -(2**31), 2**31, 2**32,
            2**62, 2**63 - 1, -(2**63), -(2**63) + 1)  # fmt: skip
"""Values that indices, counts and times fail on: limits of types, and of sizes used in the package.
"""


def crafted(blob: bytes, seed: int) -> tuple[bytes, str]:
    """Change a snapshot and repair its checksums.

    Args:
        blob: A good snapshot.
        seed: The same seed gives the same change. About two in five make several changes.

    Returns:
        The changed snapshot, and a description of what was changed.

    Example:
        >>> blob = snapshot.pack({"n": 1}, [b"abc"])
        >>> changed, what = crafted(blob, 1)
        >>> changed != blob, isinstance(what, str)
        (True, True)
    """
    rng = Random(seed)
    words = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        blob, what = _change(blob, rng)
        words.append(what)
    return blob, "; ".join(words)


def assert_survives_crafted(
    blob: bytes,
    use: Callable[[bytes], object],
    *,
    examples: int = 300,
    seed: int = 0,
    seconds: float = 30,
    tolerate: tuple[type[Exception], ...] = (),
) -> None:
    """Assert that every crafted snapshot is either used or refused with a StateError.

    Needs `os.fork`, so it does not run on Windows.

    Args:
        blob: A good snapshot: of an operator, a flow or an in-process object. Take one with as much
            in it as possible; `use(blob)` itself must succeed.
        use: Restores a snapshot and runs on: a few more rows, a watermark, a wake, a flush, a
            snapshot.
        examples: How many changes to try.
        seed: The first seed; change number n has `seed + n`.
        seconds: The longest that a single example may take: a loop that does not end is a failure.
        tolerate: Further exceptions that `use` may end with, after the restore. Keep it empty.

    Raises:
        AssertionError: with the seed and the change, if the process dies by a signal, hangs, or
            raises anything but StateError.
    """
    use(blob)
    number = 0
    while number < examples:
        done, failure = _run_child(blob, use, range(number, examples), seed, seconds, tolerate)
        if failure is not None:
            _, what = crafted(blob, seed + done)
            raise AssertionError(f"crafted(blob, {seed + done}) [{what}]: {failure}")
        number = done


def _run_child(
    blob: bytes,
    use: Callable[[bytes], object],
    numbers: range,
    seed: int,
    seconds: float,
    tolerate: tuple[type[Exception], ...],
) -> tuple[int, str | None]:
    """Try examples in a forked child.

    The child writes the number of each example to a pipe before it tries it, so the parent knows
    which one killed it.

    Args:
        blob: The good snapshot.
        use: What to do with a changed one.
        numbers: The examples to try.
        seed: Seed of example 0.
        seconds: Longest time without a sign of life.
        tolerate: Exceptions that are no failure, besides StateError.

    Returns:
        The number of the example reached, and what went wrong; None if all went well.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            for number in numbers:
                os.write(write, f"{number}\n".encode())
                try:
                    use(crafted(blob, seed + number)[0])
                except BaseException as error:
                    if isinstance(error, (StateError, *tolerate)):
                        continue
                    text = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
                    os.write(write, f"! {text}\n".encode())
                    os._exit(1)
            os.write(write, f"{numbers.stop}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    reached, failure, rest = numbers.start, None, b""
    limit = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            # The example is stuck; the child must not outlive the test.
            failure = f"did not end within {seconds:g} s"
            break
        part = os.read(read, 65536)
        if not part:
            break
        limit = time.monotonic() + seconds
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"! "):
                failure = line[2:].decode()
            else:
                reached = int(line)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if failure is None and os.WIFSIGNALED(status):
        failure = f"the process died with {signal.Signals(os.WTERMSIG(status)).name}"
    return reached, failure


# -- changes -------------------------------------------------------------------------------------


def _change(blob: bytes, rng: Random) -> tuple[bytes, str]:
    """Make one change: most often to an array or a table, sometimes to the header.

    A buffer may be a snapshot itself (a page); then the change is most often made inside one.
    """
    try:
        header, views = snapshot.unpack(blob)
    except StateError:  # an earlier change cut it
        return blob, "unreadable"
    header.pop("sizes")
    buffers = [bytes(view) for view in views]
    inner = [n for n, buffer in enumerate(buffers) if buffer[:4] == b"TIDE"]
    if inner and rng.random() < 0.9:
        number = rng.choice(inner)
        buffers[number], what = _change(buffers[number], rng)
        return snapshot.pack(header, buffers), f"page {number}: {what}"
    places = [place for place in _places(header) if place[2] < len(buffers)]
    if places and rng.random() < 0.85:
        kind, name, number, dtype = rng.choice(places)
        if kind == "array":
            buffers[number], what = _change_array(buffers[number], dtype, rng)
        else:
            buffers[number], what = _change_table(buffers[number], rng)
        return snapshot.pack(header, buffers), f"{kind} {name}: {what}"
    header, what = _change_json(header, rng)
    header = header if isinstance(header, dict) else {"header": header}
    if rng.random() < 0.1 and buffers:
        number = rng.randrange(len(buffers))
        buffers[number] = buffers[number][: rng.randrange(len(buffers[number]) + 1)]
        what += f", buffer {number} cut"
    return snapshot.pack(header, buffers), f"header {what}"


def _places(header: Any) -> Iterator[tuple[str, str, int, str]]:
    """Yield the arrays and tables of a snapshot: kind, name, number of the buffer, dtype."""
    number = 0
    stages = header.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        try:
            for name, dtype, _ in stage["arrays"]:
                yield "array", f"{stage['name']}.{name}", number, dtype
                number += 1
            for name, there in stage["tables"]:
                if there:
                    yield "table", f"{stage['name']}.{name}", number, ""
                    number += 1
        except (KeyError, TypeError, ValueError):  # an earlier change
            return


def _change_array(buffer: bytes, dtype: str, rng: Random) -> tuple[bytes, str]:
    """Change values of an array, but not its length."""
    try:
        array = np.frombuffer(buffer, dtype).copy()
    except (TypeError, ValueError):
        return buffer, "unreadable"
    if array.size == 0 or array.dtype.kind not in "iufb":
        return buffer, "empty"
    how = rng.choice(("one", "one", "one", "some", "all", "swap", "step"))
    value = _number(array.dtype, rng)
    index = rng.randrange(array.size)
    if how == "one":
        array[index] = value
    elif how == "some":
        array[rng.sample(range(array.size), max(1, array.size // 4))] = value
    elif how == "all":
        array[:] = value
    elif how == "swap":
        other = rng.randrange(array.size)
        array[[index, other]] = array[[other, index]]
    else:
        with np.errstate(over="ignore"):
            array[index] = array[index] + np.array(rng.choice((-1, 1, 2))).astype(array.dtype)
    return array.tobytes(), f"{how} {index} := {value}"


def _number(dtype: np.dtype[Any], rng: Random) -> Any:
    """Return a value of a type that code may fail on."""
    if dtype.kind == "f":
        return dtype.type(rng.choice((0.0, -1.0, 1e300, float("nan"), float("inf"))))
    if dtype.kind == "b":
        return rng.random() < 0.5
    value = rng.choice(_NUMBERS) if rng.random() < 0.8 else rng.randrange(-40, 600)
    return np.array(value & (2**64 - 1), np.uint64).astype(dtype)


def _change_table(buffer: bytes, rng: Random) -> tuple[bytes, str]:
    """Change a table: a value, rows, nulls, a column, its type, or a byte of its encoding."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(buffer)) as reader:
            rows = reader.read_next_batch()
        rows.validate(full=True)  # an earlier change may have left text that is not UTF-8,
        _ = rows.schema.names  # also in names
    except (pa.ArrowException, OSError, StopIteration, UnicodeDecodeError):
        return buffer, "unreadable"
    if rows.num_columns == 0:
        return buffer, "empty"
    how = rng.choice(("value", "value", "value", "value", "rows", "null", "drop", "type", "bytes"))
    index = rng.randrange(rows.num_columns)
    name = rows.schema.names[index]
    column = rows.column(index)
    if how == "bytes":
        changed = bytearray(buffer)
        at = rng.randrange(len(changed))
        changed[at] = rng.randrange(256)
        return bytes(changed), f"byte {at}"
    if how == "rows":
        picks = [rng.randrange(rows.num_rows) for _ in range(rng.randrange(rows.num_rows * 2 + 1))]
        rows = rows.take(pa.array(picks if rows.num_rows else [], pa.int64()))
    elif how == "drop":
        rows = rows.drop_columns([name])
    elif how == "null":
        some = [rng.random() < 0.5 for _ in range(rows.num_rows)]
        values = [None if s else v for s, v in zip(some, column.to_pylist(), strict=True)]
        rows = rows.set_column(index, name, pa.array(values, column.type))
    elif how == "type":
        kind = rng.choice((pa.string(), pa.int8(), pa.int64(), pa.list_(pa.int32()), pa.null()))
        rows = rows.set_column(index, name, pa.nulls(rows.num_rows, kind))
    elif rows.num_rows:
        rows = rows.set_column(index, name, _change_values(column, rng))
    return write_batch(rows), f"{how} of {name}"


def _change_values(column: pa.Array, rng: Random) -> pa.Array:
    """Change one value of a column within its type."""
    values = column.to_pylist()
    at = rng.randrange(len(values))
    kind = column.type
    if pa.types.is_integer(kind):
        values[at] = int(_number(np.dtype(kind.to_pandas_dtype()), rng))
    elif pa.types.is_floating(kind):
        values[at] = rng.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
    elif pa.types.is_boolean(kind):
        values[at] = not values[at]
    elif pa.types.is_list(kind):
        values[at] = rng.choice(([], (values[at] or []) * 3, (values[at] or [])[:1]))
    else:
        values[at] = values[rng.randrange(len(values))]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError):
        return column


def _change_json(value: Any, rng: Random, path: str = "") -> tuple[Any, str]:
    """Change one place of a JSON value to something it should not be.

    Args:
        value: The header, or a part of it.
        rng: Decides where and how.
        path: Where `value` stands, for the description.

    Returns:
        The changed value, and what was changed.
    """
    deeper = isinstance(value, (dict, list)) and len(value) > 0
    if deeper and rng.random() < 0.9:
        if isinstance(value, dict):
            key = rng.choice(sorted(value))
            inner, what = _change_json(value[key], rng, f"{path}.{key}")
            return {**value, key: inner}, what
        at = rng.randrange(len(value))
        inner, what = _change_json(value[at], rng, f"{path}[{at}]")
        return [*value[:at], inner, *value[at + 1 :]], what
    options: list[Any] = [None, True, -1, 0, 2**40, 1.5, 10**30, "", "x" * 50, [], {}, [[]] * 3]
    if isinstance(value, int):
        options += [value + 1, value - 1, value * 1000]
    if isinstance(value, str):
        options += [value + "x", "|O", "<U9", "<i8", "<f4"]
    if isinstance(value, list):
        options += [value[:-1], value + value[-1:]]
    if isinstance(value, dict) and value:
        gone = rng.choice(sorted(value))
        options.append({key: inner for key, inner in value.items() if key != gone})
    made = rng.choice(options)
    if rng.random() < 0.02:
        made = json.loads("[" * 500 + "]" * 500)
    return made, f"{path} := {str(made)[:40]}"
