"""A GPU as a target, with no GPU here: which one is taken, what is refused, and what a whole build writes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.artifacts.io import IoLayout
from tandem.artifacts.manifest import CudaPriceFacts, CudaValidity
from tandem.artifacts.reader import open_bundle
from tandem.compile import build
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cpu.target import CpuTarget
from tandem.compile.cuda import rows
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.examine import StagedCuda
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, HybridSpec, LlamaSpec, RopeSpec
from tandem.compile.plan import Plan, find_target, make_plan
from tandem.compile.profile import PROFILES, find_profile
from tandem.compile.progress import Progress
from tandem.errors import LoweringError, UsageError
from tandem.gpu import Gpu
from tandem.kernels.cuda.build import FLAGS
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor import roles
from tandem.runtime.executor.cuda.shelf import require_all
from tests.artifacts.cuda_sample import A100, GPU
from tests.compile.conftest import Proving
from tests.compile.cuda.conftest import Compiler, See
from tests.tiny import make_checkpoint
from tests.tiny_drafter import make_drafter
from tests.tiny_hybrid import add_mtp

BF16 = find_profile("bf16")
ROPE = RopeSpec("default", 1e4)
LLAMA = LlamaSpec("llama", 48, 112, 3, 6, 2, 8, 333, 1e-6, 2048, False, False, False, False, ROPE)
FIELDS = {field.name: getattr(LLAMA, field.name) for field in fields(LLAMA)} | {"family": "qwen3_5"}
HYBRID = HybridSpec(**FIELDS, layer_types=(LINEAR_ATTENTION,) * 2 + (FULL_ATTENTION,), partial_rotary_factor=0.5,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
)  # fmt: skip


@pytest.mark.parametrize("device", ["cuda", "cuda-sm90"])
def test_the_first_gpu_in_sight_is_taken(see: See, device: str) -> None:
    see(GPU, A100)
    found = find_target(device, LLAMA, BF16)
    assert found == CudaTarget(GPU)
    assert (found.device, found.product, found.layout) == ("cuda-sm90", "nvidia-h200", rows)


@pytest.mark.parametrize(
    ("gpus", "device", "words"),
    [
        (
            (),
            "cuda",
            r"^--device cuda: no GPU is in sight here, .*; compile on a machine with an NVIDIA GPU",
        ),
        ((), "cuda-sm90", "no GPU is in sight here"),
        ((A100,), "cuda", r"NVIDIA A100 has compute capability 8\.0, this build knows 9\.0; use another GPU"),
        ((A100, GPU), "cuda-sm90", r"NVIDIA A100 has compute capability 8\.0"),
        ((GPU,), "cuda-sm80", "--device cuda-sm80: the GPU here is an NVIDIA H200; use --device cuda-sm90"),
        ((GPU,), "cuda-", "use --device cuda-sm90"),
    ],
)
def test_gpus_that_cannot_prove_a_bundle(see: See, gpus: tuple[Gpu, ...], device: str, words: str) -> None:
    see(*gpus)
    with pytest.raises(UsageError, match=words):
        find_target(device, LLAMA, BF16)


@pytest.mark.parametrize(
    ("gpus", "profile", "kind"),
    [
        ((GPU,), "bf16", CudaTarget),
        ((GPU, A100), "fp32", CudaTarget),
        ((GPU,), "int8", CpuTarget),
        ((A100,), "bf16", CpuTarget),
        ((), "bf16", CpuTarget),
    ],
)
def test_auto_is_a_gpu_that_has_kernels_or_the_cpu(see: See, gpus: tuple[Gpu, ...], profile: str, kind: type) -> None:
    see(*gpus)
    assert isinstance(find_target("auto", LLAMA, find_profile(profile)), kind)


@pytest.mark.parametrize("profile", ["int8", "int4"])
def test_low_bit_profiles_are_refused(profile: str) -> None:
    with pytest.raises(UsageError, match=r"int. has no CUDA kernels in this build: use --profile bf16 or fp32"):
        CudaTarget(GPU).require(LLAMA, PROFILES[profile])


def test_auto_is_the_gpu_for_hybrids_too(see: See) -> None:
    see(GPU)
    assert find_target("auto", HYBRID, BF16) == CudaTarget(GPU)
    for profile in (BF16, find_profile("fp32")):
        CudaTarget(GPU).require(HYBRID, profile)
    with pytest.raises(UsageError, match="int8 has no CUDA kernels"):
        CudaTarget(GPU).require(HYBRID, PROFILES["int8"])


@pytest.mark.parametrize(("profile", "item"), [("bf16", 2), ("fp32", 4)])
def test_capacities_of_a_hybrid_are_those_worked_by_hand(profile: str, item: int) -> None:
    """Two recurrent layers of 4 heads of 8 x 8 behind 2 x 16 + 32 channels; one attention layer of 2 kv heads of 8."""
    g = CudaTarget(GPU).geometry(HYBRID, find_profile(profile), 300)
    assert (g.page_bytes, g.num_layers, g.recurrent_layers) == (2 * 64 * 2 * 8 * item, 1, 2)
    assert g.state_bytes == 2 * (4 * 4 * 8 * 8 + item * 3 * 64)
    assert g.factor_bytes == 2 * 32 * (item * 64 + 4 * (2 * 8 + 4 * 8 + 4))
    assert g.fault() is None
    # Extends and chains are programs of their own.
    assert CudaTarget(GPU).num_programs(g) == 21 + 3 + 1 + 7


def test_a_slot_of_odd_tails_is_whole_floats() -> None:
    """3 x 17 inputs in bf16: the next slot's states would lie between two floats."""
    odd = replace(HYBRID, linear_num_key_heads=1, linear_num_value_heads=1, linear_value_head_dim=1)
    g = CudaTarget(GPU).geometry(odd, BF16, 300)
    assert g.state_bytes == 2 * (4 * 8 + 2 * 3 * 17 + 2) and g.fault() is None


