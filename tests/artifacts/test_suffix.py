"""Corpora: the array against a plain sort, searches against looking everywhere, and folders that anybody filled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts import suffix
from tandem.artifacts.suffix import META, NO_ID, SEPARATOR, SUFFIXES, TOKENS, SuffixTable, open_corpus, verify
from tandem.artifacts.suffix_sort import ORDER, sort_suffixes
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, UsageError
from tests.artifacts.corpora import TOKENIZER, write

DOCUMENTS = [[1, 2, 3, 4, 1, 2, 3, 5], [1, 2, 3, 4, 9], [7]]


def naive(tokens: list[int], vocab_size: int) -> list[int]:
    """Places of ids by the ORDER values from there, all that is no id being one value above all ids."""
    clamped = [token if 0 <= token < vocab_size else vocab_size for token in tokens] + [vocab_size] * ORDER
    places = [place for place in range(len(tokens)) if clamped[place] < vocab_size]
    return sorted(places, key=lambda place: (clamped[place : place + ORDER], place))


def table_of(tokens: list[int], vocab_size: int) -> SuffixTable:
    array = np.array(tokens, np.int32)
    places = np.concatenate(list(sort_suffixes(array, vocab_size)))
    return SuffixTable(memoryview(array), memoryview(places))


# Few ids make many ties; hostile ones are no ids; 2**21 ids take three keys, 2**30 as many as there are tokens.
texts = st.tuples(st.integers(1, 3) | st.sampled_from([2**21, 2**30]), st.integers(0, 2**32)).flatmap(
    lambda drawn: st.tuples(
        st.just(drawn[0]),
        st.lists(
            st.integers(0, min(drawn[0], 4) - 1) | st.sampled_from([SEPARATOR, SEPARATOR + 5, -1, -(2**31), 2**31 - 1]),
            max_size=60,
        ),
    )
)


@given(texts, st.integers(1, 40))
def test_suffixes_are_those_of_a_plain_sort_whatever_the_buckets(text: tuple[int, list[int]], bucket: int) -> None:
    vocab_size, tokens = text
    parts = list(sort_suffixes(np.array(tokens, np.int32), vocab_size, bucket=bucket))
    assert all(part.dtype == np.int32 for part in parts)
    assert [int(place) for part in parts for place in part] == naive(tokens, vocab_size)


def test_the_text_is_looked_through_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.artifacts.suffix_sort.CHUNK", 7)
    tokens = np.random.default_rng(0).integers(0, 4, 300).astype(np.int32)
    shares: list[float] = []
    parts = list(sort_suffixes(tokens, 3, shares.append, bucket=50))
    assert len(parts) > 3 and np.concatenate(parts).tolist() == naive(tokens.tolist(), 3)
    assert sum(shares) == pytest.approx(1)


@given(
    st.lists(st.integers(0, 2) | st.just(SEPARATOR), min_size=1, max_size=80),
    st.lists(st.integers(0, 3), min_size=1, max_size=ORDER),
    st.integers(1, 9),
    st.sampled_from([0, NO_ID - 2, 2**30 - 3]),
)
def test_a_search_finds_every_place_and_no_other(tokens: list[int], ids: list[int], stride: int, least: int) -> None:
    """Also where heads cannot hold the ids."""
    tokens = [token if token == SEPARATOR else token + least for token in tokens] + [SEPARATOR]
    ids = [token + least for token in ids]
    places = [place for place in range(len(tokens)) if tokens[place : place + len(ids)] == ids]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "STRIDE", stride)
        plain = table_of(tokens, least + 3)
        for table in (plain, plain.with_heads()):
            low, high = table.find(ids)
            assert sorted(table.suffixes[low:high].tolist()) == places


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30), st.lists(st.integers(-50, 50), max_size=30))
def test_a_search_in_nonsense_ends(tokens: list[int], places: list[int]) -> None:
    plain = SuffixTable(memoryview(np.array(tokens, np.int32)), memoryview(np.array(places, np.int32)))
    for table in (plain, plain.with_heads() if tokens else plain):
        low, high = table.find([1, 2])
        assert 0 <= low <= high <= len(places)


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    meta = write(tmp_path / "c", DOCUMENTS)
    assert sorted(os.listdir(tmp_path)) == ["c"] and sorted(os.listdir(tmp_path / "c")) == [META, SUFFIXES, TOKENS]
    table = open_corpus(tmp_path / "c", TOKENIZER)
    assert table.tokens.tolist() == [1, 2, 3, 4, 1, 2, 3, 5, SEPARATOR, 1, 2, 3, 4, 9, SEPARATOR, 7, SEPARATOR]
    assert (meta.documents, meta.tokens.count, meta.suffixes.count) == (3, 17, 14)
    assert table.find([1, 2, 3, 4, 9])[1] - table.find([1, 2, 3, 4, 9])[0] == 1
    low, high = table.find([1, 2, 3])
    assert sorted(table.suffixes[low:high].tolist()) == [0, 4, 9]
    assert table.find([4, 1, 2, 3, 5]) != table.find([5, 1])  # a separator is never matched
    assert verify(tmp_path / "c") == meta


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, DOCUMENTS)
    for name in (META, TOKENS, SUFFIXES):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_corpus_replaces_a_corpus_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCUMENTS)
    with pytest.raises(UsageError, match="--replace"):
        write(tmp_path / "c", DOCUMENTS)
    write(tmp_path / "c", [[5, 6]], replace=True)
    assert open_corpus(tmp_path / "c", TOKENIZER).tokens.tolist() == [5, 6, SEPARATOR]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="no corpus"):
        write(tmp_path / "other", DOCUMENTS, replace=True)
    with pytest.raises(UsageError, match="no text"):
        write(tmp_path / "empty", [[]])
    assert sorted(os.listdir(tmp_path)) == ["c", "other"]


def changed(name: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        rewrite(folder, META, json.dumps(meta | {name: value}).encode())

    return change


def rewrite(folder: Path, name: str, data: bytes) -> None:
    (folder / name).chmod(0o644)
    (folder / name).write_bytes(data)


def link(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.move(folder / name, folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return change


@pytest.mark.parametrize(
    ("change", "error", "part"),
    [
        (shutil.rmtree, BundleError, "nothing there"),
        (lambda c: (c / META).unlink(), BundleCorrupt, META),
        (lambda c: (c / TOKENS).unlink(), BundleCorrupt, "tokens.bin: missing"),
        (lambda c: rewrite(c, SUFFIXES, b"123"), BundleCorrupt, "56 bytes wanted, 3 found"),
        (lambda c: rewrite(c, META, b"{"), BundleCorrupt, "not strict JSON"),
        (lambda c: rewrite(c, META, b"[]"), BundleCorrupt, "object"),
        (lambda c: rewrite(c, META, b" " * suffix.MAX_META_BYTES + b"{}"), BundleCorrupt, "over"),
        (lambda c: (c / "more").touch(), BundleCorrupt, "more: no file of a corpus"),
        (link(TOKENS), BundleCorrupt, "a link"),
        (link(META), BundleCorrupt, META),
        (changed("kind", "suffix-store"), BundleMismatch, "a suffix-store, not a corpus"),
        (changed("kind", 7), BundleCorrupt, "kind"),
        (changed("format", 9), BundleMismatch, "format 1 wanted, 9 found"),
        (changed("tokenizer", "cd" * 32), BundleMismatch, "a corpus of the tokenizer cdcdcdcdcdcdcdcd"),
        (changed("tokenizer", 5), BundleCorrupt, "tokenizer"),
        (changed("vocab_size", -1), BundleCorrupt, "vocab_size"),
        (changed("order", 7), BundleCorrupt, "order"),
        (changed("documents", 2**31), BundleCorrupt, "documents"),
        (changed("tokens", {"count": 18, "sha256": "0" * 64}), BundleCorrupt, "72 bytes wanted, 68 found"),
        (changed("more", 1), BundleCorrupt, "more"),
    ],
)
def test_what_is_no_sound_corpus_is_refused(
    tmp_path: Path, change: Callable[[Path], None], error: type[Exception], part: str
) -> None:
    write(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c").chmod(0o755)
    change(tmp_path / "c")
    with pytest.raises(error, match=part.replace("(", "[(]")) as caught:
        open_corpus(tmp_path / "c", TOKENIZER)
    assert type(caught.value) is error and str(tmp_path / "c") in str(caught.value)


def test_a_changed_byte_is_found_when_everything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "c", DOCUMENTS)
    for name in (TOKENS, SUFFIXES):
        data = (tmp_path / "c" / name).read_bytes()
        rewrite(tmp_path / "c", name, data[:-1] + bytes([data[-1] ^ 1]))
        open_corpus(tmp_path / "c", TOKENIZER)
        with pytest.raises(BundleCorrupt, match=name):
            verify(tmp_path / "c")
        rewrite(tmp_path / "c", name, data)
