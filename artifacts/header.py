"""Reads a manifest that anybody may have written: limits, format number, spelling, fields, digests.

Knows nothing of the folder around it.
"""

from __future__ import annotations

import msgspec

from tandem.artifacts import canonical, layout
from tandem.artifacts.manifest import FileRecord, Manifest, encode
from tandem.device import CUDA, cuda_device
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import DRAFTER_KINDS


def decode(data: bytes) -> Manifest:
    """The manifest spelt by `data`, fields and digests checked.

    BundleMismatch for another format number, BundleCorrupt that names the field for everything else.
    """
    if len(data) > layout.MAX_MANIFEST_BYTES:
        raise _corrupt(f"over {layout.MAX_MANIFEST_BYTES} bytes")
    value = canonical.decode(data, layout.MANIFEST)
    _check_format(value)
    try:
        manifest = msgspec.convert(value, Manifest)
    except msgspec.ValidationError as error:
        raise _corrupt(str(error)) from None
    if data != _spelling(manifest):
        raise _corrupt("spelt otherwise than Tandem writes it; it was changed by hand")
    _check(manifest)
    return manifest


def _spelling(manifest: Manifest) -> bytes | None:
    try:
        return encode(manifest)
    except ValueError:  # text that UTF-8 cannot hold
        return None


def _check_format(value: object) -> None:
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is not int:
        raise _corrupt("no format number - at `$.format`")
    if found != layout.FORMAT:
        newer = "update Tandem, or compile the model again with this version"
        older = "compile the model again with this version"
        advice = newer if found > layout.FORMAT else older
        raise BundleMismatch(f"{layout.MANIFEST}: format {layout.FORMAT} wanted, {found} found; {advice}")


def _check(manifest: Manifest) -> None:
    for i, file in enumerate(manifest.files):
        if fault := layout.path_fault(file.path):
            raise _corrupt(f"path {file.path!r} {fault} - at `$.files[{i}].path`")
        if file.path.startswith(layout.KERNELS):
            _check_kernel(file, manifest.device)
    paths = [f.path for f in manifest.files]
    if paths != sorted(set(paths)) or len(paths) > layout.MAX_FILES:
        raise _corrupt("paths twice, out of order or too many - at `$.files`")
    if absent := [path for path in layout.REQUIRED if path not in paths]:
        raise BundleCorrupt(f"{absent[0]}: required, but not listed in {layout.MANIFEST}; {layout.REMEDY}")
    _check_entries(manifest)
    _check_host(manifest)
    if fault := manifest.geometry.geometry().fault():
        raise _corrupt(f"{fault} - at `$.geometry`")
    _check_drafter(manifest)
    if any(i >= manifest.geometry.vocab_size for i in manifest.tokenizer.stop_ids):
        raise _corrupt("an id outside the vocabulary - at `$.tokenizer.stop_ids`")
    if manifest.proof.differing:
        raise _corrupt("exact arithmetic with differing cases - at `$.proof.differing`")
    if manifest.quality and (fault := manifest.quality.fault()):
        raise _corrupt(f"{fault} - at `$.quality`")
    _check_resolved(manifest)
    identified = manifest.identified()
    for field in ("build_id", "content_id", "measured_id"):
        if getattr(manifest, field) != (wanted := getattr(identified, field)):
            raise _corrupt(f"its fields give {field} {wanted}, not what it says - at `$.{field}`")


def _check_kernel(file: FileRecord, device: str) -> None:
    """Native code is named by its digest; only where there is a GPU are there binaries of one."""
    sha256, on_gpu = file.sha256, device.startswith(CUDA)
    if file.path not in (layout.kernel_file(sha256), layout.cubin_file(sha256)):
        raise BundleCorrupt(f"{file.path}: not named by its digest {sha256}; {layout.REMEDY}")
    if file.path == layout.cubin_file(sha256) and not on_gpu:
        raise BundleCorrupt(f"{file.path}: no code for {device}, which the bundle is for; {layout.REMEDY}")


def _check_host(manifest: Manifest) -> None:
    """A bundle says what it asks of a GPU exactly if it is for one."""
    host, device = manifest.host, manifest.device
    wanted = cuda_device(host.validity.cuda.capability) if host.validity.cuda else ""
    if wanted != (device if device.startswith(CUDA) else ""):
        raise _corrupt(f"the device is {device}, kernels are for {wanted or 'a CPU'} - at `$.host.validity.cuda`")
    if (host.price.gpu is None) is not (host.validity.cuda is None):
        raise _corrupt("prices of a GPU belong to kernels of one - at `$.host.price.gpu`")


def _check_resolved(manifest: Manifest) -> None:
    """What is said twice is said once the same: a build id stands for these very fields."""
    resolved = manifest.resolved
    kinds = tuple(dict.fromkeys(entry.kind for entry in manifest.entries))
    for field, said, meant in (
        ("device", manifest.device, resolved.device),
        ("profile", manifest.profile, resolved.profile.get("name")),
        ("geometry", manifest.geometry, resolved.geometry),
        ("entries", kinds, resolved.entries),
        ("drafter", manifest.drafter, resolved.drafter),
    ):
        if said != meant:
            raise _corrupt(f"another {field} than the configuration's - at `$.resolved.{field}`")


def _check_drafter(manifest: Manifest) -> None:
    """A drafter, what it takes and its entries are there together, and it is this model's."""
    drafter, held, kinds = manifest.drafter, manifest.geometry.drafter, {entry.kind for entry in manifest.entries}
    there = [drafter is not None, held is not None, *(kind in kinds for kind in DRAFTER_KINDS)]
    if any(there) and not all(there):
        raise _corrupt("a drafter, its geometry and its entries are not all there - at `$.drafter`")
    if drafter is None or held is None:
        return
    block = held.block.rows if held.block else None
    if fault := drafter.fault(manifest.resolved.checkpoint, manifest.geometry.vocab_size, block):
        raise _corrupt(f"{fault} - at `$.drafter`")


def _check_entries(manifest: Manifest) -> None:
    digests = {f.path: f.sha256 for f in manifest.files}
    keys = set()
    for i, entry in enumerate(manifest.entries):
        if digests.get(entry.program) != entry.sha256:
            raise _corrupt(f"{entry.program} is not the program listed - at `$.entries[{i}].sha256`")
        keys.add(manifest.key(entry))
    if len(keys) != len(manifest.entries):
        raise _corrupt("two entries with one key - at `$.entries`")


def _corrupt(fault: str) -> BundleCorrupt:
    return BundleCorrupt(f"{layout.MANIFEST}: {fault}; {layout.REMEDY}")
