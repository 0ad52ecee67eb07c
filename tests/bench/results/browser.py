"""A headless Chromium, driven by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Every name leads nowhere, so that a page that fetches something shows it and gets nothing.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """Return the path of a Chromium of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


# Chromium reads from descriptor 3 and writes to 4.
_START: Final = """
import fcntl, os, sys
reader, writer = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(reader, 3)
os.dup2(writer, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One page of the browser, with the events that it has reported."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, file: Path, width: int, *, dark: bool = False) -> None:
        """Load a file again at a width in pixels, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._next()

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
        return result.get("value")

    def requested(self) -> list[str]:
        """Return the addresses that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Return what stands in the console, and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def end(self) -> None:
        """End the browser, with all its processes."""
        self._session = None
        self.call("Browser.close")

    def picture(self, file: Path) -> None:
        """Write a PNG of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def printed(self, file: Path) -> None:
        """Write the page as a PDF."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        file.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Tab]:
    """Start a browser with an empty profile, and end it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    flags = [*_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_read), str(from_write), path, *flags],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    with open(to_write, "wb") as writer, open(from_read, "rb") as reader:
        try:
            yield (tab := Tab(reader, writer))
            tab.end()
            process.wait(30)
        finally:
            process.kill()
            process.wait()
