"""What looking for copies may cost a text, and who earned what in a round."""

from __future__ import annotations

import pytest

from tandem.prices import PriceModel
from tandem.runtime.meter import Plain
from tandem.runtime.router.account import (
    FIRST_CREDIT,
    LEAST_CREDIT,
    LONGEST,
    MOST,
    MOST_CREDIT,
    Account,
    Credits,
)
from tandem.runtime.router.blend import Blend
from tandem.runtime.router.ledger import OUTLIER, Arm
from tandem.runtime.router.played import MISS, Played
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import line
from tests.runtime.router.replay import flat_table


def spend(account: Account, looking: float) -> int:
    """Rounds that look for nothing until the account rests."""
    rounds = 0
    while not (rest := account.rests()):
        account.settle(-looking, looking)
        rounds += 1
    account.rest = rest  # asked once more by whoever called
    return rounds


def test_a_credit_is_spent_and_then_a_share_of_each_step_pays_for_the_next_look():
    account = Account(1.0)
    assert spend(account, 0.3) == 4 and account.rests() == 10
    # Behind the rest one look; as it brings nothing the next is twice as far away, and no further.
    assert spend(account, 0.3) == 1 and account.rests() == 20
    assert spend(account, 0.3) == 1 and account.rests() == 20
    # What looks for less waits for less; nobody waits for ever.
    assert spend(account, 0.02) == 1 and account.rests() == 2
    assert spend(account, 5.0) == 1 and account.rests() == LONGEST


def test_gains_are_kept_up_to_a_bound_and_end_a_rests_doubling():
    account = Account(0.0)
    assert spend(account, 0.3) == 1 and account.rests() == 10
    account.settle(0.5, 0.3)
    assert account.rests() == 0 and spend(account, 0.3) == 2 and account.rests() == 10
    account.settle(100.0, 0.3)
    assert account.balance == MOST and account.earned == pytest.approx(100.5 - 3 * 0.3)


def test_how_long_a_lane_rests_goes_by_what_looking_takes():
    account = Account(1.0)
    account.settle(-8.0, 0.02)
    assert account.rests() == 1


def test_what_texts_earned_is_the_next_ones_credit_by_context_class():
    credits_ = Credits()
    assert credits_.open(1024).balance == FIRST_CREDIT
    for gain, left in ((-1.0, 2.0), (-1.0, 1.0), (-1.0, 0.5), (-1.0, LEAST_CREDIT), (3.0, 1.0), (0.0, 1.0)):
        account = credits_.open(1024)
        if gain:
            account.settle(gain, 0.1)
        credits_.close({1024: account})
        assert credits_.open(1024).balance == left
    assert credits_.open(2048).balance == FIRST_CREDIT
    for _ in range(9):
        (account := credits_.open(2048)).settle(2.0, 0.1)
        credits_.close({2048: account})
    assert credits_.open(2048).balance == MOST_CREDIT


def played(kept: list[list[int]], arm: Arm, priced: float | None, drafted: bool = True) -> Played:
    """A round of two lanes with a line of three by copies, the first two of which a model proposes as well."""
    blends = [Blend([line([0.9, 0.8, 0.7]), line([0.9, 0.8], source="mtp")], {}) for _ in range(2)]
    return Played([4, 5], blends, kept, 100, arm, priced, drafted)


def test_what_a_verify_took_beyond_a_plain_round_is_shared_by_rows():
    """Two lanes take two plain steps; with 3 rows and 1 row the round took four."""
    round_ = played([[1, 2], []], Arm.COPIED, 3.5)
    gains = round_.copied_gains([[10, 11, 12], [7]], [0, 1], took=4.0, looking=0.5)
    assert gains == {0: pytest.approx(2 - 2 * 3 / 4), 1: pytest.approx(-2 * 1 / 4)}
    # Who did not look shares nothing.
    assert round_.copied_gains([[10, 11, 12], [7]], [0], 4.0, 0.5) == {0: pytest.approx(2 - 2)}


def test_a_verify_that_lost_much_is_not_all_held_against_looking():
    gains = played([[1, 2], []], Arm.COPIED, 5.0).copied_gains([[10], [7]], [0], took=6.0, looking=0.5)
    assert gains == {0: -0.5 - MISS}


def test_a_round_that_the_system_held_up_counts_as_a_few_times_its_price():
    tokens = [*range(10, 30)], [7]
    gains = played([[1, 2], []], Arm.COPIED, 4.0).copied_gains(tokens, [0], took=1000.0, looking=0.5)
    assert gains == {0: pytest.approx(19 - (OUTLIER * 4.0 + 0.5 - 2))}


