"""What the compiler makes of the kernels for sm_90, with no GPU: the instructions that speed and order rest on."""

from __future__ import annotations

import re

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.experimental.gluon._runtime import GluonASTSource

from tandem.kernels.cuda import embedding, head, linear, linear_rotary, norm
from tandem.kernels.cuda.launch import TritonKernel, Work
from tests.kernels.cuda.ptx import GIVEN, WAIT, Early, before_wait

SHARED = 227 << 10
"""Bytes of shared memory that a block may have on sm_90."""


def _ptx(kernel: TritonKernel, work: Work, **types: str | None) -> str:
    """PTX of a kernel whose pointers are fp32 unless `types` says otherwise, None for one left out."""
    names = kernel.function.arg_names
    elements = {param.name: types.get(param.name, "fp32") for param in kernel.signature}
    given = {name: f"*{element}" for name, element in elements.items() if element}
    missing = {name: None for name, element in elements.items() if not element}
    source = (GluonASTSource if kernel.function.is_gluon() else ASTSource)(
        kernel.function,
        {name: given.get(name, "constexpr") for name in names},
        {**dict(work.constants), **missing, "PDL": True},
        {(names.index(name),): [["tt.divisibility", 16]] for name in given},
    )
    options = {"num_warps": work.num_warps, "num_stages": work.num_stages, "enable_fp_fusion": False}
    built = compile(source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": True})
    assert built.metadata.shared <= SHARED
    assert built.metadata.global_scratch_size == 0
    return str(built.asm["ptx"])


def _early(kernel: TritonKernel, ptx: str, *left_out: str) -> Early:
    """What a kernel does before it waits; `left_out` of its pointers are not given."""
    return before_wait(ptx, [param.name for param in kernel.signature if param.name not in left_out])


@pytest.mark.parametrize(("n", "k", "gated"), [(5120, 17408, False), (17408, 5120, True), (960, 576, False)])
@pytest.mark.parametrize("rows", [1, 32, 2048])
def test_a_linear_prefetches_weights_then_waits_then_reads(n: int, k: int, gated: bool, rows: int) -> None:
    name, work = linear.linear_work(n, k, rows, gated, 2, k, n)
    kernel = getattr(linear, name)
    ptx = _ptx(kernel, work, x="bf16", weight="bf16", bias=None, count="i32")
    before, after = ptx.split(WAIT)
    early = dict(work.constants).get("EARLY", False)  # else the next kernel's blocks come behind the start of these
    assert "griddepcontrol.launch_dependents" in (before if early else after)
    asked = frozenset({"weight"} if rows <= 32 else {})
    assert _early(kernel, ptx, "bias") == Early(frozenset({"count"}), asked, writes=False)
    assert "prefetch.global.L2" not in after
    copies = re.findall(r"cp\.async\.c\S+", after)  # 16 bytes at a time, or loads would not keep memory busy
    assert set(copies) == {"cp.async.cg.shared.global.L2::128B", "cp.async.commit_group;"}
    assert "wgmma.mma_async" in after or "mma.sync" in after
    assert "wgmma.mma_async" in after or rows <= 32


@pytest.mark.parametrize("rows", [1, 32])
def test_a_linear_that_turns_prefetches_weights_then_waits_then_reads(rows: int) -> None:
    work = linear_rotary.linear_rotary_work(
        rows=rows, heads=24, kv_heads=4, head_dim=256, half=128, k=5120, itemsize=2, x_stride=5120, y_stride=6144,
        table_stride=128, page=1 << 20,
    )  # fmt: skip
    told = dict.fromkeys(("position", "lane", "slot", "block_table", "count"), "i32")
    values = dict.fromkeys(("x", "weight", "k_cache", "v_cache", "y"), "bf16")
    ptx = _ptx(linear_rotary.linear_rotary, work, bias=None, **told, **values)
    before, after = ptx.split(WAIT)
    assert "griddepcontrol.launch_dependents" in before
    given = frozenset({"position", "lane", "slot", "count"})
    assert _early(linear_rotary.linear_rotary, ptx, "bias") == Early(given, frozenset({"weight"}), writes=False)
    looked_up, products = after.split("cp.async.cg.shared.global", 1)
    assert "ld.global" in looked_up and "ld.global" not in products  # none of their latency behind the products
    assert "fma.rn.f32" not in after  # each product of a rotation is rounded before it is added


@pytest.mark.parametrize("rows", [1, 32, 64])
@pytest.mark.parametrize("k", [40, 200])
def test_a_chain_begins_at_its_bias_however_often_a_tile_is_taken(k: int, rows: int) -> None:
    name, work = linear.linear_work(96, k, rows, False, 4, k + 3, 96)
    ptx = _ptx(getattr(linear, name), work, x="fp32", weight="fp32", bias="fp32", count="i32", y="fp32")
    assert "fma.rn.f32" in ptx and not re.search(r"\badd(\.rn)?\.f32", ptx)


def test_an_fp32_linear_multiplies_and_adds_in_one_rounding() -> None:
    for rows in (8, 64):
        name, work = linear.linear_work(960, 576, rows, False, 4, 576, 960)
        ptx = _ptx(getattr(linear, name), work, count="i32")
        assert "fma.rn.f32" in ptx
        assert "mma.sync" not in ptx and "wgmma" not in ptx  # whose inputs would be cut to tf32


def test_norms_read_weight_and_count_alone_before_they_wait() -> None:
    width = 5120
    add = norm.add_rms_norm_work(32, width, 1e-6, width, width, width, width)
    single = norm.rms_norm_work(32, 24, width // 24, 1e-6, width, width)
    strides = dict.fromkeys(("x_stride", "delta_stride", "y_stride", "ring_stride"), width)
    taps = norm.add_rms_norm_taps_work(rows=32, outputs=32, width=width, eps=1e-6, **strides)
    told = dict.fromkeys(("row", "count", "tap_out", "num_rows"), "i32")
    for kernel, ptx, left_out in (
        (norm.add_rms_norm, _ptx(norm.add_rms_norm, add, row="i32", count="i32", y="bf16"), ()),
        (norm.add_rms_norm, _ptx(norm.add_rms_norm, add, row=None, sum=None, count="i32"), ("row", "sum")),
        (norm.rms_norm, _ptx(norm.rms_norm, single, row=None, count="i32", y="bf16"), ("row",)),
        (norm.rms_norm, _ptx(norm.rms_norm, single, row="i32", count="i32", y="bf16"), ()),
        (norm.add_rms_norm_taps, _ptx(norm.add_rms_norm_taps, taps, **told, y="bf16"), ()),
    ):
        early = _early(kernel, ptx, *left_out)
        assert early == Early(frozenset({"weight", "count"}), frozenset(), writes=False)


def test_the_ends_of_a_pass_read_what_it_was_given_alone_before_they_wait() -> None:
    width = 49152
    for kernel, work, types in (
        (embedding.embedding, embedding.embedding_work(32, 576), {"token": "i32", "weight": "bf16"}),
        (head.gather_rows, head.gather_rows_work(32, 576, 576), {"row": "i32", "y": "bf16"}),
        (head.scatter_rows, head.scatter_rows_work(32, 576, 576, 576), {"tap_out": "i32"}),
        (head.argmax_partial, head.argmax_partial_work(32, width, width), {"index": "i32"}),
        (head.argmax_gap, head.argmax_gap_work(32, width), {"index": "i32", "argmax": "i32"}),
    ):
        ptx = _ptx(kernel, work, count="i32", **types)
        early = _early(kernel, ptx)
        assert early.read <= GIVEN and not early.asked and not early.writes
        assert "st.global" in ptx.split(WAIT)[1]
