"""A page in a browser, spoken to through a pipe: neither a network nor a package is needed."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

QUIET = subprocess.DEVNULL
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

HAND_OVER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 50) for end in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads orders from its third file and answers in its fourth."""


def find_browser() -> str | None:
    """The program, if one is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser with one page, which keeps all that it is told of errors and requests."""

    def __init__(self, program: str, profile: Path) -> None:
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        given = [sys.executable, "-c", HAND_OVER, str(to_child), str(from_child), *command]
        self._process = subprocess.Popen(given, pass_fds=(to_child, from_child), stdout=QUIET, stderr=QUIET)
        os.close(to_child)
        os.close(from_child)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.page(f"{domain}.enable")

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """What the browser answers to an order."""
        number = next(self._numbers)
        order = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def page(self, method: str, **params: Any) -> dict[str, Any]:
        """The same of the page."""
        return self.ask(method, self._session, **params)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, file: Path) -> None:
        """Shows a file, once it is all there."""
        self.page("Page.navigate", url=file.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page."""
        found = self.page("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks the middle of an element, as a hand would."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(
            f"(() => {{const b = {place}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]}})()"
        )
        at = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2}
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.page("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(timeout=60)
        os.close(self._out)
        os.close(self._in)