def test_a_round_that_declines_costs_what_looking_took():
    assert played([[], []], Arm.PLAIN, None, False).copied_gains([[1], [1]], [1], 2.5, 0.5) == {1: -0.5}


def test_beside_a_model_copies_earn_what_only_they_proposed():
    round_ = played([[1, 2, 3], [1, 2]], Arm.MODELLED, None)
    gains = round_.copied_gains([[10, 11, 12, 9], [10, 11, 12]], [0, 1], 9.0, 0.25)
    assert gains == {0: 0.75, 1: -0.25}  # the second lane's third was not verified
    declined = played([[], []], Arm.MODELLED, None, False)
    assert declined.copied_gains([[10, 11], [10]], [0], 9.0, 0.25) == {0: -0.25}


def look(router: StairCut, lane: int, ms: float, asked_ms: float) -> int:
    """A round that finds nothing, if the lane does not rest."""
    if not (rest := router.rests(lane, 100)):
        router.passed([lane], [100], ms, asked_ms, 0.0)
    return rest


def test_lanes_rest_by_themselves_and_a_reset_forgets_it():
    router = StairCut(PriceModel(flat_table(1.0)))
    for lane in (1, 2):
        router.open(lane)
    rests = [look(router, 1, 1.3, 0.3) for _ in range(15)]
    assert rests == [0] * 14 + [10] and look(router, 2, 1.3, 0.3) == 0
    assert router.rests(1, 5000) == 0  # another class
    for _ in range(4):
        look(router, 1, 1.3, 0.3)
    router.reset()
    assert [look(router, 1, 1.3, 0.3) for _ in range(15)] == [0] * 14 + [10]


def test_texts_that_earned_nothing_leave_the_next_less_to_spend():
    router, counts = StairCut(PriceModel(flat_table(1.0))), []
    for _ in range(3):
        router.open(0)
        counts.append(next(i for i in range(99) if look(router, 0, 1.3, 0.3)))
        router.close(0)
    assert counts == [14, 7, 4]  # looks of 0.3 until 4, 2 and 1 steps are spent


def test_a_round_with_candidates_that_are_declined_is_charged_as_well():
    router = StairCut(PriceModel(flat_table(1.0)))
    router.open(0)
    for _ in range(14):
        assert router.rests(0, 100) == 0
        router.choose([[line([0.001])]], [100], 32, [0])
        router.settle([[1]], 1.3, 0.3, 0.0)
    assert router.rests(0, 100) == 10


def test_one_search_that_the_system_held_up_is_not_held_against_looking():
    router = StairCut(PriceModel(flat_table(1.0)))
    router.open(0)
    assert [look(router, 0, 1.02, 0.02) for _ in range(5)] == [0] * 5
    assert look(router, 0, 101.0, 100.0) == 0 and look(router, 0, 1.02, 0.02) == 0


def test_what_passes_without_asking_is_the_measure():
    """Plain rounds take 1 ms behind a search of 9, and a verify that commits two in 1.5 ms is no loss. Two rounds are
    plain to be timed, behind 4 and 8 others."""
    router, heard = StairCut(PriceModel(flat_table(1.0))), list[Plain]()
    router._declined = heard.append
    router.open(0)
    for _ in range(30):
        router.passed([0], [100], 10.0, 9.0, 0.0)
    for _ in range(30):
        chosen = router.choose([[line([0.9])]], [100], 32, [0])
        router.settle([[10, 99] if chosen else [10]], 10.5 if chosen else 10.0, 9.0, 0.0)
    assert heard == [Plain.MEASURED] * 2


def test_the_hosts_part_is_in_the_price_of_a_round():
    """Rows are free, and two tokens in 1 ms pay; not where a verify takes the host 2 ms more than a plain round."""

    def drafted(plain_ms: float, verified_ms: float) -> int:
        router = StairCut(PriceModel(flat_table(1.0)))
        router.open(0)
        for _ in range(20):
            router.passed([0], [100], 1.0 + plain_ms, 0.0, plain_ms)
            router.choose([[line([1.0] * 9)]], [100], 32, [0])
            router.settle([list(range(10, 20))], 1.0 + verified_ms, 0.0, verified_ms)
        return len((router.choose([[DraftTree.chain(0, [10], [0.95], "corpus")]], [100], 32, [0]) or [[0]])[0]) - 1

    assert drafted(0.0, 0.0) == drafted(2.0, 2.0) == drafted(2.0, 4.0) == 1
    assert drafted(0.0, 2.0) == drafted(0.1, 1.2) == 0


def test_without_learned_costs_nothing_rests():
    router = StairCut(PriceModel(flat_table(1.0), live=False), learn_cost=False)
    router.open(0)
    assert [look(router, 0, 90.0, 89.0) for _ in range(50)] == [0] * 50
