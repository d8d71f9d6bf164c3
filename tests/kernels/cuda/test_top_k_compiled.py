"""What the compiler makes of the kernels that find the likeliest tokens for sm_90, with no GPU."""

from __future__ import annotations

import re

import pytest

from tandem.kernels.cuda import top_k
from tandem.kernels.cuda.table import KERNELS
from tests.kernels.cuda.ptx import WAIT, Early
from tests.kernels.cuda.test_compiled import _early, _ptx


@pytest.mark.parametrize("top", [2, 16])
@pytest.mark.parametrize("width", [49_152, 248_320])
def test_they_wait_their_turn_and_write_by_themselves_alone(width: int, top: int) -> None:
    works = {
        "top_k_partial": top_k.top_k_partial_work(32, width, width, top),
        "top_k": top_k.top_k_work(32, width, width, top),
    }
    for name, work in works.items():
        kernel = KERNELS[name]
        ptx = _ptx(kernel, work, count="i32", first="i64", **({"token": "i32"} if name == "top_k" else {}))
        before, after = ptx.split(WAIT)
        assert _early(kernel, ptx) == Early(frozenset({"count"}), frozenset(), writes=False)
        assert "griddepcontrol.launch_dependents" in before and "st.global" in after
        assert not re.search(r"\b(atom|red)\b|\bfma\.rn\.f32", ptx), name  # sums are in an order of their own
        assert not re.search(r"\b(ld|st)\.local", ptx), name
