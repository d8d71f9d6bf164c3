"""Holds an exported model against the operators' own definitions: ONNX's rules, then logits of a text by ONNX Runtime.

Knows nothing of how the model was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from tandem.compile.models.llama import Block, Embed, Head, Pass
from tandem.compile.models.weights import weight_name
from tandem.compile.onnx.parameters import Parameters
from tandem.errors import CompileError
from tandem.keys import MAX_TREE_ROWS

ROWS = 12
"""Tokens of the text that is compared: a prefill, then STEPS passes of one."""
STEPS = 3
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference over largest logit, by the cache's type. Where values are rounded to bf16, a last bit sends some
of them the other way, and from layer to layer more."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` is the largest between two logits, `largest` the largest of ours, over `rows` tokens."""

    rows: int
    difference: float
    largest: float


def check_rules(path: Path) -> None:
    """The model at `path` by ONNX's own checker, shapes and types among it. CompileError with its words."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CompileError(f"{path.name}: no valid ONNX: {str(error).splitlines()[0]}") from None


def compare(path: Path, parameters: Parameters) -> Comparison:
    """Runs the model at `path` beside the definitions. CompileError if their logits are further apart than rounding."""
    ids = [7919 * (i + 1) % parameters.spec.vocab_size for i in range(min(ROWS, parameters.context_length))]
    ours = reference_logits(parameters, ids).numpy()
    theirs = runtime_logits(path, ids)
    found = Comparison(len(ids), float(np.abs(ours - theirs).max()), float(np.abs(ours).max()))
    # Also for NaN.
    if not found.difference <= TOLERANCE[parameters.profile.cache] * found.largest:
        raise CompileError(
            f"{path.name}: logits by ONNX Runtime are up to {found.difference:.3g} off the operators' definitions, "
            f"whose largest is {found.largest:.3g}; please report it, or export with --no-check to look at the model"
        )
    return found


def runtime_logits(path: Path, ids: Sequence[int]) -> np.ndarray:
    """Logits [len(ids), V] by ONNX Runtime: all but the last STEPS ids in one pass, those one by one."""
    session = Session(path)
    first = max(1, len(ids) - STEPS)
    passes = [ids[:first], *([token] for token in ids[first:])]
    return np.concatenate([session.extend(tokens) for tokens in passes])


class Session:
    """ONNX Runtime over one growing text."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._cache: dict[str, Any] = {
            value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
            for value in self._session.get_inputs()
            if value.name.startswith("past_key_values.")
        }

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        """Appends the tokens to the text; their logits [len(tokens), V]."""
        inputs = {"input_ids": np.array([tokens], np.int64), **self._cache}
        logits, *present = self._session.run(None, inputs)
        self._cache = dict(zip(self._cache, present, strict=True))
        return logits[0]


@torch.no_grad()
def reference_logits(parameters: Parameters, ids: Sequence[int]) -> Tensor:
    """Logits [len(ids), V] by the definitions in PyTorch, one layer in memory at a time."""
    spec, count = parameters.spec, len(ids)
    row = torch.arange(count, dtype=torch.int32)
    zero, block_table = torch.zeros_like(row), torch.zeros(1, 1, dtype=torch.int32)
    ancestor = torch.zeros(count, MAX_TREE_ROWS, dtype=torch.int32)
    inputs = Pass(row, zero, row, row + 1, ancestor, block_table, parameters.table("cos"), parameters.table("sin"))
    with torch.device("meta"):
        embed, block, head = Embed(spec), Block(spec), Head(spec)

    h, delta = _loaded(embed, parameters)(torch.tensor(ids, dtype=torch.int32)), None
    for layer in range(spec.num_hidden_layers):
        shape, dtype = (1, spec.num_key_value_heads), parameters.profile.cache
        k_cache = torch.zeros(*shape, spec.head_dim, count, dtype=dtype)
        v_cache = torch.zeros(*shape, count, spec.head_dim, dtype=dtype)
        h, delta = _loaded(block, parameters, layer)(h, delta, inputs, k_cache, v_cache)
    logits: Tensor = _loaded(head, parameters)(h, delta, row)[0]
    return logits


def _loaded(module: nn.Module, parameters: Parameters, layer: int | None = None) -> nn.Module:
    names = [name for name, _ in module.named_parameters()]
    state = {name: parameters.read(weight_name(parameters.spec, name, layer)) for name in names}
    module.load_state_dict(state, assign=True)
    return module
