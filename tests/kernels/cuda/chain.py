"""tl.dot under the interpreter as tensor cores do it in kind: every element one chain over k, in fp32.

Triton's own stand-in multiplies in whatever order numpy likes, and takes the bits of bf16 for whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _float32(operand: TensorHandle) -> np.ndarray:
    if operand.dtype.scalar == tl.bfloat16:
        return (operand.data.astype(np.uint32) << 16).view(np.float32)
    assert operand.dtype.scalar == tl.float32
    return operand.data


def _dot(builder: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_: Any) -> TensorHandle:
    left, right, total = _float32(a), _float32(b), d.data.astype(np.float32)
    for k in range(left.shape[1]):
        total += left[:, k, None] * right[None, k]
    return TensorHandle(total, d.dtype.scalar)


@contextmanager
def chained_dots() -> Iterator[None]:
    """While it is open, acc of tl.dot(a, b, acc) grows by one product at a time, k ascending; bf16 or fp32 inputs."""
    with patch.object(InterpreterBuilder, "create_dot", _dot):
        yield


def chain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, K], weight [N, K] -> [R, N] fp32, products added one by one, to the bias where there is one."""
    total = torch.zeros(x.shape[0], weight.shape[0])
    total += 0.0 if bias is None else bias
    for k in range(x.shape[1]):
        total += x[:, k, None].float() * weight[None, :, k].float()
    return total


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values that the shape decides."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
