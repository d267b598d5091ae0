"""The kernel that follows a program through payloads, and from places in bytes to columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.core.numba import kernel

__all__ = ["REASONS", "gather", "walk_payloads"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

REASONS = {
    1: "the payload ends inside {name}",
    2: "the payload does not begin as plain CDR",
    3: "{left} bytes are left over",
}


@kernel
def walk_payloads(
    data: Bytes,
    offsets: Ints,
    program: Ints,
    depth: int,
    cdr: bool,
    at: Ints,
    size: Ints,
    how: Ints,
    where: Ints,
) -> None:
    """Run `program` over every payload. Per row and slot: where the field is and its bytes; per row
    how it ended (0: well) and at which step, or with how many bytes left.

    An element of a loop takes at least a byte, so a count that is larger than what is left is
    refused, and no payload can keep the kernel for longer than its length.
    """
    left = np.zeros(depth + 1, np.int64)
    for row in range(len(offsets) - 1):
        base = offsets[row]
        end = offsets[row + 1]
        how[row] = 0
        big = False
        if cdr:
            if end - base < 4 or data[base] != 0 or data[base + 1] > 1:
                how[row] = 2
                continue
            big = data[base + 1] == 0
            base += 4
        pos = base
        step = 0
        level = 0
        while step < len(program):
            what = program[step, 0]
            slot = program[step, 3]
            if what == 4:
                left[level] -= 1
                if left[level] > 0:
                    step = program[step, 2]
                else:
                    level -= 1
                    step += 1
                continue
            if what == 0:
                align = program[step, 1]
                pos = base + ((pos - base + align - 1) & -align)
                many: Any = program[step, 2]
            elif what == 3 and program[step, 1] > 0:
                many = program[step, 1]
            else:
                if cdr:
                    pos = base + ((pos - base + 3) & -4)
                if pos + 4 > end:
                    how[row] = 1
                    where[row] = step
                    break
                many = np.int64(0)
                for place in range(4):
                    byte = data[pos + place] if big else data[pos + 3 - place]
                    many = many * 256 + np.int64(byte)
                pos += 4
            if what == 2 and many > 0:
                align = program[step, 1]
                pos = base + ((pos - base + align - 1) & -align)
                many *= program[step, 2]
            if pos > end or many > end - pos:
                how[row] = 1
                where[row] = step
                break
            if what == 3:
                if many == 0:
                    step = program[step, 2]
                else:
                    level += 1
                    left[level] = many
                    step += 1
                continue
            if slot >= 0:
                at[row, slot] = pos
                size[row, slot] = many
                if what == 1 and cdr and many > 0 and data[pos + many - 1] == 0:
                    size[row, slot] = many - 1
            pos += many
            step += 1
        if how[row] == 0 and end - pos > (3 if cdr else 0):
            how[row] = 3
            where[row] = end - pos


@kernel
def gather(
    data: Bytes, at: Ints, edges: Ints, element: int, swap: npt.NDArray[np.bool_], out: Bytes
) -> None:
    """Copy the bytes at `at` to where `edges` say, turning the elements of rows in `swap`."""
    for row in range(len(at)):
        place = at[row]
        for pos in range(edges[row], edges[row + 1]):
            inside = pos - edges[row]
            if swap[row]:
                inside += element - 1 - 2 * (inside % element)
            out[pos] = data[place + inside]
