"""The demo hybrid beside Transformers: how fast it decodes plainly, and whether its loss on held-out text is the same.
And beside itself: what its drafting layer, lookup and both gain over plain steps.

All run on this CPU, in turns of one command; Transformers must be importable here (`make install`) but for the drafts.
Other hybrids, and other models, take the same figures. Exits 1 if a loss is off or an id differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import CommandError
from figure import Figure
from figures import eager, loss
from figures.context import Context
from figures.ways import PLAIN, Way, measure
from machine import describe
from prompts import Prompt
from sides.process import SideError
from sides.roster import Roster, cores
from spread import Goal
from unseen import domains, library, windows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROFILES = {"decode": "bf16", "drafts": "bf16", "loss": "fp32"}
"""The bundle that each figure wants."""
PROMPTS, PROMPT_TOKENS = 4, 96
DRAFTED, DRAFTED_TOKENS = 16, 160
DRAFTS = Goal(1.6, 3.0)


def main() -> int:
    """Returns the exit code."""
    options = parse()
    try:
        found = list(figures(options))
    except (CommandError, SideError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        record = {"machine": describe(), "threads": options.threads, "figures": [figure.record() for figure in found]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    off = any(line.missed for figure in found if figure.name.startswith("loss") for line in figure.lines)
    return int(off or any(figure.identical is False for figure in found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--checkpoint", type=Path, default=bundles.HYBRID, help="a Hugging Face folder")
    add("--bundle", type=Path, action="append", help="a bundle of it, bf16 or fp32; default: bundles made in .demo")
    add("--only", choices=PROFILES, help="one of them")
    add("--corpus", type=Path, help="a corpus with its held-out parts; default: held-out files of Python's own library")
    add("--windows", type=int, default=8, help="windows of held-out text, of each domain")
    add("--window", type=int, default=1024, help="tokens of a window that are predicted")
    add("--repeats", type=int, default=5, help="turns that count, after one to warm up")
    add("--tokens", type=int, default=128, help="tokens of an answer")
    add("--threads", type=int, default=cores())
    add("--json", type=Path, metavar="FILE", help="write every run there")
    return parser.parse_args()


def figures(options: argparse.Namespace) -> list[Figure]:
    """Those that are asked for, printed as they come."""
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.drafters.base import model_of
    from tandem.runtime.loading import read_tokenizer

    wanted = [options.only] if options.only else list(PROFILES)
    if options.bundle:
        paths = {bundles.profile_of(path): path for path in options.bundle}
    else:
        paths = bundles.build_all(options.checkpoint, [PROFILES[name] for name in wanted], options.checkpoint.name)
    if missing := [PROFILES[name] for name in wanted if PROFILES[name] not in paths]:
        raise CommandError(f"no bundle of profile {missing[0]} is given; give one, or leave its figure out with --only")
    tokenizer = read_tokenizer(open_bundle(next(iter(paths.values()))).tokenizer_path)
    context = Context(Roster(paths, Path(), options.threads), options.repeats, options.tokens)
    print(f"{describe()}, {options.threads} threads, {options.repeats} interleaved runs")
    found = []
    for name in wanted:
        if name == "decode":
            found.append(eager.measure(context, options.checkpoint, held_out(tokenizer, PROMPT_TOKENS, PROMPTS)))
        elif name == "drafts":
            own = model_of(open_bundle(paths[PROFILES[name]]).geometry)
            found.append(drafts(context, own, held_out(tokenizer, DRAFTED_TOKENS, DRAFTED), options.tokens))
        else:
            texts = domains(tokenizer, options.corpus)
            cut = {domain: windows(ids, options.window + 1, options.windows) for domain, ids in texts.items()}
            found.append(loss.measure(paths["fp32"], options.checkpoint, cut, options.threads))
        print(f"\n{found[-1].text()}", flush=True)
    return found


def held_out(tokenizer: Tokenizer, length: int, count: int) -> list[list[int]]:
    """Up to `count` pieces of held-out Python, of `length` tokens."""
    return windows([token for ids in library(tokenizer) for token in ids], length, count)


def drafts(context: Context, own: str | None, texts: list[list[int]], num_tokens: int) -> Figure:
    """Lookup, the bundle's `own` drafter and both over plain steps, going on with `texts`."""
    figure = Figure("drafts", f"answers of {num_tokens} tokens to {len(texts)} pieces of held-out Python")
    prompts = [Prompt(f"piece {i}", ids) for i, ids in enumerate(texts, 1)]
    ways = (PLAIN, *(Way(name, options={"drafter": name}) for name in ("lookup", own, "auto") if name))
    return measure(context, PROFILES["drafts"], figure, prompts, ways, num_tokens, DRAFTS)


if __name__ == "__main__":
    sys.exit(main())
