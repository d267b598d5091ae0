"""Operators one behind the other.

    process / advance ─► stage 0 ─► stage 1 ─► ... ─► out
                           │ data, late rows and watermarks go to the next stage,
                           │ in the order in which they were returned
                           └ errors, dropped rows and side tables go out at once

Everything a call implies comes out of that call: each outcome of a stage is pushed through all
later stages before the next one is looked at, so the order between data, late rows and watermarks
is kept from end to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, ControlSignal, End, Int32s, Late, Outcome, Watermark
from tidegate.core.state import State
from tidegate.errors import ContractError

__all__ = ["Chain"]


@dataclass(frozen=True)
class Chain:
    """Operators one behind the other. Data, late rows and watermarks go on; all else goes out.

    No stage holds rows for one that takes them in any order.
    """

    stages: tuple[Operator, ...]

    def __post_init__(self) -> None:
        stages = [
            a.without_buffering() if b.accepts_any_order else a for a, b in pairwise(self.stages)
        ]
        stages += self.stages[-1:]
        ordered = False
        for number in reversed(range(len(stages))):
            if ordered:
                stages[number] = stages[number].with_late_in_order()
            ordered = ordered or stages[number].needs_late_in_order
        object.__setattr__(self, "stages", tuple(stages))

    def open(self, lanes: int = 1) -> list[State]:
        return [stage.open(lanes) for stage in self.stages]

    def process(self, states: Sequence[State], collection: Collection) -> list[Outcome]:
        return self._push(states, 0, [collection])

    def advance(self, states: Sequence[State], watermark: Watermark) -> list[Outcome]:
        return self._push(states, 0, [watermark])

    def wake_at(self, states: Sequence[State]) -> int | None:
        due = [at for s, state in zip(self.stages, states, strict=True) if (at := s.wake_at(state))]
        return min(due, default=None)

    def wake(self, states: Sequence[State], wall_ns: int) -> list[Outcome]:
        out: list[Outcome] = []
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.wake(states[number], wall_ns))
        return out

    def resume(self, states: Sequence[State], wall_ns: int) -> None:
        for stage, state in zip(self.stages, states, strict=True):
            stage.resume(state, wall_ns)

    def control(self, states: Sequence[State], signal: ControlSignal) -> list[Outcome]:
        out: list[Outcome] = []
        if signal.name == "end" and signal.value is End.QUICK:
            for stage, state in zip(self.stages, states, strict=True):
                stage.discard(state)
            return out
        if signal.name == "end":
            return self.flush(states, signal.lane)
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.control(states[number], signal))
        return out

    def flush(self, states: Sequence[State], lanes: Int32s | None = None) -> list[Outcome]:
        """Flush the first stage through the rest, then the second, and so on."""
        out: list[Outcome] = []
        for number, stage in enumerate(self.stages):
            out += self._push(states, number + 1, stage.flush(states[number], lanes))
        return out

    def metrics(self, states: Sequence[State]) -> dict[str, int | float]:
        out: dict[str, int | float] = {}
        for stage, state in zip(self.stages, states, strict=True):
            out |= {f"{stage.name}.{key}": value for key, value in stage.metrics(state).items()}
        return out

    def schema(self, rows: pa.Schema) -> pa.Schema:
        for stage in self.stages:
            rows = stage.schema(rows)
        return rows

    def input_columns(self) -> frozenset[str] | None:
        """The input columns that data is made of, if they can be told. Rows that are refused leave
        whole, so this serves only who asks for nothing but data."""
        names: frozenset[str] = frozenset()
        for stage in self.stages:
            read = stage.input_columns()
            if read is None:
                return None
            names |= read
            if stage.outputs_only_read_columns:
                return names
        return None

    def side_schemas(self, rows: pa.Schema) -> dict[str, pa.Schema]:
        """Every side table of the chain. Two stages that share a name must share its schema."""
        out: dict[str, pa.Schema] = {}
        for stage in self.stages:
            for name, schema in stage.side_schemas(rows).items():
                if name in out and not out[name].equals(schema):
                    raise ContractError(f"two stages deliver different tables called {name}")
                out[name] = schema
            rows = stage.schema(rows)
        return out

    def _push(
        self, states: Sequence[State], number: int, items: Iterable[Outcome]
    ) -> list[Outcome]:
        out: list[Outcome] = []
        for item in items:
            if number == len(self.stages) or not isinstance(item, (Collection, Late, Watermark)):
                out.append(item)
                continue
            if len(item) == 0:
                continue
            state = states[number]
            state.grow(int(item.lane.max()) + 1)
            state.touch(item.lane)
            stage = self.stages[number]
            if isinstance(item, Collection):
                made = stage.process(state, item)
            elif isinstance(item, Late):
                made = stage.process_late(state, item)
            else:
                made = stage.advance(state, item)
            out += self._push(states, number + 1, made)
        return out
