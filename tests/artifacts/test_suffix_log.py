"""The log of a suffix store: what is sound after any crash, what is dropped, and folders that are something else."""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.suffix import SEPARATOR
from tandem.artifacts.suffix_folder import LOG, META, NEW, StoreFolder
from tandem.artifacts.suffix_log import newer_half, sealed, sound_spans, unseen
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, TandemError, UsageError

TOKENIZER = "ab" * 32
documents_ = st.lists(st.lists(st.integers(0, SEPARATOR - 1), max_size=6), max_size=6)


def numbers(data: bytes) -> np.ndarray:
    return np.frombuffer(data[: len(data) // 4 * 4], "<i4")


def test_a_document_is_its_ids_and_a_separator() -> None:
    ids = numbers(sealed([5, 6, 7]))
    assert ids[:-1].tolist() == [5, 6, 7] and ids[-1] >= SEPARATOR


@given(documents_, st.data())
def test_a_log_cut_off_anywhere_keeps_its_whole_documents(documents: list[list[int]], data: st.DataObject) -> None:
    parts = [sealed(document) for document in documents]
    log = b"".join(parts)
    cut = data.draw(st.integers(0, len(log)))
    whole = 0
    while documents and whole < len(parts) and sum(map(len, parts[: whole + 1])) <= cut:
        whole += 1
    end = sum(map(len, parts[:whole])) // 4
    assert sound_spans(numbers(log[:cut])) == ([(0, end)] if end else [])


@given(documents_.filter(bool), st.data())
def test_a_changed_byte_costs_its_own_document_or_two(documents: list[list[int]], data: st.DataObject) -> None:
    parts = [sealed(document) for document in documents]
    log = bytearray(b"".join(parts))
    place = data.draw(st.integers(0, len(log) - 1))
    log[place] ^= 1 << data.draw(st.integers(0, 7))
    hit = next(i for i in range(len(parts)) if place < sum(map(len, parts[: i + 1])))
    ids = numbers(bytes(log))
    kept = b"".join(ids[start:end].tobytes() for start, end in sound_spans(ids))
    # Where its separator is hit, it takes what follows with it.
    lost = [parts[:hit] + parts[hit + more :] for more in (1, 2)]
    assert kept in [b"".join(left) for left in lost]


def test_the_older_half_ends_with_a_document() -> None:
    parts = [sealed([i] * 9) for i in range(10)]
    ids = numbers(b"".join(parts))
    start = newer_half(ids)
    assert ids[start:].tobytes() == b"".join(parts[5:])
    assert newer_half(numbers(sealed([1] * 50))) == 51  # one document, too long by itself
    assert newer_half(numbers(sealed([1] * 50) + sealed([2]))) == 51


def test_what_the_last_documents_began_with_is_not_kept_again() -> None:
    before = [array("i", range(100)), array("i", [7, 7])]
    assert unseen(array("i", [*range(100), 3, 4]), before, 8).tolist() == [*range(92, 100), 3, 4]
    assert unseen(array("i", range(60)), before, 8).tolist() == []
    assert unseen(array("i", [9, 8]), before, 8).tolist() == [9, 8]
    assert unseen(array("i"), before, 8).tolist() == []
    assert unseen(array("i", [1]), [], 8).tolist() == [1]


def opened(path: Path, tokenizer: str = TOKENIZER, vocab_size: int = 50, *, readonly: bool = False) -> StoreFolder:
    return StoreFolder(path, tokenizer, vocab_size, readonly=readonly)


def test_a_store_is_its_owners_alone_and_has_one_writer(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    folder = opened(tmp_path / "s")
    folder.append(sealed([1, 2]))
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()} == {0o600}
    with pytest.raises(UsageError, match=r"another process .* --suffix-store-readonly"):
        opened(tmp_path / "s")
    reader = opened(tmp_path / "s", readonly=True)
    assert reader.read().tolist() == folder.read().tolist() != []
    reader.close()
    folder.close()
    folder.close()
    again = opened(tmp_path / "s")
    assert again.read().tolist()[:2] == [1, 2]
    again.close()


def test_a_log_is_replaced_in_one_step_and_old_maps_stay(tmp_path: Path) -> None:
    folder = opened(tmp_path / "s")
    folder.append(sealed([1]) + sealed([2]))
    before = folder.read()
    seen = before.tolist()
    folder.rewrite([np.asarray(before)[2:]])
    assert folder.read().tolist() == seen[2:] and before.tolist() == seen
    folder.append(sealed([3]))
    assert folder.read().tolist()[2:] == numbers(sealed([3])).tolist()
    folder.truncate(8)
    assert folder.read().tolist() == seen[2:]
    folder.close()
    (tmp_path / "s" / NEW).write_bytes(b"half")  # as a crash leaves it
    opened(tmp_path / "s").close()
    assert sorted(os.listdir(tmp_path / "s")) == [META, LOG]


@pytest.mark.parametrize("written", [0, 3, 4])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    folder = opened(tmp_path / "s")
    folder.append(sealed([1, 2]))
    before = folder.read().tolist()
    write, left = os.write, [written]

    def full(descriptor: int, data: memoryview) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: left.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        folder.append(sealed([3, 4]))
    with pytest.raises(OSError, match="space"):
        folder.rewrite([np.array([5], np.int32)])
    monkeypatch.undo()
    assert folder.read().tolist() == before and folder.torn == 0 and not (tmp_path / "s" / NEW).exists()
    folder.append(sealed([5]))
    assert folder.read().tolist()[:3] == before
    folder.close()


def made(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A store that is closed and then changed."""

    def make(path: Path) -> None:
        opened(path).close()
        change(path)

    return make


def linked(path: Path) -> None:
    (path / LOG).unlink()
    (path / LOG).symlink_to(path / META)


def other_things(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").touch()


@pytest.mark.parametrize(
    ("make", "error", "part"),
    [
        (other_things, UsageError, "other things"),
        (Path.touch, BundleError, "File exists"),
        (made(lambda path: (path / META).write_text("{")), BundleCorrupt, "nothing says of which tokenizer"),
        (made(lambda path: (path / META).write_text("{}")), BundleCorrupt, "missing required field"),
        (made(lambda path: (path / META).write_text('{"format": 2}')), BundleCorrupt, "nothing says"),
        (made(linked), BundleError, "symbolic"),
        (lambda path: opened(path, "cd" * 32).close(), BundleMismatch, "tokenizer cdcdcdcdcdcdcdcd"),
        (lambda path: opened(path, vocab_size=51).close(), BundleMismatch, "51 ids"),
    ],
)
def test_what_is_no_store_of_this_tokenizer_is_refused(
    tmp_path: Path, make: Callable[[Path], None], error: type[TandemError], part: str
) -> None:
    make(tmp_path / "s")
    with pytest.raises(error, match=part) as caught:
        opened(tmp_path / "s")
    assert type(caught.value) is error and str(tmp_path / "s") in str(caught.value)


def test_a_crash_before_the_first_rename_leaves_a_place_for_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*names: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path / "s")
    monkeypatch.undo()
    assert len(os.listdir(tmp_path / "s")) == 1
    opened(tmp_path / "s").close()
    assert sorted(os.listdir(tmp_path / "s")) == [META, LOG]


def test_a_log_that_lost_its_facts_is_not_trusted(tmp_path: Path) -> None:
    made(lambda path: (path / META).unlink())(tmp_path / "s")
    with pytest.raises(UsageError, match="other things"):
        opened(tmp_path / "s")


def test_a_store_that_is_only_read_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no suffix store is there"):
        opened(tmp_path / "s", readonly=True)
    assert os.listdir(tmp_path) == []
