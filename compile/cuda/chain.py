"""The program between two drafts of a chain. No part of a model: it is written launch by launch."""

from __future__ import annotations

from tandem.compile.assembly import Operand
from tandem.compile.binding import field_operand
from tandem.compile.cuda.lowering import CudaLowering
from tandem.kernels.cuda.chain import chain_next_work

ROWS = ("token", "position", "lane", "slot", "prefix", "tap", "tap_out", "output_row")
GIVEN = ("draft_token", "draft_logit", "draft_lse")


def lower_next(low: CudaLowering) -> None:
    """Appends the launch that makes the guesses of a draft the rows of the next."""
    io, drafter = low.io, low.io.geometry.drafter
    assert drafter is not None and drafter.chain > 1
    counts = io.fields["counts"]
    fields = {name: field_operand(io, name) for name in (*ROWS, *GIVEN)}
    for name in GIVEN:
        field = io.fields[name.replace("draft_", "chain_")]
        fields[field.name] = Operand("io", field.offset, field.nbytes, dtype=fields[name].dtype)
    work = chain_next_work(io.geometry.max_outputs, drafter.top)
    low.launch("chain_next", work, counts=Operand("io", counts.offset, counts.nbytes, dtype="int32"), **fields)
