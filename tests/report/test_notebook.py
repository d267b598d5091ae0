"""Results in a notebook: what is shown is what came out. Only the last tests need IPython."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import store

import tidegate as tg
from tidegate.align import Align
from tidegate.align.in_process import align_recording
from tidegate.core.outcomes import Outcome, Side
from tidegate.dataset.in_process import DatasetSummary
from tidegate.deltas import Add, Compactor, FullMerge
from tidegate.errors import ConfigError
from tidegate.output.audit import AuditReport
from tidegate.output.reader import open_run
from tidegate.output.summary import Summary
from tidegate.report import DISPLAYED
from tidegate.report.look import write_look
from tidegate.report.notebook import Shown, show
from tidegate.report.picture import PALETTE
from tidegate.sync.results import Diagnosis
from tidegate.testing.fleet import facts, fleet
from tidegate.windows import Everything

SVG = "{http://www.w3.org/2000/svg}"


def svg(shown: Shown) -> ET.Element:
    """The picture, as a browser would read it."""
    text = shown._repr_html_()
    root = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    for legend in root.findall(f"{SVG}g[@class='legend']"):
        root.remove(legend)
    return root


def texts(shown: Shown) -> list[str]:
    return ["".join(element.itertext()) for element in svg(shown).iter(f"{SVG}text")]


def outcomes(*stages: tg.Operator, cars: int = 1, seconds: int = 6) -> list[Outcome]:
    recording = fleet(cars, seconds, seed=4, late_share=0.02)
    decoder = tg.Decoder((tg.TimeColumn("stamp", "unixtimestamp_ns"),))
    flow = tg.Flow([tg.EventtimeWatermark("200 ms", max_future_skew="1 h"), *stages],
                   key="vehicle", decoder=decoder)  # fmt: skip
    out: list[Outcome] = []
    for batch in recording.to_batches(max_chunksize=200):
        out += flow.process(batch)
    return out + flow.end()


def test_rows_in_order_and_late_ones_are_counted_and_drawn_by_topic() -> None:
    known = facts(fleet(1, 6, seed=4, late_share=0.02))
    made = outcomes()
    shown = show(made)
    late = sum(len(o) for o in made if isinstance(o, tg.Late))
    errors = sum(len(o) for o in made if isinstance(o, tg.StreamError))
    assert shown.counts["late"] == late
    assert shown.counts["error"] == errors
    assert shown.counts["data"] + late + errors == fleet(1, 6, seed=4, late_share=0.02).num_rows
    assert set(known.by_topic) <= set(texts(shown))
    diamonds = [p for p in svg(shown).iter(f"{SVG}path") if p.get("fill") == "var(--late)"]
    assert len(diamonds) == late > 0
    assert "watermark" in texts(shown)
    assert f"{late:,} late" in repr(shown)


def test_a_single_collection_is_shown() -> None:
    rows = pa.record_batch({"topic": ["a", "b", "a"]})
    shown = show(tg.Collection.of(rows, np.array([1, 2, 3]) * 10**9))
    assert shown.counts == {"data": 3}
    assert len(list(svg(shown).iter(f"{SVG}circle"))) == 3


def test_sets_are_linked_across_their_topics() -> None:
    stage = tg.Synchronize(("camera", "lidar"), queue_size=10, keys=("vehicle",))
    shown = show(outcomes(stage))
    links = [p for p in svg(shown).iter(f"{SVG}path") if p.get("class") == "link"]
    assert shown.counts["sets"] > 20
    assert len(links) == min(shown.counts["sets"], 125)
    assert {"camera", "lidar"} <= set(texts(shown))


def test_sets_in_process_by_one_and_as_columns() -> None:
    def pushed(sync: tg.ApproximateTime) -> list[Any]:
        return [s for t in range(0, 90, 10) for topic, shift in (("camera", 0), ("lidar", 3))
                for s in sync.push(topic, t + shift)]  # fmt: skip

    sets = pushed(tg.ApproximateTime(["camera", "lidar"], queue_size=10))
    shown = show(sets, topics=["camera", "lidar"])
    assert shown.counts == {"sets": len(sets)}
    assert {"camera", "lidar"} <= set(texts(shown))
    assert "topic 1" in texts(show(sets[0]))
    sync = tg.ApproximateTime(["camera", "lidar"], queue_size=2, max_interval=1)
    result = sync.process(np.array([0, 1] * 20), np.arange(40) * 5)
    assert len(result.unmatched_rows) > 0
    columns = show(result)
    assert columns.counts == {"unmatched": len(result.unmatched_rows)}
    assert sum(1 for c in svg(columns).iter(f"{SVG}circle") if c.get("fill") == "none") == len(
        result.unmatched_rows
    )
    assert f": {len(result.unmatched_rows)}" in columns.html  # the reason, and how often


def test_batches_and_windows_are_spans() -> None:
    batcher = tg.RateAwareBatcher(batch_length="1 s")
    messages = [tg.Message("det", n * 10**8, gated=True) for n in range(60)]
    batches = [*batcher.process(messages), *batcher.flush()]
    shown = show(batches)
    assert shown.counts == {"batches": len(batches), "messages": 60}
    assert len(list(svg(shown).iter(f"{SVG}rect"))) == len(batches)
    windows = tg.Windows(Everything(), trigger=tg.triggers.AfterCount(4))
    emitted = [w for n in range(12) for w in windows.push({"v": n}, time_ns=n * 10**9)]
    spans = show(emitted)
    assert spans.counts == {"windows": 3, "rows": 12}
    assert len(list(svg(spans).iter(f"{SVG}rect"))) == 3
    whole = show(outcomes(tg.Window(tg.Tumbling("1 s"), keys=("vehicle",))))
    assert 5 <= len(list(svg(whole).iter(f"{SVG}rect"))) <= 9


def test_many_rows_are_thinned_and_it_says_so() -> None:
    rows = pa.record_batch({"topic": ["a"] * 5000})
    shown = show([tg.Collection.of(rows, np.arange(5000))] * 2)
    assert shown.counts == {"data": 10_000}
    assert len(list(svg(shown).iter(f"{SVG}circle"))) == 500
    assert "500 of 10,000 messages" in shown.html
    assert len(shown.html) < 100_000


def test_names_cannot_become_markup() -> None:
    rows = pa.record_batch({"topic": ["<script>x</script>"]})
    html = show(tg.Collection.of(rows, np.array([5]))).html
    assert "<script" not in html


def test_nothing_and_the_wrong_thing() -> None:
    assert repr(show([])) == "nothing"
    assert "nothing came out" in show([]).html
    with pytest.raises(ConfigError, match="value: got 'int', must be results"):
        show([3])


def test_ipython_shows_results_by_itself() -> None:
    """In a process of its own: IPython's shell is a singleton."""
    pytest.importorskip("IPython")
    program = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import tidegate as tg
