"""What a test's child processes need to import `tests`, also where PYTHONSAFEPATH keeps the current folder out."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
