"""A guide is the matcher of its text alone: masks and cuts are those of a fresh matcher, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from tandem.errors import RequestError
from tandem.runtime.grammar import specification
from tandem.runtime.grammar.guide import SOURCE, GrammarGuide
from tandem.tree import DraftTree
from tests.grammars import END, INTEGER, VOCAB, ids, legal, spelled, tokenizer, vocabulary
from tests.runtime.grammar.kinds import GRAMMARS, KINDS, MAKERS, SOURCES, guide_of


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_mask_is_that_of_the_text_whatever_was_asked_before(name: str, data: st.DataObject) -> None:
    """Rows of a tree come in any order; commits, cuts and questions leave no trace."""
    guide, text, row = guide_of(MAKERS[name]), list[int](), np.arange(VOCAB, dtype=np.float32)
    for _ in range(data.draw(st.integers(1, 6))):
        said = list[int]()
        for _ in range(data.draw(st.integers(0, 3))):
            choices = [token for token in legal(SOURCES[name], [*text, *said]) if token != END]
            if not choices:
                break
            said.append(data.draw(st.sampled_from(choices)))
        for length in data.draw(st.permutations(range(len(said) + 1))):
            allowed = legal(SOURCES[name], [*text, *said[:length]])
            changed = guide.applied(row, said[:length])
            assert np.flatnonzero(changed > -np.inf).tolist() == allowed and max(allowed) < tokenizer().get_vocab_size()
            assert (changed[allowed] == row[allowed]).all()
            some = data.draw(st.integers(0, VOCAB - 1))
            assert guide.keeps(some, said[:length]) is (some in allowed)
        if data.draw(st.booleans()):
            guide.cut(DraftTree.chain(5, data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=4)), [0.5] * 4, "x"))
        if data.draw(st.booleans()):
            guide.extend(said)
            text += said


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """What each drafted node says, from the anchor's child on."""
    return {tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(1, len(tree))}


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_cut_leaves_what_may_be_drawn_and_adds_what_will_be(name: str, data: st.DataObject) -> None:
    guide, source, text = guide_of(MAKERS[name]), SOURCES[name], list[int]()
    for _ in range(data.draw(st.integers(0, 5))):
        choices = [token for token in legal(source, text) if token != END]
        if choices:
            text.append(data.draw(st.sampled_from(choices)))
    guide.extend(text)
    tree = DraftTree.root(9)
    for _ in range(data.draw(st.integers(0, 8))):
        parent = data.draw(st.integers(0, len(tree) - 1))
        said = [tree.tokens[i] for i in tree.path(parent)[1:]]
        usual = legal(source, [*text, *said]) if all_legal(source, text, said) and END not in said else [1]
        token = data.draw(st.sampled_from(usual) | st.integers(0, VOCAB - 1))
        if tree.follow(parent, token) is None:
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.scores.append(tree.scores[parent] * 0.5)
            tree.sources.append("x")
    tree = tree.arranged()
    cut = guide.cut(tree)
    assert cut.tokens[0] == 9 and cut.is_tree
    assert all(cut.parents[node] in cut.path(node - 1) for node in range(1, len(cut))), "depth-first pre-order"
    for path in paths(tree):
        if END not in path and all_legal(source, text, path):
            assert path in paths(cut)
    for node in range(1, len(cut)):
        path = [cut.tokens[i] for i in cut.path(node)[1:]]
        if cut.sources[node] == SOURCE:
            assert legal(source, [*text, *path[:-1]]) == [path[-1]] and cut.scores[node] == 1.0
        else:
            assert tuple(path) in paths(tree)
            assert LLMatcher.consume_tokens(guide_of(MAKERS[name])._matcher, [*text, *path])


def all_legal(source: str, text: Sequence[int], said: Sequence[int]) -> bool:
    """Whether a text may go on with `said`, of which nothing stands behind an end."""
    return END not in said[:-1] and all(said[i] in legal(source, [*text, *said[:i]]) for i in range(len(said)))


def test_bug_45_a_tree_with_an_illegal_branch() -> None:
    guide = guide_of(GRAMMARS.compile(specification.json_schema(INTEGER)))
    begun = ids('{"a": ')
    guide.extend(begun)
    (one,), (letter,), (two,) = ids("1"), ids("x"), ids("2")
    tree = DraftTree([begun[-1], letter, two, one], [-1, 0, 1, 0], [1.0, 0.5, 0.4, 0.3], ["root", "x", "x", "x"])
    cut = guide.cut(tree)
    assert (cut.tokens, cut.parents) == ([begun[-1], one], [-1, 0])
    assert guide.keeps(two, [one]) and not guide.keeps(letter, [])


def test_an_illegal_token_in_the_text_is_an_error_of_the_request() -> None:
    """Only a guide that comes later can bring one about."""
    guide = guide_of(MAKERS["regex"])
    with pytest.raises(RequestError, match="the grammar cannot go on"):
        guide.extend(ids("z"))


def test_lanes_of_one_request_have_a_matcher_each() -> None:
    maker = MAKERS["choice"]
    first, second = guide_of(maker), guide_of(maker)
    flat = np.zeros(VOCAB, np.float32)
    before = first.applied(flat, [])
    second.extend(spelled("ye"))
    assert np.array_equal(first.applied(flat, []), before)
    assert not np.array_equal(second.applied(flat, []), before)


class Brittle:
    """A matcher that fails for good at its `patience`th token, whatever it is; a copy begins anew."""

    def __init__(self, matcher: LLMatcher, patience: int) -> None:
        self._matcher, self._patience, self._left = matcher, patience, patience

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def deep_copy(self) -> Brittle:
        return Brittle(self._matcher.deep_copy(), self._patience)

    def _spend(self, count: int) -> bool:
        self._left -= count
        return self._left >= 0

    def is_error(self) -> bool:
        return self._left < 0 or self._matcher.is_error()

    def get_error(self) -> str:
        return "out of patience"

    def consume_token(self, token: int) -> bool:
        return self._spend(1) and self._matcher.consume_token(token)

    def consume_tokens(self, tokens: list[int]) -> bool:
        return self._spend(len(tokens)) and self._matcher.consume_tokens(tokens)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return self._matcher.try_consume_tokens(tokens) if self._spend(len(tokens)) else 0

    def rollback(self, count: int) -> bool:
        return self._left >= 0 and self._matcher.rollback(count)


@pytest.mark.parametrize("patience", range(3, 9))
def test_only_the_text_may_bring_a_matcher_to_its_limits(patience: int) -> None:
    """What drafts and questions cost it does not count: a request fails where a fresh matcher does."""
    source, row = SOURCES["lark"], np.zeros(VOCAB, np.float32)
    fragile: Any = Brittle(LLMatcher(vocabulary(), source, log_level=0), patience)
    guide, text = GrammarGuide(fragile, VOCAB, "grammar"), spelled("say no, 1234")
    for place, token in enumerate(text):
        guide.cut(DraftTree.chain(1, text[place : place + 3], [0.5] * len(text[place : place + 3]), "x"))
        for said in ([token], [], [token]):
            if place + len(said) <= patience:
                allowed = legal(source, [*text[:place], *said])
                assert np.flatnonzero(guide.applied(row, said) == 0).tolist() == allowed
        if place == patience:
            with pytest.raises(RequestError, match="out of patience") as caught:
                guide.extend([token])
            assert caught.value.param == "grammar"
            return
        guide.extend([token])
