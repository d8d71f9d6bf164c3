"""`tandem-check`: holds bundles to what Tandem promises. stdout carries the report, stderr the progress.

Exit code 0 when all is held, 1 when an id or a bit differs, 2 for wrong usage.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandem import __version__
from tandem.command import examples, run_command
from tandem.keys import Kind
from tandem.runtime.checks.replay_cli import record, replay

if TYPE_CHECKING:
    from tandem.artifacts.reader import Bundle
    from tandem.runtime.executor.base import Executor

BUNDLE = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_TRUST = click.option("--trust-native", is_flag=True, help="Load native code that was not built on this machine.")


EXAMPLES = examples(
    "tandem-check spec BUNDLE --quick    # on the device it is for",
    "tandem-check spec BUNDLE --case 12  # one case again",
    "tandem-check lanes BUNDLE           # 2,000 requests that come, go and hang up",
    "tandem-check sampled BUNDLE         # do draws follow the model's own distribution?",
    "tandem-check identity OLD NEW",
    "tandem-check record BUNDLE -o texts.npz && tandem-check replay texts.npz",
)


@click.group(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__)
def cli() -> None:
    """Holds bundles to what they promise; exit code 1 means that something differs."""


@cli.command(short_help="Is speculative text plain text, bit by bit?")
@click.argument("bundle", type=BUNDLE)
@_JSON
@_TRUST
@click.option("--threads", type=click.IntRange(1), help="On a CPU: 1 and this many.  [default: 1, 2, 3 and the cores]")
@click.option("--quick", is_flag=True, help="Fewer widths and prompts: seconds on a small model.")
@click.option("--tokens", type=click.IntRange(1), help="Ids compared of each answer.  [default: 24, quick 16]")
@click.option("--case", "only", type=click.IntRange(0), metavar="NUMBER", help="Run one case again, by its number.")
def spec(
    bundle: Path,
    as_json: bool,
    trust_native: bool,
    threads: int | None,
    quick: bool,
    tokens: int | None,
    only: int | None,
) -> int:
    """Is what BUNDLE answers the same, id by id and bit by bit, whatever is drafted?

    Drafters that are wrong, half right, right and each of these behind each other, every row width as chain and tree,
    prompts around page and chunk borders, 1 to 4 lanes, on a CPU several thread counts, greedy and sampled: all against
    plain decoding.
    """
    from tandem.artifacts.reader import open_bundle
    from tandem.device import this_machine
    from tandem.runtime.checks.spec import Options, Spec

    opened = open_bundle(bundle, trust_native=trust_native)
    teams = {1, threads} if threads else {1, 2, this_machine().cores} | (set() if quick else {3})
    options = Options(tokens or (16 if quick else 24), tuple(sorted(teams)), quick)
    if opened.on_gpu:
        if threads:
            raise click.UsageError("--threads is for bundles of a CPU and this one is a GPU's")
        options = replace(options, threads=(None,), chunks=_chunks(opened))
    check = Spec(opened.geometry, _opener(opened), built_in_prompts(opened), options)
    if only is not None and only >= len(check.cases):
        raise click.UsageError(f"--case is {only}; the last one is {len(check.cases) - 1}")
    try:
        with progress(check.num_steps(only)) as advance:
            report = check.run(only, advance)
    finally:
        check.close()
    flags = [str(bundle), "--tokens", str(options.tokens), *["--quick"] * quick]
    flags += [*(["--threads", str(threads)] if threads else []), *["--trust-native"] * trust_native]
    again = f"tandem-check spec {' '.join(flags)} --case {report.first.number}" if report.first else None
    facts = _about(opened) | report.facts() | {"reproduce": again}
    print_report(facts, [*report.lines(), *([f"reproduce: {again}"] if again else [])], as_json)
    return 0 if report.held else 1


@cli.command(short_help="Are a request's tokens those it has alone?")
@click.argument("bundle", type=BUNDLE)
@_JSON
@_TRUST
@click.option("--requests", type=click.IntRange(1), help="Requests that come.  [default: 2000, quick 200]")
@click.option("--lanes", type=click.IntRange(1), help="Served at once.  [default: the most of the bundle, at most 8]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws another crowd.")
@click.option("--quick", is_flag=True, help="200 requests.")
def lanes(
    bundle: Path,
    as_json: bool,
    trust_native: bool,
    requests: int | None,
    lanes: int | None,
    seed: int,
    quick: bool,
) -> int:
    """Are a request's tokens those it has alone, whatever runs beside it?

    Requests drawn at random, long and short, greedy and sampled, drafted for well and badly, come in bursts, wait, are
    served in joint passes and hang up in the queue, the prefill or the middle of an answer. Ids are compared with the
    same request's alone and plain; the queue's order, waits, pages, slots and memory are held too.
    """
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.checks.lanes import Lanes, Options, most_lanes

    opened = open_bundle(bundle, trust_native=trust_native)
    options = Options(requests or (200 if quick else 2000), lanes or most_lanes(opened.geometry), seed)
    opener = _opener(opened)
    check = Lanes(opened.geometry, lambda pages: opener(None, pages), built_in_prompts(opened), opened.prices, options)
    try:
        with progress(check.num_steps()) as advance:
            report = check.run(advance)
    finally:
        check.close()
    flags = [str(bundle), "--lanes", str(options.lanes), "--seed", str(seed), *["--trust-native"] * trust_native]
    again = f"tandem-check lanes {' '.join(flags)} --requests {report.first.last + 1}" if report.first else None
    facts = _about(opened) | report.facts() | {"seed": seed, "reproduce": again}
    print_report(facts, [*report.lines(), *([f"reproduce: {again}"] if again else [])], as_json)
    return 0 if report.held else 1


@cli.command(short_help="Are sampled tokens drawn as they should be?")
@click.argument("bundle", type=BUNDLE)
@_JSON
@_TRUST
@click.option("--tokens", type=click.IntRange(1), help="Tokens served without a seed.  [default: 1500, quick 300]")
@click.option("--draws", type=click.IntRange(1), help="Draws from one row.  [default: 10000, quick 2000]")
@click.option("--quick", is_flag=True, help="Fewer tokens and draws.")
def sampled(bundle: Path, as_json: bool, trust_native: bool, tokens: int | None, draws: int | None, quick: bool) -> int:
    """Are the sampled tokens of BUNDLE drawn as they should be, whatever is drafted?

    In several manners (temperatures, filters, penalties): seeded answers under every drafter and shape beside each
    other are compared with plain ones, id by id; tokens of answers without a seed are placed in the softmax of their
    own logits, taken in float64; draws from single rows, by seed and by position, are counted against it. Counts are
    held by chi-square; a sound bundle fails once in a million runs.
    """
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.checks.sampled import Options, Sampled

    opened = open_bundle(bundle, trust_native=trust_native)
    options = Options(tokens or (300 if quick else 1500), draws or (2000 if quick else 10_000), quick)
    open_executor = _opener(opened)
    check = Sampled(opened.geometry, lambda pages: open_executor(None, pages), built_in_prompts(opened), options)
    try:
        with progress(check.num_steps()) as advance:
            report = check.run(advance)
    finally:
        check.close()
    print_report(_about(opened) | report.facts(), report.lines(), as_json)
    return 0 if report.held else 1


@cli.command(short_help="Do two bundles compute the same bits?")
@click.argument("a", type=BUNDLE)
@click.argument("b", type=BUNDLE)
@_JSON
@_TRUST
@click.option("--threads", type=click.IntRange(1), help="On a CPU: threads of a pass.  [default: one a core]")
def identity(a: Path, b: Path, as_json: bool, trust_native: bool, threads: int | None) -> int:
    """Do bundles A and B compute the same bits, and each what it was sealed with?"""
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.checks.identity import compare

    first, second = (open_bundle(path, trust_native=trust_native) for path in (a, b))
    report = compare(first, second, threads)
    print_report(report.facts(), report.lines(), as_json)
    return 0 if report.held else 1


def _about(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {"bundle": str(bundle.path), "build_id": manifest.build_id, "content_id": manifest.content_id}


def _chunks(bundle: Bundle) -> tuple[int, ...]:
    """Row counts of the programs that only prefill: they serve any context."""
    entries = bundle.manifest.entries
    return tuple(sorted({e.rows for e in entries if e.kind is Kind.EXTEND and e.rows and not e.context_class}))


def _opener(bundle: Bundle) -> Callable[[int | None, int], Executor]:
    from tandem.runtime import loading

    return lambda threads, num_pages: loading.open_executor(bundle, threads=threads, num_pages=num_pages)


def built_in_prompts(bundle: Bundle) -> dict[str, list[int]]:
    from tandem.runtime.chat import ChatTemplate
    from tandem.runtime.checks.prompts import prompts
    from tandem.runtime.loading import read_tokenizer

    facts = bundle.manifest.tokenizer
    chat = ChatTemplate(facts.chat_template, {"bos_token": facts.bos_token, "eos_token": facts.eos_token})
    return prompts(read_tokenizer(bundle.tokenizer_path), chat, bundle.geometry.vocab_size)


@contextmanager
def progress(length: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, for terminals only; what it yields is told the name of each step as it starts."""
    with click.progressbar(length=length, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        def advance(name: str) -> None:
            bar.label = name[:60]
            bar.update(1)

        yield advance


def print_report(facts: dict[str, Any], lines: list[str], as_json: bool) -> None:
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines))


cli.add_command(record)
cli.add_command(replay)


def main() -> None:
    sys.exit(run_command(cli, "tandem-check", ended_by=(signal.SIGINT,)))
