"""Time and memory of looking drafts up, a round: in the request's own text and in a corpus of 38 million tokens.

The corpus is made here: phrases out of a pool, common ones more often, so that short matches are many and long ones
few, as in text. Searched are texts of the same pool, documents of the corpus, and ids that stand nowhere. A round
proposes, and what the text says is accepted. Times are of the processor, which other programs do not move. Prints a
table.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from copy_rates import NODES, PROMPT, Shelf, accepted
from machine import describe
from tandem.artifacts.suffix import open_corpus
from tandem.artifacts.suffix_writer import CorpusWriter
from tandem.runtime.drafters.lookup import LookupDrafter

VOCAB, TOKENIZER = 49_152, "00" * 32
PHRASES, LONGEST = 300_000, 40
DOCUMENT = 4000
GOAL = "goal: at most 200 us a round in the corpus, aim 50"


class Pool:
    """Phrases of Zipf-distributed ids; texts are phrases of a Zipf-distributed choice."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        lengths = self._random.integers(1, LONGEST, PHRASES)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._ids = self._zipf(int(self._starts[-1]), VOCAB)

    def _zipf(self, count: int, size: int) -> np.ndarray:
        """Ranks below `size`, of chances that fall as one over the rank."""
        return np.minimum(size ** self._random.random(count), size - 1).astype(np.int32)

    def text(self, count: int) -> np.ndarray:
        """About `count` ids."""
        chosen = self._zipf(count * 2 // LONGEST, PHRASES)
        starts, lengths = self._starts[chosen], self._starts[chosen + 1] - self._starts[chosen]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self._ids[np.repeat(starts, lengths) + within]

    def nowhere(self, count: int) -> np.ndarray:
        return self._random.integers(0, VOCAB, count, dtype=np.int32)


def write(target: Path, pool: Pool, count: int) -> float:
    """Writes the corpus; seconds that its sorting took."""
    with CorpusWriter(target, TOKENIZER, VOCAB) as writer:
        while writer.num_tokens < count:
            writer.add(pool.text(DOCUMENT))
        began = time.thread_time()
        writer.publish(lambda share: None)
    return time.thread_time() - began


def rounds(drafter: LookupDrafter, text: list[int], times: dict[str, list[float]]) -> None:
    """Microseconds of each round: the search alone, and all that a round asks of the drafter."""
    search: Callable[[], Any] = drafter._witness

    def witness() -> Any:
        began = time.thread_time()
        found = search()
        times["search"].append(1e6 * (time.thread_time() - began))
        return found

    drafter._witness = witness
    drafter.begin(text[:PROMPT])
    at = PROMPT
    while at < len(text):
        began = time.thread_time()
        trees = drafter.propose(NODES)
        proposed = time.thread_time() - began
        count = 1 + max((accepted(tree, text[at : at + NODES]) for tree in trees), default=0)
        began = time.thread_time()
        drafter.observe(text[at : at + count])
        times["round"].append(1e6 * (proposed + time.thread_time() - began))
        at += count


def texts(pool: Pool, documents: list[list[int]]) -> Iterator[tuple[str, list[list[int]]]]:
    yield "of the same phrases", [pool.text(DOCUMENT).tolist() for _ in range(8)]
    yield "of the corpus", documents
    yield "nowhere", [pool.nowhere(DOCUMENT).tolist() for _ in range(8)]


def memory(field: str) -> float:
    """MB of this process as /proc/self/status has them."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=38_000_000)
    options = parser.parse_args()
    pool = Pool()
    with tempfile.TemporaryDirectory() as folder:
        seconds = write(Path(folder) / "corpus", pool, options.tokens)
        before = memory("RssAnon")
        table = open_corpus(Path(folder) / "corpus", TOKENIZER).with_heads()
        starts = np.random.default_rng(1).integers(0, len(table.tokens) - 2 * DOCUMENT, 8)
        documents = [[t for t in table.tokens[s : s + DOCUMENT].tolist() if t < VOCAB] for s in starts]
        print(
            f"microseconds a round; {GOAL}\n{'text':<20}{'searched':<20}{'part':<8}{'mean':>7}{'median':>8}{'p99':>7}"
        )
        gc.collect()
        gc.freeze()
        for name, found in texts(pool, documents):
            for place, shelves in (("request", ()), ("request and corpus", (Shelf(table),))):
                times: dict[str, list[float]] = {"search": [], "round": []}
                for text in found:
                    rounds(LookupDrafter(shelves=shelves, vocab_size=VOCAB), text, times)
                for part, values in times.items():
                    mean, median, late = np.mean(values), np.median(values), np.quantile(values, 0.99)
                    print(f"{name:<20}{place:<20}{part:<8}{mean:>7.1f}{median:>8.1f}{late:>7.1f}")
        anonymous, mapped = memory("RssAnon") - before, memory("RssFile")
        print(
            f"{len(table.tokens):,} tokens sorted in {seconds:.0f} s; lookups took {anonymous:.0f} MB of their own, "
            f"of the map {mapped:.0f} MB were touched; peak {memory('VmHWM'):.0f} MB, sorting included"
        )
        print(describe())


if __name__ == "__main__":
    main()
