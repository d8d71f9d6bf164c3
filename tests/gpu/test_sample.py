"""Draws on the GPU are the host's, id by id, over whole vocabularies: peaked, flat and full of ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.kernels.cuda.table import KERNELS
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Sampling
from tandem.runtime.sampling import draw
from tandem.runtime.wish_row import wish_row
from tandem.wish import Wish
from tests.gpu.launching import launch
from tests.kernels.cuda.sampling import draw_rows
from tests.kernels.cuda.test_sample import MANNERS, wishes

WIDTHS = (49_152, 248_320)


def on_gpu(kernel: str, work: Any, **pointers: Any) -> None:
    launch(KERNELS[kernel], work, **pointers)


def rows_of(width: int, kind: str) -> np.ndarray:
    """32 rows of logits fp32: as a model's are, so flat that every id counts, or of few values."""
    noise = np.random.default_rng(width).standard_normal((32, width))
    scale = {"peaked": 3.0, "flat": 0.3, "ties": 1.0}[kind]
    rows = (noise * scale).astype(np.float32)
    return np.round(rows) if kind == "ties" else rows


@pytest.mark.parametrize("kind", ["peaked", "flat", "ties"])
@pytest.mark.parametrize("width", WIDTHS)
def test_whole_vocabularies_are_drawn_from_as_a_host_does(width: int, kind: str) -> None:
    logits = rows_of(width, kind)
    manners = [*MANNERS, Sampling(temperature=1.5, top_p=0.95), Sampling(temperature=1.0, top_k=30_000, top_p=0.8)]
    wanted = [(manners[i % len(manners)], 2**63 + 977 * i, 13 * i) for i in range(len(logits))]
    host = [draw(row, *how) for row, how in zip(logits, wanted, strict=True)]
    for rows in (1, 8, 32):
        found = draw_rows(logits[:rows], wishes(wanted[:rows], width), launch=on_gpu)
        assert found == host[:rows], f"{rows} rows"


def test_odd_logits_and_filters_that_end_among_equals() -> None:
    width = 3000
    odd = np.random.default_rng(1).choice(
        np.array([-np.inf, np.nan, -0.0, 0.0, 1.0, 1e-40, 3e38, -3e38], np.float32), (32, width)
    )
    odd[3, 77] = odd[4, [5, 900]] = np.inf
    odd[5] = -np.inf
    ways = [Sampling(1.0, top_k=k, top_p=p) for k in (0, 1, 700) for p in (1.0, 0.5, 1e-9)]
    wanted = [(ways[i % len(ways)], i, i) for i in range(32)]
    host = [draw(row, *how) for row, how in zip(odd, wanted, strict=True)]
    assert draw_rows(odd, wishes(wanted, width), launch=on_gpu) == host


def test_penalties_are_the_hosts() -> None:
    """Division rounded as IEEE says, products and differences each by themselves."""
    width, lanes = WIDTHS[0], 4
    logits, rng = rows_of(width, "peaked")[:lanes], np.random.default_rng(2)
    seen, rows, wanted, paths = np.zeros((lanes, width), np.int32), [], [], []
    for lane in range(lanes):
        penalties, how = Penalties(1.1 + 0.1 * lane, 0.3, 0.7 * lane), Sampling(0.8 * (lane > 0), top_p=0.99)
        text = PenalizedText(penalties, rng.integers(0, width, 4000).tolist(), ())
        text.extend(rng.integers(0, width, 9000).tolist())
        seen[lane] = text.seen(width)
        row = wish_row(lane, how, penalties, 5, width)
        row[Wish.POSITION] = 13_000 + lane
        rows.append(row)
        paths.append(rng.integers(0, width, 7 * lane).tolist())
        wanted.append(draw(text.applied(logits[lane], paths[-1]), how, 5, 13_000 + lane))
    assert draw_rows(logits, np.stack(rows), said=paths, seen=seen, launch=on_gpu) == wanted
