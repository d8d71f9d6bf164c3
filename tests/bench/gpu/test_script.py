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


def played(tmp_path: Path, *steps: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script with a Python that says what it was asked to run."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ran $*\n")
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out"), "BUNDLES": str(tmp_path / "bundles")}
    environment |= {"PYTHON": str(python), **variables}
    return subprocess.run(["bash", SCRIPT, *steps], capture_output=True, text=True, env=environment)


def test_drafters_are_of_their_own_targets(tmp_path: Path) -> None:
    done = played(tmp_path, "drafters", "cells", SMOLLM2="small.gguf", CONTEXTS="0 700")
    assert done.returncode == 0, done.stdout
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    compiled = [line.split("main()) ")[1] for line in ran if "compile.cli" in line]
    assert [line.split(" --device")[0] for line in compiled] == [
        "bench/demo-hybrid",
        "bench/demo-hybrid --drafter bench/drafters/demo-hybrid-b16",
        *2 * ["small.gguf --name smollm2 --drafter bench/drafters/smollm2-b16 --max-seq-len 8192"],
    ]
    assert "--context 0 --context 700" in ran[-1]


def test_without_its_target_a_drafter_is_left_out(tmp_path: Path) -> None:
    done = played(tmp_path, "drafters", "cells")
    assert done.returncode == 1
    assert done.stdout.count("LEFT OUT, SMOLLM2 names no checkpoint") == 2
    assert "ran bench/hybrid.py --only drafts" in done.stdout


def test_the_hybrid_is_as_it_is_wanted(tmp_path: Path) -> None:
    done = played(tmp_path, "hybrid27b", DRAFTER="block", MAX_SEQ_LEN="4096", LAYERS="8", ONLY="hybrid-forced")
    compiling, taking, checking = (line for line in done.stdout.splitlines() if line.startswith("ran "))
    assert "--shape hybrid27b --max-seq-len 4096" in compiling
    assert compiling.endswith("--layers 8 --drafter block")
    assert "--only hybrid-forced --budget" in taking and " spec " in checking


def test_a_step_ends_in_time(tmp_path: Path) -> None:
    done = played(tmp_path, "hybrid27b", LIMIT="0")
    assert done.returncode == 1
    assert done.stdout.count("LEFT OUT, no time is left of 0 s") == 3 and "ran" not in done.stdout


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
