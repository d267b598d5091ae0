"""Rows of deltas where they lie, and what was read off them.

Chains name rows of a pool by number: to admit, compact, split or join chains, only numbers move. A
row is copied when it is stored, not before.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.core.numba import kernel
from tidegate.core.outcomes import Int64s
from tidegate.deltas.rows import DELTAS, Block, row_bytes

__all__ = ["Pool", "spans"]

Check = tuple[NDArray[np.int8], Int64s]


@kernel
def spans(start: Int64s, size: Int64s) -> tuple[Int64s, Int64s]:
    """The numbers start[k], start[k] + 1, ... of each span, and beside each its k."""
    total = 0
    for k in range(len(size)):
        total += size[k]
    inside, whose = np.empty(total, np.int64), np.empty(total, np.int64)
    place = 0
    for k in range(len(size)):
        for j in range(size[k]):
            inside[place] = start[k] + j
            whose[place] = k
            place += 1
    return inside, whose


class Pool:
    """Rows (schema DELTAS), in no order that matters."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self._checks: dict[int, tuple[NDArray[np.int8], Int64s, bool]] = {}

    @classmethod
    def none(cls) -> Pool:
        return cls(pa.RecordBatch.from_pylist([], schema=DELTAS))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def block(self) -> Block:
        return Block.of(self.rows)

    @cached_property
    def nbytes(self) -> Int64s:
        """Measured bytes of each row."""
        return row_bytes(self.rows)

    @cached_property
    def merged(self) -> bool:
        """Whether some row stands for several deltas."""
        covers = self.rows.column("covers")
        return bool(covers.null_count < len(covers))

    @cached_property
    def sizes(self) -> Int64s:
        """How many deltas each row stands for."""
        if not self.merged:
            return np.ones(len(self), np.int64)
        covers = self.rows.column("covers")
        sizes: Int64s = pc.fill_null(covers.value_lengths(), 1).to_numpy().astype(np.int64)
        return sizes

    @cached_property
    def ids(self) -> tuple[pa.Array, Int64s]:
        """All ids the rows stand for, flat, and where each row's begin."""
        ids, covers = self.rows.column("delta_id"), self.rows.column("covers")
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.sizes, out=ends[1:])
        if not self.merged:
            return ids, ends
        listed = covers.is_valid().to_numpy(zero_copy_only=False)
        both = pa.concat_arrays([ids, covers.flatten()])
        from_list = np.repeat(listed, self.sizes)
        place = np.empty(ends[-1], np.int64)
        place[~from_list] = np.flatnonzero(~listed)
        place[from_list] = len(ids) + np.arange(int(from_list.sum()))
        return both.take(pa.array(place)), ends

    def check(self, dims: int) -> Check:
        """Per row: the reason it cannot be used (0: it can), and the number that goes with it."""
        return self._check(dims)[:2]

    def sound(self, dims: int) -> bool:
        """Whether every row can be used."""
        return self._check(dims)[2]

    def _check(self, dims: int) -> tuple[NDArray[np.int8], Int64s, bool]:
        if dims not in self._checks:
            reason, where = self.block.check(dims)
            self._checks[dims] = reason, where, not reason.any()
        return self._checks[dims]

    def plus(self, more: Pool) -> Pool:
        """These rows, and behind them others.

        What was read off them is not read again: the first compose after an append would take
        several times as long as the one after it.
        """
        new = Pool(pa.concat_batches([self.rows, more.rows]))
        if "block" in self.__dict__ and "block" in more.__dict__:
            new.__dict__["block"] = self.block.plus(more.block)
            for dims in self._checks.keys() & more._checks.keys():
                mine, theirs = self._checks[dims], more._checks[dims]
                reason = np.concatenate([mine[0], theirs[0]])
                where = np.concatenate([mine[1], theirs[1]])
                new._checks[dims] = reason, where, mine[2] and theirs[2]
        if "nbytes" in self.__dict__ and "nbytes" in more.__dict__:
            new.__dict__["nbytes"] = np.concatenate([self.nbytes, more.nbytes])
        return new
