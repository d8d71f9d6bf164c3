"""The house rules a script can hold: small files, honest names, a docstring each, nothing of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("artifacts", "compile", "kernels", "runtime")
MAX_LINES = 300
MENTIONED = re.compile(r"`((?:artifacts|bench|compile|docs|kernels|runtime|tandem|tests)/[\w/.-]+\.\w+)`")
VAGUE = {"common", "helper", "helpers", "manager", "misc", "stuff", "util", "utils"}
# Spelled in pieces, so that this file passes its own test.
ELSEWHERE = re.compile(r"(?<![\w.])/(?:work|root|home)/|pypi\.or" r"g|python" r"hosted|deb\.debia" r"n|registry\.npm")


def _tracked() -> list[Path]:
    """Files of the checkout that git knows or would add; links and deleted files left out."""
    git = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(git, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in sorted(set(names)) if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _sources(*suffixes: str) -> list[Path]:
    return [path for path in _tracked() if path.suffix in suffixes]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lengths = {_name(path): len(path.read_text().splitlines()) for path in _sources(".py", ".cpp", ".h")}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_names_say_what_is_inside() -> None:
    parts = {part.removesuffix(".py") for path in _tracked() for part in path.relative_to(ROOT).parts}
    assert parts & VAGUE == set()


def test_every_module_says_what_it_does() -> None:
    silent = []
    for path in _sources(".py"):
        text = path.read_text()
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            silent.append(_name(path))
    for path in _sources(".cpp", ".h"):
        if not path.read_text().startswith(("//", "/*")):
            silent.append(_name(path))
    assert silent == []


def test_nothing_points_at_one_machine_or_registry() -> None:
    found = []
    for path in _tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{_name(path)}:{number}" for number, line in enumerate(lines, 1) if ELSEWHERE.search(line)]
    assert found == []


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_linked_into_the_package(room: str) -> None:
    link = ROOT / "tandem" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


def test_documents_point_at_files_that_exist() -> None:
    lost = []
    for path in _sources(".md"):
        lost += [f"{_name(path)}: {name}" for name in MENTIONED.findall(path.read_text()) if not (ROOT / name).exists()]
    assert lost == []
