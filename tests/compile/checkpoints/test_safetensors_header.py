"""Headers of safetensors files: sound ones as the package itself reads them, any damage refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tandem.compile.checkpoints.safetensors_header import read_header
from tandem.errors import CheckpointError

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.uint8: "U8"}
SHAPES = st.lists(st.integers(0, 5), max_size=3)
# Every example writes the file anew, so sharing one folder between examples is sound.
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _write(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def _tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@SHARED_FOLDER
@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from(list(DTYPES)), SHAPES), max_size=5))
def test_what_the_package_writes_is_read(tmp_path: Path, wanted: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    path = tmp_path / "sound.safetensors"
    save_file({name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in wanted.items()}, path)
    found = read_header(path)
    assert {name: (stored.dtype, list(stored.shape)) for name, stored in found.items()} == {
        name: (DTYPES[dtype], shape) for name, (dtype, shape) in wanted.items()
    }


@SHARED_FOLDER
@given(st.integers(0, 10_000), st.binary(max_size=3))
def test_any_other_length_is_refused(tmp_path: Path, keep: int, more: bytes) -> None:
    path = tmp_path / "cut.safetensors"
    save_file({"a": torch.arange(40.0), "b": torch.ones(3, 5)}, path)
    whole = path.read_bytes()
    damaged = whole[: min(keep, len(whole) - 1)] if not more else whole + more
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=str(path)):
        read_header(path)


@SHARED_FOLDER
@given(st.data())
def test_it_refuses_whatever_the_package_refuses(tmp_path: Path, data: st.DataObject) -> None:
    """A byte of the header changed: never let through what the package would not map."""
    path = tmp_path / "flipped.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, 8 + int.from_bytes(content[:8], "little") - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                file.get_tensor(name)
    except SafetensorError:
        with pytest.raises(CheckpointError):
            read_header(path)


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"a": _tensor(4, 8, [1])}, bytes(8), "starts at byte 4, wanted 0"),
        ({"a": _tensor(0, 8, [2]), "b": _tensor(4, 12, [2])}, bytes(12), "b starts at byte 4, wanted 8"),
        ({"a": _tensor(0, 8, [3])}, bytes(8), "wants 12 bytes, found 8"),
        ({"a": _tensor(0, 8, [2])}, bytes(9), "too long"),
        ({"a": _tensor(0, 8, [2], "Q4")}, bytes(8), "dtype Q4"),
        ({"a": _tensor(0, 8, [-2])}, bytes(8), "tensor a is not described"),
        ({"a": {"dtype": "F32"}}, b"", "tensor a is not described"),
        ({"a": [1]}, b"", "tensor a is not described"),
        ([], b"", "not a JSON object"),
        (b"{nonsense", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a": 1, "a": 2}', b"", "a stands there twice"),
        (b"\xff\xfe", b"", "not valid JSON"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: Any, data: bytes, reason: str) -> None:
    path = _write(tmp_path / "damaged.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value) and reason in str(caught.value)


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1, 3])
def test_a_header_length_that_lies(tmp_path: Path, length: int) -> None:
    path = _write(tmp_path / "liar.safetensors", {"a": _tensor(0, 4, [1])}, bytes(4), length)
    with pytest.raises(CheckpointError, match=str(path)):
        read_header(path)
