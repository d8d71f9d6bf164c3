"""The delta rule in closed form, by the chunked kernels of flash-linear-attention: what an exact recurrence is beside.

`pip install flash-linear-attention` brings them; nothing of Tandem uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.gpu.timing import graph_us

ROWS = (32, 2048, 4096)


def chunked_us(layers: int, key_heads: int, heads: int, dk: int, dv: int) -> Iterator[tuple[int, float]]:
    """Rows, and microseconds a layer over as many of one sequence, behind a state in fp32; all else is bf16.

    32 rows, a verify's, leave the state as it is. Inputs are ready: keys of length one, gates computed.
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    torch.manual_seed(0)
    states = torch.randn(layers, 1, heads, dk, dv, device="cuda") / dk**0.5
    for rows in ROWS:
        q, k = (unit(rows, key_heads, dk) for _ in range(2))
        v = torch.randn(1, rows, heads, dv, device="cuda").bfloat16()
        g = -torch.rand(1, rows, heads, device="cuda")
        beta = torch.rand(1, rows, heads, device="cuda").bfloat16()

        def over(state: Tensor, rows: int = rows, *given: Tensor) -> Callable[[], object]:
            return lambda: chunk_gated_delta_rule(*given, initial_state=state, output_final_state=rows > 32)

        with torch.no_grad():
            yield rows, graph_us([over(state, rows, q, k, v, g, beta) for state in states], repeats=5).median


def unit(rows: int, heads: int, width: int) -> Tensor:
    """bf16 [1, rows, heads, width] of length one."""
    return torch.nn.functional.normalize(torch.randn(1, rows, heads, width, device="cuda"), dim=-1).bfloat16()
