"""`python3 -m bench.gpu.dense27b -o BUNDLE`: compiles random weights of a 27B-class shape, dense or hybrid, or of
SmolLM2's.

The bundle takes 49 GB, the hybrid's 54, a drafter 1 to 4 more: give it a folder in memory (`/dev/shm`, which grows with
`mount -o remount,size=110g`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu.shapes import SHAPES
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.progress import Progress

ROOM = 2 << 30
"""Bytes that a bundle takes beside its weights: programs, cubins, tokenizer, rope tables."""
OFTEN_S = 10.0


def main() -> int:
    """Returns the exit code."""
    from bench.gpu.random_checkpoint import RandomCheckpoint, RandomDrafter, resized, stored_bytes
    from tandem.errors import TandemError

    options = parse()
    shape = resized(SHAPES[options.shape], options.layers, options.hidden, options.vocab)
    draws: dict[str, Any] = {"seed": options.seed, "device": options.draw_on}
    began = time.perf_counter()
    try:
        checkpoint = RandomCheckpoint(shape, mtp=options.drafter == "mtp", **draws)
        drafter = RandomDrafter(shape, **draws) if options.drafter == "block" else None
        if fault := lack_of_room(options.output, stored_bytes(checkpoint) + (stored_bytes(drafter) if drafter else 0)):
            print(f"error: {fault}", file=sys.stderr)
            return 1
        content_id = build(checkpoint, drafter, shape.name, options)
    except TandemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    facts = {"bundle": str(options.output), "content_id": content_id, "seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(facts))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, help="folder of the bundle")
    add("--shape", choices=list(SHAPES), default="dense27b")
    add("--layers", type=int, help="fewer layers, for a try")
    add("--hidden", type=int, help="another hidden size, for a try")
    add("--vocab", type=int, help="another vocabulary, for a try")
    add("--drafter", choices=("none", "mtp", "block"), default="none", help="random weights that draft along")
    add("--profile", default="bf16")
    add("--device", default="cuda-sm90", help="what to compile for")
    add("--draw-on", default="cuda", help="where weights are drawn: cuda or cpu")
    add("--max-seq-len", type=int, default=32_768)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def lack_of_room(output: Path, weights: int) -> str | None:
    """What is missing where a bundle of so many bytes of weights shall lie, or None."""
    needed = weights + ROOM
    place = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    if (free := shutil.disk_usage(place).free) >= needed:
        return None
    return (
        f"{place} has {free / 1e9:.1f} GB free and the bundle takes {needed / 1e9:.1f}; in /dev/shm, "
        "`mount -o remount,size=110g /dev/shm` makes room"
    )


def build(checkpoint: Checkpoint, drafter: DrafterCheckpoint | None, name: str, options: argparse.Namespace) -> str:
    """Compiles; returns the content_id."""
    from tandem.compile.build import build_bundle
    from tandem.compile.plan import make_plan

    plan = make_plan(
        checkpoint,
        checkpoint.digest(),
        name=name,
        profile=options.profile,
        device=options.device,
        context_length=options.max_seq_len,
        drafter=drafter or "auto",
    )
    with Stages(quiet=True) as progress:
        return build_bundle(plan, checkpoint, options.output, replace=True, progress=progress).content_id


class Stages(Progress):
    """Says on stderr when each stage begins, and every OFTEN_S what it is at: where a long build's time went."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._began = self._said = time.perf_counter()

    def stage(self, name: str, share: float) -> None:
        super().stage(name, share)
        self._say(name)

    def advance(self, percent: float, name: str | None = None) -> None:
        super().advance(percent, name)
        if name is not None and time.perf_counter() - self._said > OFTEN_S:
            self._say(f"  {name}")

    def _say(self, name: str) -> None:
        self._said = time.perf_counter()
        print(f"{self._said - self._began:6.1f} s  {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
