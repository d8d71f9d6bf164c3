"""How deep chains go: as long as another pass gives more tokens a millisecond, and no deeper than there is room."""

from __future__ import annotations

import pytest

from tandem.keys import Kind
from tandem.runtime.drafters.chain import Stake


class Flat:
    """A step takes 10 ms, a verify 10 and 1 a row, a draft `draft` whatever its rows."""

    def __init__(self, draft: float) -> None:
        self._draft = draft

    def ms(self, context: int, kind: Kind, rows: int) -> float:
        return {Kind.EXTEND: 10.0, Kind.VERIFY_CHAIN: 10.0 + rows, Kind.DRAFT: self._draft}[kind]

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


@pytest.mark.parametrize(
    ("hope", "pays"),
    # One lane, one guess of 0.8 for 2 ms: 1.8 tokens in 12 + 2 ms, 0.1286 a ms. One more costs 2 + 1 ms: 0.386 tokens.
    [(0.38, False), (0.39, True)],
)
def test_another_pass_has_to_beat_the_round_so_far(hope: float, pays: bool) -> None:
    stake = Stake(Flat(2.0), 100, 1)
    stake.paid(1)
    stake.gained += 0.8
    assert stake.raised_by(hope, 1) is pays


@pytest.mark.parametrize(("hope", "pays"), [(0.29, False), (0.31, True)])
def test_another_pass_has_to_beat_the_plain_step(hope: float, pays: bool) -> None:
    # 1.1 tokens in 14 ms are fewer than the plain step's 0.1 a ms, by which 3 ms are worth 0.3 tokens.
    stake = Stake(Flat(2.0), 100, 1)
    stake.paid(1)
    stake.gained += 0.1
    assert stake.raised_by(hope, 1) is pays


def test_lanes_share_a_pass() -> None:
    # Two lanes: 2 + 1.6 tokens in 14 + 2 ms, 0.225 a ms; two rows more cost 2 + 2 ms, worth 0.9 tokens.
    stake = Stake(Flat(2.0), 100, 2)
    stake.paid(2)
    stake.gained += 1.6
    assert not stake.raised_by(0.89, 2) and stake.raised_by(0.91, 2)
