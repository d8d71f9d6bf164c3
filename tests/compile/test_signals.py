"""`tandem-compile` as a process: Ctrl-C, kill -9 and closed pipes, and that no file or child outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.artifacts.reader import open_bundle
from tandem.command import INTERRUPTED
from tandem.compile.examine import MODULE
from tests.kernels.harness import library
from tests.tiny import make_checkpoint

PATIENCE_S = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("signals") / "tiny", "llama", num_hidden_layers=1)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def compile_(model: Path, tmp_path: Path, started: list[subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts the command; its compilers copy the tests' library, or wait for ever and leave their process ids."""
    for name, work in (
        ("ready", f'cp "{library()}" "$out"'),
        ("stuck", f'> "{tmp_path}/$$.pid"; exec sleep 600'),
    ):
        script = tmp_path / name
        script.write_text(
            "#!/bin/sh\ncase $1 in --version) echo 'cxx 1'; exit;; -print*) exit;; esac\n"
            f'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n{work}\n'
        )
        script.chmod(0o755)

    def start(cxx: str, *flags: str) -> subprocess.Popen[str]:
        program = str(Path(sys.executable).parent / "tandem-compile")
        process = subprocess.Popen(
            [program, str(model), "-o", "b", "--max-seq-len", "64", *flags],
            cwd=folder(tmp_path),
            env={**os.environ, "CXX": str(tmp_path / cxx)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    return start


def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir(exist_ok=True)
    return tmp_path / "here"


def until(process: subprocess.Popen[str], found: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def provers(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the command's proving children."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children = path.read_text().split() if path.exists() else []
    return [int(child) for child in children if MODULE.encode() in _words(child)]


def _words(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_ctrl_c_while_kernels_compile(compile_: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = compile_("stuck")
    until(process, lambda: list(tmp_path.glob("*.pid")))
    assert [p.name[:11] for p in folder(tmp_path).iterdir()] == [".b.partial-"]
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.strip()) == (INTERRUPTED, "", "error: interrupted")
    assert list(folder(tmp_path).iterdir()) == []
    assert all(gone(int(path.stem)) for path in tmp_path.glob("*.pid"))


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill -2"])
def test_ctrl_c_while_proving(
    compile_: Callable[..., subprocess.Popen[str]], tmp_path: Path, whole_group: bool
) -> None:
    process = compile_("ready")
    until(process, lambda: provers(process))
    (prover,) = provers(process)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.strip()) == (INTERRUPTED, "", "error: interrupted")
    assert list(folder(tmp_path).iterdir()) == []
    assert gone(prover)


def test_after_kill_9_the_next_run_sweeps_and_succeeds(
    compile_: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = compile_("ready")
    until(process, lambda: provers(process))
    (prover,) = provers(process)
    process.kill()
    process.communicate()
    assert [p.name[:11] for p in folder(tmp_path).iterdir()] == [".b.partial-"]
    out, err = compile_("ready", "--json").communicate(timeout=PATIENCE_S)
    assert [p.name for p in folder(tmp_path).iterdir()] == ["b"], err
    bundle = open_bundle(folder(tmp_path) / "b")
    bundle.verify()
    assert json.loads(out)["content_id"] == bundle.manifest.content_id
    assert err.count("\n") == 1 and "no bit differs" in err
    assert gone(prover), "the orphan found nobody to talk to"
