"""Payloads where they are: bytes of a recording, and per message where its payload starts and ends.

Decoding needs no payload to be copied out of its chunk first. A `PayloadSpans` is what decoders
read; `array` copies payloads into an Arrow array, for codecs that want one.

A *reference* stands for bytes that stay behind: the number of a block, an offset in it and a size,
16 bytes in all (`REFERENCE`). It goes through a flow like any small value, is never interpolated,
and `tidegate.mcap.blocks` finds its bytes again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.core.numba import as_readonly, kernel

__all__ = ["PLACE", "REFERENCE", "PayloadSpans", "references"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

REFERENCE = pa.binary(16)
"""The Arrow type of a reference: opaque bytes, which no stage takes for a number or a text."""

PLACE = np.dtype([("block", "<u4"), ("offset", "<u4"), ("size", "<u4"), ("spare", "<u4")])
"""What the 16 bytes of a reference mean. Blocks have less than 2 GiB, so 32 bits will do."""


class PayloadSpans(NamedTuple):
    """Payloads of messages as spans of bytes.

    >>> spans = PayloadSpans.of(pa.array([b"one", b"", b"three"], pa.binary()))
    >>> spans.select(np.array([2, 0])).array().to_pylist()
    [b'three', b'one']
    """

    data: Bytes
    """The bytes that hold the payloads, and anything between them; not writable."""
    starts: Ints
    """Per payload, its first byte."""
    ends: Ints
    """Per payload, the byte behind its last one."""
    block: int = 0
    """The number of `data` for references into it."""

    @classmethod
    def of(cls, payloads: pa.Array) -> PayloadSpans:
        """The payloads of a binary array without nulls, which may be a slice; nothing is copied."""
        _, offsets, data = payloads.buffers()
        first = payloads.offset
        edges = np.frombuffer(offsets, np.int32)[first : first + len(payloads) + 1]
        plain = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        wide = edges.astype(np.int64)
        return cls(as_readonly(plain), wide[:-1], wide[1:])

    def select(self, rows: Ints) -> PayloadSpans:
        """Some of the payloads, by row number."""
        return self._replace(starts=self.starts[rows], ends=self.ends[rows])

    def array(self) -> pa.Array:
        """A binary array of the payloads: a copy, of less than 2 GiB."""
        edges = np.zeros(len(self.starts) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=edges[1:])
        out = np.empty(int(edges[-1]), np.uint8)
        copy_spans(self.data, as_readonly(self.starts), edges, out)
        buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), len(self.starts), buffers)

    def references(self) -> pa.Array:
        """A reference per payload."""
        return references(self.block, self.starts, self.ends - self.starts)


def references(
    block: int, at: Ints, size: Ints, good: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Make references.

    Args:
        block: The block that they lead into.
        at: Per row the offset in the block.
        size: Per row the number of bytes.
        good: Which rows have bytes at all; the others are null. None: all of them.

    >>> references(3, np.array([70]), np.array([5])).type
    FixedSizeBinaryType(fixed_size_binary[16])
    """
    places = np.zeros(len(at), PLACE)
    places["block"], places["offset"], places["size"] = block, at, size
    valid = None
    if good is not None and not good.all():
        valid = pa.py_buffer(np.packbits(good, bitorder="little"))
    return pa.Array.from_buffers(REFERENCE, len(at), [valid, pa.py_buffer(places)])


@kernel
def copy_spans(data: Bytes, starts: Ints, edges: Ints, out: Bytes) -> None:
    """Copy spans of bytes behind each other.

    Args:
        data: The bytes to copy from.
        starts: Where each span starts in `data`.
        edges: Where each one goes in `out`, and the end of the last.
        out: Filled; must have `edges[-1]` bytes.
    """
    for row in range(len(starts)):
        size = edges[row + 1] - edges[row]
        out[edges[row] : edges[row] + size] = data[starts[row] : starts[row] + size]
