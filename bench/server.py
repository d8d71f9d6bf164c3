"""A `tandem-run` server while a block lasts, and requests to it that note when their tokens come.

Standard library only; knows nothing of what is measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from answer import CommandError, program

PATIENCE_S = 600


@dataclass(slots=True)
class Server:
    """`address` is its root, `pid` its process."""

    address: str
    pid: int

    def stream(self, path: str, body: dict[str, Any]) -> Stream:
        """Starts a streamed answer, which a thread of its own reads."""
        return Stream(f"{self.address}{path}", body | {"stream": True, "stream_options": {"include_usage": True}})


@dataclass(slots=True)
class Stream:
    """An answer on its way: when it was asked for, when its first text and its end came, and how many tokens it has.

    Times are those of `perf_counter`, read once `wait` has returned.
    """

    url: str
    body: dict[str, Any]
    asked: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    end: float = 0.0
    num_tokens: int = 0
    error: str = ""
    thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = Thread(target=self._read)
        self.thread.start()

    def wait(self) -> Stream:
        """The same, at its end. Raises CommandError for an answer that failed."""
        self.thread.join()
        if self.error:
            raise CommandError(self.error)
        return self

    def _read(self) -> None:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(self.body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        self._take(json.loads(line[6:]))
        except (OSError, ValueError) as error:
            self.error = f"the server does not answer: {error}"
        self.end = time.perf_counter()

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        if chunk.get("usage"):
            self.num_tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            if not self.first and (choice.get("text") or choice.get("delta", {}).get("content")):
                self.first = time.perf_counter()


@contextmanager
def serving(bundle: Path, *flags: str) -> Iterator[Server]:
    """A server of `bundle` at a port of its own. Raises CommandError when it does not come up."""
    words = [*program("tandem-run"), str(bundle), "--port", "0", *flags]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stderr
            if not (address := re.search(r"http://\S+", process.stdout.readline())):
                raise CommandError(f"tandem-run does not listen: {process.stderr.read().strip()}")
            yield Server(address[0], process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
