"""The tools that a bundle is made with: their versions, and what they obey besides their command lines.

Knows nothing of models.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from tandem import __version__
from tandem.artifacts.digest import sha256_file
from tandem.kernels import build

PACKAGES = ("gguf", "msgspec", "numpy", "safetensors", "tokenizers", "torch")
"""Packages that read a checkpoint, trace a model, or write and examine what goes into a bundle."""

VARIABLES = (
    *("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_RUN_PATH"),
    *("SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS"),
)
"""Environment variables by which GCC, Clang and the linkers may write other bytes. CXX itself is told by its file."""


def tool_versions() -> dict[str, str]:
    """Versions by name of what every build uses."""
    return {
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "python": platform.python_version(),
        "tandem": __version__,
        **{name: version(name) for name in PACKAGES},
    }


def compiler_versions() -> dict[str, str]:
    """Of the C++ compiler and its parts; also the compiler file's sha256, since a wrapper gives another's version."""
    cxx = build.compiler()
    return {
        "assembler": _part_version(cxx, "as"),
        "compiler": build.compiler_version(cxx),
        "compiler_sha256": sha256_file(Path(cxx)),
        "linker": _part_version(cxx, "ld"),
    }


def triton_versions() -> dict[str, str]:
    """Of Triton, and the sha256 of the assembler that it runs."""
    from triton import knobs

    return {"triton": version("triton"), "ptxas_sha256": sha256_file(Path(knobs.nvidia.ptxas.path))}


def environment() -> dict[str, str]:
    """Those of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _part_version(cxx: str, part: str) -> str:
    """The first line of `--version` of a program that the compiler runs, or `unknown` where it does not tell."""
    told = subprocess.run([cxx, f"-print-prog-name={part}"], capture_output=True, text=True).stdout.strip()
    path = shutil.which(told)
    if path is None:
        return "unknown"
    return (subprocess.run([path, "--version"], capture_output=True, text=True).stdout.splitlines() or ["unknown"])[0]
