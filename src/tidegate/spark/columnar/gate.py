"""Which gate a pipeline's rows come through, and why; the plan of gate 1.

Gate 1 is taken where every input is made of files in a format that it reads. Payload is then either
carried with the rows or left where it is and fetched by address:

    payload: carried     all columns travel
    payload: addressed   columns that no stage looks at stay in the file
    payload: auto        addressed in recorded runs where payload is large; else carried

Small payload is carried, because an address costs as much as it saves, and the columns would be
read a second time. In a continuous run files may be rotated away before their rows leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa

from tidegate.core.chain import Chain
from tidegate.core.columns import ADDRESS
from tidegate.core.operator import Operator
from tidegate.eventtime import Decoder
from tidegate.eventtime.slices import is_number_like
from tidegate.spark.columnar.format import ColumnarInput
from tidegate.spark.columnar.payload import without_address

if TYPE_CHECKING:
    from tidegate.eventtime.arrival_order import ArrivalOrder

__all__ = ["LARGE_PAYLOAD", "Payload", "Reading", "choose_columns", "ordering_columns"]

Payload = Literal["auto", "addressed", "carried"]
"""Whether columns that no stage looks at travel with the rows."""

LARGE_PAYLOAD = 64
"""With at least this many bytes of payload per row, `auto` addresses it. Measured: see docs/adr."""


class Reading(NamedTuple):
    """What is read of one input, and how its payload travels.

    - `columns`: those that are read.
    - `addressed`: whether rows carry an address for the others.
    - `row_bytes`: about how many bytes of payload a row has.
    - `why`: the choice as words, for `explain`.
    """

    columns: tuple[str, ...]
    addressed: bool
    row_bytes: float
    why: str


def choose_columns(
    one: ColumnarInput,
    decoder: Decoder,
    *,
    stages: Sequence[Operator],
    always: Sequence[str],
    payload: Payload,
    recorded: bool,
) -> Reading:
    """Return which columns of an input are read.

    Args:
        one: The input.
        decoder: Reads its event time; its columns are needed.
        stages: The stages of the pipeline.
        always: Further columns that are needed: keys, topic, arrival.
        payload: What the pipeline asks for.
        recorded: Whether the run is over something recorded.
    """
    schema = one.format.schema
    everything = tuple(schema.names)
    looked_at = Chain(tuple(stages)).decision_columns()
    if payload == "carried":
        return Reading(everything, False, 0.0, "payload carried, as asked for")
    if looked_at is None:
        return Reading(everything, False, 0.0, "payload carried: a stage may look at any column")
    wanted = {*looked_at, *always, *decoder.columns_of(schema.names), *one.format.always_read}
    columns = tuple(name for name in everything if name in wanted)
    rest = [name for name in everything if name not in wanted]
    if not rest:
        return Reading(everything, False, 0.0, "every column is looked at")
    if not _fits(schema, columns, stages):
        return Reading(everything, False, 0.0, "payload carried: its names meet those of results")
    size = one.format.bytes_per_row(rest)
    if payload == "auto" and (not recorded or size < LARGE_PAYLOAD):
        why = "files of a live run may go" if not recorded else f"{size:.0f} bytes per row"
        return Reading(everything, False, 0.0, f"payload carried: {why}")
    return Reading(columns, True, size, f"payload addressed: {size:,.0f} bytes per row stay put")


def ordering_columns(
    order: ArrivalOrder, decoder: Decoder, schema: pa.Schema
) -> tuple[str, ...] | None:
    """Return the columns that order a recorded run; None if it cannot be cut into slices by them.

    An arrival column must be a number or a time: others have no bound that statistics know.
    """
    if order.columns:
        first = order.columns[0]
        return (first,) if is_number_like(schema.field(first).type) else None
    return tuple(decoder.columns_of(schema.names))


def _fits(schema: pa.Schema, columns: Sequence[str], stages: Sequence[Operator]) -> bool:
    """Whether no column that stages add has the name of a payload column: ours would step aside
    only where the payload is there to be seen.
    """
    few = pa.schema([schema.field(name) for name in columns]).append(pa.field(ADDRESS, pa.int64()))
    made = without_address(Chain(tuple(stages)).schema(few))
    inner = [one for field in made if pa.types.is_struct(field.type) for one in field.type]
    added = {field.name for field in (*made, *inner)} - set(columns)
    return not added & set(schema.names)
