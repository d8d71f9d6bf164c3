"""From witnesses of what came next to a draft tree and a draft line.

A node's score is the probability of its path: its parent's, times the rate at which copies of this agreement go
on, times its share of the votes. Knows nothing of how witnesses are found or what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, islice, takewhile
from operator import mul

from tandem.keys import MAX_TREE_ROWS
from tandem.runtime.drafters.rates import BOTH, CopyRates
from tandem.tree import DraftTree

REACH = MAX_TREE_ROWS
"""Tokens of a witness that are looked at, as many as a round may commit."""
MAX_DEPTH = 16
MAX_CHILDREN = 3
LEAST = 0.02
"""Scores below it are not drafted: they pay on no staircase, and every node costs the round it is weighed in."""

Vote = tuple[float, int, list[int]]
"""Mass, token, and the witnesses that give it."""


@dataclass(slots=True)
class Witnesses:
    """What followed, in several places, where the text's last `agreed` tokens stood before.

    `after` are up to REACH tokens of each, `weights` how much it counts, `sources` where it is from. What is no id of
    `vocab_size` ends a witness.
    """

    agreed: int = 0
    vocab_size: int = 2**31
    after: list[Sequence[int]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    _polled: dict[tuple[int, int], list[Vote]] = field(default_factory=dict)

    def add(self, after: Sequence[Sequence[int]], weights: Sequence[float], source: str) -> None:
        """More witnesses, all from one place."""
        self.after += after
        self.weights += weights
        self.sources += [source] * len(after)

    def all(self) -> list[int]:
        """Everybody, as `poll` wants it."""
        return list(range(len(self.after)))

    def said(self, voter: int, begin: int, end: int) -> Sequence[int]:
        """What a witness says from `begin` to `end`, as far as these are ids."""
        line, size = self.after[voter][begin:end], self.vocab_size
        if line and not (min(line) >= 0 and max(line) < size):
            return list(takewhile(range(size).__contains__, line))
        return line

    def poll(self, voters: Sequence[int], depth: int) -> list[Vote]:
        """What `voters`, all who said the same `depth` tokens, say next: most mass first, then as added."""
        if not voters:
            return []
        known = (depth, voters[0])  # who said the same once stays together, so one of them tells who the others are
        if known not in self._polled:
            self._polled[known] = self._poll(voters, depth)
        return self._polled[known]

    def _poll(self, voters: Sequence[int], depth: int) -> list[Vote]:
        votes: dict[int, list[int]] = {}
        for voter in voters:
            line = self.after[voter]
            if depth < len(line):
                token = line[depth]
                if token in votes:
                    votes[token].append(voter)
                else:
                    votes[token] = [voter]
        weights, size = self.weights, self.vocab_size
        polled = [
            (weights[who[0]] if len(who) == 1 else sum([weights[voter] for voter in who]), token, who)
            for token, who in votes.items()
            if 0 <= token < size
        ]
        if len(polled) > 1:
            polled.sort(key=_by_falling_mass)
        return polled

    def source(self, voters: Sequence[int]) -> str:
        """Where these are from; BOTH if not all of them are from the same."""
        sources = self.sources
        first = sources[voters[0]]
        # Those of one source were added together, so the ends tell.
        return first if first == sources[voters[-1]] else BOTH


def vote_tree(anchor: int, witnesses: Witnesses, rates: CopyRates, run: int, max_nodes: int) -> DraftTree:
    """The `max_nodes` likeliest nodes of the prefix tree over all continuations, MAX_DEPTH deep at most.

    `run` is how many tokens the text has followed such lines already.
    """
    tree = DraftTree.root(anchor)
    # Entries: negative score, order of arrival, parent, token, depth, voters.
    heap: list[tuple[float, int, int, int, int, list[int]]] = []
    arrivals = 0

    def nominate(node: int, depth: int, voters: Sequence[int]) -> None:
        nonlocal arrivals
        votes = witnesses.poll(voters, depth)
        if not votes:
            return
        rate = rates.rate(witnesses.source(voters), witnesses.agreed + depth, run + depth)
        reach = tree.scores[node] * rate / sum([mass for mass, _, _ in votes])
        for mass, token, who in islice(votes, MAX_CHILDREN):
            score = reach * mass
            if score >= LEAST:
                heappush(heap, (-score, arrivals, node, token, depth + 1, who))
                arrivals += 1

    nominate(0, 0, witnesses.all())
    while heap and tree.num_drafted < max_nodes:
        score, _, parent, token, depth, who = heappop(heap)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.scores.append(-score)
        tree.sources.append(witnesses.source(who))
        if depth < MAX_DEPTH:
            nominate(len(tree) - 1, depth, who)
    return tree.arranged()


def vote_line(anchor: int, witnesses: Witnesses, rates: CopyRates, run: int, max_nodes: int) -> DraftTree:
    """The line of the most votes at every step, as long as it may be, at most REACH."""
    tokens, scores, sources = [anchor], [1.0], ["root"]
    score, voters, source, reach = 1.0, witnesses.all(), "", min(max_nodes, REACH)
    ladder: list[float] = []
    for depth in range(reach):
        if voters and source != (now := witnesses.source(voters)):
            source, ladder = now, rates.ladder(now, witnesses.agreed, run, REACH)
        if len(voters) == 1:
            said = witnesses.said(voters[0], depth, reach)
            path = list(accumulate(ladder[depth : depth + len(said)], mul, initial=score))[1:]
            if said and path[-1] < LEAST:
                path = list(takewhile(LEAST.__le__, path))
            tokens += said[: len(path)]
            scores += path
            sources += [source] * len(path)
            break
        votes = witnesses.poll(voters, depth)
        if not votes:
            break
        mass, token, voters = votes[0]
        score *= ladder[depth]
        if len(votes) > 1:
            score *= mass / sum([mass for mass, _, _ in votes])
        if score < LEAST:
            break
        tokens.append(token)
        scores.append(score)
        sources.append(witnesses.source(voters))
    return DraftTree(tokens, list(range(-1, len(tokens) - 1)), scores, sources)


def _by_falling_mass(vote: Vote) -> float:
    return -vote[0]
