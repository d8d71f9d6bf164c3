"""The module with glue as the CUDA executor runs it, whichever driver is behind; and as PyTorch does in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from tandem.artifacts.program import Program
from tandem.compile.profile import Profile
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import Image
from tandem.runtime.rows import Span, extend_rows
from tests.compile.cuda import gated
from tests.copier import copier

MOST_OUTPUTS = gated.IO.geometry.max_outputs
TOKENS = [(7 * i * i + 3) % gated.VOCAB for i in range(max(gated.BUCKETS))]
FEWER = (1, 2, 7, 8, 9, 31, 32, 33, 63, 1)
"""Counts of rows beside all of TOKENS."""
ERRORS = {"fp32": 1e-5, "bf16": 2e-2}
"""Of logits against float64, as a share of their norm; in bf16 each of three products rounds its rows."""


def image(programs: Sequence[Program], weights: Path, cubins: Mapping[str, bytes], device: int = 0) -> Image:
    """What the executor takes: `programs` are one a bucket."""
    entries = [(Kind.EXTEND, 0, rows, program) for rows, program in zip(gated.BUCKETS, programs, strict=True)]
    return Image(gated.IO.geometry, weights, entries, cubins, copier(), device)


def logits(executor: CudaExecutor, tokens: list[int]) -> np.ndarray:
    """[O, VOCAB] of the last rows of a pass, held against what the pass chose."""
    rows = extend_rows([Span(0, 0, tokens, outputs=1)], np.zeros((1, 1), np.int32))
    rows.output_row = np.arange(max(0, len(tokens) - MOST_OUTPUTS), len(tokens), dtype=np.int32)
    outcome = executor.run(Kind.EXTEND, rows)
    found = np.stack([executor.logits(i).copy() for i in range(len(rows.output_row))])
    top = np.sort(found, axis=1)
    assert (np.asarray(outcome.argmax) == found.argmax(1)).all()
    assert (np.asarray(outcome.gap) == top[:, -1] - top[:, -2]).all()
    return found


def eager(profile: Profile) -> np.ndarray:
    """[O, VOCAB] float64 of the last rows of TOKENS."""
    rows = torch.arange(len(TOKENS) - MOST_OUTPUTS, len(TOKENS), dtype=torch.int32)
    exact = gated.Gated(profile).double()(torch.tensor(TOKENS, dtype=torch.int32), rows)[0].numpy()
    assert exact.dtype == np.float64
    return exact
