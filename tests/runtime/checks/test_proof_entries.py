"""The proof of a device with many programs: each of them runs, and one that is wrong is found by its name."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.proof import Report
from tandem.runtime.checks.proof_entries import prove, text_tokens
from tandem.runtime.executor.base import Entry, Executor, Rows
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty

BUCKETS = (1, 2, 4, 8, 16, 24, 32)
SIZES = {"context_length": 300, "max_rows": 160, "max_lanes": 3}


def entries(classes: tuple[int, ...], chunks: tuple[int, ...], buckets: tuple[int, ...] = BUCKETS) -> list[Entry]:
    kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
    steps = [(kind, bound, rows) for kind in kinds for bound in classes for rows in buckets]
    return [*steps, *((Kind.EXTEND, 0, rows) for rows in chunks), (Kind.COMMIT, 0, 32)]


ENTRIES = entries((70, 140, 300), (64, 128, 160))


def proof_of(executor: Executor, num_lanes: int = 3) -> Report:
    return prove(Lab(executor, num_lanes))


def test_one_program_a_kind_is_proved_as_before() -> None:
    plain = proof_of(ScriptedExecutor(capacities=geometry()))
    assert plain.differing == 0 and text_tokens(geometry()) == 64


@given(
    gaps=st.lists(st.integers(35, 80), max_size=3),
    buckets=st.sets(st.integers(2, 31), max_size=3),
    chunks=st.sets(st.sampled_from([64, 128])),
    page_tokens=st.sampled_from([8, 64]),
    num_lanes=st.integers(1, 3),
)
@settings(max_examples=8, deadline=None)
def test_every_entry_runs(
    gaps: list[int], buckets: set[int], chunks: set[int], page_tokens: int, num_lanes: int
) -> None:
    capacities = geometry(**SIZES | {"page_tokens": page_tokens, "page_bytes": 8 * page_tokens})
    given = entries((*accumulate(gaps), 300), (*chunks, 160), (1, *buckets, 32))
    # As many pages as the proving process sees to: a full context in each lane is not among them.
    num_pages = max(pages_for(text_tokens(capacities), page_tokens, 3), capacities.blocks_per_lane)
    executor = ScriptedExecutor(capacities=capacities, num_pages=num_pages, entries=given)
    assert proof_of(executor, num_lanes).differing == 0
    assert executor.ran == set(given)


def test_all_of_a_real_layout_run() -> None:
    executor = ScriptedExecutor(capacities=geometry(**SIZES), entries=ENTRIES)
    assert proof_of(executor).differing == 0
    assert executor.ran == set(ENTRIES)


@pytest.mark.parametrize(
    ("kind", "rows", "bound", "words"),
    [
        (Kind.EXTEND, 160, 0, "extend, chunks of 160, position"),
        (Kind.EXTEND, 24, 300, "class 300: extend of 24, row"),
        (Kind.VERIFY_CHAIN, 8, 140, "class 140: chain of 8, row"),
        (Kind.VERIFY_TREE, 16, 300, "class 300: tree of 16, row"),
    ],
)
def test_one_wrong_program_is_named(kind: Kind, rows: int, bound: int, words: str) -> None:
    below = {140: 70, 300: 140}.get(bound, 0)

    def when(now: Kind, given: Rows) -> bool:
        length = max(given.position) + 1
        return now is kind and len(given.token) == rows and (not bound or below < length <= bound)

    report = proof_of(Faulty(ScriptedExecutor(capacities=geometry(**SIZES), entries=ENTRIES), "logits", when))
    assert 0 < report.differing < report.cases // 4 and all(words in name for name in report.first)


def test_a_state_is_proved_at_far_places_and_seen_where_it_is_not_moved_on() -> None:
    """Of a far text only its last pages are real, and of its state nothing: whatever the slot holds stands for it."""

    def far(kind: Kind, rows: Rows) -> bool:
        return kind is Kind.VERIFY_TREE and min(rows.position) >= 200

    executor = RecurrentExecutor(capacities=geometry(**SIZES), entries=ENTRIES)
    assert proof_of(executor).differing == 0 and executor.ran == set(ENTRIES)
    wrong = proof_of(Faulty(RecurrentExecutor(capacities=geometry(**SIZES), entries=ENTRIES), "logits", far))
    assert wrong.differing and "class 300: tree of" in " ".join(wrong.first)
    lost = proof_of(Faulty(RecurrentExecutor(capacities=geometry(**SIZES), entries=ENTRIES), "path"))
    assert lost.differing and "state" in lost.first[0]


def test_a_commit_left_out_shows_at_a_far_place_too() -> None:
    report = proof_of(Faulty(ScriptedExecutor(capacities=geometry(**SIZES), entries=ENTRIES), "commit"))
    assert report.differing and "state" in report.first[0]
