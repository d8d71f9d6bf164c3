"""Scratch and barriers: whatever the launches, no order a thread team may take gives another result."""

from __future__ import annotations

import random
import struct
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import CONSTANT, Program, decode, encode
from tandem.compile.assembly import Assembly, Buffer, Operand
from tandem.kernels.signature import Param

SHA = "0" * 64
COPY = (
    Param("a", "in"),
    Param("b", "in"),
    Param("y", "out"),
    Param("z", "both"),
    Param("n", "int"),
    Param("x", "real"),
)
IO = 4096
NAMES = ("a", "b", "y", "z")


def assembly() -> Assembly:
    return Assembly({"copy": COPY})


def scratch(nbytes: int) -> Operand:
    return Operand(Buffer(nbytes), 0, nbytes)


def io(offset: int, nbytes: int) -> Operand:
    return Operand("io", offset, nbytes)


def launch(into: Assembly, **operands: Operand | None) -> None:
    into.launch("copy", **(dict.fromkeys(NAMES) | operands), n=7, x=0.5)


def finish(made: Assembly) -> Program:
    return decode(encode(made.program(SHA, {"io": IO})), "made")


Launch = dict[str, Operand | None]
Spot = tuple[Buffer | str, int]


@st.composite
def lists(draw: st.DrawFn) -> list[Launch]:
    """Launches over buffers and spans of io, each a random choice of either or of nothing, never twice in a launch."""
    places: list[Operand | None] = [None]
    places += [scratch(n) for n in draw(st.lists(st.integers(1, 400), max_size=8))]
    spans = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=5))
    places += [io(64 * first, 64 * count) for first, count in spans if first + count <= 64]
    choice = st.lists(st.sampled_from(range(len(places))), min_size=4, max_size=4).map(
        lambda picks: [p if picks.index(p) == i else 0 for i, p in enumerate(picks)]
    )
    return [dict(zip(NAMES, [places[p] for p in picks], strict=True)) for picks in draw(st.lists(choice, max_size=12))]


def build(launches: list[Launch]) -> Program:
    made = assembly()
    for arguments in launches:
        launch(made, **arguments)
    return finish(made)


def touched(program: Program, launches: list[Launch], index: int, names: tuple[str, ...]) -> list[tuple[str, range]]:
    """Bytes by region that a launch touches through the parameters `names`, read back from the finished tables."""
    spans = []
    for i, name in enumerate(NAMES):
        operand = launches[index][name]
        if operand is not None and name in names:
            row = program.params[int(program.launches["first_param"][index]) + i]
            begin = int(row["value"])
            spans.append((program.regions[row["region"]].name, range(begin, begin + operand.extent)))
    return spans


def clash(some: list[tuple[str, range]], others: list[tuple[str, range]]) -> bool:
    return any(
        region == other and max(a.start, b.start) < min(a.stop, b.stop) for region, a in some for other, b in others
    )


@given(lists())
def test_launches_without_a_barrier_between_them_never_clash(launches: list[Launch]) -> None:
    program = build(launches)
    first = 0
    groups = []
    for i, wait in enumerate(program.launches["wait"].tolist()):
        if wait:
            groups.append(range(first, i))
            first = i
    groups.append(range(first, len(launches)))
    for group in groups:
        for one, other in combinations(group, 2):
            for mine, theirs in (("y", "z"), NAMES), (NAMES, ("y", "z")):
                found = touched(program, launches, one, mine), touched(program, launches, other, theirs)
                assert not clash(*found), f"launches {one} and {other} of {program.launches['wait']}"


@given(lists())
def test_buffers_that_live_together_lie_apart(launches: list[Launch]) -> None:
    program = build(launches)
    life: dict[Buffer, list[int]] = {}
    for i, arguments in enumerate(launches):
        for operand in arguments.values():
            if operand is not None and isinstance(operand.place, Buffer):
                life.setdefault(operand.place, []).append(i)
    scratch_bytes = next(region.nbytes for region in program.regions if region.name == "scratch")
    for buffer in life:
        assert buffer.offset % 64 == 0 and buffer.offset + buffer.nbytes <= scratch_bytes
    for one, other in combinations(life, 2):
        if max(life[one][0], life[other][0]) <= min(life[one][-1], life[other][-1]):
            assert one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset


