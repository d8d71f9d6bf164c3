"""Kernels compiled ahead of time with no GPU: the same bytes each time, nothing of this machine in them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from tandem.errors import CompileError
from tandem.kernels.cuda import build, swiglu
from tandem.kernels.cuda.build import Cubin, Pointer, Variant, compile_variant, compile_variants
from tandem.kernels.cuda.launch import work
from tandem.kernels.cuda.linear import linear_work
from tandem.kernels.cuda.norm import rms_norm_work
from tandem.kernels.cuda.swiglu import swiglu_work

F32, I32 = Pointer("fp32", True), Pointer("int32", True)
SWIGLU = Variant.of("swiglu", [F32, I32, Pointer("bf16", True)], swiglu_work(8, 112, 224))
NORM = Variant.of("rms_norm", [F32, F32, I32, I32, F32], rms_norm_work(8, 1, 96, 1e-5, 96, 96))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would hand out what it compiled before."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))


def test_two_builds_of_kernels_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[None] = []
    together = compile_variants([SWIGLU, NORM, SWIGLU], 90, lambda: steps.append(None))
    assert list(together) == [SWIGLU, NORM] and len(steps) == 2
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "another"))
    for variant, cubin in together.items():
        assert compile_variant(variant, 90) == cubin
        facts(variant, cubin)


def test_copies_of_weights_ask_for_whole_lines(tmp_path: Path) -> None:
    name, work = linear_work(64, 256, 1, False, 2, 256, 64)
    bf16 = Pointer("bf16", True)
    (tmp_path / "x.cubin").write_bytes(compile_variant(Variant.of(name, [bf16, bf16, None, I32, F32], work), 90).data)
    tool = triton.knobs.nvidia.cuobjdump.path
    listing = subprocess.run([tool, "-sass", tmp_path / "x.cubin"], capture_output=True, text=True, check=True).stdout
    copies = re.findall(r"LDGSTS\S+", listing)
    assert copies and set(copies) == {"LDGSTS.E.BYPASS.LTC128B.128"}


def facts(variant: Variant, cubin: Cubin) -> None:
    assert cubin.data[:4] == b"\x7fELF" and cubin.symbol == variant.kernel
    # Eight bytes a pointer, and what Triton adds behind them.
    assert cubin.param_sizes == (8,) * (len(variant.pointers) + cubin.hidden) and cubin.hidden <= 2
    assert cubin.threads == 32 * variant.work.num_warps
    for word in (b".debug_line", b".py", str(Path(swiglu.__file__).parent).encode()):
        assert word not in cubin.data, word


def test_a_grid_is_no_part_of_a_variant() -> None:
    few, many = (swiglu_work(rows, 112, 224) for rows in (1, 8))
    pointers = [F32, I32, F32]
    assert few.grid != many.grid
    assert Variant.of("swiglu", pointers, few) == Variant.of("swiglu", pointers, many)
    assert Variant.of("swiglu", pointers, few) == Variant.of("swiglu", pointers, replace(few, grid=(77, 3, 1)))


def test_what_does_not_compile_is_named() -> None:
    constants = {name: 3 if name.startswith("B") else value for name, value in SWIGLU.work.constants}
    assert constants != dict(SWIGLU.work.constants)
    odd = replace(SWIGLU, work=work((1,), **constants))  # no tile has three elements
    with pytest.raises(CompileError, match=r"^Triton cannot compile swiglu for sm_90: .*power of 2"):
        compile_variant(odd, 90)
    with pytest.raises(CompileError, match="Triton cannot compile swiglu"):
        compile_variants([odd], 90)


def test_kernels_with_arguments_of_an_unknown_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_param_sizes", lambda ptx, symbol: (8, 8, 8, 8, 8, 8))
    with pytest.raises(CompileError, match=r"swiglu takes \(8, 8, 8, 8, 8, 8\) bytes for 3 pointers"):
        compile_variant(SWIGLU, 90)
