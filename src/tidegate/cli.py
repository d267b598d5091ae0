"""The command line. Spark, numba and pyarrow are imported when a command needs them, not before.

A wrong input is one sentence and exit code 2; `--debug` shows the stack.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from tidegate.errors import TidegateError, sentence_of

__all__ = ["app", "main"]

app = typer.Typer(
    name="tidegate",
    help="Puts the messages of many clocks in order, in step and in batches, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130
"""The exit code of a program stopped by Ctrl-C, which is what typer makes of it."""

console = Console()
errors = Console(stderr=True)

PipelineFile = Annotated[Path, typer.Argument(help="the pipeline's YAML file")]
Master = Annotated[
    str | None, typer.Option(help="a Spark master; local mode on all cores if unset")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for a script")]
KeyColumns = Annotated[
    list[str] | None, typer.Option("--key", help="the key column (several times for several)")
]
TopicColumn = Annotated[str | None, typer.Option("--topic", help="the topic column")]
ArrivalColumn = Annotated[
    str | None, typer.Option("--arrival", help="the column that pins the order of arrival")
]
TimeColumn = Annotated[str | None, typer.Option("--time", help="the event-time column")]
TimeType = Annotated[
    str | None, typer.Option("--type", help="how it is read, such as unixtimestamp_ms")
]
Serve = Annotated[
    int | None,
    typer.Option(
        "--serve", help="a live page and /metrics on this loopback port", min=0, max=65535
    ),
]
Limit = Annotated[int, typer.Option(help="look at no more rows than this", min=1)]


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="show the stack of an error")] = False,
) -> None:
    context.obj = {"debug": debug}


@app.command()
def explain(pipeline: PipelineFile, as_json: Json = False) -> None:
    """Show the physical plan: its steps in order, their settings, the time column and its type."""
    from tidegate.pipeline import PipelineDefinition, explain_json, plan
    from tidegate.pipeline import explain as as_text

    made = plan(PipelineDefinition.load(pipeline))
    print(json.dumps(explain_json(made), indent=2) if as_json else as_text(made))


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline files, for an editor."""
    from tidegate.pipeline import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command(name="dry-run")
def dry_run(pipeline: PipelineFile, master: Master = None, as_json: Json = False) -> None:
    """Check a pipeline against its sources and show what would run. Runs nothing."""
    from tidegate.pipeline import PipelineDefinition, explain_json
    from tidegate.pipeline import explain as as_text

    definition = PipelineDefinition.load(pipeline)
    from tidegate.spark.open import check_sources, open_pipeline
    from tidegate.spark.session import log_file
    from tidegate.spark.sinks import SinkSettings
    from tidegate.spark.sources.kafka import session_for

    streaming = definition.options.mode == "streaming"
    with definition.located():
        SinkSettings.of(definition.sink)
        check_sources(definition)
        spark = session_for(definition, master, log_file())
        made, frames = open_pipeline(spark, definition, streaming=streaming)
    tables = {kind: [f"{f.name}: {f.type}" for f in s] for kind, s in frames.schemas.items()}
    if as_json:
        print(json.dumps({**explain_json(made), "tables": tables}, indent=2))
        return
    print(as_text(made))
    print("tables:")
    for kind, columns in tables.items():
        print(f"  {kind:8s} {', '.join(columns)}")


@app.command()
def run(
    pipeline: PipelineFile,
    master: Master = None,
    out: Annotated[
        str | None, typer.Option(help="where the tables go, instead of sink.path")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="take up edits of the file while the stream runs")
    ] = False,
    serve: Serve = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline: once over what is there (batch), or as a stream."""
    from tidegate.pipeline import PipelineDefinition
    from tidegate.spark.reload import run_watched
    from tidegate.spark.runner import print_summary, run_definition

    definition = PipelineDefinition.load(pipeline)
    if serve is not None:
        from tidegate.pipeline.formats import sink_path
        from tidegate.report.serve import LiveServer

        path = out or (definition.sink.path if definition.sink else None)
        if path is not None:
            live = LiveServer(sink_path(path), serve).start()
            errors.print(f"live at [bold]{live.url}[/], numbers at {live.url}metrics")
    if watch:
        summary = run_watched(pipeline, master=master, out=out, console=errors)
    else:
        summary = run_definition(definition, master=master, out=out, console=errors)
    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        print_summary(summary, console)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="where recording and results go")] = Path("demo-out"),
    vehicles: Annotated[int, typer.Option(help="how many vehicles", min=1)] = 20,
    seconds: Annotated[int, typer.Option(help="how long the recording is", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="another seed gives another recording")] = 0,
) -> None:
    """Make up a fleet's recording with every trouble real ones have, and put it in order."""
    from tidegate.spark.demo import run_demo

    run_demo(out, vehicles=vehicles, seconds=seconds, seed=seed, console=console)


