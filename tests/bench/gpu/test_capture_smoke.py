"""The capture's smoke test: what it writes down passes against its own record, and nothing altered does."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import capture_smoke
from tandem.compile.cuda.capture import compare
from tandem.compile.cuda.graph_reader import Argument, EdgeRecord, NodeRecord
from tandem.kernels.cuda.build import Cubin

BASES = {"weights": 0x1000, "io": 0x4000, "scratch": 0x10000}
ALTERED = (
    *("a node missing", "an edge lost", "an edge made a full one", "another grid"),
    *("a pointer moved", "a pointer in another region", "another cubin"),
)


@pytest.fixture
def honest(monkeypatch):
    def compiled(variant, capability):
        assert capability == 90
        return Cubin(variant.kernel.encode(), variant.kernel, (8,) * (sum(map(bool, variant.pointers)) + 2), 2, 0, 128)

    monkeypatch.setattr(capture_smoke, "compile_variant", compiled)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return capture_smoke.write(capture_smoke.calls())


def recorded():
    """The capture of these calls, written from them."""
    records = []
    for kernel, work, places in capture_smoke.calls():
        arguments = []
        for region, offset, _ in filter(None, (places[param.name] for param in kernel.signature)):
            arguments.append(Argument((BASES[region] + offset).to_bytes(8, "little"), region, offset))
        hidden = (Argument(bytes(8)), Argument(bytes(8)))
        binary = capture_smoke.digest(kernel.name.encode())
        records.append(NodeRecord(kernel.name, binary, work.grid, (128, 1, 1), 0, (*arguments, *hidden), 2))
    return records, [EdgeRecord(0, 1, 1, 0, 1)]


def test_the_honest_program_passes(honest):
    compare(*recorded(), honest, BASES)


@pytest.mark.parametrize("what", ALTERED)
def test_altered_ones_are_refused(honest, what):
    altered = capture_smoke.altered(honest)
    assert tuple(altered) == ALTERED
    assert "program" in capture_smoke.refused(lambda: compare(*recorded(), altered[what], BASES))


def test_what_is_not_refused_fails(honest):
    with pytest.raises(AssertionError, match="not refused"):
        capture_smoke.refused(lambda: compare(*recorded(), honest, BASES))
