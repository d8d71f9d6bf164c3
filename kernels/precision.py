"""The one rule of precision of the references: float64 stays float64, everything else is computed in float32.

So the same model run in float64 is the oracle for itself. Knows nothing of operators.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """float64 where `x` is float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
