"""Records of a graph written down by hand: places of pointers, order, and what is refused by name."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.compile.cuda.graph_reader import Argument, EdgeRecord, KnownKernel, Span, read_graph
from tandem.compile.cuda.graph_source import Edge
from tandem.errors import LoweringError
from tests.compile.cuda.recorded import KNOWN, SPANS, Recorded, chain, glue, norm, word


def test_a_chain_is_read_in_order_with_every_pointer_in_its_place():
    records, edges = read_graph(chain(), KNOWN, SPANS)
    assert [record.symbol for record in records] == ["norm", "glue", "norm"]
    assert edges == [EdgeRecord(0, 1, 0, 0, 0), EdgeRecord(1, 2, 1, 0, 1)]
    first, second, third = records
    assert (first.grid, first.block, first.shared, first.hidden) == ((4, 2, 1), (128, 1, 1), 512, 2)
    assert first.cubin == hashlib.sha256(b"cubin of norm").hexdigest()
    assert [(a.region, a.offset) for a in first.arguments[:3]] == [("scratch", 0), ("io", 0x40), ("scratch", 0x800)]
    assert second.arguments[1:3] == (Argument(word(0x20C00), "scratch", 0xC00), Argument(word(96, 4)))
    assert third.arguments[3:] == (Argument(bytes(8)), Argument(bytes(8)))


def test_numbers_stay_numbers_though_they_look_like_addresses():
    wide = KnownKernel("wide", b"", ("*fp32", "i64"))
    graph = Recorded(
        {1: norm(0x20000, 0x20008, 0)._replace(symbol="wide", arguments=(word(0x20000), word(0x20008)))}, []
    )
    (record,), _ = read_graph(graph, {0x100: wide}, SPANS)
    assert record.arguments == (Argument(word(0x20000), "scratch", 0), Argument(word(0x20008)))


def test_a_null_pointer_lies_nowhere_even_where_a_region_starts_at_zero():
    (record,), _ = read_graph(Recorded({1: norm(0, 0x10, 0x20)}, []), KNOWN, [Span("io", 0, 0x100)])
    assert record.arguments == (Argument(bytes(8)), Argument(word(0x10), "io", 0x10), Argument(word(0x20), "io", 0x20))


@given(st.integers(0, 0x50000))
def test_regions_are_half_open(address):
    graph = Recorded({1: norm(address, 0x10000, 0x10000)}, [])
    inside = [span for span in SPANS if address in range(span.base, span.base + span.nbytes)]
    if inside or not address:
        (record,), _ = read_graph(graph, KNOWN, SPANS)
        wanted = Argument(word(address), inside[0].name, address - inside[0].base) if inside else Argument(bytes(8))
        assert record.arguments[0] == wanted
    else:
        with pytest.raises(LoweringError, match=rf"node 0 \(kernel norm\), argument 0 points to {address:#x}"):
            read_graph(graph, KNOWN, SPANS)


@given(st.randoms(use_true_random=False), st.integers(2, 12))
def test_order_is_topological_and_ties_go_by_the_graphs_own_order(random: Random, size):
    edges = [Edge(a, b) for b in range(size) for a in range(b) if random.random() < 0.3]
    handles = list(range(size))
    random.shuffle(handles)
    calls = {handle: glue(0x20000, 0x20000, handle) for handle in handles}
    records, read = read_graph(Recorded(calls, edges), KNOWN, SPANS)
    order = [int.from_bytes(record.arguments[2].value, "little") for record in records]
    assert sorted(order) == list(range(size))
    assert sorted((order[e.source], order[e.target]) for e in read) == sorted((e.source, e.target) for e in edges)
    done: set[int] = set()
    for handle in order:
        ready = [h for h in handles if h not in done and all(e.source in done for e in edges if e.target == h)]
        assert handle == ready[0]
        done.add(handle)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (chain().change(5, function=0x300, symbol="cublas"), r"node 1 \(kernel cublas\) is not one of our kernels"),
        (Recorded(chain().calls, [], {5: 3}), "node 1 is no kernel but of type host function"),
        (Recorded(chain().calls, [], {7: 2}), "node 0 is no kernel but of type memset"),
        (Recorded(chain().calls, [], {9: 1}), "node 2 is no kernel but of type memcpy"),
        (Recorded(chain().calls, [], {9: 13}), "of type conditional"),
        (Recorded(chain().calls, [], {9: 99}), "of type type 99"),
        (chain().change(9, arguments=norm(0x20000, 0x10100, 0x20000).arguments), r"node 2 \(kernel norm\), argument 1"),
        (chain().change(9, arguments=norm(1, 2, 3, 4, 5).arguments), "argument 3 is Triton's own"),
        (chain().change(9, arguments=(word(0x20000),)), "takes 1 arguments, its signature has 3"),
        (chain().change(9, arguments=(word(0x20000),) * 6), "takes 6 arguments, its signature has 3"),
        (chain().change(5, arguments=(word(0x20000),) * 3), "argument 2 of type i32 has 8 bytes"),
        (chain().change(5, attributes=("cluster",)), r"node 1 \(kernel glue\) is launched with cluster"),
        (chain().change(7, symbol="other"), r"node 0 \(kernel other\) was loaded as norm"),
        (Recorded(chain().calls, [Edge(5, 7), Edge(7, 5)]), "form a circle"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(graph, words):
    with pytest.raises(LoweringError, match=words):
        read_graph(graph, KNOWN, SPANS)


def test_a_descriptor_by_value_is_refused():
    kernel = KnownKernel("norm", b"", ("*fp32", "nvTmaDesc", "*bf16"))
    with pytest.raises(LoweringError, match="argument 1 is of type nvTmaDesc"):
        read_graph(Recorded({1: norm(0x20000, 0x10040, 0x20800)}, []), {0x100: kernel}, SPANS)


def test_regions_that_overlap_are_refused():
    with pytest.raises(LoweringError, match="regions io and more overlap"):
        read_graph(chain(), KNOWN, [*SPANS, Span("more", 0x100FF, 1)])
