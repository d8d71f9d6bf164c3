"""The real checkpoint, opened once for this room: its header alone takes seconds to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Checkpoint:
    return open_checkpoint(str(smollm2_gguf))
