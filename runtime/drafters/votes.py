"""From places that vote for what comes next to a draft tree and a draft line.

A node's score is the probability of its path: its parent's, times the rate at which copies of this agreement go
on, times its share of the votes. Knows nothing of how places are found or what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import islice

from tandem.runtime.drafters.rates import CopyRates
from tandem.tree import DraftTree

MAX_DEPTH = 16
MAX_CHILDREN = 3
LEAST = 0.02
"""Scores below it are not drafted: they pay on no staircase, and every node costs the round it is weighed in."""
SOURCE = "local"


def poll(tokens: Sequence[int], places: Sequence[int], drafted: Sequence[int] = ()) -> dict[int, list[int]]:
    """Votes at these places: next token -> places after it, most votes first, then newest.

    A place past the text's end reads on in `drafted`, so a text that repeats itself goes on repeating.
    """
    votes: dict[int, list[int]] = {}
    length, ahead = len(tokens), len(tokens) + len(drafted)
    for place in places:
        if place < ahead:
            token = tokens[place] if place < length else drafted[place - length]
            if token in votes:
                votes[token].append(place + 1)
            else:
                votes[token] = [place + 1]
    return dict(sorted(votes.items(), key=lambda vote: -len(vote[1]))) if len(votes) > 1 else votes


def vote_tree(tokens: Sequence[int], places: Sequence[int], agreed: int, rates: CopyRates, max_nodes: int) -> DraftTree:
    """The `max_nodes` likeliest nodes of the prefix tree over all continuations."""
    tree = DraftTree.root(tokens[-1])
    # Entries: negative score, order of arrival, parent, token, depth, places after the token.
    heap: list[tuple[float, int, int, int, int, list[int]]] = []
    arrivals = 0
    ladder = rates.ladder(agreed, MAX_DEPTH)

    def nominate(node: int, depth: int, after: Sequence[int]) -> None:
        nonlocal arrivals
        votes = poll(tokens, after)
        reach = tree.scores[node] * ladder[depth]
        total = sum([len(further) for further in votes.values()])
        for token, further in islice(votes.items(), MAX_CHILDREN):
            score = reach * len(further) / total
            if score >= LEAST:
                heappush(heap, (-score, arrivals, node, token, depth + 1, further))
                arrivals += 1

    nominate(0, 0, places)
    while heap and tree.num_drafted < max_nodes:
        score, _, parent, token, depth, after = heappop(heap)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.scores.append(-score)
        tree.sources.append(SOURCE)
        if depth < MAX_DEPTH:
            nominate(len(tree) - 1, depth, after)
    return tree.arranged()


def vote_line(tokens: Sequence[int], places: Sequence[int], agreed: int, rates: CopyRates, max_nodes: int) -> DraftTree:
    """The line of the most votes at every step, as long as it may be."""
    line: list[int] = []
    scores: list[float] = []
    score, after = 1.0, list(places)
    for rate in rates.ladder(agreed, max_nodes):
        if len(after) == 1:
            token, share, after = _next(tokens, after[0], line), 1.0, [after[0] + 1]
        else:
            votes, voters = poll(tokens, after, line), len(after)
            token, after = next(iter(votes.items()))
            share = len(after) / voters
        score *= rate * share
        if score < LEAST:
            break
        line.append(token)
        scores.append(score)
    return DraftTree.chain(tokens[-1], line, scores, SOURCE)


def _next(tokens: Sequence[int], place: int, drafted: Sequence[int]) -> int:
    return tokens[place] if place < len(tokens) else drafted[place - len(tokens)]
