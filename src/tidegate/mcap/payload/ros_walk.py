"""Kernels for ROS payloads: one follows a program and finds fields, one copies them out.

They run over bytes of files that cannot be trusted: every length is compared with what is left of
the payload before it is used. `walk_payloads` stops at the first fault of a payload and goes on
with the next payload.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.core.numba import kernel

__all__ = ["REASONS", "FoundFields", "gather", "walk_payloads"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

REASONS = {
    1: "the payload ends inside {name}",
    2: "the payload does not begin as plain CDR",
    3: "{left} bytes are left over",
}
"""Why a payload was refused, by the value in `how`; 0 is a good one."""


class FoundFields(NamedTuple):
    """What `walk_payloads` fills in."""

    at: Ints
    """Per row and slot: the offset of the field in the data."""
    size: Ints
    """Per row and slot: the bytes of the field, without the zero that ends a CDR string."""
    how: Ints
    """Per row: 0, or a key of `REASONS`."""
    where: Ints
    """Per row: the step at which the payload ended (reason 1), or the bytes left (reason 3)."""


@kernel
def walk_payloads(
    data: Bytes, offsets: Ints, program: Ints, depth: int, cdr: bool, found: Any
) -> None:
    """Run `program` over every payload.

    An element of a loop takes at least one byte, so a count that is larger than the bytes left is
    refused, and no payload can keep the kernel busy for longer than its length allows.

    Args:
        data: Bytes of all payloads.
        offsets: Where each payload starts, and the end of the last.
        program: Steps, as `WalkProgram.array`.
        depth: `WalkProgram.depth`.
        cdr: True for ROS 2 (4 bytes before the message give the byte order, values are aligned).
        found: `FoundFields`, filled.
    """
    at, size, how, where = found
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
                    # CDR aligns relative to the first byte behind its 4 bytes of head, not to the
                    # file.
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
        # Writers of CDR may pad the end to a multiple of 4.
        if how[row] == 0 and end - pos > (3 if cdr else 0):
            how[row] = 3
            where[row] = end - pos


@kernel
def gather(
    data: Bytes, at: Ints, edges: Ints, element: int, swap: npt.NDArray[np.bool_], out: Bytes
) -> None:
    """Copy the bytes of one field of every row into one array.

    Args:
        data: Bytes of all payloads.
        at: Per row: offset of the field in `data`.
        edges: Where the bytes of each row start in `out`, and the end of the last.
        element: Bytes of one value.
        swap: Per row: whether its values are big endian and must be reversed.
        out: Filled; must have `edges[-1]` bytes.
    """
    for row in range(len(at)):
        place = at[row]
        for pos in range(edges[row], edges[row + 1]):
            inside = pos - edges[row]
            if swap[row]:
                # Mirror the byte within its element.
                inside += element - 1 - 2 * (inside % element)
            out[pos] = data[place + inside]
