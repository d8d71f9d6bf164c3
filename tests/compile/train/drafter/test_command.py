"""The command as it is typed: a drafter for a toy model that stops, goes on, gets better, and is a checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tandem.command import run_command
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.dflash2_config import require_target, resolve_drafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.models.families import resolve
from tandem.compile.train import cli, documents, loop, packages
from tests.compile.train.test_corpus import source
from tests.tiny import make_checkpoint

SIZES = {"block": 4, "layers": 1, "inner": 32, "heads": 2, "kv-heads": 1, "rank": 4, "window": 32}
RUN = {"steps": 40, "batch": 4, "context": 240, "blocks": 8, "warmup": 2, "lr": 1e-2, "seed": 3}
TEXTS = {"write-texts": 16, "write-batch": 16, "held-out": 4, "held-out-tokens": 16}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = tmp_path / "library"
    library.mkdir()
    for number in range(12):
        (library / f"words{number}.py").write_text(source(number))
    monkeypatch.setattr(documents, "HELD_OUT_PERMILLE", {"stdlib": 300, "packages": 300, "docs": 300})
    monkeypatch.setattr(
        packages, "standard_library", lambda: packages.folder("python-library", "3", "PSF-2.0", library)
    )
    monkeypatch.setattr(loop, "REPORT_EVERY", 10)
    make_checkpoint(tmp_path / "target", "llama")
    return tmp_path


def call(places: Path, **more: object) -> int:
    paths = {"target": places / "target", "state": places / "state", "output": places / "drafter"}
    given = [word for name, value in (SIZES | RUN | TEXTS | paths | more).items() for word in (f"--{name}", str(value))]
    return run_command(cli.group, "python -m tandem.compile.train", ["drafter", *given])


def tokens_a_round(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines() if line.startswith("held out ")]
    return {words[2].rstrip(":"): float(words[3]) for words in lines}


def test_a_run_that_stops_goes_on_and_gets_better(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(places, **{"stop-after": 0}) == 0
    first = capsys.readouterr()
    assert first.out.splitlines()[-1] == str(places / "drafter")
    assert "stopped at step 10 of 40: the same command goes on" in first.err
    assert "(stopped early, of 40)" in (places / "drafter/README.md").read_text()
    assert call(places) == 0
    last = capsys.readouterr()
    assert "written" not in last.err and "step 40/40" in last.err
    before, after = tokens_a_round(first.err), tokens_a_round(last.err)
    assert after.keys() == before.keys() == {"code", "chat"}
    assert after["code"] > before["code"] + 0.3, (before, after)

    checkpoint, target = DrafterCheckpoint(places / "drafter"), open_checkpoint(str(places / "target"))
    spec = resolve_drafter(checkpoint.config)
    require_target(spec, resolve(target.config), checkpoint.origin)
    assert all(str(tensor.dtype) == "torch.bfloat16" for _, tensor in load_drafter(spec, checkpoint))
    assert checkpoint.config["target_digest"] == target.digest()
    card = (places / "drafter/README.md").read_text()
    for line in ("# A drafter for target", "| block | 4 rows", "python-library 3 (PSF-2.0)", "| code | ", "## Command"):
        assert line in card
    lines = [line for line in (first.err + last.err).splitlines() if "entropy" in line]
    losses = [float(line.split("entropy ")[1].split()[0]) for line in lines]
    assert losses[-1] < 0.9 * losses[0]


def test_ctrl_c_saves_the_step_it_was_at(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tandem.compile.train.drafter.trainer import Trainer

    whole = Trainer.gradients

    def pressed(self: Trainer, step: int) -> Any:
        if step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "gradients", pressed)
        assert call(places) == 130
    assert "interrupted" in capsys.readouterr().err and not (places / "drafter").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert call(places) == 0
    assert "step 10/40" in capsys.readouterr().err
    assert json.loads((places / "drafter/config.json").read_text())["architectures"] == ["DFlash2DraftModel"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taps": "0,9"}, "--taps 0,9: the target has layers 0 to 2; give those"),
        ({"taps": "3,1"}, "3,1: give layers in ascending order, as 1,3,5"),
        ({"taps": "x"}, "x: give layers in ascending order"),
        ({"context": 5000}, "longer than the target's max_position_embeddings"),
        ({"blocks": 240}, "240 blocks of 4 do not fit into texts of 240 tokens"),
        ({"heads": 3, "kv-heads": 2}, "num_attention_heads = 3 and num_key_value_heads = 2"),
        ({"target": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_run_is_said(
    places: Path, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(places, **options) != 0
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error


def test_another_run_is_not_gone_on_with(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(places, **{"stop-after": 0}) == 0
    assert call(places, lr=2e-3) == 2
    assert "belongs to another run (lr = 0.01, now 0.002)" in capsys.readouterr().err
