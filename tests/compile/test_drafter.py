"""A checkpoint's layer that drafts, from plan to bundle: there when it is wanted, and nothing of it otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tandem.artifacts.digest import build_id
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.compile.cli import command
from tandem.compile.cpu import target
from tandem.compile.cuda.target import CudaTarget
from tandem.keys import DRAFTER_KINDS, TARGET_KINDS, Kind
from tests.compile.conftest import Proving
from tests.compile.test_build_id import changed, leaves, other
from tests.compile.test_plan import plan
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint(tmp_path_factory.mktemp("plan") / "mtp", "qwen3_5")
    add_mtp(made)
    return made


def test_a_drafter_of_the_checkpoints_own_is_worked_by_hand(drafting: Path) -> None:
    """One layer of attention: 1 kv head of 24, padded to 32 in the value pages; taps of 48, chains of four."""
    made = plan(drafting, device="cpu", context_length=300)
    held, record = made.geometry.drafter, made.resolved.drafter
    assert held is not None and record is not None and made.undrafted == ""
    assert (held.tap_rows, held.tap_width, held.top) == (128 + 512, 48, 2)
    assert held.page_bytes == made.geometry.page_bytes == 64 * (24 * 2 + 32 * 2)
    assert (record.kind, record.length, record.tap_layers, record.vocab_size) == ("mtp", 4, (), 333)
    assert record.weights == record.target == made.resolved.checkpoint
    assert made.resolved.entries == (*TARGET_KINDS, *DRAFTER_KINDS)
    summary = made.summary()
    assert summary["drafter"] == "mtp, chains of 4" and summary["programs"] == 6
    assert summary["drafter_kv_bytes_per_token"] == 24 * 2 + 32 * 2 and summary["tap_bytes"] == 640 * 48 * 4


def test_a_plan_without_a_drafter_is_that_of_a_checkpoint_without_one(drafting: Path, tmp_path: Path) -> None:
    """`none`, and a checkpoint that has no such layer, differ in the checkpoint's digest alone."""
    without = plan(drafting, device="cpu", drafter="none")
    plain = plan(make_checkpoint(tmp_path / "plain", "qwen3_5"), device="cpu")
    for made in (without, plain):
        assert made.drafter is made.geometry.drafter is None and made.undrafted == ""
        assert made.summary()["drafter"] == "none" and made.resolved.entries == TARGET_KINDS
    assert replace(without.resolved, checkpoint="") == replace(plain.resolved, checkpoint="")
    assert without.weight_bytes == plain.weight_bytes < plan(drafting, device="cpu").weight_bytes


def test_a_device_without_programs_for_it_says_so(drafting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.CpuTarget, "drafters", ())
    made = plan(drafting, device="cpu")
    assert made.drafter is made.geometry.drafter is None
    assert made.undrafted.startswith(f"no drafter: {made.device} has no programs yet for the layer")
    assert plan(drafting, device="cpu", drafter="none").undrafted == ""
    assert not CudaTarget.drafters.fget(None)  # type: ignore[attr-defined]


def test_every_field_of_it_moves_the_build_id(drafting: Path) -> None:
    fields = json.loads(msgspec.json.encode(plan(drafting, device="cpu").resolved))
    # No layer is tapped, so a list without leaves stands for them.
    paths = [path for path in leaves(fields) if "drafter" in path] + [("drafter", "tap_layers")]
    assert len(paths) == 6 + 4 + 4
    ids = {build_id(changed(fields, path, lambda v: [1] if v == [] else other(v))) for path in paths}
    assert len(ids) == len(paths) and build_id(fields) not in ids


def test_the_command_takes_it_along_unless_it_is_not_wanted(
    drafting: Path,
    capfd: pytest.CaptureFixture[str],
    quick: Proving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*flags: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return run_command(command, "tandem-compile", [str(drafting), *flags]), *capfd.readouterr()

    monkeypatch.chdir(tmp_path)
    code, out, err = run()
    assert (code, out) == (0, "mtp-bf16\n") and "mtp drafts along: a guess takes 1.02 ms" in err
    assert run("-q", "--drafter", "none", "-o", "none")[0] == 0
    bundle, plain = open_bundle("mtp-bf16"), open_bundle("none")
    assert bundle.manifest.drafter is not None and bundle.kinds[-2:] == (Kind.DRAFT, Kind.SYNC)
    assert plain.manifest.drafter is None and plain.kinds == TARGET_KINDS
    assert "mtp.fc_hidden" in bundle.weights.spans and "mtp.fc_hidden" not in plain.weights.spans
    bundle.verify()
    code, out, err = run("--drafter", "lookup")
    assert (code, out) == (1, "") and "lookup: no such folder: give the folder of a drafter" in err
    monkeypatch.setattr(target.CpuTarget, "drafters", ())
    code, out, err = run("--dry-run", "--json")
    assert err.startswith("no drafter: cpu-") and err.count("\n") == 1 and json.loads(out)["drafter"] == "none"
    assert run("--dry-run", "--drafter", "none")[2] == run("--dry-run", "-q")[2] == ""
