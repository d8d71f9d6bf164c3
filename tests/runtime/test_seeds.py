"""Seeds of choices: SplitMix64's published values, and the request's own for the first."""

from __future__ import annotations

from tandem.runtime.seeds import choice_seed

PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
"""The first values of SplitMix64 from state 1234567, as its test vectors have them."""


def test_splitmix64() -> None:
    assert [choice_seed(1234567, number) for number in range(1, 6)] == PUBLISHED


def test_the_first_choice_has_the_requests_own_seed_and_none_stays_none() -> None:
    assert choice_seed(-5, 0) == -5
    assert choice_seed(-5, 3) == choice_seed(2**64 - 5, 3) is not None
    assert [choice_seed(None, number) for number in range(3)] == [None] * 3
