"""One command of a drafter's run: let the target write, train, replay, write the folder. The next command goes on."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.progress import Progress as Bar
from tandem.compile.train.drafter.card import Facts, card, export
from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.replay import Replay, replay
from tandem.compile.train.drafter.samples import Samples
from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.drafter.shape import Shape, drafter_config
from tandem.compile.train.drafter.target import Target
from tandem.compile.train.drafter.texts import Texts, read_texts, unseen_id
from tandem.compile.train.drafter.trainer import Trainer
from tandem.compile.train.drafter.writing import Pool, Written, write
from tandem.compile.train.export import round_weights
from tandem.compile.train.packages import Package
from tandem.compile.train.state import Progress
from tandem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is given.

    The target writes `write_texts` texts in batches of `write_batch` into `written`; `held_out` texts a domain are
    replayed, `held_out_tokens` of what it writes behind each prompt.
    """

    target: str
    state: Path
    written: Path
    output: Path
    packages: Sequence[Package]
    package_bytes: int
    write_texts: int
    write_batch: int
    held_out: int
    held_out_tokens: int
    command: str = ""


def run(plan: Plan, shape: Shape, settings: Settings, bar: Bar, *, stop_after: float = math.inf) -> Progress:
    """Trains until the run is done or `stop_after` minutes have passed, then writes the drafter as it is."""
    deadline = time.monotonic() + 60 * stop_after
    bar.stage("reading", 3)
    checkpoint = open_checkpoint(plan.target)
    spec, digest = resolve(checkpoint.config), checkpoint.digest()
    texts = read_texts(checkpoint, plan.packages, package_bytes=plan.package_bytes, longest=settings.length // 2)
    config = drafter_config(spec, shape, unseen_id(texts, spec.vocab_size))
    drafter = Drafter(resolve_drafter(config), seed=settings.seed)
    _require_room(drafter, settings, plan)
    count = sum(parameter.numel() for parameter in drafter.parameters())
    bar.say(f"{count:,} parameters, {2 * count / 1e6:.1f} MB; {len(texts.given):,} given tokens")
    target = load_target(checkpoint)

    bar.stage("the target writes", 22)
    pool, prompts = Pool(plan.written), [ids for domain in texts.prompts.values() for ids in domain]
    writing = {"texts": plan.write_texts, "batch": plan.write_batch, "length": settings.length, "seed": settings.seed}
    pool.fill(target, prompts, **writing, say=bar.say, advance=lambda share: bar.advance(22 * share))
    written = pool.read(settings.length)

    bar.stage("training", 70)
    this = {"settings": asdict(settings), "config": config, "target": digest, "writing": writing}
    samples = Samples(written, texts.given, settings, shape.block)
    with torch.no_grad():
        drafter.norm.weight.copy_(target.final_norm)  # logits begin at the target's size
    trainer = Trainer(drafter.to(target.device), target, samples, settings, this, plan.state / "run.pt")
    progress = trainer.train(bar.say, deadline=deadline, advance=lambda share: bar.advance(70 * share))

    bar.stage("replaying", 5)
    round_weights(drafter)
    scores = measure(drafter, target, texts, plan, checkpoint.stop_ids, settings.seed)
    for domain, score in scores.items():
        bar.say(f"held out {domain}: {score.tokens_a_round:.3f} tokens a round, {score.listed:.2f} slots listed")
    facts = Facts(
        target=Path(plan.target).name,
        target_digest=digest,
        texts=len(written.ids),
        packages=[f"{package.name} {package.version} ({package.licence})" for package in plan.packages],
        machine=_machine(target.device),
        command=plan.command,
    )
    text = card(config, facts, settings, progress, scores, parameters=count)
    size = export(plan.output, drafter, config | {"target_digest": digest}, text)
    bar.say(f"{plan.output}: {size / 1e6:.1f} MB of weights")
    if not progress.done:
        bar.say(f"stopped at step {progress.step} of {progress.total or '?'}: the same command goes on")
    return progress


def load_target(checkpoint: Checkpoint) -> Target:
    """On the GPU in bfloat16 if there is one, else on the CPU in float32."""
    gpu = torch.cuda.is_available()
    spec = resolve(checkpoint.config)
    dtype, device = (torch.bfloat16, "cuda") if gpu else (torch.float32, "cpu")
    return Target(spec, dict(load(spec, checkpoint)), dtype, torch.device(device))


def measure(
    drafter: Drafter, target: Target, texts: Texts, plan: Plan, stop_ids: Sequence[int], seed: int
) -> dict[str, Replay]:
    """By domain, over what the target writes greedily behind held-out prompts."""
    domains: dict[str, Written] = {}
    for domain, prompts in texts.held_out.items():
        if prompts:
            chosen = np.random.default_rng(seed).permutation(len(prompts))[: plan.held_out]
            longest = max(len(prompts[i]) for i in chosen)
            length = min(longest + plan.held_out_tokens, target.spec.max_position_embeddings)
            domains[domain] = write(target, [prompts[i] for i in chosen], length)
    return replay(drafter, target, domains, stop_ids)


def _require_room(drafter: Drafter, settings: Settings, plan: Plan) -> None:
    limit = drafter.spec.max_position_embeddings
    if max(settings.length, plan.held_out_tokens) + drafter.spec.block_size > limit:
        raise UsageError(
            f"texts of {settings.length} tokens and a block are longer than the target's max_position_embeddings = "
            f"{limit}; lower --context"
        )


def _machine(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "a CPU"
