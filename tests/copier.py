"""The library that brings weights to a GPU, compiled once and kept beside the CPU's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tandem.kernels.cuda.copier import FLAGS, SOURCE, build_copier
from tests.kernels.harness import kept


@cache
def copier() -> Path:
    return kept("copier", (SOURCE.read_text(), *FLAGS), build_copier)
