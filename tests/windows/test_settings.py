"""Bad settings are refused when they are made: field, value and what would be right."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import ConfigError
from tidegate.windows import (
    Accumulation,
    Adaptive,
    AfterCount,
    AfterSize,
    AfterTime,
    Aggregate,
    AtWatermark,
    CountWindow,
    Everything,
    Fixed,
    LookBack,
    Memory,
    MemoryPressure,
    NextWindow,
    Predicate,
    RateChange,
    RateMonitor,
    Reemit,
    Session,
    Sliding,
    StateWindow,
    Tumbling,
    When,
    Window,
    Windows,
)

ROWS = pa.schema([("k", pa.string()), ("v", pa.float64()), ("s", pa.string())])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Tumbling(0), "size"),
        (lambda: Tumbling(-1), "size"),
        (lambda: Tumbling("7 parsecs"), "size"),
        (lambda: Sliding("1 s", 0), "step"),
        (lambda: Sliding("1 s", "2 s"), "step"),
        (lambda: Session(0), "gap"),
        (lambda: Fixed(0), "interval"),
        (lambda: LookBack(-1), "back"),
        (lambda: LookBack(1, -1), "ahead"),
        (lambda: CountWindow(0), "rows"),
        (lambda: CountWindow(True), "rows"),
        (lambda: Adaptive("1 s", "10 ms"), "min"),
        (lambda: Adaptive(0), "min"),
        (lambda: Adaptive(target=0), "target"),
        (lambda: StateWindow(1, True), "open"),  # type: ignore[arg-type]
        (lambda: When("a", "~", 1), "compare"),
        (lambda: AfterTime(0), "interval"),
        (lambda: AfterCount(0), "rows"),
        (lambda: AfterCount(-3), "rows"),
        (lambda: AfterSize(0), "bytes"),
        (lambda: RateChange(0), "threshold"),
        (lambda: RateChange(0.5, 0), "period"),
        (lambda: MemoryPressure(1.5), "threshold"),
        (lambda: Predicate("no"), "condition"),  # type: ignore[arg-type]
        (lambda: AfterCount(1) | 3, "trigger"),  # type: ignore[operator]
        (lambda: AtWatermark(early=AtWatermark()), "early"),
        (lambda: Reemit(0), "max_lateness"),
        (lambda: Memory(0), "budget"),
        (lambda: Memory(-5), "budget"),
        (lambda: Memory(high_water=0.9, emergency=0.5), "high_water"),
        (lambda: Memory(emergency=1.5), "emergency"),
        (lambda: Memory(policy="pray"), "policy"),
        (lambda: Memory(components={"tea": 1}), "components"),
        (lambda: Memory(components={"rate": 0}), "components.rate"),
        (lambda: RateMonitor("0 s"), "window"),
        (lambda: RateMonitor(buckets=0), "buckets"),
        (lambda: Aggregate("sum"), "column"),
        (lambda: Aggregate("quantile", "v"), "q"),
        (lambda: Aggregate("quantile", "v", q=2), "q"),
        (lambda: Aggregate("sum", "v", q=0.5), "q"),
        (lambda: Aggregate(len, "v"), "type"),
        (lambda: Window("tumbling"), "window"),  # type: ignore[arg-type]
        (lambda: Window(late="drop"), "late"),  # type: ignore[arg-type]
        (lambda: Window(trigger="count"), "trigger"),  # type: ignore[arg-type]
        (lambda: Window(group_by=("k",)), "group_by"),
        (lambda: Window(group_by=("k", "k"), aggregates={"n": "count"}), "group_by"),
        (lambda: Window(aggregates={"n": 3}), "aggregates.n"),
        (lambda: Window(CountWindow(2), late=Reemit(5)), "late"),
        (lambda: Window(Everything(), accumulation=Accumulation.ACCUMULATING), "accumulation"),
        (
            lambda: Window(
                Tumbling(5), late=Reemit(5, retract=True), accumulation=Accumulation.DISCARDING
            ),
            "accumulation",
        ),
        (lambda: Window(LookBack(5), trigger=AfterCount(3)), "trigger"),
        (lambda: Window(Tumbling(5), trigger=AtWatermark(late=AfterCount(2))), "trigger"),
        (lambda: Window(trigger=MemoryPressure()), "trigger"),
        (lambda: Window(trigger=RateChange(1) | RateChange(2)), "trigger"),
        (lambda: Window(Fixed(5), late=NextWindow()), "late"),
        (lambda: Window(affected="k"), "affected"),
        (lambda: Windows(memory=Memory(policy="spill")), "spill"),
        (lambda: Windows(checkpoint_every=0), "checkpoint_every"),
        (lambda: Windows(colour="red"), "settings"),
    ],
)
def test_refused(make: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (Window(aggregates={"s": ("sum", "nothing")}), "aggregates"),
        (Window(aggregates={"s": ("sum", "s")}), "aggregates"),
        (Window(aggregates={"s": ("mean", "k")}), "aggregates"),
        (Window(aggregates={"pane": "count"}), "aggregates"),
        (Window(aggregates={"k": "count"}, keys=("k",)), "aggregates"),
        (Window(keys=("nothing",), aggregates={"n": "count"}), "keys"),
        (Window(deduplicate_by="nothing"), "deduplicate_by"),
        (Window(StateWindow(When("nothing", "==", 1), True)), "open"),
        (Window(StateWindow(True, When("k", ">", 1))), "emit"),
        (Window(StateWindow(True, True, ("nothing",))), "partition_by"),
        (Window(Tumbling(1), Predicate(When("nothing", "==", 1))), "trigger"),
        (Window(Tumbling(1), Predicate(When("v", "<", "fast"))), "trigger"),
    ],
)
def test_refused_for_these_rows(stage: Window, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage.schema(ROWS)
    assert caught.value.field == field


def test_settings_tell_stages_apart() -> None:
    made = [
        Window(),
        Window(Tumbling("1 s")),
        Window(Tumbling("1 s"), aggregates={"n": "count"}),
        Window(Tumbling("1 s"), aggregates={"n": ("count", "v")}),
        Window(Tumbling("1 s"), aggregates={"n": Aggregate("quantile", "v", q=0.1)}),
        Window(Tumbling("1 s"), trigger=AfterCount(3) | AfterTime("1 s")),
        Window(Tumbling("1 s"), trigger=AfterCount(3) & AfterTime("1 s")),
        Window(Tumbling("1 s"), memory=Memory(5)),
    ]
    assert len({repr(stage.settings()) for stage in made}) == len(made)
    again = Window(Tumbling("1000 ms"), trigger=AfterCount(3) | AfterTime("1 s"))
    assert again.settings() == made[5].settings()
    own = Window(trigger=Predicate(lambda rows: [True], "mine"))
    assert "0x" not in repr(own.settings())  # an address would differ in the next process
