"""Checkpoints that are GGUF files of architecture `llama`, given back as Hugging Face would store them.

Matrices come dequantised to fp32, q and k heads in Hugging Face's order. `gguf_file` knows
the layout, `gguf_config` the header's facts, `gguf_tokenizer` its tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from tandem.compile.checkpoints.base import Checkpoint, Stored, check_head, missing_tensor
from tandem.compile.checkpoints.gguf_config import GgufHeader, read_config
from tandem.compile.checkpoints.gguf_file import GgufTensor, read_file
from tandem.compile.checkpoints.gguf_tokenizer import read_facts
from tandem.errors import CheckpointError

_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # how the format stores llama3 rope: not a weight


class GgufCheckpoint(Checkpoint):
    """A .gguf file. CheckpointError if it is truncated, or holds an architecture, tensor or type not known here."""

    def __init__(self, path: Path) -> None:
        origin = str(path)
        file = read_file(path)
        header = GgufHeader(file.fields, origin)
        header.check_architecture()
        for tensor in file.tensors:
            _check_type(tensor, origin)
        tensors = {tensor.name: tensor for tensor in file.tensors}
        factors = tensors.pop(_ROPE_FACTORS, None)
        self._tensors = {hf_name(name, origin): tensor for name, tensor in tensors.items()}
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        config = read_config(header, shapes, None if factors is None else _values(factors))
        check_head(self.names(), config, origin)
        super().__init__(origin, config, read_facts(header))

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def stored(self, name: str) -> Stored:
        tensor = self._tensor(name)
        return Stored(tensor.kind, tensor.shape, tensor.data.nbytes)

    def read(self, name: str) -> torch.Tensor:
        values = _values(self._tensor(name))
        if ".q_proj." in name:
            values = unpermuted(values, self.config["num_attention_heads"])
        elif ".k_proj." in name:
            values = unpermuted(values, self.config["num_key_value_heads"])
        # A copy where it is still a read-only view of the map, which torch would warn about.
        return torch.from_numpy(np.require(values, dtype=np.float32, requirements=["C", "W", "O"]))

    def content(self, name: str) -> memoryview:
        return self._tensor(name).data.data

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise missing_tensor(self.origin, name)
        return self._tensors[name]


def hf_name(name: str, origin: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; CheckpointError for a name not of a llama."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        if part in _BLOCK:
            return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"
    elif (match := re.fullmatch(r"(\w+)\.weight", name)) and match[1] in _WHOLE:
        return f"{_WHOLE[match[1]]}.weight"
    raise CheckpointError(f"{origin}: tensor {name} is not part of a dense llama: use the original safetensors instead")


def unpermuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k projection (or its bias) from GGUF's order, rotated pairs side by side, to halves of a head."""
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _check_type(tensor: GgufTensor, origin: str) -> None:
    if tensor.kind not in _TYPES:
        raise CheckpointError(
            f"{origin}: tensor {tensor.name} has type {tensor.kind}, wanted one of {', '.join(_TYPES)}: "
            "use a file of such a type, or the original safetensors"
        )


def _values(tensor: GgufTensor) -> np.ndarray:
    """The tensor dequantised, fp32 in its own shape; a view of the map where it is stored as F32."""
    from gguf import GGMLQuantizationType, dequantize

    layout = {"F32": "<f4", "F16": "<f2"}.get(tensor.kind, "u1")  # as dequantize wants them: all others as bytes
    rows = tensor.data.view(layout).reshape(*tensor.shape[:-1], -1)
    return dequantize(rows, GGMLQuantizationType[tensor.kind])
