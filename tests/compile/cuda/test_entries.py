"""Which programs a bundle for a GPU holds, worked by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.io import DraftGeometry, Geometry
from tandem.compile.cuda.entries import Shape, shapes
from tandem.keys import DRAFTER_KINDS, Kind, context_class

BUCKETS = (1, 2, 4, 8, 16, 24, 32)


def geometry(context_length: int, max_rows: int = 2048) -> Geometry:
    return Geometry(context_length, 333, max_rows, 32, 8, 64, 2048, ((1, 16), (1, 16)))


def test_a_context_of_1024_has_one_class():
    found = list(shapes(geometry(1024)))
    assert [shape.name for shape in found] == [
        *(f"extend-1024-{rows}" for rows in BUCKETS),
        *(f"verify-tree-1024-{rows}" for rows in BUCKETS),
        *(f"extend-0-{rows}" for rows in (64, 128, 256, 512, 1024, 2048)),
        "commit-0-0",
    ]
    assert len(found) == 21


def test_a_context_of_32768_has_six_classes():
    found = list(shapes(geometry(32768)))
    assert len(found) == 6 * 14 + 6 + 1
    per_class = Counter(shape.context_class for shape in found)
    assert per_class == {0: 7} | dict.fromkeys((1024, 2048, 4096, 8192, 16384, 32768), 14)


def test_a_chain_and_an_extend_of_as_many_rows_are_one_program():
    for shape in shapes(geometry(2000)):
        if shape.context_class and Kind.VERIFY_TREE not in shape.kinds:
            assert shape.kinds == (Kind.EXTEND, Kind.VERIFY_CHAIN)
        else:
            assert len(shape.kinds) == 1


def test_an_extend_of_a_hybrid_moves_states_on_and_is_a_program_of_its_own():
    hybrid = replace(geometry(1024), recurrent_layers=3, state_bytes=24, factor_bytes=12)
    found = list(shapes(hybrid))
    assert len(found) == 3 * 7 + 6 + 1 and all(len(shape.kinds) == 1 for shape in found)
    assert [shape.name for shape in found[:21]] == [
        f"{kind}-1024-{rows}" for kind in ("extend", "verify-chain", "verify-tree") for rows in BUCKETS
    ]


def test_a_bundle_that_draws_has_a_program_for_each_bucket_and_any_context():
    found = [shape.name for shape in shapes(replace(geometry(4096), draws=True)) if Kind.SAMPLE in shape.kinds]
    assert found == [f"sample-0-{rows}" for rows in BUCKETS]


def test_a_drafter_has_its_programs_for_each_bucket_and_chunk():
    """Of a draft a class has its own, as its attention's grids follow the context; a sync does not look at it."""
    drafter = DraftGeometry(2600, 16, 2048, ((1, 16), (1, 16)), 2)
    found = list(shapes(replace(geometry(4096), drafter=drafter)))
    own = [shape for shape in found if shape.kinds[0] in DRAFTER_KINDS]
    chunks = (64, 128, 256, 512, 1024, 2048)
    assert [shape.name for shape in own] == [
        *(f"draft-{bound}-{rows}" for bound in (1024, 2048, 4096) for rows in BUCKETS),
        *(f"draft-0-{rows}" for rows in chunks),
        *(f"sync-0-{rows}" for rows in (*BUCKETS, *chunks)),
    ]
    assert [shape for shape in found if shape not in own] == list(shapes(geometry(4096)))


def test_chunks_are_no_larger_than_a_pass_may_be():
    assert [s.rows for s in shapes(geometry(300, 256)) if s.kinds == (Kind.EXTEND,)] == [64, 128, 256]
    assert [s.rows for s in shapes(geometry(64, 64)) if s.kinds == (Kind.EXTEND,)] == [64]


@given(st.integers(64, 200_000), st.sampled_from([64, 100, 128, 512, 2048]))
def test_every_pass_has_its_program(context_length: int, max_rows: int):
    found = list(shapes(geometry(context_length, max_rows)))
    assert len({shape.name for shape in found}) == len(found)
    held = {(kind, s.context_class, s.rows) for s in found for kind in s.kinds}
    for length in {1, 1024, 1025, context_length // 2 + 1, context_length} & set(range(context_length + 1)):
        bound = context_class(length, context_length)
        for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
            assert {(kind, bound, rows) for rows in BUCKETS} <= held
    assert (Kind.COMMIT, 0, 0) in held
    assert max(rows for _, _, rows in held) <= max(max_rows, 32)


def test_names_are_those_of_files():
    assert Shape((Kind.VERIFY_TREE,), 1024, 16).name == "verify-tree-1024-16"
