"""The model card: what the model is, what it was trained on and how, what it is worth, what it writes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.compile.train.evaluate import Score
from tandem.compile.train.state import Progress, Settings

_TITLE = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# Tandem's demo hybrid

A small model in the architecture of Qwen3.5 (`qwen3_5`: Gated DeltaNet and gated attention), trained from nothing on
Python so that a hybrid that writes real text can be compiled, run and checked within minutes. It completes Python and
says plausible things about it; it knows nothing, and nobody should rely on what it says. Trained with
`tandem.compile.train`, by the command at the end.
"""


def card(
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    settings: Settings,
    progress: Progress,
    scores: Mapping[str, Score],
    samples: Sequence[tuple[str, str]],
    *,
    parameters: int,
    machine: str,
    command: str,
) -> str:
    """The text of README.md. `samples` are prompts and what the model wrote behind each."""
    sections = [_TITLE, _model(config, settings, parameters), _training(facts, settings, progress, machine)]
    sections += [_scores(scores, settings), _samples(samples), _data(facts), _command(command)]
    return "\n".join(sections)


def _model(config: Mapping[str, Any], settings: Settings, parameters: int) -> str:
    recurrent = config["layer_types"].count("linear_attention")
    return f"""## Model

| | |
|---|---|
| parameters | {parameters:,}, the drafting layer's among them |
| layers | {recurrent} of Gated DeltaNet, {len(config["layer_types"]) - recurrent} of attention |
| hidden size | {config["hidden_size"]} |
| vocabulary | {config["vocab_size"]}, byte-level BPE; head and embedding are shared |
| drafting layer | `mtp.*`, fed with a token's embedding and what the final norm gave for the token before it |
| context | {config["max_position_embeddings"]} tokens, of which training saw {settings.length} at a time |
| stored as | bfloat16 |

Chat: `<|im_start|>user`, a line end, the message, `<|im_end|>`, a line end, and the same for `assistant`. Documents end
with `<|endoftext|>`; a text needs no token before it.
"""


def _training(facts: Mapping[str, Any], settings: Settings, progress: Progress, machine: str) -> str:
    tokens = progress.step * settings.batch * settings.length
    state = "" if progress.done else f" (stopped early, of {progress.total or 'not yet planned'})"
    curve = _thinned(progress.history, 12)
    rows = "\n".join(
        f"| {int(point['step'])} | " + " | ".join(f"{point[n]:.3f}" for n in _names(point)) + " |" for point in curve
    )
    head = f"| step | {' | '.join(_names(curve[0]))} |\n|{'---|' * (1 + len(_names(curve[0])))}\n" if curve else ""
    return f"""## Training

| | |
|---|---|
| steps | {progress.step}{state}, of {settings.batch} sequences of {settings.length} tokens |
| tokens | {tokens:,}, {tokens / facts["train_tokens"]:.1f} times the training text |
| time | {progress.seconds / 60:.1f} minutes on {machine} |
| optimiser | Muon for matrices, AdamW for the rest; gradients clipped at {settings.clip:g} |
| rate, weight decay | {settings.lr:g}, {settings.weight_decay:g} |
| schedule | {settings.warmup} steps up, then level, down to zero over the last {settings.decay_share:.0%} |
| drafts | {settings.draft_depth} deep, each {settings.draft_weight:g} of the loss |

{head}{rows}
"""


def _names(point: Mapping[str, float]) -> list[str]:
    return [name for name in point if name != "step"]


def _thinned(history: Sequence[dict[str, float]], count: int) -> list[dict[str, float]]:
    step = max(1, len(history) // count)
    return [*reversed(history[::-1][::step])]


def _scores(scores: Mapping[str, Score], settings: Settings) -> str:
    drafts = range(1, settings.draft_depth + 1)
    head = "| domain | tokens | loss (nats a token) | bits a byte | next token right | "
    head += " | ".join(f"draft {depth} right" for depth in drafts) + " |"
    rows = [
        f"| {domain} | {s.tokens:,} | {s.loss:.4f} | {s.bits_per_byte:.3f} | {s.accuracy:.1%} | "
        + " | ".join(f"{share:.1%}" for share in s.draft_accuracy)
        + " |"
        for domain, s in scores.items()
    ]
    return f"""## Held-out text

Files that training never saw, in windows of {settings.length} tokens; the stored weights, computed in float32.

{head}
|{"---|" * (5 + settings.draft_depth)}
""" + "\n".join(rows) + "\n"  # fmt: skip


def _samples(samples: Sequence[tuple[str, str]]) -> str:
    shown = [f"````\n{prompt}‖{text}\n````\n" for prompt, text in samples]
    head = "## What it writes\n\nGreedy, behind the mark ‖; long texts are cut off. The last one is a chat.\n\n"
    return head + "\n".join(shown)


def _data(facts: Mapping[str, Any]) -> str:
    domains = ", ".join(f"{name} {count:,}" for name, count in facts["train_tokens_by_domain"].items())
    rows = [
        f"| {s['name']} | {s['version']} | {s['licence']} | {s['files']} | {s['bytes']:,} |" for s in facts["sources"]
    ]
    total = sum(source["bytes"] for source in facts["sources"])
    text = (
        f"{facts['train_tokens']:,} training tokens ({domains}): files of the packages below, under their permissive "
        "licences, without files that mention a GPL, generated files, copies of other packages, and near copies (half "
        "of the text in lines seen before). Chat is made from their documented functions. The table counts what is "
        "held out too."
    )
    return (
        f"## Data\n\n{textwrap.fill(text, 120, break_on_hyphens=False)}\n\n"
        f"| package | version | licence | files | bytes |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n| all | | | {sum(source['files'] for source in facts['sources']):,} | {total:,} |\n"
    )


def _command(command: str) -> str:
    return f"""## Command

```
{command}
```

The last command of the run. Where `--stop-after` ended one before it, this one went on from there.
"""
