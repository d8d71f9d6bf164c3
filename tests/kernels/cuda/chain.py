"""tl.dot under the interpreter as tensor cores do it in kind: every element one chain over k, in fp32.

Triton's own stand-in multiplies in whatever order numpy likes, and takes the bits of bf16 for whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import triton.language as tl
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
