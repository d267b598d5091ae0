"""The command line. Spark, numba and pyarrow are imported when a command needs them, not before:
`tidegate --help` answers at once.

Wrong input is one sentence on standard error and exit code 2; `--debug` shows the stack. Values
that references such as `${env:NAME}` stood for are never printed.

    results         standard output, so that they can be piped; with `--json` as one JSON document
    progress, hints standard error
    exit code       0 done, 1 a recording is missing, broken or empty, 2 what the user can correct
                    or a run that failed, 130 after Ctrl-C

The docstring of a command is its help text: what a maintainer must know stands in comments.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.segment import Segment

from tidegate.core.text import plural, visible
from tidegate.errors import DataError, TidegateError, sentence_of

__all__ = ["app", "main"]

app = typer.Typer(
    name="tidegate",
    help="Reorders, aligns and batches messages from many clocks, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
"""The commands, as typer runs them. `main` runs it with our own handling of errors."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells and typer have it."""

REASONS_SAID = 5
"""Reasons per kind of row that a summary prints, the most frequent first: what fits a screen."""

BROKEN = 1
"""Exit code for a recording that is not there, damaged or empty: no option of the command helps."""


class _Visible(RenderHook):
    """Keeps what strangers chose (names of columns, topics and files) from commanding the terminal,
    and secrets out of it, in everything that is printed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by rich before it prints."""
        return [_VisibleText(each) for each in renderables]


