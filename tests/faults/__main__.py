"""`python -m faults`: disturb runs in every way we can think of, and compare what comes out.

    python -m faults                           everything, 50 kills per sink
    python -m faults --only kills --sink delta --kills 5 --seed 3

Exits with 1 if a single row differs from what an undisturbed run gives.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from faults import pipelines, recording, scenarios, simulation, soak
from faults.broker import kill_broker
from faults.child import SHORT
from faults.kills import Campaign, Peace, Result, file_target, kafka_target, pipeline_target
from kafka_broker import Cluster, NoBrokerError
from tidegate.spark import session
from tidegate.spark.sinks import SINKS as KNOWN

SINKS = tuple(KNOWN)
PARTS = ("simulation", "kills", "pipelines", "scenarios", "soak")


def kills(given: argparse.Namespace, folder: Path, bar: Progress) -> Iterator[Result]:
    recording.record(folder / "recording")
    sinks = given.sink or SINKS
    targets = [file_target(sink, folder) for sink in sinks if sink != "kafka"]
    broker = None
    with ExitStack() as stack:
        if "kafka" in sinks:
            (folder / "broker").mkdir()
            try:
                broker = Cluster.create(folder / "broker", given.brokers)
                stack.callback(broker.stop)
                targets.append(kafka_target(broker.servers, folder))
            except NoBrokerError as error:
                yield Result("kafka: killed", skipped=str(error))
        task = bar.add_task("killing the broker", total=given.broker_kills)
        if broker is not None and given.broker_kills:
            yield from kill_broker(
                broker, folder, given.broker_kills, given.seed, lambda n: bar.advance(task, n)
            )
        if not targets or not (given.kills or given.worker_kills):
            return
        bar.reset(task, total=None, description="undisturbed")
        try:
            peace = Peace.of(targets, folder)
        except AssertionError as error:
            yield Result("undisturbed", wrong=[str(error)])
            return
        campaign = Campaign(targets, peace, folder, given.seed, given.streams, given.minutes)
        for what, run, number in (
            ("driver", campaign.kill_drivers, given.kills),
            ("worker", campaign.kill_workers, given.worker_kills),
        ):
            if number:
                bar.reset(task, total=number, description=f"killing the {what}")
                yield from run(number, lambda steps: bar.advance(task, steps))
        bar.remove_task(task)


def kill_pipelines(given: argparse.Namespace, folder: Path, bar: Progress) -> Iterator[Result]:
    """Drivers of every kind of pipeline, all of them to Parquet."""
    place = folder / "pipelines"
    pipelines.record(place)
    names = given.pipeline or list(pipelines.PIPELINES)
    targets = [pipeline_target(name, place) for name in names]
    task = bar.add_task("undisturbed", total=None)
    try:
        peace = Peace.of(targets, place)
    except AssertionError as error:
        yield Result("undisturbed", wrong=[str(error)])
        return
    bar.reset(task, total=given.pipeline_kills, description="killing pipelines")
    campaign = Campaign(targets, peace, place, given.seed, given.streams, given.minutes)
    yield from campaign.kill_drivers(given.pipeline_kills, lambda steps: bar.advance(task, steps))
    bar.remove_task(task)


def run_scenarios(given: argparse.Namespace, folder: Path, bar: Progress) -> Iterator[Result]:
    names = given.scenario or list(scenarios.SCENARIOS)
    task = bar.add_task("starting Spark", total=len(names))
    spark = session("local[2,4]", settings=SHORT, log=folder / "spark.log")

    def step(name: str) -> None:
        bar.update(task, description=name, advance=1)

    try:
        yield from scenarios.run(spark, folder / "scenarios", names, step)
    finally:
        spark.stop()
        bar.remove_task(task)


def run_simulation(given: argparse.Namespace, folder: Path, bar: Progress) -> Iterator[Result]:
    """Every fault at every operation, then histories of several at random."""
    undisturbed, calls = simulation.undisturbed_run()
    several = itertools.islice(simulation.random_histories(calls, given.seed), given.histories)
    for name, histories in (
        ("one fault at every operation", simulation.every_single(calls)),
        ("two or three faults", several),
    ):
        task = bar.add_task(f"simulation: {name}", total=None)
        report = simulation.campaign_by(os.cpu_count() or 1, histories, undisturbed)
        did = f"{report.histories:,} histories, {report.rates()}"
        yield Result(f"simulation: {name}", did, wrong=report.wrong, seconds=report.seconds)
        bar.remove_task(task)


def run_soak(given: argparse.Namespace, folder: Path, bar: Progress) -> Iterator[Result]:
    for name, total, run in (
        ("in process", given.days, lambda step: soak.in_process(given.days, step)),
        (
            "on Spark",
            given.batches,
            lambda step: soak.on_spark(given.batches, folder / "soak", step),
        ),
    ):
        if total:
            task = bar.add_task(f"soak {name}", total=None)
            began = time.monotonic()
            result = Result(f"soak {name}")
            try:
                result.did, result.rows = run(lambda task=task: bar.advance(task))
            except AssertionError as error:
                result.wrong.append(str(error))
            result.seconds = time.monotonic() - began
            yield result
            bar.remove_task(task)


def shown(results: list[Result]) -> Table:
    table = Table(title="what was done, and what came out", title_justify="left")
    for name in ("scenario", "what was done", "rows compared", "time", "result"):
        table.add_column(name, justify="right" if name in ("rows compared", "time") else "left")
    for each in results:
        state = "[red]WRONG[/]" if each.wrong else "[green]well[/]"
        if each.skipped:
            state = "[yellow]skipped[/]"
        rows = f"{each.rows:,}" if each.rows else ""
        did = escape(each.skipped or each.did)
        table.add_row(each.name, did, rows, f"{each.seconds:.0f} s", state)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="parts to run; all if unset")
    parser.add_argument("--sink", action="append", choices=SINKS, help="sinks; all if unset")
    parser.add_argument("--scenario", action="append", choices=scenarios.SCENARIOS)
    parser.add_argument("--kills", type=int, default=50, help="kill points of drivers, per sink")
    parser.add_argument("--pipeline", action="append", choices=pipelines.PIPELINES)
    parser.add_argument("--pipeline-kills", type=int, default=34, help="per pipeline: 200 of six")
    parser.add_argument("--worker-kills", type=int, default=20, help="of workers, over all sinks")
    parser.add_argument("--broker-kills", type=int, default=10, help="of the Kafka broker")
    parser.add_argument("--brokers", type=int, default=3, help="of the Kafka cluster")
    parser.add_argument("--streams", type=int, default=4, help="per sink and driver")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="no driver is killed after")
    parser.add_argument("--days", type=int, default=30, help="of the soak in process")
    parser.add_argument("--histories", type=int, default=20_000, help="random ones, simulated")
    parser.add_argument("--batches", type=int, default=600, help="of the soak on Spark")
    given = parser.parse_args()
    parts = {
        "simulation": run_simulation,
        "kills": kills,
        "pipelines": kill_pipelines,
        "scenarios": run_scenarios,
        "soak": run_soak,
    }
    console = Console()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    results: list[Result] = []
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-faults-") as place,
        Progress(*columns, console=console, transient=True) as bar,
    ):
        for part in given.only or PARTS:
            for result in parts[part](given, Path(place), bar):
                results.append(result)
                said = escape(result.skipped or result.did)
                bar.console.print(f"{result.name}: {said}", soft_wrap=True)
                for line in result.wrong:
                    bar.console.print(f"  [red]{escape(line)}[/]", soft_wrap=True)
    console.print(shown(results))
    console.print(f"{time.monotonic() - began:.0f} s, seed {given.seed}")
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
