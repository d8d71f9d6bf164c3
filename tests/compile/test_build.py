"""The steps of a build: what comes out is a sound bundle, and a fault in any step leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tandem.artifacts import layout
from tandem.artifacts.quality import Quality
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.report import facts, lines
from tandem.artifacts.weights import MappedWeights
from tandem.compile import build
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cpu import target
from tandem.compile.examine import Staged
from tandem.compile.gate.limits import record
from tandem.compile.plan import Plan, make_plan
from tandem.compile.progress import Progress
from tandem.errors import CheckpointError, CompileError, LoweringError, ProofError, QualityError, UsageError
from tandem.keys import TARGET_KINDS, context_classes
from tests.bundles import CONTEXT_LENGTH, compiled
from tests.compile.conftest import Proving
from tests.compile.gate.sample import figures
from tests.kernels.harness import library
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("build") / "a", "qwen3")))


@pytest.fixture(scope="module")
def plan(checkpoint: Checkpoint) -> Plan:
    return make_plan(
        checkpoint, checkpoint.digest(), name="tiny-qwen3", profile="bf16", device="auto", context_length=CONTEXT_LENGTH
    )


def test_a_build_is_a_sound_bundle(plan: Plan, checkpoint: Checkpoint, quick: Proving, tmp_path: Path) -> None:
    manifest = build.build_bundle(plan, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    bundle = open_bundle(tmp_path / "b", verify="digests")
    bundle.verify()
    assert bundle.manifest.content_id == manifest.content_id
    assert bundle.geometry == plan.geometry and bundle.kinds == TARGET_KINDS
    assert manifest.build_id == plan.resolved.build_id()
    assert (manifest.name, manifest.family, manifest.profile) == ("tiny-qwen3", "qwen3", "bf16")
    assert (manifest.proof.cases, manifest.proof.differing, manifest.arithmetic) == (3, 0, "exact")
    assert manifest.tokenizer.stop_ids == checkpoint.stop_ids and manifest.tokenizer.chat_template
    assert bundle.library_path.read_bytes() == library().read_bytes()
    given, held = Tokenizer.from_str(checkpoint.tokenizer_json), Tokenizer.from_file(str(bundle.tokenizer_path))
    assert held.to_str() == given.to_str()
    assert bundle.prices["256"] == quick.answer["prices"]["256"] and "cores, least of" in bundle.prices["measured"]
    for kind in TARGET_KINDS:
        sizes = {region.name: region.nbytes for region in bundle.program(kind).regions}
        assert sizes["weights"] == len(bundle.weights.data) and sizes["kv"] == plan.geometry.page_bytes
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


@pytest.fixture(scope="module")
def low_bit(checkpoint: Checkpoint) -> Plan:
    digest = checkpoint.digest()
    return make_plan(checkpoint, digest, name="tiny", profile="int8", device="auto", context_length=CONTEXT_LENGTH)


def test_a_low_bit_build_carries_what_its_bits_cost(
    low_bit: Plan, checkpoint: Checkpoint, quick: Proving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def measure(_plan: Plan, _checkpoint: Checkpoint, staged: Staged, reference: Path, _: object) -> Quality:
        seen.extend([staged.weights, reference])
        assert MappedWeights(reference).dtype("layers.0.qkv") == "F32" and staged.programs.keys() == set(TARGET_KINDS)
        return record(figures(prose=2.04))

    monkeypatch.setattr(target, "measure_quality", measure)
    manifest = build.build_bundle(low_bit, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    assert manifest.quality == record(figures(prose=2.04)) and manifest.quality.held
    assert "loss on prose, 2048 tokens | 2.0400 | 2.0000" in (tmp_path / "b" / layout.REPORT).read_text()
    assert "prose: loss 2.0400, 2.0000 before" in "\n".join(lines(facts(open_bundle(tmp_path / "b"))))
    assert {path.parent for path in seen} != {tmp_path} and not any(path.exists() for path in seen)
    open_bundle(tmp_path / "b").verify()


def test_a_low_bit_build_that_costs_too_much_is_sealed_only_when_accepted(
    low_bit: Plan, checkpoint: Checkpoint, quick: Proving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "measure_quality", lambda *_: record(figures(code=1.2)))
    place, quiet = tmp_path / "b", Progress(quiet=True)
    with pytest.raises(QualityError, match=r"loss on code rises by 0\.2000 nats, at most 0\.05 wanted"):
        build.build_bundle(low_bit, checkpoint, place, replace=False, progress=quiet)
    assert list(tmp_path.iterdir()) == [] and quick.calls == 0
    build.build_bundle(low_bit, checkpoint, place, replace=False, accept_quality=True, progress=quiet)
    bundle = open_bundle(place)
    assert bundle.manifest.quality is not None and not bundle.manifest.quality.held
    assert "NOT within its limits (sealed under --accept-quality)" in "\n".join(lines(facts(bundle)))
    assert "NOT within its limits" in (place / layout.REPORT).read_text()


def test_two_builds_differ_in_measurements_only(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        build.build_bundle(plan, checkpoint, tmp_path / name, replace=False, progress=Progress(quiet=True))
    one, two = (open_bundle(tmp_path / name).manifest for name in ("one", "two"))
    assert one.build_id == two.build_id and one.content_id == two.content_id
    assert one.files == two.files


def failing(error: BaseException) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("stage_weights", CheckpointError("a tensor is missing")),
        ("stage_weights", KeyboardInterrupt()),
        ("build.library_build", CompileError("no compiler")),
        ("build.read_signatures", OSError(28, "No space left on device")),
        ("CpuComposer", LoweringError("no CPU lowering for operator aten.softmax")),
        ("examine", ProofError("1 of 3 comparisons differ")),
        ("examine", KeyboardInterrupt()),
        ("_draft", CompileError("not sealed")),
    ],
)
def test_a_fault_in_any_step_leaves_nothing(
    plan: Plan,
    checkpoint: Checkpoint,
    quick: Proving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: BaseException,
) -> None:
    place: object = build if hasattr(build, step) else target
    for part in step.split(".")[:-1]:
        place = getattr(place, part)
    monkeypatch.setattr(place, step.split(".")[-1], failing(error))
    with pytest.raises(type(error)):
        build.build_bundle(plan, checkpoint, tmp_path / "b", replace=False, progress=Progress(quiet=True))
    assert list(tmp_path.iterdir()) == []


def test_an_older_bundle_outlives_a_fault(
    plan: Plan, checkpoint: Checkpoint, quick: Proving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, quiet = tmp_path / "b", Progress(quiet=True)
    build.build_bundle(plan, checkpoint, target, replace=False, progress=quiet)
    before = (target / layout.MANIFEST).stat()
    with pytest.raises(UsageError, match="exists"):
        build.build_bundle(plan, checkpoint, target, replace=False, progress=quiet)
    monkeypatch.setattr(build, "examine", failing(ProofError("differs")))
    with pytest.raises(ProofError):
        build.build_bundle(plan, checkpoint, target, replace=True, progress=quiet)
    after = (target / layout.MANIFEST).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [target]


def test_the_real_command_proves_prices_and_records() -> None:
    bundle = open_bundle(compiled("qwen3", "bf16"))
    bundle.verify()
    assert bundle.library_path.read_bytes() == library().read_bytes(), "what other bundles here are given"
    proof, oracle = bundle.json(layout.PROOF), bundle.json(layout.ORACLE)
    assert proof["differing"] == 0 and proof["cases"] > 1000 and proof["first"] == []
    assert bundle.manifest.proof.cases == proof["cases"]
    assert oracle.keys() == {"full", "load"}
    names = [name for name, _ in oracle["full"]]
    assert names[0] == "prefill of 96: logits" and "chain of 16, row 15: logits" in names
    assert names[-1] == "one-token step: state" and all(len(digest) == 64 for _, digest in oracle["full"])
    classes = {name for name in bundle.prices if name.isdigit()}
    assert classes == {str(c) for c in context_classes(CONTEXT_LENGTH)}
    for name in classes:
        for kind in TARGET_KINDS:
            curve = [ms for _, ms in sorted(bundle.prices[name][kind].items(), key=lambda item: int(item[0]))]
            assert curve == sorted(curve) and curve[0] > 0


def test_the_same_checkpoint_elsewhere_has_the_same_build_id(plan: Plan) -> None:
    assert open_bundle(compiled("qwen3", "bf16")).manifest.build_id == plan.resolved.build_id()
