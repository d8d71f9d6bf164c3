"""Two real builds of one checkpoint, in two folders and two surroundings: one content, and all of it protected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.artifacts import layout, trust
from tandem.artifacts.diff.verdict import compare
from tandem.artifacts.reader import Bundle, open_bundle
from tandem.errors import BundleCorrupt, BundleMismatch, BundleUntrusted
from tests import mutations
from tests.bundles import CONTEXT_LENGTH, compiled, state_home
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def first() -> Bundle:
    return open_bundle(compiled("qwen3", "bf16"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Built elsewhere, from the same tensors in two files, under another hash seed, locale, temporary folder, mask
    and number of threads."""
    place = tmp_path_factory.mktemp("another place")
    (place / "tmp").mkdir()
    make_checkpoint(place / "copy", "qwen3", shards=2)
    command = [str(Path(sys.executable).parent / "tandem-compile"), "copy", "-o", "out", "-q", "--name", "tiny-qwen3"]
    flags = ["--profile", "bf16", "--max-seq-len", str(CONTEXT_LENGTH)]
    surroundings = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "TMPDIR": str(place / "tmp")}
    environment = {**os.environ, **surroundings, "XDG_STATE_HOME": str(state_home())}
    done = subprocess.run(
        [*command, *flags], cwd=place, env=environment, capture_output=True, text=True, umask=0o077, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list((place / "tmp").iterdir()) == []
    return open_bundle(place / "out", verify="digests")


def test_two_builds_have_one_content_id_and_one_build_id(first: Bundle, second: Bundle) -> None:
    one, two = first.manifest, second.manifest
    apart = {a.path for a, b in zip(one.files, two.files, strict=True) if a != b}
    assert apart <= {layout.PRICES, layout.REPORT, layout.STAIRCASE}
    assert (one.content_id, one.build_id) == (two.content_id, two.build_id)
    found = compare(first, second)
    assert found.same_content and {change.topic for change in found.changes} <= {"prices", "host"}


def test_no_place_or_time_of_a_build_is_in_its_content(first: Bundle, second: Bundle) -> None:
    for bundle in (first, second):
        for name in mutations.files(bundle.path):
            data = (bundle.path / name).read_bytes()
            assert str(bundle.path.parent).encode() not in data, name
            assert layout.is_measured(name) or bundle.prices["measured"][:10].encode() not in data, name


@pytest.mark.parametrize("what", mutations.FILE_MUTATIONS)
def test_a_real_bundle_spoilt_in_any_file_is_refused_by_name(first: Bundle, tmp_path: Path, what: str) -> None:
    for name in mutations.files(first.path):
        bundle = mutations.spoilt(first.path, tmp_path / "b" / "tiny", name, mutations.FILE_MUTATIONS[what])
        with pytest.raises((BundleCorrupt, BundleMismatch, BundleUntrusted)) as caught:
            opened = open_bundle(bundle)
            opened.verify()
            trust.require(bundle, opened.manifest)
        assert Path(name).name in str(caught.value)


def test_the_manifest_stays_a_few_kilobytes(first: Bundle) -> None:
    """It is read whole before anything else; the digests of the sources are most of it."""
    fields = json.loads((first.path / layout.MANIFEST).read_text())
    assert (first.path / layout.MANIFEST).stat().st_size < 64 << 10
    assert len(fields["resolved"]["sources"]) > 50
