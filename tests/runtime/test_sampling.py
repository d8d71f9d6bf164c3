"""The draw: filters by hand, noise, weights and ids by docs/sampling.md, bit for bit."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from tandem.errors import RequestError
from tandem.runtime.exponential import weigh
from tandem.runtime.noise import word
from tandem.runtime.request import Sampling
from tandem.runtime.sampling import draw, validate
from tests.sampling_reference import drawn, philox, scale_of, weight

ROOT = Path(__file__).resolve().parents[2]
FILTERS = [
    Sampling(1.0),
    Sampling(0.7, top_k=20),
    Sampling(1.0, top_p=0.9),
    Sampling(1.5, min_p=0.02),
    Sampling(0.9, top_k=64, top_p=0.8, min_p=0.01),
    Sampling(1.0, top_p=0.95, min_p=0.005),
]
PROBABILITIES = np.array([0.05, 0.4, 0.25, 0.2, 0.1])
LOGITS = np.log(PROBABILITIES).astype(np.float32)


# The vectors that Random123 gives for philox4x64 with 10 rounds: key and counter all zeros, all ones, digits of pi.
PI = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
VECTORS = [
    ((0, 0), (0, 0, 0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    (
        (2**64 - 1,) * 2,
        (2**64 - 1,) * 4,
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        PI,
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("key", "counter", "block"), VECTORS)
def test_the_generator_is_philox(key: tuple[int, ...], counter: tuple[int, ...], block: tuple[int, ...]) -> None:
    assert tuple(philox(key, counter)) == block


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_noise_is_a_word_of_it(seed: int, position: int) -> None:
    assert word(seed, position) == philox((seed % 2**64, 0), (position + 1, 0, 0, 0))[0]
    assert word(seed, position) == int(np.random.Philox(key=seed % 2**64, counter=position).random_raw())


def test_the_page_gives_words_to_hold_others_against() -> None:
    page = (ROOT / "docs" / "sampling.md").read_text()
    rows = re.findall(r"\| (−?[\d,]+) \| ([\d,]+) \| `(0x\w{16})` \|", page)
    assert len(rows) == 3
    for seed, position, noise in rows:
        assert word(int(seed.replace("−", "-")), int(position.replace(",", ""))) == int(noise, 16)


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


values = st.floats(-60, 20, width=32)
wild = st.floats(width=32, allow_nan=True, allow_infinity=True)
samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.floats(0.05, 3), st.sampled_from([0.0, 1e-300, 1e300, 0.7, 1.0])),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1, exclude_min=True), st.sampled_from([0.25, 0.5, 0.75])),
    top_k=st.integers(-1, 40),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)


@given(st.lists(st.one_of(values, values, st.integers(-2, 2).map(float), wild), min_size=1, max_size=40), samplings,
       st.integers(-(2**70), 2**70), st.integers(0, 2**20))  # fmt: skip
@settings(max_examples=250)
def test_a_draw_is_the_one_that_the_page_names(logits: list[float], sampling: Sampling, seed: int, at: int) -> None:
    assert draw(np.array(logits, np.float32), sampling, seed, at) == drawn(logits, sampling, seed, at)


@given(st.lists(st.one_of(values, st.floats(allow_nan=False, width=32)), min_size=1, max_size=99),
       st.floats(0, 1e300, exclude_min=True))  # fmt: skip
@settings(max_examples=100)
def test_weights_are_those_of_the_page(logits: list[float], temperature: float) -> None:
    row = np.array([value for value in logits if value < math.inf] or [0.0], np.float32)
    top = row.max() if row.max() > -math.inf else np.float32(0)
    wanted = [weight(float(value), float(top), scale_of(temperature)) for value in row]
    np.testing.assert_array_equal(weigh(row, top, temperature), wanted)


@pytest.mark.parametrize("vocab_size", [5, 64, 65, 700, 9_000])
@pytest.mark.parametrize("sampling", FILTERS)
def test_vocabularies_of_any_size(vocab_size: int, sampling: Sampling) -> None:
    logits = (4 * np.random.default_rng(vocab_size).standard_normal(vocab_size)).astype(np.float32).round(1)
    for position in range(3 if vocab_size > 999 else 20):
        assert draw(logits, sampling, 11, position) == drawn(logits.tolist(), sampling, 11, position)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_weights_are_exponentials(temperature: float) -> None:
    logits = np.linspace(-16 * temperature, 0, 100_001, dtype=np.float32)
    exact = np.exp(logits.astype(np.longdouble) / np.longdouble(temperature)) * 2**40
    off = (np.abs(weigh(logits, np.float32(0), temperature) - exact) - 1) / exact  # less what an integer cuts off
    assert off.max() < 1.5e-6 and off[exact > 2**36].max() < 5e-7, "24 bits, the last few of them rounded"


def test_weights_know_nothing_of_their_neighbours() -> None:
    row = (5 * np.random.default_rng(4).standard_normal(70_000)).astype(np.float32)
    whole = weigh(row, row.max(), 0.8)
    for begin in (0, 8_191, 32_767, 32_768, 69_999):
        np.testing.assert_array_equal(weigh(row[begin : begin + 3], row.max(), 0.8), whole[begin : begin + 3])


def test_no_instruction_set_changes_a_draw() -> None:
    """numpy's own exp would differ: its versions for several processors round differently."""
    script = (
        "import numpy as np; from tandem.runtime.exponential import weigh;"
        "from hashlib import sha256;"
        "x = (20 * np.random.default_rng(1).standard_normal(200_000)).astype(np.float32);"
        "print(sha256(weigh(x, x.max(), 0.7).tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(off)},
        ).stdout
        for off in ((), tuple(feature for feature in __cpu_dispatch__ if __cpu_features__.get(feature)))
    }
    assert len(found) == 1
