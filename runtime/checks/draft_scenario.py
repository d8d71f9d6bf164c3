"""The identity scenario's part of a drafter: taps of a model's pass, a sync over them, guesses behind, as digests.

Short, so that it can be repeated at every load.
"""

from __future__ import annotations

from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.executor.base import Executor
from tandem.runtime.rows import DraftSpan

NAME = "draft"
"""Its digests' name in the oracle."""
TOKENS, SYNCED, CHAIN = 12, 8, 4


def run(executor: Executor) -> list[tuple[str, str]]:
    """(what, digest) pairs in order, over the first lane; it leaves tokens in pages that no lane may hold yet."""
    lab = Lab(executor, 1)
    draft, ids = DraftLab(lab), token_ids(TOKENS + 1, executor.geometry.vocab_size, seed=43)
    seen = [("taps: logits", lab.extend(0, ids[:TOKENS], 0, 1, range(TOKENS))[0])]
    drafter = executor.geometry.drafter
    if drafter is not None and drafter.block is not None:
        for begin, end in ((0, SYNCED), (SYNCED, TOKENS)):
            draft.sync(0, ids[begin:end], begin, range(begin, end))
        return seen + [(f"block, slot {i}", bits) for i, bits in enumerate(draft.slots([0], [TOKENS], ids[TOKENS:]), 1)]
    draft.sync(0, ids[1 : SYNCED + 1], 0, range(SYNCED))
    rows = DraftSpan(0, SYNCED, ids[SYNCED + 1 :], range(SYNCED, TOKENS), tap_out=TOKENS)
    (chain,) = draft.chains([rows], CHAIN)
    return seen + [(f"chain, guess {depth}", bits) for depth, bits in enumerate(chain, 1)]
