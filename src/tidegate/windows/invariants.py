"""What a restored window state must be like before the kernels may see it.

Kernels index by lane, serial number, slot and pane without checking bounds, and what is applied
afterwards looks up columns by name. A state that this stage wrote always passes; one that was
damaged or made up is refused here, with a StateError that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.core.arrow import factorize
from tidegate.core.columns import LANE, SERIAL
from tidegate.core.outcomes import Int64s
from tidegate.errors import StateError
from tidegate.windows.aggregates import Accumulators
from tidegate.windows.held import HeldPanes, table_keys
from tidegate.windows.kernels.layout import Family, FiringReason, Settings
from tidegate.windows.kinds import WindowKind
from tidegate.windows.results import OutputPlan

__all__ = ["check_flags", "check_numbers", "check_slots", "check_spans", "require_columns"]

_REASONS = sum(int(reason) for reason in FiringReason)
"""All bits of a fired mask that are not a trigger's."""


def check_numbers(panes: HeldPanes, serials: Int64s, triggers: int, once: int) -> None:
    """Check counts, serial numbers and masks of the open windows.

    Args:
        panes: the open windows.
        serials: per lane, the number of its next window.
        triggers: how many triggers the stage has.
        once: the bits of those that fire once.

    Raises:
        StateError: a number is out of its range, or two windows have the same one.
    """
    counts = (panes[name] for name in ("rows", "bytes", "pane", "revision", "late"))
    if any((column < 0).any() for column in counts):
        raise StateError("an open window has fewer than no rows, bytes or panes")
    if (panes["emitted"] < 0).any() or (panes["emitted"] > panes["bytes"]).any():
        raise StateError("an open window has emitted more bytes than it has")
    mine = panes["serial"]
    if (mine < 0).any() or (mine >= serials[panes["lane"]]).any():
        raise StateError("an open window has a number that was never given out")
    keys = panes.keys
    if len(np.unique(keys)) < len(keys):
        raise StateError("two open windows have the same number")
    known = (1 << triggers) - 1 | _REASONS
    if (panes["fired"] & ~known).any() or (panes["spent"] & ~once).any():
        raise StateError("an open window was emitted by a trigger that the stage does not have")
    if ((panes["on_time"] != 0) & (panes["on_time"] != 1)).any():
        raise StateError("an open window is neither complete nor incomplete")


def check_spans(panes: HeldPanes, settings: Settings, kind: WindowKind) -> None:
    """Check where the open windows begin and end.

    Args:
        panes: the open windows.
        settings: of the stage.
        kind: of window.

    Raises:
        StateError: a window is not one of this kind, or two windows are the same.
    """
    start, end = panes["start"], panes["end"]
    if (start > end).any():
        raise StateError("an open window ends before it begins")
    if settings.family not in (Family.ALIGNED, Family.SESSION):
        return
    far = kind.reach_ns
    if (start < settings.earliest - far).any() or (end > settings.latest + far).any():
        raise StateError("an open window is at a time that no row can have")
    if settings.family == Family.SESSION:
        return
    edges = kind.edges([start])
    if edges is None:
        right = (end - start == settings.size) & ((start - settings.offset) % settings.step == 0)
    else:
        at = np.searchsorted(edges, start, "right")
        right = (edges[at - 1] == start) & (edges[np.minimum(at, len(edges) - 1)] == end)
    if not right.all():
        raise StateError("an open window is not one of the windows of this stage")
    if len(np.unique(np.stack([panes["lane"], start]), axis=1).T) < len(start):
        raise StateError("a window is open twice")


def check_slots(slots: pa.RecordBatch, plan: OutputPlan) -> None:
    """The accumulators must have every column that the aggregates of their rows go on with, and a
    window one accumulator per group.

    Args:
        slots: the state's table `slots`.
        plan: of the rows that opened the windows.

    Raises:
        StateError: a column is missing or of another type, or a group has two accumulators.
    """
    none = pa.nulls(1, pa.int64())  # one slot: whether sums count overflows shows in its columns
    for wanted in Accumulators(plan.slots, 1).blank(none, none, plan.widened).schema:
        index = slots.schema.get_field_index(wanted.name)
        kind = None if index < 0 else slots.column(index).type
        if kind is None or not (wanted.name in (LANE, SERIAL) or kind == wanted.type):
            raise StateError(f"state table slots has no usable column {wanted.name!r}")
        value = wanted.name.startswith(("first:", "last:", "fold:"))
        if not value and slots.column(index).null_count:
            raise StateError(f"state table slots: column {wanted.name} has gaps")
    for key, fold, _ in plan.slots.folds:
        if not all(fold.is_state(state) for state in slots.column(f"fold:{key}").to_pylist()):
            raise StateError(f"state table slots: {key} is not a state of its fold")
    groups = [slots.column(f"first:{name}") for name in plan.group_by]
    codes = factorize([pa.array(table_keys(slots)), *groups]).codes
    if len(np.unique(codes)) < len(codes):
        raise StateError("two accumulators belong to the same window and group")


def check_flags(table: pa.RecordBatch, name: str, columns: Sequence[str]) -> None:
    """These columns must be booleans without nulls.

    Args:
        table: of the state.
        name: its name.
        columns: the columns.

    Raises:
        StateError: one is missing or anything else.
    """
    for column in columns:
        index = table.schema.get_field_index(column)
        if index < 0 or table.column(index).type != pa.bool_() or table.column(index).null_count:
            raise StateError(f"state table {name} has no usable column {column!r}")


def require_columns(table: pa.RecordBatch, name: str, fields: pa.Schema) -> None:
    """These columns must be there, each once and with its type.

    Args:
        table: of the state.
        name: its name.
        fields: the columns.

    Raises:
        StateError: one is missing or of another type.
    """
    for wanted in fields:
        index = table.schema.get_field_index(wanted.name)
        if index < 0 or table.column(index).type != wanted.type:
            raise StateError(f"state table {name} has no usable column {wanted.name!r}")
