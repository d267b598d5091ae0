"""The page and its numbers while a pipeline runs, on loopback only.

Everything comes from what the run has committed: the server reads files and is never asked by the
pipeline, so the worst it can do to a run is to use a core for the moment a page is made. Pages hold
a bounded sample and are made again only when there is a new commit.

    /          the page; it looks for new commits by itself
    /state     how many commits there are, as JSON
    /metrics   the run in numbers, as Prometheus reads them
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.errors import ConfigError, TidegateError
from tidegate.output.reader import StoredRun, open_run
from tidegate.profile.roles import Roles
from tidegate.report.health import commit_levels
from tidegate.report.page import page_of
from tidegate.report.rows import gather

__all__ = ["LiveServer", "metrics_text"]

LIVE_LIMIT = 200_000
"""Messages in a live page, those of the newest commits: small enough to be made and sent again
every few seconds, however long the run has been going on."""

LEVELS = ("current_watermark", "max_timestamp_seen", "max_lateness")
"""Metrics of a stage that are levels: over shards their greatest counts, not their sum."""

_WAITING = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Tidegate</title><link rel="icon" href="data:,"><body style="font:16px system-ui;margin:3em">
Waiting for the first commit of the run."""

_FOLLOW = """<script>(() => {
  const commits = %d;
  setInterval(async () => {
    try {
      const state = await (await fetch("state")).json();
      if (state.commits === commits || !window.tidegate) return;
      const { a, b, key, run } = tidegate.timeline;
      const whole = a === run.fit[0] && b === run.fit[1];
      const view = whole ? { key } : { key, origin: run.origin_ns, a, b };
      sessionStorage.setItem("tidegate", JSON.stringify(view));
      location.reload();
    } catch { /* the run has ended: the page stays as it is */ }
  }, 2000);
  const kept = JSON.parse(sessionStorage.getItem("tidegate") || "null");
  const restore = setInterval(() => {
    if (!window.tidegate) return;
    clearInterval(restore);
    if (!kept) return;
    const { timeline } = tidegate;
    if (kept.key < timeline.run.keys.length) timeline.show(kept.key);
    if (kept.origin !== undefined) {
      const shift = Number(BigInt(kept.origin) - BigInt(timeline.run.origin_ns));
      timeline.a = kept.a + shift;
      timeline.b = kept.b + shift;
    }
    timeline.request();
  }, 50);
})()</script>
</body>"""


class LiveServer:
    """Serves the run under `out` on 127.0.0.1; port 0 takes a free one."""

    def __init__(self, out: str, port: int = 0, roles: Roles | None = None) -> None:
        self.out = out
        self.roles = roles or Roles()
        self._page: tuple[int, bytes] | None = None
        self._lock = threading.Lock()
        try:
            self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ConfigError("serve", port, f"cannot be opened: {error.strerror}") from error
        self._http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/"

    def start(self) -> LiveServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def serve_forever(self) -> None:
        self._http.serve_forever()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    # -- what is asked for ------------------------------------------------------------------------

    def run(self) -> StoredRun | None:
        """The run as far as it is committed; None before its first commit."""
        try:
            return open_run(self.out)
        except ConfigError:
            return None

    def page(self) -> bytes:
        run = self.run()
        if run is None:
            return _WAITING.encode()
        with self._lock:  # two readers do not make the same page twice
            if self._page is None or self._page[0] != len(run.commits):
                recent = run.newest(LIVE_LIMIT)
                text = page_of(recent, gather(recent, self.roles, LIVE_LIMIT))
                follow = _FOLLOW % len(run.commits)
                before, _, after = text.rpartition("</body>")
                self._page = (len(run.commits), f"{before}{follow}{after}".encode())
            return self._page[1]

    def state(self) -> bytes:
        run = self.run()
        return json.dumps({"commits": 0 if run is None else len(run.commits)}).encode()

    def metrics(self) -> bytes:
        run = self.run()
        return metrics_text(run).encode()


def metrics_text(run: StoredRun | None) -> str:
    """A run as Prometheus reads it: one sample per line, names and units as it wants them."""
    if run is None:
        return _sample("tidegate_commits_total", "counter", "micro-batches committed", {"": 0})
    levels = commit_levels(run)[-1]
    rows = {f'kind="{kind}"': run.rows(kind) for kind in run.kinds}
    out = _sample("tidegate_commits_total", "counter", "micro-batches committed",
                  {"": len(run.commits)})  # fmt: skip
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
    return out + _sample("tidegate_stage", "gauge", "metrics of the stages", _stages(run))


def _stages(run: StoredRun) -> dict[str, float]:
    standing: dict[int, dict[str, int]] = {}
    for commit in run.commits:
        standing |= commit.shards
    names = sorted({name for metrics in standing.values() for name in metrics if "." in name})
    out: dict[str, float] = {}
    for name in names:
        stage, metric = name.rsplit(".", 1)
        values = [metrics[name] for metrics in standing.values() if name in metrics]
        total = max(values) if metric in LEVELS else sum(values)
        out[f'stage="{stage}",metric="{metric}"'] = total
    return out


def _sample(name: str, kind: str, words: str, values: dict[str, Any]) -> str:
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    for labels, value in values.items():
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}{braces} {value!r}")
    return "\n".join(lines) + "\n"


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    answers = {
        "/": (live.page, "text/html; charset=utf-8"),
        "/state": (live.state, "application/json"),
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
                self._send(404, b"there is /, /state and /metrics", "text/plain")
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
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: the terminal belongs to the run."""

    return Handler
