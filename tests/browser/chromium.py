"""A headless Chromium, driven over a pipe with the DevTools protocol. It needs no driver and no library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.core import paths

INSTALLED = paths.ROOT / ".cache" / "chromium" / "chromium"
# chromium-headless-shell is Debian's package; the others are what owners of other systems have.
NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # containers of CI run as root; the only pages are the tests' own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
)
DEADLINE_S = 60


def binary() -> str:
    """Return the path of $CHROMIUM, of what tests/browser/install made, or of one in PATH. Raises RuntimeError."""
    for name in (os.environ.get("CHROMIUM", ""), str(INSTALLED), *NAMES):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError(f"no {', '.join(NAMES)} in PATH — expected: one of them. Fix: make browser, or set CHROMIUM.")


@dataclass
class Chromium:
    """A connection to a browser. Events that arrive while a command waits are kept."""

    to: int
    answers: int
    session: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    _buffer: bytes = b""
    _last: int = 0

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises RuntimeError with the browser's error."""
        self._last += 1
        request = {"id": self._last, "method": method, "params": params}
        os.write(self.to, json.dumps(request | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while (message := self._next(method)).get("id") != self._last:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def wait_for(self, method: str, **params: Any) -> None:
        """Wait for an event with these parameters, which may have arrived already."""
        while not any(
            event.get("method") == method and params.items() <= event["params"].items() for event in self.events
        ):
            self.events.append(self._next(method))

    def _next(self, waits_for: str) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.answers, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"Chromium did not answer {waits_for} within {DEADLINE_S} s, or it ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page; of the new page, if another is loaded meanwhile."""
        try:
            result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        except RuntimeError as error:
            if "navigated" not in str(error):
                raise
            return self.evaluate(script)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def show(self, page: Path, width: int, *, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Load a page at a width in CSS pixels, and forget the events of earlier pages."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.open(page.as_uri())

    def open(self, url: str) -> None:
        """Load a page, and forget the events of earlier pages."""
        self.events.clear()
        loader = self.command("Page.navigate", url=url)["loaderId"]
        # The page before may end its own loading now.
        self.wait_for("Page.lifecycleEvent", name="load", loaderId=loader)

    def follow(self, script: str = "") -> None:
        """Run a script that leads to another page, unless the page leads there itself, and wait for that page."""
        self.events.clear()
        if script:
            self.evaluate(script)
        self.wait_for("Page.lifecycleEvent", name="load")

    def complaints(self) -> list[str]:
        """Return errors, warnings, violations of the policy, and requests for anything but the page itself."""
        self.command("Runtime.evaluate", expression="0")
        found = []
        for event in self.events:
            method, params = event.get("method", ""), event.get("params", {})
            if method in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded"}:
                found.append(f"{method}: {json.dumps(params)[:500]}")
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append(f"request of {params['request']['url']}")
        return found

    def pdf(self) -> bytes:
        """Return the page printed on the paper that its style sheet names."""
        return base64.b64decode(self.command("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """Yield a browser with one empty page. It ends with the block. `folder` gets its profile and its messages.

    `folder` is also its home: it trusts the authorities of .pki/nssdb there beside its own.
    """
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # The protocol's pipes are 3 and 4 in the browser. A shell moves them there, because Popen only inherits numbers.
    move = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    words = ["bash", "-c", move, "bash", binary(), *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "chromium.log").open("w") as log:
        browser = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(to_read, from_write),
            env={**os.environ, "HOME": str(folder)},
        )
    os.close(to_read)
    os.close(from_write)
    try:
        yield _opened(Chromium(to_write, from_read))
    finally:
        os.close(to_write)
        os.close(from_read)
        browser.terminate()
        browser.wait(timeout=DEADLINE_S)


def _opened(browser: Chromium) -> Chromium:
    target = browser.command("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
        browser.command(f"{domain}.enable")
    browser.command("Page.setLifecycleEventsEnabled", enabled=True)
    return browser
