"""Functions lowered to ONNX and run by ONNX Runtime; tiny checkpoints as a bundle stores them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import Tensor, nn

from tandem.artifacts.weights import MappedWeights
from tandem.compile.cpu import panels
from tandem.compile.models.families import resolve
from tandem.compile.onnx.graph import Graph
from tandem.compile.onnx.lowering import Lowering
from tandem.compile.onnx.parameters import Parameters
from tandem.compile.onnx.rules import RULES
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.compile.trace import export_part
from tests.compile.models import oracle

ELEMENTS = {torch.float32: TensorProto.FLOAT, torch.int32: TensorProto.INT32}
CONTEXT_LENGTH = 96


class Call(nn.Module):
    """`function` of tensors as a module; its placeholders are `x_0`, `x_1`, ..."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def lower(
    function: Callable[..., Any], example: Sequence[Tensor], *, outputs: int | None = None, bf16: Sequence[str] = ()
) -> Callable[..., Any]:
    """`function`, traced with `example` and lowered, as a function of arrays: results, then placeholders written to.

    `bf16` names placeholders that count as bf16 weights.
    """
    graph = Graph(io.BytesIO(), "nowhere")
    part = export_part(Call(function), *example)
    bound = {}
    for number, tensor in enumerate(example):
        sizes = [f"size_{number}_{dim}" for dim in range(tensor.dim())]
        element = ELEMENTS.get(tensor.dtype, TensorProto.FLOAT)
        bound[f"x_{number}"] = graph.input(f"x_{number}", element, sizes)
    lowering = Lowering(graph, RULES)
    lowering.bf16.update(bf16)
    results = lowering.lower(part, bound, "module", outputs=outputs)
    results += [value for name, value in bound.items() if name != value]
    for number, value in enumerate(results):
        graph.output(f"y_{number}", value, TensorProto.FLOAT, None)
    model = graph.model("test", {}).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[np.ndarray]:
        return session.run(None, {f"x_{number}": tensor.numpy() for number, tensor in enumerate(inputs)})

    return run


def stored(folder: Path, profile: str) -> Parameters:
    """The checkpoint in `folder` as a bundle of `profile` stores it."""
    spec, chosen = resolve(oracle.read_config(folder)), find_profile(profile)
    path = folder / f"{profile}.stored"
    if not path.exists():
        write_weights(spec, chosen, oracle.read_tensors(folder), path, layout=panels, context_length=CONTEXT_LENGTH)
    return Parameters(spec, chosen, CONTEXT_LENGTH, MappedWeights(path))
