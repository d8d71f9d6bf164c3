"""What the compiler makes of the kernels of a draw for sm_90, with no GPU: each operation rounded by itself."""

from __future__ import annotations

import re

import pytest

from tandem.kernels.cuda import sample_filter, sample_logits, sample_pick, sample_settle
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.table import KERNELS
from tandem.wish import FRESH
from tests.kernels.cuda.ptx import WAIT
from tests.kernels.cuda.test_compiled import _early, _ptx

TYPES = dict.fromkeys(("said", "seen", "count", "bins", "fresh", "drawn"), "i32")
TYPES |= dict.fromkeys(("wish", "state", "candidate", "sums"), "i64")


def works(width: int, rows: int = 32) -> list[tuple[str, Work]]:
    """Every kernel of a draw, as programs launch it."""
    return [
        ("sample_learn", sample_logits.sample_learn_work(width, FRESH)),
        ("sample_logits", sample_logits.sample_logits_work(rows, width)),
        ("sample_weights", sample_logits.sample_weights_work(rows, width)),
        ("sample_gather", sample_filter.sample_gather_work(rows, width, True)),
        ("sample_settle", sample_settle.sample_settle_work(rows, width, True)),
        ("sample_bins", sample_filter.sample_bins_work(rows, width)),
        ("sample_gather", sample_filter.sample_gather_work(rows, width, False)),
        ("sample_settle", sample_settle.sample_settle_work(rows, width, False)),
        ("sample_sums", sample_pick.sample_sums_work(rows, width)),
        ("sample_pick", sample_pick.sample_pick_work(rows, width)),
    ]


def compiled(name: str, work: Work) -> str:
    kernel = KERNELS[name]
    return _ptx(kernel, work, **{param.name: TYPES[param.name] for param in kernel.signature if param.name in TYPES})


@pytest.mark.parametrize("width", [49_152, 248_320])
def test_every_operation_is_rounded_by_itself_and_waits_its_turn(width: int) -> None:
    for name, work in works(width):
        ptx = compiled(name, work)
        assert not re.search(r"\bfma\.|\bmad\.\w+\.f32|\bdiv\.(full|approx)|\b(mul|add|sub)\.\S*ftz", ptx), name
        early = _early(KERNELS[name], ptx)
        assert early.read == {"count"} and not early.asked and not early.writes, name
        assert "griddepcontrol.launch_dependents" in ptx.split(WAIT)[0]


def test_a_penalty_divides_as_ieee_says() -> None:
    assert "div.rn.f32" in compiled("sample_logits", sample_logits.sample_logits_work(1, 4096))


def test_sums_that_programs_share_are_of_whole_numbers() -> None:
    """Which come out the same in any order: no atomic addition of floats."""
    for name, work in works(49_152):
        for line in compiled(name, work).splitlines():
            if re.search(r"\b(atom|red)\b", line):
                assert re.search(r"\.add\.[us](32|64)", line) and "relaxed" in line, line
