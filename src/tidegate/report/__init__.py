"""What a run did, shown to people: the page, the notebook displays, Rerun recordings, pictures.

    rows.py      every message of a run with what became of it, as columns
    groups.py    sets, batches and windows, and which messages they hold
    health.py    delays, rates, lags and state in numbers
    headline.py  the most interesting moment of a run, and a sentence about it
    page.py      one HTML file with all of that; assets/ holds its scripts and styles
    serve.py     the same page while the run goes on, and its metrics for Prometheus
    rerun.py     the tables of a run for Rerun's viewer
    thumbnails.py  images in the payloads, small; raw_images.py reads those without a codec
    look.py      the page of a recording that no pipeline has read yet
    picture.py   the one drawing: lanes and curves over time, as SVG
    notebook.py  results at the end of a notebook cell

This module only holds the list of classes that a notebook shows, so that `import tidegate` can
register them without importing numpy.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DISPLAYED", "load_ipython_extension"]

DISPLAYED = {
    "tidegate.core.outcomes": (
        "Collection", "Dropped", "Late", "Side", "StreamError", "Watermark",
    ),
    "tidegate.align.in_process": ("Aligned",),
    "tidegate.sync.results": ("Diagnosis", "SyncResult", "SyncSet"),
    "tidegate.batching.message": ("MessageBatch",),
    "tidegate.windows.results": ("WindowOutput",),
    "tidegate.deltas.compactor": ("CompactionResult",),
    "tidegate.profile.inspect": ("Profile",),
    "tidegate.profile.starter": ("Proof",),
    "tidegate.report.look": ("LookedAt",),
    "tidegate.output.reader": ("StoredRun",),
    "tidegate.output.summary": ("Summary",),
    "tidegate.output.audit": ("AuditReport",),
    "tidegate.dataset.in_process": ("DatasetSummary",),
}  # fmt: skip
"""Classes with a display, by the module that defines them. IPython compares these strings with
`__module__` and `__name__` of a result's class, so an entry that is out of date would silently show
nothing: tests/report/test_notebook.py imports every entry and displays one of each."""


def load_ipython_extension(ipython: Any) -> None:
    """Tell IPython to show results of Tidegate by `tidegate.report.notebook.show`.

    `import tidegate` calls this in a notebook; `%load_ext tidegate.report` does the same. It
    registers names only: neither numpy nor any module of `DISPLAYED` is imported before a result of
    that class is shown.

    Args:
        ipython: The running shell, as `get_ipython()` returns it.
    """
    html = ipython.display_formatter.formatters["text/html"]
    for module, names in DISPLAYED.items():
        for name in names:
            html.for_type_by_name(module, name, _html)


def _html(value: Any) -> str:
    from tidegate.report.notebook import show

    return show(value)._repr_html_()
