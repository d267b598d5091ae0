"""The operator that does nothing: what a stateful step itself costs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from pyspark import cloudpickle

from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Outcome
from tidegate.core.state import Layout, State


@dataclass(frozen=True)
class Nothing(Operator):
    """Hands on what it gets, and has no state."""

    name: ClassVar[str] = "nothing"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        return [collection]


# Workers cannot import benchmarks: what is defined here travels to them whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
