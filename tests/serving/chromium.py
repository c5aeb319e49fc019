"""A headless Chromium that is spoken to through pipes (the DevTools protocol): no port, no further package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
FLAGS += (
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--mute-audio",
    "--disable-dev-shm-usage",
)


def installed() -> str | None:
    """The browser's command, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser, and all it logged or asked for."""

    def __init__(self, *, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False):
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number = 0
        self._rest = b""
        self._folder = tempfile.mkdtemp(prefix="stmaml-browser-")
        to_browser, from_browser = os.pipe(), os.pipe()
        self._out, self._in = to_browser[1], from_browser[0]
        # The browser reads commands on its descriptor 3 and writes events on 4.
        script = f'exec 3<&{to_browser[0]} 4>&{from_browser[1]}; exec "$@"'
        command = ["bash", "-c", script, "bash", str(installed()), *FLAGS, "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(to_browser[0], from_browser[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if touch else 1, "mobile": touch}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command; events that come before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            found = self._next(end - time.monotonic())
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(0, seconds))[0], "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        raw, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
        if method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"])[:500])
        if method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))

    def open(self, address: str) -> None:
        """Goes to a page."""
        self.send("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """What a line of JavaScript gives."""
        said = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait_for(self, script: str, seconds: float = 30) -> Any:
        """The value of a line of JavaScript once it is something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.value(script):
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {script}; the page says: {self.value('document.body.innerText')}")

    def drag(self, *places: tuple[float, float]) -> None:
        """Presses the mouse at the first place, moves it over the others and lets go."""
        how = {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=places[0][0], y=places[0][1])
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=places[0][0], y=places[0][1], buttons=1, **how)
        for x, y in places[1:]:
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, buttons=1, button="left")
        x, y = places[-1]
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **how)

    def swipe(self, *places: tuple[float, float]) -> None:
        """The same with a finger."""
        for i, (x, y) in enumerate(places):
            kind = "touchMove" if i else "touchStart"
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def type(self, text: str) -> None:
        """Writes into what has the focus."""
        self.send("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Saves what is seen, the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
