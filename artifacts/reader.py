"""Opens a bundle: header first, then exactly the listed files, then digests. Nothing is executed here.

Knows nothing of models; what a bundle means is up to the runtime.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tandem.artifacts import canonical, digest, fit, folder, layout, trust
from tandem.artifacts.header import decode
from tandem.artifacts.io import Geometry
from tandem.artifacts.manifest import EntryRecord, FileRecord, Manifest
from tandem.artifacts.program import Program
from tandem.artifacts.program import decode as decode_program
from tandem.artifacts.weights import MappedWeights
from tandem.device import this_machine
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch
from tandem.gpu import Gpu, Survey, survey
from tandem.keys import Kind

Depth = Literal["sizes", "digests"]
"""`sizes`: every size, and every digest but the weights'. `digests`: all digests."""


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Nothing large is in memory; `weights` is a map."""

    path: Path
    manifest: Manifest
    trust_native: bool = False
    trust_keys: tuple[Path, ...] = ()

    @property
    def geometry(self) -> Geometry:
        return self.manifest.geometry.geometry()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds it holds programs for."""
        return tuple(dict.fromkeys(entry.kind for entry in self.manifest.entries))

    def program(self, kind: Kind) -> Program:
        """The program of the first entry of `kind`. BundleMismatch if there is none."""
        entry = next((e for e in self.manifest.entries if e.kind is kind), None)
        if entry is None:
            raise BundleMismatch(f"{self.path}: no entry of kind {kind}; compile the model again with this version")
        return self.read_program(entry)

    def programs(self) -> list[tuple[EntryRecord, Program]]:
        """Every entry with its program, in the manifest's order. A file that several entries name is read once."""
        read: dict[str, Program] = {}
        for entry in self.manifest.entries:
            if entry.program not in read:
                read[entry.program] = self.read_program(entry)
        return [(entry, read[entry.program]) for entry in self.manifest.entries]

    @cached_property
    def weights(self) -> MappedWeights:
        return MappedWeights(self.path / layout.WEIGHTS)

    @property
    def tokenizer_path(self) -> Path:
        return self.path / layout.TOKENIZER

    @cached_property
    def prices(self) -> dict[str, Any]:
        """`prices.json`: context class -> kind -> rows -> ms, with `step_ms` and `measured`."""
        return self.json(layout.PRICES)

    def json(self, name: str) -> dict[str, Any]:
        """One of the JSON files. BundleCorrupt unless it is a strict JSON object of a sane size."""
        path = self.path / name
        if path.stat().st_size > layout.MAX_JSON_BYTES:
            raise BundleCorrupt(f"{name}: over {layout.MAX_JSON_BYTES} bytes; {layout.REMEDY}")
        value = canonical.decode(path.read_bytes(), name)
        if not isinstance(value, dict):
            raise BundleCorrupt(f"{name}: no JSON object; {layout.REMEDY}")
        return value

    @property
    def on_gpu(self) -> bool:
        """Whether it is for NVIDIA GPUs: it has cubins then, and a library that brings weights over."""
        return self.manifest.host.validity.cuda is not None

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU of this machine that a bundle for GPUs runs on, None where there is none or it wants none."""
        cuda = self.manifest.host.validity.cuda
        return fit.choose(cuda, self._survey.gpus) if cuda else None

    @cached_property
    def _survey(self) -> Survey:
        return survey() if self.on_gpu else Survey((), "none")

    def fit(self) -> fit.Fit:
        """How well this machine suits the bundle. GPUs are looked for only where it is for one."""
        return fit.grade(self.manifest.host, this_machine(), self._survey.gpus, self._survey.instead)

    @cached_property
    def library_path(self) -> Path:
        """The native library: with `cubin` the one door to code that is not ours.

        BundleMismatch for a machine it was not built for, BundleUntrusted for code from elsewhere.
        """
        names = [file.path for file in self.manifest.files if file.path == layout.kernel_file(file.sha256)]
        if len(names) != 1:
            raise BundleMismatch(f"{self.path}: {len(names)} native libraries, 1 wanted; compile the model again")
        return self._native / names[0]

    def cubin(self, sha256: str) -> bytes:
        """The GPU's binary with this digest; the same rules as for `library_path`.

        BundleCorrupt, which names the file, if it is not in the bundle or has another digest.
        """
        name = layout.cubin_file(sha256)
        if all(file.path != name for file in self.manifest.files):
            raise BundleCorrupt(f"{name}: not in the bundle; compile the model again")
        data = folder.read(self._native, name, layout.MAX_CUBIN_BYTES)
        if (found := digest.sha256_bytes(data)) != sha256:
            raise _changed(name, sha256, found)
        return data

    def require_native(self) -> None:
        """Raises what keeps this bundle's native code from being loaded here, before any of it is read.

        BundleMismatch for a machine that does not suit, BundleUntrusted for code from elsewhere.
        """
        _ = self._native

    @cached_property
    def _native(self) -> Path:
        """The bundle's folder, once it is known that native code in it may be loaded here."""
        self.fit().require()
        trust.require(self.path, self.manifest, trust_native=self.trust_native, trust_keys=self.trust_keys)
        return self.path

    def verify(self, progress: digest.Progress | None = None) -> None:
        """Everything `open_bundle` checks, every digest, the weights' header, each program and JSON file.

        BundleCorrupt, which names the file, for any byte that is not as it was sealed.
        """
        check(self.path, read_manifest(self.path), "digests", progress)
        _ = self.weights
        self.programs()
        for name in (layout.PRICES, layout.PROOF, layout.ORACLE):
            self.json(name)

    def read_program(self, entry: EntryRecord) -> Program:
        """The program of one of the manifest's entries. BundleCorrupt, which names the file, if it does not hold."""
        data = folder.read(self.path, entry.program, layout.MAX_PROGRAM_BYTES)
        program = decode_program(data, entry.program)
        held = {file.sha256 for file in self.manifest.files if file.path.startswith(layout.KERNELS)}
        if absent := {kernel.binary for kernel in program.kernels} - held:
            needs = f"needs the kernel {min(absent)}, which the bundle does not hold"
            raise BundleCorrupt(f"{entry.program}: {needs}; {layout.REMEDY}")
        if len(program.launches) and program.on_gpu is not self.on_gpu:
            raise BundleCorrupt(f"{entry.program}: not made for {self.manifest.device}; compile the model again")
        return program


