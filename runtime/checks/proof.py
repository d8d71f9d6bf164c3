"""Proves a bundle's entries: every row of every pass against one-token steps at the same prefix, bit by bit.

Logits and, after a commit, the whole K and V are compared. Knows nothing of how programs were made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.tree import DraftTree

TEXT = 200
"""Tokens of the text that prefixes are cut from; it crosses pages and chunks."""
CHUNKS = (2, 3, 7, 16, 33, 63, 64, 65, 100, 127, 128)
PREFIXES = (1, 17, 62, 63, 64, 65, 127, 150)
NUM_TREES = 12


@dataclass(slots=True)
class Report:
    """How many comparisons were made, and the first of those that failed, in words."""

    cases: int = 0
    differing: int = 0
    first: list[str] = field(default_factory=list)

    def compare(self, what: str, found: str, wanted: str) -> None:
        self.cases += 1
        if found != wanted:
            self.differing += 1
            if len(self.first) < 10:
                self.first.append(what)


class Reference:
    """What one-token steps give: digests of logits by token prefix, of K and V by text and length."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._logits: dict[tuple[int, ...], str] = {}

    def steps(self, lane: int, prefix: list[int], path: Sequence[int]) -> str:
        """The logits digest after prefix + path. The lane holds K and V up to path[:-1]."""
        key = (*prefix, *path)
        (found,) = self._lab.extend(lane, [path[-1]], len(prefix) + len(path) - 1)
        return self._logits.setdefault(key, found)

    def known(self, prefix: list[int], path: Sequence[int]) -> str | None:
        return self._logits.get((*prefix, *path))


class Proof:
    """Runs the cases over a lab. `advance` hears the name of each case."""

    def __init__(self, lab: Lab, advance: Callable[[str], None] = lambda name: None) -> None:
        self.lab, self.advance, self.report = lab, advance, Report()
        vocab = lab.executor.geometry.vocab_size
        length = min(TEXT, lab.executor.geometry.context_length - MAX_TREE_ROWS)
        self._texts = [token_ids(length, vocab, seed=1000 + lane) for lane in range(lab.num_lanes)]
        self._prefixes = [n for n in PREFIXES if n <= length]
        self._reference = Reference(lab)
        self._random = random.Random(7)

    def run(self) -> Report:
        self._steps_and_chunks()
        for num_rows in range(1, MAX_TREE_ROWS + 1):
            prefix = self._prefix(num_rows)
            self._verify(Kind.VERIFY_CHAIN, [0], [prefix], [self._chain(0, prefix, num_rows)])
        for i in range(NUM_TREES):
            num_rows = 2 + i * (MAX_TREE_ROWS - 2) // (NUM_TREES - 1)
            self._verify(Kind.VERIFY_TREE, [0], [self._prefix(i)], [self._tree(num_rows)])
        for kind, lanes, starts, trees in self._joint():
            self._verify(kind, lanes, starts, trees)
        return self.report

    def _steps_and_chunks(self) -> None:
        """One-token steps over a text, then the same text in chunks of every size."""
        text = self._texts[0]
        for i in range(len(text)):
            self._reference.steps(0, text[:i], text[i : i + 1])
        state = self.lab.state(0, len(text))
        for size in CHUNKS:
            if size > self.lab.executor.geometry.max_rows:
                continue
            self.advance(f"extend in chunks of {size}")
            for begin in range(0, len(text), size):
                chunk = text[begin : begin + size]
                outputs = min(len(chunk), self.lab.executor.geometry.max_outputs)
                for i, found in enumerate(self.lab.extend(0, chunk, begin, outputs), len(chunk) - outputs):
                    wanted = self._reference.known(text[:begin], chunk[: i + 1])
                    self.report.compare(f"extend, chunks of {size}, position {begin + i}: logits", found, wanted or "")
            self.report.compare(f"extend, chunks of {size}: state", self.lab.state(0, len(text)), state)

    def _verify(self, kind: Kind, lanes: list[int], starts: list[int], trees: list[DraftTree]) -> None:
        """One joint pass, a commit of a random path per lane, then the same by one-token steps."""
        name = f"{kind}, {sum(map(len, trees))} rows, {len(lanes)} lanes, prefixes {starts}"
        self.advance(name)
        for lane, start in zip(lanes, starts, strict=True):
            self.lab.fill(lane, self._texts[lane][:start])
        found = self.lab.verify(kind, lanes, starts, trees)
        paths = [tree.path(self._random.randrange(len(tree))) for tree in trees]
        self.lab.commit(lanes, starts, paths)
        ends = [start + len(path) for start, path in zip(starts, paths, strict=True)]
        states = [self.lab.state(lane, end) for lane, end in zip(lanes, ends, strict=True)]
        for lane, start, tree, rows, path, end, state in zip(
            lanes, starts, trees, found, paths, ends, states, strict=True
        ):
            prefix = self._texts[lane][:start]
            for node, row in enumerate(rows):
                tokens = [tree.tokens[i] for i in tree.path(node)]
                self.report.compare(f"{name}, row {node}: logits", row, self._reference.steps(lane, prefix, tokens))
            tokens = [tree.tokens[i] for i in path]
            for i in range(len(tokens)):
                self._reference.steps(lane, prefix, tokens[: i + 1])
            self.report.compare(f"{name}, path {path}: state", state, self.lab.state(lane, end))

    def _joint(self) -> Iterator[tuple[Kind, list[int], list[int], list[DraftTree]]]:
        """Passes with rows of two lanes and of all."""
        for num_lanes in sorted({min(2, self.lab.num_lanes), self.lab.num_lanes}):
            lanes = list(range(num_lanes))
            starts = [self._prefix(3 * lane + num_lanes) for lane in lanes]
            share = MAX_TREE_ROWS // num_lanes
            chains = [self._chain(lane, start, share) for lane, start in zip(lanes, starts, strict=True)]
            yield Kind.VERIFY_CHAIN, lanes, starts, chains
            yield Kind.VERIFY_TREE, lanes, starts, [self._tree(share) for _ in lanes]
            yield Kind.EXTEND, lanes, starts, [self._chain(lane, s, 1) for lane, s in zip(lanes, starts, strict=True)]

    def _prefix(self, i: int) -> int:
        return self._prefixes[i % len(self._prefixes)]

    def _chain(self, lane: int, start: int, num_rows: int) -> DraftTree:
        """The text's own next tokens, and past its end its first ones."""
        tokens = (self._texts[lane] * 2)[start : start + num_rows]
        return DraftTree.chain(tokens[0], tokens[1:], [0.5] * (num_rows - 1), "proof")

    def _tree(self, num_rows: int) -> DraftTree:
        """A random tree in depth-first order: each node hangs under one of the last node's path."""
        vocab = self.lab.executor.geometry.vocab_size
        tree = DraftTree.root(self._random.randrange(vocab))
        for node in range(1, num_rows):
            tree.parents.append(self._random.choice(tree.path(node - 1)[-4:]))
            tree.tokens.append(self._random.randrange(vocab))
            tree.scores.append(0.5)
            tree.sources.append("proof")
        return tree
