"""Tiny random block drafters for tiny targets, in the published layout. Shapes are awkward on purpose.

Its heads are its own, the last stream that it reads leaves the last layer, and its window begins inside a page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.drafters import Dflash2
from tandem.compile.models.dflash2_config import resolve_drafter
from tests.compile.models.dflash2_oracle import TINY
from tests.compile.models.dflash2_oracle import make_drafter as write_drafter

WINDOW, BLOCK, TOP = 75, 5, 4


def drafter_config(target: Path, **own: Any) -> dict[str, Any]:
    """The config of a drafter for the checkpoint in `target`; `own` are fields of its section."""
    told = json.loads((target / "config.json").read_text())
    layers = told["num_hidden_layers"]
    section = TINY["dflash_config"] | {"mask_token_id": 331, "target_layer_ids": sorted({0, layers - 1})} | own
    return TINY | {
        "hidden_size": told["hidden_size"],
        "vocab_size": told["vocab_size"],
        "num_target_layers": layers,
        "max_position_embeddings": 1024,
        "sliding_window": WINDOW,
        "dflash_config": section,
    }


def make_drafter(folder: Path, target: Path, **own: Any) -> Path:
    """Writes a checkpoint of `drafter_config`; returns its folder."""
    write_drafter(folder, drafter_config(target, **own))
    return folder


def drafter_of(folder: Path) -> Dflash2:
    """What is read from such a checkpoint."""
    checkpoint = DrafterCheckpoint(folder)
    return Dflash2(resolve_drafter(checkpoint.config), checkpoint)
