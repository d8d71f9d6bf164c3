"""What the compiler makes of a recurrent layer's kernels for sm_90, with no GPU, at the shape of a 27B model."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton

from tandem.kernels.cuda import conv, delta, delta_commit, recurrent_inputs
from tandem.kernels.cuda.build import Pointer, Variant, compile_variant
from tandem.kernels.cuda.launch import TritonKernel, Work
from tests.kernels.cuda.ptx import GIVEN, WAIT, Early, before_wait
from tests.kernels.cuda.test_compiled import _ptx

INTEGERS = ("state_slot", "lane", "position", "parent", "count", "move_lane", "move_row", "move_target")
KEY_HEADS, HEADS, DK, DV, CHANNELS, LAYERS = 16, 48, 128, 128, 10240, 48
STATE = HEADS * DK * DV
DELTA: dict[str, Any] = {
    "lanes": 8, "key_heads": KEY_HEADS, "heads": HEADS, "dk": DK, "dv": DV, "q_stride": CHANNELS,
    "k_stride": KEY_HEADS * DK, "v_stride": CHANNELS, "y_stride": HEADS * DV, "slot": LAYERS * STATE,
}  # fmt: skip
EACH = 32
"""Rows of a state that a thread holds at this shape; the first four of a sum are products alone."""
SUM, UPDATE = EACH - 4, EACH


def inputs(rows: int, verify: bool, tree: bool) -> tuple[TritonKernel, Work]:
    return recurrent_inputs.recurrent_inputs, recurrent_inputs.recurrent_inputs_work(
        rows=rows, verify=verify, tree=tree, width=4, key_heads=KEY_HEADS, dk=DK, channels=CHANNELS, heads=HEADS,
        x_stride=16384, ab_stride=2 * HEADS, slot=LAYERS * 3 * CHANNELS,
    )  # fmt: skip


def rule(rows: int) -> tuple[TritonKernel, Work]:
    return delta.delta_rule, delta.delta_rule_work(rows=rows, **DELTA)


def verify(rows: int, tree: bool) -> tuple[TritonKernel, Work]:
    return delta.delta_verify, delta.delta_verify_work(rows=rows, tree=tree, **DELTA)


def committed() -> tuple[TritonKernel, Work]:
    return delta_commit.delta_commit, delta_commit.delta_commit_work(
        layers=LAYERS, key_heads=KEY_HEADS, heads=HEADS, dk=DK, dv=DV, k_layer=1 << 16, u_layer=1 << 18,
        decay_layer=1 << 11, layer=STATE, slot=LAYERS * STATE,
    )  # fmt: skip


def types(kernel: TritonKernel, work: Work) -> dict[str, str | None]:
    told: dict[str, str | None] = {p.name: "i32" for p in kernel.signature if p.name in INTEGERS}
    told |= {p.name: "bf16" for p in kernel.signature if p.name in ("raw", "tail")}
    if dict(work.constants).get("MOVE") or work.grid[0] > 1:
        told |= {p.name: None for p in kernel.signature if p.name in ("raw", "k_factor")}
    return told if kernel.name == "recurrent_inputs" else {k: v for k, v in told.items() if v}


def resources(kernel: TritonKernel, work: Work, folder: Path) -> str:
    """What the assembler says that a kernel takes."""
    names = {"i32": "int32"}
    told = types(kernel, work)
    elements = [told.get(param.name, "fp32") for param in kernel.signature]
    pointers = [element and Pointer(names.get(element, element), True) for element in elements]
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compile_variant(Variant.of(kernel.name, pointers, work), 90).data)
    tool = triton.knobs.nvidia.cuobjdump.path
    return subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout


LAUNCHES = {
    "step": rule(1),
    "extend": rule(32),
    "chunk": rule(2048),
    "chain": verify(32, False),
    "tree": verify(32, True),
    "commit": committed(),
    "inputs of a step": inputs(1, False, False),
    "inputs of few": inputs(32, False, False),
    "inputs of a chunk": inputs(2048, False, False),
    "inputs of a tree": inputs(32, True, True),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_nothing_is_spilled(name: str, tmp_path: Path) -> None:
    said = resources(*LAUNCHES[name], tmp_path)
    assert "STACK:0 " in said and "LOCAL:0 " in said
    assert max(map(int, re.findall(r"REG:(\d+)", said))) <= 168  # three blocks of four warps on a multiprocessor


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("step", 2 * SUM + UPDATE),
        ("extend", 2 * SUM + UPDATE),
        ("chunk", 2 * SUM + UPDATE),
        ("chain", 2 * SUM + UPDATE),
        ("tree", 2 * SUM + 2 * UPDATE),
        ("commit", UPDATE),
    ],
)
def test_a_row_is_the_same_multiplications_and_additions_in_every_kind(name: str, fused: int) -> None:
    """As the source writes them: what it fuses is fused, and nothing else; keys come through shared memory once."""
    kernel, work = LAUNCHES[name]
    ptx = _ptx(kernel, work, **types(kernel, work))
    assert len(re.findall(r"\bfma\.rn\.f32", ptx)) == fused
    early = before_wait(ptx, [param.name for param in kernel.signature])
    assert (
        early.read <= GIVEN | {"state"} and not early.writes
    )  # a state that only earlier passes wrote, or this kernel
    if name != "chunk":  # which also counts its rows
        assert len(re.findall(r"\bshfl", ptx)) == (0 if name == "commit" else 4)  # two exchanges in a column for a sum
    keys = {"tree": 3, "commit": 1}.get(name, 2)
    assert len(re.findall(r"ld\.shared\.v4", ptx)) == keys * EACH // 4


def test_inputs_read_weights_and_count_alone_before_they_wait() -> None:
    for name in ("inputs of a step", "inputs of few", "inputs of a chunk", "inputs of a tree"):
        kernel, work = LAUNCHES[name]
        told = types(kernel, work)
        ptx = _ptx(kernel, work, **told)
        early = before_wait(ptx, [param.name for param in kernel.signature if told.get(param.name, "") is not None])
        assert early == Early(frozenset({"weight", "count"}), frozenset(), writes=False)
        after = ptx.split(WAIT)[1]
        per_thread = -(-dict(work.constants)["BR"] * 64 // (32 * work.num_warps))
        assert len(re.findall(r"\bfma\.rn\.f32", after)) == 7 * per_thread  # those of softplus alone


def test_a_tail_is_moved_by_its_last_row_alone() -> None:
    work = conv.conv_tail_work(rows=2048, channels=CHANNELS, width=4, x_stride=16384, slot=1 << 20)
    told = dict.fromkeys(("state_slot", "lane", "position", "parent", "count"), "i32")
    assert "fma.rn.f32" not in _ptx(conv.conv_tail, work, tail="bf16", **told)
