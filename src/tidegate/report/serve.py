"""The page and its numbers while a pipeline runs, on loopback only.

Everything comes from what the run has committed: the server reads files and is never asked by the
pipeline, so the worst it can do to a run is to use a core for the moment a page is made. Pages hold
a bounded sample and are made again only when there is a new commit.

    /          the page; it asks for new commits and takes them up in place
    /state     how many commits there are and whether the run has ended, as JSON
    /data      what the page draws from, as JSON
    /metrics   the run in numbers, as Prometheus reads them

An open page survives the run: `finish` tells it that there will be no more commits, and if the
server is gone without a word the page says so and stays as it is.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.errors import ConfigError, TidegateError
from tidegate.output.commit import RunTotals
from tidegate.output.reader import RunFollower, StoredRun, open_run
from tidegate.profile.roles import Roles
from tidegate.report.health import standing_levels
from tidegate.report.page import data_text, page_text
from tidegate.report.rows import gather_messages
from tidegate.report.thumbnails import LiveThumbnails, run_payloads

__all__ = ["LiveServer", "metrics_text"]

LIVE_LIMIT = 200_000
"""Messages in a live page, those of the newest commits: small enough to be made and sent again
every few seconds, however long the run has been going on."""

LEVELS = ("current_watermark", "max_timestamp_seen", "max_lateness")
"""Metrics of a stage that are levels: over shards, the greatest is taken instead of the sum."""

_WAITING = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="refresh" content="2"><title>Tidegate</title><link rel="icon" href="data:,">
<p>Waiting for the first commit of the run."""

FOLLOWING_S = 5.0
"""A page that asked within this many seconds is still open: it asks every two."""


