"""Weights in kernel layout, against the layout worked by hand, and what comes back from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.compile.cpu.panels import ITEM_BYTES, SAFETENSORS, pack, stored_bytes, stored_shape, unpack
from tandem.compile.profile import PROFILES, Format, Profile

FORMS: tuple[Format, ...] = ("fp32", "bf16", "int8", "int4")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_an_fp32_matrix_lies_in_panels_of_32_outputs() -> None:
    weight = torch.arange(40.0 * 3).view(40, 3)  # weight[n, k] = 3 n + k
    packed = pack(weight, "fp32")
    assert packed.shape == stored_shape((40, 3), "fp32") == (2, 3, 32) and packed.dtype == np.float32
    assert packed[0, 0].tolist() == [3 * n for n in range(32)]
    assert packed[0, 2].tolist() == [3 * n + 2 for n in range(32)]
    assert packed[1, 1].tolist() == [3 * n + 1 for n in range(32, 40)] + [0] * 24


def test_bf16_inputs_stand_in_pairs() -> None:
    packed = pack(torch.arange(33.0 * 3).view(33, 3), "bf16")
    assert packed.shape == stored_shape((33, 3), "bf16") == (2, 4, 32) and packed.dtype == np.uint16
    values = (packed.astype(np.uint32) << 16).view(np.float32).reshape(2, 2, 32, 2)
    assert values[0, 0].tolist() == [[3 * n, 3 * n + 1] for n in range(32)]
    assert values[0, 1].tolist() == [[3 * n + 2, 0] for n in range(32)]
    assert values[1, 0].tolist() == [[96, 97]] + [[0, 0]] * 31


def test_int8_bytes_stand_in_fours_above_their_scales() -> None:
    """Every output's largest magnitude is 127 steps, here of 1 and of 2."""
    weight = torch.zeros(33, 5)
    weight[0], weight[32] = torch.tensor([127.0, -127, 3, 0, -2]), torch.tensor([10.0, 0, 0, -254, 1])
    packed = pack(weight, "int8")
    assert packed.shape == stored_shape((33, 5), "int8") == (2, 32 * 32 + 128) and packed.dtype == np.uint8
    raised, scale = packed[:, :1024].reshape(2, 8, 32, 4), packed[:, 1024:].copy().view(np.float32)
    assert raised[0, 0, 0].tolist() == [255, 1, 131, 128] and raised[0, 1, 0].tolist() == [126, 128, 128, 128]
    # 1 is half a step of 2, which goes to the even number of steps.
    assert raised[1, 0, 0].tolist() == [133, 128, 128, 1] and raised[1, 1, 0].tolist() == [128] * 4
    assert (scale[0, 0], scale[1, 0], scale.sum()) == (1, 2, 3)
    assert (raised[:, 2:] == 128).all() and (raised[0, :, 1:] == 128).all()


def test_int4_nibbles_stand_in_halves_of_a_group() -> None:
    """Outputs of scale 1 and minimum -5: inputs 16 apart share a byte."""
    weight = torch.full((33, 33), -5.0)
    weight[3, :32] = torch.arange(32.0) % 16 - 5
    weight[3, 16:32] = 10 - torch.arange(16.0)
    packed = pack(weight, "int4")
    assert packed.shape == stored_shape((33, 33), "int4") == (2, 2 * 640) and packed.dtype == np.uint8
    group = packed[0, :640]
    nibbles, reals = group[:512].reshape(4, 32, 4), group[512:].copy().view(np.float16).reshape(2, 32)
    assert nibbles[:, 3].reshape(-1).tolist() == [n | (15 - n) << 4 for n in range(16)]
    assert reals[:, 3].tolist() == [1, -5]
    assert reals[:, 4].tolist() == [0, -5] and not nibbles[:, 4].any()
    padded = unpack(packed, "int4", (64, 64))
    assert not padded[33:].any()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-2.5, 0xC020),
        (1.0 + 2**-8, 0x3F80),  # a tie goes to the even neighbour, below
        (1.0 + 3 * 2**-8, 0x3F82),  # and above
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (3.4e38, 0x7F80),
        (1.1754944e-38, 0x0080),
        (1e-40, 0x0000),  # a subnormal counts as zero in products, so it is zero
    ],
)
def test_values_are_rounded_to_the_nearest_bf16(value: float, bits: int) -> None:
    packed = pack(torch.full((1, 1), value), "bf16")
    assert packed[0, 0].tolist() == [bits] + [0] * 31


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_vectors_stay_fp32_in_their_own_order(profile: Profile) -> None:
    vector = torch.tensor([1.0, 1.0 + 2**-20, -3.0])
    form = profile.format("norm", (3,))
    assert form == "fp32" and stored_shape((3,), form) == (3,)
    assert pack(vector, form).tolist() == unpack(pack(vector, form), form, (3,)).tolist() == vector.tolist()
    assert pack(vector.bfloat16(), form).dtype == np.float32


