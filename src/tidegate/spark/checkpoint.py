"""What Tidegate checks and keeps in a checkpoint beside Spark's own files.

CHECKPOINT/metadata          Spark's: the id of the query this checkpoint belongs to
CHECKPOINT/tidegate.json     ours: shards and partitions its state was made with, the key, the
                             stages with their settings, and whether Spark keeps timers

The pages of the state name the settings they were made with, so a worker that loads one knows what
it adopts. The record here lets a run be refused before it starts, in one sentence with all settings
that cannot change. It lists every set of stages that has run: a shard without rows since then still
holds the state of an earlier one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow.fs as pafs

from tidegate.core.chain import Chain, stage_labels
from tidegate.errors import StateError
from tidegate.output.filesystem import filesystem, read_bytes, write_whole
from tidegate.spark.dataflow import Dataflow
from tidegate.spark.stateful_step import check_shards

__all__ = [
    "CheckpointRecord",
    "RunNote",
    "check_checkpoint",
    "note_run",
    "stages_present",
    "with_checkpoint",
]

RECORD_FILE = "tidegate.json"
"""The name of our record in a checkpoint."""

Identity = Mapping[str, Any]
"""Name, version and settings of a stage; see `Operator.identity`."""


class RunNote(NamedTuple):
    """What a run writes into its checkpoint before its first batch. It travels to a server.

    - `shards`, `partitions`, `timers`, `keys`: see `CheckpointRecord`.
    - `stages`: the identities of its stages, as JSON gives them back.
    """

    shards: int
    partitions: int
    timers: bool
    keys: tuple[str, ...]
    stages: tuple[Identity, ...]

    @classmethod
    def of(cls, pipeline: Dataflow) -> RunNote:
        """Return the note of a pipeline."""
        stages = tuple(json.loads(json.dumps(Chain(pipeline.stages).identities())))
        return cls(
            pipeline.shard_count, pipeline.label_partitions, pipeline.needs_timers(), pipeline.keys,
            stages,
        )  # fmt: skip


@dataclass(frozen=True)
class CheckpointRecord:
    """What the state of a checkpoint was made with.

    Args:
        shards: Into how many shards the keys are divided.
        partitions: The shuffle partitions that the labels of the shards were chosen for. Rescaling
            changes how many there are, and not the labels.
        timers: Whether Spark keeps timers for the step; None in a record of an early version.
        keys: The key columns; None if that is not known.
        made_by: The stages of every run, oldest first, each as the identities of its stages.
        savepoint: The savepoint that the first batch starts from; None: an empty state.
    """

    shards: int
    partitions: int
    timers: bool | None = None
    keys: tuple[str, ...] | None = None
    made_by: tuple[tuple[Identity, ...], ...] = field(default=())
    savepoint: str | None = None

    @classmethod
    def read(cls, checkpoint: str) -> CheckpointRecord | None:
        """Read the record of a checkpoint; None if it is new. Raises StateError if it is damaged.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> CheckpointRecord(4, 2).write(folder)
        >>> CheckpointRecord.read(folder).shards
        4
        """
        fs, root = filesystem(checkpoint, "checkpoint")
        file = f"{root}/{RECORD_FILE}"
        content = read_bytes(fs, file)
        if content is None:
            return None
        text = content.decode(errors="replace")
        try:
            said = json.loads(text)
            keys, timers, saved = (said.get(name) for name in ("keys", "timers", "savepoint"))
            made_by = tuple(tuple(map(_identity, stages)) for stages in said.get("made_by", ()))
            return cls(
                int(said["shards"]),
                int(said["partitions"]),
                None if timers is None else bool(timers),
                None if keys is None else tuple(map(str, keys)),
                made_by,
                None if saved is None else str(saved),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{file} is corrupt: {text[:80]!r}") from error

    def write(self, checkpoint: str) -> None:
        """Write the record, replacing the one that is there."""
        fs, root = filesystem(checkpoint, "checkpoint")
        said = {
            "shards": self.shards,
            "partitions": self.partitions,
            "timers": self.timers,
            "keys": None if self.keys is None else list(self.keys),
            "made_by": self.made_by,
            "savepoint": self.savepoint,
        }
        write_whole(fs, f"{root}/{RECORD_FILE}", json.dumps(said).encode())

    def with_run(self, note: RunNote) -> CheckpointRecord:
        """The record with the stages of a run among those that have run."""
        others = tuple(each for each in self.made_by if each != note.stages)
        return replace(self, keys=note.keys, timers=note.timers, made_by=(*others, note.stages))

    def check(self, pipeline: Dataflow, present: Collection[str] | None = None) -> list[str]:
        """Check that a pipeline can go on with the state of this checkpoint.

        Args:
            pipeline: The pipeline that is to run.
            present: The labels of the stages that some shard has a state of (`stages_present`);
                None: that is not known. Stages that were removed, and are gone from all shards, do
                not stand in the way of others in their place.

        Returns:
            What changes, in sentences: settings that are adopted, stages that are new or gone.

        Raises:
            StateError: The key, the number of shards, or settings that cannot be adopted; they are
                shown in two columns.
        """
        if self.keys is not None and self.keys != pipeline.keys:
            raise StateError(
                f"the state is kept by {_key_columns(self.keys)}, and now the key is "
                f"{_key_columns(pipeline.keys)}; use the old key, or a new output and checkpoint"
            )
        if self.timers is False and pipeline.needs_timers():
            raise StateError(
                "the stages now wait by the wall clock, and the checkpoint was made without "
                "timers, which Spark cannot add; move its state into a new one with tidegate "
                "checkpoint export and import"
            )
        chain = Chain(pipeline.stages)
        notes: list[str] = []
        for number, ran in enumerate(self.made_by, 1):
            stages = _still_present(ran, present)
            match = chain.check_adoption(stages)
            if number < len(self.made_by):
                continue
            notes += [
                f"{each.stage}: {each.setting} is now {each.now!r}, was {each.was!r}"
                for each in chain.changes(stages)
            ]
            notes += [f"stage {name} is new and starts empty" for name in match.appended]
            notes += [
                f"stage {name} is gone; what it holds leaves as dropped (stage_removed)"
                for name in match.removed
            ]
        return notes


def with_checkpoint(
    pipeline: Dataflow, checkpoint: str, present: Collection[str] | None = None
) -> tuple[Dataflow, list[str]]:
    """Return the pipeline as it can go on from its checkpoint: with the number of shards the state
    was made with, and with timers if Spark keeps them.

    Unset, the number of shards follows the cores of the machine. On another machine keys would go
    to other shards than their state, and what is held there would never come out. If the checkpoint
    is new, the number is written down.

    Args:
        pipeline: The pipeline that is to run.
        checkpoint: Its checkpoint.
        present: See `CheckpointRecord.check`.

    Returns:
        The pipeline, and what changes against the last run (see `CheckpointRecord.check`).

    Raises:
        StateError: The pipeline sets another number of shards, or has settings that cannot be
            adopted; or the record is damaged.
    """
    record = CheckpointRecord.read(checkpoint)
    if record is None or record.shards == 0:  # new, or prepared to start from a savepoint
        saved, keys = (None, None) if record is None else (record.savepoint, record.keys)
        record = CheckpointRecord(
            pipeline.shard_count, pipeline.label_partitions, keys=keys, savepoint=saved
        )
        record.write(checkpoint)
    check_shards(record.shards, pipeline.shards or record.shards, f"the checkpoint {checkpoint}")
    pipeline = replace(pipeline, shards=record.shards, partitions=record.partitions)
    notes = record.check(pipeline, present)
    pipeline = replace(pipeline, keep_timers=bool(record.timers))
    if record.savepoint is not None and not finished_batches(checkpoint):
        pipeline = replace(pipeline, initial=pipeline.saved_state(record.savepoint))
        notes.append(f"the state begins as {record.savepoint}")
    return pipeline, notes


def stages_present(shards: Mapping[int, Mapping[str, int]]) -> set[str]:
    """Return the labels of the stages that some shard has a state of, from the metrics that each
    last reported.

    >>> sorted(stages_present({0: {"keys": 2, "window.rows_held": 0}, 1: {"batch.rows_held": 3}}))
    ['batch', 'window']
    """
    names = {name for metrics in shards.values() for name in metrics}
    return {name.rpartition(".")[0] for name in names if "." in name}


def _still_present(
    stages: Sequence[Identity], present: Collection[str] | None
) -> Sequence[Identity]:
    """Leave out stages at the end that no shard has a state of."""
    if present is None:
        return stages
    names = stage_labels([stage["name"] for stage in stages])
    kept = len(stages)
    while kept and names[kept - 1] not in present:
        kept -= 1
    return stages[:kept]


def finished_batches(checkpoint: str, log: str = "commits") -> list[int]:
    """Return the numbers of the batches in one of Spark's logs, in order: `commits` are those that
    are finished, `offsets` those that were begun."""
    fs, root = filesystem(checkpoint, "checkpoint")
    found = fs.get_file_info(pafs.FileSelector(f"{root}/{log}", allow_not_found=True))
    return sorted(int(info.base_name) for info in found if info.base_name.isdigit())


def note_run(note: RunNote, checkpoint: str) -> None:
    """Write down that these stages run on a checkpoint. Called before the first of their states is
    committed; an edit that never got that far leaves no trace."""
    record = CheckpointRecord.read(checkpoint)
    if record is None:
        record = CheckpointRecord(note.shards, note.partitions)
    changed = record.with_run(note)
    if changed != record:
        changed.write(checkpoint)


def _identity(said: Any) -> Identity:
    """An identity from JSON; anything else is a ValueError."""
    name, version, settings = said["name"], said["version"], said["config"]
    if not isinstance(name, str) or type(version) is not int or not isinstance(settings, dict):
        raise ValueError("a stage is not described by name, version and config")
    return {"name": name, "version": version, "config": settings}


def _key_columns(keys: Sequence[str]) -> str:
    """Key columns in a sentence."""
    return ", ".join(keys) or "nothing"


def check_checkpoint(checkpoint: str) -> None:
    """Raise StateError if a checkpoint no longer says which query it belongs to.

    Spark would end in a Java stack if its file is damaged, and begin a query with another id if it
    is lost: what the sink has of the last batch would then be written again.
    """
    fs, root = filesystem(checkpoint, "checkpoint")
    file = f"{root}/metadata"
    content = read_bytes(fs, file)
    if content is None:
        offsets = fs.get_file_info(pafs.FileSelector(f"{root}/offsets", allow_not_found=True))
        if any(info.base_name.isdigit() for info in offsets):
            raise StateError(
                f"{file} is lost, which says whose checkpoint this is; put it back, or use another "
                "output path and checkpoint"
            )
        return
    text = content.decode(errors="replace")
    try:
        uuid.UUID(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"{file} is corrupt: {text[:80]!r}") from error
