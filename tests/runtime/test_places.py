"""Where a bundle may lie and what may be missing around it: odd names, nothing to write to, no home, no locale."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundles import compiled

PROGRAM = str(Path(sys.executable).parent / "tandem-run")
ARGUMENTS = ("--trust-native", "--prompt", "the capital", "--raw", "--max-tokens", "6")
BARE = {"LC_ALL": "C", "TMPDIR": "/nowhere", "PATH": os.defpath}
ODD = ["with spaces and 'quotes' $x", "höchst – ディレクトリ", os.fsdecode(b"not utf-8 \xff\xfe")]

WATCHED = """
import os, sys
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
            "os.truncate", "os.utime", "tempfile.", "shutil.")

def hook(event, arguments):
    writes = event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & WRITING
    if writes or event.startswith(CHANGING):
        os.write(2, f"{event} {arguments}".encode("utf-8", "replace"))
        os._exit(99)

import tandem.runtime.cli
sys.addaudithook(hook)
sys.argv = ["tandem-run", *sys.argv[1:]]
tandem.runtime.cli.main()
"""


@pytest.fixture(scope="module")
def bundle() -> Path:
    return compiled("llama", "fp32")


def run(*command: str, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


@pytest.fixture(scope="module")
def text(bundle: Path) -> str:
    return run(PROGRAM, str(bundle), *ARGUMENTS)


@pytest.mark.parametrize("name", ODD)
def test_a_bundle_may_lie_anywhere(bundle: Path, text: str, tmp_path: Path, name: str) -> None:
    moved = tmp_path / name / name
    shutil.copytree(bundle, moved)
    assert run(PROGRAM, str(moved), *ARGUMENTS, environment=BARE) == text
    assert run(PROGRAM, name, *ARGUMENTS, environment=BARE, cwd=moved.parent) == text


def test_a_server_starts_there_too(bundle: Path, tmp_path: Path) -> None:
    moved = tmp_path / ODD[-1]
    shutil.copytree(bundle, moved)
    command = [PROGRAM, str(moved), "--trust-native", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BARE) as server:
        assert server.stdout and server.stdout.readline().startswith(b"listening on http://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.parametrize("drafter", ["lookup", "none"])
def test_serving_writes_nothing_anywhere(bundle: Path, text: str, drafter: str) -> None:
    arguments = (str(bundle), *ARGUMENTS, "--drafter", drafter)
    assert run(sys.executable, "-B", "-c", WATCHED, *arguments, environment=BARE) == text


def test_what_was_built_elsewhere_is_refused_without_a_home(bundle: Path) -> None:
    for home in ({}, {"HOME": "/nowhere"}, {"XDG_STATE_HOME": "/dev/null/below"}):
        done = subprocess.run([PROGRAM, str(bundle), "--prompt", "x"], capture_output=True, env=BARE | home)
        assert done.returncode == 1 and done.stdout == b""
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("error: tiny-llama: its native code was not built on this machine by this user")
