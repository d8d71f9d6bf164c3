"""Push and pull against a hub on loopback: one commit a push, read back at one commit, resumed and checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.artifacts import layout
from tandem.artifacts.digest import sha256_file
from tests.artifacts.shipping.desk import BIG, files, run
from tests.artifacts.shipping.fake_hub import Hub, HubHandler, Repo
from tests.artifacts.shipping.loopback import Server, serving

# huggingface_hub's own uploads, which we cannot change.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

PLACE = "hf://me/tiny"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    with serving(HubHandler, Hub()) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{server.host}")
        yield server


@pytest.fixture
def pushed(server: Server, large: Path, capsys: pytest.CaptureFixture[str]) -> Server:
    assert run(capsys, "push", large, PLACE)[0] == 0
    server.seen.clear()
    return server


def repo(server: Server) -> Repo:
    return server.state.repos["me/tiny"]


def test_a_bundle_comes_back_as_it_went(
    server: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "push", large, PLACE)
    assert (code, err) == (0, "") and out == f"{PLACE}@{repo(server).branches['main']}\n"
    assert repo(server).private and len(repo(server).commits) == 2
    kept = repo(server).commits[repo(server).branches["main"]]
    assert kept.pop(".gitattributes") and kept == files(large)
    for source in (PLACE, out.strip()):
        target = tmp_path / f"pulled {len(source)}"
        assert run(capsys, "pull", source, target, "--key", large.parent / "mine.pub.pem") == (0, f"{target}\n", "")
        assert files(target) == files(large)


def test_a_push_replaces_what_the_last_one_brought_and_no_more(
    pushed: Server, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = repo(pushed)
    before = here.commits[here.branches["main"]]
    here.commit("main", before | {"README.md": b"# hand-made", "programs/stray.tdp": b"not listed"})
    assert run(capsys, "push", bundle, PLACE, "--public")[0] == 0
    kept = here.commits[here.branches["main"]]
    assert set(kept) == {".gitattributes", "README.md", "programs/stray.tdp", *files(bundle)}
    assert layout.SIGNATURE in before and layout.SIGNATURE not in kept
    assert run(capsys, "pull", PLACE, tmp_path / "out")[0] == 0
    assert files(tmp_path / "out") == files(bundle)


def test_branches_are_made_and_read(
    server: Server, sealed: Path, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "push", large, PLACE)[0] == 0
    assert run(capsys, "push", sealed, f"{PLACE}@v3")[0] == 0
    assert run(capsys, "pull", f"{PLACE}@v3", tmp_path / "v3")[0] == 0
    assert run(capsys, "pull", PLACE, tmp_path / "main")[0] == 0
    assert (files(tmp_path / "v3"), files(tmp_path / "main")) == (files(sealed), files(large))


def test_a_cut_push_makes_no_commit_and_goes_on(
    server: Server, large: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.state.refused_uploads = 1
    code, out, err = run(capsys, "push", large, PLACE)
    assert (code, out) == (1, "") and err.startswith(f"error: {PLACE}: the hub answered 403: ")
    assert "quota exceeded" in err and err.count("\n") == 1 and len(repo(server).commits) == 1
    there = set(server.state.objects)
    assert there
    server.seen.clear()
    assert run(capsys, "push", large, PLACE)[0] == 0
    sent = {path.removeprefix("/lfs/") for _, path, _ in server.asked("PUT", "/lfs/")}
    assert sent and sent.isdisjoint(there)


def test_files_that_the_hub_leaves_out_are_noticed(
    server: Server, sealed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.state.ignored = {layout.PROOF}
    code, out, err = run(capsys, "push", sealed, PLACE)
    assert (code, out) == (1, "") and err.startswith("error: proof.json: 13 bytes of sha256 ")


def test_a_cut_pull_goes_on_where_it_stopped(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oid = sha256_file(large / layout.REPORT)
    pushed.faults.cuts = {oid: [1 << 20, 0, 0, 0]}
    target = tmp_path / "out" / "tiny"
    code, out, err = run(capsys, "pull", PLACE, target)
    assert (code, out) == (1, "") and "connection lost (" in err and err.count("\n") == 1
    assert not target.exists()
    pushed.faults.cuts = {oid: [1 << 20]}
    pushed.seen.clear()
    assert run(capsys, "pull", PLACE, target)[0] == 0
    assert [request[2] for request in pushed.asked("GET", oid)] == [f"bytes={1 << 20}-", f"bytes={2 << 20}-"]
    assert files(target) == files(large)
    assert [path.name for path in target.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("ranges", [True, False])
def test_false_files_are_refused_by_name(
    pushed: Server, large: Path, tmp_path: Path, ranges: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    oid = sha256_file(large / layout.REPORT)
    data = pushed.state.objects[oid]
    pushed.faults.ranges = ranges
    for served, fault in (
        (data[:-1], f"{BIG} bytes wanted, {BIG - 1} served"),
        (data + b"x", f"{BIG} bytes wanted, more served"),
        (b"x" + data[1:], f"sha256 {oid} wanted"),
    ):
        pushed.faults.served = {oid: served}
        code, _, err = run(capsys, "pull", PLACE, tmp_path / "tiny")
        assert code == 1 and err.startswith(f"error: report/report.md: {fault}") and err.count("\n") == 1
        assert not (tmp_path / "tiny").exists()
    pushed.faults.served = {}
    assert run(capsys, "pull", PLACE, tmp_path / "tiny")[0] == 0


def test_false_repositories_are_refused_before_anything_large_comes(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = repo(pushed)
    sound = here.commits[here.branches["main"]]
    oid = sha256_file(large / layout.REPORT)
    other = b"x" + sound[layout.REPORT][1:]
    for change, fault in (
        ({layout.REPORT: other}, f"report/report.md: {BIG} bytes of sha256 {oid} wanted, {BIG} of "),
        ({layout.PRICES: b"{}"}, "prices.json: 95 bytes of sha256 "),
        ({layout.MANIFEST: sound[layout.MANIFEST].replace(b"Tiny", b"Tony")}, "manifest.json: its fields give "),
    ):
        here.commit("main", sound | change)
        code, _, err = run(capsys, "pull", PLACE, tmp_path / "tiny")
        assert code == 1 and err.startswith(f"error: {fault}") and err.count("\n") == 1
    here.commit("main", {path: data for path, data in sound.items() if path != layout.WEIGHTS})
    assert "weights.safetensors: 384 bytes" in run(capsys, "pull", PLACE, tmp_path / "tiny")[2]
    here.commit("main", {"README.md": b"# something else"})
    code, _, err = run(capsys, "pull", PLACE, tmp_path / "tiny")
    assert code == 1 and err == f"error: {PLACE}: no bundle, it holds no manifest.json\n"
    assert list(tmp_path.iterdir()) == [] and pushed.asked("GET", "/cdn/") == []


def test_failures_on_the_way_are_one_line(
    pushed: Server, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "tiny"
    for source, status in (("hf://me/absent", 404), (f"{PLACE}@absent", 404)):
        code, _, err = run(capsys, "pull", source, target)
        assert code == 1 and err.startswith(f"error: {source}: the hub answered {status}: ") and err.count("\n") == 1
    pushed.faults.busy = 3
    code, _, err = run(capsys, "pull", PLACE, target)
    assert code == 1 and "the hub answered 503" in err and err.count("\n") == 1
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    for words in ("pull", PLACE, target), ("push", large, PLACE):
        code, _, err = run(capsys, *words)
        assert code == 1 and "the hub answered 401" in err and "hf auth login" in err and err.count("\n") == 1
    code, _, err = run(capsys, "pull", "hf://-me/tiny--", target)
    assert code == 2 and err.count("\n") == 1
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    code, _, err = run(capsys, "pull", PLACE, target)
    assert code == 1 and "connection lost (" in err and err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = run(capsys, "pull", PLACE, target)
    assert code == 2 and err.endswith("which is not installed: pip install 'tandem-llm[hub]'\n")
    assert list(tmp_path.iterdir()) == []
