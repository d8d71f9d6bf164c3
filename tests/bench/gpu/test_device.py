"""Launches picked out of a program, and the driver's structs for capturing them."""

from __future__ import annotations

import ctypes

import numpy as np

from bench.gpu.device import LaunchAttribute, LaunchConfig, some
from tandem.artifacts.program import EDGE, LAUNCH, PARAM, Kernel, Program, Region


def program() -> Program:
    """Launches of linear, glue, linear, norm over one argument each."""
    launches = np.zeros(4, LAUNCH)
    launches["kernel"], launches["first_param"], launches["num_params"] = [0, 1, 0, 2], [0, 1, 2, 3], 1
    launches["grid"] = launches["block"] = 1
    edges = np.zeros(3, EDGE)
    edges["source"], edges["target"] = [0, 1, 2], [1, 2, 3]
    kernels = tuple(Kernel("0" * 64, symbol, (8,)) for symbol in ("linear", "glue", "add_rms_norm"))
    return Program(kernels, (Region("scratch", 64),), launches, np.zeros(4, PARAM), edges)


def test_some_launches_follow_each_other_as_programs_have_them() -> None:
    found = some(program(), lambda symbol: symbol.startswith("linear"))
    assert found.launches["first_param"].tolist() == [0, 2]
    assert found.edges[["source", "target", "from_port", "to_port", "type"]].tolist() == [(0, 1, 1, 0, 1)]
    assert found.params is not None and len(found.params) == 4


def test_one_launch_and_none_have_no_edges() -> None:
    assert len(some(program(), lambda symbol: symbol.endswith("rms_norm")).edges) == 0
    assert len(some(program(), lambda symbol: False).launches) == 0


def test_structs_have_the_sizes_and_offsets_of_cuda_h() -> None:
    assert ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchAttribute.value.offset == 8
    assert ctypes.sizeof(LaunchConfig) == 56
    offsets = [getattr(LaunchConfig, name).offset for name in ("shared", "stream", "attributes", "num_attributes")]
    assert offsets == [24, 32, 40, 48]
    config = LaunchConfig((1, 2, 3), (4, 5, 6), 7, 8, ctypes.pointer(LaunchAttribute(6, 0, 1)), 1)
    assert bytes(config)[:28] == np.array([1, 2, 3, 4, 5, 6, 7], "<u4").tobytes()
    assert config.attributes[0].value == 1
