"""Lookups on shelves: searches against looking everywhere, votes by hand, hostile corpora, and the promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.artifacts.suffix import SEPARATOR, TOKENS, SuffixTable
from tandem.artifacts.suffix_sort import sort_suffixes
from tandem.errors import BundleMismatch
from tandem.runtime.drafters.corpus import Corpus
from tandem.runtime.drafters.lookup import LookupDrafter, lookup_drafters
from tandem.runtime.drafters.rates import BOTH, CORPUS, LOCAL, STORE, CopyRates
from tandem.runtime.drafters.suffixes import MAX_PLACES, SuffixSearch
from tandem.runtime.drafters.votes import REACH
from tandem.runtime.engine import Engine
from tandem.runtime.request import Request, Sampling
from tests.artifacts.corpora import TOKENIZER, write
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length


@dataclass
class Shelf:
    """A shelf of documents."""

    documents: Sequence[Sequence[int]]
    source: str = CORPUS
    table: SuffixTable | None = field(init=False)

    def __post_init__(self) -> None:
        self.table = table_of(self.documents)


def table_of(documents: Sequence[Sequence[int]]) -> SuffixTable:
    tokens = np.array([token for document in documents for token in (*document, SEPARATOR)], np.int32)
    places = list(sort_suffixes(tokens, VOCAB))
    return SuffixTable(memoryview(tokens), memoryview(np.concatenate(places) if places else tokens[:0]))


def searched(documents: Sequence[Sequence[int]], text: Sequence[int], min_order: int) -> tuple[int, list[list[int]]]:
    """The longest match, in lengths that are told apart, and what followed it wherever it stands."""
    for agreed in (128, 64, 32, 16, 8, 7, 6, 5, 4, 3, 2):
        end = list(text[-agreed:])
        if min_order <= agreed <= len(text):
            after = [
                list(document[place + agreed : place + agreed + REACH])
                for document in documents
                for place in range(len(document) - agreed + 1)
                if list(document[place : place + agreed]) == end
            ]
            if after:
                return agreed, after
    return 0, []


ids = st.integers(0, 2)
documents_ = st.lists(st.lists(ids, max_size=40), max_size=4)


def upto(line: Sequence[int]) -> list[int]:
    """A continuation as far as its document goes."""
    return list(line[: line.index(SEPARATOR)] if SEPARATOR in line else line)


@given(documents_, st.lists(ids, max_size=50), st.lists(st.integers(1, 12), max_size=20), st.integers(2, 8))
def test_a_search_finds_what_a_plain_one_does_however_the_text_grows(
    documents: list[list[int]], text: list[int], steps: list[int], min_order: int
) -> None:
    """The bound on what is looked for must never hide a match."""
    shelf = Shelf(documents)
    search, at = SuffixSearch(shelf, min_order), 0
    for step in [0, *steps, len(text)]:
        at = min(at + step, len(text))
        search.grow(step)
        found = search.find(text[:at])
        agreed, after = searched(documents, text[:at], min_order)
        assert found.agreed == agreed
        whole = [upto(line) for line, count in zip(found.after, found.counts, strict=True) for _ in range(count)]
        if len(after) <= MAX_PLACES:
            assert sorted(whole) == sorted(after)


def test_a_long_range_is_sampled_evenly() -> None:
    documents = [[1, 2, 3, i % 10, i // 10] for i in range(200)]
    search = SuffixSearch(Shelf(documents), 3)
    search.grow(3)
    found = search.find([1, 2, 3])
    assert sum(found.counts) == MAX_PLACES
    heads = {line[0] for line in found.after}
    assert heads == set(range(10))  # the first 64 of the array would begin with 0 to 3


def test_another_table_is_searched_from_the_start() -> None:
    shelf = Shelf([[9, 9]])
    search = SuffixSearch(shelf, 3)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    search.grow(len(text))
    assert search.find(text).agreed == 0
    shelf.table = table_of([[*text, 5]])
    assert search.find(text).agreed == 8
    shelf.table = None
    assert search.find(text).agreed == 0


def drafter(prompt: Sequence[int], *shelves: Shelf, **options: int) -> LookupDrafter:
    made = LookupDrafter(shelves=shelves, vocab_size=VOCAB, **options)
    made.begin(prompt)
    return made


def test_a_corpus_speaks_where_the_request_has_nothing() -> None:
    (line,) = drafter([7, 1, 2, 3], Shelf([[1, 2, 3, 4, 5]])).propose(31)
    assert line.tokens == [3, 4, 5] and line.sources == ["root", CORPUS, CORPUS]  # the document ends there
    rates = CopyRates()
    first = rates.rate(CORPUS, 3, 0)
    assert line.scores == pytest.approx([1, first, first * rates.rate(CORPUS, 4, 1)])
    assert drafter([7, 1, 2, 3], Shelf([[1, 2, 3]])).propose(31) == []  # nothing followed
    assert drafter([1, 2], Shelf([[1, 2, 3, 4]])).propose(31) == []  # too short to be heard


def test_the_surest_match_alone_speaks() -> None:
    rates = CopyRates()
    local, corpus = [1, 2, 3, 8, 0, 1, 2, 3], [[9, 0, 1, 2, 3, 5]]
    assert rates.rate(LOCAL, 3, 0) > rates.rate(CORPUS, 4, 0)
    (line,) = drafter(local, Shelf(corpus)).propose(1)
    assert line.tokens == [3, 8] and line.sources[1] == LOCAL  # though four tokens agree in the corpus
    assert rates.rate(CORPUS, 8, 0) > rates.rate(LOCAL, 2, 0)
    text = [7, 4, 5, 6, 1, 2, 3, 4]
    (line,) = drafter([3, 4, 9, 0, *text], Shelf([[*text, 5]])).propose(31)
    assert line.tokens == [4, 5] and line.sources[1] == CORPUS
    taught = CopyRates()
    for _ in range(300):
        taught.count(CORPUS, 4, 0, True)
    made = LookupDrafter(taught, shelves=[Shelf(corpus)], vocab_size=VOCAB)
    made.begin(local)
    assert made.propose(1)[0].tokens == [3, 5]  # what this text teaches counts


def test_a_voice_that_was_not_heard_is_judged_by_its_next_token() -> None:
    local, corpus = [1, 2, 3, 8, 0, 1, 2, 3], [[9, 0, 1, 2, 3, 5]]
    fresh = CopyRates().rate(CORPUS, 4, 0)
    for token, surer in ((5, True), (8, False)):
        made = drafter(local, Shelf(corpus))
        assert made.propose(31)[0].tokens[1] == 8
        made.observe([token, 5])
        assert (made._rates.rate(CORPUS, 4, 0) > fresh) is surer
        assert made._rates.rate(CORPUS, 5, 1) == CopyRates().rate(CORPUS, 5, 1)


def test_ties_vote_together_a_corpus_half_as_much() -> None:
    # Three agree everywhere. The request says 8; the corpus 8 once and 5 twice: masses 1.5 and 1.
    prompt = [1, 2, 3, 8, 6, 1, 2, 3]
    made = drafter(prompt, Shelf([[1, 2, 3, 8], [1, 2, 3, 5], [4, 1, 2, 3, 5]]))
    tree, line = made.propose(31)
    rate = CopyRates().rate(BOTH, 3, 0)
    assert {tree.tokens[i]: (tree.sources[i], tree.scores[i]) for i in tree.children(0)} == {
        8: (BOTH, pytest.approx(rate * 1.5 / 2.5)),
        5: (CORPUS, pytest.approx(rate * 1 / 2.5)),
    }
    # Behind it the request alone goes on.
    assert line.tokens[:3] == [3, 8, 6] and line.sources[:3] == ["root", BOTH, LOCAL]
    tree, _ = drafter(prompt[:3], Shelf([[1, 2, 3, 8]]), Shelf([[1, 2, 3, 8], [1, 2, 3, 9]], STORE)).propose(31)
    assert tree.sources == ["root", BOTH, STORE]


def test_counts_of_a_corpus_are_its_own() -> None:
    made = drafter([1, 2, 3], Shelf([[1, 2, 3, 4, 5, 6]]))
    made.propose(31)
    made.observe([4, 9])
    fresh = CopyRates()
    assert made._rates.rate(CORPUS, 3, 0) > fresh.rate(CORPUS, 3, 0)
    assert made._rates.rate(CORPUS, 4, 1) < fresh.rate(CORPUS, 4, 1)
    assert made._rates.rate(LOCAL, 3, 0) == fresh.rate(LOCAL, 3, 0)


def test_what_is_no_id_is_never_drafted(tmp_path: Path) -> None:
    """A corpus of the right digest may still hold anything."""
    numbers = np.array([1, 2, 3, VOCAB, 4, 1, 2, 3, -5, 1, 2, 3, 4, 2**31 - 1, 1, 2, 3, SEPARATOR], np.int32)
    for places in ([0, 5, 9, 14], [0, -3, 2**31 - 1, -(2**31)], [9, 9, 9]):
        shelf = Shelf([])
        shelf.table = SuffixTable(memoryview(numbers), memoryview(np.array(places, np.int32)))
        for tree in drafter([1, 2, 3], shelf).propose(31):
            assert all(0 <= token < VOCAB for token in tree.tokens)


def test_a_corpus_is_given_up_when_a_byte_of_it_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "c", [[1, 2, 3, 4]])
    corpus = Corpus(tmp_path / "c", TOKENIZER)
    corpus.check().join()
    assert corpus.table is not None and not caplog.records
    tokens = tmp_path / "c" / TOKENS
    tokens.chmod(0o644)
    tokens.write_bytes(b"\1" + tokens.read_bytes()[1:-1] + b"\7")
    damaged = Corpus(tmp_path / "c", TOKENIZER)
    damaged.check().join()
    assert damaged.table is None
    (record,) = caplog.records
    assert str(tmp_path / "c") in record.getMessage() and "tandem-compile corpus" in record.getMessage()
    with pytest.raises(BundleMismatch, match="tokenizer"):
        Corpus(tmp_path / "c", "cd" * 32)


@given(st.integers(0, 2**32), documents_, st.booleans())
@settings(max_examples=60)
def test_texts_are_the_plain_ones_with_any_corpus(seed: int, documents: list[list[int]], right: bool) -> None:
    """The promise: a corpus that holds the answer, nonsense, or nothing changes no token."""
    requests = [
        Request(prompt=(1, 2, 3, 4, 5), max_tokens=30),
        Request(prompt=(3, 1, 2, 1), max_tokens=30, sampling=Sampling(1.0, seed=seed)),
    ]
    answers = [plain_text(request, VOCAB, CONTEXT) for request in requests]
    if right:
        documents = [*documents, *([*r.prompt, *answer] for r, answer in zip(requests, answers, strict=True))]
    make = lookup_drafters(shelves=[Shelf(documents)], vocab_size=VOCAB)
    router = EvenRouter() if right else RandomRouter(seed)
    engine = Engine(ScriptedExecutor(), drafters=make, prices=FreePrices(), router=router)
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    assert [sink.ids for sink in sinks] == answers
    if right:
        assert engine.meter.accepted_by.values[CORPUS] > 20
