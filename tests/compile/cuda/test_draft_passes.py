"""A drafter's programs by the interpreter, over its tiny model's passes: right to float64, and one arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.models.families import resolve
from tandem.compile.train.model import Model
from tandem.keys import Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab
from tandem.runtime.rows import DraftSpan, draft_rows
from tandem.tree import DraftTree
from tests.compile.cuda import lowered
from tests.compile.cuda.interpreted import InterpretedExecutor
from tests.compile.models import oracle
from tests.compile.models.mtp_reference import Drafter
from tests.kernels.harness import assert_bits

IDS = [5, 17, 31, 8, 8, 39, 2, 11, 30]
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 40, "vocab_size": 40, "num_hidden_layers": 2, "linear_num_key_heads": 1,
    "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


def small(folder: Path, profile: str, *, drafter: bool = True) -> CudaComposer:
    return lowered.composer(folder, "qwen3_5", profile, 128, drafter=drafter, **SMALL)


def ring(executor: InterpretedExecutor) -> np.ndarray:
    return executor.region("taps").view(np.float32).reshape(-1, SMALL["hidden_size"])


@torch.no_grad()
def test_chains_are_those_by_hand(tmp_path: Path) -> None:
    """A pass of the model that leaves taps, a sync and a chain behind it, against the training code and MTP by hand."""
    model = small(tmp_path, "fp32")
    config, tensors = oracle.read_config(tmp_path / "checkpoint"), oracle.read_tensors(tmp_path / "checkpoint").tensors
    trained = Model(resolve(config)).double()
    trained.load_state_dict(
        {name: t.double() for name, t in tensors.items() if not name.startswith("mtp.")}, strict=False
    )
    known = trained.hidden(torch.tensor([IDS]))[0]
    _, logits = Drafter(config, tensors).chains(torch.tensor(IDS[1:]), known[:-1], 3)
    executor = InterpretedExecutor(model, num_pages=2, buckets=(1, 16))
    lab, places = Lab(executor, 1), [300 + 2 * i for i in range(len(IDS))]
    lab.extend(0, IDS, 0, 1, places)
    np.testing.assert_allclose(ring(executor)[places], known.numpy(), rtol=0, atol=2e-5)
    draft, end, token = DraftLab(lab), len(IDS) - 1, -1
    draft.sync(0, IDS[1:6], 0, places[:5])
    span = DraftSpan(0, 5, IDS[6:], places[5:end], tap_out=7)
    for depth in range(3):
        if depth:
            span = DraftSpan(0, end + depth - 1, [token], [7], tap_out=7)
        outcome = executor.draft(Kind.DRAFT, draft_rows(Kind.DRAFT, [span], lab.table))
        wanted = logits[-1, depth].numpy()
        np.testing.assert_allclose(executor.logits(0), wanted, rtol=0, atol=3e-5)
        order = np.argsort(-wanted, kind="stable")[:2]
        assert outcome.token.tolist() == [order.tolist()]
        np.testing.assert_allclose(outcome.logit[0], wanted[order], rtol=0, atol=3e-5)
        assert outcome.lse == pytest.approx([float(logits[-1, depth].logsumexp(-1))], abs=3e-5)
        token = int(order[0])


def guesses(lab: Lab, sizes: Sequence[int], taps: Sequence[int]) -> list[str]:
    """Digests of guesses over IDS by drafts of such sizes, one behind the other; of a negative one a sync."""
    draft, found, begin = DraftLab(lab), list[str](), 0
    for size in sizes:
        tokens = IDS[begin + 1 : begin + 1 + abs(size)]
        if size > 0:
            found += draft.guesses(0, tokens, begin, taps[begin : begin + len(tokens)])
        else:
            draft.sync(0, tokens, begin, taps[begin : begin + len(tokens)])
            found += [""] * len(tokens)
        begin += abs(size)
    return found


def test_guesses_have_their_bits_in_rows_of_any_number_over_taps_of_any_pass(tmp_path: Path) -> None:
    """Rows one by one, many, behind syncs, in chunks; taps of steps, of a chunk, of a chain and of a tree."""
    model = small(tmp_path, "bf16")
    one = Lab(InterpretedExecutor(model, num_pages=2, buckets=(1, 8, 64)), 1)
    places = list(range(len(IDS)))
    plain = [one.extend(0, [token], i, 1, places[i : i + 1])[0] for i, token in enumerate(IDS)]
    wanted = guesses(one, [1] * 8, places)
    for sizes in ([8], [-3, 5], [-1, -1, 3, 3]):
        found = guesses(one, sizes, places)
        assert all(bits in ("", right) for bits, right in zip(found, wanted, strict=True)) and found[-1]
    many = Lab(InterpretedExecutor(model, num_pages=2, buckets=(2, 64)), 1)
    line = DraftTree.chain(IDS[5], IDS[6:], [0.5] * 3, "test")
    tree = DraftTree([IDS[5], 3, IDS[6], 4, IDS[7], IDS[8]], [-1, 0, 0, 2, 2, 4], [0.5] * 6, ["test"] * 6)
    assert many.extend(0, IDS[:5], 0, 1, [40, 41, 42, 43, 44])[0] == plain[4]
    buckets = Lab(InterpretedExecutor(model, num_pages=2, buckets=(8,)), 1)
    buckets.extend(0, IDS[:5], 0, 1, [40, 41, 42, 43, 44])
    for kind, drafted, path in ((Kind.VERIFY_CHAIN, line, [0, 1, 2, 3]), (Kind.VERIFY_TREE, tree, [0, 2, 4, 5])):
        out = [500 + 3 * i for i in range(len(drafted))]
        (found,) = buckets.verify(kind, [0], [5], [drafted], out)
        assert [found[node] for node in path] == plain[5:]
        assert guesses(buckets, [4, 4], [40, 41, 42, 43, 44, *(out[node] for node in path)]) == wanted


def test_taps_move_no_bit_of_a_text_and_rows_go_nowhere_else(tmp_path: Path) -> None:
    found = []
    for drafter, taps in ((False, []), (True, []), (True, [5, -1, 639, -1, 0, -1, -1, 9])):
        model = small(tmp_path / f"{drafter}-{len(taps)}", "bf16", drafter=drafter)
        executor = InterpretedExecutor(model, num_pages=2, buckets=(8,))
        lab = Lab(executor, 1)
        found.append([lab.extend(0, IDS[:8], 0, 8, taps), lab.state(0, 8)])
        if drafter:
            held = np.flatnonzero(np.isfinite(ring(executor)).all(axis=1)).tolist()
            assert held == sorted(tap for tap in taps if tap >= 0)
            kept = ring(executor).copy()
            guesses(lab, [-8], [5] * 8)
            assert_bits(ring(executor), kept)
    assert found[0] == found[1] == found[2]


def test_lanes_of_a_draft_have_the_bits_they_have_alone(tmp_path: Path) -> None:
    executor = InterpretedExecutor(small(tmp_path, "bf16"), num_pages=4, buckets=(1, 8))
    lab = Lab(executor, 2)
    draft = DraftLab(lab)
    for lane in (0, 1):
        text = IDS[lane:] + IDS[:lane]
        lab.extend(lane, text[:8], 0, 1, range(20 * lane, 20 * lane + 8))
        draft.sync(lane, text[1:4], 0, range(20 * lane, 20 * lane + 3))
    spans = [
        DraftSpan(lane, 3, IDS[4 + lane : 8], range(20 * lane + 3, 20 * lane + 7 - lane), 50 + lane) for lane in (0, 1)
    ]
    alone = [draft.chains([span], 3)[0] for span in spans]
    assert draft.chains(spans, 3) == alone
    for length in (2, 3):  # a chain that needs no host, over what spoils it if it writes nothing
        for lane in (0, 1):
            draft.guesses(lane, [7] * 6, 3, [20 * lane] * 6)
        assert draft.lines(spans, length) == [line[:length] for line in alone]
    assert draft.lines(spans[1:], 3) == alone[1:]
