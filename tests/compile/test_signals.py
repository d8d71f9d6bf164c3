"""`tandem-compile` as a process: Ctrl-C, kill, kill -9 while proving, and that no file or child outlives them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.artifacts.reader import open_bundle
from tandem.command import INTERRUPTED
from tandem.compile.examine import MODULE
from tests.compile.command import PATIENCE_S, Command, gone, until
from tests.tiny import make_checkpoint
from tests.warm import Process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("signals") / "tiny", "llama", num_hidden_layers=1)


@pytest.fixture
def command(model: Path, tmp_path: Path) -> Iterator[Command]:
    command = Command(model, tmp_path)
    yield command
    command.close()


def provers(process: Process) -> list[int]:
    """Process ids of the command's proving children."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children = path.read_text().split() if path.exists() else []
    return [int(child) for child in children if MODULE.encode() in _words(child)]


def _words(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_ctrl_c_while_kernels_compile(command: Command) -> None:
    process = command.start("stuck")
    until(process, lambda: list(command.folder.glob("*.pid")))
    assert command.names() == [".b.partial-"]
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.strip()) == (INTERRUPTED, "", "error: interrupted")
    assert command.names() == []
    assert all(gone(int(path.stem)) for path in command.folder.glob("*.pid"))


@pytest.mark.parametrize(
    ("whole_group", "sign"),
    [(True, signal.SIGINT), (False, signal.SIGINT), (False, signal.SIGTERM)],
    ids=["terminal", "kill -2", "kill"],
)
def test_ctrl_c_while_proving(command: Command, whole_group: bool, sign: signal.Signals) -> None:
    process = command.start("ready")
    until(process, lambda: provers(process))
    (prover,) = provers(process)
    if whole_group:
        os.killpg(process.pid, sign)
    else:
        os.kill(process.pid, sign)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.strip()) == (INTERRUPTED, "", "error: interrupted")
    assert command.names() == []
    assert gone(prover)


def test_after_kill_9_the_next_run_sweeps_and_succeeds(command: Command) -> None:
    process = command.start("ready")
    until(process, lambda: provers(process))
    (prover,) = provers(process)
    process.kill()
    process.communicate()
    assert command.names() == [".b.partial-"]
    out, err = command.start("ready", "--json").communicate(timeout=PATIENCE_S)
    assert command.names() == ["b"], err
    bundle = open_bundle(command.here / "b")
    bundle.verify()
    assert json.loads(out)["content_id"] == bundle.manifest.content_id
    assert err.count("\n") == 1 and "no bit differs" in err
    assert gone(prover), "the orphan found nobody to talk to"