assert not {'numpy', 'pyarrow', 'pyspark'} & set(sys.modules), "import stays light"
sync = tg.ApproximateTime(["a", "b"], queue_size=3)
found = [s for t in range(5) for topic in "ab" for s in sync.push(topic, t)]
data, _ = shell.display_formatter.format(found[0])
assert "<svg" in data["text/html"], data
data, _ = shell.display_formatter.format([1])
assert "text/html" not in data
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_ipython_it_is_not_looked_for() -> None:
    program = "import sys, tidegate; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_every_displayed_class_is_where_the_list_says() -> None:
    """IPython compares strings: an entry that is out of date would silently show nothing."""
    for module, names in DISPLAYED.items():
        for name in names:
            found = getattr(import_module(module), name)
            assert (found.__module__, found.__name__) == (module, name)


def one_of_each() -> list[Any]:
    """A result of every class in the list, made by the operators where that is easy."""
    sync = tg.ApproximateTime(["a", "b"], queue_size=3)
    chain = tg.DeltaChain("v", dims=1)
    chain.process(tg.VectorDelta(f"d{n}", "v", Add([1.0]), time_ns=n) for n in range(5))
    batcher = tg.RateAwareBatcher(batch_length="1 s")
    pulses = [tg.Message("det", n * 10**8, gated=True) for n in range(20)]
    one_row = tg.triggers.AfterCount(1)
    rows, times = pa.record_batch({"topic": ["a"]}), np.array([5])
    return [
        tg.Collection.of(rows, times),
        *(o for o in outcomes() if isinstance(o, tg.Late | tg.StreamError | tg.Watermark)),
        *(o for o in outcomes(tg.Synchronize(("camera", "lidar"), queue_size=10, keys=("vehicle",)))
          if isinstance(o, tg.Dropped)),
        *(o for o in outcomes(tg.Batch("1 s", keys=("vehicle",), gated=("camera",)))
          if isinstance(o, Side)),
        *[s for t in range(5) for topic in "ab" for s in sync.push(topic, t)],
        sync.process(np.array([0, 1] * 5), np.arange(10) * 5),
        *batcher.process(pulses),
        *tg.Windows(Everything(), trigger=one_row).push({"v": 1}, time_ns=1),
        Compactor(FullMerge()).compact(chain),
        align_recording(Align({"imu": "latest"}, reference="camera", keys=("vehicle",)),
                        fleet(1, 2, seed=1), time="stamp", type="unixtimestamp_ns"),
    ]  # fmt: skip