@app.command()
def view(
    out: Annotated[str, typer.Argument(help="where a run wrote its tables")],
    page: Annotated[
        Path | None, typer.Option(help="the file to write; OUT/page.html if unset")
    ] = None,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    arrival: ArrivalColumn = None,
    limit: Annotated[
        int, typer.Option(help="most messages in the page; above, they are thinned", min=1)
    ] = 1_000_000,
    serve: Serve = None,
    as_json: Json = False,
) -> None:
    """Make one page of a run: every message on a timeline, where it went and why; its health."""
    from tidegate.profile.roles import Roles
    from tidegate.report.page import write_page

    roles = Roles(tuple(key or ()), topic, None, arrival)
    if serve is not None:
        from tidegate.report.serve import LiveServer

        live = LiveServer(out, serve, roles)
        console.print(f"live at [bold]{live.url}[/], until you stop it", highlight=False)
        live.serve_forever()
        return
    if page is None:
        page = Path("page.html") if "://" in out else Path(out) / "page.html"
    made = write_page(out, str(page), roles, limit=limit)
    if as_json:
        print(json.dumps(made, indent=2))
        return
    thinned = "" if made["messages"] == made["of"] else f" of {made['of']:,}"
    console.print(
        f"[bold]{made['page']}[/] shows {made['messages']:,}{thinned} messages of "
        f"{made['keys']:,} keys in {made['bytes'] / 1e6:.1f} MB; open it in a browser",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


@app.command()
def export(
    out: Annotated[str, typer.Argument(help="where a run wrote its tables")],
    file: Annotated[Path, typer.Argument(help="the log to write: .mcap or .rrd")],
    to: Annotated[
        str | None, typer.Option(help="mcap or rerun; by the file's name if unset")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="which tables; unset: data (MCAP), all (Rerun)")
    ] = None,
    key: KeyColumns = None,
) -> None:
    """Write the tables of a run as a log to play: MCAP, or a recording for Rerun's viewer."""
    from tidegate.errors import ConfigError

    wanted = to or ("rerun" if file.suffix == ".rrd" else "mcap")
    if wanted == "rerun":
        from tidegate.profile.roles import Roles
        from tidegate.report.rerun import export_rerun

        done = export_rerun(out, str(file), kinds=kind or (), roles=Roles(tuple(key or ())))
        console.print(f"wrote {done.rows:,} rows to {file}", soft_wrap=True)
        if done.left_out:
            errors.print(f"left out: {', '.join(sorted(done.left_out))}", soft_wrap=True)
        return
    if wanted != "mcap":
        raise ConfigError("to", wanted, "must be mcap or rerun")
    from tidegate.mcap import export as write

    written = write(out, file, kinds=tuple(kind or ("data",)), key=tuple(key or ()))
    console.print(f"wrote {written:,} messages to {file}", soft_wrap=True)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="a file or folder: Parquet, JSON lines, CSV or MCAP")],
    key: KeyColumns = None,
    topic: TopicColumn = None,
    time: TimeColumn = None,
    time_type: TimeType = None,
    arrival: ArrivalColumn = None,
    limit: Limit = 5_000_000,
    as_json: Json = False,
) -> None:
    """Look at a table: rates, jitter, gaps, disorder, clock skew, and what to set because of it."""
    from tidegate.profile.inspect import inspect as make_profile
    from tidegate.profile.roles import Roles
    from tidegate.profile.show import print_profile

    roles = Roles(tuple(key or ()), topic, time, arrival)
    profile = make_profile(path, roles, time_type=time_type, limit=limit)
    if as_json:
        print(json.dumps(profile.to_json(), indent=2))
    else:
        print_profile(profile, console)


@app.command()
def init(
    path: Annotated[str, typer.Argument(help="a file or folder: Parquet, JSON lines, CSV or MCAP")],
    to: Annotated[Path, typer.Option(help="the file to write")] = Path("pipeline.yaml"),
    out: Annotated[str, typer.Option(help="where its tables will go")] = "out",
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    time: TimeColumn = None,
    time_type: TimeType = None,
    arrival: ArrivalColumn = None,
    limit: Limit = 1_000_000,
) -> None:
    """Write a commented pipeline.yaml from a look at the data."""
    from tidegate.errors import ConfigError
    from tidegate.profile.inspect import inspect as make_profile
    from tidegate.profile.roles import Roles
    from tidegate.profile.starter import starter

    if to.exists() and not force:
        raise ConfigError("to", str(to), "is there already; give --force to replace it")
    roles = Roles(tuple(key or ()), topic, time, arrival)
    text = starter(make_profile(path, roles, time_type=time_type, limit=limit), out=out)
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("to", str(to), f"cannot be written: {error.strerror}") from error
    console.print(f"wrote [bold]{to}[/]; check it with: tidegate dry-run {to}", soft_wrap=True)


def main() -> None:
    """The entry point: one sentence and exit code 2 for what a user can mend."""
    debug = "--debug" in sys.argv
    try:
        code: Any = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        raise SystemExit(code or 0)
    except TidegateError as error:
        if debug:
            raise
        _say(str(error))
        raise SystemExit(2) from None
    except (KeyboardInterrupt, typer.Abort):
        errors.print("stopped; run it again to go on from the last commit")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        # typer's own errors (a wrong option, a missing file) know how to show themselves
        show = getattr(error, "show", None)
        if show is not None:
            show()
            raise SystemExit(getattr(error, "exit_code", 2)) from None
        if debug:
            raise
        _say(sentence_of(error))
        errors.print("(run with --debug for the stack)")
        raise SystemExit(2) from None


def _say(sentence: str) -> None:
    """One line on standard error. What stands in brackets is text of the user's, not markup."""
    errors.print(f"[bold red]tidegate:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
