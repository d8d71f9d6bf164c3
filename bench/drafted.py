"""Tokens a round of a DFlash2 drafter on held-out texts: its greedy chain beside trees of its lattice.

    python bench/drafted.py TARGET DRAFTER [--nodes 15,31] [--texts 32] [--tokens 256]

The target writes greedily behind prompts from files of the standard library that no training sees (chat, where it has a
template); serving's loop is then replayed over these texts, exactly, for every way of drafting. No bundle is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.dflash2_config import require_target, resolve_drafter
from tandem.compile.models.dflash2_weights import require_drafter_tensors
from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.replay import Lattices, lattices, text_end
from tandem.compile.train.drafter.run import load_target
from tandem.compile.train.drafter.target import Target
from tandem.compile.train.drafter.texts import read_texts
from tandem.compile.train.drafter.writing import write
from tandem.compile.train.packages import standard_library
from tandem.errors import TandemError
from tandem.runtime.drafters.lattice import Lattice
from tandem.tree import DraftTree


def load_drafter(folder: Path, target: Target) -> Drafter:
    """The published layout is the state dict of the drafter that is trained."""
    checkpoint = DrafterCheckpoint(folder)
    spec = resolve_drafter(checkpoint.config)
    require_target(spec, target.spec, checkpoint.origin)
    require_drafter_tensors(spec, checkpoint)
    drafter = Drafter(spec)
    drafter.load_state_dict({name: checkpoint.read(name) for name in checkpoint.names()})
    return drafter.to(target.device)


def ways(nodes: list[int]) -> dict[str, tuple[str, int]]:
    """By name: how a lattice becomes a tree, and of how many nodes."""
    return {"chain": ("chain", 99)} | {f"{mode} {n}": (mode, n) for n in nodes for mode in ("paths", "nodes")}


def tree(found: Lattices, block: int, anchor: int, mode: str, nodes: int) -> DraftTree:
    parts = found.candidates[block].numpy(), found.scores[block].numpy(), found.greedy[block].tolist()
    lattice = Lattice(anchor, *parts)
    return lattice.chain(nodes) if mode == "chain" else lattice.tree(nodes, mode)  # type: ignore[arg-type]


def accepted(drafted: DraftTree, text: list[int]) -> int:
    """How many tokens of `text`, which follows the anchor, the tree holds."""
    node, depth = 0, 0
    children = {
        (parent, token): i for i, (parent, token) in enumerate(zip(drafted.parents, drafted.tokens, strict=True))
    }
    while depth < len(text) and (below := children.get((node, text[depth]))) is not None:
        node, depth = below, depth + 1
    return depth


def rounds(found: Lattices, text: list[int], start: int, mode: str, nodes: int) -> Iterator[int]:
    """Tokens that each round commits, from the first token that the target wrote to the last."""
    at = start
    while at < len(text) - 1:
        right = accepted(tree(found, at - start, text[at], mode, nodes), text[at + 1 :])
        committed = min(right + 1, len(text) - 1 - at)
        yield committed
        at += committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("drafter", type=Path)
    parser.add_argument("--nodes", default="15,31", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--texts", default=32, type=int, help="a domain")
    parser.add_argument("--tokens", default=256, type=int, help="behind a prompt")
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.target)
    target = load_target(checkpoint)
    drafter = load_drafter(options.drafter, target)
    texts = read_texts(checkpoint, [standard_library()], package_bytes=2_000_000, longest=256)
    names = ways(options.nodes)
    print(f"| domain | tokens | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for domain, prompts in texts.held_out.items():
        chosen = [prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[: options.texts]]
        if not chosen:
            continue
        written = write(target, chosen, max(map(len, chosen)) + options.tokens)
        committed: dict[str, list[int]] = {name: [] for name in names}
        for ids, start in zip(written.ids.tolist(), written.start.tolist(), strict=True):
            text = ids[: text_end(ids, start, checkpoint.stop_ids)]
            if len(text) - 1 > start:
                found = lattices(drafter, target, torch.tensor(text), range(start, len(text) - 1))
                for name, how in names.items():
                    committed[name] += rounds(found, text, start, *how)
        cells = [f"{np.mean(counts):.2f}" for counts in committed.values()]
        print(f"| {domain} | {sum(committed['chain']):,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except TandemError as error:
        sys.exit(f"error: {error}")
