"""Profiles: named choices of number formats. A profile changes the weights, never the rules of the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Profile:
    """`matrix` is the format of linear and embedding weights, `cache` that of K and V; all else is fp32."""

    name: str
    matrix: torch.dtype
    cache: torch.dtype


PROFILES = {
    "fp32": Profile("fp32", torch.float32, torch.float32),
    "bf16": Profile("bf16", torch.bfloat16, torch.bfloat16),
}


def find_profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name}: this build knows {', '.join(PROFILES)}")
    return PROFILES[name]
