"""Bundles for GPUs that lie, sealed by the real writer and opened as a server does: one line before any kernel runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.artifacts import layout, reader
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.manifest import EntryRecord
from tandem.artifacts.program import CONSTANT, EDGE, Program, Region, encode
from tandem.artifacts.writer import BundleWriter
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, TandemError
from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime import gpu as door
from tandem.runtime.loading import load
from tests.artifacts import cuda_sample, sample
from tests.copier import copier
from tests.kernels.harness import library as kernels
from tests.runtime.executor.cuda.echo import Gpu
from tests.runtime.executor.cuda.sample import CUBINS, FIRST, GEOMETRY, IO, SCRATCH, program
from tests.service import byte_tokenizer

ROWS = {Kind.EXTEND: 128, Kind.VERIFY_CHAIN: 32, Kind.VERIFY_TREE: 32, Kind.COMMIT: 32}
Change = Callable[[Program], Program]


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    monkeypatch.setattr(door, "Driver", lambda: Driver(made))
    monkeypatch.setattr(reader, "survey", lambda: cuda_sample.HERE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield made
    assert (made.faults, made.left()) == ([], {})


def entry(kind: Kind, rows: int, context: int = 0, name: str = "") -> EntryRecord:
    file = layout.program_file(name or kind.value)
    return EntryRecord(kind=kind, context_class=context, rows=rows, part="whole", program=file, sha256="")


def write(
    target: Path,
    change: Change = lambda made: made,
    *,
    geometry: Geometry = GEOMETRY,
    cubins: tuple[bytes, ...] = (),
    library: bytes | None = None,
    files: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A bundle of one program for every kind, with `change` made to each; `cubins` lie beside those they need."""
    told: dict[str, Any] = {"entries": tuple(entry(kind, rows) for kind, rows in ROWS.items())} | changes
    made = cuda_sample.draft(geometry=GeometryRecord.of(geometry), **told)
    with BundleWriter(target) as writer:
        weights = {"a": np.zeros(25_000, np.float32)}
        sample.fill_data(writer, weights=weights, tokenizer=json.loads(byte_tokenizer().to_str()), **(files or {}))
        for cubin in (*CUBINS.values(), *cubins):
            writer.add_cubin(cubin)
        writer.add_kernel(copier().read_bytes() if library is None else library)
        for name, kind in {each.program: each.kind for each in told["entries"]}.items():
            writer.add(name, encode(change(program(0, kind=kind))))
        writer.publish(made)
    return target


def refused(gpu: Gpu, bundle: Path, error: type[TandemError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        load(bundle)
    assert len(str(caught.value).splitlines()) == 1
    assert gpu.counts["cuGraphLaunch"] == 0


def test_a_sound_one_is_served(tmp_path: Path) -> None:
    load(write(tmp_path / "b", cubins=(b"never asked for",))).worker.stop()


def sized(name: str, nbytes: int) -> Change:
    def change(made: Program) -> Program:
        return replace(made, regions=tuple(Region(r.name, nbytes) if r.name == name else r for r in made.regions))

    return change


def argued(row: int, **fields: int) -> Change:
    def change(made: Program) -> Program:
        params = made.params.copy()
        for name, value in fields.items():
            params[name][row] = value
        return replace(made, params=params)

    return change


def gridded(*grid: int) -> Change:
    def change(made: Program) -> Program:
        launches = made.launches.copy()
        launches["grid"][1] = grid
        return replace(made, launches=launches)

    return change


def joined(*pairs: tuple[int, int]) -> Change:
    return lambda made: replace(made, edges=np.array([(*pair, 1, 0, 1, (0,) * 5) for pair in pairs], EDGE))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (sized("scratch", 1 << 62), BundleMismatch, r"GiB of GPU memory are needed \(.*scratch 4294967296.00 GiB"),
        (sized("weights", 1 << 40), BundleCorrupt, r"wants 1099511627776 bytes of weights, not 100"),
        (sized("kv", GEOMETRY.page_bytes + 64), BundleCorrupt, "bytes of kv"),
        (sized("io", 1 << 20), BundleCorrupt, "bytes of io"),
        (gridded(1 << 31, 1, 1), BundleCorrupt, r"launch 1 has a grid of \[2147483648 +1 +1\]"),
        (gridded(1, 65536, 1), BundleCorrupt, "launch 1 has a grid"),
        (gridded(1, 0, 1), BundleCorrupt, "launch 1 has a grid"),
        (argued(2, extent=(1 << 64) - 1), BundleCorrupt, r"argument 2 of launch 0 \(first\) is byte 0 of scratch"),
        (argued(2, value=4032, extent=128), BundleCorrupt, "byte 4032 of scratch, which has 4096: 128 bytes"),
        (argued(2, value=1 << 63, extent=1), BundleCorrupt, "argument 2 of launch 0"),
        (argued(2, region=7), BundleCorrupt, "region 7"),
        (argued(3, value=1 << 32), BundleCorrupt, r"the constant 4294967296, which 4 bytes must hold"),
        (argued(0, region=CONSTANT), BundleCorrupt, "is the constant 0, .* with an extent of 64"),
        (joined(), BundleCorrupt, "launch 1 does not wait for launch 0"),
        (joined((0, 1), (0, 2)), BundleCorrupt, "launch 2 does not wait for launch 1"),
        (joined((0, 1), (2, 1)), BundleCorrupt, "edge 1 leads from launch 2 to 1"),
        (joined((0, 1), (0, 1)), BundleCorrupt, "edge 1 leads from launch 0 to 1"),
        (lambda made: replace(made, kernels=(replace(made.kernels[0], binary="ab" * 32), *made.kernels[1:])),
         BundleCorrupt, rf"programs/extend.tdp: needs the kernel {'ab' * 32}, which the bundle does not hold"),
        (lambda made: replace(made, kernels=(replace(made.kernels[0], symbol="first\0"), *made.kernels[1:])),
         BundleCorrupt, r"kernel 'first.x00' has no binary"),
    ],
)  # fmt: skip
def test_programs_that_lie(gpu: Gpu, tmp_path: Path, change: Change, error: type[TandemError], words: str) -> None:
    refused(gpu, write(tmp_path / "b", change), error, words)
    assert gpu.counts["cuMemAlloc_v2"] == 0


