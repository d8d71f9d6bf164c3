"""A Hugging Face hub on loopback: the endpoints that huggingface_hub asks for a model repository, LFS without Xet."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.artifacts.shipping.loopback import Handler

LARGE = (".safetensors", ".so", ".md")
"""What is kept as LFS objects here; the rest goes into the commit itself."""


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        return name

    def resolve(self, revision: str) -> str | None:
        name = self.branches.get(revision, revision)
        return name if name in self.commits else None


@dataclass
class Hub:
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS objects by their SHA-256."""
    token: str = "hf_mine"
    refused_uploads: int = 0
    """How many LFS uploads more are refused."""
    ignored: set[str] = field(default_factory=set)
    """Paths a .gitignore names."""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class HubHandler(Handler):
    def answer(self) -> None:
        hub: Hub = self.server.state
        path = urlsplit(self.path).path
        if path.startswith("/cdn/"):
            oid = path.removeprefix("/cdn/")
            return self.send_file(oid, hub.objects[oid])
        if path.startswith("/lfs/"):
            return self._upload(hub, path.removeprefix("/lfs/"))
        if self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.body()
            return self.reply(401, X_Error_Message="Invalid username or password.")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts == ["api", "repos", "create"]:
            return self._create(hub, json.loads(self.body()))
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(hub, json.loads(self.body()))
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repo = hub.repos.get(name)
        if repo is None:
            self.body()
            return self.reply(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if parts[0] == "api":
            return self._api(hub, repo, name, parts[4:])
        return self._resolve(repo, parts[3], "/".join(parts[4:]))

    def _json(self, value: object, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode(), Content_Type="application/json")

    def _create(self, hub: Hub, wish: dict[str, Any]) -> None:
        name = f"{wish['organization']}/{wish['name']}"
        url = {"url": f"http://{self.server.host}/{name}"}
        if name in hub.repos:
            return self._json(url, 409)
        hub.repos[name] = Repo(wish.get("visibility") == "private" or wish.get("private") is True)
        hub.repos[name].commit("main", {".gitattributes": b"*.so filter=lfs"})
        return self._json(url)

    def _api(self, hub: Hub, repo: Repo, name: str, parts: list[str]) -> None:
        what, revision = (parts[0], parts[1]) if parts else ("revision", "main")
        if what == "branch":
            self.body()
            if revision in repo.branches:
                return self._json({}, 409)
            repo.branches[revision] = repo.branches["main"]
            return self._json({})
        commit = repo.resolve(revision)
        if commit is None:
            self.body()
            return self.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
        files = repo.commits[commit]
        if what == "tree":
            return self._json([self._entry(path, data) for path, data in sorted(files.items())])
        if what == "preupload":
            asked = json.loads(self.body())["files"]
            return self._json({"files": [self._mode(hub, file["path"]) for file in asked]})
        if what == "commit":
            made = repo.commit(revision, self._changed(hub, dict(files)))
            return self._json({"commitUrl": f"http://{self.server.host}/{name}/commit/{made}", "commitOid": made})
        siblings = [{"rfilename": path} for path in sorted(files)]
        return self._json({"id": name, "sha": commit, "private": repo.private, "siblings": siblings})

    def _entry(self, path: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": sha(data)[:40]}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": sha(data), "size": len(data), "pointerSize": 130}
        return entry

    def _mode(self, hub: Hub, path: str) -> dict[str, object]:
        mode = "lfs" if path.endswith(LARGE) else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": path in hub.ignored}

    def _changed(self, hub: Hub, files: dict[str, bytes]) -> dict[str, bytes]:
        for line in self.body().splitlines():
            step = json.loads(line)
            value = step["value"]
            if step["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif step["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
            elif step["key"] == "deletedFile":
                del files[value["path"]]
        return files

    def _batch(self, hub: Hub, wish: dict[str, Any]) -> None:
        objects = []
        for item in wish["objects"]:
            upload = {"upload": {"href": f"http://{self.server.host}/lfs/{item['oid']}"}}
            objects.append(item | ({} if item["oid"] in hub.objects else {"actions": upload}))
        self._json({"transfer": "basic", "objects": objects})

    def _upload(self, hub: Hub, oid: str) -> None:
        data = self.body()
        if hub.refused_uploads:
            hub.refused_uploads -= 1
            return self.reply(403, X_Error_Message="quota exceeded")
        if sha(data) != oid:
            return self.reply(400)
        hub.objects[oid] = data
        return self.reply(200)

    def _resolve(self, repo: Repo, revision: str, path: str) -> None:
        commit = repo.resolve(revision)
        data = repo.commits.get(commit or "", {}).get(path)
        if data is None:
            return self.reply(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        if path.endswith(LARGE):
            return self.reply(302, Location=f"http://{self.server.host}/cdn/{sha(data)}")
        return self.send_file(path, data, ETag=f'"{sha(data)}"', X_Repo_Commit=commit or "")