def test_every_other_profile_is_served() -> None:
    for profile in PROFILES.values():
        if not profile.low_bit:
            CudaTarget(GPU).require(LLAMA, profile)


def test_a_host_is_any_machine_with_such_a_gpu() -> None:
    host = CudaTarget(replace(GPU, driver="13.2")).host()
    assert host.validity.cuda == CudaValidity(capability="9.0", driver="13.0")
    assert (host.validity.isa_level, host.validity.flags) == ("generic", ())
    assert host.price.gpu == CudaPriceFacts(product="nvidia-h200", multiprocessors=132, memory=140 << 30)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("target") / "a", "qwen3")))


def test_capacities_are_those_worked_by_hand(checkpoint: Checkpoint) -> None:
    """qwen3: 3 layers, 2 kv heads of 20; a page holds K and V of 64 tokens of each layer."""
    gpu, spec = CudaTarget(GPU), resolve(checkpoint.config)
    g = gpu.geometry(spec, BF16, 300)
    assert (g.context_length, g.vocab_size, g.page_tokens, g.max_outputs, g.max_lanes) == (300, 333, 64, 32, 8)
    assert g.kv_planes == ((2, 40), (2, 40)) and g.page_bytes == 3 * 2 * 64 * 2 * 40
    assert gpu.geometry(spec, find_profile("fp32"), 300).page_bytes == 2 * g.page_bytes
    assert [gpu.geometry(spec, BF16, n).max_rows for n in (64, 127, 128, 300, 2048, 131_072)] == [
        64, 64, 128, 256, 2048, 2048
    ]  # fmt: skip
    assert g.fault() is None and g.num_layers == 3
    assert gpu.num_programs(g) == 14 + 3 + 1 + 7
    assert gpu.num_programs(gpu.geometry(spec, BF16, 32_768)) == 6 * 14 + 6 + 1 + 7
    large = gpu.geometry(replace(spec, vocab_size=(1 << 23) + 1), BF16, 300)
    assert g.draws and not large.draws and gpu.num_programs(large) == 14 + 3 + 1  # ranks hold no more ids


@pytest.fixture
def plan(see: See, checkpoint: Checkpoint) -> Plan:
    see(GPU)
    return make_plan(checkpoint, "0" * 64, name="tiny", profile="bf16", device="cuda", context_length=256)


