"""For mkdocs: the pictures of the measured results lie with the benchmarks, and are shown here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HOME = Path(__file__).parents[2]


def on_files(files: Files, *, config: Any) -> Files:
    for picture in sorted((HOME / "benchmarks" / "pictures").glob("*.svg")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files
