"""The draw: filters by hand, noise by its specification, frequencies by chi-square."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import RequestError
from tandem.runtime.request import Sampling
from tandem.runtime.sampling import draw, uniform, validate

PROBABILITIES = np.array([0.05, 0.4, 0.25, 0.2, 0.1])
LOGITS = np.log(PROBABILITIES).astype(np.float32)


def philox(key: int, counter: int) -> int:
    """Word 0 of Philox4x64-10, written from the paper: ten rounds of two multiplications and a bumped key."""
    x, k, low = [counter, 0, 0, 0], [key, 0], (1 << 64) - 1
    for _ in range(10):
        a, b = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [(b >> 64) ^ x[1] ^ k[0], b & low, (a >> 64) ^ x[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & low, (k[1] + 0xBB67AE8584CAA73B) & low]
    return x[0]


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (42, 1), (2**64 - 1, 7), (-1, 7), (2**70 + 5, 131071)])
def test_noise_is_the_generator_it_says(seed: int, position: int) -> None:
    assert uniform(seed, position) == (philox(seed % 2**64, position + 1) >> 11) / 2**53


def frequencies(sampling: Sampling, num_draws: int = 4000) -> np.ndarray:
    drawn = [draw(LOGITS, sampling, 7, position) for position in range(num_draws)]
    return np.bincount(drawn, minlength=len(LOGITS)) / num_draws


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (Sampling(1.0), [0.05, 0.4, 0.25, 0.2, 0.1]),
        (Sampling(0.5), [0.0025, 0.16, 0.0625, 0.04, 0.01]),
        (Sampling(2.0), [0.05**0.5, 0.4**0.5, 0.5, 0.2**0.5, 0.1**0.5]),
        (Sampling(1.0, top_k=2), [0, 0.4, 0.25, 0, 0]),
        (Sampling(1.0, top_k=-1), [0.05, 0.4, 0.25, 0.2, 0.1]),
        (Sampling(1.0, top_p=0.5), [0, 0.4, 0.25, 0, 0]),
        (Sampling(1.0, top_p=0.7), [0, 0.4, 0.25, 0.2, 0]),
        (Sampling(1.0, min_p=0.4), [0, 0.4, 0.25, 0.2, 0]),
        # top_k first: of the three that stay, two hold 65/85 of the mass.
        (Sampling(1.0, top_k=3, top_p=0.75), [0, 0.4, 0.25, 0, 0]),
        (Sampling(1.0, top_k=4, top_p=0.95, min_p=0.3), [0, 0.4, 0.25, 0.2, 0]),
    ],
)
def test_frequencies_follow_the_filtered_distribution(sampling: Sampling, weights: list[float]) -> None:
    expected = np.array(weights) / np.sum(weights)
    seen = frequencies(sampling)
    assert (seen[expected == 0] == 0).all()
    held = expected > 0
    chi_square = 4000 * np.sum((seen[held] - expected[held]) ** 2 / expected[held])
    # 0.999 quantiles of chi-square with 1 to 4 degrees of freedom.
    assert chi_square < {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}[int(held.sum()) - 1]


def test_equal_logits_rank_by_id() -> None:
    flat = np.zeros(6, np.float32)
    assert draw(flat, Sampling(0.0), 1, 1) == 0
    for sampling in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.33)):
        assert {draw(flat, sampling, 3, position) for position in range(100)} == {0, 1}


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=12),
    st.builds(
        Sampling,
        temperature=st.floats(0, 1e300),
        top_p=st.floats(0, 1, exclude_min=True),
        top_k=st.integers(-1, 15),
        min_p=st.floats(0, 1),
    ),
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**20),
)
def test_every_draw_is_an_id_that_has_weight(values: list[float], sampling: Sampling, seed: int, position: int) -> None:
    logits = np.array(values, np.float32)
    drawn = draw(logits, sampling, seed, position)
    assert 0 <= drawn < len(values)
    assert drawn == draw(logits, sampling, seed, position)
    if any(value > -math.inf for value in values):
        assert values[drawn] > -math.inf
        if math.inf in values or sampling.temperature == 0 or sampling.top_k == 1:
            assert values[drawn] == max(value for value in values if not math.isnan(value))


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(-0.1), "temperature"),
        (Sampling(math.nan), "temperature"),
        (Sampling(math.inf), "temperature"),
        (Sampling(1, top_p=0), "top_p"),
        (Sampling(1, top_p=1.01), "top_p"),
        (Sampling(1, top_p=math.nan), "top_p"),
        (Sampling(1, top_k=-2), "top_k"),
        (Sampling(1, min_p=-0.1), "min_p"),
        (Sampling(1, min_p=1.1), "min_p"),
    ],
)
def test_values_out_of_range_are_named(sampling: Sampling, param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        validate(sampling)
    assert caught.value.param == param


def test_values_at_the_ends_of_their_ranges_are_sound() -> None:
    validate(Sampling())
    validate(Sampling(5.0, top_p=1e-9, top_k=-1, min_p=1.0))


def slowly(logits: np.ndarray, sampling: Sampling) -> list[tuple[int, float]]:
    """(id, weight) in the order of the draw, as the definition says it."""
    top = max(logits.tolist())
    weight = [math.exp((value - top) / sampling.temperature) for value in logits.tolist()]
    ids = sorted(range(len(weight)), key=lambda i: (-logits[i], i))
    if 0 < sampling.top_k < len(ids):
        ids = ids[: sampling.top_k]
    if sampling.top_p < 1:
        whole, before, prefix = sum(weight[i] for i in ids), 0.0, []
        for i in ids:
            if before < sampling.top_p * whole:
                prefix.append(i)
            before += weight[i]
        ids = prefix
    ids = sorted(i for i in ids if weight[i] >= sampling.min_p)
    if len(ids) == len(weight) and not (sampling.top_p < 1 or sampling.min_p > 0):
        groups = -(-len(weight) // 64)
        ids.sort(key=lambda i: (i % groups, i))
    return [(i, weight[i]) for i in ids]


@pytest.mark.parametrize("vocab_size", [5, 64, 65, 700, 4096])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7, top_k=20),
        Sampling(1.0, top_p=0.9),
        Sampling(1.5, min_p=0.02),
        Sampling(0.9, top_k=64, top_p=0.8, min_p=0.01),
        Sampling(1.0, top_p=0.95, min_p=0.005),
    ],
)
def test_a_draw_is_the_one_its_definition_names(vocab_size: int, sampling: Sampling) -> None:
    logits = (2 * np.random.default_rng(vocab_size).standard_normal(vocab_size)).astype(np.float32)
    ordered = slowly(logits, sampling)
    edges = np.cumsum([0.0] + [weight for _, weight in ordered])
    for position in range(200):
        place = [i for i, _ in ordered].index(draw(logits, sampling, 11, position))
        target = uniform(11, position) * edges[-1]
        # fp32 weights move the edges a little.
        assert edges[place] - 1e-5 * edges[-1] <= target <= edges[place + 1] + 1e-5 * edges[-1]
