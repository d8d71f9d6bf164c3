"""Bundles for GPUs: cubins handed out only where they may run, entries that share programs, the rest refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.artifacts import digest, layout, reader
from tandem.artifacts.cli import cli
from tandem.artifacts.diff.verdict import compare
from tandem.artifacts.manifest import CudaValidity
from tandem.artifacts.program import Program, encode
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.writer import BundleWriter
from tandem.command import run_command
from tandem.errors import BundleCorrupt, BundleMismatch, BundleUntrusted
from tandem.gpu import Survey
from tandem.keys import Kind
from tests import mutations
from tests.artifacts import cuda_sample, sample

SHAS = [digest.sha256_bytes(data) for data in cuda_sample.CUBINS]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """One H200, whatever this machine has."""
    monkeypatch.setattr(reader, "survey", lambda: cuda_sample.HERE)


@pytest.fixture(scope="module")
def sound(state_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cuda") / "tiny"
    cuda_sample.write(target)
    return target


def use(bundle: Path) -> None:
    """What serving does before a GPU sees anything."""
    opened = open_bundle(bundle)
    for sha256 in {kernel.binary for _, program in opened.programs() for kernel in program.kernels}:
        opened.cubin(sha256)


def test_a_sound_bundle_gives_what_was_put_in(sound: Path) -> None:
    bundle = open_bundle(sound)
    bundle.verify()
    assert bundle.on_gpu and bundle.gpu == cuda_sample.GPU
    assert [bundle.cubin(sha) for sha in SHAS] == list(cuda_sample.CUBINS)
    library = f"{digest.sha256_bytes(cuda_sample.LIBRARY)}.so"
    names = sorted([library, *(f"{sha}.cubin" for sha in SHAS)])
    assert sorted(path.name for path in (sound / "kernels").iterdir()) == names
    assert bundle.library_path == sound / "kernels" / library
    assert bundle.program(Kind.COMMIT).launches["grid"].tolist() == [[1, 1, 1]] * 2


def test_entries_that_name_one_file_share_a_program(sound: Path) -> None:
    found = open_bundle(sound).programs()
    assert [entry for entry, _ in found] == list(open_bundle(sound).manifest.entries) and len(found) == 19
    by_key = {(e.kind, e.context_class, e.rows): program for e, program in found}
    for context in cuda_sample.CLASSES:
        for rows in cuda_sample.ROWS:
            extend = by_key[Kind.EXTEND, context, rows]
            assert extend is by_key[Kind.VERIFY_CHAIN, context, rows] is not by_key[Kind.VERIFY_TREE, context, rows]
            assert extend.launches["grid"][0].tolist() == [rows, 1, 1]
    assert len({id(program) for program in by_key.values()}) == 13


def test_cubins_spoilt_in_every_way_are_refused_by_name(sound: Path, tmp_path: Path) -> None:
    passed = []
    for name in (layout.cubin_file(SHAS[0]), layout.program_file("tree-2048-4")):
        for what, spoil in mutations.FILE_MUTATIONS.items():
            bundle = mutations.spoilt(sound, tmp_path / "b" / "tiny", name, spoil)
            try:
                use(bundle)
            except (BundleCorrupt, BundleMismatch) as error:
                if Path(name).name in str(error):
                    continue
            passed.append((name, what))
    assert passed == []


def test_every_byte_of_a_cubin_counts_even_after_opening(sound: Path, tmp_path: Path) -> None:
    bundle = sample.copy(sound, tmp_path / "tiny")
    opened, path = open_bundle(bundle), bundle / layout.cubin_file(SHAS[1])
    for place in range(len(cuda_sample.CUBINS[1])):
        data = bytearray(cuda_sample.CUBINS[1])
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(BundleCorrupt, match=rf"^kernels/{SHAS[1]}\.cubin: sha256 "):
            opened.cubin(SHAS[1])
        with pytest.raises(BundleCorrupt, match=rf"^kernels/{SHAS[1]}\.cubin: sha256 "):
            open_bundle(bundle)
    with pytest.raises(BundleCorrupt, match=rf"^kernels/{'0' * 64}\.cubin: not in the bundle"):
        opened.cubin("0" * 64)


def test_cubins_are_native_code(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(BundleUntrusted, match="not built on this machine"):
        open_bundle(sound).cubin(SHAS[0])
    assert open_bundle(sound, trust_native=True).cubin(SHAS[0]) == cuda_sample.CUBINS[0]


def test_native_code_is_answered_for_before_any_is_read(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bundle(sound).require_native()
    monkeypatch.setattr(reader, "survey", lambda: Survey((), "none"))
    with pytest.raises(BundleMismatch, match="none found"):
        open_bundle(sound).require_native()
    monkeypatch.setattr(reader, "survey", lambda: cuda_sample.HERE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(BundleUntrusted, match="not built on this machine"):
        open_bundle(sound).require_native()


def test_files_that_are_read_whole_have_a_limit(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(sound)
    monkeypatch.setattr(layout, "MAX_CUBIN_BYTES", len(cuda_sample.CUBINS[1]))
    bundle.cubin(SHAS[1])
    with pytest.raises(BundleCorrupt, match=rf"^kernels/{SHAS[0]}\.cubin: over {len(cuda_sample.CUBINS[1])} bytes"):
        bundle.cubin(SHAS[0])
    monkeypatch.setattr(layout, "MAX_PROGRAM_BYTES", (sound / layout.program_file("commit")).stat().st_size - 1)
    with pytest.raises(BundleCorrupt, match=r"^programs/commit\.tdp: over \d+ bytes"):
        bundle.program(Kind.COMMIT)


@pytest.mark.parametrize(
    ("survey", "words"),
    [
        (Survey((), "no NVIDIA driver"), "a GPU of compute capability 9.0 wanted, no NVIDIA driver found"),
        (Survey((), "none"), "a GPU of compute capability 9.0 wanted, none found"),
        (Survey((cuda_sample.A100,)), r"9.0 wanted, 8.0 \(nvidia-a100\) found"),
    ],
)
def test_no_cubin_leaves_for_another_gpu(
    sound: Path, monkeypatch: pytest.MonkeyPatch, survey: Survey, words: str
) -> None:
    monkeypatch.setattr(reader, "survey", lambda: survey)
    bundle = open_bundle(sound)
    assert bundle.gpu is None
    with pytest.raises(BundleMismatch, match=f"not for this machine: host.validity.cuda: .*{words}"):
        bundle.cubin(SHAS[0])


def test_a_bundle_for_a_cpu_asks_for_no_gpu(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(reader, "survey")
    bundle = open_bundle(sealed)
    assert bundle.fit().reasons == () and bundle.gpu is None and not bundle.on_gpu
    with pytest.raises(BundleCorrupt, match="cubin: not in the bundle"):
        bundle.cubin(SHAS[0])


def publish(target: Path, made: Any, *, library: bool, cubin: bool) -> None:
    with BundleWriter(target) as writer:
        sample.fill_data(writer)
        binaries = [add(b"x") for add, wanted in ((writer.add_kernel, library), (writer.add_cubin, cubin)) if wanted]
        for name in {entry.program for entry in made.entries}:
            writer.add(name, encode(cuda_sample.program((binaries[0],) * 2, 1)))
        writer.publish(made)


def test_a_bundle_for_a_cpu_holds_no_code_of_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(BundleCorrupt, match=rf"^kernels/.*\.cubin: no code for {sample.draft().device}"):
        publish(tmp_path / "both", sample.draft(), library=True, cubin=True)


def test_a_bundle_for_a_gpu_without_its_library_is_not_loaded(tmp_path: Path) -> None:
    publish(tmp_path / "bare", cuda_sample.draft(), library=False, cubin=True)
    bundle = open_bundle(tmp_path / "bare", trust_native=True)
    with pytest.raises(BundleMismatch, match="0 native libraries, 1 wanted"):
        _ = bundle.library_path


def test_programs_are_those_of_the_device(tmp_path: Path) -> None:
    publish(tmp_path / "cpu", sample.draft(), library=True, cubin=False)
    with pytest.raises(BundleCorrupt, match=f"programs/extend.tdp: not made for {sample.draft().device}"):
        open_bundle(tmp_path / "cpu").program(Kind.EXTEND)
    with pytest.raises(BundleCorrupt, match=r"programs/.*\.tdp: not made for"):
        open_bundle(tmp_path / "cpu").verify()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda-sm80"}, r"the device is cuda-sm80, kernels are for cuda-sm90 - at `\$.host.validity.cuda`"),
        ({"device": "cpu-x86-64-v3"}, "cubin: no code for cpu-x86-64-v3"),
        ({"host": sample.draft().host}, r"the device is cuda-sm90, kernels are for a CPU - at `\$.host.validity.cuda`"),
        (
            {"host": msgspec.structs.replace(cuda_sample.host(), price=sample.draft().host.price)},
            r"prices of a GPU belong to kernels of one - at `\$.host.price.gpu`",
        ),
        ({"entries": cuda_sample.entries() + cuda_sample.entries()[:1]}, r"two entries with one key - at `\$.entries`"),
    ],
)
def test_what_does_not_go_together_is_not_sealed(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=words):
        cuda_sample.write(tmp_path / "tiny", **changes)


@pytest.mark.parametrize("version", ["9", "9.0.1", "sm90", "", "9.0 ", "1234.0"])
def test_versions_are_two_numbers(version: str) -> None:
    for facts in ({"capability": version, "driver": "13.0"}, {"capability": "9.0", "driver": version}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(facts, CudaValidity)


def test_every_field_of_the_host_changed_in_every_way_is_refused(sound: Path, tmp_path: Path) -> None:
    bundle = sample.copy(sound, tmp_path / "tiny")
    path, passed, count = bundle / layout.MANIFEST, [], 0
    fields = json.loads(path.read_text())
    for what, place, spoilt in mutations.field_mutations({"host": fields["host"]}):
        if not place or "host" not in spoilt:
            continue
        path.write_text(json.dumps(fields | spoilt, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
        count += 1
        try:
            use(bundle)
        except (BundleCorrupt, BundleMismatch) as error:
            if layout.MANIFEST in str(error):
                continue
        passed.append((what, place))
    assert passed == [] and count > 150


def inspect(capsys: pytest.CaptureFixture[str], bundle: Path, *options: str) -> str:
    assert run_command(cli, "tandem-bundle", ["inspect", str(bundle), *options]) == 0
    return capsys.readouterr().out


def test_inspect_says_what_it_holds_and_for_which_gpu(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = inspect(capsys, sound)
    for line in (
        "device cuda-sm90",
        "  entries     19 in 13 programs: extend, verify-chain, verify-tree, commit\n",
        "              verify-tree in 2 context classes, 1,024 to 2,048: 1, 2, 4 rows\n",
        "  gpu         compute capability 9.0, a driver for CUDA 12.8 or later\n",
        "              priced on nvidia-h200, 132 multiprocessors, 143,360.0 MiB\n",
        "  here        optimal\n",
    ):
        assert line in out
    assert "commit at any" not in out and len(json.loads(inspect(capsys, sound, "--json"))["entries"]) == 19


def test_inspect_says_why_it_may_not_run_here(
    sound: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "survey", lambda: Survey((), "no NVIDIA driver"))
    out = inspect(capsys, sound)
    assert "  here        refused\n" in out
    assert "host.validity.cuda: a GPU of compute capability 9.0 wanted, no NVIDIA driver found\n" in out


def test_diff_sums_up_what_changed_in_many_entries(sound: Path, tmp_path: Path) -> None:
    host = cuda_sample.host(replace(cuda_sample.GPU, product="nvidia-h100"))
    cuda_sample.write(tmp_path / "other", lanes=2, cubins=(cuda_sample.CUBINS[0], b"another"), host=host)
    found = {c.topic: c.words for c in compare(open_bundle(sound), open_bundle(tmp_path / "other")).changes}
    assert found["programs"].startswith("19 entries: other arguments: commit, extend 1024 1 whole, ")
    assert found["kernels"] == f"binaries without {SHAS[1]}, with {digest.sha256_bytes(b'another')}"
    assert found["host"] == "price.gpu.product nvidia-h200 -> nvidia-h100"


def test_a_cubin_may_be_added_twice(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "tiny") as writer:
        assert writer.add_cubin(b"x") == writer.add_cubin(b"x") == digest.sha256_bytes(b"x")


def test_the_samples_program_is_sound() -> None:
    made: Program = cuda_sample.program((SHAS[0], SHAS[1]), 3)
    assert made.on_gpu and made.edges["type"].tolist() == [1]
