"""`tandem-check record` and `tandem-check replay`: texts with their drafts, and what policies make of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandem.errors import UsageError

if TYPE_CHECKING:
    from tandem.artifacts.reader import Bundle
    from tandem.runtime.checks.record import Prompt

POLICIES = (
    "plain",
    "staircut",
    "early-stop",
    "length",
    "budget",
    "fixed:8",
    "fixed:16",
    "fixed:32",
    "oracle",
    "prophet",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
FILE = click.Path(path_type=Path)


@click.command(short_help="Keep answers with what is drafted at every position.")
@click.argument("bundle", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="The recording, an .npz file.")
@click.option(
    "--prompts",
    type=FILE,
    help='JSONL: {"workload": NAME, "prompt": TEXT}, or "message" for a turn of a chat.  [default: a few built in]',
)
@click.option("--tokens", type=click.IntRange(2), default=256, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--threads", type=click.IntRange(1), help="On a CPU: threads of a pass.  [default: one a core]")
@click.option("--trust-native", is_flag=True, help="Load native code that was not built on this machine.")
def record(
    bundle: Path,
    output: Path,
    prompts: Path | None,
    tokens: int,
    temperature: float,
    threads: int | None,
    trust_native: bool,
) -> int:
    """Decodes BUNDLE plainly and keeps, for every position of each answer, what its drafters propose there.

    For `tandem-check replay`, which needs neither the bundle nor its device.
    """
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.checks.cli import progress
    from tandem.runtime.checks.record import read_prompts, record_texts

    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is no folder; make it first")
    opened = open_bundle(bundle, trust_native=trust_native)
    if (room := opened.geometry.context_length - tokens) < 1:
        raise UsageError(
            f"--tokens is {tokens}; this bundle holds {opened.geometry.context_length}, the prompt included"
        )
    asked = _ids(opened, read_prompts(prompts)) if prompts else _built_in(opened, room)
    with progress(len(asked)) as advance:
        recording = record_texts(opened, asked, tokens, temperature, threads, advance)
    recording.save(output)
    num_positions = sum(len(text.tokens) for text in recording.texts)
    click.echo(f"{output}: {len(recording.texts)} texts, {num_positions:,} positions, {output.stat().st_size:,} bytes")
    return 0


@click.command(short_help="What would each policy have drafted, and what for?")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="NAME",
    help="plain, staircut, early-stop, length, budget, fixed:ROWS, oracle or prophet; may be repeated.  [default: all]",
)
@JSON
def replay(files: Sequence[Path], names: Sequence[str], as_json: bool) -> int:
    """Replays policies exactly on recordings, at the prices recorded with them.

    oracle: the best count by the true chances of nodes of a workload, source and score. prophet: the count that turns
    out best each round, a bound that no rule reaches. early-stop: StairCut as if prices were convex.
    """
    from tandem.runtime.checks.cli import print_report, progress
    from tandem.runtime.checks.recording import load_recording
    from tandem.runtime.checks.replay import replay as play
    from tandem.runtime.checks.replay import require_names
    from tandem.runtime.checks.replay_report import ReplayReport

    chosen = names or POLICIES
    require_names(chosen)
    facts, lines = dict[str, Any](), list[str]()
    for path in files:
        recording = load_recording(path)
        with progress(len(chosen)) as advance:
            report = ReplayReport(play(recording, chosen, advance))
        facts[str(path)] = {"about": recording.about, "workloads": report.facts()}
        lines += [*([""] if lines else []), f"{path}", *report.lines()]
    print_report(facts, lines, as_json)
    return 0


Asked = list[tuple[str, tuple[int, ...], frozenset[int]]]
"""(workload, ids, stop ids) of each prompt."""


def _built_in(bundle: Bundle, room: int) -> Asked:
    """Those of the other checks, their last `room` tokens."""
    from tandem.runtime.checks.cli import built_in_prompts

    return [(name, tuple(ids[-room:]), frozenset()) for name, ids in built_in_prompts(bundle).items()]


def _ids(bundle: Bundle, prompts: Sequence[Prompt]) -> Asked:
    """`prompts` in the bundle's own tokens."""
    from tandem.runtime.chat import ChatTemplate
    from tandem.runtime.loading import read_tokenizer

    facts = bundle.manifest.tokenizer
    chat = ChatTemplate(facts.chat_template, {"bos_token": facts.bos_token, "eos_token": facts.eos_token})
    tokenizer = read_tokenizer(bundle.tokenizer_path)
    found = []
    for prompt in prompts:
        text = chat.render([{"role": "user", "content": prompt.text}]) if prompt.chat else prompt.text
        ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        found.append((prompt.workload, ids, frozenset(facts.stop_ids if prompt.chat else ())))
    return found
