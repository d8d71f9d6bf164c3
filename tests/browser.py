"""A headless Chromium and what a test does with a page in it: the DevTools protocol over a pair of pipes.

Knows nothing of Tandem. Messages are JSON, each ended by a NUL byte; the browser reads them from descriptor 3 and
writes its own to 4.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 20.0
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-sandbox",  # neither root nor most containers have one, and the only page it opens is ours
)
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
}
SHIFT = 8


def find_browser() -> str | None:
    """The program that TANDEM_BROWSER names, else the first one of PROGRAMS that is installed."""
    named = os.environ.get("TANDEM_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One process for many pages. Calls block until they are answered; events are kept for the page they are about."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Out of the way of 3 and 4, which they become in the child.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        words = [
            program,
            *FLAGS,
            f"--user-data-dir={folder}",
        ]
        self._said = folder / "said"
        with open(self._said, "w+b") as said:
            log = fcntl.fcntl(said, fcntl.F_DUPFD_CLOEXEC, 10)
        places = [(log, 0), (log, 1), (log, 2), (ends[0], 3), (ends[1], 4)]
        actions = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in places]
        self._pid = os.posix_spawn(
            program, words, {**os.environ, "HOME": str(folder)}, file_actions=actions, setpgroup=0
        )
        for end in (to_browser, from_browser, log, *ends):
            os.close(end)
        self._ids, self._lock = count(1), threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number, box = next(self._ids), queue.SimpleQueue[dict[str, Any]]()
        self._answers[number] = box
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        try:
            with self._lock:
                _write(self._out, json.dumps(message).encode() + b"\0")
            answer = box.get(timeout=PATIENCE)
        except (queue.Empty, BrokenPipeError):
            said = self._said.read_text(errors="replace")[-2000:]
            raise AssertionError(f"the browser does not answer {method}; it said: {said}") from None
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    @contextmanager
    def page(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Page]:
        """A page with storage and cookies of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        try:
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._reader.join(PATIENCE)
        os.close(self._out)
        os.close(self._in)

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._in, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for data in whole:
                message = json.loads(data)
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif (session := message.get("sessionId")) in self._pages:
                    self._pages[session].hear(message["method"], message["params"])


class Page:
    """`errors` are those of scripts and of the console, `urls` all that was asked for, in the order they came.

    `forgiven` are words of errors that a test means to bring about.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.forgiven: tuple[str, ...] = ()
        self.urls: list[str] = []

    def hear(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} ({params['entry'].get('url')})")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        error = self.call("Page.navigate", url=url).get("errorText")
        assert error is None, f"{url}: {error}"
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What `expression` of JavaScript gives, as JSON would have it."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, f"{expression}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until JavaScript takes `expression` for true."""
        until = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never true: {expression}; errors: {self.errors}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        """A press of the mouse in the middle of an element, once it can be seen."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'nearest'}})")
        box = self.value(f"{element}.getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        code, number, text = KEYS[key]
        named = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": SHIFT if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)


@contextmanager
def browser_at(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="tandem-browser-", ignore_cleanup_errors=True) as folder:
        browser = Browser(program, Path(folder))
        try:
            yield browser
        finally:
            browser.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
