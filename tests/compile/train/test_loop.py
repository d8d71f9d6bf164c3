"""A run that is stopped and gone on with is the run that was not; its length, its rate, its data order."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.compile.models.families import resolve
from tandem.compile.train import loop
from tandem.compile.train.batches import Batches
from tandem.compile.train.model import Model
from tandem.compile.train.optimise import Muon, optimisers, orthogonal, rate
from tandem.compile.train.shape import complete
from tandem.compile.train.state import Settings, identity
from tandem.compile.train.trainer import Trainer
from tandem.errors import TandemError, UsageError

SMALL = {"batch": 4, "micro_batch": 4, "length": 24, "warmup": 2, "lr": 2e-2}
CPU = torch.device("cpu")


def text(count: int = 3000) -> np.ndarray:
    """Counting with a skip now and then: something that can be learnt."""
    return (np.cumsum(np.random.default_rng(0).integers(1, 3, count)) % 50).astype("<u2")


def trainer(tiny: dict[str, Any], path: Path, ids: np.ndarray | None = None, **options: Any) -> Trainer:
    settings = Settings(**(SMALL | {"steps": 20} | options))
    config = complete(tiny, 64)
    batches = Batches(
        text() if ids is None else ids,
        batch=settings.batch,
        length=settings.length,
        ahead=settings.ahead,
        seed=settings.seed,
        device=CPU,
    )
    return Trainer(Model(resolve(config)), batches, settings, identity(settings, config, "text"), path)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "REPORT_EVERY", 5)


def ignore(line: str) -> None:
    pass


def test_a_stopped_run_goes_on_with_the_same_losses(tiny: dict[str, Any], tmp_path: Path) -> None:
    whole = trainer(tiny, tmp_path / "whole.pt")
    whole.train(ignore)
    for _ in range(4):  # each process stops at its first report
        part = trainer(tiny, tmp_path / "part.pt")
        part.train(ignore, deadline=0.0, clock=itertools.count().__next__)
    assert part.progress.done and part.progress.step == 20
    assert part.progress.history == whole.progress.history
    assert whole.progress.history[-1]["loss"] < 0.8 * whole.progress.history[0]["loss"]
    for one, other in zip(part.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_micro_batches_add_up_to_the_batch(tiny: dict[str, Any], tmp_path: Path) -> None:
    whole, parts = (trainer(tiny, tmp_path / f"{n}.pt", micro_batch=n, steps=5) for n in (4, 3))
    for run in (whole, parts):
        run.train(ignore)
    first, second = (run.progress.history[-1]["loss"] for run in (whole, parts))
    assert first == pytest.approx(second, abs=1e-3)


def test_minutes_become_steps_once_the_speed_is_known(tiny: dict[str, Any], tmp_path: Path) -> None:
    lines: list[str] = []
    run = trainer(tiny, tmp_path / "run.pt", steps=None, minutes=2.0)
    ticks = itertools.count(0, 7)  # the clock is read once a report: 5 steps are 7 seconds
    run.train(lines.append, clock=lambda: float(next(ticks)), deadline=50.0)
    assert run.progress.total == 35 + int((120 - 49) * 5 / 7)
    assert f"{run.progress.total} steps fit into 2 minutes" in lines
    again = trainer(tiny, tmp_path / "run.pt", steps=None, minutes=2.0)
    assert again.progress.total == run.progress.total


def test_another_run_is_not_gone_on_with(tiny: dict[str, Any], tmp_path: Path) -> None:
    trainer(tiny, tmp_path / "run.pt", steps=1).train(ignore)
    with pytest.raises(UsageError, match=r"lr = 0\.02, now 0\.5"):
        trainer(tiny, tmp_path / "run.pt", steps=1, lr=0.5)


def test_a_loss_that_is_no_number_stops_the_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    run = trainer(tiny, tmp_path / "run.pt", steps=1)
    with torch.no_grad():
        run.model.model.norm.weight.fill_(math.nan)
    with pytest.raises(TandemError, match="step 1: the loss is"):
        run.train(ignore)
    assert not (tmp_path / "run.pt").exists()


@given(st.integers(200, 2000), st.integers(1, 4), st.integers(4, 30), st.integers(0, 5))
def test_an_epoch_shows_every_window_once(count: int, batch: int, length: int, epoch: int) -> None:
    ids = np.arange(count, dtype="<u2")
    batches = Batches(ids, batch=batch, length=length, ahead=3, seed=1, device=CPU)
    steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
    rows = torch.cat([batches.at(step) for step in steps])
    assert torch.equal(rows, rows[:, :1] + torch.arange(length + 3))  # whole runs of the text
    firsts = rows[:, 0].tolist()
    assert len(set(firsts)) == len(firsts) and len({first % length for first in firsts}) == 1
    assert len(firsts) > count // length - 2 - batch
    again = Batches(ids, batch=batch, length=length, ahead=3, seed=1, device=CPU)
    assert torch.equal(again.at(steps[-1]), batches.at(steps[-1]))


def test_too_little_text_is_said() -> None:
    with pytest.raises(UsageError, match="100 training tokens are less than one batch of 8 x 24"):
        Batches(text(100), batch=8, length=24, ahead=3, seed=0, device=CPU)


def test_the_rate_goes_up_stays_and_falls_to_zero() -> None:
    rates = [rate(step, 100, warmup=10, decay_share=0.4) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9:61] == [1.0] * 52 and rates[100] == 0.0
    assert rates[80] == pytest.approx(0.5)
    assert rate(5000, None, warmup=10, decay_share=0.4) == 1.0


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 40), (2, 40, 16)])
def test_orthogonal_keeps_directions_and_levels_sizes(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthogonal(matrices)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ found @ vh.mT
    sizes = torch.linalg.diagonal(inner)
    assert sizes.min() > 0.5 and sizes.max() < 1.3
    torch.testing.assert_close(inner, torch.diag_embed(sizes), rtol=0, atol=1e-9)


def test_muon_steps_and_decays() -> None:
    weight = torch.nn.Parameter(torch.full((20, 30), 2.0))
    weight.grad = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    before = weight.detach().clone()
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    step = (weight.detach() - before * (1 - 0.1 * 0.5)) / -(0.1 * 0.2 * 30**0.5)
    sizes = torch.linalg.svdvals(step)
    assert sizes.min() > 0.5 and sizes.max() < 1.3
    assert (step * weight.grad).sum() > 0


def test_every_parameter_has_one_optimiser(tiny: dict[str, Any]) -> None:
    model = Model(resolve(complete(tiny, 64)))  # type: ignore[arg-type]
    adam, muon = optimisers(model, 1e-3, 0.1)
    groups = [{id(p) for g in o.param_groups for p in g["params"]} for o in (adam, muon)]
    assert groups[0].isdisjoint(groups[1])
    assert groups[0] | groups[1] == {id(p) for p in model.parameters()}
    assert id(model.model.embed_tokens.weight) in groups[0]
    assert id(model.model.layers[0].linear_attn.in_proj_qkv.weight) in groups[1]
