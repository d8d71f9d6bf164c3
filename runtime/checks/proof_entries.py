"""Proves every entry of a device that has a program per context class and row count: `proof` meets only some.

A far context costs nothing: its blocks name pages that hold another text, for a pass and for the one-token steps that
it is held against alike. Knows nothing of how programs were made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from tandem.artifacts.io import Geometry
from tandem.keys import MAX_TREE_ROWS, TARGET_KINDS, Kind
from tandem.runtime.checks.lab import KEPT_BYTES, Lab, token_ids
from tandem.runtime.checks.proof import CHUNKS, TEXT, Proof, Report, random_tree
from tandem.runtime.checks.proof_blocks import BlocksProof
from tandem.runtime.checks.proof_chains import ChainsProof
from tandem.runtime.checks.proof_draws import DrawsProof
from tandem.runtime.checks.proof_rounds import RoundsProof
from tandem.runtime.executor.base import Executor
from tandem.tree import DraftTree

TAIL = 65
"""Tokens of the text behind the largest chunk: one more than a page."""
NEAR = 7
"""Positions below the lower border of a class at which its first passes begin, so that their rows lie on both sides."""
NEIGHBOUR, HALF = 17, MAX_TREE_ROWS // 2
"""Tokens of the lane beside one that is far, and the rows of each in a joint pass."""


def prove(lab: Lab, advance: Callable[[str], None] = lambda name: None) -> Report:
    """The proof over `lab`, that of rounds where a state is kept, that of drafts where a model drafts, that of the
    executor's entries where it has any, and that of draws where it makes them.

    `lab` holds other text afterwards.
    """
    report = Proof(lab, advance).run()
    if lab.slots:
        RoundsProof(lab, report, advance).run()
    if drafter := lab.executor.geometry.drafter:
        (BlocksProof if drafter.block else ChainsProof)(lab, report, advance).run()
    if lab.executor.entries:
        EntriesProof(lab.executor, report, advance).run()
    if lab.executor.geometry.draws:
        DrawsProof(lab.executor, report, advance).run()
    return report


def text_tokens(geometry: Geometry) -> int:
    """Tokens that the proof keeps in a lane: more than any chunk, as far as the context goes."""
    longest = geometry.max_rows + TAIL if geometry.max_rows > CHUNKS[-1] else 0
    return min(max(TEXT, longest), geometry.context_length - MAX_TREE_ROWS)


class EntriesProof:
    """Chunks of every size over one text, then every row count of every context class at both ends of the class."""

    def __init__(self, executor: Executor, report: Report, advance: Callable[[str], None] = lambda name: None) -> None:
        g = executor.geometry
        self.report, self.advance, self.geometry, self.entries = report, advance, g, executor.entries
        self.lab = Lab(executor, 1, KEPT_BYTES)
        self._row = self.lab.table
        # Blocks of a window: the rest of a page, a page before it, and the rows; then those of the lane beside it.
        self._window = 2 + -(-MAX_TREE_ROWS // g.page_tokens)
        self._beside = -(-(NEIGHBOUR + HALF) // g.page_tokens)
        held = (executor.num_pages - self._window - self._beside) * g.page_tokens
        self._text = token_ids(max(1, min(text_tokens(g), held)), g.vocab_size, seed=77)
        self.random = random.Random(11)
        full = len(self._text) // g.page_tokens
        pages = self._row[0]
        self._filled = pages[:full].tolist()
        used = set(pages[: -(-len(self._text) // g.page_tokens)].tolist())
        self._free = [page for page in range(executor.num_pages) if page not in used]

    def run(self) -> Report:
        self._chunks()
        below = 0
        for bound in sorted({bound for _, bound, _ in self.entries if bound}):
            far = min(bound, self.geometry.context_length) - MAX_TREE_ROWS - 1
            for start in sorted({min(max(1, below - NEAR), far), far}):
                if start > 0 and self._filled:
                    self.advance(f"every row count at {start} tokens")
                    Window(self, start, bound).run()
            below = bound
        return self.report

    def rows(self, kind: Kind, bound: int) -> list[int]:
        """Row counts of the entries of `kind` in class `bound`, rising."""
        return sorted({rows for k, b, rows in self.entries if (k, b) == (kind, bound)})

    def _sizes(self) -> Iterator[int]:
        """Each chunk with a program of its own that is larger than `proof` tried, and an odd size below the largest."""
        large = [rows for rows in self.rows(Kind.EXTEND, 0) if rows > CHUNKS[-1]]
        yield from large
        if len(large) > 1:
            yield (large[-2] + large[-1]) // 2 | 1

    def _chunks(self) -> None:
        sizes, text, lab = list(self._sizes()), self._text, self.lab
        if not sizes:
            lab.fill(0, text)
            return
        self.advance(f"one-token steps over {len(text)} tokens")
        wanted = [lab.extend(0, [token], i)[0] for i, token in enumerate(text)]
        state = lab.state(0, len(text))
        for size in sizes:
            self.advance(f"extend in chunks of {size}")
            for begin in range(0, len(text), size):
                chunk = text[begin : begin + size]
                outputs = min(len(chunk), self.geometry.max_outputs)
                first = begin + len(chunk) - outputs
                for i, found in enumerate(lab.extend(0, chunk, begin, outputs), first):
                    self.report.compare(f"extend, chunks of {size}, position {i}: logits", found, wanted[i])
            self.report.compare(f"extend, chunks of {size}: state", lab.state(0, len(text)), state)

    def place(self, first: int, lanes: int) -> None:
        """A new block table: lane 0's blocks below slot `first` name filled pages, all others pages of their own."""
        g = self.geometry
        table = self._row.repeat(lanes, axis=0)
        blocks, free = first // g.page_tokens, iter(self._free)
        table[0, :blocks] = self.random.choices(self._filled, k=blocks)
        for lane, first_block, count in ((0, blocks, self._window), (1, 0, self._beside))[:lanes]:
            for block in range(first_block, min(first_block + count, g.blocks_per_lane)):
                table[lane, block] = next(free)
        self.lab.table = table


