"""The layout of GGUF files: read as the gguf package reads it, and no damage that hangs or escapes as another error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from tandem.compile.checkpoints.gguf import GgufCheckpoint
from tandem.compile.checkpoints.gguf_file import read_file
from tandem.errors import CheckpointError
from tests.tiny import make_checkpoint, make_gguf

STRING, ARRAY, UINT8, UINT32, FLOAT32 = 8, 9, 0, 4, 6


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("sound") / "folder", "llama-yarn")
    return make_gguf(folder.parent / "model.gguf", folder, weight_type="F16")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_read_as_by_the_package(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder", "smollm2")
    extra = {"a.bool": True, "a.float": 0.25, "a.list": [1.5, 2.5], "a.strings": ["", "é"], "general.alignment": 64}
    path = make_gguf(tmp_path / "model.gguf", folder, weight_type=kind, fields=extra)
    reader = GGUFReader(path)
    file = read_file(path)
    wanted = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert file.fields == wanted and list(file.fields) == list(wanted)
    assert [(tensor.name, tensor.kind) for tensor in file.tensors] == [
        (tensor.name, tensor.tensor_type.name) for tensor in reader.tensors
    ]
    for tensor, other in zip(file.tensors, reader.tensors, strict=True):
        assert tensor.shape == tuple(reversed(other.shape.tolist()))
        assert tensor.data.tobytes() == other.data.tobytes()


@given(st.data())
def test_any_shorter_file_is_refused(sound: Path, data: st.DataObject) -> None:
    content = sound.read_bytes()
    end = max(tensor.data_offset + tensor.n_bytes for tensor in GGUFReader(sound).tensors)
    length = data.draw(st.integers(0, end - 1))
    path = sound.parent / "cut.gguf"
    path.write_bytes(content[:length])
    with pytest.raises(CheckpointError) as caught:
        read_file(path)
    message = str(caught.value)
    assert str(path) in message and (f"found {length}" in message or length < 4)


@given(st.data())
def test_no_damage_escapes_as_another_error(sound: Path, data: st.DataObject) -> None:
    content = bytearray(sound.read_bytes())
    tensors = GGUFReader(sound).tensors
    place = data.draw(st.integers(4, 1100) | st.integers(tensors[0].field.offset, tensors[-1].field.offset + 60))
    content[place] = data.draw(st.sampled_from([0, 1, 255, content[place] ^ 8]))
    path = sound.parent / "damaged.gguf"
    path.write_bytes(content)
    try:
        GgufCheckpoint(path)
    except CheckpointError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(path: Path, *parts: bytes, num_tensors: int = 0, num_fields: int = 0, version: int = 3) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_fields) + b"".join(parts))
    return path


def _field(name: bytes, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _tensor(sizes: list[int], kind: int, offset: int = 0, name: bytes = b"t") -> bytes:
    return _string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 1 << 60


@pytest.mark.parametrize(
    ("content", "counts", "reason"),
    [
        ([_field(b"a", ARRAY, struct.pack("<IQ", UINT8, HUGE))], {"num_fields": 1}, "truncated or damaged"),
        ([_field(b"a", ARRAY, struct.pack("<IQ", STRING, HUGE))], {"num_fields": 1}, "truncated or damaged"),
        ([_field(b"a", ARRAY, struct.pack("<IQ", ARRAY, 2) + bytes(64))], {"num_fields": 1}, "unknown type 9"),
        ([_field(b"a", 77, bytes(8))], {"num_fields": 1}, "unknown type 77"),
        ([_field(b"a", STRING, _string(b"\xff"))], {"num_fields": 1}, "not UTF-8"),
        ([_field(b"a", UINT32, bytes(4))] * 2, {"num_fields": 2}, "a stands there twice"),
        ([_field(b"general.alignment", UINT32, bytes(4))], {"num_fields": 1}, "general.alignment is 0"),
        ([_field(b"general.alignment", FLOAT32, bytes(4))], {"num_fields": 1}, "general.alignment is 0.0"),
        ([], {"num_fields": HUGE}, "truncated or damaged"),
        ([], {"num_tensors": HUGE}, "truncated or damaged"),
        ([], {"version": 1}, "GGUF version 1, wanted 2 or 3"),
        ([], {"version": 3 << 24}, "the other byte order"),
        ([_tensor([8, 2], 999)], {"num_tensors": 1}, "tensor t has the unknown type number 999"),
        ([_tensor([33, 2], 8), bytes(999)], {"num_tensors": 1}, "does not divide into blocks of 32 (Q8_0)"),
        ([_tensor([8, 0], 0)], {"num_tensors": 1}, "damaged: tensor t"),
        ([_tensor([], 0)], {"num_tensors": 1}, "damaged: tensor t"),
        ([_tensor([HUGE, HUGE], 0)], {"num_tensors": 1}, "truncated or damaged"),
        ([_tensor([1], 0), _tensor([1], 0), bytes(99)], {"num_tensors": 2}, "a tensor stands there twice"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: list[bytes], counts: dict[str, Any], reason: str) -> None:
    path = _file(tmp_path / "x.gguf", *content, **counts)
    with pytest.raises(CheckpointError) as caught:
        read_file(path)
    assert str(path) in str(caught.value) and reason in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 and so on"])
def test_what_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        read_file(tmp_path / "x.gguf")


def test_a_file_by_hand(tmp_path: Path) -> None:
    """One field and one tensor of two rows, with the padding that the format asks for before the data."""
    head = _file(
        tmp_path / "x.gguf", _field(b"a", UINT32, struct.pack("<I", 7)), _tensor([3, 2], 0), num_fields=1, num_tensors=1
    )
    content = head.read_bytes()
    values = np.arange(6, dtype="<f4")
    head.write_bytes(content + bytes(-len(content) % 32) + values.tobytes())
    file = read_file(head)
    assert file.fields == {"a": 7}
    assert file.tensors[0].shape == (2, 3) and file.tensors[0].data.tobytes() == values.tobytes()
