"""`bench/gpu.sh` refuses a step it has not, before anything runs; its syntax is bash's."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent.parent / "bench" / "gpu.sh"


def test_an_unknown_step_is_refused_with_those_there_are(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out"), "BUNDLES": str(tmp_path / "bundles")}
    done = subprocess.run(["bash", SCRIPT, "tests", "speed"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    steps = "tests, bundles, smollm2, dense27b, hybrid27b, demo-hybrid, drafters, cells and peers"
    assert done.stderr == f"error: there is no step speed; there are {steps}\n"


def test_a_step_that_fails_is_told_by_the_exit_code_and_the_next_still_runs(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ran $*\nexit 3\n")
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out"), "BUNDLES": str(tmp_path / "bundles")}
    environment |= {"PYTHON": str(python)}
    done = subprocess.run(["bash", SCRIPT, "tests", "smollm2"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "== tests: FAILED" in done.stdout
    assert "ran -m pytest tests/gpu" in (tmp_path / "out" / "tests.log").read_text()
    assert "--shape smollm2" in (tmp_path / "out" / "compile-smollm2.log").read_text()
