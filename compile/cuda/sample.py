"""The program of a draw: penalties, weights, `top_k`, `top_p`, `min_p` and noise over the logits that a pass left.

No part of a model: it is written launch by launch. docs/sampling.md defines what is drawn.
"""

from __future__ import annotations

from tandem.compile.assembly import Operand
from tandem.compile.binding import field_operand
from tandem.compile.cuda.lowering import CudaLowering
from tandem.kernels.cuda.sample_filter import sample_bins_work, sample_gather_work
from tandem.kernels.cuda.sample_logits import (
    sample_chunks,
    sample_learn_work,
    sample_logits_work,
    sample_weights_work,
)
from tandem.kernels.cuda.sample_pick import sample_pick_work, sample_sums_work
from tandem.kernels.cuda.sample_settle import sample_settle_work
from tandem.kernels.cuda.wishes import BINS, STATE
from tandem.wish import FRESH

FRESH_COUNT = 3
"""The place in `counts` of how many fresh ids there are."""


def lower_sample(low: CudaLowering) -> None:
    """Appends the launches of a draw for as many output rows as `low` is for."""
    io, rows, width = low.io, low.most["outputs"], low.io.geometry.vocab_size
    chunks = sample_chunks(width)
    logits, wish, said, fresh, drawn = (
        field_operand(io, name) for name in ("logits", "wish", "said", "fresh", "drawn")
    )
    seen = Operand("seen", 0, io.geometry.seen_bytes, (0, width), width, dtype="int32")
    logit, masses, top = (low.buffer("outputs", size) for size in (width, width, chunks))
    state, sums, candidate = (low.buffer("outputs", size, dtype="int64") for size in (STATE.value, chunks, width))
    bins = low.buffer("outputs", 2 * BINS.value, dtype="int32")
    count = low.count(logits)
    told = {"wish": wish, "count": count}
    num_fresh = Operand("io", io.fields["counts"].offset + 4 * FRESH_COUNT, 4, dtype="int32")
    low.launch("sample_learn", sample_learn_work(width, FRESH), fresh=fresh, count=num_fresh, seen=seen)
    low.launch(
        "sample_logits", sample_logits_work(rows, width), logits=logits, said=said, seen=seen, logit=logit, top=top,
        state=state, bins=bins, **told,
    )  # fmt: skip
    weights = sample_weights_work(rows, width)
    low.launch("sample_weights", weights, logit=logit, top=top, masses=masses, state=state, bins=bins, **told)
    for by_logit in (True, False):
        if not by_logit:
            low.launch(
                "sample_bins", sample_bins_work(rows, width), logit=logit, masses=masses, state=state, bins=bins, **told
            )
        low.launch(
            "sample_gather", sample_gather_work(rows, width, by_logit), logit=logit, top=top, masses=masses, bins=bins,
            state=state, candidate=candidate, **told,
        )  # fmt: skip
        low.launch(
            "sample_settle", sample_settle_work(rows, width, by_logit), candidate=candidate, masses=masses, bins=bins,
            state=state, **told,
        )  # fmt: skip
    low.launch("sample_sums", sample_sums_work(rows, width), masses=masses, state=state, sums=sums, **told)
    last = sample_pick_work(rows, width)
    low.launch("sample_pick", last, masses=masses, top=top, state=state, sums=sums, drawn=drawn, **told)
