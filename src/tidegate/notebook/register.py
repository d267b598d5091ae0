"""Tell IPython how our results are shown. By their names: nothing heavy is imported for it."""

from __future__ import annotations

from typing import Any

__all__ = ["load_ipython_extension"]

_SHOWN = {
    "tidegate.core.model": ("Collection", "Late", "Dropped", "StreamError", "Side"),
    "tidegate.core.sync.results": ("SyncSet", "SyncResult"),
    "tidegate.core.batching.message": ("MessageBatch",),
    "tidegate.core.windows.output": ("WindowOutput",),
}


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext tidegate.notebook`; `import tidegate` in a notebook does the same by itself."""
    html = ipython.display_formatter.formatters["text/html"]
    for module, names in _SHOWN.items():
        for name in names:
            html.for_type_by_name(module, name, _html)


def _html(value: Any) -> str:
    from tidegate.notebook.display import show

    return show(value)._repr_html_()
