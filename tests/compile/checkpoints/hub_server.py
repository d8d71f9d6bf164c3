"""A small model hub on loopback: what huggingface_hub asks for when it downloads a snapshot, and ways to misbehave.

Speaks the public HTTP interface (revision, tree, resolve with etags and ranges); knows nothing of Tandem.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class HubServer:
    """Serves repositories pushed with `push`; each push is a commit, and moves the branch `main`.

    `cut[file] = n`: a GET of the file announces and sends n bytes fewer than its tree entry says (once taken out of
    `cut`, it is whole). `broken`: files whose next GET dies half way through what it announced.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Files]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.gated: set[str] = set()
        self.cut: dict[str, int] = {}
        self.broken: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def push(self, repo: str, folder: Path, *, without: tuple[str, ...] = ()) -> str:
        """Commit the files of `folder` (but those in `without`) to main; returns the commit, 40 hex digits."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in without}
        content = b"".join(name.encode() + data for name, data in sorted(files.items()))
        commit = hashlib.sha1(content).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.refs.setdefault(repo, {})["main"] = commit
        return commit

    def downloads(self) -> list[str]:
        """Names of the files that were asked for with GET so far."""
        return [path.rsplit("/", 1)[1] for method, path in self.requests if method == "GET" and "/resolve/" in path]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits for the client's word that it has the headers: 40 ms each

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path))
            api = path.startswith("/api/models/")
            parts = path.removeprefix("/api/models/").strip("/").split("/")
            repo, verb, rest = "/".join(parts[:2]), parts[2], parts[3:]
            if repo not in hub.repos:
                return self._fail(404, "RepoNotFound")
            if repo in hub.gated and not api:
                return self._fail(403, "GatedRepo")
            commit = hub.refs[repo].get(rest[0], rest[0])
            if commit not in hub.repos[repo]:
                return self._fail(404, "RevisionNotFound")
            files = hub.repos[repo][commit]
            if verb == "revision":
                siblings = [{"rfilename": name} for name in files]
                return self._send_json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []})
            if verb == "tree":
                return self._send_json([_entry(name, data) for name, data in files.items()])
            name = "/".join(rest[1:])
            if name not in files:
                return self._fail(404, "EntryNotFound")
            self._send_file(name, files[name], commit)

        def _send_file(self, name: str, data: bytes, commit: str) -> None:
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            start, status = 0, 200
            if wanted := self.headers.get("Range"):
                start, status = int(wanted.removeprefix("bytes=").split("-")[0]), 206
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            body = data[start:]
            if self.command == "GET" and name in hub.cut:
                body = body[: len(body) - hub.cut[name]]
            if self.command == "GET" and name in hub.broken:
                hub.broken.discard(name)
                self._send(status, body, headers, send=len(body) // 2)
                self.close_connection = True
                return
            self._send(status, body, headers)

        def _send_json(self, content: Any) -> None:
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _fail(self, status: int, code: str) -> None:
            self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

        def _send(self, status: int, body: bytes, headers: dict[str, str], send: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:send])

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: the requests are kept in `hub.requests`."""

    return Handler


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
