"""The benchmark's scripts find the modules beside them, wherever they are started and however careful Python is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sides.process import BENCH

SCRIPTS = [
    "demo.py",
    "cpu.py",
    "start.py",
    "exact.py",
    "hybrid.py",
    "http_cost.py",
    "lanes.py",
    "choices.py",
    "sampled.py",
    "structured.py",
    "drafting_cost.py",
    "replay_prompts.py",
    "plots.py",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_imports_its_siblings_under_a_safe_path(script: str, tmp_path: Path) -> None:
    load = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='loaded')"
    words = [sys.executable, "-P", "-c", load, str(BENCH / script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
