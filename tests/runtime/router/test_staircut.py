"""StairCut: what rounds teach it, and simulations whose truth is known."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import pytest

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.meter import Plain
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import cut, line, play, time_plain
from tests.runtime.router.replay import cpu_table, flat_table

BUCKETS = {"1": 3.0, "2": 3.1, "8": 3.1, "9": 3.3, "16": 3.3, "17": 3.8, "24": 3.8, "25": 4.4, "32": 4.4}


def buckets() -> dict[str, Any]:
    """Prices of a device with programs of 1, 8, 16, 24 and 32 rows."""
    return {"1024": dict.fromkeys(("extend", "verify-chain", "verify-tree"), BUCKETS)}


def test_a_lane_learns_how_far_its_scores_hold_and_leaves_the_others_alone():
    router = StairCut(PriceModel(cpu_table()))
    guess = line([0.8, 0.7, 0.6, 0.5])
    eager = play(router, guess, [99], lane=1).num_drafted
    for _ in range(60):
        play(router, guess, [99], lane=1)
    assert play(router, guess, [99], lane=1).num_drafted == 0
    assert cut(router, [[guess]], [100], lanes=[2])[0].num_drafted == eager
    # A plain lane whose guesses come true drafts again, though none was verified.
    for _ in range(300):
        play(router, guess, [10, 11, 12, 13, 99], lane=1)
    assert play(router, guess, [99], lane=1).num_drafted == eager


def test_closed_lanes_teach_the_next_and_reset_forgets_but_keeps_costs():
    router = StairCut(PriceModel(cpu_table()))
    guess = line([0.8, 0.7, 0.6, 0.5])
    before = play(router, guess, [99], lane=1).num_drafted
    for lane in range(20):
        router.open(lane)
        for _ in range(10):
            play(router, guess, [99], lane=lane)
        router.close(lane)
    router.open(30)
    assert cut(router, [[guess]], [100], lanes=[30])[0].num_drafted < before
    for _ in range(50):
        router.choose([[]], [100], 32, [30], {"mtp": 9.0})
        router.settle([[1]], 90.0)
    assert not router.wants_model([[]], [100], 32, [30], "mtp")
    router.reset()
    time_plain(router, 30)
    assert cut(router, [[guess]], [100], lanes=[30])[0].num_drafted == before
    assert not router.wants_model([[]], [100], 32, [30], "mtp")
    router.close(77)


def test_drafting_that_loses_by_the_clock_stops():
    """Prices promise a gain, but drafted rounds take ten plain steps each (a drafter that rereads the context)."""
    router = StairCut(PriceModel(flat_table(20.0)))
    guess, drafted, ms, tokens = line([0.7, 0.6, 0.5]), [], 0.0, 0
    for round_ in range(2000):
        tree = cut(router, [[guess]], [100_000])[0]
        committed = [10, 99] if tree.num_drafted else [10]
        drafted += [round_] if tree.num_drafted else []
        router.settle([committed], 200.0 if tree.num_drafted else 20.0)
        ms, tokens = ms + (200.0 if tree.num_drafted else 20.0), tokens + len(committed)
    assert len(drafted) <= 20 and max(b - a for a, b in pairwise(drafted)) > 128
    assert ms <= 1.1 * 20.0 * tokens
    # Short contexts have their own ledger.
    assert cut(router, [[guess]], [100])[0].num_drafted == 3


def test_without_learned_costs_nothing_is_decided_by_the_clock():
    declined: list[Plain] = []
    router = StairCut(PriceModel(flat_table(20.0), live=False), learn_cost=False, declined=declined.append)
    for _ in range(100):
        assert play(router, line([0.7, 0.6, 0.5]), [10, 11, 99], ms=900.0).num_drafted == 3
        router.choose([[]], [100], 32, [0], {"mtp": 90.0})
        router.settle([[1]], 900.0)
    assert router.wants_model([[]], [100], 32, [0], "mtp") and set(declined) == {Plain.PRICE}
    assert router.turn_pays(100, 1_000_000, 1.0, 1.0)


def test_a_class_found_losing_still_drafts_what_promises_more_than_it_fell_short():
    table = flat_table(20.0)
    table["1024"] |= {"plain": 20.0, "spec": 40.0}

    def chosen(*scores: float) -> int:
        return cut(StairCut(PriceModel(table)), [[line(list(scores))]], [100])[0].num_drafted

    assert chosen(0.5, 0.2) == 0
    assert chosen(*(0.95**d for d in range(1, 32))) == 31


class Drafter:
    """Drafts a line that states `stated` path chances and comes true with conditional chances `true`."""

    def __init__(self, true: list[float], stated: list[float], source: str = "block", seed: int = 0) -> None:
        self.true, self.stated, self.source = true, stated, source
        self._random = random.Random(seed)

    def round(self) -> tuple[DraftTree, list[int]]:
        """A draft, and what the target goes on with."""
        right = 0
        while right < len(self.true) and self._random.random() < self.true[right]:
            right += 1
        return line(self.stated, source=self.source), [*range(10, 10 + right), 99]


def best_count(true: list[float], prices: PriceModel) -> tuple[int, list[float]]:
    """The count of most expected tokens a millisecond, and what each count brings."""
    gained = [1.0, *accumulate(accumulate(true, mul), initial=1.0)][1:]
    kinds = (Kind.EXTEND, *[Kind.VERIFY_CHAIN] * len(true))
    values = [
        tokens / prices.ms(0, kind, rows) for rows, (tokens, kind) in enumerate(zip(gained, kinds, strict=True), 1)
    ]
    return max(range(len(values)), key=values.__getitem__), values


@pytest.mark.parametrize("table", [cpu_table(), buckets(), flat_table()], ids=["cpu", "buckets", "flat"])
@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.85, 0.95])
def test_the_count_is_the_analytically_best_one(table, chance):
    true = [chance] * 31
    count, values = best_count(true, PriceModel(table))
    picked = cut(StairCut(PriceModel(table), margin=1.0), [[line(list(accumulate(true, mul)))]], [0])[0].num_drafted
    assert values[picked] == pytest.approx(values[count]), (picked, count)


@pytest.mark.parametrize("bold", [0.5, 0.8, 1.4])
def test_a_drafter_that_is_wrong_about_itself_is_cut_as_if_it_were_not(bold):
    """Its scores are `bold` to the truth; after some texts what is chosen is worth what the best count is."""
    true = [0.75] * 15
    stated = [min(1.0, bold * chance) for chance in accumulate(true, mul)]
    drafter, router = Drafter(true, stated), StairCut(PriceModel(cpu_table()), margin=1.0)
    for lane in range(20):
        router.open(lane)
        for _ in range(40):
            draft, text = drafter.round()
            committed = _committed(cut(router, [[draft]], [0], lanes=[lane])[0], text)
            router.settle([committed])
        router.close(lane)
    router.open(50)
    _, values = best_count(true, PriceModel(cpu_table()))
    picked = cut(router, [[drafter.round()[0]]], [0], lanes=[50])[0].num_drafted
    assert values[picked] >= 0.98 * max(values)


def _committed(tree: DraftTree, text: list[int]) -> list[int]:
    node, count = 0, 1
    while (child := tree.follow(node, text[count - 1])) is not None and count < len(text):
        node, count = child, count + 1
    return text[:count]


def test_predictions_hold_where_scores_do_not():
    """Half the drafter's scores are true, half mean nothing; over all lanes what is expected is what comes."""
    good, bad = Drafter([0.8] * 8, list(accumulate([0.8] * 8, mul)), "mtp"), Drafter([0.2] * 8, [0.8] * 8, "local")
    router, predicted, came = StairCut(PriceModel(buckets())), 0.0, 0
    for lane in range(30):
        router.open(lane)
        for _ in range(40):
            draft, text = (good if lane % 2 else bad).round()
            tree = cut(router, [[draft]], [0], lanes=[lane])[0]
            committed = _committed(tree, text)
            router.settle([committed])
            if lane >= 10:
                predicted, came = predicted + sum(tree.scores), came + len(committed)
        router.close(lane)
    assert predicted == pytest.approx(came, rel=0.06)


