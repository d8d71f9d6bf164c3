"""Proves a drafter's entries: the same guesses, bit by bit, however its rows came to pass; and that texts feel nothing.

Against drafts over rows synced one at a time, over one-token steps of the model. What is the same for chains and for
blocks stands here. Knows nothing of whether guesses are right.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.proof import Report
from tandem.tree import DraftTree

TEXT = 97
"""Tokens of each lane's text; it crosses a page."""
MOST_LANES = 4


class DraftsProof(ABC):
    """Runs over the lanes of `lab`, which hold other text afterwards; what differs goes to `report`."""

    def __init__(self, lab: Lab, report: Report, advance: Callable[[str], None] = lambda name: None) -> None:
        g = lab.executor.geometry
        assert g.drafter is not None
        self.lab, self.report, self.advance, self.drafts = lab, report, advance, DraftLab(lab)
        self._vocab_size, self.max_rows, self.outputs = g.vocab_size, g.max_rows, g.max_outputs
        length = min(TEXT, lab.max_tokens, g.context_length - MAX_TREE_ROWS)
        self.texts = [
            token_ids(length, g.vocab_size, seed=500 + lane) for lane in range(min(MOST_LANES, lab.num_lanes))
        ]
        self.ring = g.drafter.tap_rows

    def run(self) -> None:
        text = self.texts[0]
        self.advance("drafts, a row at a time")
        places = list(range(len(text)))
        plain = self._steps(text, [])
        tapped = self._steps(text, places)
        self.compare("one-token steps with taps: logits", tapped, plain)
        wanted = self.guesses(text, places, 1)
        self.cuts(text, places, wanted)
        self.advance("drafts over taps of chunks, chains and trees")
        self._taps(text, plain, wanted)
        self.advance("drafts of several lanes")
        self.lanes(wanted)

    @abstractmethod
    def guesses(self, text: Sequence[int], taps: Sequence[int], size: int) -> list[str]:
        """Digests of guesses over `text` in the first lane, whose taps lie in these rows of the ring and whose rows
        come in passes of `size`; "" where there are none."""

    @abstractmethod
    def cuts(self, text: Sequence[int], taps: Sequence[int], wanted: Sequence[str]) -> None:
        """The same in passes of other sizes, over what other rows left; nothing of it moves what the model keeps."""

    @abstractmethod
    def lanes(self, wanted: Sequence[str]) -> None:
        """Drafts alone and beside others."""

    def _steps(self, text: Sequence[int], places: Sequence[int]) -> list[str]:
        """Digests of logits of the model's one-token steps, which leave their taps at `places`."""
        return [self.lab.extend(0, [token], i, 1, places[i : i + 1])[0] for i, token in enumerate(text)]

    def _taps(self, text: Sequence[int], plain: Sequence[str], wanted: Sequence[str]) -> None:
        """The model's rows in passes of every kind leave the same taps, wherever in the ring."""
        places = [self.ring - 1 - i for i in range(len(text))]
        size = min(64, self.max_rows)
        for begin in range(0, len(text), size):
            chunk = text[begin : begin + size]
            outputs = min(len(chunk), self.outputs)
            bits = self.lab.extend(0, chunk, begin, outputs, places[begin : begin + size])
            last = begin + len(chunk)
            self.compare("chunks with taps: logits", bits, plain[last - outputs : last])
        self.compare("drafts over taps of chunks", self.guesses(text, places, size), wanted)
        for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
            places = self._verified(kind, text, plain)
            self.compare(f"drafts over taps of {kind}s", self.guesses(text, places, size), wanted)

    def _verified(self, kind: Kind, text: Sequence[int], plain: Sequence[str]) -> list[int]:
        """The text by rounds of `kind`, a tree with a wrong guess beside every right one; where its taps lie."""
        places, start, free = list[int](), 0, random.Random(5).sample(range(self.ring), self.ring)
        while start < len(text):
            line = text[start : start + MAX_TREE_ROWS // 2]
            tree, path = self._tree(line) if kind is Kind.VERIFY_TREE else (_line(line), list(range(len(line))))
            ring = [free.pop() for _ in tree.tokens]
            (bits,) = self.lab.verify(kind, [0], [start], [tree], ring)
            self.compare(f"{kind}s with taps: logits", [bits[node] for node in path], plain[start : start + len(line)])
            self.lab.commit([0], [start], [path])
            places += [ring[node] for node in path]
            start += len(line)
        return places

    def _tree(self, line: Sequence[int]) -> tuple[DraftTree, list[int]]:
        """`line` below its first token, each with a sibling that is wrong; and the line's nodes."""
        tree, path = DraftTree.root(line[0]), [0]
        for token in line[1:]:
            above = path[-1]
            for guess in ((token + 1) % self._vocab_size, token):
                tree.tokens.append(guess)
                tree.parents.append(above)
                tree.scores.append(0.5)
                tree.sources.append("proof")
            path.append(len(tree) - 1)
        return tree, path

    def compare(self, what: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        """Place by place; what no pass gave is "" and not compared."""
        for i, (bits, right) in enumerate(zip(found, wanted, strict=True)):
            if bits:
                self.report.compare(f"{what}, row {i}", bits, right)


def _line(tokens: Sequence[int]) -> DraftTree:
    return DraftTree.chain(tokens[0], list(tokens[1:]), [0.5] * (len(tokens) - 1), "proof")
