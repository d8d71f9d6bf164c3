"""Is speculative text plain text over many tokens? Greedy answers, drafted in a dozen ways, against plain ones.

Of any bundle, on a CPU or a GPU, without a framework. Prompts are cut from Python's own library. Exits 1 if an id
differs. `tandem-check spec` compares fewer tokens and more of each: bits, states, every width, sampled text.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError

if TYPE_CHECKING:
    from exactness.journal import Journal
    from exactness.play import Play

SAY_EVERY_S = 10


def main() -> int:
    """Returns the exit code."""
    options = parse()
    from tandem.errors import TandemError

    try:
        return compare(options)
    except (CommandError, TandemError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("bundle", type=Path)
    add("--tokens", type=int, default=200_000, help="compared in all, rounded up to a whole turn")
    add("--answer", type=int, default=160, help="most tokens of an answer")
    add("--threads", type=int, help="on a CPU; default: one a core")
    add("--journal", type=Path, metavar="FILE", help="keep every turn there, and go on behind those that it has")
    add("--turn", type=int, metavar="NUMBER", help="play this turn alone")
    add("--trust-native", action="store_true", help="load native code that was not built on this machine")
    return parser.parse_args()


def compare(options: argparse.Namespace) -> int:
    """Plays turns and reports; what there is so far also when it is told to end."""
    from exactness.journal import Journal, lines
    from exactness.play import Play, Settings
    from tandem.artifacts.reader import open_bundle
    from tandem.prices import PriceModel
    from tandem.runtime import loading
    from unseen import library

    bundle = open_bundle(options.bundle, trust_native=options.trust_native)
    geometry = bundle.geometry
    settings = Settings.fitting(geometry.context_length, geometry.max_lanes, options.answer)
    texts = library(loading.read_tokenizer(bundle.tokenizer_path))
    about = {
        "bundle": bundle.manifest.content_id,
        "answer": settings.answer,
        "texts": hashlib.sha256(repr(texts).encode()).hexdigest()[:16],
    }
    journal = Journal(options.journal if options.turn is None else None, about)
    executor = loading.open_executor(bundle, threads=options.threads, num_pages=settings.pages(geometry.page_tokens))
    try:
        exact, prices = loading.examine(bundle, executor)
        if not exact:
            print("the self-check at load is not held here: a server would decode plainly", file=sys.stderr)
        play = Play(executor, settings, texts, frozenset(bundle.manifest.tokenizer.stop_ids), PriceModel(prices))
        run(play, journal, options.tokens, options.turn)
    finally:
        executor.close()
    print("\n".join(lines(journal.results)))
    return 1 if journal.differing else 0


def run(play: Play, journal: Journal, tokens: int, only: int | None) -> None:
    """Turns until `tokens` are compared, or the one of that number; a line on stderr now and then."""
    began, before, said = time.monotonic(), journal.tokens, 0.0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `timeout` ends it
    try:
        if only is not None:
            journal.add(play.turn(only))
        while only is None and journal.tokens < tokens:
            journal.add(play.turn(len(journal.results)))
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                rate = (journal.tokens - before) / (said - began)
                line = f"{journal.tokens:,} of {tokens:,} tokens, {journal.differing:,} differ, {rate:.0f} a second"
                print(line, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("ended early", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
