"""What a pass says of a lane's text: the target's own token behind a row, and how far that confirms a draft.

Knows nothing of rounds, of how passes run or of what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from tandem.runtime.executor.base import Executor, Outcome
from tandem.runtime.lane import Lane
from tandem.runtime.logprobs import measure
from tandem.runtime.sampling import draw
from tandem.tree import DraftTree

Accept = Callable[[np.ndarray, int, int], int]
"""Called with a row's logits, its own token and its node; the token that is committed."""


def pick(
    lane: Lane,
    executor: Executor,
    outcome: Outcome,
    first: int,
    node: int = 0,
    said: Sequence[int] = (),
    accept: Accept | None = None,
) -> int:
    """The target's own token after the row of output `first + node`, which stands behind the lane's text and `said`.

    `accept` may have a greedy lane's replaced by a drafted one. What the pass drew itself is the token.
    """
    if outcome.drawn and (drawn := outcome.drawn[first + node]) >= 0:
        return drawn
    asked, greedy = lane.ticket.request.logprobs, lane.sampling.temperature == 0
    if greedy and asked is None and accept is None and not lane.guides:
        return outcome.argmax[first + node]
    logits = partial(executor.logits, first + node)
    largest = outcome.argmax[first + node] if greedy else None
    guided = lane.guided(logits, said, largest)
    if guided is None and largest is not None:
        token = largest
    else:
        row = logits() if guided is None else guided
        token = draw(row, lane.sampling, lane.seed, len(lane.ids) + len(said))
    if accept is not None and greedy:
        token = accept(logits() if guided is None else guided, token, node)
    if asked is not None:
        lane.logprobs.append(measure(logits(), token, asked))
    return token


def walk(
    tree: DraftTree, target: Callable[[int, Sequence[int]], int], stop_ids: Collection[int]
) -> tuple[list[int], list[int]]:
    """Accepted nodes, the anchor first, and the tokens that they commit: one more than were guessed right.

    The walk follows `target` (a node and the tokens committed before it to the target's own next token) while the
    tree guessed it, and ends at a stop id.
    """
    path, tokens = [0], [target(0, ())]
    while tokens[-1] not in stop_ids:
        child = tree.follow(path[-1], tokens[-1])
        if child is None:
            break
        path.append(child)
        tokens.append(target(child, tokens))
    return path, tokens
