"""What the rig compiles candidates for: a model of few layers that has all kernels of the whole one."""

from __future__ import annotations

import pytest

from bench.gpu.pass_rig import shortened
from bench.gpu.shapes import SHAPES
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import layer_types


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shortened_model_has_a_layer_of_each_type(shape: str) -> None:
    whole = resolve(SHAPES[shape].config())
    few = shortened(whole)
    assert set(layer_types(few)) == set(layer_types(whole))
    assert len(layer_types(few)) == few.num_hidden_layers == (4 if shape == "hybrid27b" else 2)
