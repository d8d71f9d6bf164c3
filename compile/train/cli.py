"""`python -m tandem.compile.train`: `corpus` makes a corpus, `run` a model of it, `drafter` a drafter for a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandem.command import examples, run_command

if TYPE_CHECKING:
    from tandem.compile.train.packages import Package

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

EXAMPLES = examples(
    "pip download --no-deps --only-binary=:all: -d packages scipy pandas django sympy",
    "python -m tandem.compile.train corpus --archives packages -o .corpus",
    "python -m tandem.compile.train run --corpus .corpus --state run.pt --stop-after 9 -o model",
    "python -m tandem.compile.train drafter --target model --state drafting --minutes 20 -o drafter",
)


def _layer_ids(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Whole numbers in ascending order, none of no text."""
    try:
        found = tuple(int(word) for word in (text or "").split(",") if text)
    except ValueError:
        found = (1, 0)
    if list(found) != sorted(set(found)) or any(layer < 0 for layer in found):
        raise click.BadParameter(f"{text}: give layers in ascending order, as 1,3,5")
    return found


def text_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags that say where text comes from, beside Python's own library."""
    options = (
        click.option("--archives", type=FOLDER, multiple=True, help="Folder of wheels and source archives."),
        click.option("--installed", type=FOLDER, multiple=True, help="A site-packages folder."),
        click.option(
            "--folder",
            "folders",
            type=(str, str, str, FOLDER),
            multiple=True,
            metavar="NAME VERSION LICENCE PATH",
            help="A folder of text whose licence you know.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, epilog=EXAMPLES)
def group() -> None:
    """Train a small hybrid model from nothing, or a drafter for any model."""


@group.command()
@text_flags
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
    from tandem.compile.train.corpus import build_corpus

    build_corpus(
        _packages(archives, installed, folders),
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


@group.command()
@click.option("--target", required=True, help="Folder, .gguf file or hub id of the model to draft for.")
@click.option("--state", type=PATH, required=True, help="Folder to go on from, and to save to.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder of the drafter.")
@click.option("--written", type=PATH, help="Folder of what the target wrote, which runs may share.  [default: --state]")
@text_flags
@click.option("--package-bytes", default=2_000_000, help="Most code, and most documentation, of one package.")
@click.option("--block", default=16, type=click.IntRange(2, 32), help="Rows of a block; one less is drafted.")
@click.option("--layers", default=2, type=click.IntRange(1), help="Layers of the drafter.")
@click.option("--inner", default=512, type=click.IntRange(1), help="Width of its MLP.")
@click.option("--heads", default=4, type=click.IntRange(1), help="Query heads, of 64 each.")
@click.option("--kv-heads", default=2, type=click.IntRange(1), help="Key and value heads.")
@click.option("--taps", callback=_layer_ids, help="Layers of the target to read, as 1,3,5.  [default: an even spread]")
@click.option("--rank", default=16, type=click.IntRange(1), help="Rank of the selector.")
@click.option("--window", default=2048, type=click.IntRange(32), help="Tokens of context that a row sees.")
@click.option("--minutes", type=float, help="Length of the training, in minutes.  [default: 20]")
@click.option("--steps", type=click.IntRange(1), help="Length of the training, in steps.")
@click.option("--stop-after", type=float, help="Minutes after which this command saves and stops.")
@click.option("--write-texts", default=8192, type=click.IntRange(1), help="Texts that the target writes first.")
@click.option("--write-batch", default=512, type=click.IntRange(1), help="Texts that it writes at a time.")
@click.option("--held-out", default=64, type=click.IntRange(1), help="Texts a domain to measure on.")
@click.option("--held-out-tokens", default=256, type=click.IntRange(8), help="Tokens of each.")
@click.option("--batch", default=32, type=click.IntRange(1), help="Texts a step.")
@click.option("--micro-batch", type=click.IntRange(1), help="Texts at a time.  [default: all]")
@click.option("--context", default=512, type=click.IntRange(16), help="Tokens of a text.")
@click.option("--blocks", default=32, type=click.IntRange(1), help="Blocks drafted in each text.")
@click.option("--given", default=0.25, type=click.FloatRange(0, 1), help="Share of texts the target did not write.")
@click.option("--optimiser", default="muon", type=click.Choice(["adamw", "muon"]))
@click.option("--lr", default=2e-3, help="Highest learning rate.")
@click.option("--warmup", default=50, type=click.IntRange(1), help="Steps until the highest rate.")
@click.option("--decay-share", default=0.5, help="Last share of the run over which the rate falls to zero.")
@click.option("--seed", default=0)
def drafter(
    target: str,
    state: Path,
    output: Path,
    written: Path | None,
    archives: tuple[Path, ...],
    installed: tuple[Path, ...],
    folders: tuple[tuple[str, str, str, Path], ...],
    package_bytes: int,
    block: int,
    layers: int,
    inner: int,
    heads: int,
    kv_heads: int,
    taps: tuple[int, ...],
    rank: int,
    window: int,
    minutes: float | None,
    steps: int | None,
    stop_after: float | None,
    write_texts: int,
    write_batch: int,
    held_out: int,
    held_out_tokens: int,
    batch: int,
    micro_batch: int | None,
    context: int,
    **options: float,
) -> None:
    """Train a block drafter (DFlash2) for a model, or go on training.

    The target writes texts behind prompts from the standard library and the packages given, the drafter learns to
    guess them, and serving is replayed over texts that it never saw.
    """
    import math

    from tandem.compile.progress import Progress
    from tandem.compile.train.drafter.run import Plan, run
    from tandem.compile.train.drafter.settings import Settings
    from tandem.compile.train.drafter.shape import Shape

    shape = Shape(
        block=block, layers=layers, inner=inner, heads=heads, kv_heads=kv_heads, taps=taps, rank=rank, window=window
    )
    length = {"steps": steps, "minutes": 20.0 if steps is None and minutes is None else minutes}
    sizes = {"batch": batch, "micro_batch": micro_batch or batch, "length": context}
    settings = Settings(**sizes, **length, **options)  # type: ignore[arg-type]
    plan = Plan(
        target=target,
        state=state,
        output=output,
        written=written or state,
        packages=_packages(archives, installed, folders),
        package_bytes=package_bytes,
        write_texts=write_texts,
        write_batch=min(write_batch, write_texts),
        held_out=held_out,
        held_out_tokens=held_out_tokens,
        command="python -m tandem.compile.train " + " ".join(sys.argv[1:]),
    )
    with Progress() as bar:
        run(plan, shape, settings, bar, stop_after=math.inf if stop_after is None else stop_after)
    click.echo(output)


def _packages(
    archives: tuple[Path, ...], installed: tuple[Path, ...], folders: tuple[tuple[str, str, str, Path], ...]
) -> list[Package]:
    """The standard library, and what was given."""
    from tandem.compile.train import packages

    found = [packages.standard_library(), *(packages.folder(*given) for given in folders)]
    found += [package for root in installed for package in packages.installed(root)]
    return found + [package for root in archives for package in packages.archives(root)]


def _say(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    return run_command(group, "python -m tandem.compile.train")
