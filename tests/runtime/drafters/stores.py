"""What tests of suffix stores share: waiting for their thread, and reading their log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tandem.artifacts.suffix import SEPARATOR
from tandem.artifacts.suffix_folder import LOG
from tandem.artifacts.suffix_log import sound_spans
from tests.fakes import geometry

VOCAB = geometry().vocab_size
TOKENIZER = "ab" * 32
PATIENCE_S = 60.0


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def documents(path: Path) -> list[list[int]]:
    """What lies in the log, all of it sound."""
    log = np.fromfile(path / LOG, "<i4")
    assert sound_spans(log) == ([(0, len(log))] if len(log) else [])
    ends = np.flatnonzero(log >= SEPARATOR)
    return [part[:-1].tolist() for part in np.split(log, ends + 1)[:-1]]
