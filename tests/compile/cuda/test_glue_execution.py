"""A program with glue does what its module does: rebuilt as graphs by the executor, over a driver that computes."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem.artifacts.program import decode, encode
from tandem.compile.assembly import Launch, Operand
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.compile.cuda.glue_kernel import GlueKernel
from tandem.compile.cuda.lowering import TORCH_DTYPES
from tandem.compile.cuda.programs import Lowered, encode_program
from tandem.compile.profile import find_profile
from tandem.driver import Driver
from tandem.kernels import rms_norm
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.compile.cuda import executed, gated
from tests.compile.cuda.lowered import fake
from tests.fake_device import Node, make_cubin
from tests.fake_driver import FakeCuda

HIDDEN = bytes(8)


class Computing(FakeCuda):
    """A GPU that computes `lowered` by PyTorch, launch by launch, over the addresses that its nodes are given."""

    def __init__(self, lowered: list[Lowered]) -> None:
        super().__init__(run=self.compute)
        self.lowered = {low.shape.name: low for low in lowered}
        self.passes: list[str] = []

    def compute(self, nodes: list[Node]) -> None:
        name = nodes[2].function.symbol.partition("/")[0]
        self.passes.append(name)
        low, scores = self.lowered[name], torch.empty(0)
        memory = next(m for m in self.live["memory"].values() if m.nbytes == gated.IO.nbytes)
        rows, outputs, *_ = gated.IO.views(memory.array)["counts"].tolist()
        live = {"rows": rows, "outputs": outputs}
        for node, launch in zip(nodes, low.launches, strict=True):
            if kernel := low.glue.get(launch.kernel):
                compute_glue(kernel, node)
                continue
            given = [(p.name, v) for p, v in zip(launch.signature, launch.values(), strict=True) if v is not None]
            a = {}
            for (parameter, value), word in zip(given, node.words, strict=False):
                assert isinstance(value, Operand)
                shape = (live[value.count], *value.shape[1:]) if value.count else value.shape or (1,)
                a[parameter] = tensor(word, shape, TORCH_DTYPES[value.dtype])
            scores = compute_operator(launch, a, scores)


def tensor(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    block = (ctypes.c_uint8 * (prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(block, dtype=dtype).view(shape)


def compute_glue(kernel: GlueKernel, node: Node) -> None:
    """All rows of the bucket, live or not."""
    operands = [
        tensor(word, kernel.run.shape(operand, kernel.rows), kernel.dtypes[operand.name])
        for operand, word in zip(kernel.parameters, node.words, strict=False)
    ]
    inputs = len(kernel.run.inputs)
    made = kernel.run.module(kernel.rows, kernel.dtypes)(*operands[:inputs])
    for place, value in zip(operands[inputs:], made, strict=True):
        place.copy_(value)


def compute_operator(launch: Launch, a: dict[str, Tensor], scores: Tensor) -> Tensor:
    """Writes the results of a kernel of the table; returns the last logits that were scored."""
    match launch.kernel.removesuffix("_chunk"):
        case "embedding":
            a["y"].copy_(a["weight"][a["token"].long()])
        case "linear":
            product = a["x"].flatten(1).to(a["weight"].dtype).float() @ a["weight"].float().T
            a["y"].copy_((product + a.get("bias", 0)).view(a["y"].shape))
        case "rms_norm":
            a["y"].copy_(rms_norm(a["x"], a["weight"], gated.EPS))
        case "gather_rows":
            a["y"].copy_(a["x"][a["row"].long()])
        case "argmax_partial":
            return a["logits"]
        case "argmax_gap":
            top = scores.topk(2).values
            a["argmax"].copy_(scores.argmax(1))
            a["gap"].copy_(top[:, 0] - top[:, 1])
        case other:
            raise AssertionError(other)
    return scores


@pytest.mark.parametrize("profile", list(executed.ERRORS))
def test_a_program_with_glue_computes_its_module(profile: str, tmp_path: Path) -> None:
    chosen = find_profile(profile)
    module, path, cubins = gated.Gated(chosen), tmp_path / "weights", dict[str, bytes]()
    weights = gated.write_weights(module, chosen, path)
    lowered = [gated.lower(module, chosen, weights, rows) for rows in gated.BUCKETS]

    def add(data: bytes) -> str:
        cubins[sha256(data).hexdigest()] = data
        return sha256(data).hexdigest()

    programs = []
    for low in lowered:
        made = {variant: fake(variant) for variant in low.variants()}
        made = {v: replace(cubin, data=make_cubin({cubin.symbol: cubin.param_sizes})) for v, cubin in made.items()}
        glue = {kernel: [glue_launch(f"{low.shape.name}/{i}", kernel)] for i, kernel in enumerate(low.glue.values())}
        programs.append(decode(encode(encode_program(low, made, add, glue)), "x"))
    gpu = Computing(lowered)
    executor = CudaExecutor(executed.image(programs, path, cubins), num_pages=1, poison=True, driver=Driver(gpu))
    executor.finish()
    found = executed.logits(executor, executed.TOKENS)
    exact = executed.eager(chosen)
    assert np.linalg.norm(found - exact) < executed.ERRORS[profile] * np.linalg.norm(exact)
    for count in executed.FEWER:
        again = executed.logits(executor, executed.TOKENS[-count:])
        np.testing.assert_allclose(again, found[-len(again) :], rtol=1e-4, atol=1e-4)  # torch's products vary by shape
    assert gpu.passes == [lowered[i].shape.name for i in (3, 0, 1, 1, 1, 2, 2, 2, 3, 3, 0)]
    executor.close()
    assert gpu.faults == []


def glue_launch(symbol: str, kernel: GlueKernel) -> GlueLaunch:
    sizes = (*(8 for _ in kernel.parameters), 4, 8, 8)
    arguments = (*kernel.parameters.values(), bytes(4), HIDDEN, HIDDEN)
    return GlueLaunch(symbol, make_cubin({symbol: sizes}), (1, 1, 1), (64, 1, 1), 0, arguments)