def test_a_build_is_a_sound_bundle(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, compiler: Compiler, tmp_path: Path
) -> None:
    manifest = build.build_bundle(plan, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    bundle = open_bundle(tmp_path / "b")
    bundle.verify()
    assert (manifest.device, bundle.on_gpu, bundle.geometry) == ("cuda-sm90", True, plan.geometry)
    keys = [(e.kind, e.context_class, e.rows) for e in manifest.entries]
    assert len(set(keys)) == len(keys) == 3 * 7 + 3 + 1 + 7
    files = {(e.kind, e.context_class, e.rows): e.program for e in manifest.entries}
    for rows_ in (1, 2, 4, 8, 16, 24, 32):
        assert files[Kind.EXTEND, 256, rows_] == files[Kind.VERIFY_CHAIN, 256, rows_]
        assert files[Kind.VERIFY_TREE, 256, rows_] != files[Kind.VERIFY_CHAIN, 256, rows_]
    assert len(set(files.values())) == plan.target.num_programs(plan.geometry) == plan.summary()["programs"]
    assert len(compiler.checked) == len(set(files.values()))
    assert len({repr(variant) for variant in compiler.compiled}) == len(compiler.compiled)
    assert sum(1 for f in manifest.files if f.path.endswith(".cubin")) == len(compiler.compiled)


def test_a_checkpoints_drafter_comes_along(see: See, quick: Proving, compiler: Compiler, tmp_path: Path) -> None:
    """With a program for every pass of it, as a server looks for them; and without, where it is not wanted."""
    made = make_checkpoint(tmp_path / "mtp", "qwen3_5")
    add_mtp(made)
    see(GPU)
    source, sizes = open_checkpoint(str(made)), dict[str, int]()
    for drafter in ("auto", "none"):
        plan = make_plan(
            source, "0" * 64, name="tiny", profile="bf16", device="cuda", context_length=256, drafter=drafter
        )
        manifest = build.build_bundle(plan, source, tmp_path / drafter, replace=False, progress=Progress(quiet=True))
        bundle = open_bundle(tmp_path / drafter)
        bundle.verify()
        there = {e.kind for e in manifest.entries}
        assert (manifest.drafter is not None) == (set(DRAFTER_KINDS) <= there) == (drafter == "auto")
        entries = [(entry.kind, entry.context_class, entry.rows, program) for entry, program in bundle.programs()]
        require_all(entries, bundle.geometry)
        for kind, context, rows_, program in entries:
            roles.check(kind, program, IoLayout(bundle.geometry), f"{kind} {context} {rows_}")
        sizes[drafter] = len(entries)
        assert ("mtp.fc_hidden" in bundle.weights.spans) == (drafter == "auto")
    assert sizes["auto"] == sizes["none"] + 7 + 3 + 7 + 3 + 1


def test_a_block_drafter_comes_along(see: See, quick: Proving, compiler: Compiler, tmp_path: Path) -> None:
    """As above: a program for every pass, as a server looks for them."""
    made = make_checkpoint(tmp_path / "llama", "llama")
    see(GPU)
    source, drafter = open_checkpoint(str(made)), DrafterCheckpoint(make_drafter(tmp_path / "drafter", made))
    plan = make_plan(source, "0" * 64, name="tiny", profile="bf16", device="cuda", context_length=256, drafter=drafter)
    manifest = build.build_bundle(plan, source, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    bundle = open_bundle(tmp_path / "b")
    bundle.verify()
    assert manifest.drafter is not None and manifest.drafter.kind == "dflash2" and bundle.geometry == plan.geometry
    entries = [(entry.kind, entry.context_class, entry.rows, program) for entry, program in bundle.programs()]
    require_all(entries, bundle.geometry)
    for kind, context, rows_, program in entries:
        roles.check(kind, program, IoLayout(bundle.geometry), f"{kind} {context} {rows_}")
    assert [rows_ for kind, _, rows_, _ in entries if kind is Kind.DRAFT] == [5, 10, 20, 40]
    assert "draft.layers.1.q" in bundle.weights.spans


def test_the_proving_process_is_told_every_entry(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, compiler: Compiler, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen: list[dict[str, Any]] = []

    def look(staged: StagedCuda, advance: object) -> dict[str, Any]:
        asked = staged.request()
        seen.append(asked)
        assert all(Path(entry["path"]).is_file() for entry in asked["programs"])
        assert {len(path.stem) for path in Path(asked["cubins"]).iterdir()} == {64}
        return quick.answer

    monkeypatch.setattr(build, "examine", look)
    manifest = build.build_bundle(plan, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    (asked,) = seen
    assert asked["device"] == "cuda" and asked["device_index"] == GPU.index
    told = [(e["kind"], e["context_class"], e["rows"], Path(e["path"]).name) for e in asked["programs"]]
    assert told == [(e.kind.value, e.context_class, e.rows, Path(e.program).name) for e in manifest.entries]


def test_two_builds_are_the_same_bytes(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, compiler: Compiler, tmp_path: Path
) -> None:
    made = [
        build.build_bundle(plan, checkpoint, tmp_path / name, replace=False, progress=Progress(quiet=True))
        for name in ("one", "two")
    ]
    assert made[0].content_id == made[1].content_id and made[0].files == made[1].files


def test_a_program_that_is_not_what_triton_launches_leaves_nothing(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, compiler: Compiler, tmp_path: Path
) -> None:
    compiler.fault = LoweringError("node 3 (kernel linear): grid is (2, 1, 1) in the program")
    with pytest.raises(LoweringError, match="node 3"):
        build.build_bundle(plan, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    assert list(tmp_path.iterdir()) == [] and quick.calls == 0


def test_flags_tools_and_sources_are_the_gpus(plan: Plan) -> None:
    resolved = plan.resolved
    assert resolved.flags == FLAGS and resolved.device == "cuda-sm90"
    assert {"triton", "ptxas_sha256", "compiler_sha256"} <= resolved.tools.keys()
    assert "kernels/cuda/linear.py" in resolved.sources and "runtime/executor/cuda/image.py" in resolved.sources
    assert not any(name.startswith(("kernels/cpu/", "compile/cpu/")) for name in resolved.sources)
    assert torch.__version__.split("+")[0] in resolved.tools["torch"]
