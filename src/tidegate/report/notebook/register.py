"""Tell IPython how our results are shown. By their names: nothing heavy is imported for it."""

from __future__ import annotations

from typing import Any

__all__ = ["load_ipython_extension"]

_SHOWN = {
    "tidegate.core.outcomes": ("Collection", "Late", "Dropped", "StreamError", "Side"),
    "tidegate.sync.results": ("SyncSet", "SyncResult"),
    "tidegate.batching.message": ("MessageBatch",),
    "tidegate.windows.results": ("WindowOutput",),
}


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext tidegate.report.notebook`; in a notebook `import tidegate` does the same."""
    html = ipython.display_formatter.formatters["text/html"]
    for module, names in _SHOWN.items():
        for name in names:
            html.for_type_by_name(module, name, _html)


def _html(value: Any) -> str:
    from tidegate.report.notebook.display import show

    return show(value)._repr_html_()
