"""The identity scenario: a prefill, chain verifies, a branching tree verify, a one-token step, as digests.

The same bits give the same digests: it compares two bundles, or a bundle with what it was sealed with.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of the prefill and rows of the verifies."""

    prefill: int
    chains: tuple[int, ...]
    tree: int

    @property
    def tokens(self) -> int:
        return self.prefill + sum(self.chains) + self.tree + 1


SCENARIOS = {"full": Sizes(96, (16, 8), 16), "load": Sizes(5, (3,), 4)}
"""`load` is repeated at every load, so its rows are few; a short context has only that."""


def branching_tree(anchor: int, tokens: list[int]) -> DraftTree:
    """A fixed shape of 1 + len(tokens) nodes, depth-first: lines of three, each branching from the second last."""
    tree = DraftTree.root(anchor)
    for node, token in enumerate(tokens, 1):
        parent = node - 1 if node % 3 else max(0, tree.parents[node - 1])
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.scores.append(0.5)
        tree.sources.append("scenario")
    return tree


def run_scenario(lab: Lab, sizes: Sizes) -> list[tuple[str, str]]:
    """(what, digest) pairs in order, over lane 0: logits after each pass, state after each commit."""
    vocab = lab.executor.geometry.vocab_size
    ids = token_ids(sizes.tokens, vocab, seed=42)
    seen: list[tuple[str, str]] = []
    length, max_rows = sizes.prefill, lab.executor.geometry.max_rows
    last = (length - 1) // max_rows * max_rows
    lab.fill(0, ids[:last])
    seen += [(f"prefill of {length}: logits", lab.extend(0, ids[last:length], last)[0])]
    for num_rows in sizes.chains:
        tokens = ids[length : length + num_rows]
        chain = DraftTree.chain(tokens[0], tokens[1:], [0.5] * (num_rows - 1), "scenario")
        (rows,) = lab.verify(Kind.VERIFY_CHAIN, [0], [length], [chain])
        seen += [(f"chain of {num_rows}, row {i}: logits", row) for i, row in enumerate(rows)]
        lab.commit([0], [length], [range(num_rows)])
        length += num_rows
    tree = branching_tree(ids[length], ids[length + 1 : length + sizes.tree])
    (rows,) = lab.verify(Kind.VERIFY_TREE, [0], [length], [tree])
    seen += [(f"tree of {len(tree)}, row {i}: logits", row) for i, row in enumerate(rows)]
    path = tree.path(len(tree) - 1)
    lab.commit([0], [length], [path])
    length += len(path)
    seen += [("commit: state", lab.state(0, length))]
    seen += [("one-token step: logits", lab.extend(0, ids[-1:], length)[0])]
    seen += [("one-token step: state", lab.state(0, length + 1))]
    return seen
