"""Tests that need a GPU: all are marked `gpu`, and skipped where the driver shows none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.gpu import gpus
from tests.commands import Commands
from tests.tiny import make_checkpoint

HERE = Path(__file__).parent
CONTEXT_LENGTH = 2048
"""Two context classes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    skip = pytest.mark.skip(reason="no GPU that the driver shows") if mine and not gpus() else None
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if skip:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Tandem's commands, which count what they build as built here for this session alone."""
    return Commands(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of 3 layers; 6 query and 2 key heads of 16."""
    folder = tmp_path_factory.mktemp("checkpoint")
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 160}
    return make_checkpoint(folder, "llama", **sizes, max_position_embeddings=CONTEXT_LENGTH)


@pytest.fixture(scope="session")
def bundles(commands: Commands, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint compiled for this GPU, by profile; the compile proves every entry."""
    folder = tmp_path_factory.mktemp("bundles")
    for profile in ("bf16", "fp32"):
        flags = ("--profile", profile, "--device", "cuda-sm90", "-o", str(folder / profile), "-q")
        commands.output("compile.cli", str(checkpoint), *flags)
    return {profile: folder / profile for profile in ("bf16", "fp32")}
