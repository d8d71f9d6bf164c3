"""A trained drafter as a folder in the published layout: weights, config, and a card that says what it is worth."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tandem.compile.models.dflash2_config import SECTION
from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.replay import Replay
from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.export import write_json
from tandem.compile.train.state import Progress


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card tells besides config, settings and scores."""

    target: str
    target_digest: str
    texts: int  # that the target wrote
    packages: Sequence[str]
    machine: str
    command: str


def export(folder: Path, drafter: Drafter, config: dict[str, Any], card: str) -> int:
    """Writes the folder, weights in bfloat16; returns the bytes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()}
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return weights.stat().st_size


def card(
    config: Mapping[str, Any],
    facts: Facts,
    settings: Settings,
    progress: Progress,
    scores: Mapping[str, Replay],
    *,
    parameters: int,
) -> str:
    """The text of README.md."""
    sections = [_title(config, facts), _model(config, facts, parameters), _training(facts, settings, progress)]
    return "\n".join([*sections, _scores(scores), _command(facts)])


def _title(config: Mapping[str, Any], facts: Facts) -> str:
    text = (
        f"A DFlash2 block drafter for `{facts.target}`: it guesses {config[SECTION]['block_size'] - 1} tokens at once, "
        "which the target then checks in one pass. It has no embedding and no head, and is of no use without that "
        "target. Trained with `tandem.compile.train drafter`, by the command at the end."
    )
    head = f"---\nlicense: apache-2.0\nbase_model: {facts.target}\n---\n\n# A drafter for {facts.target}\n\n"
    return head + textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def _model(config: Mapping[str, Any], facts: Facts, parameters: int) -> str:
    own = config[SECTION]
    return f"""## Model

| | |
|---|---|
| parameters | {parameters:,}, stored as bfloat16 |
| block | {own["block_size"]} rows: the last token and {own["block_size"] - 1} masks (token {own["mask_token_id"]}) |
| layers, MLP | {config["num_hidden_layers"]}, {config["intermediate_size"]} wide |
| heads | {config["num_attention_heads"]} over {config["num_key_value_heads"]}, of {config["head_dim"]} |
| reads of the target | outputs of layers {", ".join(map(str, own["target_layer_ids"]))} (from 0) |
| window | {config["sliding_window"]} tokens |
| selector | rank {own["selector_rank"]}, {own["selector_top_k"]} candidates a slot |
| target's digest | `{facts.target_digest}` |
"""


def _training(facts: Facts, settings: Settings, progress: Progress) -> str:
    state = "" if progress.done else f" (stopped early, of {progress.total or 'not yet planned'})"
    step = max(1, len(progress.history) // 12)
    points = progress.history[::-1][::step][::-1]
    names = [name for name in points[0] if name != "step"] if points else []
    curve = f"| step | {' | '.join(names)} |\n|{'---|' * (1 + len(names))}\n" if points else ""
    curve += "\n".join(f"| {int(p['step'])} | " + " | ".join(f"{p[n]:.3f}" for n in names) + " |" for p in points)
    sources = textwrap.fill(f"Given text and prompts: {', '.join(facts.packages)}.", 120, break_on_hyphens=False)
    return f"""## Training

| | |
|---|---|
| steps | {progress.step}{state}, of {settings.batch} texts of {settings.length} tokens, {settings.blocks} blocks each |
| texts | {facts.texts:,} that the target wrote; {settings.given:.0%} of what a step sees is given text |
| time | {progress.seconds / 60:.1f} minutes on {facts.machine}, without the writing |
| optimiser, rate | {settings.optimiser}, {settings.lr:g}; gradients clipped at {settings.clip:g} |
| loss | cross-entropy to the target's likeliest token + {settings.divergence:g} x divergence from its {settings.top} \
likeliest + {settings.selector:g} x the selector's; a slot counts exp(-slot / {settings.fade:g}) |

{sources}

{curve}
"""


def _scores(scores: Mapping[str, Replay]) -> str:
    rows = [
        f"| {domain} | {s.rounds:,} | {s.tokens:,} | {s.tokens_a_round:.2f} | {s.listed:.2f} | "
        + " ".join(f"{share:.2f}" for share in s.slots)
        + " |"
        for domain, s in scores.items()
    ]
    text = (
        "Serving's loop replayed over what the target writes greedily behind prompts from files that training never "
        "saw: the greedy chain of every block, checked token by token; the stored weights. The target's own token "
        "counts, so 1 is plain decoding. Listed: how many slots in a row held the right token among their candidates, "
        "which is the most that any tree could accept."
    )
    return (
        f"## Tokens a round\n\n{textwrap.fill(text, 120, break_on_hyphens=False)}\n\n"
        "| domain | rounds | tokens | tokens a round | listed | share of rounds in which each slot was accepted |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _command(facts: Facts) -> str:
    return f"## Command\n\n```\n{facts.command}\n```\n"
