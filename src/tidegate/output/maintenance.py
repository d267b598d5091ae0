"""Removing what an interrupted run left behind.

A run that dies may leave two things: files under `_staging/` that were being written, and files
that were moved to their table although the batch has no commit record. Neither is part of the
output (see `commit`); both are removed before the batch is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.fs as pafs

__all__ = ["STAGING", "batch_folder", "remove_batch", "remove_folder", "staging_folder"]

STAGING = "_staging"
"""The folder under the output path for files of a batch that is being written."""


def batch_folder(kind: str, batch: int) -> str:
    """Return the folder of a kind's files of one micro-batch, under the output path.

    Eight digits keep names and numbers in the same order for 100 million micro-batches.

    >>> batch_folder("data", 12)
    'data/batch=00000012'
    """
    return f"{kind}/batch={batch:08d}"


def staging_folder(batch: int) -> str:
    """Return the folder, under the output path, in which the files of a batch are written.

    >>> staging_folder(12)
    '_staging/00000012'
    """
    return f"{STAGING}/{batch:08d}"


def remove_batch(fs: pafs.FileSystem, root: str, kinds: Iterable[str], batch: int) -> None:
    """Remove whatever an interrupted run left of a batch in the tables `kinds` and in staging.

    Only for a batch without a commit record: the files of one that has a record are its data.
    """
    for kind in kinds:
        remove_folder(fs, f"{root}/{batch_folder(kind, batch)}")
    remove_folder(fs, f"{root}/{staging_folder(batch)}")


def remove_folder(fs: pafs.FileSystem, folder: str) -> None:
    """Remove a folder with all that is in it; one that is not there is no error."""
    if fs.get_file_info(folder).type == pafs.FileType.Directory:
        fs.delete_dir(folder)
