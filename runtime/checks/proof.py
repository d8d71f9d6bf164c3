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
    """What one-token steps give: digests of logits by token prefix, of K and V by the text they hold."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._logits: dict[tuple[int, ...], str] = {}
        self._states: dict[tuple[int, ...], str] = {}

    def steps(self, lane: int, prefix: list[int], path: Sequence[int]) -> str:
        """The logits digest after prefix + path. The lane holds K and V up to path[:-1]."""
        key = (*prefix, *path)
        (found,) = self._lab.extend(lane, [path[-1]], len(prefix) + len(path) - 1)
        return self._logits.setdefault(key, found)

    def keep_state(self, lane: int, text: Sequence[int]) -> None:
        """Remembers K and V of `text`, which the lane holds from one-token steps and nothing else."""
        self._states[tuple(text)] = self._lab.state(lane, len(text))

    def known(self, prefix: list[int], path: Sequence[int]) -> str | None:
        return self._logits.get((*prefix, *path))

    def known_state(self, text: Sequence[int]) -> str | None:
        return self._states.get(tuple(text))


@dataclass(frozen=True, slots=True)
class Case:
    """One joint pass, and the path that each lane commits of its tree."""

    kind: Kind
    lanes: list[int]
    starts: list[int]
    trees: list[DraftTree]
    paths: list[list[int]]

    def __str__(self) -> str:
        return f"{self.kind}, {sum(map(len, self.trees))} rows, {len(self.lanes)} lanes, prefixes {self.starts}"


class Proof:
    """Runs the cases over a lab. `advance` hears the name of each case."""

    def __init__(self, lab: Lab, advance: Callable[[str], None] = lambda name: None) -> None:
        self.lab, self.advance, self.report = lab, advance, Report()
        self._vocab_size = lab.executor.geometry.vocab_size
        length = min(TEXT, lab.executor.geometry.context_length - MAX_TREE_ROWS)
        self._texts = [token_ids(length, self._vocab_size, seed=1000 + lane) for lane in range(lab.num_lanes)]
        self._held = [0] * lab.num_lanes  # how many first tokens of its text a lane holds
        self._prefixes = [n for n in PREFIXES if n <= length]
        self._reference = Reference(lab)
        self._random = random.Random(7)

    def run(self) -> Report:
        cases = [self._case(*case) for case in self._passes()]
        self._steps(cases)
        self._chunks()
        for case in cases:
            self.advance(str(case))
            self._verify(case)
        return self.report

    def _passes(self) -> Iterator[tuple[Kind, list[int], list[int], list[DraftTree]]]:
        """Chains of every width, trees from the smallest to the widest, then rows of several lanes."""
        for num_rows in range(1, MAX_TREE_ROWS + 1):
            prefix = self._prefix(num_rows)
            yield Kind.VERIFY_CHAIN, [0], [prefix], [self._chain(0, prefix, num_rows)]
        for i in range(NUM_TREES):
            num_rows = 2 + i * (MAX_TREE_ROWS - 2) // (NUM_TREES - 1)
            yield Kind.VERIFY_TREE, [0], [self._prefix(i)], [random_tree(num_rows, self._vocab_size, self._random)]
        yield from self._joint()

    def _case(self, kind: Kind, lanes: list[int], starts: list[int], trees: list[DraftTree]) -> Case:
        return Case(kind, lanes, starts, trees, [tree.path(self._random.randrange(len(tree))) for tree in trees])

    def _steps(self, cases: list[Case]) -> None:
        """One-token steps over the first text, whose states are kept where a case will want them."""
        text = self._texts[0]
        ends = {case.starts[0] + len(case.paths[0]) for case in cases if case.kind is not Kind.VERIFY_TREE}
        ends.add(len(text))
        for i in range(len(text)):
            self._reference.steps(0, text[:i], text[i : i + 1])
            if i + 1 in ends:
                self._reference.keep_state(0, text[: i + 1])

    def _chunks(self) -> None:
        """The same text in chunks of every size."""
        text = self._texts[0]
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
            state = self._reference.known_state(text) or ""
            self.report.compare(f"extend, chunks of {size}: state", self.lab.state(0, len(text)), state)

    def _verify(self, case: Case) -> None:
        """The pass and its commit, then the same by one-token steps."""
        for lane, start in zip(case.lanes, case.starts, strict=True):
            self._fill(lane, start)
        if case.kind is Kind.EXTEND:  # of one row a lane: it stays
            anchors = [tree.tokens[0] for tree in case.trees]
            found = [[bits] for bits in self.lab.step(case.lanes, anchors, case.starts)]
        else:
            found = self.lab.verify(case.kind, case.lanes, case.starts, case.trees)
            self.lab.commit(case.lanes, case.starts, case.paths)
        states = [
            self.lab.state(lane, start + len(path))
            for lane, start, path in zip(case.lanes, case.starts, case.paths, strict=True)
        ]
        for i, (lane, rows, state) in enumerate(zip(case.lanes, found, states, strict=True)):
            prefix, tree, path = self._texts[lane][: case.starts[i]], case.trees[i], case.paths[i]
            wanted, wanted_state = self._wanted(lane, prefix, tree, path)
            for node, row in enumerate(rows):
                self.report.compare(f"{case}, row {node}: logits", row, wanted[node])
            self.report.compare(f"{case}, path {path}: state", state, wanted_state)

    def _wanted(self, lane: int, prefix: list[int], tree: DraftTree, path: list[int]) -> tuple[list[str], str]:
        """Logits of every node and the state of `path` by one-token steps: those already taken, or now in the lane."""
        lines = [[tree.tokens[i] for i in tree.path(node)] for node in range(len(tree))]
        taken = [self._reference.known(prefix, line) for line in lines]
        kept = self._reference.known_state(prefix + lines[path[-1]])
        if kept is not None and None not in taken:
            return [bits for bits in taken if bits is not None], kept
        logits = [self._reference.steps(lane, prefix, line) for line in lines]
        for i in range(len(path)):
            self._reference.steps(lane, prefix, lines[path[-1]][: i + 1])
        return logits, self.lab.state(lane, len(prefix) + len(path))

    def _fill(self, lane: int, start: int) -> None:
        """Brings the first `start` tokens of its text into the lane, what it lost of them; the rest is open."""
        held = min(self._held[lane], start)
        if held < start:
            self.lab.fill(lane, self._texts[lane][held:start], held)
        self._held[lane] = start

    def _joint(self) -> Iterator[tuple[Kind, list[int], list[int], list[DraftTree]]]:
        """Passes with rows of two lanes and of all."""
        for num_lanes in sorted({min(2, self.lab.num_lanes), self.lab.num_lanes}):
            lanes = list(range(num_lanes))
            starts = [self._prefix(3 * lane + num_lanes) for lane in lanes]
            share = MAX_TREE_ROWS // num_lanes
            chains = [self._chain(lane, start, share) for lane, start in zip(lanes, starts, strict=True)]
            yield Kind.VERIFY_CHAIN, lanes, starts, chains
            trees = [random_tree(share, self._vocab_size, self._random) for _ in lanes]
            yield Kind.VERIFY_TREE, lanes, starts, trees
            yield Kind.EXTEND, lanes, starts, [self._chain(lane, s, 1) for lane, s in zip(lanes, starts, strict=True)]

    def _prefix(self, i: int) -> int:
        return self._prefixes[i % len(self._prefixes)]

    def _chain(self, lane: int, start: int, num_rows: int) -> DraftTree:
        """The text's own next tokens, and past its end its first ones."""
        tokens = (self._texts[lane] * 2)[start : start + num_rows]
        return DraftTree.chain(tokens[0], tokens[1:], [0.5] * (num_rows - 1), "proof")


def random_tree(num_rows: int, vocab_size: int, rng: random.Random) -> DraftTree:
    """A random tree in depth-first order: each node hangs under one of the last node's path."""
    tree = DraftTree.root(rng.randrange(vocab_size))
    for node in range(1, num_rows):
        tree.parents.append(rng.choice(tree.path(node - 1)[-4:]))
        tree.tokens.append(rng.randrange(vocab_size))
        tree.scores.append(0.5)
        tree.sources.append("proof")
    return tree
