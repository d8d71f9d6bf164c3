"""Pulls that are cut, killed or short of room: nothing half-made at the place, and the next one goes on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.artifacts import layout, staging
from tandem.artifacts.digest import sha256_file
from tests.artifacts.shipping.desk import big, files, leftovers, place, run
from tests.artifacts.shipping.loopback import Server


def _child(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tandem.artifacts.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


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


@pytest.mark.parametrize("name", ["a b", "ü", "x/..", "x/../y"])
def test_places_with_odd_names(
    pushed: Server, large: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "x").mkdir(parents=True)
    (tmp_path / "home" / "z").mkdir()
    target = tmp_path / "home" / name
    code, _, err = run(capsys, "pull", place(pushed), target)
    if name == "x/..":
        assert code == 2 and f"{tmp_path / 'home'} exists and is no bundle" in err
    else:
        assert code == 0 and files(target) == files(large)
        assert run(capsys, "verify", target, "--key", large.parent / "mine.pub.pem")[0] == 0
    (tmp_path / "link").symlink_to(tmp_path / "home" / "z")
    code, _, err = run(capsys, "pull", place(pushed), tmp_path / "link", "--replace")
    assert code == 2 and "link exists and is no folder" in err


def test_a_place_that_is_no_text(pushed: Server, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    target = tmp_path / "\udcff"
    with _child("pull", place(pushed), target) as child:
        assert child.communicate() == (os.fsencode(target) + b"\n", b"")
    assert files(target) == files(large)
    with _child("verify", target, "--key", large.parent / "mine.pub.pem") as child:
        assert child.communicate()[1] == b"" and child.returncode == 0


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
