"""Push and pull against a registry on loopback: resumed, checked, refused by name, and nothing half-made."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts import layout, staging, transfer
from tandem.artifacts.cli import cli
from tandem.artifacts.digest import sha256_file
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.signing import sign
from tandem.command import run_command
from tests.artifacts import sample
from tests.artifacts.fake_registry import Registry, RegistryHandler, digest_of
from tests.artifacts.keys import write_pair
from tests.artifacts.loopback import Server, serving

BIG = 3 << 20
"""Bytes of the report, which stands for large weights here."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker configuration of the tests' own, without logins."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    return tmp_path / "docker" / "config.json"


@pytest.fixture
def server(docker: Path) -> Iterator[Server]:
    with serving(RegistryHandler, Registry()) as server:
        yield server


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, state_home: Path) -> Path:
    """A sound, signed bundle with one large file; tests must not change it."""
    folder = tmp_path_factory.mktemp("large")
    sample.write(folder / "tiny", note="0123456789abcdef" * (BIG // 16))
    sign(folder / "tiny", write_pair(folder, "mine")[0])
    return folder / "tiny"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(cli, "tandem-bundle", [str(a) for a in arguments])
    return code, *capsys.readouterr()


def place(server: Server, tag: str = "v1") -> str:
    return f"oci://{server.host}/a/b:{tag}"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def big(large: Path) -> str:
    return "sha256:" + sha256_file(large / layout.REPORT)


def leftovers(target: Path) -> list[str]:
    return [path.name for path in target.parent.iterdir() if path.name.startswith(".")]


@pytest.fixture
def pushed(server: Server, large: Path, capsys: pytest.CaptureFixture[str]) -> Server:
    code, _, err = run(capsys, "push", large, place(server))
    assert (code, err) == (0, "")
    server.seen.clear()
    return server


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


def test_a_cut_pull_goes_on_where_it_stopped(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.faults.cuts = {big(large): [1 << 20, 0, 0, 0]}
    target = tmp_path / "out" / "tiny"
    code, out, err = run(capsys, "pull", place(pushed), target)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "connection lost (" in err
    assert not target.exists() and len(leftovers(target)) == 1
    pushed.faults.cuts = {}
    pushed.seen.clear()
    assert run(capsys, "pull", place(pushed), target)[0] == 0
    (request,) = pushed.asked("GET", big(large))
    assert request[2] == f"bytes={1 << 20}-"
    assert pushed.asked("GET", "sha256:" + sha256_file(large / layout.WEIGHTS)) != [], "it comes after the report"
    assert pushed.asked("GET", "sha256:" + sha256_file(large / layout.ORACLE)) == [], "it was whole"
    assert files(target) == files(large) and leftovers(target) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_cuts_and_busy_servers_heal_within_a_run(
    pushed: Server, large: Path, tmp_path: Path, ranges: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.faults.ranges = ranges
    pushed.faults.cuts = {big(large): [1 << 20, 100], layout.SIGNATURE: [1]}
    pushed.faults.busy = 1
    assert run(capsys, "pull", place(pushed), tmp_path / "tiny")[0] == 0
    assert files(tmp_path / "tiny") == files(large)


def test_rubbish_in_a_part_is_thrown_away(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.faults.cuts = {big(large): [1 << 20, 0, 0, 0]}
    target = tmp_path / "tiny"
    run(capsys, "pull", place(pushed), target)
    (name,) = leftovers(target)
    landing = tmp_path / name
    part = landing / layout.REPORT
    part.write_bytes(b"x" * part.stat().st_size)
    (landing / layout.PRICES).unlink(missing_ok=True)
    (landing / layout.PRICES).symlink_to(tmp_path / "outside")
    (landing / "unlisted").mkdir()
    (landing / "unlisted" / "file").write_text("x")
    (landing / layout.WEIGHTS).write_bytes(b"much longer than the file itself" * 100)
    (landing / layout.MANIFEST).write_text("{}")
    pushed.faults.cuts = {}
    assert run(capsys, "pull", place(pushed), target)[0] == 0
    assert files(target) == files(large) and not (tmp_path / "outside").exists()


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


def test_what_is_there_is_replaced_only_on_a_word(
    pushed: Server, large: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "pull", place(pushed), bundle)
    assert code == 2 and f"{bundle} exists" in err
    assert run(capsys, "pull", place(pushed), bundle, "--replace")[0] == 0
    assert files(bundle) == files(large) and leftovers(bundle) == []
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "file").write_text("dear")
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "notes", "--replace")
    assert code == 2 and "no bundle" in err and (tmp_path / "notes" / "file").exists()


def test_parts_of_other_bundles_are_swept_and_parts_in_use_are_not(
    pushed: Server, large: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "tiny"
    stale, used = (target.with_name(f".tiny.pull-{letter * 16}") for letter in "ab")
    for folder in (stale, used, target.with_name(".tiny.pull-notes")):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    held = staging.lock(used)
    assert run(capsys, "pull", place(pushed), target)[0] == 0
    os.close(held)
    assert sorted(leftovers(target)) == [f".tiny.pull-{'b' * 16}", ".tiny.pull-notes"]


def test_one_pull_at_a_time(pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.faults.stalls = {big(large): 1 << 20}
    target = tmp_path / "out" / "tiny"
    with _child("pull", place(pushed), target) as first:
        assert pushed.faults.stalled.wait(20)
        code, _, err = run(capsys, "pull", place(pushed), target)
        assert code == 2 and "another pull into it is running" in err
        first.kill()


def _child(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tandem.artifacts.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_killed_pull_leaves_parts_that_the_next_one_uses(
    pushed: Server,
    large: Path,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pushed.faults.stalls = {big(large): 1 << 20}
    target = tmp_path / "out" / "tiny"
    with _child("pull", place(pushed), target) as child:
        assert pushed.faults.stalled.wait(20)
        while not any(path.stat().st_size >= 1 << 20 for path in target.parent.rglob("report.md")):
            pass
        child.send_signal(number)
        assert child.wait(20) == code
        assert child.stderr is not None
        assert child.stderr.read().strip() == (b"error: interrupted" if code == 130 else b"")
    assert not target.exists() and len(leftovers(target)) == 1
    pushed.faults.stalls, _ = {}, pushed.seen.clear()
    assert run(capsys, "pull", place(pushed), target)[0] == 0
    assert pushed.asked("GET", big(large))[0][2] == f"bytes={1 << 20}-"
    assert files(target) == files(large) and leftovers(target) == []


def test_a_full_disk_is_one_line_and_the_parts_stay(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "tiny"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
    try:
        code, _, err = run(capsys, "pull", place(pushed), target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1 and err.count("\n") == 1 and "report.md: File too large; what came is kept" in err
    assert not target.exists()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        code, _, err = run(capsys, "pull", place(pushed), target)
        assert code == 2 and "bytes are to come, 1,000 are free there" in err
    pushed.seen.clear()
    assert run(capsys, "pull", place(pushed), target)[0] == 0
    assert pushed.asked("GET", big(large))[0][2] == f"bytes={2 << 20}-"


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
