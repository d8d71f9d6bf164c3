"""Tandem's commands are found where they are installed, and where they are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import answer
from answer import MODULES, command, program

ROOT = Path(__file__).resolve().parent.parent.parent


def test_what_is_installed_beside_this_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "tandem-run").touch()
    assert program("tandem-run") == [str(tmp_path / "tandem-run")]
    assert program("tandem-check")[:2] == [str(tmp_path / "python"), "-P"]


@pytest.mark.parametrize("name", MODULES)
def test_a_command_that_is_not_installed_is_its_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder that holds packages under generic names, and under its own name in what it says."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(Path, "exists", lambda path: path != Path(sys.executable).parent / name)
    words = program(name)
    assert words[0] == sys.executable
    monkeypatch.undo()
    done = subprocess.run(
        [*words, "--help"], capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(f"usage: {name}")


def test_every_command_of_the_package_is_there() -> None:
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {name: f"tandem.{module}:main" for name, module in MODULES.items()}


def test_its_last_line_is_why_a_command_failed(tmp_path: Path) -> None:
    with pytest.raises(answer.CommandError, match=r"tandem-bundle exited with \d+: .*nothing there"):
        command("tandem-bundle", "verify", tmp_path / "none")
