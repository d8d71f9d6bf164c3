"""A bundle with a drafter that is a model: all of it is stated, none of it without the rest, and only of its model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.artifacts import layout, report
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import ALIGNMENT, IoLayout
from tandem.artifacts.reader import open_bundle
from tandem.errors import BundleCorrupt
from tandem.keys import DRAFTER_KINDS, TARGET_KINDS, Kind
from tests.artifacts import sample

GEOMETRY = replace(sample.GEOMETRY, drafter=sample.HELD)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("drafter") / "tiny"
    sample.write(target, **sample.drafting())
    return target


def test_what_was_stated_is_read_back(sound: Path) -> None:
    bundle = open_bundle(sound)
    assert bundle.manifest.drafter == bundle.manifest.resolved.drafter == sample.DRAFTER
    assert bundle.geometry == GEOMETRY and bundle.kinds == bundle.geometry.kinds == (*TARGET_KINDS, *DRAFTER_KINDS)
    assert bundle.program(Kind.SYNC).kernels[0].symbol == "f"
    bundle.verify()


def test_a_bundle_without_one_is_spelt_as_ever(tmp_path: Path) -> None:
    sample.write(tmp_path / "tiny")
    text = (tmp_path / "tiny" / layout.MANIFEST).read_text()
    assert "drafter" not in text and json.loads(text)["format"] == 4
    assert open_bundle(tmp_path / "tiny").geometry.kinds == TARGET_KINDS


def test_null_is_no_second_spelling(tmp_path: Path) -> None:
    sample.write(tmp_path / "tiny")
    path = tmp_path / "tiny" / layout.MANIFEST
    path.chmod(0o644)
    fields = json.loads(path.read_text()) | {"drafter": None}
    path.write_text(json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
    with pytest.raises(BundleCorrupt, match="spelt otherwise than Tandem writes it"):
        open_bundle(tmp_path / "tiny")


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": None},
        {"geometry": GeometryRecord.of(sample.GEOMETRY)},
        {"entries": sample.entries(*TARGET_KINDS, Kind.DRAFT)},
        {"entries": sample.entries(*TARGET_KINDS, Kind.SYNC)},
        {"entries": sample.entries(*TARGET_KINDS)},
        {
            "entries": sample.entries(*TARGET_KINDS, *DRAFTER_KINDS),
            "drafter": None,
            "geometry": GeometryRecord.of(sample.GEOMETRY),
        },
    ],
)
def test_none_of_it_is_there_without_the_rest(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BundleCorrupt, match=r"its geometry and its entries are not all there - at `\$.drafter`"):
        sample.write(tmp_path / "tiny", **sample.drafting(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "cd" * 32}, "made for checkpoint cdcdcdcdcdcd, the model is of abababababab"),
        ({"vocab_size": 99}, "guesses 99 ids, the model has 100"),
        ({"tap_layers": (1,)}, "mtp is a part of its model's checkpoint and reads its final norm, no layers"),
        ({"weights": "cd" * 32}, "mtp is a part of its model's checkpoint"),
    ],
)
def test_a_drafter_of_another_model_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=rf"manifest.json: {words}.* - at `\$.drafter`; copy or compile"):
        sample.write(tmp_path / "tiny", **sample.drafting(drafter=msgspec.structs.replace(sample.DRAFTER, **changes)))


def test_another_drafter_than_the_configurations_is_refused(tmp_path: Path) -> None:
    facts = msgspec.structs.asdict(sample.draft(**sample.drafting()))
    other = sample.resolved(facts, drafter=msgspec.structs.replace(sample.DRAFTER, length=5))
    with pytest.raises(BundleCorrupt, match=r"another drafter than the configuration's - at `\$.resolved.drafter`"):
        sample.write(tmp_path / "tiny", **sample.drafting(resolved=other))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"page_bytes": 4095}, "page_bytes 4095 of drafts is no multiple of the 4096 that kv_planes draw"),
        ({"kv_planes": ()}, "no multiple of the 0 that kv_planes draw"),
        ({"tap_rows": 7}, "tap_rows 7 is below max_rows 8"),
        ({"top": 101}, "top 101 is above vocab_size 100"),
    ],
)
def test_numbers_that_do_not_go_together_have_a_fault(changes: dict[str, Any], words: str) -> None:
    assert GEOMETRY.fault() is None
    assert words in (replace(GEOMETRY, drafter=replace(sample.HELD, **changes)).fault() or "")


def test_fields_of_io_that_no_other_bundle_has() -> None:
    """What a pass is told lies before the block table, guesses behind the logits; all else is where it was."""
    found, plain = IoLayout(GEOMETRY), IoLayout(sample.GEOMETRY)
    more = {name: field.shape for name, field in found.fields.items() if name not in plain.fields}
    assert more == {"tap": (8,), "tap_out": (8,), "draft_token": (4, 2), "draft_logit": (4, 2), "draft_lse": (4,)}
    assert list(found.fields)[-3:] == ["draft_token", "draft_logit", "draft_lse"]
    assert found.inbox_bytes - plain.inbox_bytes == 2 * ALIGNMENT
    assert GEOMETRY.pool_bytes == 2 * sample.GEOMETRY.pool_bytes == 8192 and sample.HELD.tap_bytes == 4 * 520 * 48


def test_a_block_drafter_is_read_back(tmp_path: Path) -> None:
    sample.write(tmp_path / "tiny", **sample.blocks())
    bundle = open_bundle(tmp_path / "tiny")
    assert bundle.manifest.drafter == sample.BLOCKS
    assert bundle.geometry.drafter == replace(sample.HELD, tap_width=96, top=4, block=sample.BLOCK)
    line = "  drafter     dflash2: blocks of 5, 4 guesses a place, 256 bytes of K and V a token"
    assert line in list(report.lines(report.facts(bundle)))
    assert "block" not in canonical(sample.drafting()) and '"mask_token": 99' in canonical(sample.blocks())


def canonical(facts: dict[str, Any]) -> str:
    return json.dumps(msgspec.to_builtins(facts["geometry"]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "cd" * 32}, "made for checkpoint cdcdcdcdcdcd, the model is of abababababab"),
        ({"tap_layers": ()}, r"dflash2 reads layers in ascending order, not \[\]"),
        ({"tap_layers": (3, 1)}, r"dflash2 reads layers in ascending order, not \[3, 1\]"),
        ({"tap_layers": (1, 1)}, r"dflash2 reads layers in ascending order, not \[1, 1\]"),
        ({"length": 5}, "dflash2 of 5 guesses, its geometry has blocks of 5 rows"),
        ({"kind": "mtp", "tap_layers": (), "weights": sample.CHECKPOINT}, "mtp of 4 guesses, its geometry has blocks"),
    ],
)
def test_a_block_drafter_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    record = msgspec.structs.replace(sample.BLOCKS, **changes)
    with pytest.raises(BundleCorrupt, match=rf"manifest.json: {words}.* - at `\$.drafter`; copy or compile"):
        sample.write(tmp_path / "tiny", **sample.blocks(drafter=record))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 1}, "a block has 1 rows, a pass here holds 2 to 5"),
        ({"rows": 6}, "a block has 6 rows, a pass here holds 2 to 5"),
        ({"mask_token": 100}, "mask_token 100 is not below vocab_size 100"),
    ],
)
def test_blocks_that_no_pass_holds_have_a_fault(changes: dict[str, Any], words: str) -> None:
    """Four outputs: a block of five rows."""
    block = replace(sample.BLOCK, **changes)
    assert words in (replace(GEOMETRY, drafter=replace(sample.HELD, block=block)).fault() or "")
    assert replace(GEOMETRY, drafter=replace(sample.HELD, block=sample.BLOCK)).fault() is None


def test_lanes_of_a_draft_are_as_many_as_rows_and_outputs_have_room_for() -> None:
    """Of 128 rows, 32 outputs, 8 lanes: a block of 16 has 15 outputs, one of 3 has 2, one of 32 has 31."""
    big = replace(sample.GEOMETRY, max_rows=128, max_outputs=32, max_lanes=8)
    lanes = {}
    for rows in (2, 3, 5, 8, 16, 17, 32):
        block = replace(sample.BLOCK, rows=rows)
        lanes[rows] = replace(big, drafter=replace(sample.HELD, block=block)).draft_lanes
    assert lanes == {2: 8, 3: 8, 5: 8, 8: 4, 16: 2, 17: 2, 32: 1}
    narrow = replace(big, max_rows=32, drafter=replace(sample.HELD, block=replace(sample.BLOCK, rows=8)))
    assert narrow.draft_lanes == 4 and replace(narrow, max_rows=31).draft_lanes == 3
    assert replace(big, drafter=sample.HELD).draft_lanes == 8 and big.draft_lanes == 0


def test_fields_of_io_that_only_blocks_have() -> None:
    chains = IoLayout(GEOMETRY).fields
    found = IoLayout(replace(GEOMETRY, drafter=replace(sample.HELD, block=sample.BLOCK))).fields
    more = {name: (field.dtype, field.shape) for name, field in found.items() if name not in chains}
    assert more == {"draft_score": ("float32", (4, 2, 2)), "draft_walk": ("int32", (4,))}
    assert all(found[name] == field for name, field in chains.items())


def test_inspect_says_what_drafts(sound: Path, tmp_path: Path) -> None:
    facts = report.facts(open_bundle(sound))
    assert facts["drafter"]["target"] == sample.CHECKPOINT
    line = "  drafter     mtp: chains of 4, 2 guesses a place, 256 bytes of K and V a token"
    assert line in list(report.lines(facts))
    sample.write(tmp_path / "plain")
    plain = report.facts(open_bundle(tmp_path / "plain"))
    assert plain["drafter"] is None and not any("drafter" in text for text in report.lines(plain))
