"""Which sources a build id covers: every file that a build or its examination can come to read."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tandem.artifacts.digest import sha256_file
from tandem.compile import sources
from tandem.compile.cpu.target import CpuTarget
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.target import Target
from tandem.kernels import build as kernels
from tests.artifacts.cuda_sample import GPU

BUILDERS = ("compile/build.py", "compile/plan.py", "compile/checkpoints/open.py", "runtime/checks/staged.py")
"""Where a build begins: what settles it, what writes it, and the process that examines it."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the whole package to spoil, as a wheel would install it."""
    copy = tmp_path / "tandem"
    shutil.copytree(sources.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "ROOT", copy)
    return copy


def test_an_installed_package_has_the_digests_of_the_checkout(package: Path) -> None:
    found = sources.source_digests()
    assert found["kernels/cpu/linear.cpp"] == sha256_file(package / "kernels" / "cpu" / "linear.cpp")
    assert found["tandem/keys.py"] == sha256_file(package / "keys.py")
    assert {name.split("/")[0] for name in found} == {"artifacts", "compile", "kernels", "runtime", "tandem"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "ROOT", Path(kernels.__file__).parents[1])
        assert sources.source_digests() == found


def test_leftovers_of_python_and_editors_are_no_sources(package: Path) -> None:
    before = sources.source_digests()
    for name in ("compile/plan.py~", "kernels/cpu/.linear.cpp.swp", "runtime/__pycache__/rows.pyc", "x.pyc"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(b"left over")
    assert sources.source_digests() == before


def test_a_file_that_nobody_thought_about_counts(package: Path) -> None:
    before = sources.source_digests()
    (package / "runtime" / "later").mkdir()
    for name in ("kernels/cpu/new.h", "runtime/later/x.txt", "artifacts/later.py"):
        (package / name).write_text("")
        assert sources.source_digests().keys() - before.keys() == {name}
        (package / name).unlink()


def test_every_pattern_of_the_inert_list_names_a_file() -> None:
    names = [name for name, _ in sources._files()]
    patterns = [pattern for patterns in sources.INERT.values() for pattern in patterns]
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []


def _imported(path: Path) -> Iterator[str]:
    """Dotted names that a module may import, at its top or inside a function, or starts as a process of its own."""
    for node in _executed(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"tandem(\.\w+)+", str(node.value)):
            yield str(node.value)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that type checkers alone look at."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _executed(node)


def _file(module: str) -> str | None:
    """The package file of a dotted name, as `source_digests` spells it."""
    parts = module.split(".")[1:]
    for path in ("/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"):
        if (sources.ROOT / path).is_file():
            return path if "/" in path else f"tandem/{path}"
    return None


def _closure(*roots: str, without: Iterable[str] = ()) -> set[str]:
    """Files that `roots` can import, those left out that are reached through files `without` alone."""
    waiting, seen = list(roots), {*roots, *without}
    while waiting:
        name = waiting.pop()
        for module in _imported(sources.ROOT / name.removeprefix("tandem/")):
            if module.startswith("tandem.") and (file := _file(module)) and file not in seen:
                seen.add(file)
                waiting.append(file)
    return seen.difference(without)


def test_nothing_that_a_build_can_import_is_inert() -> None:
    closure = _closure(*BUILDERS)
    assert {"runtime/executor/cpu.py", "kernels/attention.py", "artifacts/program.py", "tandem/keys.py"} <= closure
    assert sorted(name for name in closure if sources.is_inert(name)) == []


DOORS: dict[Target, tuple[str, ...]] = {
    CpuTarget("x86-64-v3"): ("compile/cuda/target.py", "runtime/executor/cuda/image.py", "runtime/gpu.py"),
    CudaTarget(GPU): ("compile/cpu/target.py",),
}
"""By target the modules that are imported for the other device alone, each where it is chosen."""


OWN = {"cpu": ("compile/cpu/target.py",), "cuda": ("compile/cuda/target.py", "runtime/gpu.py")}


@pytest.mark.parametrize("target", DOORS, ids=lambda target: target.device)
def test_what_is_foreign_to_a_target_no_build_for_it_can_import(target: Target) -> None:
    doors, names = DOORS[target], [name for name, _ in sources._files()]
    assert all(sources.matches(door, target.foreign) for door in doors)
    assert [p for p in target.foreign if not any(sources.matches(name, [p]) for name in names)] == []
    closure = _closure(*BUILDERS, *OWN[target.device.partition("-")[0]], without=doors)
    assert sorted(name for name in closure if sources.matches(name, target.foreign)) == []
    counted = sources.source_digests(target.foreign)
    assert closure <= counted.keys() and counted.items() <= sources.source_digests().items()


def test_nothing_but_the_cpus_target_compiles_its_kernels() -> None:
    """They are no modules: who reads them shows only by whom it asks."""
    read = {name: (sources.ROOT / name.removeprefix("tandem/")).read_text() for name in _closure(*BUILDERS)}
    callers = {name for name, text in read.items() if "library_build" in text}
    assert callers == {"compile/cpu/target.py", "kernels/build.py"}


def test_kernels_include_nothing_from_outside_their_folder() -> None:
    for path in kernels.sources():
        for name in re.findall(r'#include "(.*)"', path.read_text()):
            assert (kernels.SOURCES / name).resolve().parent == kernels.SOURCES.resolve(), (path.name, name)
