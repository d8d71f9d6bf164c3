"""`tandem-compile` on disks that are full or read-only, without TMPDIR or a home: one line, and nothing is left."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.compile.cli import command
from tests.tiny import make_checkpoint, make_gguf

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("disk") / "tiny", "llama")


class Compile:
    """Runs the command with the output `b` in a folder."""

    def __init__(self, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.model, self.capfd = model, capfd

    def __call__(self, folder: Path, *flags: str, model: Path | None = None) -> tuple[int, str]:
        """Exit code and the only line, of stderr unless all went well."""
        self.capfd.readouterr()
        given = [str(model or self.model), "-o", str(folder / "b"), "-q", *flags]
        code = run_command(command, "tandem-compile", given)
        out, err = self.capfd.readouterr()
        assert (out == "") == (code != 0) and (err == "") == (code == 0)
        return code, (err or out).removesuffix("\n")


@pytest.fixture
def compile_(model: Path, capfd: pytest.CaptureFixture[str]) -> Compile:
    return Compile(model, capfd)


@contextmanager
def disk(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory at `place`, as root may have one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a disk, and not everywhere")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


FULL = "error: No space left on device: "


@pytest.mark.parametrize("share", [0.0, 0.2, 0.45, 0.7, 0.9, 0.98])
def test_a_disk_too_small_by_any_measure(compile_: Compile, tmp_path: Path, share: float) -> None:
    """From no block at all to one that is full at the last of the files; an older bundle stays as it is."""
    (tmp_path / "roomy").mkdir()
    assert compile_(tmp_path / "roomy")[0] == 0
    older = tmp_path / "roomy" / "b"
    pages = [-(-p.stat().st_size // 4096) for p in older.rglob("*") if p.is_file()]
    blocks = int(share * sum(pages)) or 1
    with disk(tmp_path / "disk", f"size={4096 * blocks}") as full:
        code, line = compile_(full)
        assert code == 1 and line.startswith(FULL) and list(full.iterdir()) == []
    with disk(tmp_path / "fuller", f"size={4096 * (sum(pages) + blocks)}") as full:
        shutil.copytree(older, full / "b")
        code, line = compile_(full, "--name", "new", "--replace")
        assert code == 1 and line.startswith(FULL) and [path.name for path in full.iterdir()] == ["b"]
        bundle = open_bundle(full / "b")
        bundle.verify()
        assert bundle.manifest.name == "tiny"


@pytest.mark.parametrize("limit", [5000, 200_000])
def test_files_that_may_not_grow(compile_: Compile, tmp_path: Path, limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        done = compile_(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done == (1, f"error: File too large: {tmp_path / 'b'}") and list(tmp_path.iterdir()) == []


def test_a_disk_without_names_left(compile_: Compile, tmp_path: Path) -> None:
    for names in range(2, 20, 3):
        with disk(tmp_path / f"{names}", f"nr_inodes={names}") as full:
            code, line = compile_(full)
            assert code in (1, 2) and "No space left on device" in line and list(full.iterdir()) == []


def test_a_read_only_disk(compile_: Compile, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "ro") as place:
        wanted = f"error: {place / 'b'}: no folder can be made there (Read-only file system); choose another place"
        assert compile_(place) == (2, wanted)


def test_a_checkpoint_on_a_read_only_disk(compile_: Compile, model: Path, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=8m") as place:
        shutil.copytree(model, place / "model")
        gguf = make_gguf(place / "model.gguf", model, weight_type="F16")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        for name, source in (("folder", place / "model"), ("file", gguf)):
            (tmp_path / name).mkdir()
            assert compile_(tmp_path / name, model=source) == (0, str(tmp_path / name / "b"))


def set_tmpdir(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)  # Python looks for it anew


def test_no_folder_for_temporary_files(compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_tmpdir(tmp_path / "none", monkeypatch)
    assert compile_(tmp_path) == (0, str(tmp_path / "b"))


def test_a_full_folder_for_temporary_files(compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    with disk(tmp_path / "disk", "size=16384") as full:
        set_tmpdir(full, monkeypatch)
        assert tempfile.gettempdir() == str(full)
        with suppress(OSError):
            (full / "filler").write_bytes(bytes(20_000))
        assert compile_(tmp_path / "out") == (0, str(tmp_path / "out" / "b"))


def test_a_home_that_cannot_be_written(compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
    code, line = compile_(tmp_path)
    key = tmp_path / "file" / "state" / "tandem" / "machine.key"
    assert code == 1 and line.startswith(f"error: {key}: this machine's key cannot be written there (Not a directory)")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("cut", [0.0, 0.0001, 0.05, 0.5, 0.999])
def test_a_gguf_cut_short(compile_: Compile, model: Path, tmp_path: Path, cut: float) -> None:
    """In its first bytes, header, tensor table and data."""
    (tmp_path / "out").mkdir()
    gguf = make_gguf(tmp_path / "tiny.gguf", model, weight_type="F16")
    os.truncate(gguf, int(cut * gguf.stat().st_size))
    code, line = compile_(tmp_path / "out", model=gguf)
    assert code == 1 and line.startswith(f"error: {gguf}: ") and "fetch" in line
    assert list((tmp_path / "out").iterdir()) == []
