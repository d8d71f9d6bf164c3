"""`kill -9` at any moment of a compile, and three compiles of one folder: what stands there is whole, always."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.artifacts.cli import cli
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.errors import BundleError
from tests.compile.command import PATIENCE_S, Command, killed
from tests.tiny import make_checkpoint

PERCENT = re.compile(rb"(\d+)% \|")
STAGES = ((0, 3), (5, 24), (26, 45), (46, 60), (61, 90), (95, 95))
"""Shares of a compile, in percent of its progress: weights and kernels, programs, proof and prices, seal."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("kill") / "tiny", "llama", num_hidden_layers=1)


@pytest.fixture
def command(model: Path, tmp_path: Path) -> Iterator[Command]:
    command = Command(model, tmp_path)
    yield command
    command.close()


def kill_at(command: Command, percent: int, *flags: str) -> None:
    """Kills a compile when its progress bar says `percent` or more."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = command.start("ready", *flags, terminal=os.ttyname(terminal))
    shown = os.read(screen, 100)
    os.close(terminal)  # the process has its own by now, with whose end reads end as well
    while not any(int(found) >= percent for found in PERCENT.findall(shown)):
        # Little at a time: a terminal that nobody reads holds the process up, so it is not far ahead.
        shown = shown[-200:] + os.read(screen, 100)
    killed(process)
    os.close(screen)


def whole_or_refused(folder: Path) -> bool:
    """Whether readers take `folder` for a bundle; then every byte of it is as it was sealed."""
    try:
        bundle = open_bundle(folder)
    except BundleError:
        assert run_command(cli, "tandem-bundle", ["verify", str(folder)]) == 1
        return False
    bundle.verify()
    return True


def test_kill_9_at_any_moment(command: Command) -> None:
    """First where nothing stands, then over an older bundle."""
    draw = random.Random(9)
    moments = [draw.randint(*stage) for stage in STAGES]
    target, older = command.here / "b", None
    for name in ("first", "second"):
        for moment in moments[::2] if older is None else moments[1::2]:
            kill_at(command, moment, "--name", name, "--replace")
            folders = set(command.here.iterdir())
            assert len(folders - {target}) <= 1, "what the run before left behind was swept"
            for folder in folders - {target}:
                assert folder.name.startswith(".b.partial-")
                whole_or_refused(folder)
            if target in folders:
                assert whole_or_refused(target)
                assert open_bundle(target).manifest.name in (older, name)
            else:
                assert older is None
        done = command.start("ready", "--name", name, "--replace")
        out, err = done.communicate(timeout=PATIENCE_S)
        assert (done.returncode, out, command.names()) == (0, "b\n", ["b"]), err
        assert whole_or_refused(target) and open_bundle(target).manifest.name == name
        older = name


def test_three_compiles_of_one_folder(command: Command) -> None:
    processes = [command.start("ready", "--name", name) for name in "abc"]
    ends = {}
    for name, process in zip("abc", processes, strict=True):
        out, err = process.communicate(timeout=PATIENCE_S)
        assert err.count("\n") == 1, err
        ends[name] = (process.returncode, out, err)
    winner = open_bundle(command.here / "b").manifest.name
    assert ends.pop(winner)[:2] == (0, "b\n")
    for code, out, err in ends.values():
        assert (code, out) == (2, "")
        assert err == f"error: {command.here / 'b'} exists; choose another place, or give --replace\n"
    assert command.names() == ["b"] and whole_or_refused(command.here / "b")