class LiveServer:
    """Serves the page and the metrics of a run on 127.0.0.1 while the run goes on.

    Args:
        out: The output path of the run; there need not be a commit yet.
        port: The port; 0 takes a free one. A port that cannot be opened is a ConfigError.
        roles: Which columns are key, topic and arrival; unset: what the run declares.
    """

    def __init__(self, out: str, port: int = 0, roles: Roles | None = None) -> None:
        self.out = out
        self.roles = roles or Roles()
        self._made: tuple[int, bytes, bytes] | None = None
        self._images = LiveThumbnails()
        self._lock = threading.Lock()
        self._following = threading.Lock()
        self._follower = RunFollower(out)
        self._asked_at = float("-inf")
        self._ended = False
        self._told_end = threading.Event()
        try:
            self._http = _Server(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ConfigError("serve", port, f"cannot be opened: {error.strerror}") from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/"

    def start(self) -> LiveServer:
        """Serve in a thread of its own, and return."""
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def serve_forever(self) -> None:
        """Serve in this thread until it is interrupted."""
        self._http.serve_forever()

    def finish(self, wait_s: float = FOLLOWING_S) -> None:
        """Let open pages take up the last commit and learn that the run has ended; then close.

        Waits at most `wait_s` seconds, and not at all if no page is open."""
        self._ended = True
        if time.monotonic() - self._asked_at < FOLLOWING_S and self._told_end.wait(wait_s):
            time.sleep(0.5)  # the page fetches the data after the answer that told it
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()

    # -- answers ----------------------------------------------------------------------------------

    def run(self) -> StoredRun | None:
        """Return the run as far as it is committed; None before its first commit."""
        try:
            return open_run(self.out)
        except ConfigError:
            return None

    def page(self) -> bytes:
        """Answer `/`: the page, or a page that waits for the first commit."""
        return self._current()[0]

    def data(self) -> bytes:
        """Answer `/data`: what an open page draws from, as JSON."""
        return self._current()[1]

    def _current(self) -> tuple[bytes, bytes]:
        """Return the page and its data for the newest commit.

        Both are made once per commit, under a lock, and kept for later requests.
        """
        run = self.run()
        if run is None:
            return _WAITING.encode(), b"null"
        with self._lock:  # two readers do not make the same page twice
            if self._made is None or self._made[0] != len(run.commits):
                recent = run.newest(LIVE_LIMIT)
                messages = gather_messages(recent, self.roles, LIVE_LIMIT)
                images = self._images.update(messages, run_payloads(recent, messages))
                page = page_text(recent, messages, live=True, thumbnails=images)
                data = data_text(recent, messages, images)
                self._made = (len(run.commits), page.encode(), data.encode())
            return self._made[1:]

    def state(self) -> bytes:
        """Answer `/state`: how many commits there are, and whether there will be more."""
        self._asked_at = time.monotonic()
        ended = self._ended
        totals = self._totals()
        commits = 0 if totals is None else totals.batches
        if ended:
            self._told_end.set()
        return json.dumps({"commits": commits, "ended": ended}).encode()

    def metrics(self) -> bytes:
        """Answer `/metrics`: the run in numbers, for Prometheus."""
        return metrics_text(self._totals()).encode()

    def _totals(self) -> RunTotals | None:
        """Return what the run has done so far; two requests do not read the same record."""
        with self._following:
            return self._follower.totals()


class _Server(ThreadingHTTPServer):
    """A browser that leaves while it is being answered is nothing to report."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a request to stderr; a browser that went away is not one."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"tidegate: the live page could not answer: {error!r}", file=sys.stderr)


def metrics_text(totals: RunTotals | None) -> str:
    """Return the numbers of a run in the text format of Prometheus.

    Counters end in `_total`, times are in seconds, sizes in bytes. What the run does not report (a
    watermark, a lag) has no sample.

    Args:
        totals: What the run has done so far (`tidegate.output.reader.run_totals`); None before the
            first commit.
    """
    if totals is None:
        return _sample("tidegate_commits_total", "counter", "micro-batches committed", {"": 0})
    levels = standing_levels(totals.shards)
    rows = {_labels(kind=kind): totals.rows[kind] for kind in sorted(totals.rows)}
    out = _sample("tidegate_commits_total", "counter", "micro-batches committed",
                  {"": totals.batches})  # fmt: skip
    out += _sample("tidegate_rows_total", "counter", "rows delivered", rows)
    mark, lag = levels["watermark_ns"], levels["lag_ns"]
    if mark is not None:
        out += _sample("tidegate_watermark_seconds", "gauge", "the newest watermark, since 1970",
                       {"": int(mark) / 1e9})  # fmt: skip
    if lag is not None:
        words = "the newest event time less the slowest watermark"
        out += _sample("tidegate_watermark_lag_seconds", "gauge", words, {"": lag / 1e9})
    out += _sample("tidegate_held_rows", "gauge", "rows held back", {"": levels["held"]})
    out += _sample("tidegate_state_bytes", "gauge", "bytes of state", {"": levels["state_bytes"]})
    return out + _sample("tidegate_stage", "gauge", "metrics of the stages",
                         _stage_samples(totals.shards))  # fmt: skip


def _stage_samples(standing: dict[int, dict[str, int]]) -> dict[str, float]:
    """Return the metrics of every stage over all shards, by labels."""
    names = sorted({name for metrics in standing.values() for name in metrics if "." in name})
    out: dict[str, float] = {}
    for name in names:
        stage, metric = name.rsplit(".", 1)
        values = [metrics[name] for metrics in standing.values() if name in metrics]
        total = max(values) if metric in LEVELS else sum(values)
        out[_labels(stage=stage, metric=metric)] = total
    return out


def _labels(**labels: str) -> str:
    """Return labels with their values escaped as the format demands.

    >>> print(_labels(stage='a"b'))
    stage="a\\"b"
    """
    marks = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return ",".join(f'{name}="{"".join(marks.get(c, c) for c in text)}"'
                    for name, text in labels.items())  # fmt: skip


def _sample(name: str, kind: str, words: str, values: dict[str, Any]) -> str:
    """Return one metric: its help, its type, and a line per set of labels."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    for labels, value in values.items():
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}{braces} {value!r}")
    return "\n".join(lines) + "\n"


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    """Return a request handler class for this server: four paths, GET only.

    The handler checks the Host header, because a page of another site could reach 127.0.0.1 through
    a DNS name it controls. Nothing is cached, and no other page may frame the answers.
    """
    answers = {
        "/": (live.page, "text/html; charset=utf-8"),
        "/state": (live.state, "application/json"),
        "/data": (live.data, "application/json"),
        "/metrics": (live.metrics, "text/plain; version=0.0.4; charset=utf-8"),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # another site's page must not read a run through a name that leads to loopback
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in ("127.0.0.1", "localhost"):
                self._send(403, b"only by its own name", "text/plain")
                return
            found = answers.get(self.path.split("?")[0])
            if found is None:
                self._send(404, b"there is /, /state, /data and /metrics", "text/plain")
                return
            make, kind = found
            try:
                self._send(200, make(), kind)
            except TidegateError as error:
                self._send(500, str(error).encode(), "text/plain; charset=utf-8")

        def _send(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the terminal belongs to the run."""

    return Handler
