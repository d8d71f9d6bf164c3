"""The one door: which kind a source is, and what is said when it is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.compile.checkpoints.gguf import GgufCheckpoint
from tandem.compile.checkpoints.hf import HfCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.errors import CheckpointError, UsageError
from tests.tiny import make_checkpoint, make_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("open") / "folder", "llama")


def test_folders_and_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = make_gguf(folder.parent / "model.gguf", folder)
    assert isinstance(open_checkpoint(str(folder)), HfCheckpoint)
    assert isinstance(open_checkpoint(str(gguf)), GgufCheckpoint)
    monkeypatch.chdir(folder.parent.parent)  # a relative path that also looks like a hub id: the folder wins
    assert isinstance(open_checkpoint(f"{folder.parent.name}/folder", offline=True), HfCheckpoint)


@pytest.mark.parametrize("source", ["nowhere", "./org/name", "/no/such/folder", "a/b/c", "org/model.gguf", "org/"])
def test_what_does_not_exist(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source)
    assert source in str(caught.value)


def test_the_door_itself_is_light() -> None:
    """A command imports it before it knows whether there is work to do."""
    script = "import sys, tandem.compile.checkpoints.open; print({'torch', 'gguf', 'huggingface_hub'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_another_kind_of_file(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"wanted a folder or a \.gguf file"):
        open_checkpoint(str(folder / "config.json"))


def test_a_revision_of_a_folder(folder: Path) -> None:
    with pytest.raises(UsageError, match="has no revision"):
        open_checkpoint(str(folder), revision="main")
