"""A collection whose rows are sorted but not copied yet.

Sorting is cheap as long as it moves row indices; copying the payload is not, and a stage that reads
two columns of ten, or one row in seven, need not copy the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.core.arrow import take
from tidegate.core.outcomes import Collection, Int32s, Int64s
from tidegate.core.parallel import MANY, each, parts
from tidegate.errors import ContractError

__all__ = ["LazyRows", "some_rows"]


class LazyRows(Collection):
    """Rows of `source` by index: `picks`, in that order. `rows` copies them on first use.

    A `LazyRows` keeps the whole source in memory. A stage that holds rows takes what it needs
    (`read`, `take`) or calls `copied`.

    >>> source = pa.record_batch({"v": [10, 20, 30]})
    >>> picked = LazyRows(source, np.array([2, 0]), np.array([1, 3]), np.zeros(2, np.int32))
    >>> picked.rows.column("v").to_pylist(), picked.take(np.array([1])).picks
    ([30, 10], array([0]))
    """

    source: pa.RecordBatch
    """The batch that holds the rows, and maybe others."""
    picks: Int64s
    """Indices into `source`, in the order of the rows."""

    def __init__(
        self,
        source: pa.RecordBatch,
        picks: Int64s,
        time_ns: Int64s,
        lane: Int32s,
        wall_ns: int = 0,
    ) -> None:
        if not len(picks) == len(time_ns) == len(lane):
            raise ContractError(
                f"LazyRows: {len(picks)} rows, {len(time_ns)} times, {len(lane)} lanes"
            )
        # Past the frozen dataclass, whose own way would ask for the rows.
        self.__dict__.update(
            source=source, picks=picks, time_ns=time_ns, lane=lane, wall_ns=wall_ns
        )

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The rows as a batch: copied on first use, and kept."""
        return take(self.source, self.picks)

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def lies(self) -> tuple[pa.RecordBatch, Int64s | None]:
        return self.source, self.picks

    def read(self, name: str, turn: Callable[[pa.Array], NDArray[Any]]) -> NDArray[Any]:
        column = self.source.column(name)
        if max(len(column), len(self.picks)) < MANY:
            return np.take(turn(column), self.picks)
        made = each(lambda part: turn(column[part]), parts(len(column)))
        there = made[0] if len(made) == 1 else np.concatenate(made)
        out = np.empty(len(self.picks), there.dtype)

        def pick(part: slice) -> None:
            np.take(there, self.picks[part], out=out[part], mode="clip")  # without a copy of `out`

        each(pick, parts(len(self.picks)))
        return out

    def copied(self) -> Collection:
        """The same as a plain collection, which keeps nothing of the source alive."""
        return Collection(self.rows, self.time_ns, self.lane, self.wall_ns)

    def take(self, rows: NDArray[Any]) -> Collection:
        return LazyRows(
            self.source, self.picks[rows], self.time_ns[rows], self.lane[rows], self.wall_ns
        )


def some_rows(collection: Collection, kept: NDArray[np.bool_]) -> Collection:
    """The rows of a collection for which `kept` is true, in their order; copied, in threads if
    there are many."""
    rows, mask = collection.rows, pa.array(kept)
    work: list[Any] = [*rows.columns, collection.time_ns, collection.lane]

    def keep(column: Any) -> Any:
        return column.filter(mask) if isinstance(column, pa.Array) else column[kept]

    *columns, time_ns, lane = each(keep, work) if len(kept) >= MANY else map(keep, work)
    made = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
    return Collection(made, time_ns, lane, collection.wall_ns)
