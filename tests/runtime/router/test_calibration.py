"""What committed tokens say of drafted ones, and how far scores are believed after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.router.blend import Blend
from tandem.runtime.router.calibration import Calibration, Counts, Evidence, fates
from tandem.tree import DraftTree


def sums(counts: Counts) -> dict[str, tuple[float, float]]:
    """Accepted and expected nodes of each source over all tenths."""
    return {source: (sum(accepted), pytest.approx(sum(expected))) for source, (accepted, expected) in counts.items()}


def test_only_nodes_whose_parent_was_verified_are_judged():
    whole = Blend([DraftTree([0, 1, 2, 3, 4], [-1, 0, 1, 2, 0], [1, 0.8, 0.6, 0.5, 0.1], ["root", *"aaab"])], {})
    # A plain round tells of the first step only, whatever it brought.
    assert sums(fates(whole, (), [1])) == {"a": (1, 0.8), "b": (0, 0.1)}
    assert sums(fates(whole, (), [4])) == {"a": (0, 0.8), "b": (1, 0.1)}
    # A verify of node 1 tells of its children too: of node 2, not of node 3.
    assert sums(fates(whole, {1}, [1, 2]))["a"] == (2, 1.4)
    assert sums(fates(whole, {1}, [9]))["a"] == (0, 1.4)
    # A text that ends early leaves what is below it open.
    assert sums(fates(whole, {1, 2, 3, 4}, [1]))["a"] == (1, 0.8)


def test_a_node_of_two_families_is_judged_for_both_by_their_own_scores():
    copied = DraftTree.chain(0, [1, 2], [0.55, 0.35], "local")
    modelled = DraftTree.chain(0, [1, 3], [0.95, 0.15], "mtp")
    counts = fates(Blend([copied, modelled], {}), {1, 2, 3}, [1, 3])
    assert sums(counts) == {"local": (1, 0.9), "mtp": (2, 1.1)}
    assert counts["local"][0][5] == 1 and counts["mtp"][0][9] == 1 and counts["mtp"][1][1] == pytest.approx(0.15)


@given(st.lists(st.tuples(st.floats(0.05, 1.0), st.booleans()), min_size=1, max_size=60))
def test_an_unknown_source_is_taken_at_its_word_and_then_counted(trials):
    evidence = Evidence({})
    for score, hit in trials:
        tree = DraftTree.chain(0, [1], [score], "mtp")
        evidence.learn(fates(Blend([tree], {}), (), [1 if hit else 2]))
    factor = evidence.factors["mtp"][0]
    assert set(evidence.factors["mtp"]) == {factor}
    expected, hits = sum(score for score, _ in trials), sum(hit for _, hit in trials)
    assert (factor > 1) == (factor > 1 and hits >= 0.9 * expected - 1) and 0.05 <= factor <= 2.0


def test_ended_texts_tell_tenths_apart_and_a_lane_moves_them_together():
    """Scores of 0.95 come true half as often as they say, those of 0.25 as often as not."""
    shared = Calibration()
    high, low = (Blend([DraftTree.chain(0, [1], [score], "block")], {}) for score in (0.95, 0.25))
    for round_ in range(1000):
        shared.learn(fates(high, (), [1 if round_ % 20 < 9 else 2]))
        shared.learn(fates(low, (), [1 if round_ % 2 else 2]))
    factors = shared.factors()["block"]
    assert factors[9] == pytest.approx(0.45 / 0.95, rel=0.1) and factors[2] == pytest.approx(2.0, rel=0.1)
    assert factors[5] == 1.0
    evidence = Evidence(shared.factors())
    assert evidence.factors["block"] == factors
    for _ in range(500):
        evidence.learn(fates(high, (), [2]))
    assert evidence.factors["block"][9] < 0.4 * factors[9]
    assert evidence.factors["block"][2] / factors[2] == pytest.approx(evidence.factors["block"][9] / factors[9])
    # Other sources go on being taken at their word.
    assert "local" not in evidence.factors


def test_old_texts_fade():
    shared = Calibration()
    blend = Blend([DraftTree.chain(0, [1], [0.9], "mtp")], {})
    for token in [2] * 3000 + [1] * 1500:
        shared.learn(fates(blend, (), [token]))
    assert shared.factors()["mtp"][8] > 1.0


def test_a_text_like_all_others_leaves_what_is_known_alone():
    """Texts before had half of what scores of 0.9 promise come true, and so has this one."""
    evidence = Evidence({"mtp": [0.5] * 10})
    blend = Blend([DraftTree.chain(0, [1], [0.9], "mtp")], {})
    for round_ in range(400):
        evidence.learn(fates(blend, (), [1 if round_ % 20 < 9 else 2]))
    assert evidence.factors["mtp"][8] == pytest.approx(0.5, rel=0.1)