@dataclass(frozen=True)
class _VisibleText:
    """Something to print, with the text in it made visible and its styles kept."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.inner, options):
            yield part if part.control else Segment(visible(_scrubbed(part.text)), part.style)


console = Console()
"""Standard output: what a command was run for."""

errors = Console(stderr=True)
"""Standard error: progress, hints and sentences about errors."""

for _each in (console, errors):
    _each.push_render_hook(_Visible())


def _print(text: str) -> None:
    """Print plain text as it is, for pipes; see `_Visible`."""
    print(visible(_scrubbed(text)))


def _scrubbed(text: str) -> str:
    """Return a text without what references stood for: the path of an output may have one."""
    if "tidegate.pipeline.secrets" not in sys.modules:  # nothing was resolved
        return text
    from tidegate.pipeline.secrets import scrub

    return scrub(text)


PipelineFile = Annotated[Path, typer.Argument(help="The pipeline file (YAML).")]
"""The argument of every command that reads a definition."""

Master = Annotated[
    str | None, typer.Option(help="Spark master; local mode on all cores if not given.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
"""`--json`: one JSON document on standard output and nothing else there."""

KeyColumns = Annotated[
    list[str] | None, typer.Option("--key", help="Key column; repeat the option for several.")
]
TopicColumn = Annotated[str | None, typer.Option("--topic", help="Topic column.")]
ArrivalColumn = Annotated[
    str | None, typer.Option("--arrival", help="Column that gives the order of arrival.")
]
TimeColumns = Annotated[
    list[str] | None,
    typer.Option("--time", help="Event-time column; repeat it for a date and a time of day."),
]
TimeFormat = Annotated[
    str | None,
    typer.Option("--format", help="How the time is written, as %d.%m.%Y %H:%M; see strptime."),
]
TimeZone = Annotated[
    str | None, typer.Option("--zone", help="Zone of times without one; UTC if not given.")
]
Recording = Annotated[
    str,
    typer.Argument(help="File or folder: CSV, JSON, Parquet, MCAP or bag, text also compressed."),
]
TimeType = Annotated[
    str | None, typer.Option("--type", help="Event-time type, such as unixtimestamp_ms.")
]
Serve = Annotated[
    int | None,
    typer.Option(
        "--serve",
        help="Serve a live page and /metrics on this port of this machine.",
        min=0,
        max=65535,
    ),
]
"""`--serve PORT`: 0 lets the system choose a free port."""

AllowFormat = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-format",
        help="Let the pipeline file use this source or sink format, with any options that do not "
        "name code. Repeat the option for several. Only for files you trust.",
    ),
]
"""`--allow-format`: formats beyond those a pipeline file may name by itself; see
`tidegate.pipeline.security`."""

UserTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        help="Event-time types of your own: module:function, or the name of an installed entry "
        "point. Repeat the option for several.",
    ),
]
"""`--types`: loads code, so it is given on the command line."""

Limit = Annotated[int, typer.Option(help="Most rows to read.", min=1)]
"""`--limit`: bounds time and memory; what is beyond it is not looked at."""


def _print_version(wanted: bool) -> None:
    """Print what to name in a report of a fault, and end. Reads metadata: imports none of it."""
    if not wanted:
        return
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from tidegate.version import __version__

    def installed(name: str, package: str) -> str:
        try:
            return f"{name} {version(package)}"
        except PackageNotFoundError:
            return f"no {name}"

    others = [f"Python {platform.python_version()}", installed("PyArrow", "pyarrow")]
    print(f"tidegate {__version__} ({', '.join([*others, installed('PySpark', 'pyspark')])})")
    raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Show the stack of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of Tidegate, Python, PyArrow and PySpark.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    # `main` looks for --debug in sys.argv itself: an error may be raised before this is called.
    # The option is declared here so that it is accepted and shown in the help.
    context.obj = {"debug": debug}


@app.command(name="explain")
def explain_pipeline(
    pipeline: PipelineFile, types: UserTypes = None, as_json: Json = False
) -> None:
    """Show what a pipeline would do: its stages in order, settings, time column. Reads no data."""
    _allow(None, types)
    from tidegate.pipeline import PipelineDefinition, explain_json, plan
    from tidegate.pipeline import explain as as_text

    made = plan(PipelineDefinition.load(pipeline))
    _print(json.dumps(explain_json(made), indent=2) if as_json else as_text(made))


@app.command(name="schema")
def print_json_schema() -> None:
    """Print the JSON Schema of pipeline files, for completion and checks in an editor."""
    from tidegate.pipeline import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command(name="dry-run")
def dry_run(
    pipeline: PipelineFile,
    master: Master = None,
    allow_format: AllowFormat = None,
    types: UserTypes = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print everything; without, what fits the screen.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a pipeline against its sources and show the tables it would write. Runs nothing."""
    _allow(allow_format, types)
    from tidegate.pipeline import PipelineDefinition, explain_json
    from tidegate.pipeline.explanation import dry_run_text

    definition = PipelineDefinition.load(pipeline)
    from tidegate.spark.open import check_sources, open_pipeline, session_for
    from tidegate.spark.sinks import SinkSettings
    from tidegate.spark.spark_session import log_file

    streaming = definition.options.mode == "streaming"
    with definition.located():
        # What is cheap to find wrong comes first: starting a session takes seconds.
        SinkSettings.of(definition.sink)
        check_sources(definition)
        spark = session_for(definition, master, log_file())
        made, frames = open_pipeline(spark, definition, streaming=streaming)
    tables = {kind: [f"{f.name}: {f.type}" for f in s] for kind, s in frames.schemas.items()}
    notes = frames.notes()
    if as_json:
        _print(json.dumps({**explain_json(made), "notes": notes, "tables": tables}, indent=2))
        return
    # 80 x 24 where there is no terminal to ask
    screen = None if full else shutil.get_terminal_size((80, 24))
    _print(dry_run_text(made, notes, tables, screen))


