"""The three digests, held against hand-worked trees and canonical text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts import canonical, digest
from tandem.errors import BundleCorrupt

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
A, B, C = (("a", 1, "aa" * 32), ("b/c", 300, "bb" * 32), ("d", 0, "cc" * 32))


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def leaf(path: str, size: int, sha256: str) -> bytes:
    return sha(b"\0" + path.encode() + b"\0" + size.to_bytes(8, "little") + bytes.fromhex(sha256))


def test_the_root_is_the_tree_of_the_format_page() -> None:
    assert digest.merkle_root([A]) == leaf(*A).hex()
    left = sha(b"\1" + leaf(*A) + leaf(*B))
    assert digest.merkle_root([B, A]) == left.hex()
    # The odd one moves up unchanged, whatever the order given.
    assert digest.merkle_root([C, B, A]) == sha(b"\1" + left + leaf(*C)).hex()


@given(st.lists(st.tuples(st.text(), st.integers(0, 2**63), st.just("ab" * 32)), min_size=1, unique=True), st.data())
def test_the_root_depends_on_every_leaf(leaves: list[digest.Leaf], data: st.DataObject) -> None:
    root = digest.merkle_root(leaves)
    assert digest.merkle_root(data.draw(st.permutations(leaves))) == root
    i = data.draw(st.integers(0, len(leaves) - 1))
    path, size, sha256 = leaves[i]
    for changed in ((path + "x", size, sha256), (path, size + 1, sha256), (path, size, "ba" + sha256[2:])):
        assert digest.merkle_root([*leaves[:i], changed, *leaves[i + 1 :]]) != root
    assert digest.merkle_root([*leaves, ("\x00new", 0, "00" * 32)]) != root


def test_the_build_id_is_that_of_compact_sorted_json() -> None:
    text = '{"a":{"b":1e-05,"ü":[1,null]},"z":true}'
    value = {"z": True, "a": {"ü": [1, None], "b": 1e-5}}
    assert digest.build_id(value) == hashlib.sha256(text.encode()).hexdigest()


def test_a_file_is_digested_in_pieces_with_progress(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000
    (tmp_path / "f").write_bytes(data)
    steps: list[int] = []
    assert digest.sha256_file(tmp_path / "f", steps.append) == hashlib.sha256(data).hexdigest()
    assert sum(steps) == len(data) and len(steps) > 1


@given(JSON)
def test_canonical_text_reads_back_to_the_value_and_to_itself(value: object) -> None:
    for spell in (canonical.encode, canonical.encode_compact):
        data = spell(value)
        assert canonical.decode(data, "x") == value
        assert spell(canonical.decode(data, "x")) == data


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0e1Na\\u ', max_size=30).map(str.encode))
def test_any_bytes_give_a_value_or_a_named_refusal(data: bytes) -> None:
    try:
        canonical.decode(data, "some.json")
    except BundleCorrupt as error:
        assert str(error).startswith("some.json: ")


@pytest.mark.parametrize("depth", [32, 33])
def test_depth_is_counted_exactly(depth: int) -> None:
    data = b"[" * depth + b"]" * depth
    if depth == canonical.MAX_JSON_DEPTH:
        canonical.decode(data, "x")
    else:
        with pytest.raises(BundleCorrupt, match="deeper than 32"):
            canonical.decode(data, "x")
