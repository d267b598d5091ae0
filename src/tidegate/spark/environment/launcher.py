"""Small scripts that start another program with something changed, kept in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "keep_launcher"]


def cache_folder() -> Path:
    """Return the folder for scripts and jars: `tidegate` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate"


def keep_launcher(file: Path, text: str) -> Path:
    """Write an executable script, unless it is there with the same text; return its path.

    Safe when several processes do the same at once: it appears whole.
    """
    if not file.is_file() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(file)
    return file