def test_tables_of_an_int4_profile_are_int8() -> None:
    forms = [PROFILES["int4"].format(name, (70, 40)) for name in ("qkv", "gate_up", "embedding", "head")]
    assert forms == ["int4", "int4", "int8", "int8"]


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_checkpoints_are_widened_exactly(form: Format) -> None:
    weight = noise(40, 3)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = weight.to(dtype)
        assert (pack(narrow, form) == pack(narrow.float(), form)).all()


shapes = st.tuples(st.integers(1, 70), st.integers(1, 100))


@given(st.sampled_from(FORMS), shapes, st.integers(0, 2**31), st.floats(-5, 5))
@settings(max_examples=80, deadline=None)
def test_what_comes_back_is_the_nearest_that_the_format_holds(
    form: Format, shape: tuple[int, int], seed: int, decades: float
) -> None:
    size = 10.0**decades if form != "int4" else 1.0  # fp16 scales have a range of their own
    weight = noise(*shape, seed=seed) * size
    stored = pack(weight, form)
    assert stored.shape == stored_shape(shape, form)
    assert stored.nbytes == stored_bytes(shape, form) == stored.size * ITEM_BYTES[SAFETENSORS[form]]
    away = (unpack(stored, form, shape) - weight).abs()
    if form == "fp32":
        assert not away.any()
    elif form == "bf16":
        assert (away <= weight.abs() * 2.0**-8).all()
    elif form == "int8":
        assert (away <= weight.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
    else:
        grouped = torch.nn.functional.pad(weight, (0, -shape[1] % 32)).view(shape[0], -1, 32)
        step = (grouped.amax(2) - grouped.amin(2)) / 15
        limit = (0.51 * step + 2e-3 * grouped.abs().amax(2)) ** 2 * 32  # of a group's squares, as fits choose by them
        squares = torch.nn.functional.pad(away**2, (0, -shape[1] % 32)).view(shape[0], -1, 32).sum(2)
        assert (squares <= limit).all()


@given(st.sampled_from(("bf16", "int8")), shapes, st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_what_came_back_is_packed_to_the_same_bytes(form: Format, shape: tuple[int, int], seed: int) -> None:
    stored = pack(noise(*shape, seed=seed), form)
    assert (pack(unpack(stored, form, shape), form) == stored).all()


@given(shapes, st.integers(0, 2**31), st.sampled_from((1, 2, 4, 8, 15)))
@settings(max_examples=60, deadline=None)
def test_a_q4_1_grid_comes_back_exactly(shape: tuple[int, int], seed: int, most: int) -> None:
    """Groups of fp16 scale and minimum whose least weight is nibble 0 and whose largest 15, others anywhere between."""
    rng, (n, groups) = np.random.default_rng(seed), shape
    nibble = rng.integers(0, most + 1, (n, groups, 32))
    nibble[:, :, 0], nibble[:, :, 1] = 0, 15
    nibble = rng.permuted(nibble, axis=2)
    scale = (rng.uniform(0.2, 3, (n, groups, 1)) * 10.0 ** rng.integers(-3, 1)).astype(np.float16).astype(np.float32)
    minimum = (-scale * rng.uniform(0, 15, (n, groups, 1))).astype(np.float16).astype(np.float32)
    weight = torch.from_numpy((nibble * scale + minimum).astype(np.float32)).view(n, -1)
    assert (unpack(pack(weight, "int4"), "int4", (n, groups * 32)) == weight).all()


def test_fitting_a_group_beats_its_plain_grid() -> None:
    """Least squares over plain least-to-largest rounding: normal weights lose a tenth of their error or more."""
    weight = noise(64, 320)
    grouped = weight.view(64, -1, 32)
    low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
    step = (high - low) / 15
    plain = (((grouped - low) / step).round() * step + low).view_as(weight)
    fitted = unpack(pack(weight, "int4"), "int4", (64, 320))
    assert (fitted - weight).square().mean() < 0.93 * (plain - weight).square().mean()


@pytest.mark.parametrize("form", ("int8", "int4"))
def test_groups_of_one_number_are_that_number(form: Format) -> None:
    weight = torch.tensor([0.0, 1.0, -0.25, 3.0])[:, None].expand(4, 64).contiguous()
    assert (unpack(pack(weight, form), form, (4, 64)) == weight).all()
