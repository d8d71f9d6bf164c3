"""An OCI registry on loopback: blobs, uploads, manifests and logins, as the distribution specification has them."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.artifacts.shipping.loopback import Handler


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Registry:
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    """Under tags and under digests."""
    login: str | None = None
    """`basic` or `token`: what the user `me` with the password `secret` must show."""
    cut_uploads: list[int] = field(default_factory=list)
    """After how many bytes the next, the second next, ... upload loses its connection."""
    tokens: int = 0

    def image(self, tag: str) -> dict[str, Any]:
        return json.loads(self.manifests[tag])

    def tag(self, name: str, image: object) -> str:
        data = json.dumps(image).encode()
        self.manifests[name] = self.manifests[digest_of(data)] = data
        return digest_of(data)


class RegistryHandler(Handler):
    def answer(self) -> None:
        registry: Registry = self.server.state
        path = urlsplit(self.path)
        if path.path == "/token":
            return self._token(registry)
        if not self._welcome(registry):
            self.body()
            ask = f'Bearer realm="http://{self.server.host}/token",service="tests",scope="repository:a/b:pull,push"'
            return self.reply(401, WWW_Authenticate=ask if registry.login == "token" else 'Basic realm="tests"')
        _, kind, name = path.path.removeprefix("/v2/").rsplit("/", 2)
        if "/blobs/uploads/" in path.path:
            return self._upload(registry, parse_qs(path.query).get("digest", [""])[0])
        shelf = registry.blobs if kind == "blobs" else registry.manifests
        if self.command == "PUT":
            data = self.body()
            shelf[name] = shelf[digest_of(data)] = data
            return self.reply(201, Docker_Content_Digest=digest_of(data))
        if name not in shelf:
            return self.reply(404, b'{"errors": [{"message": "unknown"}]}')
        return self.send_file(name, shelf[name])

    def _upload(self, registry: Registry, digest: str) -> None:
        if self.command == "POST":
            return self.reply(202, Location=f"{urlsplit(self.path).path}1?state=kept")
        if registry.cut_uploads:
            self.rfile.read(min(registry.cut_uploads.pop(0), int(self.headers["Content-Length"])))
            self.close_connection = True
            return None
        data = self.body()
        if digest_of(data) != digest or "state=kept" not in self.path:
            return self.reply(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "digest\\n invalid"}]}')
        registry.blobs[digest] = data
        return self.reply(201)

    def _welcome(self, registry: Registry) -> bool:
        shown = self.headers.get("Authorization", "")
        if registry.login == "basic":
            return shown == "Basic " + base64.b64encode(b"me:secret").decode()
        return registry.login is None or shown == f"Bearer token-{registry.tokens}"

    def _token(self, registry: Registry) -> None:
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"me:secret").decode():
            return self.reply(401)
        registry.tokens += 1
        return self.reply(200, json.dumps({"token": f"token-{registry.tokens}"}).encode())
