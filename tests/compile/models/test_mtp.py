"""The layer that drafts, run eagerly over a paged cache, against the same written by hand in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tandem.compile.models import qwen3_5, qwen3_5_mtp
from tandem.compile.models.families import resolve
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.weights import load, load_mtp, mtp_weight_name
from tandem.compile.train.model import Model
from tests.compile.models.mtp_reference import Drafter
from tests.compile.models.oracle import Tensors, read_config, read_tensors
from tests.tiny import HYBRIDS, make_checkpoint
from tests.tiny_hybrid import add_mtp

DEMO = Path(__file__).resolve().parents[3] / "bench" / "demo-hybrid"
PAGE, RING, CHAIN = 16, 50, 4
int32 = torch.int32


@pytest.fixture(scope="module", params=HYBRIDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint(tmp_path_factory.mktemp("mtp") / request.param, request.param)
    add_mtp(made)
    return made


class Eager:
    """The parts of the layer in float64: one lane, its pages out of order, and a ring that holds nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.spec = spec = resolve(read_config(folder))
        wide = Tensors({name: t.double() for name, t in read_tensors(folder).tensors.items()})
        self.weights = {**dict(load(spec, wide)), **dict(load_mtp(spec, wide))}
        self.entrance = self._filled(qwen3_5_mtp.Entrance(spec))
        self.block = self._filled(qwen3_5.AttentionBlock(spec), 0)
        self.keys = self._filled(qwen3_5_mtp.Keys(spec), 0)
        self.last = self._filled(qwen3_5_mtp.Guesses(spec))
        heads, width = spec.num_key_value_heads, spec.head_dim
        self.cache = (torch.full((5, heads, width, PAGE), torch.nan).double(),
                      torch.full((5, heads, PAGE, width), torch.nan).double())  # fmt: skip
        self.taps = torch.full((RING, spec.hidden_size), torch.nan).double()
        self.table = torch.tensor([[3, 0, 4, 1]], dtype=int32)
        self.rope = [torch.from_numpy(t) for t in rope_tables(spec.rope, spec.rotary_dim, 4 * PAGE)]

    def _filled(self, module: nn.Module, layer: int | None = None) -> nn.Module:
        state = {name: self.weights[mtp_weight_name(self.spec, name, layer)] for name in module.state_dict()}
        module.load_state_dict(state, assign=True)
        return module

    def rows(self, tokens: Sequence[int], start: int, tap: Sequence[int], out: int = -1) -> tuple[Tensor, ...]:
        """Logits of every row, guesses, their logits and the sums; the last row leaves its own in `out`."""
        place, h, delta = self._entered(tokens, start, tap)
        h, delta = self.block(h, delta, place, *self.cache)
        wanted, tap_out = torch.arange(len(tokens), dtype=int32), torch.full((len(tokens),), -1, dtype=int32)
        tap_out[-1] = out
        return self.last(h, delta, wanted, self.taps, tap_out)

    def sync(self, tokens: Sequence[int], start: int, tap: Sequence[int]) -> None:
        place, h, delta = self._entered(tokens, start, tap)
        self.keys(h, delta, place, *self.cache)

    def _entered(self, tokens: Sequence[int], start: int, tap: Sequence[int]) -> tuple[qwen3_5.Pass, Tensor, Tensor]:
        rows = len(tokens)
        position = torch.arange(start, start + rows, dtype=int32)
        zeros, ancestor = torch.zeros(rows, dtype=int32), torch.zeros(rows, 32, dtype=int32)
        inputs = qwen3_5.Pass(position, zeros, position, position + 1, ancestor, self.table, *self.rope, zeros, zeros)
        return inputs, *self.entrance(torch.tensor(tokens, dtype=int32), self.taps, torch.tensor(tap, dtype=int32))


def hidden(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@torch.no_grad()
def test_chains_behind_rows_of_a_text_are_those_by_hand(folder: Path) -> None:
    """Rows synced in two cuts and drafted; then a chain behind the last, from the taps that its own rows leave."""
    ours, ids = Eager(folder), [(7 * i * i + 3) % 300 for i in range(38)]
    known = hidden(len(ids), ours.spec.hidden_size)
    guesses, logits = Drafter(read_config(folder), read_tensors(folder).tensors).chains(torch.tensor(ids), known, CHAIN)
    ring = torch.randperm(RING, generator=torch.Generator().manual_seed(1))[: len(ids)].tolist()
    ours.taps[ring] = known
    ours.sync(ids[:9], 0, ring[:9])
    ours.sync(ids[9:30], 9, ring[9:30])
    free = next(i for i in range(RING) if i not in ring)
    found, token, logit, lse = ours.rows(ids[30:], 30, ring[30:], free)
    close(found, logits[30:, 0])
    assert torch.equal(token[:, 0].long(), guesses[30:, 0])
    close(lse, logits[30:, 0].logsumexp(-1))
    close(logit, logits[30:, 0].topk(2).values)
    for depth in range(1, CHAIN):
        (found, token, *_) = ours.rows([int(token[-1, 0])], len(ids) + depth - 1, [free], free)
        close(found[0], logits[-1, depth])


def close(found: Tensor, wanted: Tensor) -> None:
    """Rope tables are fp32; all else is float64."""
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_the_demo_hybrid_drafts_as_it_was_trained() -> None:
    """Its own weights, the training code as the oracle: what an id and the hidden row before it tell of the next."""
    config, tensors = read_config(DEMO), read_tensors(DEMO).tensors
    model = Model(resolve(config)).double()
    model.load_state_dict({name: t.double() for name, t in tensors.items()})
    ids = torch.tensor([[(7 * i * i + 3) % 8000 for i in range(24)]])
    known = model.hidden(ids)
    wanted = (model.drafted(ids[:, 1:], known[:, :-1]) @ model.head_weight.T)[0]
    ours = Eager(DEMO)
    ours.taps[:23] = known[0, :-1]
    close(ours.rows(ids[0, 1:].tolist(), 0, range(23))[0], wanted)
    close(Drafter(config, tensors).chains(ids[0, 1:], known[0, :-1], 1)[1][:, 0], wanted)
