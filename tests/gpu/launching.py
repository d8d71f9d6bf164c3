"""Triton kernels launched on the GPU with tensors that lie on the host: what the interpreter does, on the real thing.

Whole storages travel, so that views keep their strides and share what they share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tandem.kernels.cuda.launch import Work


def launch(kernel: Any, work: Work, **pointers: Tensor | None) -> None:
    """Runs `kernel` over `work.grid` as the compiler builds it; tensors by the signature's names, results in place."""
    storages: dict[int, Tensor] = {}
    ordered = [_on_device(pointers.pop(param.name), storages) for param in kernel.signature]
    assert not pointers, f"{kernel.name} takes no {sorted(pointers)}"
    kernel.function[work.grid](
        *(held[0] if held else None for held in ordered),
        **dict(work.constants),
        PDL=True,
        num_warps=work.num_warps,
        num_stages=work.num_stages,
        enable_fp_fusion=False,
        launch_pdl=True,
    )
    torch.cuda.synchronize()
    for held in ordered:
        if held:
            host, there = held[1], held[2]
            host.copy_(there)


def _on_device(tensor: Tensor | None, storages: dict[int, Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
    """The tensor on the device, and the bytes of its storage here and there; None for a pointer that is left out."""
    if tensor is None:
        return None
    host = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    if host.data_ptr() not in storages:
        storages[host.data_ptr()] = host.cuda()
    there = storages[host.data_ptr()]
    typed = torch.empty(0, dtype=tensor.dtype, device="cuda").set_(
        there.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    return typed, host, there
