"""`tandem-compile`: a checkpoint in, a bundle for this kind of machine out.

stdout carries the bundle's path (or JSON), stderr the progress.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandem import __version__
from tandem.command import examples, run_command
from tandem.errors import BundleError, UsageError
from tandem.keys import Kind

if TYPE_CHECKING:
    from tandem.artifacts.manifest import Manifest
    from tandem.compile.checkpoints.base import Checkpoint
    from tandem.compile.plan import Plan


EXAMPLES = examples(
    "tandem-compile org/name -o BUNDLE              # a GPU in sight, or this CPU",
    "tandem-compile folder/ --device cuda --max-seq-len 8192",
    "tandem-compile file.gguf --profile int4 --device cpu",
    "tandem-compile org/name --drafter folder/      # a drafter trained for it drafts along",
    "CUDA_VISIBLE_DEVICES=1 tandem-compile folder/  # the second GPU",
    "tandem-compile corpus --help                   # a corpus that drafts are looked up in",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, epilog=EXAMPLES)
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder of the bundle.  [default: NAME-PROFILE]")
@click.option("--name", help="Name of the model in the bundle.  [default: from MODEL]")
@click.option("--profile", default="bf16", help="Number formats: fp32, bf16, or on CPUs int8, int4.")
@click.option(
    "--device",
    default="auto",
    help="cpu, cuda, or such as cpu-x86-64-v3 or cuda-sm90; auto is the first GPU in sight if it has kernels of the "
    "profile, else the CPU.",
)
@click.option(
    "--drafter",
    default="auto",
    metavar="auto|none|FOLDER",
    help="auto takes along the checkpoint's own layer that drafts (MTP), where it has one; FOLDER, or a hub id, is a "
    "DFlash2 drafter that was made for MODEL.",
)
@click.option("--max-seq-len", type=int, help="Longest context in tokens.  [default: the model's, 131072 at most]")
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@click.option("--offline", is_flag=True, help="Take a hub id from the local cache only.")
@click.option("--replace", is_flag=True, help="Replace an older bundle in the output folder.")
@click.option("--accept-quality", is_flag=True, help="Seal a low-bit bundle whose quality is below its limits.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@click.version_option(__version__)
def command(
    model: str,
    output: Path | None,
    name: str | None,
    profile: str,
    device: str,
    drafter: str,
    max_seq_len: int | None,
    revision: str | None,
    offline: bool,
    replace: bool,
    accept_quality: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compile MODEL into a bundle for this kind of machine.

    MODEL is a Hugging Face folder, a hub id (org/name), or a GGUF file.
    """
    _require_extra()
    from msgspec import to_builtins

    from tandem.compile.build import build_bundle
    from tandem.compile.checkpoints.open import open_checkpoint, open_drafter
    from tandem.compile.gate import limits
    from tandem.compile.plan import make_plan
    from tandem.compile.profile import find_profile
    from tandem.compile.progress import Progress

    if not model:
        raise UsageError("MODEL is empty: give a Hugging Face folder, a hub id (org/name) or a GGUF file")
    if not drafter:
        raise UsageError("--drafter is empty: give auto, none, or the folder of a drafter")
    if not find_profile(profile).low_bit and accept_quality:
        raise UsageError(f"--accept-quality: profile {profile} has no quality gate; leave it out")
    name = name or default_name(model)
    target = output or Path(f"{default_name(name)}-{profile}")
    drafts = drafter if drafter in ("auto", "none") else open_drafter(drafter, offline=offline)
    checkpoint = open_checkpoint(model, revision=revision, offline=offline)
    plan = make_plan(
        checkpoint,
        checkpoint.digest(),
        name=name,
        profile=profile,
        device=device,
        context_length=max_seq_len,
        drafter=drafts,
    )
    if plan.undrafted:
        _say(plan.undrafted, quiet)
    if dry_run:
        return _print(plan.summary(), as_json)
    if manifest := _built_already(target, plan):
        if manifest.quality and not accept_quality:
            limits.require(manifest.quality, profile)
        _say(f"{target} is this very build already", quiet)
    else:
        try:
            with Progress(quiet=quiet) as progress:
                manifest = build_bundle(
                    plan, checkpoint, target, replace=replace, accept_quality=accept_quality, progress=progress
                )
        except OSError as error:
            error.filename = error.filename or str(target)  # a write that fails does not say where
            raise
        _say(_built(plan, checkpoint, target), quiet)
    if as_json:
        facts = {"path": str(target), "build_id": manifest.build_id, "content_id": manifest.content_id}
        facts |= {"quality": to_builtins(manifest.quality)} if manifest.quality else {}
        return _print(plan.summary() | facts, as_json)
    click.echo(str(target))


def default_name(model: str) -> str:
    """A model's name from its path or id: the last part, without `.gguf`, in characters a path may hold."""
    last = Path(model.rstrip("/")).name.removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"


def _require_extra() -> None:
    try:
        import torch  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"compiling needs {error.name}, which is not installed: pip install 'tandem-llm[compile]'"
        ) from None


def _built_already(target: Path, plan: Plan) -> Manifest | None:
    """The manifest at `target` if it is a sound bundle of this very plan, under this name, built here."""
    from tandem.artifacts.reader import open_bundle

    try:
        bundle = open_bundle(target)
        bundle.require_native()
    except BundleError:
        return None
    manifest = bundle.manifest
    return manifest if (manifest.build_id, manifest.name) == (plan.resolved.build_id(), plan.name) else None


def _built(plan: Plan, checkpoint: Checkpoint, target: Path) -> str:
    """Lines about what was built, how fast it will be, and what its bits cost."""
    from tandem.artifacts.reader import open_bundle

    bundle = open_bundle(target)
    first = next(value for key, value in bundle.prices.items() if key.isdigit())
    proof, quality = bundle.manifest.proof, bundle.manifest.quality
    line = (
        f"{checkpoint.origin} as {plan.profile.name} for {plan.device}: {proof.cases} comparisons, no bit differs; "
        f"a plain step takes {first['plain']:.1f} ms ({1000 / first['plain']:.0f} tokens a second)"
    )
    if bundle.manifest.drafter:
        rows, ms = next(iter(first[Kind.DRAFT].items()))
        what = "a guess" if rows == "1" else f"a block of {rows}"
        line += f"\n{bundle.manifest.drafter.kind} drafts along: {what} takes {ms:.2f} ms"
    if quality is None:
        return line
    return f"{line}\nquality {'within' if quality.held else 'NOT within'} its limits: {quality.summary()}"


def _print(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(value, indent=2))
        return
    width = max(map(len, value)) + 2
    for key, entry in value.items():
        click.echo(f"{key:<{width}}{', '.join(entry) if isinstance(entry, list) else entry}")


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        click.echo(line, err=True)


def main() -> None:
    # What ends a service or a container leaves as little behind as Ctrl-C.
    ended_by = (signal.SIGINT, signal.SIGTERM)
    if sys.argv[1:2] == ["corpus"]:  # a model in a folder of this name is ./corpus
        from tandem.compile.corpus_cli import command as corpus

        sys.exit(run_command(corpus, "tandem-compile corpus", sys.argv[2:], ended_by=ended_by))
    sys.exit(run_command(command, "tandem-compile", ended_by=ended_by))
