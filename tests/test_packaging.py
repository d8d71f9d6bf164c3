"""What a user installs: the package list, the data files, the dependencies and, marked, the wheel alone."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

import tandem

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
SHIPPING = ("hub", "oci", "sign", "verify")
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]


def _folder(package: str) -> Path:
    """Where the package's files lie in the checkout."""
    room = next(name for name in sorted(FOLDERS, key=len, reverse=True) if f"{package}.".startswith(f"{name}."))
    return ROOT.joinpath(FOLDERS[room], *package.removeprefix(room).split("."))


def _packages_on_disk() -> set[str]:
    found = {"tandem"}
    for room in ("artifacts", "compile", "kernels", "runtime"):
        for init in (ROOT / room).rglob("__init__.py"):
            found.add(".".join(("tandem", *init.parent.relative_to(ROOT).parts)))
    return found


def _distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line, maxsplit=1)[0].lower().replace("-", "_") for line in requirements}


def _imported(*folders: str) -> set[str]:
    """First names of every third-party module imported in `folders`, also inside functions."""
    names: set[str] = set()
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.split(".")[0].lower() for name in names} - set(sys.stdlib_module_names) - {"tandem"}


def test_every_package_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == _packages_on_disk()


def test_every_data_file_is_listed() -> None:
    patterns: dict[str, list[str]] = SETUPTOOLS["package-data"]
    missing = []
    for room, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT / folder).as_posix()
            data = path.is_file() and path.suffix not in {".py", ".pyc"}
            if data and not any(fnmatch(name, pattern) for pattern in patterns.get(room, [])):
                missing.append(f"{folder}/{name}")
    assert missing == []


def test_exports_are_there_and_sorted() -> None:
    assert list(tandem.__all__) == sorted(tandem.__all__)
    assert all(hasattr(tandem, name) for name in tandem.__all__)


@pytest.mark.parametrize("target", PROJECT["project"]["scripts"].values())
def test_command_exists(target: str) -> None:
    module, function = target.split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_serving_imports_only_what_the_base_install_brings() -> None:
    declared = _distributions(PROJECT["project"]["dependencies"])
    optional = _distributions([line for name in ("structured", *SHIPPING) for line in EXTRAS[name]])
    assert _imported("tandem", "artifacts", "runtime") - declared <= optional


def test_compiling_imports_only_what_its_extras_bring() -> None:
    declared = _distributions(PROJECT["project"]["dependencies"] + EXTRAS["compile"] + EXTRAS["onnx"])
    assert _imported("compile", "kernels") <= declared


def _checkout(target: Path) -> Path:
    """A copy of the files git would know: no stale build folder, no environment."""
    git = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(git, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from a clean copy of the checkout."""
    source = _checkout(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source, cwd=out)
    return next(out.glob("*.whl"))


@pytest.mark.packaging
@pytest.mark.timeout(900)
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"tandem_llm-{tandem.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"tandem", f"tandem_llm-{tandem.__version__}.dist-info"}
    expected = set()
    for package in SETUPTOOLS["packages"]:
        folder = "/".join(package.split("."))
        expected |= {f"{folder}/{path.name}" for path in _folder(package).glob("*.py")}
    for room in ("cpu", "cuda/host"):
        expected |= {f"tandem/kernels/{room}/{path.name}" for path in (ROOT / "kernels" / room).glob("*.*")}
    expected |= {f"tandem/compile/gate/{path.name}" for path in (ROOT / "compile" / "gate").glob("*.txt")}
    expected |= {"tandem/runtime/drafters/copy-rates.json", "tandem/runtime/http/page.html"}
    assert {name for name in names if name.startswith("tandem/")} == expected | {"tandem/py.typed"}


@pytest.mark.packaging
@pytest.mark.timeout(900)
def test_base_install_serves_without_a_framework(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    _run(programs / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    listed = _run(programs / "python", "-m", "pip", "list", "--format", "freeze", cwd=tmp_path)
    installed = _distributions(listed.splitlines())
    assert "tandem_llm" in installed
    assert installed.isdisjoint({"gguf", "onnx", "torch", "transformers", "triton"})
    for program in ("tandem-run", "tandem-bundle", "tandem-check"):
        assert _run(programs / program, "--help", cwd=tmp_path).startswith(f"Usage: {program}")
    refused = subprocess.run([programs / "tandem-compile", "model", "-o", "out"], cwd=tmp_path, capture_output=True)
    assert refused.returncode in {1, 2}
    assert b"Traceback" not in refused.stderr
