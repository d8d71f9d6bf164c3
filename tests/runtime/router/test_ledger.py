"""Wall time: what makes drafting stop, how it is tried again, and what ages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandem.runtime.router.ledger import FADE, FIRST_PLAIN, FIRST_WAIT, Arm, Ledger


def test_one_round_held_up_by_the_system_does_not_end_drafting():
    ledger = Ledger(20.0, 20.0)
    for _ in range(20):
        ledger.settle(Arm.COPIED, 40.0, 4)
        ledger.settle(Arm.PLAIN, 20.0, 1)
    ledger.settle(Arm.COPIED, 2000.0, 4)
    assert ledger.allows(Arm.COPIED, 1.05)
    for _ in range(10):
        ledger.settle(Arm.COPIED, 2000.0, 4)
    assert not ledger.allows(Arm.COPIED, 1.05)


def test_a_losing_class_is_probed_at_doubling_intervals_until_a_probe_wins():
    ledger, probes = Ledger(20.0, 40.0), []
    for round_ in range(1000):
        drafted = ledger.allows(Arm.COPIED, 1.5)
        probes += [round_] if drafted else []
        ledger.settle(Arm.COPIED if drafted else Arm.PLAIN, 90.0 if drafted else 20.0, 1)
    assert [b - a - 1 for a, b in pairwise([-1, *probes])] == [16, 32, 64, 128, 256, 256]
    while not ledger.allows(Arm.COPIED, 1.5):
        ledger.settle(Arm.PLAIN, 20.0, 1)
    for _ in range(4):
        ledger.settle(Arm.COPIED, 40.0, 6)
    ledger.settle(Arm.PLAIN, 20.0, 1)
    assert ledger.allows(Arm.COPIED, 1.05)


def test_plain_rounds_are_timed_where_all_are_drafted():
    """A plain step takes half of what the prices say, and drafted rounds, a token of which is dearer, seemed to pay."""
    ledger, plain = Ledger(20.0, 20.0), []
    for round_ in range(200):
        drafted = ledger.allows(Arm.COPIED, 1.5)
        plain += [] if drafted else [round_]
        ledger.settle(Arm.COPIED if drafted else Arm.PLAIN, 60.0 if drafted else 10.0, 4 if drafted else 1)
    assert plain[0] == FIRST_PLAIN and ledger.shortfall(Arm.COPIED) > 1.4
    assert not any(ledger.allows(Arm.COPIED, 1.2) for _ in range(9))


def test_plain_rounds_are_timed_less_and_less_often():
    ledger, plain = Ledger(20.0, 20.0), []
    for round_ in range(2000):
        drafted = ledger.allows(Arm.COPIED, 1.5)
        plain += [] if drafted else [round_]
        ledger.settle(Arm.COPIED if drafted else Arm.PLAIN, 20.0, 4 if drafted else 1)
    assert [b - a - 1 for a, b in pairwise([-1, *plain])] == [4, 8, 16, 32, 64, 128, 256, 512, 512]


def test_arms_lose_apart():
    ledger = Ledger(20.0, 20.0)
    for _ in range(50):
        ledger.settle(Arm.MODELLED, 60.0, 1)
        ledger.settle(Arm.COPIED, 20.0, 4)
    ledger.settle(Arm.PLAIN, 20.0, 1)
    assert not ledger.allows(Arm.MODELLED, 1.5) and ledger.allows(Arm.COPIED)
    assert ledger.saving() < 0
    # Rounds of any other arm bring its next probe nearer.
    for _ in range(FIRST_WAIT):
        ledger.settle(Arm.COPIED, 20.0, 4)
    ledger.settle(Arm.PLAIN, 20.0, 1)
    assert ledger.allows(Arm.MODELLED)
    ledger.settle(Arm.MODELLED, 60.0, 1)
    assert not ledger.allows(Arm.MODELLED)


def test_a_model_has_a_prior_of_its_own():
    ledger = Ledger(20.0, 20.0, 15.0)
    assert ledger.saving() == pytest.approx(5.0) and ledger.shortfall(Arm.COPIED) == 1.0


def test_what_a_model_was_found_to_cost_goes_back_to_the_prior():
    """In a slow spell it cost four times the prior; plain rounds, played or foreseen, let that fade at one rate."""
    played, foreseen = Ledger(20.0, 20.0, 10.0), Ledger(20.0, 20.0, 10.0)
    for ledger in (played, foreseen):
        for _ in range(10):
            ledger.settle(Arm.MODELLED, 40.0, 1)
        assert ledger.saving() < -5.0
    for _ in range(1000):
        played.settle(Arm.PLAIN, 20.0, 1)
    foreseen.age(1000)
    assert played.saving() == pytest.approx(foreseen.saving(), rel=1e-6)
    foreseen.age(5000)
    assert foreseen.saving() == pytest.approx(10.0, rel=0.02)
    assert 0.5 < FADE**693 / 0.5 < 1.1


def test_a_machine_that_drifts_moves_both_sides():
    """Everything takes three times as long for good: drafting stays as worth it as it was."""
    ledger = Ledger(20.0, 20.0)
    for slow in (1.0, 3.0):
        for _ in range(200):
            ledger.settle(Arm.COPIED, 40.0 * slow, 4)
            ledger.settle(Arm.PLAIN, 20.0 * slow, 1)
        assert ledger.shortfall(Arm.COPIED) == pytest.approx(0.5, rel=0.25)
