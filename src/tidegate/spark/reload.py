"""Follow a pipeline's file while its stream runs: an edit is taken up between two micro-batches.

    edited      read it and check it, also against the sources; the stream runs on meanwhile
    wrong       say why, in one sentence, and go on as before
    right       let the micro-batch end, stop, start again from the same checkpoint
    does not    the new one fails before its first commit: say why and go back to the old one
    start

Settings that can be adopted change under the state, and stages may be appended or removed at the
end: see "Change a running pipeline" in the documentation. What the state depends on cannot change:
keys, the number of shards, and the settings that an operator refuses. Nor can where rows go to:
sink and checkpoint. An edit of those is wrong in the sense above.

Clock policy: an edit counts once two looks in a row find the same file; a file that is being
written, or is gone for a moment while an editor replaces it, is looked at again later.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from tidegate.core.chain import Chain
from tidegate.errors import ConfigError, StateError, sentence_of
from tidegate.output.summary import Summary
from tidegate.pipeline import PipelineDefinition
from tidegate.spark.runner import OpenRun, open_definition, run_opened

__all__ = ["run_watched"]

LOOK_EVERY_S = 0.4
"""Between two looks at the file: soon for a person, nothing for the machine."""


def run_watched(
    file: Path,
    *,
    master: str | None = None,
    out: str | None = None,
    console: Console,
    take_over: bool = False,
) -> Summary:
    """Run the stream a file defines until it is stopped, and take up edits of the file.

    Args:
        file: The pipeline file.
        master: A Spark master; None: local mode.
        out: Where tables go, instead of `sink.path`.
        console: Where progress and sentences about edits are shown.
        take_over: Take the output over from another driver that holds the lease on it.

    Returns:
        What came out, over all versions of the file.

    Raises:
        ConfigError: If the first version is wrong, or is not a stream that goes on.
        RunError: If a run fails. An edit that fails before its first commit raises nothing: the
            version before it goes on.
    """
    definition = PipelineDefinition.load(file)
    options = definition.options
    if options.mode != "streaming" or options.trigger in (None, "available_now"):
        raise ConfigError(
            "watch", options.trigger or options.mode,
            "needs a stream that goes on: options.mode: streaming and a trigger such as 1 s",
        )  # fmt: skip
    watch = _Watch(file, definition, master, out, console)
    running = open_definition(definition, master=master, out=out, take_over=take_over)
    before: OpenRun | None = None
    total: Summary | None = None
    while True:
        watch.running, watch.committed = running, False
        try:
            done = run_opened(running, console, until=watch.look)
        except Exception as error:
            if before is None or watch.committed:
                raise
            watch.say(f"does not start, going on as before: {sentence_of(error)}")
            running, before = before, None
            continue
        total = done if total is None else total + done
        if watch.taken is None:  # it ended by itself
            return total
        running, before, watch.taken = watch.taken, running, None


class _Watch:
    """A file, what runs now, and the edit that is to run next."""

    def __init__(
        self,
        file: Path,
        definition: PipelineDefinition,
        master: str | None,
        out: str | None,
        console: Console,
    ) -> None:
        self.file = file
        self.running: OpenRun | None = None
        self.taken: OpenRun | None = None
        self.committed = False
        self._newest = definition
        self._options: dict[str, Any] = {"master": master, "out": out}
        self._console = console
        self._looked = time.monotonic()
        self._seen = self._known = self._stamp()

    def say(self, text: str) -> None:
        """Print a sentence about the file."""
        self._console.print(f"{escape(self.file.name)}: {escape(text)}", highlight=False)

    def look(self, summary: Summary) -> bool:
        """Whether there is an edit to take up."""
        self.committed = summary.batches > 0
        if time.monotonic() < self._looked + LOOK_EVERY_S:
            return False
        self._looked = time.monotonic()
        before, self._seen = self._seen, self._stamp()
        if self._seen is None or self._seen == self._known or self._seen != before:
            return False
        self._known = self._seen
        try:
            self.taken = self._open()
        except StateError as error:  # with the settings that cannot change in two columns
            self.say(f"not taken up, going on as before: {error}")
        except Exception as error:  # an edit must not end a run
            self.say(f"not taken up, going on as before: {sentence_of(error)}")
        if self.taken is not None:
            self.say("taken up after this micro-batch")
        return self.taken is not None

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes when the file is edited or replaced; None if it is gone."""
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _open(self) -> OpenRun | None:
        """The edited pipeline, checked; None if it says the same as before."""
        definition = PipelineDefinition.load(self.file)
        if definition == self._newest:
            return None
        self._newest = definition
        assert self.running is not None
        _check_place(definition, self.running.definition)
        opened = open_definition(definition, check_lease=False, **self._options)
        _check_state(opened, self.running)
        if definition == self.running.definition:  # a wrong edit has been undone
            return None
        return opened


def _check_place(new: PipelineDefinition, old: PipelineDefinition) -> None:
    """Where rows go to and how the run goes on stay as they are."""
    trigger = new.options.trigger
    if new.options.mode != "streaming" or trigger in (None, "available_now"):
        raise ConfigError(
            "options.trigger", trigger, "cannot change to a run that ends; stop and start it again"
        )
    fields: list[tuple[str, object, object]] = [
        ("options.checkpoint", new.options.checkpoint, old.options.checkpoint),
        ("options.stateKey", new.options.state_key, old.options.state_key),
        ("sink", new.sink and (new.sink.format, new.sink.path),
         old.sink and (old.sink.format, old.sink.path)),
        ("streams", sorted(new.streams), sorted(old.streams)),
    ]  # fmt: skip
    for name, value, was in fields:
        if value != was:
            raise ConfigError(name, value, "cannot change while it runs; stop and start it again")


def _check_state(new: OpenRun, old: OpenRun) -> None:
    """The state of the running stages must be of use to the new ones."""
    if new.frames.keys != old.frames.keys:
        raise ConfigError("key", new.frames.keys, f"the state is kept by {old.frames.keys}")
    if new.frames.shards not in (None, old.frames.shards):
        raise ConfigError("options.shards", new.frames.shards, "cannot change with a checkpoint")
    Chain(new.frames.stages).check_adoption(Chain(old.frames.stages).identities())
    _ = new.frames.schemas
