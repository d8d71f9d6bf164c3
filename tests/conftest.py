"""Fixtures every room may use: where the real checkpoint lies, and a bundle built from it once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.once import begin, once

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = "SmolLM2-135M-Instruct.Q4_1.gguf"

# No deadline: the machine's cores may be shared, and no test is about time. The same examples in every run, so that it
# tells of the change at hand alone; `--hypothesis-profile=explore` looks at new ones.
settings.register_profile("tandem", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("tandem")


def _checkpoint() -> Path | None:
    named = os.environ.get("TANDEM_SMOLLM2_GGUF")
    path = Path(named) if named else ROOT / ".cache" / CHECKPOINT
    return path if path.is_file() else None


def pytest_configure(config: pytest.Config) -> None:
    if end := begin():
        config.add_cleanup(end)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _checkpoint() is None:
        skip = pytest.mark.skip(reason="no SmolLM2 checkpoint: run `make demo` once or set TANDEM_SMOLLM2_GGUF")
        for item in items:
            if item.get_closest_marker("smollm2"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real checkpoint (a GGUF, 98 MB); for tests marked `smollm2`."""
    path = _checkpoint()
    if path is None:
        pytest.skip("no SmolLM2 checkpoint")
    return path


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_gguf: Path) -> Path:
    """A bf16 bundle of the real checkpoint for this machine's CPU, built once per run by the real command.

    Its context is short, since all classes of it are measured; its library and key are the tests' own, as in `bundles`.
    """
    from tests.bundles import state_home
    from tests.kernels.harness import ready_compiler
    from tests.warm import Process

    def build(folder: Path) -> None:
        words = [str(smollm2_gguf), "--profile", "bf16", "-o", str(folder / "bf16"), "-q"]
        words += ["--device", "cpu", "--max-seq-len", "1024"]
        own = {"CXX": str(ready_compiler(folder / "c++")), "XDG_STATE_HOME": str(state_home())}
        process = Process(words, folder, os.environ | own)
        errors = process.communicate()[1]
        process.close()
        assert process.returncode == 0, errors

    return once("smollm2", build) / "bf16"
