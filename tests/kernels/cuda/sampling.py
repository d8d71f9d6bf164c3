"""Draws by the kernels, under Triton's interpreter or as a test launches them: logits and wishes in, ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tandem.kernels.cuda import sample_filter, sample_logits, sample_pick, sample_settle
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.wishes import BINS, STATE
from tandem.keys import MAX_TREE_ROWS
from tandem.wish import FRESH, WISH
from tests.kernels.cuda.interpreter import interpreted, run

Launch = Callable[..., None]
"""Called with a kernel's name, its work, and its pointers by name."""


def interpret(kernel: str, work: Work, **pointers: Tensor) -> None:
    """Runs a kernel of the table under the interpreter."""
    with np.errstate(all="ignore"):  # of floats that overflow, as they may
        run(interpreted("table").KERNELS[kernel], work, **pointers)


def draw_rows(
    logits: np.ndarray,
    wish: np.ndarray,
    *,
    rows: int = 0,
    said: Sequence[Sequence[int]] = (),
    seen: np.ndarray | None = None,
    fresh: Sequence[tuple[int, int]] = (),
    launch: Launch = interpret,
) -> list[int]:
    """Ids that a program for `rows` rows (at least those given) draws from logits fp32 [O, V] and wishes [O, WISH].

    `said` are tokens on the path to each row; `seen` int32 [lanes, V] is changed as the device's. What rows are not
    given hold is poison, and must stay.
    """
    (num, width), rows = logits.shape, max(rows, len(logits))
    held_logits, wishes = torch.full((rows, width), torch.nan), torch.zeros((rows, WISH), dtype=torch.int64)
    held_logits[:num], wishes[:num] = torch.from_numpy(logits), torch.from_numpy(wish)
    path = torch.full((rows, MAX_TREE_ROWS), -1, dtype=torch.int32)
    for row, tokens in enumerate(said):
        path[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    held = torch.zeros((1, width), dtype=torch.int32) if seen is None else torch.from_numpy(seen)
    brought = torch.zeros((FRESH, 2), dtype=torch.int32)
    brought[: len(fresh)] = torch.tensor(list(fresh), dtype=torch.int32).reshape(-1, 2)
    chunks = sample_logits.sample_chunks(width)
    count, drawn = torch.tensor([num], dtype=torch.int32), torch.full((rows,), -7, dtype=torch.int32)
    logit, masses = torch.full((2, rows, width), torch.nan)
    top = torch.full((rows, chunks), torch.nan)
    state = torch.full((rows, STATE.value), -99, dtype=torch.int64)
    bins = torch.full((rows, 2 * BINS.value), -99, dtype=torch.int32)
    candidate = torch.full((rows, width), -99, dtype=torch.int64)
    sums = torch.full((rows, chunks), -99, dtype=torch.int64)
    told = {"wish": wishes, "count": count}
    brought_count = torch.tensor([len(fresh)], dtype=torch.int32)
    launch("sample_learn", sample_logits.sample_learn_work(width, FRESH), fresh=brought, count=brought_count, seen=held)
    launch(
        "sample_logits", sample_logits.sample_logits_work(rows, width), logits=held_logits, said=path, seen=held,
        logit=logit, top=top, state=state, bins=bins, **told,
    )  # fmt: skip
    launch(
        "sample_weights", sample_logits.sample_weights_work(rows, width), logit=logit, top=top, masses=masses,
        state=state, bins=bins, **told,
    )  # fmt: skip
    for by_logit in (True, False):
        if not by_logit:
            launch(
                "sample_bins", sample_filter.sample_bins_work(rows, width), logit=logit, masses=masses, state=state,
                bins=bins, **told,
            )  # fmt: skip
        launch(
            "sample_gather", sample_filter.sample_gather_work(rows, width, by_logit), logit=logit, top=top,
            masses=masses, bins=bins, state=state, candidate=candidate, **told,
        )  # fmt: skip
        launch(
            "sample_settle", sample_settle.sample_settle_work(rows, width, by_logit), candidate=candidate,
            masses=masses, bins=bins, state=state, **told,
        )  # fmt: skip
    launch("sample_sums", sample_pick.sample_sums_work(rows, width), masses=masses, state=state, sums=sums, **told)
    last = sample_pick.sample_pick_work(rows, width)
    launch("sample_pick", last, masses=masses, top=top, state=state, sums=sums, drawn=drawn, **told)
    assert (drawn[num:] == -7).all() and logit[num:].isnan().all() and (state[num:] == -99).all()
    return drawn[:num].tolist()
