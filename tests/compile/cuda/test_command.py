"""`tandem-compile --device cuda` in this process: what it plans, and that it knows its own bundle again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.artifacts import reader
from tandem.command import run_command
from tandem.compile.cli import command
from tandem.gpu import Survey
from tests.artifacts.cuda_sample import A100, GPU, HERE
from tests.compile.conftest import Proving
from tests.compile.cuda.conftest import Compiler, See
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("command") / "tiny", "llama"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, see: See, model: str):
    """Runs the command in an empty folder, with one H200 in sight of builds and readers."""
    see(GPU)
    monkeypatch.setattr(reader, "survey", lambda: HERE)
    monkeypatch.chdir(tmp_path)
    return lambda *flags: run_command(command, "tandem-compile", [model, "--device", "cuda", *flags])


def test_a_dry_run_tells_what_a_bundle_would_hold(run, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    assert run("--dry-run", "--max-seq-len", "2048", "--json") == 0
    plan = json.loads(capfd.readouterr().out)
    assert (plan["device"], plan["programs"]) == ("cuda-sm90", 2 * 14 + 6 + 1 + 7)
    assert plan["entries"] == ["extend", "verify-chain", "verify-tree", "commit", "sample"]
    # llama: 3 layers of one kv head of 16, K and V in bf16; q is 48 wide, the gate 112, the vocabulary 333.
    assert plan["kv_bytes_per_token"] == 3 * 2 * 16 * 2
    matrices = 2 * 333 * 48 + 3 * (80 * 48 + 48 * 48 + 3 * 112 * 48)
    assert plan["weight_bytes"] == 2 * matrices + 4 * (2 * 3 + 1) * 48 and list(tmp_path.iterdir()) == []
    assert run("--dry-run") == 0
    assert ["programs", "42"] in [line.split() for line in capfd.readouterr().out.splitlines()]


def test_without_a_gpu_there_is_one_line(run, see: See, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    see()
    assert run("--dry-run") == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: --device cuda: no GPU is in sight here")
    assert list(tmp_path.iterdir()) == []


def test_low_bits_are_refused_before_anything_is_written(run, capfd: pytest.CaptureFixture[str], tmp_path: Path):
    assert run("--profile", "int8") == 2
    assert (
        "int8 has no CUDA kernels in this build: use --profile bf16 or fp32, or --device cpu" in capfd.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_known_again(
    run, quick: Proving, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
):  # fmt: skip
    flags = ("-o", "b", "--max-seq-len", "64")
    assert run(*flags) == 0
    assert "3 comparisons, no bit differs" in capfd.readouterr().err
    assert run(*flags) == 0 and quick.calls == 1
    assert "b is this very build already" in capfd.readouterr().err
    # Under another machine's key, or on a machine that it does not suit, it is no bundle of this one's.
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        assert run(*flags) == 2 and "exists" in capfd.readouterr().err
    for gpus in (Survey((A100,)), Survey((), "no NVIDIA driver")):
        with monkeypatch.context() as patch:
            patch.setattr(reader, "survey", lambda gpus=gpus: gpus)
            assert run(*flags) == 2 and "exists" in capfd.readouterr().err
    assert run(*flags) == 0 and quick.calls == 1
