"""Weights in the layouts that the kernels read: panels of 32 outputs, in one of four formats.

Knows nothing of files or checkpoints. Letters: N outputs, K inputs, P = ceil(N / 32) panels, G groups of 32 inputs;
low-bit panels are padded to whole groups. `kernels/cpu/panel.h` reads what is written here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tandem.compile.profile import Format
from tandem.compile.rounding import MIDDLE, int4_groups, int8_rows

PANEL = GROUP = 32
PAIR = 2
LEAST_NORMAL = torch.finfo(torch.bfloat16).smallest_normal
STEP = 4
"""Inputs whose bytes lie side by side, as one integer product takes them."""
NIBBLES = PANEL * GROUP // 2
SAFETENSORS: dict[Format, str] = {"fp32": "F32", "bf16": "BF16", "int8": "U8", "int4": "U8"}
ITEM_BYTES = {"F32": 4, "BF16": 2, "U8": 1}


def stored_shape(shape: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """A matrix [N, K] becomes panels, fp32 and bf16 [P, K, 32], bf16 with K made even, low-bit [P, bytes].

    A vector stays as it is.
    """
    if len(shape) == 1:
        return shape
    panels, groups = -(-shape[0] // PANEL), -(-shape[1] // GROUP)
    if form == "int8":
        return panels, groups * GROUP * PANEL + 4 * PANEL
    if form == "int4":
        return panels, groups * (NIBBLES + 4 * PANEL)
    return panels, _whole(shape[1], PAIR) if form == "bf16" else shape[1], PANEL


def stored_bytes(shape: tuple[int, ...], form: Format) -> int:
    """Size of a parameter as stored."""
    return int(np.prod(stored_shape(shape, form))) * ITEM_BYTES[SAFETENSORS[form]]


def pack(weight: Tensor, form: Format) -> np.ndarray:
    """A parameter as stored (`stored_shape`), bf16 as uint16 bits. What fills panels, pairs and groups is zero.

    bf16 inputs stand in pairs per output, [P, K / 2, 32, 2], and are never subnormal: products take them as zero.
    """
    if weight.dim() == 1:
        return weight.float().contiguous().numpy()
    if form in ("int8", "int4"):
        return _pack_int8(weight) if form == "int8" else _pack_int4(weight)
    if form == "fp32":
        return (
            _padded(weight.float(), weight.shape[1])
            .view(-1, PANEL, weight.shape[1])
            .transpose(1, 2)
            .contiguous()
            .numpy()
        )
    rounded = weight.to(torch.bfloat16)
    rounded = _padded(torch.where(rounded.abs() < LEAST_NORMAL, 0.0, rounded), _whole(weight.shape[1], PAIR))
    pairs = rounded.view(-1, PANEL, rounded.shape[1] // PAIR, PAIR).transpose(1, 2)  # [P, K / 2, 32, 2]
    return pairs.contiguous().view(torch.uint16).view(len(pairs), -1, PANEL).numpy()


def unpack(stored: np.ndarray, form: Format, shape: tuple[int, ...]) -> Tensor:
    """The parameter of `shape` that `stored` stands for, in fp32: what the kernels compute with."""
    if len(shape) == 1:
        return torch.from_numpy(stored.view(np.float32).copy()).view(shape)
    data = torch.from_numpy(stored.copy()).view(stored_shape(shape, form))
    if form == "int8":
        values = _unpack_int8(data)
    elif form == "int4":
        values = _unpack_int4(data)
    elif form == "bf16":
        pairs = data.view(torch.bfloat16).float().view(len(data), -1, PANEL, PAIR)
        values = pairs.transpose(1, 2).flatten(2)
    else:
        values = data.transpose(1, 2)
    return values.reshape(-1, values.shape[-1])[: shape[0], : shape[1]].contiguous()


def _whole(k: int, of: int) -> int:
    return -(-k // of) * of


def _padded(weight: Tensor, k: int) -> Tensor:
    """[32 P, k] with zeros behind the weight's own outputs and inputs."""
    padded = weight.new_zeros(-(-weight.shape[0] // PANEL) * PANEL, k)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded


def _whole_groups(weight: Tensor) -> Tensor:
    return _padded(weight.float(), _whole(weight.shape[1], GROUP))


def _bytes(values: Tensor) -> Tensor:
    """The memory of [P, ...] as uint8 [P, bytes]."""
    return values.contiguous().flatten(1).view(torch.uint8)


def _pack_int8(weight: Tensor) -> np.ndarray:
    raised, scale = int8_rows(_whole_groups(weight))
    steps = raised.view(-1, PANEL, raised.shape[1] // STEP, STEP).transpose(1, 2)  # [P, K / 4, 32, 4]
    return torch.cat([_bytes(steps), _bytes(scale.view(-1, PANEL))], 1).numpy()


def _unpack_int8(data: Tensor) -> Tensor:
    raised, scale = data[:, : -4 * PANEL], data[:, -4 * PANEL :].contiguous().view(torch.float32)
    steps = raised.reshape(len(data), -1, PANEL, STEP).transpose(1, 2).flatten(2)  # [P, 32, K]
    return (steps.float() - MIDDLE) * scale[:, :, None]


def _pack_int4(weight: Tensor) -> np.ndarray:
    nibble, scale, minimum = int4_groups(_whole_groups(weight).view(-1, weight.shape[1] + GROUP - 1 >> 5, GROUP))
    groups = nibble.shape[1]
    halves = nibble.view(-1, PANEL, groups, 2, GROUP // 2 // STEP, STEP).permute(
        3, 0, 2, 4, 1, 5
    )  # [2, P, G, 4, 32, 4]
    nibbles = (halves[0] | halves[1] << 4).reshape(-1, groups, NIBBLES)
    reals = torch.stack([scale, minimum]).view(2, -1, PANEL, groups).permute(1, 3, 0, 2)  # [P, G, 2, 32]
    return torch.cat([nibbles, reals.contiguous().flatten(2).view(torch.uint8)], 2).flatten(1).numpy()


def _unpack_int4(data: Tensor) -> Tensor:
    records = data.view(len(data), -1, NIBBLES + 4 * PANEL)
    nibbles = records[..., :NIBBLES].reshape(*records.shape[:2], GROUP // 2 // STEP, PANEL, STEP)
    halves = torch.stack([nibbles & 15, nibbles >> 4]).permute(1, 4, 2, 0, 3, 5)  # [P, 32, G, 2, 4, 4]
    reals = records[..., NIBBLES:].contiguous().view(torch.float16).float().view(*records.shape[:2], 2, PANEL)
    scale, minimum = reals.permute(2, 0, 3, 1)[..., None]  # [P, 32, G, 1] each
    return (halves.flatten(3).float() * scale + minimum).flatten(2)
