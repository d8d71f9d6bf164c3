"""Signatures: made by OpenSSF model-signing, checked by us, each of them against the other; whom they persuade."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import model_signing
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tandem.artifacts import authority, envelope, layout, signature
from tandem.artifacts.cli import cli
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.signing import sign
from tandem.command import run_command
from tandem.errors import BundleCorrupt, BundleError, BundleUntrusted, UsageError
from tests.artifacts import sample
from tests.artifacts.keys import write_pair


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_pair(tmp_path, "mine")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine without trusted keys; returns where they would lie."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "tandem" / "trusted-keys"


def check(bundle: Path, public: Path) -> None:
    """Ours, as `verify --key` does it after the digests."""
    signed = signature.read(bundle)
    assert signed is not None
    signature.check(signed, open_bundle(bundle).manifest, signature.load_key(public))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(cli, "tandem-bundle", [str(a) for a in arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_what_we_sign_model_signing_verifies_and_so_do_we(
    bundle: Path, tmp_path: Path, curve: type[ec.EllipticCurve]
) -> None:
    private, public = write_pair(tmp_path, "k", ec.generate_private_key(curve()))
    sign(bundle, private)
    model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public).verify(
        bundle, bundle / layout.SIGNATURE
    )
    check(bundle, public)
    open_bundle(bundle).verify()
    assert (bundle / layout.SIGNATURE).stat().st_mode & 0o777 == 0o444
    assert [path for path in bundle.parent.iterdir() if path.name.startswith(".")] == []


def test_what_model_signing_signs_with_its_own_defaults_we_verify(bundle: Path, pair: tuple[Path, Path]) -> None:
    private, public = pair
    made = bundle.parent / "outside.sig"
    model_signing.signing.Config().use_elliptic_key_signer(private_key=private).sign(bundle, made)
    made.rename(bundle / layout.SIGNATURE)
    check(bundle, public)


def test_a_second_signature_takes_the_place_of_the_first(bundle: Path, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    other, other_public = write_pair(tmp_path, "other")
    sign(bundle, pair[0])
    sign(bundle, other)
    check(bundle, other_public)
    with pytest.raises(BundleUntrusted, match=r"model\.sig: not made with the key in .*mine"):
        check(bundle, pair[1])


def test_damaged_bundles_are_not_signed(bundle: Path, pair: tuple[Path, Path]) -> None:
    path = bundle / layout.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleCorrupt, match=r"weights\.safetensors: sha256"):
        sign(bundle, pair[0])
    assert not (bundle / layout.SIGNATURE).exists()
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["mine.pem", "mine.pub.pem", "tiny"]


def test_a_signature_for_another_bundle_names_what_differs(
    bundle: Path, tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    sample.write(tmp_path / "two", note="another report")
    sign(tmp_path / "two", pair[0])
    (bundle / layout.SIGNATURE).write_bytes((tmp_path / "two" / layout.SIGNATURE).read_bytes())
    with pytest.raises(BundleUntrusted, match=r"manifest\.json is [0-9a-f]{64} where it was signed"):
        check(bundle, pair[1])


def test_every_byte_that_is_signed_and_of_the_signature_counts(bundle: Path, pair: tuple[Path, Path]) -> None:
    sign(bundle, pair[0])
    path = bundle / layout.SIGNATURE
    path.chmod(0o644)
    sound = json.loads(path.read_text())
    inner = sound["dsseEnvelope"]
    for field, data in (("payload", inner["payload"]), ("sig", inner["signatures"][0]["sig"])):
        raw = base64.b64decode(data)
        for place in range(0, len(raw), 1 if field == "sig" else 29):
            spoilt = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
            holder = inner if field == "payload" else inner["signatures"][0]
            holder[field] = base64.b64encode(spoilt).decode()
            path.write_text(json.dumps(sound))
            with pytest.raises(BundleUntrusted, match="not made with the key"):
                check(bundle, pair[1])
            holder[field] = data


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda s: "", "strict JSON"),
        (lambda s: "[]", "Expected `object`"),
        (lambda s: s[:-2], "strict JSON"),
        (lambda s: s.replace("bundle.v0.3+json", "bundle.v9+json"), "not a signature made with a key"),
        (lambda s: s.replace("vnd.in-toto+json", "vnd.other+json"), "not a signature made with a key"),
        (lambda s: s.replace('"publicKey"', '"certificate"'), "publicKey"),
        (lambda s: s.replace('"signatures":[', '"signatures":[{"sig":"aaaa","keyid":""},'), "not a signature made"),
        (lambda s: s.replace('"payload":"', '"payload":"%'), "not Base64"),
    ],
)
def test_a_file_that_is_no_signature_says_so(
    bundle: Path, pair: tuple[Path, Path], spoil: Callable[[str], str], fault: str
) -> None:
    sign(bundle, pair[0])
    path = bundle / layout.SIGNATURE
    text = path.read_text()
    path.unlink()
    path.write_text(spoil(text))
    with pytest.raises(BundleCorrupt, match=rf"^model\.sig: .*{fault}"):
        check(bundle, pair[1])
    open_bundle(bundle).verify()  # nobody asked whose it is


def test_a_statement_that_contradicts_itself_is_refused(pair: tuple[Path, Path]) -> None:
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "x", "digest": {"sha256": "00" * 32}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256"},
            "resources": [{"name": "a", "algorithm": "sha256", "digest": "11" * 32}],
        },
    }
    with pytest.raises(BundleCorrupt, match="contradicts itself"):
        envelope.Envelope("", json.dumps(statement).encode(), b"").digests()
    statement["predicateType"] = "https://example.org/other"
    with pytest.raises(BundleCorrupt, match="other things than files"):
        envelope.Envelope("", json.dumps(statement).encode(), b"").digests()


def test_links_and_folders_are_no_signature(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (bundle / layout.SIGNATURE).symlink_to(tmp_path / "real")
    with pytest.raises(BundleCorrupt, match=r"model\.sig: a link"):
        open_bundle(bundle)
    (bundle / layout.SIGNATURE).unlink()
    (bundle / layout.SIGNATURE).mkdir()
    with pytest.raises(BundleCorrupt, match=r"model\.sig/: a folder"):
        open_bundle(bundle)
    assert layout.path_fault(layout.SIGNATURE) is not None


def test_names_of_folders(bundle: Path, pair: tuple[Path, Path]) -> None:
    odd = bundle.rename(bundle.with_name("a b ü"))
    sign(odd, pair[0])
    check(odd, pair[1])
    worse = odd.rename(odd.with_name("\udcff"))
    check(worse, pair[1])  # the name it was signed under is of no matter
    with pytest.raises(UsageError, match="not UTF-8; rename it"):
        sign(worse, pair[0])


def test_keys_of_other_kinds_are_refused(bundle: Path, tmp_path: Path) -> None:
    private, public = write_pair(tmp_path, "ed", ed25519.Ed25519PrivateKey.generate())
    for path, use in ((private, lambda path: sign(bundle, path)), (public, signature.load_key)):
        with pytest.raises(UsageError, match="not a key on the curve"):
            use(path)
    for path in (private, bundle / layout.MANIFEST):
        with pytest.raises(UsageError, match="no public key in PEM form"):
            signature.load_key(path)
    with pytest.raises(UsageError, match="no private key in PEM form"):
        sign(bundle, public)


def test_a_key_with_a_password(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = write_pair(tmp_path, "locked", password=b"open sesame")
    code, _, err = run(capsys, "sign", bundle, "--key", private)
    assert code == 2 and "wants a password; set TANDEM_BUNDLE_SIGN_PASSWORD" in err
    code, _, err = run(capsys, "sign", bundle, "--key", private, "--password", "wrong")
    assert code == 2 and "password is wrong" in err and err.count("\n") == 1
    code, out, err = run(capsys, "sign", bundle, "--key", private, "--password", "open sesame")
    assert (code, err) == (0, "") and out.startswith(f"{bundle}/model.sig: signed with the key ")
    check(bundle, public)


def test_verify_with_a_key_asks_whose_not_where(
    bundle: Path, pair: tuple[Path, Path], tmp_path: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "verify", bundle, "--key", pair[1])
    assert code == 1 and "not signed; tandem-bundle sign" in err
    assert run(capsys, "sign", bundle, "--key", pair[0])[0] == 0
    code, out, err = run(capsys, "verify", bundle, "--key", pair[1])
    assert (code, err) == (0, "") and "as sealed" in out
    code, out, _ = run(capsys, "inspect", bundle, "--json")
    assert json.loads(out)["signed_by"] == signature.load_key(pair[1]).hint
    code, _, err = run(capsys, "verify", bundle, "--key", write_pair(tmp_path, "b")[1])
    assert code == 1 and err.startswith("error: model.sig: not made with the key in ") and err.count("\n") == 1
    data = bytearray((bundle / layout.WEIGHTS).read_bytes())
    data[-1] ^= 1
    (bundle / layout.WEIGHTS).write_bytes(data)
    code, _, err = run(capsys, "verify", bundle, "--key", pair[1])
    assert code == 1 and err.startswith("error: weights.safetensors: sha256 ")


def test_native_code_from_elsewhere_is_loaded_when_a_trusted_key_signed_it(
    bundle: Path, pair: tuple[Path, Path], elsewhere: Path
) -> None:
    with pytest.raises(BundleUntrusted, match=r"not built on this machine .*, and it is not signed \(model\.sig\)"):
        _ = open_bundle(bundle).library_path
    sign(bundle, pair[0])
    with pytest.raises(BundleUntrusted, match=rf"is not trusted: .*--trust-key, or put it into {elsewhere}"):
        _ = open_bundle(bundle).library_path
    assert open_bundle(bundle, trust_keys=[pair[1]]).library_path.is_file()
    elsewhere.mkdir(parents=True)
    (elsewhere / "friend.pem").write_bytes(pair[1].read_bytes())
    assert open_bundle(bundle).library_path.is_file()


def test_a_trusted_signature_of_another_bundle_loads_nothing(
    bundle: Path, pair: tuple[Path, Path], tmp_path: Path, elsewhere: Path
) -> None:
    sample.write(tmp_path / "two", note="another report")
    sign(tmp_path / "two", pair[0])
    (bundle / layout.SIGNATURE).write_bytes((tmp_path / "two" / layout.SIGNATURE).read_bytes())
    with pytest.raises(BundleUntrusted, match="belongs to another bundle"):
        _ = open_bundle(bundle, trust_keys=[pair[1]]).library_path


def test_a_false_claim_to_be_built_here_is_not_mended_by_a_signature(bundle: Path, pair: tuple[Path, Path]) -> None:
    sample.edit_manifest(bundle, lambda m: m["built_here"].update(token="00" * 32))
    sign(bundle, pair[0])
    with pytest.raises(BundleUntrusted, match="built_here"):
        _ = open_bundle(bundle, trust_keys=[pair[1]]).library_path


def test_keys_that_others_may_add_are_not_believed(bundle: Path, pair: tuple[Path, Path], elsewhere: Path) -> None:
    sign(bundle, pair[0])
    elsewhere.mkdir(parents=True)
    (elsewhere / "friend.pem").write_bytes(pair[1].read_bytes())
    for path, mode in ((elsewhere, 0o777), (elsewhere / "friend.pem", 0o666)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(BundleUntrusted, match="others may change who is trusted"):
            _ = open_bundle(bundle).library_path
        path.chmod(before)
    (elsewhere / "broken.pem").write_text("not a key")
    with pytest.raises(UsageError, match=r"broken\.pem: no public key"):
        _ = open_bundle(bundle).library_path


def test_where_trusted_keys_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert authority.keys_path() == tmp_path / ".config" / "tandem" / "trusted-keys"


def test_what_is_missing_is_named_with_its_extra(
    bundle: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    sign(bundle, pair[0])
    opened = open_bundle(bundle, trust_keys=[pair[1]])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cryptography.exceptions", None)
        with pytest.raises(UsageError, match=r"pip install 'tandem-llm\[verify\]'$"):
            _ = opened.library_path
        with pytest.raises(BundleError, match="not trusted"):
            _ = open_bundle(bundle).library_path  # no key, so nothing to check it with either
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(UsageError, match=r"^signing needs model_signing, .*pip install 'tandem-llm\[sign\]'$"):
        sign(bundle, pair[0])