def test_every_displayed_class_has_a_display(tmp_path: Path) -> None:
    pq.write_table(fleet(1, 5, seed=1), tmp_path / "fleet.parquet")
    looked = write_look(str(tmp_path), str(tmp_path / "page.html"))
    store(tmp_path / "run", [tg.EventtimeWatermark("200 ms", max_future_skew="1 h")], fleet(1, 5))
    run = open_run(str(tmp_path / "run"))
    written = {"episodes": 2, "frames": 40, "reasons": {"no <image>": 1}}
    results = [
        *one_of_each(), looked.proof.profile, looked, looked.proof, run,
        Summary.of("out", run.commits), AuditReport("out", batches=3), Diagnosis("healthy"),
        DatasetSummary("set", written, 43, {"data": 41}, ["topic imu was never seen"],
                       {"dropped": {"no message within <50 ms>": 2}}),
    ]  # fmt: skip
    shown = {type(result).__name__: show(result) for result in results}
    assert set(shown) == {name for names in DISPLAYED.values() for name in names}
    for name, one in shown.items():
        assert one.html.startswith('<div class="tidegate">'), name
    assert "suggested late tolerance" in shown["Profile"].html
    assert shown["CompactionResult"].counts["deltas before"] == 5
    assert "watermark" in shown["Watermark"].html
    counts = shown["LookedAt"].counts
    assert counts.get("late", 0) == looked.proof.late
    assert counts["data"] == looked.proof.in_order > 0
    for words in (looked.headline, "page.html", "<svg", "suggested late tolerance", "camera"):
        assert words in shown["LookedAt"].html
    assert shown["StoredRun"].counts == run.counts
    assert PALETTE["error"][0] in shown["Summary"].html
    assert "left out: 1 row, no &lt;image&gt;" in shown["DatasetSummary"].html
    assert "dropped: 2 rows, no message within &lt;50 ms&gt;" in shown["DatasetSummary"].html
    assert "sets are coming" in shown["Diagnosis"].html


def test_the_colours_are_those_of_the_page() -> None:
    shown = show(outcomes()).html
    for name in ("data", "late"):
        light, dark = PALETTE[name]
        assert f"--{name}:{light}" in shown
        assert f"--{name}:{dark}" in shown