class Window:
    """The passes that begin at `start`, a far place of lane 0, against one-token steps there."""

    def __init__(self, proof: EntriesProof, start: int, bound: int) -> None:
        g = proof.geometry
        self._proof, self._lab, self._report = proof, proof.lab, proof.report
        self._start, self._bound, self._vocab_size = start, bound, g.vocab_size
        self._head = max(0, start // g.page_tokens - 1) * g.page_tokens  # a chunk brings what lies below `start`
        self._two = g.max_lanes > 1 and g.context_length >= NEIGHBOUR + HALF
        proof.place(self._head, 2 if self._two else 1)
        self._lab.claim(0, self._head)
        self._tokens = token_ids(start - self._head + MAX_TREE_ROWS, g.vocab_size, seed=start)

    def run(self) -> None:
        below, line = self._tokens[:-MAX_TREE_ROWS], self._tokens[-MAX_TREE_ROWS:]
        self._chunk(below)
        widest = max((n for kind in TARGET_KINDS for n in self._proof.rows(kind, self._bound)), default=1)
        chain, states = self._chain_steps(line[:widest])
        for num_rows in self._proof.rows(Kind.EXTEND, self._bound):
            found = self._lab.extend(0, line[:num_rows], self._start, num_rows)
            self._compare(f"extend of {num_rows}", found, chain)
        for num_rows in self._proof.rows(Kind.VERIFY_CHAIN, self._bound):
            found = self._verify(Kind.VERIFY_CHAIN, _line(line[:num_rows]))
            self._compare(f"chain of {num_rows}", found, chain)
            self._lab.commit([0], [self._start], [range(num_rows)])
            self._say(f"chain of {num_rows}: state", self._state(num_rows), states[num_rows])
        self._trees()
        if self._two:
            self._beside(line, chain)

    def _chunk(self, below: Sequence[int]) -> None:
        """What lies below `start`, by steps and then in one pass of many rows: it stays."""
        if not below:
            return
        outputs = min(len(below), self._proof.geometry.max_outputs)
        wanted = [self._lab.extend(0, [token], self._head + i)[0] for i, token in enumerate(below)]
        state = self._lab.state(0, self._start, self._head)
        found = self._lab.extend(0, below, self._head, outputs)
        self._compare(f"extend of {len(below)} up to here", found, wanted[-outputs:])
        self._say(f"extend of {len(below)} up to here: state", self._lab.state(0, self._start, self._head), state)

    def _chain_steps(self, line: Sequence[int]) -> tuple[list[str], dict[int, str]]:
        """Logits of every step over `line`, and the states that they leave by length."""
        logits, states = list[str](), dict[int, str]()
        for i, token in enumerate(line):
            logits += self._lab.extend(0, [token], self._start + i)
            states[i + 1] = self._state(i + 1)
        return logits, states

    def _trees(self) -> None:
        """One tree, cut to every row count: in depth-first order its first nodes are a tree as well."""
        counts = self._proof.rows(Kind.VERIFY_TREE, self._bound)
        if not counts:
            return
        whole = random_tree(counts[-1], self._vocab_size, self._proof.random)
        wanted = [self._step(whole, node) for node in range(len(whole))]
        for num_rows in counts:
            found = self._verify(Kind.VERIFY_TREE, whole.truncate(num_rows))
            self._compare(f"tree of {num_rows}", found, wanted)
        path = whole.path(len(whole) - 1)
        self._lab.commit([0], [self._start], [path])
        committed = self._state(len(path))
        for node in path:
            self._step(whole, node)
        self._say(f"tree of {counts[-1]}, path {path}: state", committed, self._state(len(path)))

    def _step(self, tree: DraftTree, node: int) -> str:
        """The node's step; those above it were the last ones at their positions, as the order is depth-first."""
        return self._lab.extend(0, [tree.tokens[node]], self._start + len(tree.path(node)) - 1)[0]

    def _beside(self, line: Sequence[int], chain: Sequence[str]) -> None:
        """A joint pass with a lane that is near: the far one picks the class for both."""
        text = token_ids(NEIGHBOUR + HALF, self._vocab_size, seed=5)
        wanted = [self._lab.extend(1, [token], i)[0] for i, token in enumerate(text)][NEIGHBOUR:]
        trees = [_line(line[:HALF]), _line(text[NEIGHBOUR:])]
        far, near = self._lab.verify(Kind.VERIFY_CHAIN, [0, 1], [self._start, NEIGHBOUR], trees)
        self._compare("joint chains, this lane", far, chain)
        self._compare(f"joint chains, the lane at {NEIGHBOUR}", near, wanted)

    def _verify(self, kind: Kind, tree: DraftTree) -> list[str]:
        (found,) = self._lab.verify(kind, [0], [self._start], [tree])
        return found

    def _state(self, num_rows: int) -> str:
        return self._lab.state(0, self._start + num_rows, self._start)

    def _compare(self, what: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        for row, (bits, right) in enumerate(zip(found, wanted, strict=False)):
            self._say(f"{what}, row {row}: logits", bits, right)

    def _say(self, what: str, found: str, wanted: str) -> None:
        self._report.compare(f"at {self._start} tokens, class {self._bound}: {what}", found, wanted)


def _line(tokens: Sequence[int]) -> DraftTree:
    return DraftTree.chain(tokens[0], list(tokens[1:]), [0.5] * (len(tokens) - 1), "proof")
