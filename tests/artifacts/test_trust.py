"""Native code is handed out only if it was built here, or on an explicit word."""

from __future__ import annotations

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem.artifacts import trust
from tandem.artifacts.reader import open_bundle
from tandem.errors import BundleCorrupt, BundleUntrusted
from tests.artifacts import sample


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tandem" / "machine.key"


def test_the_key_is_secret_and_the_token_is_an_hmac_of_the_content(elsewhere: Path) -> None:
    built = trust.seal("ab" * 32, "cd" * 32)
    key = elsewhere.read_bytes()
    assert elsewhere.stat().st_mode & 0o777 == 0o600 and len(key) == 32
    assert built.token == hmac.new(key, b"ab" * 32 + b":" + b"cd" * 32, "sha256").hexdigest()
    assert built.key == hashlib.sha256(key).hexdigest()[:16]
    assert trust.seal("ab" * 32, "cd" * 32) == built
    assert [path.name for path in elsewhere.parent.iterdir()] == ["machine.key"]


def test_without_a_home_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BundleUntrusted, match="set XDG_STATE_HOME"):
        trust.prepare()


def test_a_state_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(BundleUntrusted, match=r"file/tandem/machine\.key: .* set XDG_STATE_HOME"):
        trust.prepare()


def test_racing_compiles_agree_on_one_key(elsewhere: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = {built.key for built in pool.map(trust.seal, ["00" * 32] * 32, ["11" * 32] * 32)}
    assert len(keys) == 1


def test_a_bundle_from_elsewhere_opens_but_keeps_its_code(sealed: Path, elsewhere: Path) -> None:
    bundle = open_bundle(sealed)
    assert trust.origin(bundle.manifest) is trust.Origin.ELSEWHERE
    with pytest.raises(BundleUntrusted, match="--trust-native"):
        _ = bundle.library_path
    assert open_bundle(sealed, trust_native=True).library_path.is_file()
    assert not elsewhere.exists(), "opening makes no key"


def test_a_token_for_other_content_is_a_forgery(sealed: Path, bundle: Path) -> None:
    other = trust.seal("00" * 32, "00" * 32)
    sample.edit_manifest(bundle, lambda m: m["built_here"].update(token=other.token))
    opened = open_bundle(bundle)
    assert trust.origin(opened.manifest) is trust.Origin.FORGED
    with pytest.raises(BundleUntrusted, match="built_here"):
        _ = opened.library_path
    sample.edit_manifest(bundle, lambda m: m.update(built_here=None))
    with pytest.raises(BundleUntrusted, match="not built on this machine"):
        _ = open_bundle(bundle).library_path


def test_changed_code_is_refused_even_when_trusted(bundle: Path) -> None:
    library = next((bundle / "kernels").iterdir())
    library.write_bytes(library.read_bytes()[::-1])
    with pytest.raises(BundleCorrupt, match=library.name):
        open_bundle(bundle, trust_native=True)


@pytest.mark.parametrize("spoil", ["readable", "short"])
def test_a_key_that_others_may_know_is_not_believed(sealed: Path, elsewhere: Path, spoil: str) -> None:
    trust.seal("00" * 32, "00" * 32)
    if spoil == "readable":
        elsewhere.chmod(0o640)
    else:
        elsewhere.write_bytes(b"short")
    with pytest.raises(BundleUntrusted, match=r"machine.key: .*delete it"):
        trust.origin(open_bundle(sealed).manifest)
