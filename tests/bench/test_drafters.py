"""The block drafters as they are shipped: made for the models beside them, and good at guessing what those write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bundles
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.drafters import Dflash2
from tandem.compile.models.families import resolve
from tests.commands import Commands

DRAFTERS = bundles.ROOT / "bench" / "drafters"
MAX_WEIGHT_BYTES = 25_000_000
PROMPT = '''def fibonacci(n):
    """Return the first n Fibonacci numbers."""
    numbers = [0, 1]
'''


def opened(name: str, model: str) -> Dflash2:
    checkpoint = open_checkpoint(model)
    return Dflash2.open(DrafterCheckpoint(DRAFTERS / name), resolve(checkpoint.config), checkpoint.digest())


def test_the_demo_hybrids_is_its_own() -> None:
    assert opened("demo-hybrid-b16", str(bundles.HYBRID)).block.block_size == 16


@pytest.mark.smollm2
def test_smollm2s_is_its_own(smollm2_gguf: Path) -> None:
    assert opened("smollm2-b16", str(smollm2_gguf)).block.block_size == 16


def test_all_are_small_and_their_cards_say_what_they_are_worth() -> None:
    assert sum(file.stat().st_size for file in DRAFTERS.glob("*/*.safetensors")) <= MAX_WEIGHT_BYTES
    for card in sorted(DRAFTERS.glob("*/README.md")):
        text = card.read_text()
        assert text.startswith("---\nlicense: apache-2.0\n")
        for title in ("Model", "Training", "Tokens a round", "Command"):
            assert f"\n## {title}\n" in text
        assert "/dev/" not in text and "/tmp" not in text


def test_what_it_guesses_comes_true_and_moves_no_id(tmp_path: Path) -> None:
    commands, bundle = Commands(tmp_path / "state"), tmp_path / "bundle"
    drafter = ("--drafter", str(DRAFTERS / "demo-hybrid-b16"))
    commands.output("compile.cli", str(bundles.HYBRID), "--profile", "bf16", *drafter, "-o", str(bundle), "-q")
    found = {}
    for way in ("none", "block"):
        words = [str(bundle), "--prompt", PROMPT, "--raw", "--max-tokens", "128", "--json", "--drafter", way]
        found[way] = json.loads(commands.output("runtime.cli", *words, "--router", "fixed:16", "--no-learn-cost"))
    assert found["block"]["ids"] == found["none"]["ids"]
    assert (len(found["block"]["ids"]) - 1) / found["block"]["stats"]["rounds"] > 2.0
