"""The routers that StairCut is measured against, by their names."""

from __future__ import annotations

import pytest

from tandem.errors import UsageError
from tandem.prices import PriceModel
from tandem.runtime.meter import Plain
from tandem.runtime.router.baselines import BudgetRouter, FixedRouter
from tandem.runtime.router.choice import check_name, make_router
from tandem.runtime.router.length import CEILING, NARROW, NARROW_ROUNDS, WIDE, WIDE_ROUNDS, LengthRouter
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import cut, line
from tests.runtime.router.replay import cpu_table, flat_table

LONG = line([0.98**d for d in range(1, 32)])


def test_a_fixed_width_takes_the_likeliest_nodes_whatever_they_cost():
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 1, 0], [1, 0.9, 0.1, 0.5], ["root", *["local"] * 3])
    (picked,) = cut(FixedRouter(3), [[tree]], [100], lanes=[0])
    assert picked.tokens == [0, 1, 3]
    (all_of_it,) = cut(FixedRouter(32), [[tree]], [100], lanes=[0])
    assert len(all_of_it) == 4
    assert cut(FixedRouter(1), [[tree]], [100], lanes=[0])[0].num_drafted == 0


def test_lanes_share_the_rows_of_a_pass():
    trees = cut(FixedRouter(16), [[LONG], [LONG], [LONG], []], [100] * 4, lanes=range(4))
    assert [len(tree) for tree in trees] == [11, 10, 10, 1]


def test_a_budget_widens_once_an_answer_is_long_enough():
    router = BudgetRouter(PriceModel(flat_table()))
    router.open(3)
    assert len(cut(router, [[LONG]], [100], lanes=[3])[0]) == 16
    for committed in (10, 21):
        router.settle([[1] * committed])
        assert len(cut(router, [[LONG]], [100], lanes=[3])[0]) == 16
    router.settle([[1]])
    assert len(cut(router, [[LONG]], [100], lanes=[3])[0]) == 24
    router.close(3)
    router.open(3)
    assert len(cut(router, [[LONG]], [100], lanes=[3])[0]) == 16


def test_a_budgets_node_pays_for_its_share_of_a_straight_line():
    """10 ms a pass and 1 ms a row: after two nodes of 0.5 a third must bring (1 + 1) / 13, more than 0.15."""
    table = {"1024": {"extend": {"1": 11.0}, "verify-tree": {"1": 11.0, "32": 42.0}}}

    def kept(*scores: float) -> int:
        router = BudgetRouter(PriceModel(table))
        router.open(0)
        return cut(router, [[line(list(scores))]], [100], lanes=[0])[0].num_drafted

    assert kept(0.5, 0.5, 0.16) == 3 and kept(0.5, 0.5, 0.15) == 2
    assert kept(0.09, 0.09) == 0 and kept(0.1) == 1


def length_rounds(router: LengthRouter, tokens: dict[int, tuple[int, float]], rounds: int) -> list[int]:
    """Widths drafted when a round of each width commits so many tokens in so many ms."""
    widths = []
    for _ in range(rounds):
        width = len(cut(router, [[LONG]], [100], lanes=[0])[0])
        widths.append(width)
        committed, ms = tokens[width]
        router.settle([[1] * committed], ms)
    return widths


def test_a_length_router_stays_wide_where_wide_is_filled():
    router = LengthRouter()
    router.open(0)
    assert length_rounds(router, {WIDE: (NARROW, 20.0)}, 20) == [WIDE] * 20


@pytest.mark.parametrize(("narrow_ms", "kept"), [(19.0, NARROW), (19.7, WIDE), (20.0, WIDE)])
def test_a_length_router_tries_narrow_and_keeps_the_faster(narrow_ms, kept):
    """Both commit three tokens; narrow has to be faster by two in a hundred."""
    router = LengthRouter()
    router.open(0)
    widths = length_rounds(router, {WIDE: (3, 20.0), NARROW: (3, narrow_ms)}, 20)
    tried = [WIDE] * WIDE_ROUNDS + [NARROW] * NARROW_ROUNDS
    assert widths == tried + [kept] * (20 - len(tried)) and CEILING == 0.25
    router.open(0)
    assert length_rounds(router, {WIDE: (3, 20.0), NARROW: (3, narrow_ms)}, 1) == [WIDE]


def test_rounds_without_a_guess_teach_a_length_router_nothing():
    router = LengthRouter()
    for lane in (0, 1):
        router.open(lane)
    for _ in range(WIDE_ROUNDS):
        router.choose([[LONG], []], [100, 100], 32, [0, 1])
        router.settle([[1], [1]], 20.0)
    one, other = cut(router, [[LONG], [LONG]], [100, 100], lanes=[0, 1])
    assert (len(one), len(other)) == (NARROW, WIDE)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("staircut", StairCut), ("length", LengthRouter), ("budget", BudgetRouter), ("fixed:32", FixedRouter)],
)
def test_a_router_by_name_says_why_it_is_plain(name, kind):
    heard: list[Plain] = []
    router = make_router(name, PriceModel(cpu_table()), declined=heard.append)
    router.open(0)
    assert type(router) is kind and router.wants_model([[]], [100], 32, [0], "mtp")
    router.choose([[]], [100], 32, [0])
    assert heard == [Plain.PRICE]
    router.settle([[1]], 20.0)
    router.close(0)


@pytest.mark.parametrize(("ms", "asked"), [(0.01, True), (1000.0, False)])
def test_a_draft_that_was_never_measured_costs_its_price(ms, asked):
    router = make_router(
        "staircut", PriceModel({"1024": flat_table()["1024"] | {"draft": {"1": ms}}}), learn_cost=False
    )
    assert router.wants_model([[line([0.9, 0.8])]], [100], 32, [0], "mtp") is asked


@pytest.mark.parametrize(("block", "asked"), [(1, False), (8, True), (16, False)])
def test_a_block_costs_the_price_of_its_rows_and_a_chain_that_of_its_passes(block, asked):
    """Copies bring 2.7 tokens in 20 ms, so the model's 3 may cost 2.2 ms more: four passes of a row are too dear."""
    table = {"1024": flat_table()["1024"] | {"draft": {"1": 1.0, "8": 1.0, "16": 3.0}}}
    router = make_router("staircut", PriceModel(table), learn_cost=False, block=block)
    assert router.wants_model([[line([0.9, 0.8])]], [100], 32, [0], "block") is asked


@pytest.mark.parametrize(
    "name", ["", "Staircut", "fixed", "fixed:", "fixed:0", "fixed:33", "fixed:07", "fixed:8 ", "8"]
)
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(UsageError, match="one of staircut, length, budget, fixed:ROWS"):
        check_name(name)
