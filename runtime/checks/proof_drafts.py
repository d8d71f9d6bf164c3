"""Proves a drafter's entries: the same guesses, bit by bit, however its rows came to pass; and that texts feel nothing.

Against rows drafted one at a time over one-token steps of the model. Knows nothing of whether guesses are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.proof import Report
from tandem.runtime.rows import DraftSpan
from tandem.tree import DraftTree

TEXT = 97
"""Tokens of each lane's text; it crosses a page."""
CUTS = (1, 2, 7, 33, TEXT)
CHAIN = 4
MOST_LANES = 4


class DraftsProof:
    """Runs over the lanes of `lab`, which hold other text afterwards; what differs goes to `report`."""

    def __init__(self, lab: Lab, report: Report, advance: Callable[[str], None] = lambda name: None) -> None:
        g = lab.executor.geometry
        assert g.drafter is not None
        self.lab, self.report, self.advance, self._draft = lab, report, advance, DraftLab(lab)
        self._vocab_size, self._max_rows, self._outputs = g.vocab_size, g.max_rows, g.max_outputs
        length = min(TEXT, lab.max_tokens, g.context_length - MAX_TREE_ROWS)
        self._texts = [
            token_ids(length, g.vocab_size, seed=500 + lane) for lane in range(min(MOST_LANES, lab.num_lanes))
        ]
        self._ring = g.drafter.tap_rows

    def run(self) -> None:
        text = self._texts[0]
        self.advance("drafts, a row at a time")
        places = list(range(len(text)))
        plain = self._steps(text, [])
        tapped = self._steps(text, places)
        self._compare("one-token steps with taps: logits", tapped, plain)
        wanted = self._rows(text, places, 1)
        self._cuts(text, places, wanted)
        self.advance("drafts over taps of chunks, chains and trees")
        self._taps(text, plain, wanted)
        self.advance("drafts of several lanes")
        self._lanes(wanted)

    def _steps(self, text: Sequence[int], places: Sequence[int]) -> list[str]:
        """Digests of logits of the model's one-token steps, which leave their taps at `places`."""
        return [self.lab.extend(0, [token], i, 1, places[i : i + 1])[0] for i, token in enumerate(text)]

    def _rows(self, text: Sequence[int], taps: Sequence[int], size: int) -> list[str]:
        """Digests of all guesses over `text` by drafts of `size` rows; the last token has none behind it."""
        found, outputs = list[str](), min(size, self._outputs)
        for begin in range(0, len(text) - 1, size):
            tokens = text[begin + 1 : begin + 1 + size]
            bits = self._draft.guesses(0, tokens, begin, taps[begin : begin + len(tokens)])
            found += [""] * max(0, len(tokens) - outputs) + bits
        return found

    def _cuts(self, text: Sequence[int], taps: Sequence[int], wanted: Sequence[str]) -> None:
        """Drafts of many rows, and drafts behind a sync, which spoilt rows cannot pass for."""
        before = self.lab.state(0, len(text))
        for size in (cut for cut in CUTS if cut <= self._max_rows):
            self._spoil(text, taps)
            self._compare(f"drafts of {size} rows", self._rows(text, taps, size), wanted)
            self._spoil(text, taps)
            head = len(text) - 1 - min(self._outputs, (len(text) - 1) // 2)
            for begin in range(0, head, size):
                tokens = text[begin + 1 : min(begin + size, head) + 1]
                self._draft.sync(0, tokens, begin, taps[begin : begin + len(tokens)])
            found = self._draft.guesses(0, text[head + 1 :], head, taps[head : len(text) - 1])
            self._compare(f"drafts behind syncs of {size} rows", found, wanted[head:])
        self.report.compare("drafts: the model's state", self.lab.state(0, len(text)), before)

    def _spoil(self, text: Sequence[int], taps: Sequence[int]) -> None:
        """Other tokens' K and V in every slot, by drafts, so that a sync has something to put right."""
        others = text[:0:-1]
        for begin in range(0, len(others), self._max_rows):
            tokens = others[begin : begin + self._max_rows]
            self._draft.guesses(0, tokens, begin, taps[begin : begin + len(tokens)])

    def _taps(self, text: Sequence[int], plain: Sequence[str], wanted: Sequence[str]) -> None:
        """The model's rows in passes of every kind leave the same taps, wherever in the ring."""
        places = [self._ring - 1 - i for i in range(len(text))]
        size = min(64, self._max_rows)
        for begin in range(0, len(text), size):
            chunk = text[begin : begin + size]
            outputs = min(len(chunk), self._outputs)
            bits = self.lab.extend(0, chunk, begin, outputs, places[begin : begin + size])
            last = begin + len(chunk)
            self._compare("chunks with taps: logits", bits, plain[last - outputs : last])
        self._compare("drafts over taps of chunks", self._rows(text, places, size), wanted)
        for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
            places = self._verified(kind, text, plain)
            self._compare(f"drafts over taps of {kind}s", self._rows(text, places, size), wanted)

    def _verified(self, kind: Kind, text: Sequence[int], plain: Sequence[str]) -> list[int]:
        """The text by rounds of `kind`, a tree with a wrong guess beside every right one; where its taps lie."""
        places, start, free = list[int](), 0, random.Random(5).sample(range(self._ring), self._ring)
        while start < len(text):
            line = text[start : start + MAX_TREE_ROWS // 2]
            tree, path = self._tree(line) if kind is Kind.VERIFY_TREE else (_line(line), list(range(len(line))))
            ring = [free.pop() for _ in tree.tokens]
            (bits,) = self.lab.verify(kind, [0], [start], [tree], ring)
            self._compare(f"{kind}s with taps: logits", [bits[node] for node in path], plain[start : start + len(line)])
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

    def _lanes(self, wanted: Sequence[str]) -> None:
        """Chains alone and beside others; rows of a text overwrite those of a chain."""
        spans = list[DraftSpan]()
        for lane, text in enumerate(self._texts):
            taps = [lane * len(text) + i for i in range(len(text))]
            for begin in range(0, len(text), self._max_rows):
                chunk = text[begin : begin + self._max_rows]
                self.lab.extend(lane, chunk, begin, 1, taps[begin : begin + len(chunk)])
            start = len(text) - 5 - CHAIN - 3 * lane
            self._draft.sync(lane, text[1 : start + 1], 0, taps[:start])
            out = self._ring - MOST_LANES + lane
            spans.append(DraftSpan(lane, start, text[start + 1 : start + 6], taps[start : start + 5], out))
        alone = [self._draft.chains([span], CHAIN)[0] for span in spans]
        for lane, bits in enumerate(self._draft.chains(spans, CHAIN)):
            self._compare(f"chain of lane {lane} beside {len(spans) - 1} others", bits, alone[lane])
        # What a chain guessed lies where the text goes on, whose rows come in its place.
        text, start = self._texts[0], spans[0].start
        again = self._draft.guesses(0, text[start + 1 :], start, range(start, len(text) - 1))
        self._compare("drafts in place of a chain", again, wanted[start:])

    def _compare(self, what: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        """Place by place; what no pass gave is "" and not compared."""
        for i, (bits, right) in enumerate(zip(found, wanted, strict=True)):
            if bits:
                self.report.compare(f"{what}, row {i}", bits, right)


def _line(tokens: Sequence[int]) -> DraftTree:
    return DraftTree.chain(tokens[0], list(tokens[1:]), [0.5] * (len(tokens) - 1), "proof")
