"""The demos' bundles: what makes one old, and which demos there are."""

from __future__ import annotations

from pathlib import Path

import pytest

import answer
import bundles
import demo
from tests.tiny import make_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundles, "FOLDER", tmp_path / "made")
    return make_checkpoint(tmp_path / "tiny", "qwen3_5-tied", max_position_embeddings=512)


def test_a_bundle_is_made_anew_when_a_weight_changes_but_not_for_its_card(checkpoint: Path) -> None:
    before = bundles.fingerprint(checkpoint)
    (checkpoint / "README.md").write_text("A card.\n")
    assert bundles.fingerprint(checkpoint) == before
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert bundles.fingerprint(checkpoint) != before


def test_a_demo_shows_one_text_and_builds_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = (demo.Ask("> some code", "def add(first, second):\n", 16, raw=True), demo.Ask("> a chat", "Where is it?", 8))
    monkeypatch.setitem(demo.DEMOS, "hybrid", demo.Demo("tiny", lambda: checkpoint, asks))
    assert demo.main("hybrid") == 0
    out, err = capsys.readouterr()
    assert "compiled for this CPU" in err
    assert [line.split()[2] for line in out.splitlines() if line.startswith("identical text")] == ["yes", "yes"]
    assert out.count("tokens a second") == 2
    assert not bundles.build(checkpoint, "bf16", "tiny")


def test_ctrl_c_waits_for_a_command_to_put_away_what_it_has_begun(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "tandem-compile"
    program.write_text(
        f"#!/bin/sh\ntrap 'sleep 0.6; touch {tmp_path}/away; exit 130' INT\nsleep 0.4\nkill -INT $PPID $$\nsleep 9\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(answer, "program", lambda name: [str(tmp_path / name)])
    monkeypatch.setitem(demo.DEMOS, "hybrid", demo.Demo("tiny", lambda: checkpoint, ()))
    assert demo.main("hybrid") == demo.INTERRUPTED
    assert capsys.readouterr().err.endswith("\nerror: interrupted\n") and (tmp_path / "away").exists()


def test_a_demo_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main("opera") == 2
    assert capsys.readouterr().err == "error: there is no demo opera; there are smollm2, hybrid\n"
