"""Results and frames in a notebook: counts and a small timeline, as one piece of HTML.

In Jupyter and IPython `import tidegate` is enough: an outcome, a set, a batch, a window or frames
at the end of a cell are shown. A list is shown by `show`, for a list has a display of its own:

    from tidegate.report.notebook import show
    show(flow.process(rows))

Frames show their plan and their tables, never rows: looking at them runs no job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.report.notebook.register import load_ipython_extension

if TYPE_CHECKING:
    from tidegate.report.notebook.display import Shown, show

__all__ = ["Shown", "load_ipython_extension", "show"]


def __getattr__(name: str) -> Any:
    """Drawing needs numpy and pyarrow; `import tidegate` in a notebook does not wait for them."""
    if name not in ("Shown", "show"):
        raise AttributeError(f"module 'tidegate.report.notebook' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tidegate.report.notebook.display"), name)
