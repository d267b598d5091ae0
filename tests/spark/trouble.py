"""Operators that make trouble on purpose: they kill their process, or fail as long as told to."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from tidegate.core.operator import Operator
from tidegate.core.outcomes import Collection, Dropped, Outcome
from tidegate.core.state import Layout, State

# The workers cannot import the tests: what is defined here travels to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class KillOnce(Operator):
    """Kills its own process at the first row of `vehicle` from `after_ns` on, but only once."""

    marker: str
    vehicle: str
    after_ns: int

    name: ClassVar[str] = "kill_once"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        if _comes(collection, self.vehicle, self.after_ns) and not Path(self.marker).exists():
            Path(self.marker).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return [collection]


@dataclass(frozen=True)
class FailWhile(Operator):
    """Raises at every row of `vehicle` from `after_ns` on, as long as the marker file is there."""

    marker: str
    vehicle: str
    after_ns: int

    name: ClassVar[str] = "fail_while"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        if _comes(collection, self.vehicle, self.after_ns) and Path(self.marker).exists():
            raise RuntimeError("failing as long as the marker is there")
        return [collection]


@dataclass(frozen=True)
class DropEven(Operator):
    """Lets rows with an even `seq` go."""

    name: ClassVar[str] = "drop_even"

    def layout(self) -> Layout:
        return Layout()

    def process(self, state: State, collection: Collection) -> list[Outcome]:
        even = collection.rows.column("seq").to_numpy() % 2 == 0
        gone = collection.take(np.flatnonzero(even))
        reason = pa.array(["even"] * len(gone), pa.string())
        kept = collection.take(np.flatnonzero(~even))
        return [Dropped(gone.rows, gone.time_ns, gone.lane, reason), kept]


def _comes(collection: Collection, vehicle: str, after_ns: int) -> bool:
    vehicles = np.array(collection.rows.column("vehicle").to_pylist())
    return bool(((vehicles == vehicle) & (collection.time_ns >= after_ns)).any())
