"""Draws by the kernels under Triton's interpreter: logits and wishes in, ids out, all launches in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.kernels.cuda import sample_filter, sample_logits, sample_pick
from tandem.kernels.cuda.wishes import BINS, STATE
from tandem.keys import MAX_TREE_ROWS
from tandem.wish import FRESH, WISH
from tests.kernels.cuda.interpreter import interpreted, run


def draw_rows(
    logits: np.ndarray,
    wish: np.ndarray,
    *,
    rows: int = 0,
    said: Sequence[Sequence[int]] = (),
    seen: np.ndarray | None = None,
    fresh: Sequence[tuple[int, int]] = (),
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
    first, filters, last = (interpreted(f"sample_{name}") for name in ("logits", "filter", "pick"))
    with np.errstate(all="ignore"):
        learn = sample_logits.sample_learn_work(width, FRESH)
        run(first.sample_learn, learn, fresh=brought, count=torch.tensor([len(fresh)], dtype=torch.int32), seen=held)
        run(
            first.sample_logits, sample_logits.sample_logits_work(rows, width), logits=held_logits, wish=wishes,
            said=path, seen=held, count=count, logit=logit, top=top, state=state, bins=bins,
        )  # fmt: skip
        run(
            first.sample_weights, sample_logits.sample_weights_work(rows, width), logit=logit, top=top, wish=wishes,
            count=count, masses=masses, state=state, bins=bins,
        )  # fmt: skip
        for by_logit in (True, False):
            if not by_logit:
                run(
                    filters.sample_bins, sample_filter.sample_bins_work(rows, width), logit=logit, wish=wishes,
                    count=count, masses=masses, state=state, bins=bins,
                )  # fmt: skip
            run(
                filters.sample_gather, sample_filter.sample_gather_work(rows, width, by_logit), logit=logit, top=top,
                masses=masses, wish=wishes, bins=bins, count=count, state=state, candidate=candidate,
            )  # fmt: skip
            run(
                filters.sample_settle, sample_filter.sample_settle_work(rows, width, by_logit), candidate=candidate,
                masses=masses, wish=wishes, bins=bins, count=count, state=state,
            )  # fmt: skip
        run(
            last.sample_sums, sample_pick.sample_sums_work(rows, width), masses=masses, state=state, wish=wishes,
            count=count, sums=sums,
        )  # fmt: skip
        run(
            last.sample_pick, sample_pick.sample_pick_work(rows, width), masses=masses, top=top, state=state,
            sums=sums, wish=wishes, count=count, drawn=drawn,
        )  # fmt: skip
    assert (drawn[num:] == -7).all() and logit[num:].isnan().all() and (state[num:] == -99).all()
    return drawn[:num].tolist()