def open_bundle(
    path: str | os.PathLike[str],
    *,
    verify: Depth = "sizes",
    trust_native: bool = False,
    trust_keys: Sequence[Path] = (),
) -> Bundle:
    """Opens the bundle in the folder `path`, or says in one line why not.

    `trust_native` lets `library_path` hand out code built elsewhere, `trust_keys` (public keys, PEM files) code of
    bundles they signed. Raises BundleError (nothing there),
    BundleCorrupt (damaged) or BundleMismatch (another format).
    """
    place = Path(path)
    manifest = read_manifest(place)
    check(place, manifest, verify)
    return Bundle(place, manifest, trust_native, tuple(trust_keys))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the bundle at `path`, checked in itself; no other file is read."""
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "nothing there"
        raise BundleError(f"{path}: {what}; a bundle is the folder that tandem-compile wrote")
    return decode(folder.read(path, layout.MANIFEST, layout.MAX_MANIFEST_BYTES))


def check(path: Path, manifest: Manifest, depth: Depth, progress: digest.Progress | None = None) -> None:
    """Holds the folder against its manifest. BundleCorrupt that names the file."""
    folder.check_listing(path, {file.path: file.size for file in manifest.files})
    for file in manifest.files:
        if depth == "digests" or file.path != layout.WEIGHTS:
            _check_digest(path, file, progress)


def _check_digest(path: Path, file: FileRecord, progress: digest.Progress | None) -> None:
    found = digest.sha256_file(path / file.path, progress)
    if found != file.sha256:
        raise _changed(file.path, file.sha256, found)


def _changed(name: str, wanted: str, found: str) -> BundleCorrupt:
    return BundleCorrupt(f"{name}: sha256 {wanted} wanted, {found} found; copy or compile it again")
