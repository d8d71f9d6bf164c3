"""Replays known text through drafter and router: a target that always says the next token, prices from a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree

CPU_STEPS = {"1": 1.0, "2": 1.10, "4": 1.41, "8": 1.96, "16": 3.04, "24": 4.13, "32": 5.12}


def cpu_table(step_ms: float = 20.0, commit_ms: float = 0.1) -> dict:
    """Prices as measured on two cores with a bf16 model: every row costs."""
    verify = {rows: step_ms * steps for rows, steps in CPU_STEPS.items()}
    commit = {"1": commit_ms, "32": 3 * commit_ms}
    return {"1024": {"extend": verify, "verify-chain": verify, "verify-tree": verify, "commit": commit}}


def flat_table(ms: float = 20.0) -> dict:
    """A device where a verify costs what a step costs."""
    return {"1024": {kind: {"1": ms} for kind in ("extend", "verify-chain", "verify-tree")}}


def words(*modules: str) -> list[int]:
    """Ids of the words, spaces and signs of Python sources of the standard library."""
    text = "".join(Path(str(__import__(module).__file__)).read_text(encoding="utf-8") for module in modules)
    known: dict[str, int] = {}
    return [known.setdefault(word, len(known)) for word in re.findall(r"\n +|\w{1,6}| ?[^\w\s]|\s", text)]


def walk(tree: DraftTree, text: Sequence[int]) -> list[int]:
    """What a verify commits when the target goes on with `text`: the accepted path and its own token."""
    node, committed = 0, [text[0]]
    while (child := tree.follow(node, committed[-1])) is not None and len(committed) < len(text):
        node = child
        committed.append(text[len(committed)])
    return committed


@dataclass
class Tally:
    """What a replay came to; `steps` is what plain decoding would have cost."""

    tokens: int = 0
    ms: float = 0.0
    steps: float = 0.0
    rows: list[int] = field(default_factory=list)

    @property
    def per_round(self) -> float:
        return self.tokens / len(self.rows)


def replay(
    prompt: Sequence[int],
    text: Sequence[int],
    drafter: Drafter,
    table: dict,
    true_ms: Callable[[Kind, int], float] | None = None,
) -> Tally:
    """Decodes `text` after `prompt`. Rounds cost what the table says, or `true_ms(kind, rows)`."""
    prices, fixed, tally = PriceModel(table), PriceModel(table), Tally()
    true_ms = true_ms or (lambda kind, rows: fixed.ms(0, kind, rows))
    router = StairCut(prices)
    router.open(5)
    drafter.begin(prompt)
    while tally.tokens < len(text):
        candidates = [drafter.propose(31)]
        tree = DraftTree.root(0)
        if candidates[0]:
            (tree,) = router.choose(candidates, [len(prompt)], 32, [5]) or [tree]
        committed = walk(tree, text[tally.tokens :])
        kind = Kind.VERIFY_CHAIN if tree.is_chain else Kind.VERIFY_TREE
        kind = kind if tree.num_drafted else Kind.EXTEND
        ms = true_ms(kind, len(tree))
        prices.observe(len(prompt), kind, len(tree), ms)
        if kind is Kind.VERIFY_TREE:
            ms += true_ms(Kind.COMMIT, len(committed))
        if candidates[0]:
            router.settle([committed], ms)
        drafter.observe(committed)
        tally.tokens += len(committed)
        tally.ms += ms
        tally.steps += true_ms(Kind.EXTEND, 1) * len(committed)
        tally.rows.append(len(tree))
    return tally
