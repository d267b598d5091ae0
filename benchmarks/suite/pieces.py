"""What is measured: pieces that can be run alone, each with its contestants, jobs and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

ORDER = "argsort by key and time, and Arrow take"
SORT = "numpy stable argsort of the times"
TAKE = "Arrow take of all rows"
COPY = "memory copy of two columns"
SCAN = "Parquet scan"
SCATTER = "numpy scatter of all written values"

IN_PROCESS = {
    "reorder": "A. reorder within 200 ms, late rows aside",
    "tumbling": "B. 1 s tumbling count and mean per key and topic",
    "sets": "C. sets of one message per topic",
    "sessions": "D. sessions of gps with a gap of 500 ms",
    "batches": "E. rate-aware batches",
    "compaction": "F. compaction of vector deltas (a fifth as many)",
}
LIMITS_IN_PROCESS = {
    "reorder": (ORDER, TAKE, COPY, SCAN),
    "tumbling": (SORT, COPY, SCAN),
    "sets": (SORT, COPY, SCAN),
    "sessions": (SORT, COPY, SCAN),
    "batches": (ORDER, TAKE, COPY, SCAN),
    "compaction": (SCATTER,),
}
"""The bare steps each job is set against; the first is what its rows cost at least."""

ON_SPARK = {
    "reorder": "A. reorder, batch",
    "tumbling": "B. tumbling, batch",
    "sets": "C. sets, batch",
    "sessions": "D. sessions, batch",
    "batches": "E. batches, batch",
    "stream_reorder": "A. reorder, stream",
    "stream_tumbling": "B. tumbling, stream",
    "stream_sets": "C. sets, stream",
    "stream_sessions": "D. sessions, stream",
    "stream_batches": "E. batches, stream",
}
LIMITS_ON_SPARK = {
    job: tuple(f"stream_{limit}" if job.startswith("stream_") else limit
               for limit in ("nothing", "identity"))
    for job in ON_SPARK
}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One recording, who plays on it, and how often."""

    name: str
    title: str
    messages: int
    keys: int
    rounds: int
    ours: str
    others: tuple[str, ...]
    jobs: dict[str, str] = field(default_factory=lambda: dict(IN_PROCESS))
    limits: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(LIMITS_IN_PROCESS))

    @property
    def players(self) -> tuple[str, ...]:
        return (self.ours, *self.others)


FRAMES = ("polars", "duckdb", "pandas")
SPARKS = ("spark", "tempo")


def _on_spark(name: str, keys: int, rounds: int) -> Piece:
    return Piece(name, "On Spark", 500_000, keys, rounds, "tidegate_spark", SPARKS,
                 dict(ON_SPARK), LIMITS_ON_SPARK)  # fmt: skip


PIECES = {
    piece.name: piece
    for piece in (
        Piece("keys-100", "In process", 5_000_000, 100, 5, "tidegate", FRAMES),
        Piece("keys-1", "In process", 5_000_000, 1, 3, "tidegate", FRAMES),
        Piece("keys-10000", "In process", 5_000_000, 10_000, 3, "tidegate", FRAMES),
        _on_spark("spark-100", 100, 3),
        _on_spark("spark-10000", 10_000, 2),
        # Engines that take a Python object or a line of text per message get fewer of them.
        Piece("flink", "Beside engines of streams", 300_000, 100, 3, "tidegate", ("flink",)),
        Piece("bytewax", "Beside engines of streams", 100_000, 100, 3, "tidegate", ("bytewax",)),
        Piece("pathway", "Beside engines of streams", 100_000, 100, 3, "tidegate", ("pathway",)),
    )
}
