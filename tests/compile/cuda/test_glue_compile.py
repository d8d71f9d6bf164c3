"""What is made of Inductor's captured kernels, and how they are known: by what Triton says of itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch._inductor import config as inductor

from tandem.compile.cuda.glue_compile import FULL_EDGE, OPTIONS, GlueLaunch, Kernels, glue_launches
from tandem.compile.cuda.graph_reader import EdgeRecord, KnownKernel, Span, read_graph
from tandem.compile.cuda.graph_source import Edge
from tandem.errors import LoweringError
from tests.compile.cuda.recorded import GLUE, KNOWN, Recorded, glue, word

SPANS = [Span("linear", 0x1000, 0x100), Span("mul", 0x2000, 0x80), Span("add", 0x3000, 0x80)]
CUBINS = {GLUE.digest: GLUE.cubin}


def captured(*calls, edges=None):
    links = [Edge(i, i + 1) for i in range(len(calls) - 1)] if edges is None else edges
    return read_graph(Recorded(dict(enumerate(calls)), links), KNOWN, SPANS)


def test_captured_kernels_become_launches_of_operands():
    first, second = glue_launches(*captured(glue(0x1000, 0x2000, 96), glue(0x2000, 0x3000, 7)), CUBINS)
    hidden = (bytes(8), bytes(8))
    assert first == GlueLaunch(
        "glue", b"cubin of glue", (3, 1, 1), (256, 1, 1), 0, ("linear", "mul", word(96, 4), *hidden)
    )
    assert second.arguments == ("mul", "add", word(7, 4), *hidden)
    assert first.edge == FULL_EDGE == (0, 0, 0)


@pytest.mark.parametrize(
    ("calls", "edges", "words"),
    [
        ((glue(0x1000, 0x2010, 96),), None, r"glue node 0 \(kernel glue\), argument 1 begins 16 bytes inside mul"),
        ((), None, "Inductor's 0 kernels are no chain"),
        ((glue(0x1000, 0x2000, 1), glue(0x2000, 0x3000, 1)), [], "Inductor's 2 kernels are no chain"),
        ((glue(0x1000, 0x2000, 1), glue(0x2000, 0x3000, 1)), [Edge(0, 1, 1, 0, 1)], "no chain of full edges"),
    ],
)
def test_what_programs_cannot_hold_is_refused(calls, edges, words):
    with pytest.raises(LoweringError, match=words):
        glue_launches(*captured(*calls, edges=edges), CUBINS)


def test_a_result_between_kernels_is_refused_by_name():
    with pytest.raises(
        LoweringError, match=r"node 0 \(kernel glue\), argument 1 points to 0x9000, outside all regions"
    ):
        captured(glue(0x1000, 0x9000, 96))


def test_kernels_are_known_by_what_was_compiled_and_loaded(tmp_path):
    (tmp_path / "k.cubin").write_bytes(b"bytes")
    files = {"k.cubin": str(tmp_path / "k.cubin"), "k.json": "unread"}
    kernels = Kernels()
    signature = {"in_ptr0": "*fp32", "out_ptr0": "*bf16", "xnumel": "i32", "XBLOCK": "constexpr"}
    kernels.on_compiled(SimpleNamespace(signature=signature), {"name": "k", "hash": "a"}, files)
    kernels.on_loaded(None, 0x77, "k", files, "a")
    kernels.on_loaded(None, 0x88, "other", {}, "b")
    assert kernels.loaded == {0x77: KnownKernel("k", b"bytes", ("*fp32", "*bf16", "i32"))}


def test_this_torch_knows_every_option():
    known = inductor.get_config_copy()
    defaults = {name: known[name] for name in OPTIONS}
    assert all(default is None or isinstance(OPTIONS[name], type(default)) for name, default in defaults.items())


def test_edges_are_read_as_records():
    assert captured(glue(0x1000, 0x2000, 1), glue(0x2000, 0x3000, 1))[1] == [EdgeRecord(0, 1)]
