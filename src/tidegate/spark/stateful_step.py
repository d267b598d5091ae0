"""The stateful step: one shard of keys, any chain of operators, for all its keys at once.

    packed rows ─► order of arrival ─► Flow (all stages) ─► outcomes, packed by kind ─► metrics

In streaming its state is the pages of a `Flow`, in RocksDB (Spark's side of it is in `processor`):
pages that changed are written after every call, and a token beside them. A worker keeps its last
flows and uses one again only if its token is the stored one, so a retried task or another worker
reads the state itself. In batch the same shard function runs without state and ends with a flush.

Clock policy: event time decides what comes out. The wall clock (Spark's processing time, or the
fixed one of a run that catches up) stamps rows without a time, and drives deadlines and `forget`.
If it is set back during a run, whatever waits by it begins its wait again with the next call for
its shard, as it does after a restart. Spark makes that call when rows come, or when the clock is
where it was: a shard without rows waits that much longer.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

from tidegate.core.arrow import concat, cut_by_bytes
from tidegate.core.columns import LANE, TIME
from tidegate.core.flow import Flow
from tidegate.core.outcomes import Collection, Outcome, Watermark
from tidegate.core.text import plural
from tidegate.core.time import UNSET
from tidegate.errors import ContractError, StateError
from tidegate.eventtime import EventtimeWatermark
from tidegate.eventtime.arrival_order import ArrivalOrder, in_pieces
from tidegate.eventtime.slices import Slices
from tidegate.output.commit import BEHIND, SEEN
from tidegate.output.tally import IN, Tallies
from tidegate.spark.arrival import BOUND, END, PARTS, Packed, bound_of
from tidegate.spark.blob_files import BlobFiles
from tidegate.spark.control_rows import apply_control
from tidegate.spark.pack import from_blob, to_blob

__all__ = [
    "METRIC",
    "SLICES_PAGE",
    "STEP_DDL",
    "STEP_TYPE",
    "TOKEN_PAGE",
    "EachShard",
    "FlowRecipe",
    "RunningStep",
    "StepSettings",
    "check_shards",
    "packed_rows",
    "run_piece",
    "run_shard",
    "tables",
]

STEP_DDL = (
    "shard int, kind string, rows long, watermark_ns long, metrics map<string,bigint>, blob binary"
)
"""The columns of the step's output, `STEP_SCHEMA` as Spark writes it. `blob` holds rows; where it
is null, the row carries the metrics of its shard."""

METRIC, METRIC_AGAIN = "metric", "metric again"
"""The kinds of the rows that carry metrics. A shard that got rows and was woken in one micro-batch
reports twice; sums over shards leave out the second report."""

BLOB_BYTES = 4 * 2**20
"""Bytes after which a blob of outcomes ends: while Java reads one, Python makes the next.
A larger batch is cut; a single row that is larger is a blob of its own."""

KEYS_BEHIND = 5
"""Keys per shard that a commit names with their watermarks: enough to find a silent vehicle, few
enough that commits stay small."""

TOKEN_PAGE = -1
"""The page that holds the token: a second state variable would cost as much as all the pages, for
Spark compiles the code of each variable anew in every task."""

SLICES_PAGE = -2
"""The page that holds the rows which wait for other files, in a recorded run."""


class _KeptFlow(NamedTuple):
    """A flow between two micro-batches: the token its state was stored with, the rows that wait to
    enter it, and the wall time of its last call."""

    token: str
    flow: Flow
    slices: Slices
    wall_ns: int


_FLOWS: OrderedDict[tuple[str, int], _KeptFlow] = OrderedDict()
"""Flows of this worker by (query, shard)."""

_FLOWS_KEPT = 64
"""Flows a worker keeps between micro-batches, so that an unchanged state is not read again. Each is
used only if the token stored with the state in RocksDB is the one it was written with: a retried
task, a restarted query or another worker always reads the state itself. The least
recently used is dropped first; a worker with more shards than this reads some of them again."""


@dataclass(frozen=True)
class FlowRecipe:
    """How the flow of a shard is made, and what pins the order of arrival of its rows.

    Args:
        make: Returns a new flow with empty state; called on the workers.
        arrival: How rows are put in order before they enter the flow.
        taken: Per kind the names that output columns must keep clear of (see `output_names`).
        audited: Per kind the columns that are hashed for `tidegate audit`; see
            `tidegate.output.tally`.
    """

    make: Callable[[], Flow]
    arrival: ArrivalOrder = field(default_factory=ArrivalOrder)
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    audited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class StepSettings:
    """What the step of a stream is told on its way to the workers.

    Args:
        recipe: How flows are made.
        query: Under which name a worker keeps its flows between micro-batches; new for every start.
        timers: Whether stages may ask to be woken.
        shards: The number of shards, compared with the one in the state.
        wall_ns: One fixed wall time, for runs that catch up; None: Spark's processing time.
        files: Where blobs of outcomes may stay; None: they are carried.
    """

    recipe: FlowRecipe
    query: str
    timers: bool
    shards: int
    wall_ns: int | None = None
    files: BlobFiles | None = None


def run_shard(
    recipe: FlowRecipe,
    flow: Flow,
    packed: Iterable[Any],
    wall_ns: int,
    slices: Slices | None = None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Run the packed rows of one shard through its flow; yields kind and rows.

    Rows whose time could not be read come out first and are counted, then data in order of
    arrival. Control rows come last: what is in the same micro-batch came before them.

    Args:
        recipe: How rows are put in order, and which names are taken.
        flow: The flow of this shard. Changed.
        packed: The blobs of the shard, in any order; see `Packed`.
        wall_ns: The wall time of this call.
        slices: The rows of this shard that wait for other files, in a stream. Changed.
    """
    parts = recipe.arrival.sorted(map(Packed.of, packed))
    broken, told = recipe.arrival.joined(
        [from_blob(one.blob) for one in parts if one.kind == "error"]
    )
    for errors in in_pieces(broken, None if told is None else recipe.arrival.indices(told)):
        flow.counters["rows_in"] += errors.num_rows
        flow.counters["parse_error_count"] += errors.num_rows
        yield IN, errors
        yield "error", errors
    data = [row for row in parts if row.kind == "data"]
    rows_of = [from_blob(row.blob) for row in data]
    bounds = [bound_of(row) for row in parts if row.kind == BOUND]
    if slices is not None and bounds:
        sources = [f"{row.part // PARTS} {row.file}" for row in data]
        pieces = slices.admit(rows_of, sources, bounds[0])
    else:
        pieces = recipe.arrival.pieces(rows_of, [(row.part // PARTS, row.file) for row in data])
    for rows in pieces:
        yield from run_piece(recipe, flow, rows, wall_ns)
    for row in parts:
        if row.kind == "control":
            yield from tables(apply_control(flow, row.blob), recipe.taken)
    if any(row.kind == END for row in parts):
        yield from tables(flow.end(), recipe.taken)


def run_piece(
    recipe: FlowRecipe, flow: Flow, rows: pa.RecordBatch, wall_ns: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Hand one piece of rows, in order of arrival, to the flow; yields kind and rows.

    Raises:
        ContractError: If rows that the stages hold are more than 2 GiB.
    """
    flow.counters["rows_in"] += rows.num_rows
    index = rows.schema.get_field_index(TIME)
    if index < 0:  # no event time is declared: the time of a row is when it is seen
        time_ns = np.full(rows.num_rows, wall_ns, np.int64)
    else:
        time_ns = rows.column(index).fill_null(wall_ns).to_numpy()
        rows = rows.remove_column(index)
    yield IN, rows
    try:
        made = flow.accept(Collection.of(rows, time_ns, wall_ns))
    except pa.ArrowInvalid as error:
        if "offset overflow" not in str(error):
            raise
        raise ContractError(
            "the stages of one shard hold more than 2 GiB of rows that wait for others, which is "
            "more than a column can hold: use payload: addressed, which holds addresses instead of "
            "rows, more shards, or a smaller tolerance"
        ) from error
    yield from tables(made, recipe.taken)


def tables(
    outcomes: Iterable[Outcome], taken: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield outcomes as (kind, rows), empty ones left out.

    Watermarks have no rows: the metric `current_watermark` carries them.
    """
    for outcome in outcomes:
        if not isinstance(outcome, Watermark) and len(outcome):
            yield outcome.kind, outcome.table(taken.get(outcome.kind, ()))


def packed_rows(
    shard: int,
    made: Iterable[tuple[str, pa.RecordBatch]],
    flow: Flow,
    metric: str = METRIC,
    *,
    audited: Mapping[str, Sequence[str]],
    files: BlobFiles | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the output of the step: blobs per kind, then one row with the metrics of the flow.

    Args:
        shard: The number of the shard.
        made: Kind and rows, in order. Consumed before the metrics come out, so they are those
            after all of it; blobs come out as they are full, so that a large shard fits in memory.
        flow: The flow that made them.
        metric: The kind of the metrics row: `METRIC`, or `METRIC_AGAIN` for a second report.
        audited: Per kind, and for rows that came in, the columns of which a hash is reported.
        files: Where blobs may stay; None: they are carried.

    Yields:
        Rows of `STEP_DDL`. Metrics also carry, under prefixed names, the keys furthest behind and
        the values that were seen in columns (see `tidegate.output.commit`).
    """
    waiting: dict[str, list[pa.RecordBatch]] = {}
    tallies = Tallies(audited)

    def blob(kind: str) -> Iterator[dict[str, Any]]:
        joined = concat(waiting.pop(kind))
        if joined is not None:
            yield {
                "shard": shard, "kind": kind, "rows": joined.num_rows, "watermark_ns": None,
                "metrics": None, "blob": to_blob(joined, files),
            }  # fmt: skip

    for kind, whole in made:
        tallies.add(kind, whole)
        if kind == IN:  # only to be counted
            continue
        for rows in cut_by_bytes(whole, BLOB_BYTES):
            before = sum(part.nbytes for part in waiting.get(kind, ()))
            if before and before + rows.nbytes > BLOB_BYTES:
                yield from blob(kind)
            waiting.setdefault(kind, []).append(rows)
    for kind in list(waiting):
        yield from blob(kind)
    metrics = {name: int(value) for name, value in flow.metrics().items()}
    watermark = [v for k, v in metrics.items() if k.endswith("current_watermark") and v != UNSET]
    metrics |= tallies.metrics()
    metrics |= {f"{BEHIND}{key}": mark for key, mark in furthest_behind(flow).items()}
    for column, names in flow.seen_names().items():
        metrics |= {SEEN + json.dumps([column, name]): 1 for name in names}
    yield {
        "shard": shard, "kind": metric, "rows": 0,
        "watermark_ns": max(watermark, default=None), "metrics": metrics, "blob": None,
    }  # fmt: skip


def furthest_behind(flow: Flow, count: int = KEYS_BEHIND) -> dict[str, int]:
    """Return the keys of a flow whose watermarks are lowest, and those watermarks in ns.

    At most `count` of them, in no order. A key of several columns is written with slashes between
    them. Empty without a key or an event-time stage.
    """
    keys = flow.lanes.tables["keys"]
    if keys is None or not flow.keys:
        return {}
    for stage, state in zip(flow.chain.stages, flow.states, strict=True):
        if isinstance(stage, EventtimeWatermark):
            marks = stage.watermarks(state)
            break
    else:
        return {}
    lanes = keys.column(keys.schema.get_field_index(LANE)).to_numpy()
    known = np.flatnonzero(marks[lanes] != UNSET)
    if len(known) > count:
        known = known[np.argpartition(marks[lanes[known]], count)[:count]]
    names = keys.select(list(flow.keys)).take(pa.array(known)).to_pylist()
    return {
        "/".join(str(value) for value in name.values()): int(marks[lanes[row]])
        for name, row in zip(names, known, strict=True)
    }


class RunningStep:
    """A step at work in one task: the pages of a flow in a map state, timers for its deadlines.

    Args:
        settings: The step's settings.
        handle: Spark's handle of the processor; timers are set by it.
        pages: The map state: page number to bytes. Page `TOKEN_PAGE` holds the token.
    """

    def __init__(
        self, settings: StepSettings, handle: StatefulProcessorHandle, pages: MapState
    ) -> None:
        self.settings = settings
        self.handle = handle
        self.pages = pages
        self.reported: set[int] = set()
        self.leaving: list[Outcome] = []
        """What leaves because the state just loaded was made with other settings."""

    def rows(self, shard: int, packed: Iterator[Any], now_ms: int) -> Iterator[dict[str, Any]]:
        """Run the packed rows of a shard; return rows of `STEP_DDL`. `now_ms`: Spark's processing
        time.

        All of it is done, and the state saved, before the first row is returned.
        """
        wall_ns = self._wall(now_ms)
        flow, slices = self._open(shard, wall_ns)
        rows = run_shard(self.settings.recipe, flow, packed, wall_ns, slices)
        made = chain(self._adopted(), rows)
        audited = self.settings.recipe.audited
        out = list(packed_rows(shard, made, flow, audited=audited, files=self.settings.files))
        self.reported.add(shard)
        self._save(shard, flow, slices, wall_ns)
        return iter(out)

    def expired(self, shard: int, now_ms: int) -> Iterator[dict[str, Any]]:
        """Return what a shard lets out because one of its deadlines has passed, as `rows` does."""
        wall_ns = self._wall(now_ms)
        flow, slices = self._open(shard, wall_ns)
        made = chain(self._adopted(), tables(flow.wake(wall_ns), self.settings.recipe.taken))
        metric = METRIC_AGAIN if shard in self.reported else METRIC
        audited = self.settings.recipe.audited
        out = list(
            packed_rows(shard, made, flow, metric, audited=audited, files=self.settings.files)
        )
        self._save(shard, flow, slices, wall_ns)
        return iter(out)

    def _wall(self, now_ms: int) -> int:
        """Return the wall time of this call in ns: the fixed one, or Spark's (never negative)."""
        if self.settings.wall_ns is not None:
            return self.settings.wall_ns
        return max(now_ms, 0) * 1_000_000

    def _open(self, shard: int, wall_ns: int) -> tuple[Flow, Slices]:
        """Return the flow of a shard and the rows that wait to enter it: those kept here if their
        token is the stored one, else from their pages, else new ones. Raises StateError for a state
        made with another number of shards.
        """
        page = self.pages.getValue((TOKEN_PAGE,))
        stored = None if page is None else bytes(page[0]).decode(errors="replace")
        kept = _FLOWS.pop((self.settings.query, shard), None)
        if stored is not None and kept is not None and kept.token == stored:
            if wall_ns < kept.wall_ns:  # the clock was set back: nothing has waited since then
                kept.flow.resume(wall_ns)
            return kept.flow, kept.slices
        flow = self.settings.recipe.make()
        flow.scope = f"shard {shard}"  # a sealed page opens only for the shard that wrote it
        slices = Slices(self.settings.recipe.arrival)
        if stored is not None:
            made_with = stored.partition(":")[0]
            if not made_with.isdecimal():
                raise StateError(f"the state of shard {shard} is damaged: {stored[:40]!r}")
            check_shards(int(made_with), self.settings.shards, "the state")
            pages = {int(page[0]): bytes(blob[0]) for page, blob in self.pages.iterator()}
            del pages[TOKEN_PAGE]
            waiting = pages.pop(SLICES_PAGE, None)
            if waiting is not None:
                slices.load(flow.unseal(waiting, "slices"))
            self.leaving = flow.load(pages, adopt=True)
            flow.resume(wall_ns)
        return flow, slices

    def _adopted(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield once what leaves because settings changed; see `Flow.adopt`."""
        leaving, self.leaving = self.leaving, []
        yield from tables(leaving, self.settings.recipe.taken)

    def _save(self, shard: int, flow: Flow, slices: Slices, wall_ns: int) -> None:
        """Write the pages that changed and a new token, keep the flow, and set one timer for the
        flow's next deadline (a millisecond later, so that it has surely passed when Spark calls).
        """
        for page, blob in flow.pages(changed=True).items():
            self.pages.updateValue((page,), (blob,))
        if slices.changed:
            self.pages.updateValue((SLICES_PAGE,), (flow.seal(slices.page(), "slices"),))
        token = f"{self.settings.shards}:{uuid.uuid4().hex}"
        self.pages.updateValue((TOKEN_PAGE,), (token.encode(),))
        _FLOWS[self.settings.query, shard] = _KeptFlow(token, flow, slices, wall_ns)
        while len(_FLOWS) > _FLOWS_KEPT:
            _FLOWS.popitem(last=False)
        if self.settings.timers:
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            due = flow.wake_at()
            if due is not None:
                self.handle.registerTimer(due // 1_000_000 + 1)


def check_shards(made_with: int, shards: int, what: str) -> None:
    """Raise StateError if the number of shards changed: keys would go where their state is not.

    Args:
        made_with: The number the state was made with.
        shards: The number now.
        what: What was made with it, the subject of the sentence.
    """
    if made_with != shards:
        raise StateError(
            f"{what} was made with {plural(made_with, 'shard')}, now the number is {shards}; "
            "use the same number or a new checkpoint"
        )


def run_batch(recipe: FlowRecipe, wall_ns: int) -> Callable[[pa.Table], pa.Table]:
    """applyInArrow: all packed rows of a shard of a backfill, from an empty state to the flush.

    `wall_ns` is when the job was planned: one clock for all shards, and for a task run again.
    """

    def run(table: pa.Table) -> pa.Table:
        flow = recipe.make()
        number = int(table.column("shard")[0].as_py())

        def made() -> Iterator[tuple[str, pa.RecordBatch]]:
            yield from run_shard(recipe, flow, _packed_blobs(table), wall_ns)
            yield from tables(flow.end(), recipe.taken)

        rows = list(packed_rows(number, made(), flow, audited=recipe.audited))
        return pa.Table.from_pylist(rows, schema=STEP_SCHEMA)

    return run


@dataclass(frozen=True)
class EachShard:
    """mapInArrow: packed rows sorted by shard in, the outcomes of one shard after the other out.

    Args:
        run: What `run_batch` returned.
    """

    run: Callable[[pa.Table], pa.Table]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        last = None
        for batch in batches:
            shards = batch.column(batch.schema.get_field_index("shard")).to_numpy()
            edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), batch.num_rows]
            for start, stop in pairwise(edges if batch.num_rows else []):
                if waiting and shards[start] != last:
                    yield from self.run(pa.Table.from_batches(waiting)).to_batches()
                    waiting = []
                waiting.append(batch.slice(start, stop - start))
                last = shards[start]
        if waiting:
            yield from self.run(pa.Table.from_batches(waiting)).to_batches()


STEP_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("watermark_ns", pa.int64()),
        ("metrics", pa.map_(pa.string(), pa.int64())),
        ("blob", pa.binary()),
    ]
)
"""`STEP_DDL` as an Arrow schema."""

STEP_TYPE = from_arrow_schema(STEP_SCHEMA)
"""`STEP_DDL` as Spark has types: on Spark Connect text would be sent to the server to be read."""


def _packed_blobs(table: pa.Table) -> Iterator[Packed]:
    """Yield the packed blobs of a table; blobs stay in the memory of the table."""
    for batch in table.select(list(Packed._fields)).to_batches():
        columns = [batch.column(name).to_pylist() for name in Packed._fields[:-1]]
        blobs = (blob.as_buffer() for blob in batch.column("blob"))
        yield from (Packed(*row) for row in zip(*columns, blobs, strict=True))
