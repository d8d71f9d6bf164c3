"""The weights file, held against the safetensors library and against hostile headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from tandem.artifacts.weights import ALIGNMENT, MappedWeights, WeightsWriter
from tandem.artifacts.weights_header import MAX_HEADER_BYTES, read_header
from tandem.errors import BundleCorrupt

NUMPY = {"F32": np.float32, "U8": np.uint8, "I64": np.int64, "F16": np.float16}
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(sorted(NUMPY)), SHAPES), max_size=6))
def test_safetensors_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, tuple[int, ...]]]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.integers(0, 99, shape).astype(NUMPY[dtype]) for i, (dtype, shape) in enumerate(drawn)}
    with WeightsWriter(path, [(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(drawn)]) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    mapped = MappedWeights(path)
    with safe_open(path, framework="numpy") as file:
        assert {name for name in file.keys() if not name.startswith("pad.")} == set(arrays)  # noqa: SIM118
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
            assert file.get_tensor(name).dtype == array.dtype
            assert mapped.bytes(name).tobytes() == array.tobytes()
            assert mapped.shape(name) == array.shape
            assert mapped.offset(name) % ALIGNMENT == 0


def test_bf16_comes_as_uint16_or_bytes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "w.safetensors"
    values = torch.randn(7, 3).bfloat16()
    bits = values.view(torch.uint16).numpy()
    with WeightsWriter(path, [("array", "BF16", (7, 3)), ("bytes", "BF16", (7, 3))]) as writer:
        writer.write("array", bits)
        writer.write("bytes", bits.tobytes())
    from safetensors.torch import load_file

    loaded = load_file(path)
    assert torch.equal(loaded["array"], values) and torch.equal(loaded["bytes"], values)
    assert MappedWeights(path).dtype("array") == "BF16"


def test_the_map_cannot_be_written(tmp_path: Path) -> None:
    with WeightsWriter(tmp_path / "w", [("a", "U8", (64,))]) as writer:
        writer.write("a", bytes(64))
    with pytest.raises(ValueError, match="read-only"):
        MappedWeights(tmp_path / "w").data[0] = 1


def _file(path: Path, header: bytes, data: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def _entry(begin: int, end: int, shape: Any, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"a": _entry(0, 4, [4]), "b": _entry(2, 6, [4])}, 6, "'b' overlaps"),
        ({"a": _entry(0, 4, [4]), "b": _entry(5, 9, [4])}, 9, "hole before"),
        ({"a": _entry(1, 5, [4])}, 5, "hole before"),
        ({"a": _entry(0, 4, [4])}, 5, "end at byte 4, the data at 5"),
        ({"a": _entry(0, 4, [4])}, 3, "end at byte 4, the data at 3"),
        ({"a": _entry(0, 4, [5])}, 4, "spans 4 bytes, its shape 5"),
        ({"a": _entry(0, 4, [-4])}, 4, "natural numbers"),
        ({"a": _entry(0, 4, [True])}, 4, "natural numbers"),
        ({"a": _entry(0, 4, [2.0, 2])}, 4, "natural numbers"),
        ({"a": _entry(0, 1 << 64, [1 << 64])}, 4, "natural numbers"),
        ({"a": _entry(0, 4, [1], "F31")}, 4, "unknown dtype 'F31'"),
        ({"a": _entry(0, 4, [1], ["F32"])}, 4, "unknown dtype"),
        ({"a": {"dtype": "U8", "shape": [4]}}, 4, "wants dtype, shape and data_offsets"),
        ({"a": {**_entry(0, 4, [4]), "more": 1}}, 4, "nothing else"),
        ({"a": 3}, 4, "wants dtype"),
        ([], 0, "no JSON object"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: Any, data: int, words: str) -> None:
    path = _file(tmp_path / "w.safetensors", json.dumps(header).encode(), bytes(data))
    with pytest.raises(BundleCorrupt, match=f"w.safetensors: .*{words}"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short"),
        (b"\x01\x00\x00", "cut short"),
        ((100).to_bytes(8, "little") + b"{}", "cut short"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "over 16777216 bytes"),
        ((2).to_bytes(8, "little") + b"{x", "not strict JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "not UTF-8"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(BundleCorrupt, match=words):
        read_header(tmp_path / "w")


def test_a_header_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "w", "wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(BundleCorrupt, match="header over"):
        read_header(tmp_path / "w")


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(_entry(0, 4, [4]))
    path = _file(tmp_path / "w", f'{{"a": {entry}, "a": {entry}}}'.encode(), bytes(4))
    with pytest.raises(BundleCorrupt, match="duplicate key 'a'"):
        read_header(path)


def test_a_tensor_off_the_boundary_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "w", json.dumps({"a": _entry(0, 4, [4])}).encode(), bytes(4))
    assert read_header(path)[1]["a"].nbytes == 4
    with pytest.raises(BundleCorrupt, match="'a' is not at a multiple of 64"):
        MappedWeights(path)