def test_lanes_share_rows_by_what_each_ones_text_has_taught():
    router = StairCut(PriceModel(cpu_table()))
    guess = [line([0.8, 0.64, 0.5, 0.4])]
    for lane in (0, 1):
        router.open(lane)
    for _ in range(60):
        router.choose([guess, guess], [100, 100], 32, [0, 1])
        router.settle([[10, 11, 12, 13, 99], [99]])
    sure, unsure = router.choose([guess, guess], [100, 100], 32, [0, 1])
    assert sure.num_drafted == 4 and unsure.num_drafted == 0


def test_no_round_of_a_slow_spell_is_held_against_drafting_for_long():
    """For 100 rounds everything takes five times as long; drafts, in them half the rounds, go on afterwards."""
    router, guess, drafted = StairCut(PriceModel(flat_table(20.0))), line([0.8, 0.6, 0.5]), [0, 0]
    for round_ in range(600):
        slow = 5.0 if 200 <= round_ < 300 else 1.0
        tree = cut(router, [[guess]], [100])[0]
        committed = [10, 11, 99] if round_ % 2 and tree.num_drafted else [10, 99][: 1 + bool(tree.num_drafted)]
        drafted[round_ >= 300] += tree.num_drafted > 0
        router.settle([committed], 21.0 * slow)
    assert drafted[1] >= 290


@pytest.mark.parametrize(("chance", "dear"), [(0.1, 3.0), (0.3, 1.0), (0.5, 2.0), (0.7, 2.0)])
def test_never_slower_than_plain_whatever_prices_and_scores_say(chance, dear):
    """Nine in ten right, says the drafter, and is `chance`; a verify costs `dear` times what the table says."""
    generator, prices = random.Random(1), PriceModel(cpu_table())
    true, router = PriceModel(cpu_table()), StairCut(prices)
    drafter = Drafter([chance] * 10, [0.9**d for d in range(1, 11)])
    ms, tokens = 0.0, 0
    for _ in range(1500):
        draft, text = drafter.round()
        tree = cut(router, [[draft]], [0])[0]
        committed = _committed(tree, text)
        kind = Kind.VERIFY_CHAIN if tree.num_drafted else Kind.EXTEND
        took = true.ms(0, kind, len(tree)) * (dear if tree.num_drafted else 1.0) * generator.uniform(0.95, 1.05)
        prices.observe(0, kind, len(tree), took)
        router.settle([committed], took)
        ms, tokens = ms + took, tokens + len(committed)
    assert ms <= 1.05 * 20.0 * tokens