@app.command(name="run")
def run_pipeline(
    pipeline: PipelineFile,
    *,
    master: Master = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for the tables, instead of sink.path.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Apply edits of the file while the stream runs.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Write even if another run holds the lease on the output. That run is fenced off: "
            "it stops at its next commit.",
        ),
    ] = False,
    serve: Serve = None,
    allow_format: AllowFormat = None,
    types: UserTypes = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline: once over the existing data (batch), or as a stream."""
    _allow(allow_format, types)
    from tidegate.pipeline import PipelineDefinition
    from tidegate.spark.progress import print_summary
    from tidegate.spark.reload import run_watched
    from tidegate.spark.runner import run_definition

    definition = PipelineDefinition.load(pipeline)
    live = None
    if serve is not None:
        from tidegate.pipeline.formats import sink_path
        from tidegate.report.serve import LiveServer

        path = out or (definition.sink.path if definition.sink else None)
        if path is not None:
            # Beside the run, in a thread of this process: it reads what has been committed.
            live = LiveServer(sink_path(path), serve).start()
            errors.print(f"live at [bold]{live.url}[/], numbers at {live.url}metrics")
    if watch:
        summary = run_watched(pipeline, master=master, out=out, console=errors, take_over=take_over)
    else:
        summary = run_definition(
            definition, master=master, out=out, console=errors, take_over=take_over
        )
    if live is not None:
        live.finish()
    if as_json:
        _print(json.dumps(summary.to_json(), indent=2))
    else:
        print_summary(summary, console)
        if summary.rows and definition.sink is not None and definition.sink.format != "kafka":
            console.print(
                f"look at it with: tidegate view {escape(summary.out)}",
                soft_wrap=True,
                highlight=False,
            )


@app.command()
def warm() -> None:
    """Compile every kernel now, so that no first batch waits for it: in the build of an image, or
    once on each node of a cluster. Numba keeps the result beside the package, or in the folder that
    NUMBA_CACHE_DIR names. Keeps Spark's Java classes as well (200 MB in ~/.cache/tidegate), with
    which a session in local mode starts some five seconds sooner."""
    from tidegate.warm import compile_all

    for part, seconds in compile_all():
        console.print(f"{part:20} {seconds:6.1f} s of CPU")


@app.command()
def doctor(
    master: Master = None,
    path: Annotated[
        list[str] | None,
        typer.Option(
            "--path",
            help="A folder that must be the same everywhere: of the output, the checkpoint, the "
            "recording. Repeat the option for several.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every executor of a cluster before a run: Python, packages, Java, paths, compiled
    kernels. Names the executor that is not fit and how to mend it; exit code 2 if there is one."""
    from tidegate.spark.doctor import examine, findings_table
    from tidegate.spark.spark_session import log_file, session

    # Spark's own daemon: ours does not start where the package is missing, which is a finding.
    settings = {"spark.python.daemon.module": "pyspark.daemon"}
    found = examine(session(master, "tidegate-doctor", settings, log=log_file()), path or ())
    if as_json:
        told = {"executors": found.executors, "findings": [vars(one) for one in found.findings]}
        print(json.dumps(told, indent=2))
    else:
        console.print(findings_table(found))
        for one in found.findings:
            console.print(f"[red]{escape(one.executor)}[/]: {escape(one.wrong)}", highlight=False)
            console.print(f"  {escape(one.fix)}", highlight=False, soft_wrap=True)
        if not found.findings:
            console.print(f"{plural(len(found.executors), 'executor')}: all of them can run it")
    if found.findings:
        raise typer.Exit(2)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for recording and results.")] = Path("demo-out"),
    vehicles: Annotated[int, typer.Option(help="Number of vehicles.", min=1)] = 20,
    seconds: Annotated[int, typer.Option(help="Length of the recording in seconds.", min=1)] = 60,
    seed: Annotated[
        int, typer.Option(help="Seed of the random numbers: another seed, another recording.")
    ] = 0,
    record_only: Annotated[
        bool,
        typer.Option("--record-only", help="Only make the recording and its pipeline: no Spark."),
    ] = False,
) -> None:
    """Generate a fleet's recording with late, lost and broken messages, and put it in order."""
    from tidegate.demo import program, record_demo, run_demo

    if record_only:
        record_demo(out, vehicles=vehicles, seconds=seconds, seed=seed, console=console)
        console.print(
            f"in {out / 'recording'}; look at it with: {program()} look {out / 'recording'}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
        return
    run_demo(out, vehicles=vehicles, seconds=seconds, seed=seed, console=console)


@app.command()
def view(
    out: Annotated[str, typer.Argument(help="Folder in which a run wrote its tables.")],
    page: Annotated[
        Path | None, typer.Option(help="File to write; OUT/page.html if not given.")
    ] = None,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    arrival: ArrivalColumn = None,
    limit: Annotated[
        int, typer.Option(help="Most messages in the page; of more, a sample is shown.", min=1)
    ] = 1_000_000,
    serve: Serve = None,
    as_json: Json = False,
) -> None:
    """Make a page of a run: every message on a timeline, where it went and why; rates and
    delays."""
    from tidegate.profile.roles import Roles
    from tidegate.report.page import write_page

    roles = Roles(tuple(key or ()), topic, None, arrival)
    if serve is not None:
        from tidegate.report.serve import LiveServer

        live = LiveServer(out, serve, roles)
        console.print(f"live at [bold]{live.url}[/]  (until you stop it)", highlight=False)
        live.serve_forever()
        return
    if page is None:
        # A page is a local file, also where the tables are in a store.
        page = Path("page.html") if "://" in out else Path(out) / "page.html"
    made = write_page(out, str(page), roles, limit=limit)
    if as_json:
        print(json.dumps(made, indent=2))
        return
    console.print(made["headline"], markup=False, highlight=False, soft_wrap=True)
    sample = "" if made["messages"] == made["of"] else f" (a sample of {made['of']:,})"
    console.print(
        f"wrote [bold]{made['page']}[/] ({made['bytes'] / 1e6:.1f} MB): "
        f"{plural(made['messages'], 'message')}{sample} of {plural(made['keys'], 'key')}; open it "
        "in a browser",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


@app.command(name="export")
def export_run(
    out: Annotated[str, typer.Argument(help="Folder in which a run wrote its tables.")],
    file: Annotated[Path, typer.Argument(help="File to write: .mcap or .rrd.")],
    to: Annotated[
        str | None, typer.Option(help="mcap or rerun; by the name of the file if not given.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Tables to export; data (MCAP) or all (Rerun) if not given."),
    ] = None,
    key: KeyColumns = None,
) -> None:
    """Export the tables of a run as a recording: MCAP, or for the Rerun viewer."""
    from tidegate.errors import ConfigError

    if to not in (None, "mcap", "rerun"):
        raise ConfigError("to", to, "must be mcap or rerun")
    meant = {".mcap": "mcap", ".rrd": "rerun"}.get(file.suffix.lower())
    if meant is None and to is None:
        raise ConfigError(
            "file", str(file), "must end in .mcap or .rrd, or say --to mcap or --to rerun (the "
            "tables of a run are Parquet already)",
        )  # fmt: skip
    if None not in (meant, to) and meant != to:
        raise ConfigError("to", to, f"does not fit {file.name}, which is a name for {meant}")
    # Where no kinds are named: all of them for Rerun, `data` for MCAP.
    if (to or meant) == "rerun":
        from tidegate.profile.roles import Roles
        from tidegate.report.rerun import export_rerun

        done = export_rerun(out, str(file), kinds=kind or (), roles=Roles(tuple(key or ())))
        console.print(f"wrote {plural(done.rows, 'row')} to {file}", soft_wrap=True)
        if done.left_out:
            errors.print(f"left out: {', '.join(sorted(done.left_out))}", soft_wrap=True)
        return
    from tidegate.mcap import export as write

    written = write(out, file, kinds=tuple(kind or ("data",)), key=tuple(key or ()))
    console.print(f"wrote {plural(written, 'message')} to {file}", soft_wrap=True)


@app.command(name="audit")
def audit_output(
    out: Annotated[str, typer.Argument(help="Folder in which a run wrote its tables.")],
    files: Annotated[
        bool, typer.Option(help="Read and hash every file; without, compare records only.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Prove that every row of a run is in one place: rows in = rows out + held, by count and hash.
    Names the first batch that does not add up, and exits with 2."""
    from tidegate.output.audit import audit_run

    report = audit_run(out, files=files)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        for line in report.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not report.passed:
        raise SystemExit(2)


@app.command(name="maintain")
def maintain_output(
    out: Annotated[str, typer.Argument(help="Folder in which a run wrote its tables.")],
    target_mb: Annotated[int, typer.Option(help="Size of merged files in MB.", min=1)] = 128,
    retain: Annotated[
        str, typer.Option(help="How long files that were merged stay for those who read them.")
    ] = "1 h",
    as_json: Json = False,
) -> None:
    """Fold the commit records of a run and merge its small files; for Delta tables, optimize and
    vacuum. A stream does so by itself as it goes (but for Delta's part). Refused while a run is
    writing."""
    from dataclasses import asdict

    from tidegate.core.time import parse_duration
    from tidegate.output.upkeep import maintain

    retain_s = parse_duration(retain, "retain") / 1e9
    done = maintain(out, target_bytes=target_mb * 2**20, retain_s=retain_s)
    if as_json:
        print(json.dumps(asdict(done), indent=2))
        return
    console.print(
        f"folded {plural(done.folded, 'record')}, merged {plural(done.merged, 'file')} into "
        f"{done.into:,}, removed {done.removed:,}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


@app.command(name="inspect")
def inspect_recording(
    path: Recording,
    *,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    time: TimeColumns = None,
    time_type: TimeType = None,
    time_format: TimeFormat = None,
    zone: TimeZone = None,
    arrival: ArrivalColumn = None,
    limit: Limit = 5_000_000,
    as_json: Json = False,
) -> None:
    """Profile a recording: times, roles, rates, gaps, disorder, clock skew, suggested settings."""
    from tidegate.profile.inspect import inspect as make_profile
    from tidegate.profile.inspect import require_rows
    from tidegate.profile.show import print_profile

    roles = _roles(key, topic, time, arrival)
    profile = make_profile(
        path, roles, time_type=time_type, format=time_format, zone=zone, limit=limit
    )
    require_rows(profile)
    if as_json:
        print(json.dumps(profile.to_json(), indent=2))
    else:
        print_profile(profile, console)
    if profile.source.format in ("mcap", "rosbag") and profile.unreadable:
        # What could be read has been told; a script must still see that the file is damaged.
        reason = max(profile.unreadable, key=lambda each: profile.unreadable[each])
        raise DataError(f"{path} is damaged: {reason}")


@app.command()
def init(
    path: Recording,
    *,
    to: Annotated[Path, typer.Option(help="File to write.")] = Path("pipeline.yaml"),
    out: Annotated[str, typer.Option(help="Folder for the tables of the pipeline.")] = "out",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    time: TimeColumns = None,
    time_type: TimeType = None,
    time_format: TimeFormat = None,
    zone: TimeZone = None,
    arrival: ArrivalColumn = None,
    limit: Limit = 1_000_000,
    purpose: Annotated[
        str | None,
        typer.Option("--for", help="training: a pipeline from MCAP or a bag to a LeRobot dataset."),
    ] = None,
) -> None:
    """Write a first pipeline.yaml from a profile of the data, with a comment on every choice, and
    try it on these data."""
    from tidegate.errors import ConfigError
    from tidegate.profile.inspect import inspect_rows
    from tidegate.profile.show import print_proof
    from tidegate.profile.starter import prove

    # Before the profile is made, which may take minutes.
    if to.exists() and not force:
        raise ConfigError("to", str(to), "exists already; --force replaces it")
    if purpose is not None:
        from tidegate.core.checks import one_of
        from tidegate.profile.training import training_pipeline

        one_of("for", purpose, ("training",))
        text = training_pipeline(path, out=out, file=str(to))
        try:
            to.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError("to", str(to), f"cannot be written: {error.strerror}") from error
        console.print(f"wrote [bold]{to}[/]; run it with: tidegate dataset {to}", soft_wrap=True)
        return
    roles = _roles(key, topic, time, arrival)
    made = inspect_rows(
        path, roles, time_type=time_type, format=time_format, zone=zone, limit=limit
    )
    proof = prove(*made, out=out, file=str(to))
    try:
        to.write_text(proof.text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("to", str(to), f"cannot be written: {error.strerror}") from error
    print_proof(proof, console)
    console.print(f"wrote [bold]{to}[/]; run it with: tidegate run {to}", soft_wrap=True)


@app.command()
def look(
    path: Recording,
    *,
    page: Annotated[
        Path | None, typer.Option(help="File to write; NAME.look.html here if not given.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    key: KeyColumns = None,
    topic: TopicColumn = None,
    time: TimeColumns = None,
    time_type: TimeType = None,
    time_format: TimeFormat = None,
    zone: TimeZone = None,
    arrival: ArrivalColumn = None,
    limit: Limit = 1_000_000,
    as_json: Json = False,
) -> None:
    """Make a page of a recording, without Spark: every message on a timeline, rates, gaps,
    disorder, and what a pipeline would do with it."""
    from tidegate.profile.show import print_look
    from tidegate.report.look import write_look

    if page is None:
        page = Path(f"{Path(path).absolute().name.split('.')[0]}.look.html")
    made = write_look(
        path, str(page), _roles(key, topic, time, arrival), time_type=time_type,
        format=time_format, zone=zone, limit=limit,
    )  # fmt: skip
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
        return
    print_look(made.proof, console)
    console.print(made.headline, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"wrote [bold]{page}[/] ({made.bytes / 1e6:.1f} MB): {plural(made.shown, 'message')}; "
        f"next: tidegate init {escape(path)}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    # Only where a person sits before a screen: elsewhere a text browser might take the terminal.
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if show and console.is_terminal and screen:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())


def _roles(
    key: list[str] | None, topic: str | None, time: list[str] | None, arrival: str | None
) -> Any:
    """Return the columns that the user named."""
    from tidegate.profile.roles import Roles

    named = tuple(time or ())
    return Roles(tuple(key or ()), topic, named[0] if len(named) == 1 else named or None, arrival)


checkpoint_app = typer.Typer(
    help="Look into the state of a stopped stream, save it, start from a saved one, rescale it.",
    no_args_is_help=True,
)
app.add_typer(checkpoint_app, name="checkpoint")

StreamOutput = Annotated[str, typer.Argument(help="Folder in which a stream writes its tables.")]
"""`OUT`: its checkpoint is OUT/_checkpoint unless `--checkpoint` says otherwise."""

CheckpointPath = Annotated[
    str | None, typer.Option("--checkpoint", help="The checkpoint, if it is not OUT/_checkpoint.")
]
"""`--checkpoint`: for a stream whose definition names one."""

StatePipeline = Annotated[
    Path | None,
    typer.Option(
        "--pipeline", help="The pipeline file; the one that ran last (OUT/_tidegate) if not given."
    ),
]
"""`--pipeline`: says the stages the state is checked against, and the state key."""


@checkpoint_app.command(name="show")
def show_checkpoint(
    out: StreamOutput,
    checkpoint: CheckpointPath = None,
    pipeline: StatePipeline = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Show what the state of a stopped stream holds: keys, rows, the oldest row, per stage."""
    from tidegate.core.time import format_time
    from tidegate.spark.checkpoint_tools import checkpoint_of, describe, flow_of, read_savepoint
    from tidegate.spark.spark_session import log_file, session

    found = checkpoint_of(out, checkpoint)
    make = flow_of(out, pipeline)
    saved = read_savepoint(session(master, log=log_file()), found, make)
    made = describe(saved, make)
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(made), indent=2, default=str))
        return
    _print(
        f"batch {made.batch}: {plural(made.keys, 'key')} in {plural(made.shards, 'shard')} on "
        f"{plural(made.partitions, 'partition')}, {plural(made.pages, 'page')}"
    )
    for stage in made.stages:
        windows = f", {plural(stage.windows, 'open window')}" if stage.windows else ""
        oldest = (
            "" if stage.oldest_ns is None else f", the oldest of {format_time(stage.oldest_ns)}"
        )
        _print(
            f"  {stage.name} (version {stage.version}): {plural(stage.rows, 'row')} held"
            f"{oldest}{windows}, {stage.bytes / 1e6:.1f} MB"
        )
    if made.sample:
        _print("  keys such as " + ", ".join("/".join(map(str, key)) for key in made.sample))


@checkpoint_app.command(name="verify")
def verify_checkpoint(
    out: StreamOutput,
    checkpoint: CheckpointPath = None,
    pipeline: StatePipeline = None,
    master: Master = None,
) -> None:
    """Load the state of every shard as a run would, and say what is wrong. Changes nothing."""
    from tidegate.errors import ConfigError, StateError
    from tidegate.spark.checkpoint import CheckpointRecord
    from tidegate.spark.checkpoint_tools import checkpoint_of, flow_of, read_savepoint, verify
    from tidegate.spark.spark_session import log_file, session

    found = checkpoint_of(out, checkpoint)
    make, record = flow_of(out, pipeline), CheckpointRecord.read(found)
    if make is None:
        raise ConfigError("pipeline", None, "is needed: no pipeline file wrote this output")
    saved = read_savepoint(session(master, log=log_file()), found, make)
    wrong = verify(saved, make, None if record is None else record.partitions)
    if wrong:
        raise StateError("\n".join(wrong))
    _print(f"{plural(len(saved.pages), 'shard')} can be read, and all keys are where they belong")


@checkpoint_app.command(name="export")
def export_checkpoint(
    out: StreamOutput,
    savepoint: Annotated[str, typer.Argument(help="Folder for the savepoint.")],
    checkpoint: CheckpointPath = None,
    master: Master = None,
) -> None:
    """Save the state of a stopped stream as Arrow files, from which a new stream can start."""
    from tidegate.spark.checkpoint_tools import checkpoint_of, flow_of, read_savepoint
    from tidegate.spark.spark_session import log_file, session

    found = checkpoint_of(out, checkpoint)
    saved = read_savepoint(session(master, log=log_file()), found, flow_of(out))
    saved.write(savepoint)
    pages = sum(len(own) for own in saved.pages.values())
    _print(f"wrote {plural(pages, 'page')} of {plural(len(saved.pages), 'shard')} to {savepoint}")
    for line in saved.source["offsets"]:
        _print(f"the stream had read up to {line}")


@checkpoint_app.command(name="import")
def import_checkpoint(
    out: Annotated[str, typer.Argument(help="Folder of a new stream, which has not run.")],
    savepoint: Annotated[str, typer.Argument(help="Folder that holds a savepoint.")],
    checkpoint: CheckpointPath = None,
) -> None:
    """Let the first run of a new stream start from a savepoint, with any number of shards."""
    from tidegate.spark.checkpoint_tools import prepare_import

    prepare_import(checkpoint or f"{out}/_checkpoint", savepoint)
    _print(f"the first run into {out} starts from {savepoint}")


@checkpoint_app.command(name="rescale")
def rescale_checkpoint(
    out: StreamOutput,
    partitions: Annotated[int, typer.Option(help="How many partitions Spark keeps it in.", min=1)],
    checkpoint: CheckpointPath = None,
    master: Master = None,
) -> None:
    """Spread the state of a stopped stream over more or fewer partitions (Spark 4.2 or later)."""
    from tidegate.spark.checkpoint import CheckpointRecord
    from tidegate.spark.checkpoint_tools import checkpoint_of, rescale, spread
    from tidegate.spark.spark_session import log_file, session

    found = checkpoint_of(out, checkpoint)
    before = rescale(session(master, log=log_file()), out, found, partitions)
    _print(f"{plural(before, 'partition')} before, {partitions} now")
    record = CheckpointRecord.read(found)
    if record is not None:
        shares = spread(record.shards, record.partitions, partitions)
        _print(f"shards per partition: {', '.join(map(str, shares))}")


@app.command("dataset")
def make_dataset(
    pipeline: PipelineFile,
    *,
    out: Annotated[
        str | None, typer.Option(help="Folder of the dataset, instead of dataset.path.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run the pipeline on Spark, not in this process.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a pipeline to a training dataset: LeRobot, Lance or Parquet."""
    from tidegate.dataset import write_dataset

    made = write_dataset(pipeline, to=out, spark=spark)
    if as_json:
        console.print_json(json.dumps(made._asdict()))
        return
    for sentence in made.warnings:
        _say(sentence)
    counted = ", ".join(f"{value:,} {name}" for name, value in made.outcomes.items())
    _say(f"rows by outcome: {counted or 'none'}")
    for kind, reasons in made.reasons.items():
        for reason, count in list(reasons.items())[:REASONS_SAID]:
            _say(f"  {kind}: {count:,}, {reason}")
        if len(reasons) > REASONS_SAID:
            _say(f"  {kind}: {plural(len(reasons) - REASONS_SAID, 'more reason')}; see --json")
    for reason, count in made.written.get("reasons", {}).items():
        _say(f"left out: {plural(count, 'row')}, {reason}")
    numbers = {name: value for name, value in made.written.items() if name != "reasons"}
    said = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in numbers.items())
    console.print(f"wrote [bold]{escape(made.path)}[/]: {said}", soft_wrap=True)


def main() -> None:
    """The entry point: one sentence and exit code 2 for what a user can correct.

    Runs typer without its own error handling, so that a TidegateError, Ctrl-C and an error of
    typer's (a wrong option) each end in their own way. Any other exception is a defect or a failure
    outside: its sentence, and a hint at `--debug`. Always raises SystemExit, or with `--debug` the
    exception itself.
    """
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
        raise SystemExit(BROKEN if isinstance(error, DataError) else 2) from None
    except (KeyboardInterrupt, typer.Abort):
        errors.print(
            "stopped; run the same command again to continue from the last commit", soft_wrap=True
        )
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
    """Print one line on standard error, without what references stood for and without markup."""
    sentence = _scrubbed(sentence)  # as a whole: what is printed may be cut into lines
    errors.print(f"[bold red]tidegate:[/] {escape(sentence)}", highlight=False, soft_wrap=True)


def _allow(formats: list[str] | None, types: list[str] | None) -> None:
    """Apply `--allow-format` and `--types` to this process and the processes it starts.

    Called before a definition is loaded: loading checks its formats and types.
    """
    if formats:
        from tidegate.pipeline.security import allow_formats

        allow_formats(formats)
    if types:
        from tidegate.pipeline.user_types import use_types

        use_types(types)
