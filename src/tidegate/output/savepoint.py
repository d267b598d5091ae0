"""A savepoint: the state of a stream as files that anything with Arrow can read.

    SAVEPOINT/savepoint.json       format, version, shards, key, stages, where it came from
    SAVEPOINT/pages-00000.arrow    shard (int32), page (int32), blob (binary): Arrow IPC files
    OUT/_beginning.json            metrics of each shard of an output that began with a savepoint

The blobs are the pages of `Flow.pages`, sealed ones as they are. A new query takes them up, with
another number of shards, other settings that can be adopted, on another version of Spark, or a flow
in process. A savepoint holds no input and no position in a source: where a new query begins to read
is said where its source is declared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from tidegate.core.flow import Flow, regroup
from tidegate.core.ipc import read_batches
from tidegate.core.outcomes import Outcome
from tidegate.core.text import plural
from tidegate.errors import ConfigError, StateError
from tidegate.output.filesystem import filesystem, read_bytes, write_whole
from tidegate.version import __version__

__all__ = ["PAGE_SCHEMA", "Savepoint", "load_savepoint", "read_beginning", "write_beginning"]

FORMAT = 1
"""The version of these files. Raised when a reader of today could not read them any more."""

PAGE_SCHEMA = pa.schema([("shard", pa.int32()), ("page", pa.int32()), ("blob", pa.binary())])
"""The columns of the pages: the label of the shard, the number of the page, its bytes."""

FILE_BYTES = 256 * 2**20
"""Bytes of pages after which a file ends: small enough to be read at once, large enough that a
million keys are a few files."""

_HEADER = "savepoint.json"
_ARROW_FILE = b"ARROW1\0\0"
_BEGINNING = "_beginning.json"


@dataclass(frozen=True)
class Savepoint:
    """The state of a stream, page by page.

    Args:
        shards: Into how many shards the keys are divided.
        keys: The key columns.
        stages: The identities of the stages; see `Operator.identity`.
        pages: Per label of a shard, its pages by number.
        source: Where it came from: the checkpoint, its query and the batch. For people.
    """

    shards: int
    keys: tuple[str, ...]
    stages: tuple[Mapping[str, Any], ...]
    pages: Mapping[int, Mapping[int, bytes]]
    source: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: str) -> None:
        """Write the files. The header comes last: without it there is no savepoint.

        Args:
            path: A folder or URI, which must not hold a savepoint yet.

        Raises:
            ConfigError: There is one already.
        """
        fs, root = filesystem(path, "savepoint")
        if read_bytes(fs, f"{root}/{_HEADER}") is not None:
            raise ConfigError("savepoint", path, "holds a savepoint already; use another folder")
        fs.create_dir(root)
        files = 0
        for rows in _in_files(self._rows()):
            file = f"{root}/pages-{files:05d}.arrow"
            with (
                fs.open_output_stream(file) as stream,
                pa.ipc.new_file(stream, PAGE_SCHEMA) as writer,
            ):
                for row in rows:
                    writer.write(pa.RecordBatch.from_pylist([row], schema=PAGE_SCHEMA))
            files += 1
        header = {
            "format": FORMAT,
            "tidegate": __version__,
            "shards": self.shards,
            "keys": list(self.keys),
            "stages": list(self.stages),
            "files": files,
            "pages": sum(len(pages) for pages in self.pages.values()),
            "source": dict(self.source),
        }
        write_whole(fs, f"{root}/{_HEADER}", json.dumps(header, indent=1).encode())

    @classmethod
    def read(cls, path: str) -> Savepoint:
        """Read a savepoint, which may come from anybody.

        Raises:
            StateError: There is none, it is damaged, incomplete, or of a newer version.
        """
        fs, root = filesystem(path, "savepoint")
        content = read_bytes(fs, f"{root}/{_HEADER}")
        if content is None:
            raise StateError(
                f"{path} holds no savepoint: it has no {_HEADER}; give the folder that `tidegate "
                "checkpoint export` wrote"
            )
        try:
            said = json.loads(content)
            if int(said["format"]) > FORMAT:
                raise StateError(f"{path} was written by a newer version; upgrade tidegate")
            pages: dict[int, dict[int, bytes]] = {}
            for number in range(int(said["files"])):
                for shard, page, blob in _read_pages(fs, f"{root}/pages-{number:05d}.arrow"):
                    pages.setdefault(shard, {})[page] = blob
            found = sum(len(each) for each in pages.values())
            if found != said["pages"]:
                raise StateError(
                    f"{path} is incomplete: it has {found} of {plural(said['pages'], 'page')}"
                )
            stages = tuple(dict(stage) for stage in said["stages"])
            keys = tuple(str(key) for key in said["keys"])
            return cls(int(said["shards"]), keys, stages, pages, dict(said["source"]))
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise StateError(f"{path} is corrupt: {error}") from error

    def flows(self, make: Callable[[], Flow]) -> tuple[list[Flow], list[Outcome]]:
        """One flow per shard, with the settings of now.

        Args:
            make: Returns a new flow.

        Returns:
            The flows in order of their labels, and what leaves because settings changed.

        Raises:
            StateError: See `Flow.adopt`.
        """
        flows, outcomes = [], []
        for label in sorted(self.pages):
            flow = make()
            flow.scope = f"shard {label}"
            outcomes += flow.load(self.pages[label], adopt=True)
            flows.append(flow)
        return flows, outcomes

    def regrouped(
        self,
        make: Callable[[], Flow],
        labels: Sequence[int],
        place: Callable[[Sequence[pa.Array], int], np.ndarray[Any, Any]],
    ) -> tuple[Savepoint, list[Outcome]]:
        """The same state for another number of shards, with the settings of now.

        Args:
            make: Returns a new flow.
            labels: The labels of the new shards.
            place: The number of the shard of each key; see `regroup`.

        Returns:
            The savepoint, and what leaves because settings changed.

        Raises:
            StateError: The state is damaged or cannot be adopted.
        """
        flows, outcomes = self.flows(make)
        made = [make() for _ in labels]
        regroup(flows, made, place)
        pages = {}
        for label, flow in zip(labels, made, strict=True):
            flow.scope = f"shard {label}"
            pages[label] = flow.pages()
        stages = tuple(made[0].chain.identities())
        return Savepoint(len(labels), self.keys, stages, pages, self.source), outcomes

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the files."""
        for shard in sorted(self.pages):
            for page in sorted(self.pages[shard]):
                yield {"shard": shard, "page": page, "blob": self.pages[shard][page]}


