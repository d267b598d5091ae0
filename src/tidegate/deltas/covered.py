"""The ids that chains have folded: they are never applied again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.outcomes import Int64s

__all__ = ["Covered"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Covered:
    """Ids by number, among texts that may be more than these: they are copied when stored."""

    texts: pa.Array
    which: Int64s | None
    """Places among the texts; None: all of them, as they stand."""
    vec: Int64s
    time_ns: Int64s

    @classmethod
    def none(cls) -> Covered:
        return cls(pa.array([], pa.string()), None, np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def ids(self) -> pa.Array:
        return self.texts if self.which is None else self.texts.take(pa.array(self.which))

    @property
    def places(self) -> Int64s:
        return np.arange(len(self.vec)) if self.which is None else self.which

    @property
    def nbytes(self) -> Int64s:
        """Measured bytes of each id: its letters and its offset."""
        if not len(self.vec):
            return np.empty(0, np.int64)
        texts = self.texts
        ends = np.frombuffer(texts.buffers()[1], np.int32)
        ends = ends[texts.offset : texts.offset + len(texts) + 1]
        length = ends[1:] - ends[:-1]
        return (length if self.which is None else length[self.which]).astype(np.int64) + 4

    def plus(self, more: Covered) -> Covered:
        """These, and behind them others."""
        if not len(more.vec):
            return self
        if not len(self.vec):
            return more
        texts, mine, theirs = self.texts, self.places, more.places
        if more.texts is not texts:
            texts, theirs = pa.concat_arrays([texts, more.texts]), theirs + len(texts)
        return Covered(
            texts,
            np.concatenate([mine, theirs]),
            np.concatenate([self.vec, more.vec]),
            np.concatenate([self.time_ns, more.time_ns]),
        )

    def where(self, keep: Bools) -> Covered:
        return Covered(self.texts, self.places[keep], self.vec[keep], self.time_ns[keep])

    def of(self, vectors: Int64s, total: int) -> Covered:
        """Those of these vectors (out of so many), which are numbered anew in this order."""
        if not len(self.vec):
            return self
        new = np.full(total, -1, np.int64)
        new[vectors] = np.arange(len(vectors))
        vec = new[self.vec]
        keep = vec >= 0
        if keep.all():
            return replace(self, vec=vec)
        return Covered(self.texts, self.places[keep], vec[keep], self.time_ns[keep])

    def by_vector(self, vectors: int) -> tuple[pa.Array, Int64s, NDArray[np.int32]]:
        """Ids and times by vector, otherwise in their order; and where each vector's begin."""
        ends = np.zeros(vectors + 1, np.int32)
        np.cumsum(np.bincount(self.vec, minlength=vectors), out=ends[1:])
        if (self.vec[1:] >= self.vec[:-1]).all():
            return self.ids, self.time_ns, ends
        order = np.argsort(self.vec, kind="stable")
        return self.texts.take(pa.array(self.places[order])), self.time_ns[order], ends

    def settled(self) -> Covered:
        """The same, with nothing but their own texts kept alive."""
        return self if self.which is None else replace(self, texts=self.ids, which=None)
