"""When StairCut asks a model that drafts, and which requests have one at all."""

from __future__ import annotations

from itertools import pairwise

from tandem.prices import PriceModel
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import line, time_plain
from tests.runtime.router.replay import cpu_table, flat_table


def test_a_model_is_asked_where_copies_have_nothing_that_pays():
    router = StairCut(PriceModel(cpu_table()))
    copy, weak = [line([0.98**d for d in range(1, 32)])], [line([0.05])]
    assert router.wants_model([[]], [100], 32, [0], "mtp") and router.wants_model([weak], [100], 32, [0], "mtp")
    assert not router.wants_model([copy], [100], 32, [0], "mtp")
    # Of several lanes one that has something good does not do for all: with it alone 6.4 tokens, with a model 12.
    free, short = StairCut(PriceModel(flat_table())), [line([0.9, 0.8, 0.7])]
    assert not free.wants_model([short], [100], 32, [0], "mtp")
    assert free.wants_model([short, [], [], []], [100] * 4, 32, range(4), "mtp")


def test_a_model_that_brings_more_than_a_copy_is_asked_beside_it():
    """Rows are free here: what counts is how many tokens the model's trees have brought on this text."""
    router = StairCut(PriceModel(flat_table()))
    copy, model = line([0.9, 0.8, 0.7]), DraftTree.chain(0, list(range(10, 20)), [0.9**d for d in range(1, 11)], "mtp")
    assert not router.wants_model([[copy]], [100], 32, [0], "mtp")
    for _ in range(60):
        router.choose([[copy, model]], [100], 32, [0], {"mtp": 1.0})
        router.settle([[*range(10, 20), 99]], 21.0)
    time_plain(router, 0)
    assert router.wants_model([[copy]], [100], 32, [0], "mtp")
    for _ in range(60):  # rounds in which it was not asked say nothing of it
        router.choose([[copy]], [100], 32, [0])
        router.settle([[10, 11, 12, 99]])
    assert router.wants_model([[copy]], [100], 32, [0], "mtp")


def test_a_dear_model_is_asked_less_than_a_cheap_one():
    for ms, asked in ((1.0, True), (400.0, False)):
        router = StairCut(PriceModel(flat_table()))
        router.choose([[]], [100], 32, [0], {"mtp": ms})
        router.settle([[1]])
        assert router.wants_model([[line([0.5])]], [100], 32, [0], "mtp") is asked


def test_a_model_whose_rounds_lose_by_the_clock_is_left_alone_but_for_probes():
    router, asked = StairCut(PriceModel(flat_table(20.0))), []
    for round_ in range(1000):
        if router.wants_model([[]], [100], 32, [0], "mtp"):
            asked.append(round_)
            router.choose([[]], [100], 32, [0], {"mtp": 30.0})
            router.settle([[1]], 50.0)
        else:
            router.choose([[line([0.01])]], [100], 32, [0])
            router.settle([[1]], 20.0)
    assert len(asked) <= 15 and max(b - a for a, b in pairwise(asked)) > 128
    assert router.wants_model([[]], [100_000], 32, [0], "mtp")  # another class


def test_a_turn_pays_for_what_it_has_to_read_first():
    """20 ms plain, 10 ms a token with the model: 100 tokens save a second."""
    table = flat_table(20.0)
    table["1024"] |= {"plain": 20.0, "spec": 10.0}
    router = StairCut(PriceModel(table))
    assert router.turn_pays(100, 3000, 100.0, 0.3) and not router.turn_pays(100, 4000, 100.0, 0.3)
    assert router.turn_pays(100, 0, 1.0, 0.3)
    assert not router.turn_pays(100, 100, 0.0, 0.3)


def test_a_model_without_a_prior_is_tried_and_then_judged():
    router = StairCut(PriceModel(flat_table(20.0)))
    assert router.turn_pays(100, 100, 200.0, 0.3)
    for _ in range(100):
        router.choose([[]], [100], 32, [0], {"mtp": 30.0})
        router.settle([[1]], 50.0)
    assert not router.turn_pays(100, 1, 200.0, 0.3)
    # What is held against it ages with the turns that go without, until it is tried again.
    turns = next(turn for turn in range(200) if router.turn_pays(100, 100, 200.0, 0.3))
    assert 3 < turns < 100


def test_a_turn_in_company_is_judged_by_rounds_in_company():
    router = StairCut(PriceModel(flat_table(20.0)))
    for lane in (0, 1):
        router.open(lane)
    for _ in range(100):
        router.choose([[], []], [100, 100], 32, [0, 1], {"mtp": 30.0})
        router.settle([[1], [1]], 50.0)
    assert not router.turn_pays(100, 1, 200.0, 0.3)
    router.close(1)
    assert router.turn_pays(100, 1, 200.0, 0.3)
