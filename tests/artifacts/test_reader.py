"""Opening: a sound bundle gives what was put in, and every change anywhere is refused by name."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.artifacts import layout, trust
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.writer import BundleWriter
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, BundleUntrusted
from tandem.keys import TARGET_KINDS, Kind
from tests.artifacts import sample


def verify(bundle: Path) -> None:
    """What `tandem-bundle verify` does."""
    opened = open_bundle(bundle)
    opened.verify()
    trust.require(opened.path, opened.manifest)


def test_a_sound_bundle_gives_what_was_put_in(sealed: Path) -> None:
    bundle = open_bundle(sealed)
    assert bundle.geometry == sample.GEOMETRY
    assert bundle.kinds == TARGET_KINDS
    assert bundle.program(Kind.COMMIT).kernels[0].symbol == "f"
    assert bundle.prices == sample.PRICES
    assert bundle.weights.shape("a") == (3, 5)
    assert bundle.tokenizer_path.read_bytes() == b'{"version": "1.0"}'
    assert bundle.library_path.parent == sealed / "kernels"
    entry = bundle.manifest.entries[0]
    assert bundle.manifest.key(entry).device == bundle.manifest.device
    done: list[int] = []
    bundle.verify(done.append)
    assert sum(done) == sum(file.size for file in bundle.manifest.files)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_every_changed_byte_is_refused_by_name(bundle: Path, data: st.DataObject) -> None:
    paths = sorted(path for path in bundle.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    sound = path.read_bytes()
    place = data.draw(st.integers(0, len(sound) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != sound[place]))
    path.write_bytes(sound[:place] + bytes([byte]) + sound[place + 1 :])
    try:
        with pytest.raises((BundleCorrupt, BundleMismatch, BundleUntrusted)) as caught:
            verify(bundle)
        named = path.name in str(caught.value) or path.name == layout.MANIFEST
        assert named, f"{path.name} was changed, but: {caught.value}"
    finally:
        path.write_bytes(sound)
    verify(bundle)


def test_a_field_too_many_or_missing_is_named(bundle: Path) -> None:
    sample.edit_manifest(bundle, lambda m: m["host"]["price"].update(colour="red"))
    with pytest.raises(BundleCorrupt, match=r"manifest.json: .*`colour` - at `\$.host.price`"):
        open_bundle(bundle)
    sample.edit_manifest(bundle, lambda m: (m["host"]["price"].pop("colour"), m["entries"][1].pop("rows")))
    with pytest.raises(BundleCorrupt, match=r"missing required field `rows` - at `\$.entries\[1\]`"):
        open_bundle(bundle)


@pytest.mark.parametrize(("number", "advice"), [(5, "update Tandem"), (3, "compile the model again")])
def test_another_format_says_wanted_found_and_what_to_do(bundle: Path, number: int, advice: str) -> None:
    sample.edit_manifest(bundle, lambda m: m.update(format=number, unknown_later=True))
    with pytest.raises(BundleMismatch, match=f"format 4 wanted, {number} found; {advice}"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../tiny/x", "a/../../x", "a//b", "./x", "a\\b", "x" * 201, "", "a\nb", "manifest.json"]
)
def test_paths_that_could_lead_out_are_refused(bundle: Path, path: str) -> None:
    sample.edit_manifest(bundle, lambda m: m["files"][-1].update(path=path))
    with pytest.raises(BundleCorrupt, match=r"at `\$.files\[\d+\].path`"):
        open_bundle(bundle)


def test_what_is_not_listed_is_refused(bundle: Path) -> None:
    (bundle / "report" / "extra.txt").write_text("")
    with pytest.raises(BundleCorrupt, match=r"report/extra.txt: a file that manifest.json does not list"):
        open_bundle(bundle)
    (bundle / "report" / "extra.txt").unlink()
    (bundle / "empty").mkdir()
    with pytest.raises(BundleCorrupt, match="empty/: a folder"):
        open_bundle(bundle)


def _replace_by_socket(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.WEIGHTS])
def test_a_socket_is_refused(bundle: Path, name: str) -> None:
    _replace_by_socket(bundle / name)
    with pytest.raises(BundleCorrupt, match=f"{name}: "):
        open_bundle(bundle)


def test_a_linked_folder_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "programs").rename(tmp_path / "programs")
    (bundle / "programs").symlink_to(tmp_path / "programs")
    with pytest.raises(BundleCorrupt, match="programs: a link"):
        open_bundle(bundle)


def test_weights_are_checked_by_size_at_open_and_whole_on_request(bundle: Path) -> None:
    path = bundle / layout.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    opened = open_bundle(bundle)
    with pytest.raises(BundleCorrupt, match=f"{layout.WEIGHTS}: sha256"):
        opened.verify()
    with pytest.raises(BundleCorrupt, match=f"{layout.WEIGHTS}: sha256"):
        open_bundle(bundle, verify="digests")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not strict JSON"),
        (b"{}", "no format number"),
        (b"[]", "no format number"),
        (b'{"format": true}', "no format number"),
        (b'{"format": 1, "format": 1}', "duplicate key 'format'"),
        (b'{"format": NaN}', "NaN is not a finite number"),
        (b'{"format": 1e999}', "1e999 is not a finite number"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not strict JSON"),
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "nested deeper than 32"),
        (b"[" * 33 + b"]" * 33, "nested deeper than 32"),
        (b'{"format": 1, "x": ' + b'{"a":' * 50 + b"1" + b"}" * 51, "nested deeper than 32"),
        (b" " * ((1 << 20) + 1), "over 1048576 bytes"),
    ],
)
def test_hostile_manifests_are_refused_before_anything_else(bundle: Path, content: bytes, words: str) -> None:
    (bundle / layout.MANIFEST).write_bytes(content)
    with pytest.raises(BundleCorrupt, match=f"manifest.json: .*{words}"):
        open_bundle(bundle)


def test_another_spelling_of_the_same_fields_is_refused(bundle: Path) -> None:
    path = bundle / layout.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(BundleCorrupt, match="spelt otherwise"):
        open_bundle(bundle)


def test_what_is_no_folder_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BundleError, match=r"model.gguf: a file, not a folder"):
        open_bundle(tmp_path / "model.gguf")
    with pytest.raises(BundleError, match="nothing there"):
        open_bundle(tmp_path / "absent")
    with pytest.raises(BundleCorrupt, match=r"manifest.json: missing"):
        open_bundle(tmp_path)


def test_a_program_that_needs_an_absent_kernel_is_named(tmp_path: Path) -> None:
    program = layout.program_file(Kind.EXTEND)
    with BundleWriter(tmp_path / "tiny") as writer:
        sample.fill(writer)
        next(writer.path("kernels/x").parent.iterdir()).unlink()
        writer.publish(sample.draft())
    with pytest.raises(BundleCorrupt, match=f"{program}: needs the kernel [0-9a-f]{{64}}"):
        open_bundle(tmp_path / "tiny").program(Kind.EXTEND)
    with pytest.raises(BundleMismatch, match="0 native libraries, 1 wanted"):
        _ = open_bundle(tmp_path / "tiny").library_path
