"""A server on loopback whose bodies can be cut, stalled or falsified; what it stands for is up to its handler."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Faults:
    """What goes wrong. Bodies are known by a key of the handler's: a digest or a path."""

    cuts: dict[str, list[int]] = field(default_factory=dict)
    """key -> after how many bytes the next, the second next, ... answer with this body loses its connection."""
    stalls: dict[str, int] = field(default_factory=dict)
    """key -> after how many bytes an answer waits for `released`."""
    served: dict[str, bytes] = field(default_factory=dict)
    """key -> what is sent in the place of the body."""
    ranges: bool = True
    busy: int = 0
    """How many requests more are answered with a 503."""
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """One connection. Subclasses answer in `answer` with `reply` or `send_file`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits for the client's word that it has the headers: 40 ms each
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):  # the client has gone
            self.close_connection = True

    def do(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers.get("Range")))
        if self.server.faults.busy:
            self.server.faults.busy -= 1
            self.body()
            self.reply(503)
        else:
            self.answer()

    do_GET = do_HEAD = do_POST = do_PUT = do

    def answer(self) -> None:
        raise NotImplementedError

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_file(self, key: str, data: bytes, **headers: str) -> None:
        """A body with its faults, from where the client wants it."""
        faults = self.server.faults
        data = faults.served.get(key, data)
        wanted = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", "")) if faults.ranges else None
        start = int(wanted[1]) if wanted else 0
        if wanted and start >= len(data):
            return self.reply(416)
        self.send_response(206 if wanted else 200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        data = data[start:]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if faults.cuts.get(key):
            self.wfile.write(data[: faults.cuts[key].pop(0)])
            self.close_connection = True
        elif key in faults.stalls:
            self.wfile.write(data[: faults.stalls[key]])
            self.wfile.flush()
            faults.stalled.set()
            faults.released.wait(30)
            self.close_connection = True
        else:
            self.wfile.write(data)
        return None


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[Handler], state: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.faults = Faults()
        self.seen: list[tuple[str, str, str | None]] = []
        self.state = state

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def asked(self, method: str, part: str) -> list[tuple[str, str, str | None]]:
        """Requests so far with this method whose path holds `part`."""
        return [request for request in self.seen if request[0] == method and part in request[1]]


@contextmanager
def serving(handler: type[Handler], state: Any) -> Iterator[Server]:
    server = Server(handler, state)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.faults.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