def load_savepoint(path: str, make: Callable[[], Flow]) -> tuple[Flow, list[Outcome]]:
    """Take up a savepoint in process: all shards in one flow.

    Args:
        path: The folder or URI of the savepoint.
        make: Returns a new flow with the stages and the key; called once per shard and once more.

    Returns:
        The flow, and what leaves because settings changed (see `Flow.adopt`).

    Raises:
        StateError: There is no savepoint, it is damaged, or cannot be adopted.

    Example:
        >>> import pyarrow as pa, tempfile
        >>> old = Flow([], key="car")
        >>> _ = old.process(pa.record_batch({"car": ["a", "b"]}))
        >>> folder = tempfile.mkdtemp()
        >>> Savepoint(1, ("car",), (), {0: old.pages()}).write(folder)
        >>> flow, _ = load_savepoint(folder, lambda: Flow([], key="car"))
        >>> flow.metrics()["keys"]
        2
    """
    flows, outcomes = Savepoint.read(path).flows(make)
    whole = make()
    regroup(flows or [make()], [whole], lambda keys, n: np.zeros(n, np.int64))
    return whole, outcomes


def write_beginning(out: str, savepoint: Savepoint, make: Callable[[], Flow]) -> None:
    """Write down what a new output begins with, so that its rows can be accounted for: counters of
    a state count from its start, which was in another output.

    Args:
        out: The folder or URI of the new output.
        savepoint: Its state, arranged for its shards.
        make: Returns a new flow.

    Raises:
        StateError: The state is damaged or cannot be adopted.
    """
    shards = {}
    for label in sorted(savepoint.pages):
        flow = make()
        flow.scope = f"shard {label}"
        leaving = sum(map(len, flow.load(savepoint.pages[label], adopt=True)))
        metrics = {name: int(value) for name, value in flow.metrics().items()}
        # Rows that the settings of now do not hold any more leave with the first batch.
        shards[label] = metrics | ({"adoption.rows_held": leaving} if leaving else {})
    fs, root = filesystem(out, "out")
    fs.create_dir(root)
    write_whole(fs, f"{root}/{_BEGINNING}", json.dumps({"shards": shards}).encode())


def read_beginning(out: str) -> dict[int, dict[str, int]]:
    """Return the metrics of each shard that an output began with; empty: with nothing.

    Raises:
        StateError: The file is damaged.

    >>> read_beginning("/nowhere")
    {}
    """
    fs, root = filesystem(out, "out")
    content = read_bytes(fs, f"{root}/{_BEGINNING}")
    if content is None:
        return {}
    try:
        return {
            int(label): {str(name): int(value) for name, value in metrics.items()}
            for label, metrics in json.loads(content)["shards"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"{out}/{_BEGINNING} is corrupt: {error!r}") from error


def _in_files(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in groups of about FILE_BYTES; no group is empty."""
    group: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row["blob"])
        if size >= FILE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _read_pages(fs: pafs.FileSystem, file: str) -> Iterator[tuple[int, int, bytes]]:
    """The rows of one file. Raises StateError if it is missing or has other columns."""
    content = read_bytes(fs, file)
    if content is None:
        raise StateError(f"{file} is missing")
    if content[: len(_ARROW_FILE)] != _ARROW_FILE:
        raise StateError(f"{file} is corrupt: it is no Arrow file")
    # An Arrow file is a stream behind its magic; its footer, which says where the batches are, is
    # not needed.
    for batch in read_batches(memoryview(content)[len(_ARROW_FILE) :], file):
        if not batch.schema.equals(PAGE_SCHEMA) or any(each.null_count for each in batch):
            raise StateError(f"{file} has other columns than {PAGE_SCHEMA.names}")
        for row in batch.to_pylist():
            yield row["shard"], row["page"], row["blob"]
