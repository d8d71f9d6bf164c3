"""A block drafter's programs by the interpreter, behind passes of its tiny target: right to float64, one arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.entries import ANY, Shape, shapes
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_reference import ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.train.drafter.target import Target
from tandem.keys import Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab
from tandem.runtime.rows import block_rows
from tandem.tree import DraftTree
from tests.compile.cuda import lowered
from tests.compile.cuda.interpreted import InterpretedExecutor
from tests.compile.models.dflash2_oracle import TINY
from tests.kernels.harness import assert_bits

IDS = [5, 17, 31, 8, 8, 39, 2, 11, 30, 23, 4, 36, 19, 7]
TARGET: dict[str, Any] = {
    "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 40, "vocab_size": 61,
    "num_hidden_layers": 2,
}  # fmt: skip
BLOCK = TINY | {
    "num_target_layers": 2,
    "dflash_config": TINY["dflash_config"] | {"target_layer_ids": [0, 1]},
}
"""Reads what leaves both layers; two of its own, a window of 12, blocks of 5 rows."""


def small(folder: Path, profile: str) -> CudaComposer:
    return lowered.composer(folder, "llama", profile, 128, block=BLOCK, **TARGET)


def ring(executor: InterpretedExecutor) -> np.ndarray:
    return executor.region("taps").view(np.float32).reshape(-1, 2 * TARGET["hidden_size"])


def test_entries_are_whole_blocks_of_1_2_4_and_all_lanes_in_any_context(tmp_path: Path) -> None:
    model = small(tmp_path, "bf16")
    g = model.geometry
    assert g.drafter is not None and g.drafter.block is not None
    assert (g.drafter.block.rows, g.drafter.block.mask_token, g.drafter.block.context_length) == (5, 60, 128)
    assert (g.max_rows, g.max_outputs, g.draft_lanes, g.drafter.tap_width) == (128, 32, 8, 48)
    # Two layers of K and V, two heads of ten in bf16.
    assert g.drafter.kv_planes == ((2, 20), (2, 20)) and g.drafter.page_bytes == 2 * 64 * (40 + 40)
    drafts = [shape for shape in shapes(g) if Kind.DRAFT in shape.kinds]
    assert drafts == [Shape((Kind.DRAFT,), ANY, rows) for rows in (5, 10, 20, 40)]
    syncs = [shape.rows for shape in shapes(g) if Kind.SYNC in shape.kinds]
    assert syncs == [1, 2, 4, 8, 16, 24, 32, 64, 128]


@torch.no_grad()
def test_a_block_is_the_references(tmp_path: Path) -> None:
    """Streams of a chunk and of a step against the training code, then blocks over them against float64."""
    executor = InterpretedExecutor(small(tmp_path, "fp32"), num_pages=2, buckets=(1, 5, 16))
    checkpoint = open_checkpoint(str(tmp_path / "checkpoint"))
    spec, drafter = resolve(checkpoint.config), DrafterCheckpoint(tmp_path / "drafter")
    block = resolve_drafter(drafter.config)
    tensors = {name: tensor.double() for name, tensor in load(spec, checkpoint)}
    target = Target(spec, tensors, torch.float64, torch.device("cpu"))
    streams = target.sequence(torch.tensor([IDS]), block.taps)[0][0]
    lab, places = Lab(executor, 1), [120 + 3 * i for i in range(len(IDS))]
    lab.extend(0, IDS[:-1], 0, 1, places[:-1])
    lab.extend(0, IDS[-1:], len(IDS) - 1, 1, places[-1:])
    np.testing.assert_allclose(ring(executor)[places], streams.numpy(), rtol=0, atol=3e-5)
    held = ReferenceDrafter(block, dict(load_drafter(block, drafter)), target.embedding, target.head)
    held.sync({0: streams[:-1]})
    (wanted,) = held.draft({0: IDS[-1]})
    draft = DraftLab(lab)
    draft.sync(0, IDS[:-1], 0, places[:-1])
    geometry = executor.geometry.drafter
    assert geometry is not None and geometry.block is not None
    rows = block_rows([0], [len(IDS) - 1], IDS[-1:], geometry.block, lab.table)
    found = executor.draft(Kind.DRAFT, rows)
    assert found.token.tolist() == wanted.token.tolist() and found.walk is not None and found.score is not None
    assert found.walk.tolist() == wanted.walk.tolist()
    for ours, exact in ((found.logit, wanted.logit), (found.lse, wanted.lse), (found.score, wanted.score)):
        np.testing.assert_allclose(ours, exact.numpy(), rtol=0, atol=1e-4)
    order = np.argsort(-executor.logits(0), kind="stable")[: block.selector_top_k]
    assert order.tolist() == found.token[0].tolist()


def synced(lab: Lab, lane: int, text: Sequence[int], taps: Sequence[int], cuts: Sequence[int]) -> None:
    """A text's rows left in the ring by one pass, and synced in passes of such sizes."""
    lab.extend(lane, text, 0, 1, taps)
    begin = 0
    for size in cuts:
        DraftLab(lab).sync(lane, text[begin : begin + size], begin, taps[begin : begin + size])
        begin += size


def test_lanes_of_a_draft_have_the_bits_they_have_alone_however_they_were_synced(tmp_path: Path) -> None:
    executor = InterpretedExecutor(small(tmp_path, "bf16"), num_pages=6, buckets=(1, 5, 16, 20))
    lab = Lab(executor, 3)
    draft, starts = DraftLab(lab), [13, 12, 1]
    for lane, cuts in enumerate(([13], [1, 11], [1])):
        text = IDS[lane:] + IDS[:lane]
        synced(lab, lane, text[: starts[lane]], range(20 * lane, 20 * lane + starts[lane]), cuts)
    anchors = [IDS[13], IDS[3], IDS[0]]
    alone = [draft.blocks([lane], [starts[lane]], [anchors[lane]])[0] for lane in range(3)]
    assert len(set(alone)) == 3
    assert draft.blocks([2, 0, 1], [1, 13, 12], [anchors[2], anchors[0], anchors[1]]) == [alone[2], *alone[:2]]
    again = Lab(executor, 3)
    synced(again, 1, IDS[:13], range(100, 113), [9, 4])
    assert DraftLab(again).blocks([1], [13], anchors[:1]) == alone[:1]


def test_taps_of_a_tree_are_those_of_its_path_and_move_no_bit_of_a_text(tmp_path: Path) -> None:
    executor = InterpretedExecutor(small(tmp_path, "bf16"), num_pages=2, buckets=(1, 8))
    lab = Lab(executor, 1)
    plain = [lab.extend(0, [token], i)[0] for i, token in enumerate(IDS[:8])]
    assert np.isnan(ring(executor)).all()
    assert [lab.extend(0, [token], i, 1, [40 + i])[0] for i, token in enumerate(IDS[:8])] == plain
    tree = DraftTree([IDS[4], 3, IDS[5], 9, IDS[6], IDS[7]], [-1, 0, 0, 2, 2, 4], [0.5] * 6, ["test"] * 6)
    lab.extend(0, IDS[:4], 0, 1, range(4))
    path, out = [0, 2, 4, 5], [60, -1, 61, -1, 62, 63]
    (found,) = lab.verify(Kind.VERIFY_TREE, [0], [4], [tree], out)
    assert [found[node] for node in path] == plain[4:]
    kept = ring(executor)
    assert_bits(kept[[*range(4), 60, 61, 62, 63]], kept[40:48])
    held = np.flatnonzero(np.isfinite(kept).all(axis=1)).tolist()
    assert held == [*range(4), *range(40, 48), 60, 61, 62, 63]
