"""Push and pull against a registry on loopback: what goes, what comes back, what is refused by name."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts import layout
from tandem.artifacts.reader import open_bundle
from tests.artifacts.keys import write_pair
from tests.artifacts.shipping.desk import big, files, leftovers, place, run
from tests.artifacts.shipping.fake_registry import Registry, RegistryHandler, digest_of
from tests.artifacts.shipping.loopback import Server


def test_a_bundle_comes_back_as_it_went(
    server: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "push", large, place(server))
    assert (code, err) == (0, "")
    image = server.state.image("v1")
    assert out == f"oci://{server.host}/a/b@{digest_of(server.state.manifests['v1'])}\n"
    assert server.state.blobs[image["config"]["digest"]] == (large / layout.MANIFEST).read_bytes()
    titles = [layer["annotations"]["org.opencontainers.image.title"] for layer in image["layers"]]
    assert titles == [*(f.path for f in open_bundle(large).manifest.files), layout.SIGNATURE]
    code, pulled, err = run(capsys, "pull", out.strip(), tmp_path / "new folder" / "tiny")
    assert (code, pulled, err) == (0, f"{tmp_path}/new folder/tiny\n", "")
    assert files(tmp_path / "new folder" / "tiny") == files(large)
    open_bundle(tmp_path / "new folder" / "tiny").verify()
    assert all(p.stat().st_mode & 0o777 == 0o444 for p in (tmp_path / "new folder").rglob("*") if p.is_file())
    assert leftovers(tmp_path / "new folder" / "tiny") == []


def test_what_is_there_is_not_sent_again(pushed: Server, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "push", large, place(pushed, "v2"))[0] == 0
    assert pushed.asked("POST", "uploads") == []
    assert pushed.state.manifests["v1"] == pushed.state.manifests["v2"]


def test_a_cut_push_moves_no_tag_and_goes_on(server: Server, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.state.cut_uploads = [100, 1000, 10]
    code, out, err = run(capsys, "push", large, place(server))
    assert (code, out) == (1, "") and err.startswith(f"error: {place(server)}: connection lost (")
    assert err.count("\n") == 1 and server.state.manifests == {}
    server.state.cut_uploads = [1000]
    before = len(server.state.blobs)
    server.seen.clear()
    assert run(capsys, "push", large, place(server))[0] == 0, "one cut heals within a run"
    distinct = {layer["digest"] for layer in server.state.image("v1")["layers"]}
    assert len(server.asked("POST", "uploads")) == len(distinct) + 1 - before + 1


def test_a_damaged_bundle_is_not_pushed(server: Server, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (bundle / layout.WEIGHTS).read_bytes()
    (bundle / layout.WEIGHTS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, _, err = run(capsys, "push", bundle, place(server))
    assert code == 1 and err.startswith("error: weights.safetensors: sha256") and server.seen == []
    code, _, err = run(capsys, "push", bundle, f"oci://{server.host}/a/b@sha256:{'0' * 64}")
    assert code == 1


@pytest.mark.parametrize(
    ("serve", "fault"),
    [
        (lambda data: data[:-1], r"report/report\.md: 3145728 bytes wanted, 3145727 served"),
        (lambda data: b"", r"report/report\.md: 3145728 bytes wanted, 0 served"),
        (lambda data: data + b"x", r"report/report\.md: 3145728 bytes wanted, more served"),
        (lambda data: data[:-1] + b"x", r"report/report\.md: sha256 [0-9a-f]{64} wanted, [0-9a-f]{64} served"),
        (lambda data: data[::-1], r"report/report\.md: sha256 [0-9a-f]{64} wanted, [0-9a-f]{64} served"),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_false_files_are_refused_by_name(
    pushed: Server,
    large: Path,
    tmp_path: Path,
    serve: Callable[[bytes], bytes],
    fault: str,
    ranges: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pushed.faults.ranges = ranges
    pushed.faults.served = {big(large): serve(pushed.state.blobs[big(large)])}
    for _ in range(2):
        code, out, err = run(capsys, "pull", place(pushed), tmp_path / "tiny")
        assert (code, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1
        assert not (tmp_path / "tiny").exists()
        import re

        assert re.search(fault, err), err
    pushed.faults.served = {}
    assert run(capsys, "pull", place(pushed), tmp_path / "tiny")[0] == 0


def _swap(image: dict[str, Any]) -> None:
    first, second = image["layers"][0], image["layers"][1]
    first["digest"], second["digest"] = second["digest"], first["digest"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_swap, "kernels/[0-9a-f]{64}.so: sha256:[0-9a-f]{64} wanted, sha256:[0-9a-f]{64} in the layers of"),
        (lambda image: image["layers"].pop(0), "kernels/[0-9a-f]{64}.so: .* wanted, nothing in the layers of"),
        (lambda image: image["config"].update(mediaType="application/x-helm"), "no bundle, but application/x-helm"),
        (lambda image: image.pop("config"), "no bundle, but something else"),
        (lambda image: image["layers"][0].update(size="many"), "no bundle, but something else"),
        (lambda image: image["config"].update(digest=image["layers"][0]["digest"]), "manifest.json: not UTF-8|strict"),
    ],
)
def test_false_images_are_refused(
    pushed: Server,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = pushed.state.image("v1")
    change(image)
    pushed.state.tag("v1", image)
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "tiny")
    assert code == 1 and re.search(fault, err) and err.count("\n") == 1
    assert not (tmp_path / "tiny").exists() and leftovers(tmp_path / "tiny") == []


def test_blobs_and_images_under_a_false_digest_are_refused(
    pushed: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pushed.state.image("v1")
    config, pinned = image["config"]["digest"], digest_of(pushed.state.manifests["v1"])
    pushed.faults.served = {config: pushed.state.blobs[config].replace(b"Tiny", b"Tony")}
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "tiny")
    assert code == 1 and err.startswith(f"error: manifest.json: {config} wanted, sha256:")
    signature = image["layers"][-1]["digest"]
    pushed.faults.served = {signature: b"{}"}
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "tiny")
    assert code == 1 and err.startswith(f"error: model.sig: {signature} wanted, sha256:")
    pushed.faults.served = {pinned: json.dumps(image).encode()}
    code, _, err = run(capsys, "pull", f"oci://{pushed.host}/a/b@{pinned}", tmp_path / "tiny")
    assert code == 1 and "under this digest" in err
    pushed.faults.served = {"v1": b" " * (5 << 20)}
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "tiny")
    assert code == 1 and "is over 4194304 bytes" in err


def test_a_key_lets_only_its_bundles_in(
    pushed: Server, large: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_pair(tmp_path, "other")[1]
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "out", "--key", other)
    assert code == 1 and err.startswith("error: model.sig: not made with the key in ")
    assert not (tmp_path / "out").exists() and pushed.asked("GET", big(large)) == []
    assert run(capsys, "pull", place(pushed), tmp_path / "out", "--key", large.parent / "mine.pub.pem")[0] == 0
    assert run(capsys, "push", bundle, place(pushed, "unsigned"))[0] == 0
    code, _, err = run(capsys, "pull", place(pushed, "unsigned"), tmp_path / "out2", "--key", other)
    assert code == 1 and err.startswith("error: Tiny: not signed; ")


@pytest.mark.parametrize("kind", ["basic", "token"])
def test_logins_are_those_of_docker(
    server: Server, docker: Path, large: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.state.login = kind
    for words in ("push", large, place(server)), ("pull", place(server), tmp_path / "tiny"):
        code, out, err = run(capsys, *words)
        assert (code, out) == (1, "") and err.endswith(f"(401); docker login {server.host}\n")
    auth = base64.b64encode(b"me:secret").decode()
    docker.write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
    assert run(capsys, "push", large, place(server))[0] == 0
    assert run(capsys, "pull", place(server), tmp_path / "tiny")[0] == 0
    assert files(tmp_path / "tiny") == files(large)


def test_a_token_that_ages_on_the_way_is_renewed(
    server: Server, docker: Path, large: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.state.login = "token"
    auth = base64.b64encode(b"me:secret").decode()
    docker.write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
    upload = RegistryHandler._upload

    def aging(handler: RegistryHandler, registry: Registry, digest: str) -> None:
        upload(handler, registry, digest)
        registry.tokens += 1

    monkeypatch.setattr(RegistryHandler, "_upload", aging)
    assert run(capsys, "push", large, place(server))[0] == 0
    assert server.state.image("v1")["layers"]


def test_failures_on_the_way_are_one_line(
    server: Server, sealed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, "pull", place(server), tmp_path / "tiny")
    assert code == 1 and err == f"error: {place(server)}: manifests/v1 is not there (404); push the bundle first\n"
    server.faults.busy = 3
    code, _, err = run(capsys, "pull", place(server), tmp_path / "tiny")
    assert code == 1 and err == f"error: {place(server)}: GET answered 503\n"
    for words in ("pull", "oci://127.0.0.1:1/a/b:v1", tmp_path / "tiny"), ("push", sealed, "oci://127.0.0.1:1/a/b:v1"):
        code, _, err = run(capsys, *words)
        assert code == 1 and "connection lost (Connection refused); run the command again\n" in err
        assert err.count("\n") == 1
    code, _, err = run(capsys, "pull", place(server).replace("127.0.0.1", "localhost.invalid"), tmp_path / "tiny")
    assert code == 1 and err.count("\n") == 1 and "connection lost (" in err
    monkeypatch.setitem(sys.modules, "oras.auth", None)
    code, _, err = run(capsys, "pull", place(server), tmp_path / "tiny")
    assert code == 2 and err.endswith("which is not installed: pip install 'tandem-llm[oci]'\n")
    assert leftovers(tmp_path / "tiny") in ([], [".docker"])
