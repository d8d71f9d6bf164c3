"""Profiles: named choices of number formats. A profile changes the weights, never the rules of the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from tandem.errors import UsageError

Format = Literal["fp32", "bf16", "int8", "int4"]
"""How a weight is stored; `tandem.compile.cpu.panels` has the layouts."""
TABLES = ("embedding", "head")
GATES = ("ba", "attention_delta", "mlp_delta", "gate")
"""Few outputs that decide how much others count, as what a recurrent state keeps of all that was: never of few bits."""
BOOKS = ("predecessor", "successor")
"""Tables of a drafter whose rows are looked up by id: no products are made of them, so they are laid out row by row."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`matrix` is the format of the layers' matrices, `table` that of embedding and head, `cache` that of K and V;
    norms, biases and everything that is computed are fp32. Low-bit matrices meet activations in int8."""

    name: str
    matrix: Format
    table: Format
    cache: torch.dtype
    low_bit: bool = False

    def format(self, name: str, shape: tuple[int, ...]) -> Format:
        """How the parameter `name`, with or without its layer, of this shape is stored."""
        if len(shape) == 1:
            return "fp32"
        name = name.rpartition(".")[2]
        return self.table if name in TABLES else "bf16" if self.low_bit and name in (*GATES, *BOOKS) else self.matrix


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("fp32", "fp32", "fp32", torch.float32),
        Profile("bf16", "bf16", "bf16", torch.bfloat16),
        Profile("int8", "int8", "int8", torch.bfloat16, low_bit=True),
        # A head in four bits costs more than it saves: its rows are what every token is chosen by.
        Profile("int4", "int4", "int8", torch.bfloat16, low_bit=True),
    )
}


def find_profile(name: str) -> Profile:
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name}: this build knows {', '.join(PROFILES)}")
    return PROFILES[name]
