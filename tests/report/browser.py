"""Headless Chromium through its debugging pipe: no driver, no port, nothing but the browser.

Chromium started with --remote-debugging-pipe reads commands from file descriptor 3 and writes
answers to 4, JSON with a zero byte behind each.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--allow-file-access-from-files",
)  # fmt: skip


_LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for wanted, fd in zip((3, 4), ours):
    os.dup2(fd, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser expects the pipes as descriptors 3 and 4, whatever numbers they have here."""


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("CHROMIUM") or next((p for n in names if (p := shutil.which(n))), None)


class Browser:
    """One page of one browser; errors and console messages are kept in `problems`."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 860) -> None:
        binary = chromium()
        assert binary is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [
            sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), binary, *FLAGS,
            f"--user-data-dir={profile}", f"--window-size={width},{height}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._rest = 0, b""
        self.problems: list[str] = []
        self._session: str | None = None
        pages = self._ask("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def open(self, path: Path, fragment: str = "", wait: float = 60) -> None:
        # another fragment of the same address would not load the page again
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=f"{path.absolute().as_uri()}{fragment}")
        self.until("window.tidegate !== undefined", wait)

    def visit(self, url: str, wait: float = 60) -> None:
        self._ask("Page.navigate", url=url)
        self.until("window.tidegate !== undefined", wait)

    def leave(self) -> None:
        self._ask("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.problems.clear()

    def until(self, condition: str, wait: float = 20) -> None:
        end = time.monotonic() + wait
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}; problems: {self.problems}")
            time.sleep(0.05)

    def evaluate(self, script: str) -> Any:
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wheel(self, x: float, y: float, delta: float) -> None:
        self._ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)

    def drag(self, x: float, y: float, to_x: float) -> None:
        send = "Input.dispatchMouseEvent"
        self._ask(send, type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
        for step in range(1, 6):
            at = x + (to_x - x) * step / 5
            self._ask(send, type="mouseMoved", x=at, y=y, button="left", buttons=1)
        self._ask(send, type="mouseReleased", x=to_x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)
        os.close(self._in)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return dict(message.get("result", {}))
            self._notice(message)

    def _notice(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str([a.get("value") for a in params["args"]]))

    def _receive(self, wait: float = 60) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], wait)
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise AssertionError("the browser has gone")
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))
