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

__all__ = ["FIXED", "LOOP", "LOOP_END", "REASONS", "SEQUENCE", "TEXT", "FoundFields", "WalkSteps",
           "gather", "walk_payloads"]  # fmt: skip

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

FIXED, TEXT, SEQUENCE, LOOP, LOOP_END = range(5)
"""Kinds of steps: a fixed number of bytes, a string, a sequence of plain values, and the two ends
of a loop over strings or messages."""

GOOD, ENDS_INSIDE, NOT_CDR, BYTES_LEFT = range(4)
"""How the walk over a payload ended."""

REASONS = {
    ENDS_INSIDE: "the payload ends inside {name}",
    NOT_CDR: "the payload does not begin as plain CDR",
    BYTES_LEFT: "{left} bytes are left over",
}
"""Why a payload was refused, by the value in `how`; `GOOD` is not among them."""


class WalkSteps(NamedTuple):
    """The steps of a program: one array per field, one entry per step."""

    kind: Ints
    """`FIXED`, `TEXT`, `SEQUENCE`, `LOOP` or `LOOP_END`."""
    align: Ints
    """Bytes to whose multiple the value is aligned; 1 where nothing is."""
    size: Ints
    """Bytes of the value; of one element of a sequence."""
    slot: Ints
    """Column of `FoundFields` that the value goes to; -1 if it is not wanted."""
    repeat: Ints
    """Elements of a loop; 0 if the payload says how many."""
    jump: Ints
    """Of `LOOP` the step behind the loop, of `LOOP_END` the first step inside it."""


class FoundFields(NamedTuple):
    """What `walk_payloads` fills in."""

    at: Ints
    """Per row and slot: the offset of the field in the data."""
    size: Ints
    """Per row and slot: the bytes of the field, without the zero that ends a CDR string."""
    how: Ints
    """Per row: `GOOD`, or a key of `REASONS`."""
    where: Ints
    """Per row: the step at which the payload ended (`ENDS_INSIDE`), or the bytes left over."""


@kernel
def walk_payloads(
    data: Bytes, starts: Ints, ends: Ints, steps: Any, depth: int, cdr: bool, found: Any
) -> None:
    """Run the steps of a program over every payload.

    An element of a loop takes at least one byte, so a count that is larger than the bytes left is
    refused, and no payload can keep the kernel busy for longer than its length allows.

    Args:
        data: Bytes of all payloads.
        starts: Where each payload starts.
        ends: Where it ends.
        steps: `WalkSteps`.
        depth: `WalkProgram.depth`.
        cdr: True for ROS 2 (4 bytes before the message give the byte order, values are aligned).
        found: `FoundFields`, filled.
    """
    at, size, how, where = found
    left = np.zeros(depth + 1, np.int64)
    for row in range(len(starts)):
        base = starts[row]
        end = ends[row]
        how[row] = GOOD
        big = False
        if cdr:
            if end - base < 4 or data[base] != 0 or data[base + 1] > 1:
                how[row] = NOT_CDR
                continue
            big = data[base + 1] == 0
            base += 4
        pos = base
        step = 0
        level = 0
        while step < len(steps.kind):
            what = steps.kind[step]
            slot = steps.slot[step]
            if what == LOOP_END:
                left[level] -= 1
                if left[level] > 0:
                    step = steps.jump[step]
                else:
                    level -= 1
                    step += 1
                continue
            if what == FIXED:
                align = steps.align[step]
                pos = base + ((pos - base + align - 1) & -align)
                many: Any = steps.size[step]
            elif what == LOOP and steps.repeat[step] > 0:
                many = steps.repeat[step]
            else:
                if cdr:
                    # CDR aligns relative to the first byte behind its 4 bytes of head, not to the
                    # file.
                    pos = base + ((pos - base + 3) & -4)
                if pos + 4 > end:
                    how[row] = ENDS_INSIDE
                    where[row] = step
                    break
                many = np.int64(0)
                for place in range(4):
                    byte = data[pos + place] if big else data[pos + 3 - place]
                    many = many * 256 + np.int64(byte)
                pos += 4
            if what == SEQUENCE and many > 0:
                align = steps.align[step]
                pos = base + ((pos - base + align - 1) & -align)
                many *= steps.size[step]
            if pos > end or many > end - pos:
                how[row] = ENDS_INSIDE
                where[row] = step
                break
            if what == LOOP:
                if many == 0:
                    step = steps.jump[step]
                else:
                    level += 1
                    left[level] = many
                    step += 1
                continue
            if slot >= 0:
                at[row, slot] = pos
                size[row, slot] = many
                if what == TEXT and cdr and many > 0 and data[pos + many - 1] == 0:
                    size[row, slot] = many - 1
            pos += many
            step += 1
        # Writers of CDR may pad the end to a multiple of 4.
        if how[row] == GOOD and end - pos > (3 if cdr else 0):
            how[row] = BYTES_LEFT
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
        size = edges[row + 1] - edges[row]
        if not swap[row]:
            out[edges[row] : edges[row] + size] = data[place : place + size]
            continue
        for inside in range(size):
            # Mirror the byte within its element.
            mirrored = inside + element - 1 - 2 * (inside % element)
            out[edges[row] + inside] = data[place + mirrored]
