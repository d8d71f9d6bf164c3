"""A block drafter of a folder of its own, from plan to bundle: laid out as worked by hand, and of this target alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tandem.artifacts.digest import build_id
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.weights import MappedWeights
from tandem.command import run_command
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.cli import command
from tandem.compile.cpu import panels, target
from tandem.compile.models.families import resolve
from tandem.compile.models.rope import rope_tables
from tandem.compile.plan import Plan
from tandem.compile.profile import PROFILES, find_profile
from tandem.compile.store import weight_bytes, write_weights
from tandem.errors import CheckpointError, CompileError, TandemError, UsageError
from tandem.keys import DRAFTER_KINDS, TARGET_KINDS, Kind
from tests.compile.conftest import Proving
from tests.compile.models import oracle
from tests.compile.models.dflash2_oracle import make_drafter as write_drafter
from tests.compile.test_build_id import changed, leaves, other
from tests.compile.test_plan import plan
from tests.tiny import make_checkpoint
from tests.tiny_drafter import drafter_config, drafter_of, make_drafter
from tests.tiny_hybrid import add_mtp


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plan") / request.param, request.param)


@pytest.fixture(scope="module")
def drafter(folder: Path) -> Path:
    return make_drafter(folder.parent / "drafter", folder)


def drafting(folder: Path, drafter: Path, **wishes: object) -> Plan:
    return plan(folder, device="cpu", drafter=DrafterCheckpoint(drafter), **wishes)


def test_what_it_takes_is_worked_by_hand(folder: Path, drafter: Path) -> None:
    """Two layers with 2 kv heads of 10, padded to 16 in the value pages; 2 streams of 48 a token; blocks of 5."""
    made = drafting(folder, drafter, context_length=300)
    held, record = made.geometry.drafter, made.resolved.drafter
    assert held is not None and record is not None and held.block is not None and made.undrafted == ""
    assert (held.tap_rows, held.tap_width, held.top) == (128 + 512, 2 * 48, 4)
    assert held.page_bytes == 2 * 64 * (2 * 10 * 2 + 2 * 16 * 2) and held.kv_planes == ((20, 2), (2, 32))
    assert (held.block.rows, held.block.mask_token, held.block.context_length) == (5, 331, 300)
    layers = resolve(oracle.read_config(folder)).num_hidden_layers
    assert (record.kind, record.length, record.tap_layers, record.vocab_size) == ("dflash2", 4, (1, layers), 333)
    assert (record.weights, record.target) == (DrafterCheckpoint(drafter).digest(), made.resolved.checkpoint)
    assert made.resolved.entries == (*TARGET_KINDS, *DRAFTER_KINDS) and made.geometry.fault() is None
    summary, plain = made.summary(), plan(folder, device="cpu", context_length=300)
    assert summary["drafter"] == "dflash2, blocks of 5" and summary["programs"] == 6
    assert summary["drafter_kv_bytes_per_token"] == 2 * (20 * 2 + 2 * 16 * 2)
    assert summary["drafter_weight_bytes"] == made.weight_bytes - plain.weight_bytes
    # Lattice: 4 scores of 4 by 4 for each of 32 outputs, in whole lines of 64 bytes; the rest as of other drafters.
    more = 2 * 512 + 2 * 512 + 128 + 32 * 16 * 4 + 128
    assert summary["io_bytes"] - plain.summary()["io_bytes"] == more


def test_a_drafter_of_shorter_texts_says_so(folder: Path, drafter: Path) -> None:
    block = drafting(folder, drafter).geometry.drafter.block  # type: ignore[union-attr]
    assert block is not None and block.context_length == 1024


@pytest.mark.parametrize("profile", PROFILES)
def test_it_lies_behind_the_model(folder: Path, drafter: Path, profile: str, tmp_path: Path) -> None:
    """All of the model is where it was; codebooks lie row by row, in no fewer bits than bf16; tables are its own."""
    spec, chosen, tensors = resolve(oracle.read_config(folder)), find_profile(profile), oracle.read_tensors(folder)
    own, stored, sizes = drafter_of(drafter), load_file(drafter / "model.safetensors"), list[int]()
    for name, drafts in (("plain", None), ("drafting", own)):
        write_weights(spec, chosen, tensors, tmp_path / name, layout=panels, context_length=64, drafter=drafts)
        sizes.append(weight_bytes(spec, chosen, panels, drafter=drafts))
    plain, found = MappedWeights(tmp_path / "plain"), MappedWeights(tmp_path / "drafting")
    assert all(np.array_equal(plain.bytes(n), found.bytes(n)) for n in plain.spans if not n.startswith("pad."))
    more = [name for name in found.spans if not name.startswith("pad.") and name not in plain.spans]
    assert len(more) == 2 + 2 * 15 + 4 + 2 and all(name.startswith("draft.") for name in more)
    tables = ("draft.rope.cos", "draft.rope.sin")
    assert sizes[1] - sizes[0] == sum(found.spans[name].nbytes for name in more if name not in tables)
    for name, table in zip(tables, rope_tables(own.block.rope, 10, 64 + 32), strict=True):
        assert np.array_equal(found.bytes(name).view(np.float32).reshape(table.shape), table)
    for name in ("predecessor", "successor"):
        book, bits = stored[f"candidate_selector.{name}_codebook"], found.bytes(f"draft.{name}")
        if profile == "fp32":
            assert np.array_equal(bits.view(np.float32).reshape(333, 7), book.float().numpy())
        else:
            assert bits.tobytes() == book.view(torch.uint16).numpy().tobytes()
    for name in ("draft.layers.0.attention_delta", "draft.layers.1.mlp_delta", "draft.gate"):
        assert chosen.format(name, (9, 9)) == ("fp32" if profile == "fp32" else "bf16")


def wrong(folder: Path, drafter: Path, where: Path, **changes: Any) -> DrafterCheckpoint:
    """The drafter with other fields, its tensors of the shapes that they ask for."""
    config = json.loads((drafter / "config.json").read_text())
    own = {name.removeprefix("own_"): value for name, value in changes.items() if name.startswith("own_")}
    plain = {name: value for name, value in changes.items() if not name.startswith("own_")}
    write_drafter(where, config | plain | {"dflash_config": config["dflash_config"] | own})
    return DrafterCheckpoint(where)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"hidden_size": 64},
            CheckpointError,
            "for another model: its hidden_size is 64, this target has 48",
        ),
        ({"vocab_size": 340}, CheckpointError, "its vocab_size is 340, this target has 333"),
        ({"num_target_layers": 9}, CheckpointError, "its num_target_layers is 9, this target has"),
        ({"target_digest": "ab" * 32}, CheckpointError, "its target_digest is abababababab, this target's is"),
        ({"architectures": ["DFlash3"]}, CompileError, "architectures"),
        ({"own_block_size": 33}, CompileError, "block_size"),
    ],
)
def test_a_drafter_of_another_model_is_refused_before_anything_is_written(
    folder: Path, drafter: Path, tmp_path: Path, changes: dict[str, Any], error: type[TandemError], words: str
) -> None:
    made = wrong(folder, drafter, tmp_path / "d", **changes)
    with pytest.raises(error, match=words):
        plan(folder, device="cpu", drafter=made)


def test_a_drafter_that_names_its_target_is_taken_for_it(folder: Path, drafter: Path, tmp_path: Path) -> None:
    digest = plan(folder, device="cpu").resolved.checkpoint
    made = plan(folder, device="cpu", drafter=wrong(folder, drafter, tmp_path / "d", target_digest=digest))
    assert made.resolved.drafter is not None and made.resolved.drafter.target == digest


def test_a_damaged_one_is_refused(folder: Path, drafter: Path, tmp_path: Path) -> None:
    shutil.copytree(drafter, tmp_path / "d")
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    (tmp_path / "d" / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    with pytest.raises(CheckpointError, match=r"has shape \(40, 24\)|has shape \(.*\), but the config wants"):
        plan(folder, device="cpu", drafter=DrafterCheckpoint(tmp_path / "d"))


def test_a_device_without_programs_for_it_refuses(folder: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.CpuTarget, "drafters", ("mtp",))
    with pytest.raises(UsageError, match=r"^--drafter .*: cpu-.* has no programs yet for block drafters \(DFlash2\)"):
        drafting(folder, drafter)


def test_it_goes_before_a_layer_of_the_checkpoints_own(tmp_path: Path) -> None:
    """A bundle has one drafter: who names one means it."""
    made = make_checkpoint(tmp_path / "hybrid", "qwen3_5")
    add_mtp(made)
    found = drafting(made, make_drafter(tmp_path / "drafter", made))
    assert found.resolved.drafter is not None and found.resolved.drafter.kind == "dflash2"


def test_every_field_of_it_moves_the_build_id(folder: Path, drafter: Path) -> None:
    fields = json.loads(msgspec.json.encode(drafting(folder, drafter).resolved))
    paths = [path for path in leaves(fields) if "drafter" in path]
    assert len(paths) == 5 + 2 + 4 + 4 + 3
    ids = {build_id(changed(fields, path, other)) for path in paths}
    assert len(ids) == len(paths) and build_id(fields) not in ids


def test_the_command_takes_a_folder(
    folder: Path, drafter: Path, capfd: pytest.CaptureFixture[str], quick: Proving, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def run(*flags: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return run_command(command, "tandem-compile", [str(folder), "-o", "made", *flags]), *capfd.readouterr()

    def priced(change: Callable[[dict[str, Any]], object]) -> None:
        change(quick.answer["prices"]["256"])

    monkeypatch.chdir(tmp_path)
    priced(lambda table: table.update(draft={"5": 1.5, "10": 2.0}))
    code, out, err = run("--drafter", str(drafter))
    assert (code, out) == (0, "made\n") and "dflash2 drafts along: a block of 5 takes 1.50 ms" in err
    bundle = open_bundle("made", verify="digests")
    assert bundle.manifest.drafter is not None and bundle.kinds[-2:] == (Kind.DRAFT, Kind.SYNC)
    assert "draft.fc" in bundle.weights.spans and "draft.rope.cos" in bundle.weights.spans
    assert run("--drafter", str(drafter))[2] == "made is this very build already\n"
    code, out, err = run("--drafter", "nowhere/at/all")
    assert (code, out) == (1, "") and "nowhere/at/all: no such folder: give the folder of a drafter" in err
    code, _, err = run("--drafter", str(folder), "--replace")
    assert code == 1 and f"{folder}: the checkpoint's config has architectures" in err
    code, _, err = run("--drafter", "")
    assert code == 2 and "--drafter is empty: give auto, none, or the folder of a drafter" in err
    code, _, err = run("--drafter", ".")
    assert code == 1 and ".: config.json is missing: give the folder of a drafter" in err
    assert json.loads(run("--drafter", str(drafter), "--dry-run", "--json")[1])["drafter"] == "dflash2, blocks of 5"


def test_a_config_is_that_of_its_target(folder: Path) -> None:
    """Of the helper that makes these drafters: the tests above would be blind to one that fits any target."""
    config = drafter_config(folder)
    assert config["hidden_size"] == 48 and config["num_target_layers"] in (3, 4)
