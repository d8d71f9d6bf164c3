"""One command of a run: train for as long as it may, measure, write the model folder. The next command goes on."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tandem.compile.models.families import resolve
from tandem.compile.models.spec import HybridSpec
from tandem.compile.train import tokenizer
from tandem.compile.train.batches import Batches
from tandem.compile.train.card import card
from tandem.compile.train.corpus import Corpus, read_corpus
from tandem.compile.train.evaluate import held_out, write
from tandem.compile.train.export import export, round_weights
from tandem.compile.train.model import Model
from tandem.compile.train.shape import complete
from tandem.compile.train.state import Progress, Settings, identity
from tandem.compile.train.trainer import Trainer
from tandem.errors import UsageError

PROMPTS = (
    "def fibonacci(n):\n",
    '"""Read a CSV file and sum a column."""\n\nimport csv\n\n\ndef ',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "The :mod:`json` module ",
)
QUESTION = "Write a Python function `is_prime(n)`. Return True if n is a prime number."
SAMPLE_TOKENS = 120


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run reads its corpus, keeps its state and writes its model."""

    corpus: Path
    state: Path
    output: Path


def run(
    places: Places,
    config: dict[str, Any],
    settings: Settings,
    say: Callable[[str], None],
    *,
    stop_after: float = math.inf,
    compiled: bool = False,
    command: str = "",
) -> Progress:
    """Trains until the run is done or `stop_after` minutes have passed, then writes the model as it is."""
    begun = time.monotonic()
    corpus = read_corpus(places.corpus)
    config = complete(config, corpus.facts["vocab_size"])
    model = make_model(config, settings)
    device = next(model.parameters()).device
    torch.set_float32_matmul_precision("high")
    batches = Batches(
        corpus.train,
        batch=settings.batch,
        length=settings.length,
        ahead=settings.ahead,
        seed=settings.seed,
        device=device,
    )
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "a CPU"
    say(f"{parameters(model):,} parameters, {len(corpus.train):,} training tokens, {name}")
    this = identity(settings, config, corpus.facts["sha256"])
    trainer = Trainer(model, batches, settings, this, places.state, compiled=compiled)
    progress = trainer.train(say, deadline=begun + 60 * stop_after)
    with torch.compiler.set_stance("force_eager"):  # windows of other sizes are not worth compiling for
        finish(places.output, corpus, model, config, settings, progress, say, machine=name, command=command)
    if not progress.done:
        say(f"stopped at step {progress.step} of {progress.total or '?'}: the same command goes on from {places.state}")
    return progress


def make_model(config: dict[str, Any], settings: Settings) -> Model:
    """On the GPU if there is one. UsageError if the config is of another family or too short for the windows."""
    spec = resolve(config)
    if not isinstance(spec, HybridSpec):
        raise UsageError(f"{spec.family} models cannot be trained here; give a qwen3_5 config")
    if settings.length > spec.max_position_embeddings:
        raise UsageError(
            f"windows of {settings.length} tokens are longer than the config's max_position_embeddings = "
            f"{spec.max_position_embeddings}; lower --context"
        )
    return Model(spec, seed=settings.seed).to("cuda" if torch.cuda.is_available() else "cpu")


def parameters(model: Model) -> int:
    """How many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def finish(
    folder: Path,
    corpus: Corpus,
    model: Model,
    config: dict[str, Any],
    settings: Settings,
    progress: Progress,
    say: Callable[[str], None],
    *,
    machine: str,
    command: str,
) -> None:
    """Rounds the weights, measures them in float32, and writes the folder."""
    round_weights(model)
    torch.set_float32_matmul_precision("highest")
    sizes = corpus.facts["held_out_bytes"]
    options = {"length": settings.length, "batch": 8, "draft_depth": settings.draft_depth}
    scores = held_out(model, corpus.held_out, sizes, **options)
    for domain, score in scores.items():
        drafts = " ".join(f"{share:.3f}" for share in score.draft_accuracy)
        say(f"held out {domain}: loss {score.loss:.4f}, {score.bits_per_byte:.3f} bits a byte, drafts right {drafts}")
    text = card(
        config,
        corpus.facts,
        settings,
        progress,
        scores,
        samples(model, Tokenizer.from_str(corpus.tokenizer_json)),
        parameters=parameters(model),
        machine=machine,
        command=command,
    )
    size = export(folder, model, config, corpus.tokenizer_json, text)
    say(f"{folder}: {size / 1e6:.1f} MB of weights")


def samples(model: Model, words: Tokenizer) -> list[tuple[str, str]]:
    """What the model writes behind each prompt, and its answer to a question."""
    stops = frozenset((tokenizer.SEPARATOR_ID, tokenizer.END_OF_TURN_ID))
    prompts = [*zip(PROMPTS, tokenizer.encode(words, PROMPTS), strict=True)]
    opening = [tokenizer.TURN_ID, *tokenizer.encode(words, ["assistant\n"])[0]]
    prompts.append((f"{QUESTION}\n", tokenizer.encode_turns(words, [("user", QUESTION)]) + opening))
    return [
        (shown, words.decode(write(model, ids, max_tokens=SAMPLE_TOKENS, stop_ids=stops))) for shown, ids in prompts
    ]
