"""Proves that rounds may follow each other in any order: what one leaves of a recurrent state, the next begins with.

Every kind of round behind every other, in one lane and in several that are never of one mind, against one-token steps
over the text that came of it. Knows nothing of drafters: paths are accepted as the case wants it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.keys import MAX_TREE_ROWS
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.orders import every_order
from tandem.runtime.checks.proof import Report, random_tree
from tandem.runtime.rows import verify_kind
from tandem.tree import DraftTree

KINDS = ("plain", "none", "some", "all", "tree", "restored")
"""A step; chains of which nothing, half and everything is accepted; a tree of which some path is; a step behind another
one that is taken back, so that the state comes from a snapshot."""
PROMPT = 17
MOST_LANES = 4
WIDEST = 6
"""Rows of a lane's chain or tree."""


@dataclass(slots=True)
class Text:
    """What a lane holds, digests of the logits by position, and of the state by length: all as rounds left them."""

    ids: list[int]
    logits: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


class RoundsProof:
    """Plays and steps over the lanes of `lab`; what differs goes to `report`."""

    def __init__(self, lab: Lab, report: Report, advance: Callable[[str], None] = lambda name: None) -> None:
        self.lab, self.report, self.advance = lab, report, advance
        self._vocab_size = lab.executor.geometry.vocab_size
        self._most = min(lab.max_tokens, lab.executor.geometry.context_length)
        self._random = random.Random(13)

    def run(self) -> None:
        for num_lanes in sorted({1, min(MOST_LANES, self.lab.num_lanes)}):
            self.advance(f"rounds in every order, {num_lanes} lanes")
            for lane, text in enumerate(self._play(num_lanes)):
                self._compare(f"rounds in every order, lane {lane} of {num_lanes}", lane, text)

    def _play(self, num_lanes: int) -> list[Text]:
        """Every order in each lane, which is not where the others are in it."""
        order, width = every_order(KINDS), min(WIDEST, MAX_TREE_ROWS // num_lanes)
        texts = [Text(token_ids(PROMPT + 3 * lane, self._vocab_size, seed=31 + lane)) for lane in range(num_lanes)]
        for lane, text in enumerate(texts):
            self.lab.fill(lane, text.ids)
        for number in range(len(order) + 1):
            if max(len(text.ids) for text in texts) + width > self._most:
                break
            self._round([order[(number + 7 * lane) % len(order)] for lane in range(num_lanes)], texts, width)
        return texts

    def _round(self, kinds: list[str], texts: list[Text], width: int) -> None:
        lanes, starts = list(range(len(texts))), [len(text.ids) for text in texts]
        for lane in (lane for lane in lanes if kinds[lane] == "restored"):
            self.lab.extend(lane, [self._random.randrange(self._vocab_size)], starts[lane])
        trees = [self._tree(kind, width) for kind in kinds]
        if all(len(tree) == 1 for tree in trees):
            found = [[bits] for bits in self.lab.step(lanes, [tree.tokens[0] for tree in trees], starts)]
            paths = [[0]] * len(lanes)
        else:
            found = self.lab.verify(verify_kind(trees), lanes, starts, trees)
            paths = [self._path(kind, tree) for kind, tree in zip(kinds, trees, strict=True)]
            self.lab.commit(lanes, starts, paths)
        for lane, (text, tree, path, rows) in enumerate(zip(texts, trees, paths, found, strict=True)):
            text.logits.update({len(text.ids) + depth: rows[node] for depth, node in enumerate(path)})
            text.ids += [tree.tokens[node] for node in path]
            text.states[len(text.ids)] = self.lab.state(lane, len(text.ids))

    def _tree(self, kind: str, width: int) -> DraftTree:
        if kind == "tree":
            return random_tree(width, self._vocab_size, self._random)
        num_rows = 1 if kind in ("plain", "restored") else width
        tokens = [self._random.randrange(self._vocab_size) for _ in range(num_rows)]
        return DraftTree.chain(tokens[0], tokens[1:], [0.5] * (len(tokens) - 1), "proof")

    def _path(self, kind: str, tree: DraftTree) -> list[int]:
        last = {"none": 0, "some": len(tree) // 2, "all": len(tree) - 1}.get(kind)
        return tree.path(self._random.randrange(len(tree)) if last is None else last)

    def _compare(self, what: str, lane: int, text: Text) -> None:
        for position, token in enumerate(text.ids):
            (bits,) = self.lab.extend(lane, [token], position)
            if found := text.logits.get(position):
                self.report.compare(f"{what}, position {position}: logits", found, bits)
            if found := text.states.get(position + 1):
                state = self.lab.state(lane, position + 1)
                self.report.compare(f"{what}, {position + 1} tokens: state", found, state)
