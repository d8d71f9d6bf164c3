"""No spoilt bundle passes: every file in every way, every field in every way, each refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.artifacts import digest, layout, trust
from tandem.artifacts.manifest import Manifest, encode
from tandem.artifacts.quality import Agreement, FreeGeneration, Quality, TextLoss
from tandem.artifacts.reader import open_bundle
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, BundleUntrusted
from tests import mutations
from tests.artifacts import sample

REFUSED = (BundleCorrupt, BundleMismatch, BundleUntrusted)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample with every optional part: a quality record, a drafter and a report."""
    target = tmp_path_factory.mktemp("sound") / "tiny"
    sample.write(target, quality=quality(), **sample.drafting())
    return target


def quality(**changes: Any) -> Quality:
    """What a gate could have found."""
    texts = (
        TextLoss(name="prose", tokens=512, loss=3.25, reference_loss=3.125),
        TextLoss(name="code", tokens=256, loss=1.5, reference_loss=1.5),
    )
    facts: dict[str, Any] = {
        "reference": "fp32",
        "texts": texts,
        "agreement": Agreement(positions=768, equal=700, confident=400, confident_equal=399),
        "generation": FreeGeneration(
            prompts=4, tokens=90, reference_tokens=95, stops=3, reference_stops=4,
            unique_4grams=0.96875, reference_unique_4grams=0.984375,
        ),
        "limits": {"loss": 0.25},
        "held": True,
    }  # fmt: skip
    return Quality(**(facts | changes))


def use(bundle: Path) -> None:
    """What serving does before native code is loaded: a normal open, and the library's path."""
    _ = open_bundle(bundle).library_path


def verify(bundle: Path) -> None:
    """What `tandem-bundle verify` does."""
    opened = open_bundle(bundle)
    opened.verify()
    trust.require(bundle, opened.manifest)


def refusal(bundle: Path, check: Any) -> str | None:
    """What the check says, of which the last words are what to do; None if it lets the bundle pass."""
    try:
        check(bundle)
    except REFUSED as error:
        assert "; " in str(error)
        return str(error)
    return None


def _cases(bundle: Path) -> Iterator[tuple[str, str, mutations.Spoil]]:
    for name in mutations.files(bundle):
        yield from ((name, what, spoil) for what, spoil in mutations.FILE_MUTATIONS.items())


def test_the_sound_one_passes(sound: Path) -> None:
    verify(sound)
    use(sound)
    assert len(mutations.files(sound)) == 14 and open_bundle(sound).manifest.quality == quality()


def test_every_file_spoilt_in_every_way_is_refused_by_its_name(sound: Path, tmp_path: Path) -> None:
    passed, count = [], 0
    for name, what, spoil in _cases(sound):
        # A normal open checks weights by size and header, since reading gigabytes would cost more than it finds.
        bundle = mutations.spoilt(sound, tmp_path / "b" / "tiny", name, spoil)
        checks = [verify] if name == layout.WEIGHTS and what.startswith(("flipped", "zeroed")) else [verify, use]
        for check in checks:
            said = refusal(bundle, check)
            count += 1
            if said is None or Path(name).name not in said:
                passed.append((name, what, check.__name__, said))
    assert passed == [] and count > 300


def test_whatever_appears_beside_a_file_is_refused_by_its_name(sound: Path, tmp_path: Path) -> None:
    passed = []
    for name in mutations.files(sound):
        for what, spoil in mutations.BESIDE.items():
            bundle = mutations.spoilt(sound, tmp_path / "b" / "tiny", name, spoil)
            added = {path.name for path in (bundle / name).parent.iterdir()}
            added -= {path.name for path in (sound / name).parent.iterdir()}
            for check in (verify, use):
                said = refusal(bundle, check)
                if said is None or added.pop() not in said:
                    passed.append((name, what, check.__name__, said))
                added = added or {said or ""}
    assert passed == []


def test_weights_flipped_under_a_normal_open_are_found_by_verify_alone(sound: Path, tmp_path: Path) -> None:
    flip = mutations.FILE_MUTATIONS["flipped at 1"]
    bundle = mutations.spoilt(sound, tmp_path / "b" / "tiny", layout.WEIGHTS, flip)
    assert refusal(bundle, use) is None
    assert refusal(bundle, verify) is not None


