"""Writes a bundle beside its place and puts it there in one step; an error leaves the place as it was.

Knows nothing of what the files hold.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import msgspec

from tandem.artifacts import digest, folder, layout, staging, trust
from tandem.artifacts.header import decode
from tandem.artifacts.manifest import Draft, FileRecord, Manifest, encode
from tandem.errors import UsageError


class BundleWriter:
    """Gathers the files of one bundle; `publish` ends it.

    with BundleWriter(target) as writer:
        writer.add(layout.PRICES, data)
        fill(writer.path(layout.WEIGHTS))
        manifest = writer.publish(draft)

    UsageError if `target` exists and may not be replaced. Leaving the block without `publish` removes everything.
    """

    def __init__(self, target: Path, *, replace: bool = False) -> None:
        self._stage = staging.Stage(target, staging.BUNDLE, replace=replace)

    @property
    def target(self) -> Path:
        return self._stage.target

    def __enter__(self) -> BundleWriter:
        trust.prepare()
        self._stage.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stage.__exit__(kind, error, at)

    @property
    def _folder(self) -> Path:
        assert self._stage.folder is not None, "outside the with block, or published"
        return self._stage.folder

    def path(self, name: str) -> Path:
        """Where to write the file `name` of the bundle, its folder made."""
        if fault := layout.path_fault(name):
            raise UsageError(f"{name!r} cannot be a file of a bundle: it {fault}")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def add(self, name: str, data: bytes) -> None:
        """Writes the file `name` whole. FileExistsError if it is there."""
        with open(self.path(name), "xb") as file:
            file.write(data)

    def add_kernel(self, data: bytes) -> str:
        """Writes a native library under its digest, which it returns."""
        sha256 = digest.sha256_bytes(data)
        self.add(layout.kernel_file(sha256), data)
        return sha256

    def add_cubin(self, data: bytes) -> str:
        """Writes a GPU's binary under its digest, which it returns; the same one may be added again."""
        sha256 = digest.sha256_bytes(data)
        if not self.path(layout.cubin_file(sha256)).exists():
            self.add(layout.cubin_file(sha256), data)
        return sha256

    def publish(self, draft: Draft, progress: digest.Progress | None = None) -> Manifest:
        """Digests, seals, syncs and renames; returns the manifest as written.

        BundleCorrupt if the draft and the files do not make a sound bundle. UsageError if the target has
        appeared meanwhile and may not be replaced.
        """
        manifest = _seal(draft, _files(self._folder, progress))
        data = encode(manifest)
        (self._folder / layout.MANIFEST).write_bytes(data)
        staging.settle(self._folder)
        # Nothing is published that would be refused.
        decode(data)
        folder.check_listing(self._folder, {file.path: file.size for file in manifest.files})
        self._stage.publish()
        return manifest


def _files(staged: Path, progress: digest.Progress | None) -> tuple[FileRecord, ...]:
    found = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if not path.is_dir()}
    return tuple(
        FileRecord(path=name, size=path.stat().st_size, sha256=digest.sha256_file(path, progress))
        for name, path in sorted(found.items())
    )


def _seal(draft: Draft, files: tuple[FileRecord, ...]) -> Manifest:
    digests = {file.path: file.sha256 for file in files}
    facts = {name: getattr(draft, name) for name in Draft.__struct_fields__}
    facts["entries"] = tuple(msgspec.structs.replace(e, sha256=digests.get(e.program, "")) for e in draft.entries)
    manifest = Manifest(
        **facts, format=layout.FORMAT, files=files, build_id="", content_id="", measured_id="", built_here=None
    ).identified()
    return msgspec.structs.replace(manifest, built_here=trust.seal(manifest.content_id, manifest.measured_id))
