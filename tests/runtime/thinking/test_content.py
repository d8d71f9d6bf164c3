"""What follows the thoughts has a guide of its own, which sees nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.thinking.block import BlockReader, Tags
from tandem.runtime.thinking.budget import Wish
from tandem.runtime.thinking.content import AfterThoughts
from tandem.runtime.thinking.guide import BUDGET, Closings, ThoughtsGuide
from tandem.runtime.thinking.model import ThinkingModel
from tandem.tree import DraftTree
from tests.thinking_reference import BARE, USUAL, WORDS, forced, standing

READER, VOCAB = BlockReader(Tags(), WORDS.__getitem__), len(WORDS)


class Sums:
    """Wants one id: the sum of the content so far, and nothing where it is 0."""

    def __init__(self) -> None:
        self.text: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens

    def wanted(self, said: Sequence[int]) -> int:
        return sum([*self.text, *said]) % VOCAB

    def changes(self, said: Sequence[int]) -> bool:
        return self.wanted(said) > 0

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        return token == self.wanted(said)

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        return np.where(np.arange(VOCAB) == self.wanted(said), logits, np.float32(-np.inf))

    def cut(self, tree: DraftTree) -> DraftTree:
        return DraftTree.chain(tree.tokens[0], [self.wanted(())], [1.0], "sums")


def content(answer: Sequence[int], budget: int) -> list[int] | None:
    """What stands behind the block and its closing text; None while they last."""
    for n in range(len(answer) + 1):
        if not standing([1], answer[:n], WORDS.__getitem__).is_open and forced([1], answer[:n], budget) is None:
            return list(answer[n:])
    return None


tokens = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from([0, 9, 10]))


@settings(max_examples=120)
@given(
    budget=st.integers(0, 5),
    steps=st.lists(st.tuples(st.lists(tokens, max_size=8), st.lists(tokens, min_size=1, max_size=6)), max_size=6),
)
def test_each_has_its_part(budget: int, steps: list[tuple[list[int], list[int]]]) -> None:
    inner, answer = Sums(), list[int]()
    guide = AfterThoughts(ThoughtsGuide(READER, True, Closings(USUAL, BARE), budget=budget), inner)
    for draft, wish in steps:
        for n in range(len(draft) + 1):
            said = draft[:n]
            followed, must = content([*answer, *said], budget), forced([1], [*answer, *said], budget)
            if followed is not None:
                must = sum(followed) % VOCAB or None
            assert guide.changes(said) == (must is not None)
            if must is not None:
                assert guide.keeps(must, said) and not guide.keeps((must + 1) % VOCAB, said)
                assert guide.applied(np.zeros(VOCAB, np.float32), said).argmax() == must
        came = list[int]()
        for token in wish:
            id_ = forced([1], [*answer, *came], budget)
            came.append(token if id_ is None else id_)
        guide.extend(came)
        answer += came
        assert inner.text == (content(answer, budget) or [])
        added = [] if (line := guide.cut(DraftTree.root(9)).tokens[1:2]) == [] else line
        after = content(answer, budget)
        expected = forced([1], answer, budget) if after is None else sum(after) % VOCAB
        assert added == ([] if expected is None else [expected])


def test_a_prompt_without_a_block_has_content_from_the_start() -> None:
    told = list[str]()
    model = ThinkingModel(READER, Closings(USUAL, BARE), budget=3, closed=told.append)
    contents = [lambda prompt, stops: Sums()] * 2
    (alone, _) = model.guides(Wish(), 20, contents, in_thoughts=False)
    assert isinstance(alone([9], ()), Sums)
    first, second = model.guides(Wish(), 20, contents, in_thoughts=True)
    guides = [make([1], ()) for make in (first, second)]
    for token in [9, 9, 9, *USUAL, 5]:
        for guide in guides:
            guide.extend([token])
    assert told == [BUDGET], "one block is closed once, however many guides follow"
    assert all(guide.keeps(5, ()) for guide in guides)
