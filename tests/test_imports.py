"""Who imports whom, held in fresh interpreters: serving knows no framework, the wings do not know each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("artifacts", "compile", "kernels", "runtime")
FRAMEWORKS = ("gguf", "huggingface_hub", "onnx", "torch", "transformers", "triton")

GUARD = """
import importlib, sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if any(name == word or name.startswith(word + ".") for word in BANNED):
            raise ImportError(f"{name} is out of bounds here")

sys.meta_path.insert(0, Guard())
for name in MODULES:
    importlib.import_module(name)
print(*sys.modules)
"""

COMMAND = """
import importlib, sys
sys.argv = [{program!r}, "--help"]
try:
    importlib.import_module({module!r}).main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("\\n" + " ".join(sys.modules))
"""


def _modules(room: str) -> list[str]:
    """Dotted names of every module of `tandem.<room>`."""
    names = []
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(("tandem", *(part for part in parts if part != "__init__"))))
    return [name for name in names if not name.endswith(".__main__")]


def _python(code: str) -> str:
    # Run from the root, where the rooms could be imported under their bare names.
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _import_all(modules: list[str], banned: tuple[str, ...] = ()) -> set[str]:
    return set(_python(f"BANNED = {banned!r}\nMODULES = {modules!r}\n{GUARD}").split())


def test_the_guard_bites() -> None:
    with pytest.raises(AssertionError, match=r"tandem\.keys is out of bounds"):
        _import_all(["tandem.keys"], ("tandem.keys",))


def test_runtime_needs_no_framework_no_compiler_and_no_operators() -> None:
    loaded = _import_all(_modules("runtime"), (*FRAMEWORKS, "tandem.compile", "tandem.kernels"))
    assert "tandem.runtime" in loaded


def test_artifacts_stand_on_the_root_alone() -> None:
    _import_all(_modules("artifacts"), (*FRAMEWORKS, "tandem.compile", "tandem.kernels", "tandem.runtime"))


def test_kernels_stand_on_the_root_alone() -> None:
    _import_all(_modules("kernels"), ("tandem.artifacts", "tandem.compile", "tandem.runtime"))


def test_compile_does_not_know_the_runtime() -> None:
    _import_all(_modules("compile"), ("tandem.runtime",))


def test_each_module_has_one_name() -> None:
    loaded = _import_all([name for room in ROOMS for name in _modules(room)])
    assert loaded.isdisjoint(ROOMS)


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("tandem-bundle", "tandem.artifacts.cli"),
        ("tandem-check", "tandem.runtime.checks.cli"),
        ("tandem-compile", "tandem.compile.cli"),
        ("tandem-run", "tandem.runtime.cli"),
    ],
)
def test_help_is_quick_to_load(program: str, module: str) -> None:
    printed, loaded = _python(COMMAND.format(program=program, module=module)).strip().rsplit("\n", 1)
    assert printed.startswith("Usage: ")
    heavy = {*FRAMEWORKS, "llguidance", "starlette", "tokenizers", "uvicorn"}
    assert heavy.isdisjoint(loaded.split())


def test_one_prompt_loads_no_server_and_no_calibration() -> None:
    road = [
        "tandem.runtime.cli",
        "tandem.runtime.terminal",
        "tandem.runtime.loading",
        "tandem.runtime.engine",
        "tandem.runtime.executor.cpu",
        "tandem.runtime.checks.selfcheck",
        "tandem.runtime.worker",
    ]
    loaded = _import_all(road, ("asyncio", "starlette", "tandem.runtime.http", "tokenizers", "uvicorn"))
    assert {"jinja2", "statistics"}.isdisjoint(loaded)
