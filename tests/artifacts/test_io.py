"""The io region: fields apart from each other, aligned, all of it covered by the size."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import ALIGNMENT, Geometry, IoLayout
from tandem.keys import TARGET_KINDS, Kind

SIZES = st.integers(1, 200)


def geometry(context: int, vocab: int, rows: int, outputs: int, lanes: int) -> Geometry:
    return Geometry(context, vocab, rows, outputs, lanes, page_tokens=16, page_bytes=4096)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_every_field_has_its_own_aligned_bytes(context: int, vocab: int, rows: int, outputs: int, lanes: int) -> None:
    layout = IoLayout(geometry(context, vocab, rows, outputs, lanes))
    region = np.zeros(layout.nbytes, np.uint8)
    views = layout.views(region)
    for number, (name, field) in enumerate(layout.fields.items(), 1):
        assert field.offset % ALIGNMENT == 0
        assert views[name].dtype.itemsize == 4 and views[name].shape == field.shape
        assert not region[field.offset : field.offset + field.nbytes].any(), name
        views[name].view(np.uint8).fill(number)
    for number, name in enumerate(layout.fields, 1):
        assert (views[name].view(np.uint8) == number).all(), name


def test_blocks_hold_a_context_and_a_verify_behind_it() -> None:
    blocks = {context: geometry(context, 9, 9, 9, 9).blocks_per_lane for context in (64, 80, 81, 96)}
    assert blocks == {64: 6, 80: 7, 81: 8, 96: 8}  # (context + 32) / 16, rounded up


def test_shapes_follow_the_geometry() -> None:
    shapes = {name: field.shape for name, field in IoLayout(geometry(64, 333, 7, 5, 3)).fields.items()}
    assert shapes["token"] == shapes["move_target"] == (7,)
    assert shapes["ancestor"] == (7, 32) and shapes["block_table"] == (3, 6)
    assert shapes["output_row"] == shapes["argmax"] == shapes["gap"] == (5,) and shapes["logits"] == (5, 333)


def test_no_verify_has_more_than_32_rows() -> None:
    wide, nine = geometry(64, 9, 2048, 32, 8), geometry(64, 9, 9, 9, 8)
    assert (wide.verify_rows, nine.verify_rows) == (32, 9)
    fields = IoLayout(wide).fields
    assert fields["ancestor"].shape == (32, 32) and fields["token"].shape == fields["prefix"].shape == (2048,)
    assert fields["move_lane"].shape == fields["move_source"].shape == fields["move_target"].shape == (32,)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_one_copy_in_and_one_out_carry_a_round(context: int, vocab: int, rows: int, outputs: int, lanes: int) -> None:
    layout = IoLayout(geometry(context, vocab, rows, outputs, lanes))
    told = ["counts", "token", "position", "lane", "slot", "prefix", "ancestor", "output_row"]
    told += ["move_lane", "move_source", "move_target"]
    ends = {name: field.offset + field.nbytes for name, field in layout.fields.items()}
    assert layout.fields["counts"].offset == 0 and max(ends[name] for name in told) <= layout.inbox_bytes
    others = {name: field.offset for name, field in layout.fields.items() if name not in told}
    assert list(others) == ["block_table", "argmax", "gap", "logits"] and min(others.values()) == layout.inbox_bytes
    assert others["gap"] - ends["argmax"] < ALIGNMENT and list(others.values()) == sorted(others.values())


def test_a_model_with_a_state_is_told_where_it_is() -> None:
    """Fields that no other model has, all of them in front of the block table."""
    plain = geometry(64, 333, 7, 5, 3)
    hybrid = replace(plain, recurrent_layers=2, state_bytes=80, factor_bytes=640)
    found, dense = IoLayout(hybrid), IoLayout(plain)
    more = {name: field.shape for name, field in found.fields.items() if name not in dense.fields}
    assert more == {"parent": (7,), "move_row": (7,), "state_slot": (3,)}
    assert found.inbox_bytes - dense.inbox_bytes == 3 * ALIGNMENT
    assert all(found.fields[name].offset < found.inbox_bytes for name in more)


def test_a_bundle_that_draws_is_told_what_between_rows_and_tables_and_gives_it_back_beside_the_rest() -> None:
    plain = Geometry(64, 333, 40, 32, 8, 16, 4096, ((2, 64), (2, 64)))
    drawing = replace(plain, draws=True)
    before, after = IoLayout(plain), IoLayout(drawing)
    assert set(after.fields) - set(before.fields) == {"wish", "said", "fresh", "drawn"}
    shapes = {name: (field.dtype, field.shape) for name, field in after.fields.items()}
    assert shapes["wish"] == ("int64", (32, 16)) and shapes["said"] == ("int32", (32, 32))
    assert after.inbox_bytes == before.inbox_bytes == after.fields["wish"].offset  # greedy rounds bring no more
    names = list(after.fields)
    assert names.index("block_table") == names.index("fresh") + 1
    assert names[names.index("drawn") :] == ["drawn", "argmax", "gap", "logits"]
    assert (plain.kinds, drawing.kinds) == (TARGET_KINDS, (*TARGET_KINDS, Kind.SAMPLE))
    assert (plain.seen_bytes, drawing.seen_bytes) == (0, 8 * 333 * 4)


@pytest.mark.parametrize("draws", [False, True])
def test_only_a_bundle_that_draws_says_so(draws: bool) -> None:
    """One from before there were draws is read, and spelt, as ever."""
    sizes = Geometry(64, 333, 40, 32, 8, 16, 4096, ((2, 64), (2, 64)), draws=draws)
    spelt = msgspec.json.encode(GeometryRecord.of(sizes))
    assert (b"draws" in spelt) is draws
    assert msgspec.json.decode(spelt, type=GeometryRecord).geometry() == sizes


def test_states_that_layers_do_not_share_have_a_fault() -> None:
    dense = Geometry(64, 333, 8, 4, 2, 16, 3 * 16 * 96, ((1, 64), (2, 16)))
    sound = replace(dense, recurrent_layers=2, state_bytes=80, factor_bytes=640)
    assert sound.fault() is None and dense.fault() is None
    for change in ({"state_bytes": 84}, {"factor_bytes": 0}, {"state_bytes": 0}, {"recurrent_layers": 0}):
        assert "recurrent layers do not share" in (replace(sound, **change).fault() or "")


def test_numbers_that_do_not_go_together_have_a_fault() -> None:
    sound = Geometry(64, 333, 8, 4, 2, 16, 3 * 16 * 96, ((1, 64), (2, 16)))
    assert sound.fault() is None and sound.num_layers == 3
    assert "page_bytes 4607 is no multiple of the 1536 bytes" in (replace(sound, page_bytes=4607).fault() or "")
    assert "no multiple of the 0 bytes" in (replace(sound, kv_planes=()).fault() or "")
    assert "max_outputs 9 is above max_rows 8" in (replace(sound, max_outputs=9).fault() or "")


def test_sizes_beyond_64_bits_stay_true() -> None:
    most = 2**31 - 1
    assert IoLayout(Geometry(64, most, most, most, 2, 16, 4096)).fields["logits"].nbytes == 4 * most * most