@given(lists(), st.randoms(use_true_random=False))
def test_any_order_between_barriers_gives_the_same_memory(launches: list[Launch], dice: random.Random) -> None:
    program = build(launches)
    assert run(program, launches, dice=None) == run(program, launches, dice=dice)


def run(program: Program, launches: list[Launch], dice: random.Random | None) -> dict[str, bytes]:
    """Each launch writes a hash of all it reads. With `dice`, launches between two barriers run in random order."""
    memory = {region.name: bytearray(region.nbytes) for region in program.regions}
    order, waiting = list[int](), list[int]()
    for i, wait in enumerate(program.launches["wait"].tolist()):
        if wait:
            order, waiting = order + shuffled(waiting, dice), []
        waiting.append(i)
    for i in order + shuffled(waiting, dice):
        seen = b"".join(
            bytes(memory[r][span.start : span.stop]) for r, span in touched(program, launches, i, ("a", "b", "z"))
        )
        for region, span in touched(program, launches, i, ("y", "z")):
            made = random.Random(repr((i, seen, span))).randbytes(len(span))
            memory[region][span.start : span.stop] = made
    return {"io": bytes(memory["io"])}


def shuffled(items: list[int], dice: random.Random | None) -> list[int]:
    return items if dice is None else dice.sample(items, len(items))


def test_independent_launches_need_no_barrier() -> None:
    made, shared = assembly(), io(0, 64)
    launch(made, a=shared, y=scratch(100))
    launch(made, a=shared, y=scratch(100))
    launch(made, a=io(64, 64), z=io(128, 64))
    assert finish(made).launches["wait"].tolist() == [0, 0, 0]


@given(lists())
def test_memory_that_is_used_again_needs_no_barrier_of_its_own(launches: list[Launch]) -> None:
    waits, reads, writes = list[int](), set[Spot](), set[Spot]()
    for arguments in launches:
        mine = {name: {(o.place, i) for i in spots(o)} for name, o in arguments.items() if o is not None}
        read = set[Spot]().union(*(mine.get(name, set()) for name in ("a", "b", "z")))
        written = set[Spot]().union(*(mine.get(name, set()) for name in ("y", "z")))
        waits.append(bool(read & writes or written & (reads | writes)))
        if waits[-1]:
            reads, writes = set(), set()
        reads, writes = reads | read, writes | written
    assert build(launches).launches["wait"].tolist() == waits


def spots(operand: Operand) -> range:
    return range(operand.offset, operand.offset + operand.extent)


@pytest.mark.parametrize(("one", "other"), [("y", "a"), ("a", "y"), ("y", "y"), ("z", "z"), ("z", "b"), ("b", "z")])
def test_one_byte_in_common_needs_a_barrier(one: str, other: str) -> None:
    for offset, wait in (127, 1), (128, 0):
        made = assembly()
        launch(made, **{one: io(64, 64)})
        launch(made, **{other: io(offset, 64)})
        assert finish(made).launches["wait"].tolist() == [0, wait]


def test_scratch_of_the_dead_is_used_again() -> None:
    made, values = assembly(), [scratch(1000) for _ in range(6)]
    for source, target in pairwise(values):
        launch(made, a=source, y=target)
    (nbytes,) = (region.nbytes for region in finish(made).regions if region.name == "scratch")
    assert nbytes == 1024 + 1000


def test_arguments_are_encoded_by_kind() -> None:
    made = assembly()
    made.launch("copy", a=io(68, 4), b=None, y=scratch(8), z=io(0, 64), n=-3, x=0.1)
    params = finish(made).params
    assert params["value"].tolist()[:4] == [68, 0, 0, 0]
    assert params["region"].tolist() == [0, CONSTANT, 1, 0, CONSTANT, CONSTANT]
    assert params["alignment"].tolist()[:4] == [4, 1, 64, 64]
    assert params["value"][4] == 2**64 - 3
    assert struct.unpack("<d", int(params["value"][5]).to_bytes(8, "little")) == (0.1,)


def test_the_same_launches_give_the_same_bytes() -> None:
    def made() -> bytes:
        result = assembly()
        value = scratch(100)
        launch(result, y=value)
        launch(result, a=value, z=io(64, 64))
        return encode(result.program(SHA, {"io": IO}))

    assert made() == made()
