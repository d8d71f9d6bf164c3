"""The self-check at load: a small fixed scenario against what was sealed, a pass of every kind with all its bits.

Four passes of 13 rows in all and a commit. It leaves tokens in pages that no lane holds yet. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.oracle import Digests, differing
from tandem.runtime.checks.scenario import SCENARIOS, Sizes, branching_tree, run_scenario
from tandem.runtime.executor.base import Executor

NAME = "load"


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What differs from the oracle, and which rows differ from one-token steps on this very machine."""

    compared: int
    from_oracle: tuple[str, ...] = ()
    from_steps: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not self.from_oracle and not self.from_steps

    def __str__(self) -> str:
        if self.held:
            return f"self-check: {self.compared} comparisons, no bit differs"
        parts = [
            f"{len(items)} of {self.compared} digests differ from {what}, first: {items[0]}"
            for what, items in (("one-token steps", self.from_steps), ("what was sealed", self.from_oracle))
            if items
        ]
        return f"self-check: {'; '.join(parts)}"


def self_check(executor: Executor, oracle: Digests | None) -> SelfCheck:
    """Runs the `load` scenario on `executor` and compares it with `oracle`.

    Where there is none or it does not hold, rows are compared with one-token steps of this machine as well; the
    proof did so where the oracle comes from. A context too short for the scenario is not checked.
    """
    sizes = SCENARIOS[NAME]
    if executor.geometry.context_length < sizes.tokens:
        return SelfCheck(0)
    lab = Lab(executor, 1)
    found = run_scenario(lab, sizes)
    from_oracle = [] if oracle is None else differing(found, oracle)
    if oracle is not None and not from_oracle:
        return SelfCheck(len(found))
    steps = _steps(lab, sizes, executor.geometry.vocab_size)
    from_steps = [what for what, bits in steps if dict(found)[what] != bits]
    compared = len(steps) + (len(found) if oracle is not None else 0)
    return SelfCheck(compared, tuple(from_oracle), tuple(from_steps))


def _steps(lab: Lab, sizes: Sizes, vocab_size: int) -> Digests:
    """The last row of the first chain and of the tree again, each as a step of its own, and the state they leave.

    The lane holds the scenario's text: prefill, chains, and the tree's path to its last node.
    """
    ids = token_ids(sizes.tokens, vocab_size, seed=42)
    first, tree_at = sizes.prefill + sizes.chains[0] - 1, sizes.prefill + sum(sizes.chains)
    tree = branching_tree(ids[tree_at], ids[tree_at + 1 : tree_at + sizes.tree])
    end = tree_at + len(tree.path(len(tree) - 1))
    return [
        (f"chain of {sizes.chains[0]}, row {sizes.chains[0] - 1}: logits", _step(lab, ids[first : first + 1], first)),
        (f"tree of {len(tree)}, row {len(tree) - 1}: logits", _step(lab, tree.tokens[-1:], end - 1)),
        ("one-token step: state", lab.state(0, end + 1)),
    ]


def _step(lab: Lab, token: Sequence[int], position: int) -> str:
    return lab.extend(0, token, position)[0]
