"""Copies instead of predicting: proposes what followed the last tokens earlier, in the request or on a shelf.

Knows nothing of prices, other lanes or the target model.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from operator import eq
from typing import Any

from tandem.runtime.drafters.index import ORDERS, ContextIndex
from tandem.runtime.drafters.rates import BOTH, LOCAL, CopyRates
from tandem.runtime.drafters.suffixes import MIN_ORDER, Found, Shelf, SuffixSearch
from tandem.runtime.drafters.votes import REACH, Witnesses, vote_line, vote_tree
from tandem.tree import DraftTree

Voice = tuple[str, list[int] | Found]
"""A source, and its places in the request or what a shelf said."""
SHELF_WEIGHT = 0.5
"""What a continuation found on a shelf counts beside one in the request itself."""


class LookupDrafter:
    """Lookup over prompt and output of one lane, and over `shelves`. Matches of one length speak, the surest.

    `min_order` (2 to 8) is the shortest match in the request that may, `shelf_order` (up to 8) on a shelf. `record`
    takes the ids of a text that is over, those of its prompt only `with_prompt`.
    """

    def __init__(
        self,
        rates: CopyRates | None = None,
        *,
        shelves: Sequence[Shelf] = (),
        vocab_size: int = 2**31,
        min_order: int = ORDERS[-1],
        shelf_order: int = MIN_ORDER,
        window: int = 32_768,
        record: Callable[[array[int]], None] | None = None,
        with_prompt: bool = True,
    ) -> None:
        for name, order in (("min_order", min_order), ("shelf_order", shelf_order)):
            if not ORDERS[-1] <= order <= ORDERS[0]:
                raise ValueError(f"{name} is {order}, not one of {ORDERS[-1]} to {ORDERS[0]}")
        self._rates = rates or CopyRates()
        self._min_order, self._vocab_size = min_order, vocab_size
        self._index = ContextIndex(window)
        self._searches = [SuffixSearch(shelf, shelf_order) for shelf in shelves]
        self._record, self._with_prompt = record, with_prompt
        self._text = array("i")
        self._witnesses = Witnesses()
        self._unheard: list[tuple[str, int, set[int]]] = []
        self._line: list[int] = []
        self._run = 0  # tokens of the text that followed the lines proposed, without a break

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        self._grow(len(prompt))
        self._text = array("i", prompt if self._record and self._with_prompt else ())
        self._witnesses, self._unheard, self._line, self._run = Witnesses(), [], [], 0

    def propose(self, max_nodes: int) -> list[DraftTree]:
        """The vote tree and the deep line, or the line alone where the tree is a part of it."""
        witnesses = self._witnesses = self._witness()
        self._line = []
        if not witnesses.after or max_nodes < 1:
            return []
        anchor = self._index.tokens[-1]
        line = vote_line(anchor, witnesses, self._rates, self._run, max_nodes)
        self._line = line.tokens[1:]
        trees = [line] if line.num_drafted else []
        if len(witnesses.after) > 1:
            tree = vote_tree(anchor, witnesses, self._rates, self._run, max_nodes)
            if tree.num_drafted and not (tree.is_chain and tree.tokens == line.tokens[: len(tree)]):
                trees.insert(0, tree)
        return trees

    def sync(self, rows: Sequence[int]) -> None:
        """Nothing to do: lookup reads tokens, not hidden rows."""

    def observe(self, tokens: Sequence[int]) -> None:
        self._count(tokens)
        self._index.extend(tokens)
        self._grow(len(tokens))
        if self._record:
            self._text.extend(tokens)

    def end(self) -> None:
        if self._record:
            self._record(self._text)

    def _grow(self, count: int) -> None:
        for search in self._searches:
            search.grow(count)

    def _witness(self) -> Witnesses:
        """Who is heard: of the lengths that were found to agree, that at which copies go on most often."""
        tokens = self._index.tokens
        places, agreed = self._index.places(self._min_order)
        voices: dict[int, list[Voice]] = {}
        if places:
            voices[agreed] = [(LOCAL, places)]
        for search in self._searches:
            found = search.find(tokens)
            if found.agreed:
                voices.setdefault(found.agreed, []).append((search.source, found))
        heard = max(voices, key=lambda agreed: self._sureness(agreed, voices), default=0)
        witnesses = Witnesses(heard, self._vocab_size)
        for source, seen in voices.pop(heard, ()):
            if isinstance(seen, Found):
                witnesses.add(seen.after, [SHELF_WEIGHT * count for count in seen.counts], source)
            else:
                lines = Counter([_after(tokens, place) for place in seen])
                witnesses.add(list(lines), list(map(float, lines.values())), source)
        self._unheard = [(source, agreed, self._said(seen)) for agreed, all_ in voices.items() for source, seen in all_]
        return witnesses

    def _said(self, seen: list[int] | Found) -> set[int]:
        """The next tokens according to one voice."""
        if isinstance(seen, Found):
            return {line[0] for line in seen.after if line and line[0] < self._vocab_size}
        return {self._index.tokens[place] for place in seen}

    def _sureness(self, agreed: int, voices: dict[int, list[Voice]]) -> tuple[float, int]:
        sources = {source for source, _ in voices[agreed]}
        return self._rates.rate(sources.pop() if len(sources) == 1 else BOTH, agreed, self._run), agreed

    def _count(self, tokens: Sequence[int]) -> None:
        """Scores the last proposal's witnesses against what came, up to the first step none of them foresaw."""
        witnesses, drafted, run = self._witnesses, self._line, self._run
        unheard, self._unheard = self._unheard, []
        self._witnesses, self._line = Witnesses(), []
        length = min(len(drafted), len(tokens))
        followed = length > 0 and drafted[:length] == list(tokens[:length])
        self._run = run + len(tokens) if followed else 0
        for source, agreed, said in unheard:  # or a voice that is not heard could never become surer
            if said:
                self._rates.count(source, agreed, run, tokens[0] in said)
        voters = witnesses.all()
        for depth, token in enumerate(tokens):
            if not voters:
                return
            source, agreed, ran = witnesses.source(voters), witnesses.agreed + depth, run + depth
            if len(voters) == 1:
                line = witnesses.said(voters[0], depth, len(tokens))
                right = sum(takewhile(bool, map(eq, line, tokens[depth:])))
                self._rates.count_all(source, agreed, ran, right)
                if right < len(line):
                    self._rates.count(source, agreed + right, ran + right, False)
                return
            votes = {said: who for _, said, who in witnesses.poll(voters, depth)}
            if not votes:
                return
            self._rates.count(source, agreed, ran, token in votes)
            voters = votes.get(token, [])


def _after(tokens: list[int], place: int) -> tuple[int, ...]:
    """REACH tokens from `place` on; what runs past the text's end begins again, as the text then repeats itself."""
    line = tuple(tokens[place : place + REACH])
    return line if len(line) == REACH else (line * (-(-REACH // len(line))))[:REACH]


def lookup_drafters(**options: Any) -> Callable[[], LookupDrafter]:
    """A factory of drafters with these options, one per lane, that share what they learn of how far copies go."""
    return partial(LookupDrafter, CopyRates(), **options)
