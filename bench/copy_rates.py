"""Counts how often copied lines go on in texts that no corpus holds, and writes `runtime/drafters/copy-rates.json`.

Every text is replayed: a round proposes, what the text says is accepted, and the lookup counts its own witnesses as it
does when it serves. Counts of the request's own text are of a replay without a corpus. No model takes part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from tandem.artifacts.suffix import SEPARATOR, SuffixTable, open_corpus, read_meta
from tandem.runtime.drafters.lookup import LookupDrafter
from tandem.runtime.drafters.rates import AGREED, AGREED_BINS, CORPUS, LOCAL, PRIOR_FILE, RUN_BINS, RUNS, CopyRates
from tandem.tree import DraftTree

PROMPT = 64  # tokens of a text that are there from the start
NODES = 31


@dataclass(frozen=True, slots=True)
class Shelf:
    table: SuffixTable
    source: str = CORPUS


class Tally(CopyRates):
    """Counts without forgetting, by bin."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: dict[str, dict[str, list[int]]] = {}

    def count(self, source: str, agreed: int, run: int, went_on: bool) -> None:
        super().count(source, agreed, run, went_on)
        name = f"{AGREED[AGREED_BINS[min(agreed, AGREED[-1])]]}|{RUNS[RUN_BINS[min(run, RUNS[-1])]]}"
        self.trials.setdefault(source, {}).setdefault(name, [0, 0])[not went_on] += 1


def replay(
    drafter: LookupDrafter, text: list[int], prompt: int = PROMPT
) -> Iterator[tuple[list[DraftTree], list[int]]]:
    """Rounds of a target that says exactly `text`: what was proposed and what the round then committed.

    The candidate that is right for longest is the one accepted.
    """
    drafter.begin(text[:prompt])
    at = prompt
    while at < len(text):
        trees = drafter.propose(NODES)
        count = 1 + max((accepted(tree, text[at : at + NODES]) for tree in trees), default=0)
        committed = text[at : at + count]
        yield trees, committed
        drafter.observe(committed)
        at += count


def accepted(tree: DraftTree, coming: list[int]) -> int:
    """How many tokens of `coming` the tree holds as a path."""
    node = 0
    for depth, token in enumerate(coming):
        child = tree.follow(node, token)
        if child is None:
            return depth
        node = child
    return len(coming)


def texts(corpus: Path, limit: int) -> Iterator[list[int]]:
    """The documents of a corpus that are longer than a prompt, at most `limit` tokens of each."""
    tokens = np.asarray(open_corpus(corpus, read_meta(corpus).tokenizer).tokens)
    ends = [-1, *np.flatnonzero(tokens == SEPARATOR)]
    for before, end in pairwise(ends):
        if end - before > 2 * PROMPT:
            yield tokens[before + 1 : min(end, before + 1 + limit)].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs="+", help="corpora of held-out texts, as tandem-compile wrote them")
    parser.add_argument("--corpus", type=Path, required=True, help="the corpus that is looked up in")
    parser.add_argument("--limit", type=int, default=4000, help="tokens of a text at most")
    parser.add_argument("--of", required=True, help="what the texts and the corpus are, for the file")
    parser.add_argument("-o", "--output", type=Path, default=PRIOR_FILE)
    options = parser.parse_args()
    corpus = read_meta(options.corpus)
    table = open_corpus(options.corpus, corpus.tokenizer).with_heads()
    alone, beside = Tally(), Tally()
    held_out = [text for path in options.texts for text in texts(path, options.limit)]
    for number, text in enumerate(held_out, 1):
        for tally, shelves in ((alone, ()), (beside, (Shelf(table),))):
            for _ in replay(LookupDrafter(tally, shelves=shelves), text):
                pass
        if number % 50 == 0:
            print(f"{number} of {len(held_out)} texts", file=sys.stderr)
    trials = {**beside.trials, LOCAL: alone.trials[LOCAL]}
    content = {
        "counted": {
            "by": "bench/copy_rates.py",
            "of": options.of,
            "texts": len(held_out),
            "tokens": sum(map(len, held_out)),
            "corpus_tokens": corpus.tokens.count,
            "corpus_sha256": corpus.tokens.sha256,
            "texts_sha256": [read_meta(path).tokens.sha256 for path in options.texts],
        },
        "columns": "source, least agreeing tokens | least run: went on, ended",
        "trials": {source: dict(sorted(trials[source].items(), key=order)) for source in sorted(trials)},
    }
    options.output.write_text(json.dumps(content, indent=1) + "\n")


def order(item: tuple[str, list[int]]) -> list[int]:
    return [int(part) for part in item[0].split("|")]


if __name__ == "__main__":
    main()
