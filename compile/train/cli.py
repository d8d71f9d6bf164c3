"""`python -m tandem.compile.train`: `corpus` makes a corpus from packages, `run` trains a model on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tandem.command import examples, run_command

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

EXAMPLES = examples(
    "pip download --no-deps --only-binary=:all: -d packages scipy pandas django sympy",
    "python -m tandem.compile.train corpus --archives packages -o .corpus",
    "python -m tandem.compile.train run --corpus .corpus --state run.pt --stop-after 9 -o model",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, epilog=EXAMPLES)
def group() -> None:
    """Train a small hybrid model from nothing."""


@group.command()
@click.option("--archives", type=FOLDER, multiple=True, help="Folder of wheels and source archives.")
@click.option("--installed", type=FOLDER, multiple=True, help="A site-packages folder.")
@click.option(
    "--folder",
    "folders",
    type=(str, str, str, FOLDER),
    multiple=True,
    metavar="NAME VERSION LICENCE PATH",
    help="A folder of text whose licence you know.",
)
@click.option("--vocab-size", default=8192, help="Tokens of the tokenizer.")
@click.option("--package-bytes", default=4_000_000, help="Most code, and most documentation, of one package.")
@click.option("--tokenizer-bytes", default=60_000_000, help="Text that the tokenizer is made from.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder of the corpus.")
def corpus(
    archives: tuple[Path, ...],
    installed: tuple[Path, ...],
    folders: tuple[tuple[str, str, str, Path], ...],
    vocab_size: int,
    package_bytes: int,
    tokenizer_bytes: int,
    output: Path,
) -> None:
    """Make a corpus of the standard library and of permissively licensed packages."""
    from tandem.compile.train import packages
    from tandem.compile.train.corpus import build_corpus

    found = [packages.standard_library(), *(packages.folder(*given) for given in folders)]
    found += [package for root in installed for package in packages.installed(root)]
    found += [package for root in archives for package in packages.archives(root)]
    build_corpus(
        found,
        output,
        vocab_size=vocab_size,
        package_bytes=package_bytes,
        tokenizer_bytes=tokenizer_bytes,
        say=_say,
    )
    click.echo(output)


@group.command()
@click.option("--corpus", type=FOLDER, required=True, help="Folder that `corpus` made.")
@click.option("--state", type=PATH, required=True, help="File to go on from, and to save to.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder of the model.")
@click.option("--config", type=click.Path(path_type=Path, exists=True), help="A config.json.  [default: the demo's]")
@click.option("--minutes", type=float, help="Length of the whole run, in minutes of training.  [default: 18]")
@click.option("--steps", type=int, help="Length of the whole run, in steps.")
@click.option("--stop-after", type=float, help="Minutes after which this command saves and stops.")
@click.option("--batch", default=48, help="Sequences a step.")
@click.option("--micro-batch", type=int, help="Sequences at a time.  [default: all]")
@click.option("--context", default=2048, help="Tokens of a sequence.")
@click.option("--lr", default=4e-3, help="Highest learning rate.")
@click.option("--weight-decay", default=0.1)
@click.option("--warmup", default=200, help="Steps until the highest rate.")
@click.option("--decay-share", default=0.4, help="Last share of the run over which the rate falls to zero.")
@click.option("--draft-depth", default=2, help="Tokens that the drafting layer learns to draft.")
@click.option("--draft-weight", default=0.2, help="Share of each depth's loss.")
@click.option("--seed", default=0)
@click.option("--compile", "compiled", is_flag=True, help="Fuse kernels with torch.compile.")
def run(
    corpus: Path,
    state: Path,
    output: Path,
    config: Path | None,
    minutes: float | None,
    steps: int | None,
    stop_after: float | None,
    batch: int,
    micro_batch: int | None,
    context: int,
    compiled: bool,
    **options: float,
) -> None:
    """Train, or go on training; then measure the model and write it."""
    import math

    from tandem.compile.train.run import Places
    from tandem.compile.train.run import run as train
    from tandem.compile.train.shape import DEMO
    from tandem.compile.train.state import Settings

    if steps is None and minutes is None:
        minutes = 18.0
    given = {"batch": batch, "micro_batch": micro_batch or batch, "length": context}
    settings = Settings(**given, steps=steps, minutes=minutes, **options)  # type: ignore[arg-type]
    train(
        Places(corpus, state, output),
        DEMO if config is None else json.loads(config.read_text()),
        settings,
        _say,
        stop_after=math.inf if stop_after is None else stop_after,
        compiled=compiled,
        command="python -m tandem.compile.train " + " ".join(sys.argv[1:]),
    )
    click.echo(output)


def _say(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    return run_command(group, "python -m tandem.compile.train")