def test_every_field_changed_in_every_way_is_refused_by_name(sound: Path, bundle: Path) -> None:
    shutil.rmtree(bundle)
    sample.copy(sound, bundle)
    path = bundle / layout.MANIFEST
    fields = json.loads(path.read_text())
    passed, count = [], 0
    for what, place, spoilt in mutations.field_mutations(fields):
        path.write_text(json.dumps(spoilt, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
        said = refusal(bundle, use)
        count += 1
        # A file listed otherwise is named itself.
        if said is None or not (layout.MANIFEST in said or any(f["path"] in said for f in fields["files"])):
            passed.append((what, place, said))
    assert passed == [] and count > 2000


@pytest.mark.parametrize("name", sorted(json.loads(msgspec.json.encode(quality())).keys() | Manifest.__struct_fields__))
def test_a_field_that_is_missing_is_named(sound: Path, bundle: Path, name: str) -> None:
    fields = json.loads((sound / layout.MANIFEST).read_text())
    (fields["quality"] if name in fields["quality"] else fields).pop(name)
    (bundle / layout.MANIFEST).write_text(json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
    with pytest.raises(BundleError, match=rf"manifest.json: .*{name}"):
        open_bundle(bundle)


def test_whoever_seals_a_changed_manifest_anew_lacks_the_key(sound: Path, bundle: Path) -> None:
    """All digests are right again; only the machine's key can tell."""
    shutil.rmtree(bundle)
    sample.copy(sound, bundle)
    path = bundle / layout.MANIFEST
    fields = json.loads(path.read_text())
    sealed, passed = 0, []
    for what, place, spoilt in mutations.field_mutations(fields):
        if place[:1] in ((), ("content_id",), ("measured_id",), ("build_id",)):
            continue  # computed anew, they are what they were
        try:
            manifest = msgspec.convert(spoilt, Manifest).identified()
        except msgspec.ValidationError:
            continue
        sealed += 1
        path.write_bytes(encode(manifest))
        if refusal(bundle, use) is None:
            passed.append((what, place))
    assert passed == [] and sealed > 300


@pytest.mark.parametrize("name", [layout.PRICES, layout.REPORT, layout.TOKENIZER, layout.ORACLE])
def test_whoever_seals_a_changed_file_anew_lacks_the_key(sound: Path, bundle: Path, name: str) -> None:
    shutil.rmtree(bundle)
    sample.copy(sound, bundle)
    data = json.dumps({"1024": {"extend": {"1": 9.0}}}).encode()
    (bundle / name).write_bytes(data)
    before = open_bundle(sound).manifest
    files = tuple(
        msgspec.structs.replace(f, size=len(data), sha256=digest.sha256_bytes(data)) if f.path == name else f
        for f in before.files
    )
    after = msgspec.structs.replace(before, files=files).identified()
    (bundle / layout.MANIFEST).write_bytes(encode(after))
    assert (after.content_id == before.content_id) is layout.is_measured(name)
    assert (after.measured_id == before.measured_id) is not layout.is_measured(name)
    with pytest.raises(BundleUntrusted, match=r"built_here in manifest\.json names this machine's key, but not this"):
        _ = open_bundle(bundle).library_path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"texts": (TextLoss(name="code", tokens=1, loss=1.0, reference_loss=1.0),) * 2}, "a text comes twice"),
        ({"agreement": Agreement(positions=5, equal=6, confident=1, confident_equal=1)}, "more positions agree"),
        ({"agreement": Agreement(positions=5, equal=1, confident=3, confident_equal=2)}, "more positions agree"),
        ({"agreement": Agreement(positions=5, equal=1, confident=6, confident_equal=1)}, "more positions agree"),
        ({"generation": msgspec.structs.replace(quality().generation, stops=5)}, "more answers end"),
    ],
)
def test_figures_that_cannot_be_are_not_sealed(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=rf"manifest.json: {words}.* - at `\$.quality`"):
        sample.write(tmp_path / "tiny", quality=quality(**changes))


@pytest.mark.parametrize("field", ["device", "profile", "geometry", "entries"])
def test_a_configuration_of_another_bundle_is_refused(tmp_path: Path, field: str) -> None:
    geometry = msgspec.structs.replace(sample.draft().geometry, max_lanes=1)
    other = {"device": "cpu-x", "profile": {"name": "x"}, "geometry": geometry, "entries": ()}[field]
    facts = msgspec.structs.asdict(sample.draft())
    with pytest.raises(BundleCorrupt, match=rf"another {field} than the configuration's - at `\$.resolved.{field}`"):
        sample.write(tmp_path / "tiny", resolved=sample.resolved(facts, **{field: other}))
