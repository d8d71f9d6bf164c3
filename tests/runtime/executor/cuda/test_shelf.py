"""Which graph a pass takes, against the rule spelt out; what is made when, and what becomes of failures."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import Program
from tandem.errors import BundleMismatch, DeviceError
from tandem.keys import Kind
from tandem.runtime.executor.cuda.image import EntryProgram
from tandem.runtime.executor.cuda.shelf import Shelf, choose, require_all
from tests.runtime.executor.cuda.sample import GEOMETRY, entries, program

PLACES = st.lists(st.tuples(st.sampled_from([0, 1024, 2048, 4096]), st.sampled_from([0, 1, 2, 4, 8, 64])), max_size=12)


@given(PLACES, st.integers(1, 70), st.integers(1, 5000))
def test_the_smallest_that_holds_rows_then_length(places: list[tuple[int, int]], rows: int, length: int) -> None:
    found = choose(places, rows, length)
    wide = [place for place in places if place[1] == 0 or place[1] >= rows]
    if found is None:
        assert not wide
        return
    context, held = places[found]
    assert (context, held) in wide
    longest = 0 if any(c == 0 for c, _ in wide) else max(c for c, _ in wide)
    if context and context < length:  # behind the end of the longest class: its drafts are dropped
        assert context == longest
    for other_context, other_held in wide:
        if other_context and other_context < min(length, longest or length):
            continue
        if held:  # else only unbounded rows are long enough
            assert other_held == 0 or other_held >= held
        if other_held == held:
            assert other_context == 0 or (context != 0 and other_context >= context)


NOTHING = program(0)
TABLES = st.lists(
    st.tuples(st.sampled_from(list(Kind)), st.sampled_from([0, 1024, 3000, 4096]), st.sampled_from([0, 4, 32, 128])),
    max_size=10,
).map(lambda table: [(*entry, NOTHING) for entry in table])


@given(TABLES)
def test_a_table_holds_exactly_if_every_pass_finds_an_entry(table: list[EntryProgram]) -> None:
    """128 rows of a prefill, 32 of a verify or a commit; contexts up to 3,000."""
    held = True
    for kind, most in ((Kind.EXTEND, 128), (Kind.VERIFY_CHAIN, 32), (Kind.VERIFY_TREE, 32), (Kind.COMMIT, 32)):
        places = [(context, rows) for k, context, rows, _ in table if k is kind]
        for rows in (1, 4, 5, most):
            for length in (0,) if kind is Kind.COMMIT else (1, 1025, 3000):
                found = choose(places, rows, length)
                held &= found is not None and (not places[found][0] or places[found][0] >= length)
    if held:
        require_all(table, GEOMETRY)
    else:
        with pytest.raises(BundleMismatch, match=r"no (extend|verify-chain|verify-tree|commit) entry takes "):
            require_all(table, GEOMETRY)


def test_what_a_table_lacks_is_named() -> None:
    whole = [(kind, 0, 128, NOTHING) for kind in Kind]
    require_all(whole, GEOMETRY)
    with pytest.raises(BundleMismatch, match=r"^no extend entry takes 128 rows; compile the bundle again$"):
        require_all(whole[1:], GEOMETRY)
    short = [*whole[:2], (Kind.VERIFY_TREE, 2048, 32, NOTHING), whole[3]]
    with pytest.raises(BundleMismatch, match="no verify-tree entry takes 32 rows at 3000 tokens, the longest ends at"):
        require_all(short, GEOMETRY)


class Maker:
    """Makes numbers for programs, in the order asked for; may wait or fail."""

    def __init__(self, programs: list[Program], before: Callable[[int], None] = lambda number: None) -> None:
        self.programs, self.before = programs, before
        self.made: list[int] = []
        self.entered: list[int] = []

    def make(self, program: Program) -> int:
        number = next(i for i, known in enumerate(self.programs) if known is program)
        self.before(number)
        self.made.append(number)
        return 100 + number

    def shelf(self, held: list[EntryProgram]) -> Shelf:
        return Shelf(held, make=self.make, enter=lambda: self.entered.append(threading.get_ident()))


@pytest.fixture
def held() -> list[EntryProgram]:
    return entries()


@pytest.fixture
def programs(held: list[EntryProgram]) -> list[Program]:
    return list({id(program): program for *_, program in held}.values())


def test_hot_entries_first_then_by_class(held: list[EntryProgram], programs: list[Program]) -> None:
    maker = Maker(programs)
    shelf = maker.shelf(held)
    shelf.make_hot()
    # Class 0 (commit of 32 rows, chunks of 64 and 128), then 1024 with 1 and 4 rows, as chain and as tree.
    assert maker.made == [14, 12, 13, 0, 1, 2, 3]
    assert not shelf.ready
    shelf.start_rest()
    shelf.finish()
    assert shelf.ready
    assert maker.made == [14, 12, 13, *range(12)]
    assert len(maker.entered) == 1 and maker.entered != [threading.get_ident()]
    shelf.close()


@pytest.mark.parametrize(
    ("kind", "rows", "length", "number"),
    [
        (Kind.EXTEND, 1, 1, 0),
        (Kind.VERIFY_CHAIN, 1, 1024, 0),
        (Kind.VERIFY_CHAIN, 2, 1024, 2),
        (Kind.VERIFY_CHAIN, 4, 1025, 6),
        (Kind.VERIFY_TREE, 1, 2048, 5),
        (Kind.VERIFY_TREE, 3, 2049, 11),
        (Kind.VERIFY_TREE, 4, 3020, 11),
        (Kind.EXTEND, 5, 3000, 12),
        (Kind.EXTEND, 128, 1, 13),
        (Kind.COMMIT, 31, 0, 14),
    ],
)
def test_a_pass_takes_its_entry(
    held: list[EntryProgram], programs: list[Program], kind: Kind, rows: int, length: int, number: int
) -> None:
    maker = Maker(programs)
    shelf = maker.shelf(held)
    assert [shelf.graph(kind, rows, length) for _ in range(2)] == [100 + number] * 2
    assert maker.made == [number]  # made when asked for, once


def test_too_many_rows_name_the_kind(held: list[EntryProgram], programs: list[Program]) -> None:
    shelf = Maker(programs).shelf(held)
    with pytest.raises(BundleMismatch, match="no verify-tree entry takes 5 rows, the largest takes 4; compile"):
        shelf.graph(Kind.VERIFY_TREE, 5, 100)


def test_one_that_is_asked_for_while_it_is_made_is_made_once(held: list[EntryProgram], programs: list[Program]) -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 4 and not begun.is_set():
            begun.set()
            go.wait(10)

    maker = Maker(programs, hold)
    shelf = maker.shelf(held)
    shelf.make_hot()
    shelf.start_rest()
    assert begun.wait(10)
    threading.Timer(0.05, go.set).start()
    assert shelf.graph(Kind.EXTEND, 1, 2000) == 104
    shelf.finish()
    assert sorted(maker.made) == list(range(15))
    shelf.close()


def test_a_failure_beside_serving_is_kept_and_told(
    held: list[EntryProgram], programs: list[Program], caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]

    def fail(number: int) -> None:
        if number == 6 and failing[0]:
            raise DeviceError("no room")

    maker = Maker(programs, fail)
    shelf = maker.shelf(held)
    shelf.start_rest()
    with pytest.raises(DeviceError, match="no room"):
        shelf.finish()
    assert caplog.messages == ["a graph cannot be made: no room; a pass that needs it will fail"]
    assert not shelf.ready
    assert shelf.graph(Kind.EXTEND, 1, 10) == 100
    with pytest.raises(DeviceError, match="no room"):
        shelf.graph(Kind.EXTEND, 4, 2000)
    failing[0] = False
    assert shelf.graph(Kind.EXTEND, 4, 2000) == 106
    shelf.close()


def test_closing_stops_what_is_left(held: list[EntryProgram], programs: list[Program]) -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        begun.set()
        go.wait(10)

    maker = Maker(programs, hold)
    shelf = maker.shelf(held)
    shelf.start_rest()
    assert begun.wait(10)
    threading.Timer(0.05, go.set).start()
    shelf.close()
    assert maker.made == [14]
