"""Building the library: the same bytes from the same sources, signatures from its own symbols, faults in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

from tandem.errors import CompileError
from tandem.kernels import build
from tandem.kernels.signature import Param
from tests.kernels.harness import LEVELS, library

TINY = """#include "tandem.h"
struct Args { const int32_t* count; float* y; int64_t n; double x; char* both; };
TDM_KERNEL(tiny_a, Args, "<count >y =n ~x !both") { (void)a; (void)part; }
TDM_KERNEL(tiny_b, Args, "<count >y =n ~x !both") { (void)a; (void)part; }
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources in the place of the real ones: one file with two kernels."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    shutil.copy(build.SOURCES / "tandem.h", folder)
    (folder / "tiny.cpp").write_text(TINY)
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_signatures_are_read_from_the_library(sources: Path, tmp_path: Path) -> None:
    found = build.read_signatures(build.build_library(LEVELS[0], tmp_path / "a.so"))
    kinds = [("count", "in"), ("y", "out"), ("n", "int"), ("x", "real"), ("both", "both")]
    assert found == {name: tuple(Param(*kind) for kind in kinds) for name in ("tiny_a", "tiny_b")}


def test_every_kernel_of_the_real_library_has_a_signature() -> None:
    found = build.read_signatures(library())
    names = subprocess.run(["nm", "-D", "--defined-only", library()], capture_output=True, text=True, check=True).stdout
    symbols = {line.split()[2] for line in names.splitlines()}
    assert found.keys() == {s.removeprefix("tdm_sig_") for s in symbols if s.startswith("tdm_sig_")}
    assert {f"tdm_{name}" for name in found} <= symbols
    assert all(signature[0] == Param("count", "in") for signature in found.values())


def test_the_library_is_a_function_of_its_sources(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.build_library(LEVELS[0], tmp_path / "a.so").read_bytes()
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(sources, elsewhere)
    digest = build.sources_digest()
    monkeypatch.setattr(build, "SOURCES", elsewhere)
    assert build.build_library(LEVELS[0], tmp_path / "b.so").read_bytes() == first
    assert build.sources_digest() == digest
    (elsewhere / "tiny.cpp").write_text(TINY + "// more\n")
    assert build.sources_digest() != digest


def test_the_compilers_first_error_is_shown(sources: Path, tmp_path: Path) -> None:
    (sources / "tiny.cpp").write_text(TINY.replace("(void)part;", "undeclared;"))
    with pytest.raises(CompileError, match=r"did not compile for \S+ with \S+: .*tiny\.cpp.*undeclared") as caught:
        build.build_library(LEVELS[0], tmp_path / "a.so")
    assert "\n" not in str(caught.value) and not (tmp_path / "a.so").exists()


def test_the_linkers_last_word_is_shown(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "a.so").mkdir()
    with pytest.raises(CompileError, match=r"did not compile for \S+ with \S+: \S*ld: .*a\.so: Is a directory"):
        build.build_library(LEVELS[0], tmp_path / "a.so")


def test_a_compiler_that_fails_without_a_word_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "quiet", "exit 3"))
    with pytest.raises(CompileError, match=r"with \S*quiet: exit code 3"):
        build.build_library(LEVELS[0], tmp_path / "a.so")
    with pytest.raises(CompileError, match="quiet does not tell its version"):
        build.compiler_version(build.compiler())


def test_what_a_compiler_runs_ends_with_it(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source fails while another is at work two processes deep, as in g++ and in what wraps it."""
    (sources / "first.cpp").write_text("")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    at_work = f"sh -c 'sleep 600 & echo $! > {tmp_path / 'pid'}; echo > {fifo}; wait' & wait"
    monkeypatch.setenv(
        "CXX", script(tmp_path / "cxx", f'case "$*" in *first.cpp*) cat {fifo}; exit 3; esac; {at_work}')
    )
    with pytest.raises(CompileError, match="exit code 3"):
        build.build_library(LEVELS[0], tmp_path / "a.so")
    # An orphan is nobody's here to wait for; a pidfd is readable once it has ended.
    with suppress(ProcessLookupError), open(os.pidfd_open(int((tmp_path / "pid").read_text()))) as process:
        assert select([process], [], [], 60)[0]


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="CXX=no-such-compiler is no command: install g"):
        build.compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"no C\+\+ compiler found: install g"):
        build.compiler()


def test_cxx_goes_before_the_usual_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "mine", "echo 'mine 1.2'; echo more")
    monkeypatch.setenv("CXX", mine)
    assert build.compiler() == mine and build.compiler_version(mine) == "mine 1.2"


def test_levels_of_other_architectures_take_the_compilers_baseline() -> None:
    assert build.isa_flags("x86-64-v3") == ["-march=x86-64-v3"]
    assert build.isa_flags("x86-64-v4-vnni") == ["-march=x86-64-v4", "-mavx512vnni"]
    assert build.isa_flags("x86-64-v4-bf16") == ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"]
    assert build.isa_flags("aarch64") == build.isa_flags("generic") == []