def test_what_is_as_large_as_may_be_is_no_fault(tmp_path: Path) -> None:
    """The end of scratch to its last byte, io from its first to its last."""
    assert program(0).params["region"].tolist()[:3:2] == [IO, SCRATCH]
    load(write(tmp_path / "b", argued(2, value=4032, extent=64))).worker.stop()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((entry(Kind.COMMIT, 32),), "no extend entry takes 128 rows"),
        (tuple(entry(kind, rows) for kind, rows in ROWS.items() if kind is not Kind.EXTEND), "no extend entry"),
        (tuple(entry(kind, 16) for kind in TARGET_KINDS), "no extend entry takes 128 rows"),
        (tuple(entry(kind, rows, 2048) for kind, rows in ROWS.items()), "at 3000 tokens, the longest ends at 2048"),
    ],
)
def test_entries_that_leave_out_a_pass(gpu: Gpu, tmp_path: Path, entries: tuple[EntryRecord, ...], words: str) -> None:
    refused(gpu, write(tmp_path / "b", entries=entries), BundleMismatch, words)
    assert gpu.calls == []


def test_a_key_that_comes_twice_is_not_even_written(tmp_path: Path) -> None:
    with pytest.raises(BundleCorrupt, match="two entries with one key"):
        write(tmp_path / "b", entries=(entry(Kind.EXTEND, 128), entry(Kind.EXTEND, 128, name="two")))


@pytest.mark.parametrize("library", [b"", b"\x7fELF", CUBINS[FIRST]])
def test_what_is_no_library_brings_no_weights(gpu: Gpu, tmp_path: Path, library: bytes) -> None:
    refused(gpu, write(tmp_path / "b", library=library), BundleCorrupt, r"\.so: brings no weights to a GPU")


def test_another_library_brings_no_weights(gpu: Gpu, tmp_path: Path) -> None:
    another = kernels().read_bytes()
    refused(
        gpu, write(tmp_path / "b", library=another), BundleCorrupt, r"\.so: brings no weights to a GPU \(.*tdm_copy"
    )


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"max_rows": 256}, BundleCorrupt, "bytes of io"),
        ({"vocab_size": 24}, BundleCorrupt, "bytes of io"),
        ({"max_lanes": 100}, BundleCorrupt, "bytes of io"),
        ({"page_bytes": GEOMETRY.page_bytes // 2}, BundleCorrupt, "bytes of kv"),
        ({"context_length": 1 << 20}, BundleMismatch, "no extend entry|GiB of GPU memory are needed|bytes of io"),
    ],
)
def test_a_geometry_that_is_not_the_programs(
    gpu: Gpu, tmp_path: Path, fields: dict[str, int], error: type[TandemError], words: str
) -> None:
    entries = tuple(entry(kind, 0) for kind in TARGET_KINDS)
    with pytest.raises((error, BundleCorrupt), match=words):
        load(write(tmp_path / "b", geometry=replace(GEOMETRY, **fields), entries=entries))
    assert gpu.counts["cuGraphLaunch"] == gpu.counts["cuMemAlloc_v2"] == 0


@pytest.mark.parametrize(
    "fields",
    [{"max_rows": 2**31 - 1}, {"vocab_size": 2**31 - 1}, {"max_lanes": 2**31 - 1}],
    ids=lambda f: next(iter(f)),
)
def test_a_geometry_as_large_as_numbers_go(gpu: Gpu, tmp_path: Path, fields: dict[str, int]) -> None:
    geometry = replace(GEOMETRY, **fields)
    entries = tuple(entry(kind, 0) for kind in TARGET_KINDS)
    bundle = write(tmp_path / "b", sized("io", IoLayout(geometry).nbytes), geometry=geometry, entries=entries)
    refused(gpu, bundle, BundleMismatch, r"GiB of GPU memory are needed \(.*io \d+\.\d\d GiB")
    assert gpu.counts["cuMemAlloc_v2"] == 0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"prices": {"1024": {"extend": {"1": "fast"}}}}, "prices: '1024.extend.1' is 'fast', not a time"),
        ({"prices": {"1024": 3}}, "prices: '1024' is 3, not an object"),
        ({"prices": {"step_ms": None}}, "prices: 'step_ms' is None"),
        ({"oracle": {"load": [["x"]]}}, "oracle.json: "),
        ({"oracle": []}, "oracle.json: no JSON object"),
    ],
)
def test_files_of_another_shape(gpu: Gpu, tmp_path: Path, files: dict[str, Any], words: str) -> None:
    refused(gpu, write(tmp_path / "b", files=files), BundleCorrupt, words)


def test_thousands_of_entries(tmp_path: Path) -> None:
    """A manifest's size bounds how many there are."""
    many = tuple(entry(Kind.EXTEND, rows) for rows in range(1, 8001))
    with pytest.raises(BundleCorrupt, match=r"manifest.json: over 1048576 bytes"):
        write(tmp_path / "b", entries=many)
